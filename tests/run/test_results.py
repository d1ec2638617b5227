"""Results that are damaged or outdated answer nothing, and a check of a run reads them, its log and its checkpoints."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from siglum.cli import eval as verb
from siglum.files import read_json, write_json
from siglum.hub.card import _results
from siglum.log import JsonlLog, read_log, unreadable_lines
from siglum.run.check import check_run
from siglum.run.folder import RunFolder
from siglum.run.live import LiveIndex

Call = Callable[..., str]


@pytest.fixture(scope="module")
def measured(world_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was measured."""
    from siglum.cli.main import main

    run = tmp_path_factory.mktemp("measured") / "run"
    shutil.copytree(world_run, run, symlinks=True)
    assert main(["eval", str(run), "--json"]) == 0
    return run


@pytest.fixture
def pair(measured: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Two copies of it."""
    for name in ("one", "two"):
        shutil.copytree(measured, tmp_path / name, symlinks=True)
    return tmp_path / "one", tmp_path / "two"


def swap_lines(path: Path) -> None:
    """Have other items first, in a file that is as well-formed as before."""
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0].replace("Q0 ", "Q0 other", 1), *lines[1:]]))


def rankings(run: Path) -> list[Path]:
    recipe = RunFolder(run).config().recipe
    return sorted((run / "5-runs").glob(f"*.test.{recipe}.trec"))


def test_a_damaged_ranking_is_compared_with_nothing(pair: tuple[Path, Path], call: Call, fail: Call) -> None:
    one, two = pair
    found = json.loads(call("eval", one, "--against", two, "--json"))["against"]
    assert found and all(row == {"difference": 0.0, "p": 1.0} for row in found.values())
    path = rankings(two)[0]
    whole = path.read_bytes()
    for damage in (swap_lines, lambda place: place.write_bytes(whole[: len(whole) // 2])):
        damage(path)
        assert f"{path} is damaged" in fail("eval", one, "--against", two)
        assert f"5-runs/{path.name} (damaged" in fail("info", two, "--check")
        path.write_bytes(whole)
    path.unlink()
    assert f"5-runs/{path.name} (missing)" in fail("info", two, "--check")
    call("eval", two)
    call("info", two, "--check")
    call("eval", one, "--against", two)


def test_an_outdated_ranking_is_compared_with_nothing(pair: tuple[Path, Path], call: Call, fail: Call) -> None:
    one, two = pair
    changes: list[Callable[[], object]] = [
        lambda: change_index(two),
        lambda: RunFolder(two).write_config(
            replace(RunFolder(two).config(), search=replace(RunFolder(two).config().search, beam=3))
        ),
    ]
    for change in changes:
        change()
        assert f"run `siglum eval {two} --split test` again" in fail("eval", one, "--against", two)
        call("eval", two)
        call("eval", one, "--against", two)


def change_index(run: Path) -> None:
    with LiveIndex(run / "4-index") as live:
        live.remove([live.index.ids[0]])


def test_rankings_without_checks_are_told_of_and_may_be_given_some(
    pair: tuple[Path, Path], call: Call, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = pair
    (two / "5-runs" / "checks.json").unlink()
    call("eval", one, "--against", two)
    assert f"{rankings(two)[0]} has no checks" in caplog.text
    assert json.loads(call("info", two, "--check", "--json"))["check"]["unrecorded"] == ["5-runs"]
    assert json.loads(call("info", two, "--check", "--record", "--json"))["check"]["recorded"] == ["5-runs"]
    caplog.clear()
    call("eval", one, "--against", two)
    assert "has no checks" not in caplog.text


def test_a_damaged_report_is_shown_nowhere(pair: tuple[Path, Path], fail: Call) -> None:
    run = pair[0]
    assert _results(run)[0] == "test"
    path = run / "6-report" / "eval-test.json"
    path.write_text(path.read_text().replace("0.", "1.", 1))
    with pytest.raises(ValueError, match=r"eval-test\.json is damaged"):
        _results(run)
    assert "6-report/eval-test.json (damaged" in fail("info", run, "--check")


@pytest.mark.parametrize("bad", ["{", "[]", '{"files": {}, "record": "0"}'])
def test_damaged_checks_of_results_are_mended_by_measuring(
    pair: tuple[Path, Path], call: Call, fail: Call, bad: str
) -> None:
    one, two = pair
    (two / "5-runs" / "checks.json").write_text(bad)
    assert "5-runs/checks.json was changed" in fail("eval", one, "--against", two)
    assert "5-runs/checks.json (changed by hand or damaged)" in fail("info", two, "--check")
    call("eval", two)
    call("info", two, "--check")


def test_a_kill_between_ranking_and_checks_leaves_no_damage(
    pair: tuple[Path, Path], call: Call, fail: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = pair

    def killed(*args: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("siglum.measure.systems.keep_results", killed)
        with pytest.raises(KeyboardInterrupt):
            verb.run(verb.Command(folder=two, json=True))
    assert check_run(two).faults == {}
    assert "5-runs" in check_run(two).unrecorded
    call("eval", one, "--against", two)


def test_a_check_reads_checkpoints(run_copy: Path, fail: Call) -> None:
    assert check_run(run_copy).faults == {}
    found = sorted(run_copy.glob("3-decoder/checkpoint/state-*")) + sorted(run_copy.glob("2-*/checkpoint/*/state-*"))
    assert len(found) > 1
    for path in found:
        whole = path.read_bytes()
        path.write_bytes(whole[:-9])
        name = path.relative_to(run_copy).as_posix()
        assert f"{name} (damaged" in fail("info", run_copy, "--check")
        path.write_bytes(whole)
    path = found[0].with_name("checkpoint.json")
    record = read_json(path)
    write_json(path, record | {"history": record["history"][:-1]})
    assert "checkpoint.json (changed by hand or damaged)" in fail("info", run_copy, "--check")


def test_a_check_finds_that_the_log_was_cut_or_changed(run_copy: Path, fail: Call) -> None:
    path = run_copy / "log.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    for content, said in (
        (b"".join(lines[:-1]), "log.jsonl (lacks 1 epoch of decoder"),
        (b"".join(lines)[:-9], "log.jsonl (1 unreadable line)"),
        (b"", "log.jsonl (lacks"),
        (b"".join(lines).replace(b'"loss": ', b'"loss": 1', 1), "or has other numbers"),
    ):
        path.write_bytes(content)
        assert said in fail("info", run_copy, "--check")
    path.unlink()
    assert "log.jsonl (lacks" in fail("info", run_copy, "--check")


def test_a_line_that_a_kill_tore_goes_when_training_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    log = JsonlLog(path)
    log.write("decoder", 0, {"loss": 1.0})
    path.write_bytes(path.read_bytes() + b'{"stage": "dec')
    log.begin("decoder", 1)
    log.write("decoder", 1, {"loss": 0.5})
    assert unreadable_lines(path) == 0 and [line["step"] for line in read_log(path)] == [0, 1]
