"""`siglum build` and `siglum encode` on a catalogue of products."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from catalogue_files import make_catalogue
from siglum import Retriever
from siglum.build import build_folder, configure
from siglum.cli.main import main
from siglum.data.folder import read_folder
from siglum.data.source import find_items, read_source
from siglum.data.vectors import load_vectors
from siglum.pages.names import name_task
from siglum.scales import catalogue_small
from siglum.types import SiglumError


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shop")
    make_catalogue(folder / "data", ["train"] * 11 + ["val", "test"])
    build_folder(folder / "data", folder / "run", encoder="builtin", scale="tiny")
    return folder


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    capsys.readouterr()
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_products_are_found_by_picture_and_words(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = shop / "data/pictures/00.png"
    found = said(capsys, "search", shop / "run", "the same in green", "--image", picture, "-k", "5")["hits"]
    assert len(found) == 5 and all(Path(hit["path"]).exists() for hit in found)
    assert any(hit["text"].startswith("Maker0 Men") for hit in found)
    alone = said(capsys, "search", shop / "run", "--image", picture, "-k", "3", "--exclude-self")["hits"]
    assert "pictures/00.png" not in {hit["item_id"] for hit in alone}


def test_a_hit_is_printed_with_its_name(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("search", shop / "run", "Maker0 Men Red Model0 Tshirts", "-k", "3")
    hits = said(capsys, *asked)["hits"]
    assert main([*map(str, asked)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.endswith(f"{hit['path']}  {hit['text']}") for line, hit in zip(lines, hits, strict=True))


def test_a_long_text_is_cut_and_none_leaves_no_trace() -> None:
    from siglum.cli.search import LETTERS, _line

    assert _line({"text": "two\n dogs"}) == "two dogs" and _line({"text": None}) == ""
    assert _line({"text": "a" * 200}) == "a" * (LETTERS - 1) + "…"


def test_what_is_asked_is_asked_as_people_do(shop: Path) -> None:
    found = read_folder(shop / "data")
    ids = {item.id for item in found.collection.items}
    for split, queries in found.collection.queries.items():
        likeness = {"i2it"} if split == "train" else set()
        assert {query.task for query in queries} == {"name2it", "t2it", "it2it"} | likeness
        assert {name_task(query.task).partition("→")[2] for query in queries} == {"(i,t)"}
        assert {name_task(query.task) for query in queries if query.id.startswith("t2i:")} == {"name→(i,t)"}
        for query in queries:
            assert query.instruction is None and set(query.positives) <= ids
    assert found.queries == read_source(shop / "run")["queries"] == "queries" and found.supervised
    assert len(read_folder(shop / "data", "none").collection.queries["train"]) == len(ids)


def test_a_build_takes_the_settings_chosen_on_catalogues(shop: Path) -> None:
    vectors, own = load_vectors(shop / "run/1-vectors")[0], catalogue_small()
    usual = read_folder(shop / "data").scale
    config = configure(vectors, True, False, "pro", "auto", 3, usual=usual)
    assert (config.scale, config.seed, config.fusion.negatives, config.fusion.hidden) == ("auto", 3, "all", 512)
    # 66 products of the training split: no level is larger than a quarter of them
    assert config.tokenizer.vocab == (16,) * own.tokenizer.levels
    assert config.fusion.epochs > own.fusion.epochs and config.fusion.batch_size < own.fusion.batch_size
    assert configure(vectors, True, False, "pro", "auto", 3).fusion.negatives != "all"
    assert configure(vectors, True, False, "pro", "tiny", 3, usual=usual).scale == "tiny"


def test_the_build_says_what_it_learnt(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", str(shop / "data"), "--out", str(shop / "run"), "--resume", "--encoder", "builtin"]) != 0
    told = said(
        capsys, "build", shop / "data", "--out", shop / "run", "--resume", "--encoder", "builtin", "--scale", "tiny"
    )
    assert told["items"] == 81 and told["queries"] == "queries" and told["seconds"] == {}
    asked = read_folder(shop / "data").collection.queries
    assert (
        told["captions"]
        == len(asked["train"]) + len(asked["val"])
        < len(load_vectors(shop / "run/1-vectors")[0].pair_query)
    )
    assert told["held_out"]["captions"] > 10 and told["held_out"]["success@10"] > 0.3
    rest = ("--out", str(shop / "run"), "--resume", "--encoder", "builtin", "--scale", "tiny")
    assert main(["build", str(shop / "data"), *rest]) == 0
    words = "".join(capsys.readouterr())
    assert "81 products and " in words and " queries of products it never read about find theirs first in " in words
    assert '"the same in red" --image ' in words and "--exclude-self" in words


def test_an_update_takes_new_products(shop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, run = shutil.copytree(shop / "data", tmp_path / "data"), tmp_path / "run"
    build_folder(data, run, encoder="builtin", scale="tiny", captions="products")
    shutil.copy(data / "pictures/00.png", data / "pictures/new.png")
    lines = (data / "products.jsonl").read_text().splitlines()
    new = json.loads(lines[0]) | {"id": "new", "picture": "pictures/new.png"}
    (data / "products.jsonl").write_text("\n".join([*lines[:-1], json.dumps(new)]))
    assert main(["build", str(data), "--out", str(run), "--update"]) == 0
    words = "".join(capsys.readouterr())
    assert "queries of 1 new products were not learnt from" in words
    assert "81 products, encoded by builtin" in words and "1 added, 0 changed, 1 removed" in words
    told = said(capsys, "build", data, "--out", run, "--update")
    assert told["queries"] == "queries" and told["items"] == 81
    hits = Retriever.load(run).search(new["name"], data / "pictures/00.png", k=5)
    assert {hit.item_id for hit in hits} >= {"pictures/00.png", "pictures/new.png"}


def test_a_run_of_all_eight_tasks_is_encoded_and_shown(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = shop / "eight"
    told = said(capsys, "encode", "--out", run, "--catalogue", shop / "data", "--scale", "tiny")
    assert told["items"] == 2 * 81 + 55 and told["skipped"] == 0
    facts = read_source(run)
    assert facts["kind"] == "catalogue"
    assert find_items(facts, ["it:00"])["it:00"].text == "Maker0 Men Red Model0 Tshirts"


def test_a_folder_without_products_is_named(tmp_path: Path) -> None:
    with pytest.raises(SiglumError, match=r"has no products\.jsonl"):
        read_folder(tmp_path, "products")
