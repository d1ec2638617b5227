"""`siglum report` on a tiny run: its numbers are those of eval and diagnose, and what is missing is no error."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from markup import all_said, one_named, parse, rows
from records import reseal
from siglum.data.source import write_source
from siglum.files import read_json, write_json, write_text
from siglum.measure.diagnose import sample
from siglum.measure.evaluate import evaluate_systems
from siglum.measure.systems import open_systems
from siglum.pages.report import report as make_report
from siglum.rootfiles import write_root_json
from siglum.run.folder import RunFolder

Call = Callable[..., str]
QUERIES = 48


@pytest.fixture(scope="module")
def other_run(world_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run with another weight of geometry, which another search follows from."""
    run = Path(shutil.copytree(world_run, tmp_path_factory.mktemp("other") / "heavy"))
    config = read_json(run / "config.json")
    config["search"]["omega"] *= 20
    write_root_json(run, "config.json", config)
    return run


def report(call: Call, out: Path, *args: object) -> tuple[dict, str]:
    found = json.loads(call("report", *args, "--queries", QUERIES, "--out", out, "--json"))
    return found, out.read_text()


def test_numbers_are_those_of_eval_and_diagnose(call: Call, world_run: Path, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in world_run.rglob("*")}
    found, text = report(call, tmp_path / "report.html", world_run)
    assert before == {path: path.stat().st_mtime_ns for path in world_run.rglob("*")}
    (run,) = found["runs"]
    systems = open_systems(RunFolder(world_run))
    rankers = {"dense": systems.dense, "scan": systems.scan, "geometry": systems.geometry, "pro": systems.own}
    tasks = sample(systems.vectors.of_split("test"), QUERIES)
    wanted = evaluate_systems(systems.vectors, tasks, rankers, union=False).tasks
    assert (run["systems"], run["own"], run["notes"]) == (list(rankers), "pro", [])
    for task, row in run["tasks"].items():
        for system, values in row.items():
            assert values == {measure: wanted[task][system][measure] for measure in values} and len(values) == 4
    assert sum(run["queries"].values()) == QUERIES
    told = json.loads(call("diagnose", world_run, "--queries", QUERIES, "--json"))
    assert run["diagnosis"]["ladder"] == told["ladder"] and run["diagnosis"]["verdict"] == told["verdict"]
    assert found["differences"] == {} and found["machine"]["versions"]["torch"] and found["seconds"] > 0
    assert "What is missing" not in text and "Its words and pictures are not kept." in text
    assert found["command"] in text.replace("&#x27;", "'")


def test_python_measures_the_same(call: Call, world_run: Path, tmp_path: Path) -> None:
    there = report(call, tmp_path / "there.html", world_run)[0]
    here = make_report([world_run], out=tmp_path / "here.html", queries=QUERIES)
    assert json.loads(json.dumps(here["runs"])) == there["runs"]
    assert "What is found" in (tmp_path / "here.html").read_text() and here["machine"] is None


def test_two_runs_and_their_pictures(
    call: Call, world_run: Path, other_run: Path, run_copy: Path, tmp_path: Path
) -> None:
    for run in (run_copy, other_run):
        write_source(run, "world", items=480, seed=0)
    found, text = report(call, tmp_path / "report.html", run_copy, other_run)
    names = [run["name"] for run in found["runs"]]
    assert names == ["run", "heavy"] and found["reference"] == "run"
    first, second = found["runs"]
    gaps = found["differences"]["heavy"]
    assert set(gaps) == {*first["tasks"], "mean"}
    for task in first["tasks"]:
        for measure, gap in gaps[task].items():
            wanted = second["tasks"][task]["pro"][measure] - first["tasks"][task]["pro"][measure]
            assert gap["difference"] == pytest.approx(wanted) and gap["low"] <= gap["high"]
    assert any(gap["success@1"]["difference"] for gap in gaps.values())
    shown = one_named(parse(text), "table", "Settings that differ")
    assert [head for head, *_ in rows(shown)] == ["Setting", "search.omega"]
    assert text.count("data:image/jpeg;base64,") > 20 and "http" not in text and "<script" not in text
    assert report(call, tmp_path / "report.html", run_copy, other_run)[0]["differences"] == found["differences"]


@pytest.mark.parametrize(
    ("gone", "systems", "own", "rungs", "said"),
    [
        (["3-decoder"], ["dense", "scan", "geometry"], "geometry", 3, "there is no decoder yet"),
        (["4-index"], ["dense", "scan"], None, 5, "there is no index yet"),
        (["3-decoder", "4-index"], ["dense", "scan"], None, 3, "there is no index yet"),
        (["3-decoder/stage.json"], ["dense", "scan"], None, 3, "the stage 3-decoder is not finished"),
        (["2-tokenizer/stage.json"], ["dense"], None, 0, "the stage 2-tokenizer is not finished"),
        (["2-tokenizer"], [], None, 0, "there are no codes yet"),
        (["1-vectors"], [], None, 0, "there are no features yet"),
    ],
)
def test_a_missing_stage_makes_the_page_shorter(
    call: Call,
    run_copy: Path,
    tmp_path: Path,
    gone: list[str],
    systems: list[str],
    own: str | None,
    rungs: int,
    said: str,
) -> None:
    for name in gone:
        path = run_copy / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    found, text = report(call, tmp_path / "report.html", run_copy)
    (run,) = found["runs"]
    assert (run["systems"], run["own"]) == (systems, own)
    assert len((run["diagnosis"] or {"ladder": []})["ladder"]) == rungs
    assert any(note.startswith(said) for note in run["notes"])
    assert "What is missing" in text and ("Where targets are lost" in text) == bool(rungs)
    assert ("What is found" in text) == bool(systems)


def test_a_stage_made_from_other_inputs_is_told(call: Call, run_copy: Path, tmp_path: Path) -> None:
    reseal(run_copy / "4-index", inputs={"tokenizer": "another"})
    found, text = report(call, tmp_path / "report.html", run_copy)
    assert found["runs"][0]["own"] is None
    assert "was made with another tokenizer" in found["runs"][0]["notes"][0] and "made with another tokenizer" in text


def test_the_first_run_that_can_be_searched_is_the_reference(
    call: Call, world_run: Path, other_run: Path, run_copy: Path, tmp_path: Path
) -> None:
    shutil.rmtree(run_copy / "4-index")
    bare = run_copy.rename(run_copy.parent / "bare")
    found, text = report(call, tmp_path / "report.html", bare, world_run, other_run)
    assert found["reference"] == "run" and found["differences"]["bare"] == {} and found["differences"]["heavy"]
    assert "cannot be searched yet" in text


def test_a_split_without_tasks_is_told(call: Call, run_copy: Path, tmp_path: Path) -> None:
    tasks = read_json(run_copy / "1-vectors" / "tasks.json")
    write_json(run_copy / "1-vectors" / "tasks.json", [{**task, "split": "val"} for task in tasks])
    reseal(run_copy / "1-vectors")
    found, _ = report(call, tmp_path / "report.html", run_copy)
    assert found["runs"][0]["notes"] == ["there are no tasks in split test, only in val; --split names another."]


def test_experiments_go_on_the_page(call: Call, world_run: Path, tmp_path: Path) -> None:
    write_json(tmp_path / "exp" / "main" / "results.json", {"title": "The main table", "value": 0.25})
    write_text(tmp_path / "exp" / "main" / "table.md", "## Systems\n\n| a | b |\n|---|--:|\n| x | 12.5 |\n")
    found, text = report(call, tmp_path / "report.html", world_run, "--experiments", tmp_path / "exp")
    assert found["experiments"] == {"main": {"title": "The main table", "value": 0.25}}
    assert "The main table" in all_said(parse(text), "summary") and ["x", "12.5"] in rows(parse(text))


def test_mistakes_are_one_sentence(fail: Call, world_run: Path, tmp_path: Path) -> None:
    assert "is not a run folder" in fail("report", tmp_path)
    assert "given twice" in fail("report", world_run, world_run)
    assert "split is 'tset'" in fail("report", world_run, "--split", "tset")
    assert "--queries must be 0 (all) or more" in fail("report", world_run, "--queries", -1)
    assert "at least one run folder" in fail("report")
    assert "no finished experiment" in fail("report", world_run, "--experiments", tmp_path)
