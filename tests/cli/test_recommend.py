"""`siglum recommend fit`, `eval` and `next` from a folder to titles, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sequence_files import write_world
from siglum.cli.main import main

QUICK = [
    part
    for setting in (
        "decoder.epochs=1",
        "decoder.d_model=16",
        "decoder.d_ff=16",
        "tokenizer.vocab=[8,8]",
        "search.beam=20",
    )
    for part in ("--set", setting)
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recommend")
    write_world(folder / "data", times=True)
    assert fit(folder) == 0
    return folder / "run"


def fit(folder: Path, *more: str) -> int:
    base = ["--data", str(folder / "data"), "--out", str(folder / "run"), "--scale", "tiny"]
    return main(["recommend", "fit", *base, *QUICK, *more])


def told(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main([str(arg) for arg in args])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_a_folder_becomes_a_recommender(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = told(capsys, "recommend", "eval", run, "--json", "--users", 20)
    found: dict[str, Any] = json.loads(out)
    assert code == 0 and set(found["systems"]) == {"tiger", "dense", "last_item", "popularity"}
    assert found["disambiguation"]["left"] == 0
    code, _, err = told(capsys, "recommend", "eval", run, "--unseen", "--split", "val")
    assert code == 0 and "60 users" in err


def test_next_names_titles(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = told(capsys, "recommend", "next", run, "--user", "u3", "--k", 4)
    assert code == 0 and len(out.splitlines()) == 4 and "thing" in out and err.count("had") == 6
    code, out, _ = told(capsys, "recommend", "next", run, "--history", "A001, A002", "--k", 3, "--unseen", "--json")
    found = json.loads(out)
    assert [one["item_id"] for one in found["history"]] == ["A001", "A002"] and len(found["hits"]) == 3
    assert not {hit["item_id"] for hit in found["hits"]} & {"A001", "A002"}
    code, out, _ = told(capsys, "recommend", "next", run, "--history", "A001", "--set", "search.vector=last", "--json")
    assert code == 0


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ([], "give --user USER or --history"),
        (["--user", "a", "--history", "b"], "give --user USER or --history"),
        (["--user", "nobody"], "the run has no user 'nobody'; it has such as u0"),
        (["--history", "none"], "the item 'none', which is not in the index"),
    ],
)
def test_what_next_cannot_answer_is_refused(run: Path, capsys, more: list[str], words: str) -> None:
    code, _, err = told(capsys, "recommend", "next", run, *more)
    assert code == 1 and words in err and len(err.strip().splitlines()) == 1


def test_resuming_a_finished_run_makes_nothing_again(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.glob("[1-4]-*/**/*.safetensors")}
    assert fit(run.parent, "--resume") == 0
    assert {path: path.stat().st_mtime_ns for path in run.glob("[1-4]-*/**/*.safetensors")} == before
    capsys.readouterr()
    assert fit(run.parent, "--resume", "--set", "decoder.heads=2") == 1
    assert "fit without --resume" in capsys.readouterr().err


def test_a_split_by_time_and_an_encoder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_world(tmp_path / "data", times=True)
    (tmp_path / "data" / "text_features.npy").unlink()
    assert fit(tmp_path) == 1 and "name what makes them by --encoder" in capsys.readouterr().err
    assert fit(tmp_path, "--encoder", "builtin", "--split", "time") == 0
    assert main(["recommend", "eval", str(tmp_path / "run")]) == 0
    items = tmp_path / "new.jsonl"
    items.write_text('{"id": "fresh", "text": "thing 3"}\n')
    assert main(["index", str(tmp_path / "run"), "--add", str(items)]) == 0
    capsys.readouterr()
    assert main(["recommend", "next", str(tmp_path / "run"), "--history", "fresh", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["history"][0]["text"] == "thing 3"


def test_bad_data_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fit(tmp_path) == 1 and "does not exist" in capsys.readouterr().err
    write_world(tmp_path / "data")
    assert fit(tmp_path, "--encoder", "builtin") == 1 and "has features of its items" in capsys.readouterr().err
    assert fit(tmp_path, "--recipe", "tigre") == 1 and "must be one of: tiger, " in capsys.readouterr().err
    assert fit(tmp_path, "--split", "time") == 1 and "needs the times" in capsys.readouterr().err
