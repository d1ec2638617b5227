"""`siglum explain`: targets that fall and targets that stay, as text, as JSON and as a page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from siglum.cli import explain as verb
from siglum.cli.main import main
from siglum.data.source import write_source
from siglum.lab.world.collection import World
from siglum.search.retriever import Retriever

Call = Callable[..., str]


@pytest.fixture(scope="module")
def fates(world_run: Path, world: World) -> dict[str, str]:
    """Ids of a query whose target falls with a beam of 4 and one whose target stays, searching all pools."""
    retriever, found = Retriever.load(world_run), {}
    for query in world.queries("test", "t2i"):
        hits = retriever.search(query.text, query.image, instruction=query.instruction, beam=4, k=99)
        found["stays" if query.positives[0] in [hit.item_id for hit in hits] else "falls"] = query.id
    assert set(found) == {"stays", "falls"}
    return found


def asked(call: Call, run: Path, *args: object) -> dict:
    return json.loads(call("explain", run, *args, "--beam", 4, "--json"))


def test_a_stored_query_has_its_first_right_item_as_target(call: Call, world_run: Path, fates: dict[str, str]) -> None:
    for fate, query_id in fates.items():
        found = asked(call, world_run, "--query-id", query_id)
        assert found["target"] == f"{query_id.split('-')[1]}-i"
        assert (found["fell_at"] is None) == (found["rank"] is not None) == (fate == "stays")
        kept = [level["target"]["kept"] for level in found["levels"]]
        assert kept == sorted(kept, reverse=True) and all(kept) == (fate == "stays")
        assert [level["level"] for level in found["levels"]] == list(range(len(kept)))
        if fate == "falls":
            assert found["fell_at"] == kept.index(False)
            assert found["levels"][kept.index(False)]["target"]["rank"] > 4
        for level in found["levels"]:
            parts = level["target"]["parts"]
            assert set(parts) == {"log_probability", "geometry"}
            assert sum(parts.values()) == pytest.approx(level["target"]["score"], abs=1e-5)


def test_words_and_pictures_ask_as_search_does(call: Call, world_run: Path, world: World, tmp_path: Path) -> None:
    from PIL import Image

    query = world.queries("test", "it2i")[0]
    Image.fromarray(query.image.pixels(48)).save(tmp_path / "picture.png")
    options = ["--image", tmp_path / "picture.png", "--instruction", "Find it.", "--omega", 3.0, "--beam", 9]
    hits = json.loads(call("search", world_run, query.text, *options, "--json"))["hits"]
    for hit in hits[:3]:
        told = call("explain", world_run, "--query", query.text, *options, "--target", hit["item_id"], "--json")
        found = json.loads(told)
        assert (found["rank"], found["beam"]) == (hit["rank"], 9)
        assert found["levels"][-1]["target"]["score"] == pytest.approx(hit["score"], abs=1e-5)
        assert found["codes"] == hit["codes"]


def test_the_pool_can_be_restricted(
    call: Call, world_run: Path, world: World, fates: dict[str, str], tmp_path: Path
) -> None:
    whole = asked(call, world_run, "--query-id", fates["falls"])
    own = asked(call, world_run, "--query-id", fates["falls"], "--own-pool")
    pool = list(world.pool("test", "t2i"))
    assert own["levels"][0]["prefixes"] == 1 < whole["levels"][0]["prefixes"]
    assert {hit["item_id"] for hit in own["hits"]} <= set(pool)
    only = tmp_path / "only.txt"
    only.write_text("\n".join(pool))
    assert asked(call, world_run, "--query-id", fates["falls"], "--within", only) == own


def test_the_terminal_shows_the_verdict_the_levels_and_the_tree(
    call: Call, world_run: Path, fates: dict[str, str]
) -> None:
    for fate, query_id in fates.items():
        found = asked(call, world_run, "--query-id", query_id)
        text = call("explain", world_run, "--query-id", query_id, "--beam", 4)
        lines = text.splitlines()
        assert lines[: len(found["verdict"])] == found["verdict"]
        levels, fell = found["levels"], found["fell_at"]
        last = len(levels) - 1
        alone = next((place for place, level in enumerate(levels) if level["target"]["items"] == 1), last)
        # Levels stand alone until one item is left; then those up to the fall are one line, and those below it.
        ends = sorted({*range(min(alone + 1, last)), last} | ({fell} if fell is not None else set()))
        ends = [end for end in ends if end <= alone or end in (fell, last)]
        starts = [0, *(end + 1 for end in ends[:-1])]
        names = [f"{a}" if a == b else f"{a}–{b}" for a, b in zip(starts, ends, strict=True)]
        table = lines[lines.index("") + 1 :]
        rows = [line.split() for line in table[1 : table.index("")]]
        assert [row[0] for row in rows] == ["M", *names[1:]]
        assert [row[2] for row in rows] == [str(levels[end]["target"]["rank"]) for end in ends]
        assert [row[1].split("-")[-1] for row in rows] == [str(levels[end]["target"]["codes"][-1]) for end in ends]
        assert ("✗ falls here" in text) == (fate == "falls")
        told = levels if fate == "stays" else levels[: fell + 1]
        tree = text[text.index("query\n") :]
        assert all(level["best"][0]["examples"][0] in tree for level in told)
        assert tree.count("← target") + tree.count("✗") == 1 + min(alone, len(told) - 1)
        assert max(len(line) for line in tree.splitlines()) < 120


def test_the_page_shows_the_world_s_pictures(call: Call, run_copy: Path, world: World, fates: dict[str, str]) -> None:
    page = run_copy / "page.html"
    call("explain", run_copy, "--query-id", fates["falls"], "--beam", 4, "--out", page)
    assert "✗ falls here" in page.read_text() and "data:image" not in page.read_text()
    write_source(run_copy, "world", items=world.num_items, seed=world.seed)
    call("explain", run_copy, "--query-id", fates["falls"], "--beam", 4, "--out", page)
    text = page.read_text()
    wanted = next(query.text for query in world.queries("test", "t2i") if query.id == fates["falls"])
    assert "data:image/jpeg" in text and wanted.split(",")[0] in text


def test_a_run_without_a_decoder_is_explained_by_geometry(
    run_copy: Path, fates: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(run_copy / "3-decoder")
    assert main(["explain", str(run_copy), "--query-id", fates["stays"], "--json"]) == 0
    found = capsys.readouterr()
    assert "by geometry alone" in found.err
    assert set(json.loads(found.out)["levels"][0]["target"]["parts"]) == {"geometry"}


def test_a_file_of_a_folder_can_be_the_target(world_run: Path, tmp_path: Path) -> None:
    retriever, source = Retriever.load(world_run), {"kind": "folder", "path": str(tmp_path)}
    known = next(iter(retriever.index.ids))
    (tmp_path / "two dogs.jpg").touch()
    for name, wanted in (
        (known, known),
        (str(tmp_path / "two dogs.jpg"), "two%20dogs.jpg"),
        ("two dogs.jpg", "two%20dogs.jpg"),
    ):
        assert verb.item_id_of(name, source, retriever) == wanted
    assert verb.item_id_of("two dogs.jpg", {}, retriever) == "two dogs.jpg"


def test_mistakes_are_told_in_one_sentence(
    fail: Call, world_run: Path, fates: dict[str, str], subtests: pytest.Subtests
) -> None:
    none, known = world_run / "none", next(iter(Retriever.load(world_run).index.ids))
    stored = ["--query-id", fates["stays"]]
    for args, words in (
        ([world_run], "needs one query"),
        ([world_run, "--target", known], "needs one query"),
        ([world_run, "--query", "a", *stored], "needs one query"),
        ([world_run, "--instruction", "Find it.", "--target", known], "an instruction alone"),
        ([world_run, "--query", "a"], "needs --target ITEM_ID"),
        ([world_run, "--query", "   ", "--target", known], "--query is blank ('   '); say something"),
        ([world_run, "--query-id", " "], "--query-id is blank"),
        ([world_run, "--query", "a", "--target", "nobody"], "'nobody' is not in the index"),
        ([world_run, *stored, "--target", "nobody"], "'nobody' is not in the index"),
        ([world_run, "--query-id", "q"], "no test or validation query 'q'; it has such as t2i-"),
        ([world_run, "--query", "a", "--target", known, "--own-pool"], "goes with --query-id"),
        ([world_run, *stored, "--own-pool", "--within", none], "give one of them"),
        ([world_run, *stored, "--within", none], "does not exist"),
        ([world_run, "--query", "a", "--image", none, "--target", known], "does not exist"),
        ([world_run, *stored, "--beam", 0], "beam is 0, but must be at least 1"),
        ([world_run, *stored, "--scorer", "best"], "fused, decoder, geometry, oracle"),
        ([world_run, *stored, "--device", "tpu"], "cpu, cuda"),
        ([none, *stored], "is not a run folder"),
    ):
        with subtests.test(" ".join(map(str, args))):
            assert words in fail("explain", *args), args


def test_a_run_of_plain_vectors_has_only_its_own_queries(
    fail: Call, run_copy: Path, monkeypatch: pytest.MonkeyPatch, fates: dict[str, str]
) -> None:
    monkeypatch.setattr(Retriever, "encoder", None)
    known = next(iter(Retriever.load(run_copy).index.ids))
    assert "give --query-id" in fail("explain", run_copy, "--query", "a", "--target", known)
