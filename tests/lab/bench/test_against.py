"""Two commits side by side: who goes when, what the ratio says, what is refused, and that nothing is left behind."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from siglum.cli.main import main
from siglum.lab.speed import against
from siglum.lab.speed.against import Comparison, Refused, checked_out, find_commit, turns
from siglum.lab.speed.against_table import BAR, make_notes, make_rows, ratio_of
from siglum.lab.speed.against_worker import open_retriever
from siglum.lab.speed.bench import SpeedSettings
from siglum.types import SiglumError

UNIT = Comparison("exact", "fp32", 100, 2)

SLOW = """

def _slow(self, *arguments, rank=Retriever.rank, **options):
    __import__("time").sleep(0.15)
    return rank(self, *arguments, **options)


Retriever.rank = _slow
"""


def git(place: Path, *arguments: str) -> str:
    own = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(place), *own, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the code from a checkout of its own, whose only commit is the code as it is; return the package's folder."""
    if shutil.which("git") is None:
        pytest.skip("needs git")
    package = tmp_path / "checkout" / "src" / "siglum"
    shutil.copytree(against.PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    git(tmp_path / "checkout", "init", "-q")
    git(tmp_path / "checkout", "add", "src")
    git(tmp_path / "checkout", "commit", "-q", "-m", "all")
    monkeypatch.setattr(against, "PACKAGE", package)
    return package


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where both sides are copied to, and nothing else of the process is."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(against, "TemporaryDirectory", partial(tempfile.TemporaryDirectory, dir=place))
    return place


def compare(out: Path, commit: str, *more: str) -> int:
    few = ["--scale", "tiny", "--pools", "300", "--batches", "1,4", "--rounds", "2", "--seconds", "0.01"]
    rest = ["--queries", "16", "--threads", "1", "--precisions", "fp32", "--out", str(out)]
    return main(["bench", "speed", "--against", commit, *few, *rest, *more])


def test_a_commit_is_compared_with_the_code_that_runs(
    checkout: Path, scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (checkout / "search" / "retriever.py").open("a") as file:
        file.write(SLOW)
    head = git(checkout, "rev-parse", "HEAD")
    out = tmp_path / "against.json"
    assert compare(out, "HEAD", "--modes", "exact,scan") == 0
    document = json.loads(out.read_text())
    assert document["old"] == head and document["bar"] == BAR and len(document["new_code"]) == 16
    rows = document["rows"]
    assert [(row["batch"], row["mode"]) for row in rows] == [(b, m) for b in (1, 4) for m in ("exact", "scan")]
    for row in rows:  # the changes that were not committed are the new side's, and they only sleep
        assert row["overlap_at_50"] == 1.0 and row["checked"] > 1 and row["pairs"] == 2
        assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"] < BAR and row["no_slower"] is False
        assert row["new_queries_per_s"] < row["batch"] / 0.15 and row["cpu_ratio"] > 3 * row["ratio"]
    assert any(note.startswith("slower: exact fp32 over 300 items at batch 1; ") for note in document["notes"])
    assert "| scan  | fp32  | cpu    |  300 |     4 |" in out.with_suffix(".md").read_text()
    assert not list(scratch.iterdir()) and not list(tmp_path.rglob("decoder.safetensors"))
    assert git(checkout, "worktree", "list").count("\n") == 0

    parts = sorted(tmp_path.rglob("300-*.json"))
    assert len(parts) == 4
    monkeypatch.setattr(against, "checked_out", None)  # all is there: nothing is measured again
    assert compare(out, head[:10], "--modes", "exact,scan") == 0
    assert json.loads(out.read_text())["rows"] == rows


def test_a_side_that_cannot_answer_is_told(
    checkout: Path, scratch: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "search" / "retriever.py").write_text("raise ImportError('half of a change')\n")
    assert compare(tmp_path / "against.json", "HEAD") == 1
    told = capsys.readouterr().err
    assert "nothing was compared: over 300 items the new side failed: ImportError: half of a change." in told
    assert "Traceback" not in told and not list(scratch.iterdir())


def test_an_unknown_commit_and_code_outside_a_checkout_are_refused(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("none-such", "HEAD~1", "HEAD:src"):
        assert compare(tmp_path / "a.json", name) == 1
        told = capsys.readouterr().err
        assert "there is no commit" in told and told.count("\n") == 1
    with pytest.raises(SiglumError, match="there is no commit '--all'"):
        find_commit("--all")
    assert compare(tmp_path / "a.json", "HEAD", "--systems", "faiss-flat") == 1
    assert "leave --systems out" in capsys.readouterr().err
    bare = tmp_path / "installed" / "siglum"
    bare.mkdir(parents=True)
    monkeypatch.setattr(against, "PACKAGE", bare)
    for _ in range(2):
        with pytest.raises(SiglumError, match="needs siglum to run from a git checkout"):
            find_commit("HEAD")
        git(checkout, "init", "-q", str(tmp_path / "installed"))  # the second time in a checkout, but not of it


def test_a_commit_without_the_package_is_refused_and_copies_go_away(checkout: Path, scratch: Path) -> None:
    whole = git(checkout, "rev-parse", "HEAD")
    git(checkout, "rm", "-rq", "--cached", ".")
    git(checkout, "commit", "-q", "-m", "nothing")
    with pytest.raises(SiglumError, match="has no src/siglum/ to compare with"), checked_out("HEAD"):
        pytest.fail("it has nothing")
    assert not list(scratch.iterdir())
    with pytest.raises(KeyboardInterrupt), checked_out(whole) as packages:
        interrupt_with(packages)
    assert not list(scratch.iterdir())


def interrupt_with(packages: dict[str, Path]) -> None:
    assert all((package / "__init__.py").exists() for package in packages.values())
    raise KeyboardInterrupt


class Timed:
    """A side that takes the seconds a clock says, and writes down when it was asked."""

    queries = 8

    def __init__(self, name: str, asked: list[tuple[str, int, int]], took: Callable[[int], float], shift: int) -> None:
        self.name, self.asked, self.took, self.shift = name, asked, took, shift

    def ask(self, unit: Comparison, start: int, calls: int) -> dict[str, Any]:
        self.asked.append((self.name, start, calls))
        found = [[place + self.shift, place + 100] for place in range(start, start + calls * unit.batch)]
        return {"seconds": self.took(len(self.asked)) * calls, "cpu_seconds": float(calls), "found": found}


def test_sides_take_turns_over_the_same_queries_and_a_drift_cancels() -> None:
    asked: list[tuple[str, int, int]] = []
    sides = {name: Timed(name, asked, lambda turn: 0.25 * 1.1**turn, shift) for shift, name in enumerate(against.SIDES)}
    settings = SpeedSettings(work=Path("unused"), rounds=4, seconds=1.0)
    part = against.measure(UNIT, sides, settings)  # type: ignore[arg-type]
    calls = part["calls"]
    assert [name for name, _, _ in asked[4:]] == ["old", "new", "new", "old", "old", "new", "new", "old"]
    assert [start for _, start, _ in asked[4:]] == [pair * calls * 2 for pair in (0, 0, 1, 1, 2, 2, 3, 3)]
    assert {number for _, _, number in asked[4:]} == {calls} and calls == round(1 / (0.25 * 1.1**4))
    assert part["overlap"] == 0.5 and part["checked"] == 8  # the queries there are, however often they were asked
    (row,) = make_rows([part], "cpu")
    assert row["ratio"] == 1.0 and row["ratio_low"] < 1 < row["ratio_high"] and row["no_slower"]
    assert row["cpu_ratio"] == row["cpu_ratio_low"] == row["cpu_ratio_high"] == 1.0
    assert [note for note in make_notes([row]) if "rank differently" in note]


def test_a_slower_commit_is_told_from_an_equal_one_through_noise_of_both() -> None:
    rng = np.random.default_rng(1)
    noise = np.exp(0.3 * rng.normal(size=20))  # of the machine: the two rounds of a pair share it
    own = np.exp(0.02 * rng.normal(size=(2, 20)))
    middle, low, high = ratio_of(noise * own[0], noise * own[1])
    assert low < middle < high and low < 1 < high and high - low < 0.06
    _, _, slow = ratio_of(noise * own[0], noise * own[1] * 1.1)
    assert slow < BAR
    assert ratio_of(noise, own[0]) == ratio_of(noise, own[0])


def test_pairs_turn_round_each_time() -> None:
    order = [side for pair in turns(4) for side in pair]
    assert order == ["old", "new", "new", "old"] * 2


def test_a_side_that_dies_is_told_with_its_last_words(checkout: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nsys.stderr.write('first\\nlast words\\n')\n")
    with pytest.raises(Refused, match="the old side ended without an answer: last words"):
        against.Side("old", checkout, script, tmp_path / "inputs", SpeedSettings(work=tmp_path))


def test_both_sides_search_as_the_recipe_does(tmp_path: Path) -> None:
    settings = SpeedSettings(work=tmp_path, recipe="best", scale="tiny", queries=4, batches=(1,))
    against.write_inputs(settings, 60)
    facts = json.loads((settings.pool(60) / "facts.json").read_text())
    assert facts["search"]["lookahead"] is True and facts["search"]["prior"] == 1.0
    retriever, query_QD = open_retriever(settings.pool(60), tmp_path / "scratch", "cpu", 1)
    assert retriever.config.lookahead and retriever.decoder.config.null_queries > 0
    assert [len(ranking) for ranking in retriever.rank(query_QD, k=5)] == [5] * 4
