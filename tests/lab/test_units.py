"""The runner of units: parts, stages, order, limits, failures, and processes that end with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from killing import is_running, until
from siglum.files import read_json
from siglum.lab.units import Work, apart, check_counts, refuse_nothing, run_missing
from siglum.types import SiglumError


def note(folder: Path, name: str) -> dict[str, Any]:
    """Leave a file that says when the unit ran and for how long."""
    start = time.monotonic()
    time.sleep(0.05)
    (folder / f"{name}.ran").write_text(f"{start} {time.monotonic()}")
    return {"value": name, "threads": torch_threads()}


def torch_threads() -> int:
    import torch

    return torch.get_num_threads()


def fail(folder: Path, name: str) -> dict[str, Any]:
    raise RuntimeError(f"{name} has\nno luck")


def die(folder: Path, name: str) -> dict[str, Any]:
    os._exit(1)


def clash(folder: Path, name: str) -> dict[str, Any]:
    return {"identity": "mine"}


def work(folder: Path, name: str, make: Any = note, **more: Any) -> Work:
    return Work(name, folder / "parts" / f"{name}.json", f"made for {name}", make, (folder, name), **more)


def ran(folder: Path) -> list[str]:
    """The units that ran, in the order they began."""
    times = {path.stem: float(path.read_text().split()[0]) for path in folder.glob("*.ran")}
    return sorted(times, key=times.__getitem__)


def run(units: list[Work], **options: Any) -> tuple[dict[str, str], list[str]]:
    said: list[str] = []
    return run_missing(units, say=said.append, **options), said


def test_what_is_there_is_not_made_again(tmp_path: Path) -> None:
    units = [work(tmp_path, name) for name in "abc"]
    missing, said = run(units)
    assert missing == {} and ran(tmp_path) == ["a", "b", "c"] and len(said) == 3
    part = units[0].part()
    assert part["identity"] == "made for a" and part["value"] == "a" and part["seconds"] >= 0.05
    units[1] = Work("b", units[1].path, "made otherwise", note, (tmp_path, "again"))
    missing, said = run(units)
    assert said[0] == "2 of 3 units are there already" and "again" in ran(tmp_path)
    assert read_json(units[1].path)["value"] == "again"


def test_a_fault_is_a_sentence_and_the_others_go_on(tmp_path: Path) -> None:
    missing, said = run([work(tmp_path, "a", fail), work(tmp_path, "b", clash), work(tmp_path, "c")])
    assert missing["a"] == "RuntimeError: a has no luck" and "returned 'identity'" in missing["b"]
    assert set(missing) == {"a", "b"} and said[0].startswith("a: failed: RuntimeError: a has no luck (1 of 3, ")


def test_stages_come_in_order_and_what_measures_time_comes_last_and_alone(tmp_path: Path) -> None:
    units = [work(tmp_path, "time", alone=True), work(tmp_path, "late", stage=1), work(tmp_path, "early")]
    more = [work(tmp_path, "clock", alone=True), work(tmp_path, "later", stage=1)]
    assert run([*units, *more], jobs=2)[0] == {}
    order = ran(tmp_path)
    assert order[0] == "early" and set(order[1:3]) == {"late", "later"} and order[3:] == ["time", "clock"]
    spans = {path.stem: [float(word) for word in path.read_text().split()] for path in tmp_path.glob("*.ran")}
    assert spans["time"][1] <= spans["clock"][0]
    assert read_json(tmp_path / "parts" / "late.json")["threads"] == 1


def test_the_limit_begins_nothing(tmp_path: Path) -> None:
    for jobs in (1, 2):
        missing, said = run([work(tmp_path, name) for name in "ab"], jobs=jobs, limit=1e-9)
        assert missing == dict.fromkeys("ab", "not measured yet") and said == [] and ran(tmp_path) == []


def test_units_that_share_are_two_rounds_apart(tmp_path: Path) -> None:
    units = [work(tmp_path, "a", shares="x"), work(tmp_path, "b", shares="x"), work(tmp_path, "c")]
    assert [one.name for one in apart(units, 1)] == ["a", "c", "b"]
    many = [*units[:2], *(work(tmp_path, str(number)) for number in range(5, 11))]
    assert [one.name for one in apart(many, 2)] == ["a", "5", "6", "7", "b", "8", "9", "10"]


def test_when_a_process_is_killed_no_other_begins(tmp_path: Path) -> None:
    units = [work(tmp_path, "dying", die), *(work(tmp_path, str(number)) for number in range(200))]
    with pytest.raises(SiglumError, match="ended from outside, perhaps for memory; what is done is kept: try --jobs 1"):
        run(units, jobs=2)
    assert len(ran(tmp_path)) < 200


def test_refusals() -> None:
    with pytest.raises(SiglumError, match="--jobs must be at least 1, not 0"):
        check_counts(seeds=1, jobs=0)
    with pytest.raises(SiglumError, match="nothing was measured: no moon"):
        refuse_nothing(["no moon.", "no sun"])


WORKER = """
import os, sys, time
from siglum.lab.units import worker_pool

def wait(path):
    with open(path, "w") as file:
        file.write(str(os.getpid()))
    time.sleep(120)

if __name__ == "__main__":
    with worker_pool(1) as pool:
        pool.submit(wait, sys.argv[1]).result()
"""


def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    script, mark = tmp_path / "parent.py", tmp_path / "pid"
    script.write_text(WORKER)
    with subprocess.Popen([sys.executable, str(script), str(mark)]) as parent:
        until(lambda: mark.exists() and mark.read_text() != "")
        parent.send_signal(signal.SIGKILL)
    pid = int(mark.read_text())
    until(lambda: not is_running(pid))
