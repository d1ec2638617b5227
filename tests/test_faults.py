"""The fault campaign finds what it is made to find: it must not call a run sound because it looked away."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from random import Random

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

from faultlib import ops
from faultlib.campaign import Base, Trial
from faultlib.damages import KINDS, hurt
from faultlib.forks import fork_call, run_trials
from faultlib.results import Journal, alike, summarise, table
from faultlib.told import Told, faults_of, tell


def killed(work, folder: Path, **injury) -> bool:
    """Do some work with an injury, in a process of its own; return whether it was killed."""

    def call() -> None:
        shim = ops.install(folder, ops.Injury(**injury))
        work(folder)
        if injury.get("power") and injury.get("at") is None:
            shim.die()

    return os.waitstatus_to_exitcode(os.waitpid(fork_call(call), 0)[1]) == -9


def rewrite(folder: Path) -> None:
    """Write a file as careless programs do."""
    (folder / "a").write_text("new")
    os.replace(folder / "a", folder / "b")


def careful(folder: Path) -> None:
    """Write a file so that it lasts."""
    with (folder / "a").open("w") as file:
        file.write("new")
        file.flush()
        os.fsync(file.fileno())
    os.replace(folder / "a", folder / "b")
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "b").write_text("old")
    return tmp_path / "run"


def test_a_kill_happens_at_each_operation(folder: Path) -> None:
    """Opened, written, renamed: three operations, and what each leaves."""
    left = []
    for at in range(4):
        (folder / "b").write_text("old")
        (folder / "a").unlink(missing_ok=True)
        assert killed(rewrite, folder, at=at) == (at < 3)
        left.append({path.name: path.read_text() for path in sorted(folder.iterdir())})
    assert left == [{"b": "old"}, {"a": "", "b": "old"}, {"a": "new", "b": "old"}, {"b": "new"}]


def test_a_torn_write_stops_half_way(folder: Path) -> None:
    assert killed(rewrite, folder, at=1, torn=True)
    assert (folder / "a").read_text() == "n"


def test_a_power_cut_takes_what_was_not_synced(folder: Path) -> None:
    """A rename without a sync of the folder comes undone at some seed; with one, at none."""
    seen = set()
    for seed in range(20):
        (folder / "b").write_text("old")
        (folder / "a").unlink(missing_ok=True)
        assert killed(rewrite, folder, power=True, seed=seed)
        seen.add((folder / "b").read_text())
    assert "old" in seen
    for seed in range(20):
        (folder / "b").write_text("old")
        assert killed(careful, folder, power=True, seed=seed)
        assert (folder / "b").read_text() == "new"


def test_a_full_disk_takes_no_more(folder: Path) -> None:
    told = folder.parent / "told"

    def fill(folder: Path) -> None:
        try:
            (folder / "a").write_text("x" * 100)
        except OSError as error:
            told.write_text(str(error))

    assert not killed(fill, folder, room=10)
    assert "No space left" in told.read_text()
    assert len((folder / "a").read_text()) <= 10


def test_trials_that_hang_or_crash_are_told(tmp_path: Path) -> None:
    def act(trial: Trial, scratch: Path) -> dict:
        if trial.case == "hang":
            time.sleep(60)
        while trial.case == "busy":
            pass
        for _ in range(8 if trial.case == "slow" else 0):  # as on a machine with much else to do
            time.sleep(0.2)
            end = time.process_time() + 0.05
            while time.process_time() < end:
                pass
        if trial.case == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        if trial.case == "error":
            raise KeyError("x")
        return {"faults": []}

    trials = [Trial("s", case, 0) for case in ("hang", "busy", "slow", "crash", "error", "fine")]
    found = {t.case: r for t, r in run_trials(iter(trials), act, tmp_path / "s", workers=2, limit=1.0)}
    kinds = {case: [one["kind"] for one in result["faults"]] for case, result in found.items()}
    wrong = {"hang": ["hang"], "busy": ["hang"], "crash": ["crash"], "error": ["harness"]}
    assert kinds == {"slow": [], "fine": [], **wrong}
    assert "sleep" in found["hang"]["faults"][0]["trace"] or "act" in found["hang"]["faults"][0]["trace"]
    assert not list((tmp_path / "s").iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_every_damage_changes_the_file(tmp_path: Path, kind: str) -> None:
    for name, text in (("mine", "0123456789" * 30), ("other", "another")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(text)
    base, changed = Base(tmp_path, 0, {}, {}), False
    for seed in range(8):
        path = tmp_path / "mine" / "file"
        path.write_text("0123456789" * 30)
        how = hurt(base, tmp_path / "mine", "file", kind, Random(seed))
        left = path.read_bytes() if path.exists() else None
        assert bool(how) == (left != b"0123456789" * 30)
        changed = changed or bool(how)
    assert changed


def test_what_no_user_should_see_is_a_fault() -> None:
    assert faults_of(Told(0), "x") == faults_of(Told(2), "x") == []
    assert faults_of(Told(1, err="siglum x: a is missing; give one.\n"), "x") == []
    assert [one["kind"] for one in faults_of(Told(1, err="oops\n"), "x")] == ["sentence"]
    assert [one["kind"] for one in faults_of(Told(1, err="siglum x: [Errno 2] No such file\n"), "x")] == ["sentence"]
    assert [one["kind"] for one in faults_of(Told(70, trace="KeyError: 1\n"), "x")] == ["traceback"]
    assert tell(["search", "nowhere", "a"]).code == 1


def test_a_killed_campaign_goes_on(tmp_path: Path) -> None:
    path, header = tmp_path / "j.jsonl", {"seed": 1}
    journal = Journal(path, header, resume=False)
    wrong = {"kind": "loss", "what": "3 items gone (killed at operation 4)"}
    journal.write(Trial("kills", "index --add", 0), {"faults": [wrong], "seconds": 0.5})
    journal.write(Trial("kills", "index --add", 1), {"faults": [], "seconds": 0.5})
    path.write_bytes(path.read_bytes() + b'{"id": "torn')
    again = Journal(path, header, resume=True)
    assert list(again.done) == ["kills/index --add/0", "kills/index --add/1"]
    again.write(Trial("kills", "train", 0), {"faults": [wrong], "seconds": 0.5})
    document = summarise(again, 1, {"told": "all"})
    assert document["sections"]["kills"]["tries"] == 3
    assert document["sections"]["kills"]["by"]["index --add"] == {"tries": 2, "loss": 1}
    assert [one["times"] for one in document["faults"]] == [2]
    assert "--only 'kills/index --add/0'" in document["faults"][0]["again"]
    assert "| **kills** | 3 | 0 | 0 | 2 | 0 | 0 | 0 |" in table(document)
    assert len([json.loads(line) for line in path.read_text().splitlines()]) == 4
    with pytest.raises(SystemExit, match="another campaign"):
        Journal(path, {"seed": 2}, resume=True)


def test_alike_faults_are_one() -> None:
    first, second = (
        f"add: TypeError: {what!r} object is wrong in index/ids.py, f (add({what}))" for what in ("a", "b")
    )
    assert alike(first) == alike(second) == "add: TypeError in index/ids.py, f"
