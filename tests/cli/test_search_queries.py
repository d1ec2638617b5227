"""`siglum search --queries`: the hits of a file of queries are those of as many single searches, in every format."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from siglum.data.corpus import write_queries
from siglum.data.source import write_source
from siglum.data.trec import read_run
from siglum.lab.world.collection import World
from siglum.search.retriever import Retriever
from siglum.types import Query

Call = Callable[..., str]
NUMBER = 12


@pytest.fixture(scope="module")
def queries(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of queries: texts, pictures, and both."""
    folder = tmp_path_factory.mktemp("queries")
    rows = []
    for task in ("t2i", "i2t", "it2i"):
        for query in list(world.queries("test", task))[: NUMBER // 3]:
            picture = None if query.image is None else folder / f"{query.id}.png"
            if picture is not None:
                Image.fromarray(query.image.pixels(64)).save(picture)  # type: ignore[union-attr]
            rows.append(Query(id=query.id, text=query.text, image=picture, instruction=query.instruction))
    write_queries(folder / "queries.jsonl", rows)
    return folder / "queries.jsonl"


def read(text: str) -> dict[str, list[dict[str, Any]]]:
    return {line["query"]: line["hits"] for line in map(json.loads, text.splitlines())}


def test_the_hits_are_those_of_single_searches(call: Call, world_run: Path, queries: Path) -> None:
    found = read(call("search", world_run, "--queries", queries, "-k", 5))
    asked = [json.loads(line) for line in queries.read_text().splitlines()]
    assert list(found) == [query["id"] for query in asked] and len(found) == NUMBER
    for query in asked[::3]:
        given = [query.get("text") or ""]
        given += ["--image", queries.parent / query["image"]] if "image" in query else []
        given += ["--instruction", query["instruction"]] if "instruction" in query else []
        alone = json.loads(call("search", world_run, *given, "-k", 5, "--json"))["hits"]
        assert [hit["item_id"] for hit in alone] == [hit["item_id"] for hit in found[query["id"]]]
        assert [hit["codes"] for hit in alone] == [hit["codes"] for hit in found[query["id"]]]


def test_batches_change_nothing_and_a_file_holds_what_stdout_does(
    call: Call, world_run: Path, queries: Path, tmp_path: Path
) -> None:
    options = ("search", world_run, "--queries", queries, "-k", 4, "--beam", 7, "--set", "search.lookahead=true")
    whole = read(call(*options))
    for batch in (1, 5):
        assert call(*options, "--batch", batch, "--out", tmp_path / "hits.jsonl") == ""
        parts = read((tmp_path / "hits.jsonl").read_text())
        assert list(parts) == list(whole)
        for name, hits in parts.items():
            assert [hit["item_id"] for hit in hits] == [hit["item_id"] for hit in whole[name]]
            assert [hit["score"] for hit in hits] == pytest.approx([hit["score"] for hit in whole[name]], abs=1e-4)
    document = json.loads(call(*options, "--json"))
    assert document["queries"] == NUMBER and {one["query"]: one["hits"] for one in document["results"]} == whole
    told = json.loads(call(*options, "--out", tmp_path / "hits.jsonl", "--json"))
    assert told == {"queries": NUMBER, "out": str(tmp_path / "hits.jsonl"), "format": "jsonl"}


def test_a_trec_run_is_one(call: Call, world_run: Path, queries: Path, tmp_path: Path) -> None:
    options = ("search", world_run, "--queries", queries, "-k", 6)
    call(*options, "--format", "trec", "--out", tmp_path / "hits.trec")
    shown = call(*options, "--format", "trec")
    assert shown == (tmp_path / "hits.trec").read_text()
    wanted = read(call(*options))
    run = read_run(tmp_path / "hits.trec")
    assert {name: [item for item, _ in hits] for name, hits in run.items()} == {
        name: [hit["item_id"] for hit in hits] for name, hits in wanted.items()
    }


def test_features_are_searched_without_an_encoder(call: Call, world_run: Path, queries: Path, tmp_path: Path) -> None:
    retriever = Retriever.load(world_run)
    assert retriever.encoder is not None
    texts = [one["text"] for one in map(json.loads, queries.read_text().splitlines()) if "image" not in one]
    np.savez(tmp_path / "asked.npz", text=retriever.encoder.encode_texts(texts), ids=[f"f{i}" for i in range(4)])
    found = read(call("search", world_run, "--query-features", tmp_path / "asked.npz", "-k", 3))
    assert list(found) == ["f0", "f1", "f2", "f3"]
    for text, hits in zip(texts, found.values(), strict=True):
        assert [hit.item_id for hit in retriever.search(text, k=3)] == [hit["item_id"] for hit in hits]


def test_hits_are_restricted_as_in_a_single_search(call: Call, world_run: Path, queries: Path, tmp_path: Path) -> None:
    found = read(call("search", world_run, "--queries", queries, "-k", 5))
    name, hits = next(iter(found.items()))
    (tmp_path / "no.txt").write_text(f"{hits[0]['item_id']}\n")
    fewer = read(call("search", world_run, "--queries", queries, "-k", 5, "--without", tmp_path / "no.txt"))
    assert [hit["item_id"] for hit in fewer[name]][:4] == [hit["item_id"] for hit in hits][1:]
    bar = hits[2]["score"]
    good = read(call("search", world_run, "--queries", queries, "-k", 5, "--min-score", bar))
    assert {hit["score"] >= bar for row in good.values() for hit in row} == {True}
    write_queries(tmp_path / "own.jsonl", [Query(id=hits[0]["item_id"], text="a red star")])
    own = read(call("search", world_run, "--queries", tmp_path / "own.jsonl", "--exclude-self", "-k", 50, "--beam", 99))
    assert hits[0]["item_id"] not in [hit["item_id"] for hit in own[hits[0]["item_id"]]]


def test_what_does_not_go_together_is_refused(fail: Call, world_run: Path, queries: Path, tmp_path: Path) -> None:
    asked = ("search", world_run, "--queries", queries)
    for more, words in (
        (["words"], "--queries is a search of its own; leave out a text"),
        (["--image", "a.png", "--open"], "leave out --image, --open"),
        (["--query-features", "a.npz"], "leave out --query-features"),
        (["--query-features", "a.npz", "--exclude-self"], "leave out --query-features"),
        (["--batch", 0], "--batch is 0, but must be at least 1"),
        (["--set", "prior=1"], r"a setting of a search is written search.FIELD=VALUE, not 'prior=1'"),
        (["--set", "search.width=1"], "has no field 'width'"),
    ):
        assert words in fail(*asked, *more)
    assert "give --queries FILE as well" in fail("search", world_run, "words", "--out", tmp_path / "x")
    (tmp_path / "bad.jsonl").write_text('{"id": "q1", "text": "a", "image": "none.png"}\n')
    alone = ("search", world_run, "--query-features", queries, "--exclude-self")
    assert "--exclude-self looks at the queries themselves" in fail(*alone)
    assert "none.png" in fail("search", world_run, "--queries", tmp_path / "bad.jsonl", "--out", tmp_path / "x")
    assert not (tmp_path / "x").exists(), "nothing is half written"


def test_hits_of_other_runs_are_shown_as_far_as_they_are_known(world_run: Path, tmp_path: Path, call: Call) -> None:
    run = Path(shutil.copytree(world_run, tmp_path / "run"))
    told = json.loads(call("search", run, "a red star", "-k", 3, "--sheet", tmp_path / "bare.html", "--json"))["hits"]
    bare = (tmp_path / "bare.html").read_text()
    assert bare.count("Nothing to show") == sum(hit["text"] is None for hit in told) and "data:image" not in bare
    write_source(run, "world", items=480, seed=0)
    hits = json.loads(call("search", run, "a red star", "-k", 9, "--sheet", tmp_path / "full.html", "--json"))["hits"]
    items = [World(480, 0).item(hit["item_id"]) for hit in hits]
    text = (tmp_path / "full.html").read_text()
    assert "Nothing to show" not in text
    assert text.count("data:image/jpeg;base64,") == sum(item.image is not None for item in items)
    assert all(item.text in text for item in items if item.text and "'" not in item.text)
