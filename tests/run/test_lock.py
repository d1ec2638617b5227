"""One writer of a run at a time: processes, threads, kills, and folders that are not there."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from siglum.run.lock import LOCK_FILE, lock_run
from siglum.types import SiglumError

HOLD = """
import sys, time
from pathlib import Path
from siglum.run.lock import lock_run
with lock_run(Path(sys.argv[1]), "siglum index"):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def hold(root: Path, seconds: float) -> subprocess.Popen[str]:
    """Start a process that holds the run, and return once it does."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(root), str(seconds)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_second_process_is_told_who_writes_and_waits(tmp_path: Path) -> None:
    holder, told = hold(tmp_path, 0.5), list[str]()
    with lock_run(tmp_path, "siglum tokenize", say=told.append):
        assert holder.wait(5) == 0
    assert len(told) == 1
    assert f"{tmp_path} is being written by `siglum index` (process {holder.pid} since " in told[0]
    assert told[0].endswith("; waiting")


def test_waiting_ends_with_one_sentence(tmp_path: Path) -> None:
    holder = hold(tmp_path, 60)
    for wait, words in ((0, "is being written by `siglum index`"), (0.2, "is still being written by `siglum index`")):
        begun = time.monotonic()
        with pytest.raises(SiglumError, match=words), lock_run(tmp_path, "siglum train", wait=wait):
            pass
        assert wait <= time.monotonic() - begun < wait + 2
    holder.kill()
    holder.wait()
    with lock_run(tmp_path, "siglum train", wait=0):  # a killed holder's lock is free at once
        pass


def test_seconds_to_wait_must_make_sense(tmp_path: Path) -> None:
    for wait in (-1.0, float("nan")):
        with pytest.raises(SiglumError, match="0 or more"), lock_run(tmp_path, "x", wait=wait):
            pass


def test_threads_exclude_each_other_and_lose_nothing(tmp_path: Path) -> None:
    count = tmp_path / "count"
    count.write_text("0")

    def work() -> None:
        for _ in range(5):
            with lock_run(tmp_path, "a thread", say=lambda text: None):
                found = int(count.read_text())
                time.sleep(0.001)
                count.write_text(str(found + 1))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count.read_text() == "20"


def test_the_same_thread_may_take_it_again_by_any_name(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "link").symlink_to(run)
    with lock_run(run, "outer"):
        with lock_run(tmp_path / "link", "inner", wait=0):
            pass
        held = hold_from_thread(run)
    assert isinstance(held, SiglumError)  # the inner block did not free it
    assert hold_from_thread(run) is None


def hold_from_thread(run: Path) -> SiglumError | None:
    """Try to hold a run from another thread, and return what came of it."""
    found: list[SiglumError | None] = []

    def work() -> None:
        try:
            with lock_run(run, "a thread", wait=0):
                found.append(None)
        except SiglumError as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return found[0]


def test_a_folder_made_for_the_lock_alone_goes_again(tmp_path: Path) -> None:
    with lock_run(tmp_path / "a" / "b", "x"):
        assert (tmp_path / "a" / "b" / LOCK_FILE).exists()
    assert not list(tmp_path.iterdir())
    with lock_run(tmp_path / "a" / "b", "x"):
        (tmp_path / "a" / "b" / "config.json").touch()
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["config.json"]


def test_a_waiting_process_survives_the_removal_of_the_folder(tmp_path: Path) -> None:
    root, order = tmp_path / "new", list[str]()

    def work() -> None:
        with lock_run(root, "second", say=lambda text: None):
            order.append("second")
            (root / "kept").touch()
            order.append(str(hold_from_thread(root) is not None))

    with lock_run(root, "first"):
        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(0.15)
        order.append("first")
    thread.join(5)
    assert order == ["first", "second", "True"]
    assert (root / "kept").exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="only where processes fork")
def test_a_forked_child_does_not_keep_its_parents_lock(tmp_path: Path) -> None:
    context, ready = multiprocessing.get_context("fork"), tmp_path / "ready"

    def parent() -> None:
        with lock_run(tmp_path, "parent"):
            context.Process(target=time.sleep, args=(3,), daemon=False).start()
            ready.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    process = context.Process(target=parent)
    process.start()
    process.join(5)
    assert ready.exists()
    with lock_run(tmp_path, "another", wait=0.5):
        pass


def test_a_folder_that_cannot_be_written_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SiglumError, match="is not a folder"), lock_run(tmp_path / "file", "x"):
        pass
    if os.geteuid():  # to root everything is writable
        (tmp_path / "sealed").mkdir(mode=0o500)
        with pytest.raises(SiglumError, match="cannot be written"), lock_run(tmp_path / "sealed", "x"):
            pass


@pytest.mark.skipif(sys.platform == "win32", reason="Windows knows no shared locks")
def test_a_full_disk_keeps_nobody_from_locking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with lock_run(tmp_path, "mine"):
            assert (tmp_path / LOCK_FILE).exists()
    assert not (tmp_path / LOCK_FILE).exists()


def test_sharers_exclude_others_but_not_each_other(tmp_path: Path) -> None:
    found: list[SiglumError | None] = []

    def share() -> None:
        with lock_run(tmp_path, "part 2", wait=0, shared=True):
            found.append(hold_from_thread(tmp_path))

    with lock_run(tmp_path, "part 1", wait=0, shared=True):
        thread = threading.Thread(target=share)
        thread.start()
        thread.join()
        found.append(hold_from_thread(tmp_path))  # the other part has let go, this one not yet
    assert [isinstance(error, SiglumError) for error in found] == [True, True]
    assert hold_from_thread(tmp_path) is None


def test_nothing_needs_posix_locks_to_be_imported() -> None:
    code = "import sys; sys.modules['fcntl'] = None; import siglum.run.lock, siglum.lab.experiments.setting, siglum.api"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
