"""`siglum index --add` leaves out what `siglum encode` leaves out, and names it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from siglum.cli.main import main
from siglum.search.retriever import Retriever
from siglum.types import SiglumError

Call = Callable[..., str]


def write(path: Path, *rows: dict[str, str]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


FOX = {"id": "fox", "text": "🦊🦊"}
STAR = {"id": "star", "text": "a red star"}
GONE = {"id": "gone", "text": "a red star", "image": "gone.png"}


def test_what_gives_no_feature_is_skipped_and_named(
    run_copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = len(Retriever.load(run_copy))
    new = write(tmp_path / "new.jsonl", FOX, STAR, GONE)
    assert main(["index", str(run_copy), "--add", str(new), "--json"]) == 0
    out, error = capsys.readouterr()
    found = json.loads(out)
    assert found["items"] == before + 1
    assert [(entry["id"], entry["part"]) for entry in found["omitted"]] == [("gone", "row"), ("fox", "row")]
    assert "2 rows were skipped:" in error and "has no words this encoder knows" in error and "gone.png" in error
    retriever = Retriever.load(run_copy)
    assert "star" in retriever.index.ids and not {"fox", "gone"} & set(retriever.index.ids)
    assert retriever.search("a red star", k=1, within=["star"])[0].text == "a red star"


def test_a_file_of_which_nothing_is_left_changes_nothing(run_copy: Path, tmp_path: Path, fail: Call) -> None:
    before = list(Retriever.load(run_copy).index.ids)
    told = fail("index", run_copy, "--add", write(tmp_path / "new.jsonl", FOX), "--remove", before[0])
    assert "none of the 1 items of" in told and "has no words this encoder knows" in told
    assert list(Retriever.load(run_copy).index.ids) == before


def test_strict_refuses_the_file(run_copy: Path, tmp_path: Path, fail: Call) -> None:
    new = write(tmp_path / "new.jsonl", FOX, STAR)
    assert "has no words this encoder knows" in fail("index", run_copy, "--add", new, "--strict")
    assert "star" not in Retriever.load(run_copy).index.ids
    for options in ((), ("--compact",), ("--remove", "star")):
        assert "--strict says how --add takes items" in fail("index", run_copy, "--strict", *options)


def test_writing_into_another_run_is_refused(run_copy: Path, tmp_path: Path) -> None:
    """Its items would take the place of those that the retriever holds."""
    retriever = Retriever.load(run_copy)
    retriever.save(tmp_path / "other")
    retriever = Retriever.load(run_copy)
    retriever.remove([retriever.index.ids[0]])
    retriever.save(run_copy)
    held = list(retriever.index.ids)
    with pytest.raises(SiglumError, match="does not hold the items of"), retriever.writing(tmp_path / "other"):
        pass
    assert list(retriever.index.ids) == held
    own = Retriever.load(run_copy)
    own.index = retriever.index
    with pytest.raises(SiglumError, match="does not hold the items of"), own.writing(run_copy):
        pass
    retriever.save(tmp_path / "third")
    with retriever.writing(tmp_path / "third") as live:
        live.remove([held[0]])
    assert list(retriever.index.ids) == held[1:]
