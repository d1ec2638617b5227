"""Logs that are damaged may be given up from the first damaged place on, wherever that is, and what goes is counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from live_pools import begin
from siglum.cli.main import main
from siglum.run import live as live_module
from siglum.run.cut import cut_log
from siglum.run.generations import open_index
from siglum.run.journal import ack_path, log_path
from siglum.run.live import LiveIndex
from siglum.types import SiglumError

Call = Callable[..., str]
CODES = np.zeros((1, 3), int)


def several_logs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave three logs of two changes each, as kills during compaction do."""

    def killed(*args: object) -> tuple[str, ...]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(live_module, "write_compacted", killed)
        for log in range(3):
            with LiveIndex(folder) as live:
                live.add([f"a{log}"], CODES)
                live.add([f"b{log}"], CODES)
                if log < 2:
                    with pytest.raises(KeyboardInterrupt):
                        live.compact()
    assert len(list(folder.glob("log-??????"))) == 3


def added(folder: Path) -> list[str]:
    return [name for name in open_index(folder).index.ids if name[0] in "ab"]


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "last record": lambda path: flip(path, -1),
    "first line": lambda path: flip(path, 20),
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:-3]),
    "emptied": lambda path: path.write_bytes(b""),
    "gone": lambda path: path.unlink(),
}


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("damage", DAMAGES)
def test_the_first_damaged_log_is_cut_and_later_ones_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, damage: str
) -> None:
    begin(tmp_path)
    several_logs(tmp_path, monkeypatch)
    path = log_path(tmp_path, number)
    DAMAGES[damage](path)
    with pytest.raises(SiglumError, match="--cut-log"):
        open_index(tmp_path)
    later = [log_path(tmp_path, log) for log in range(number + 1, 3)]
    sizes = sum(log.stat().st_size for log in later)
    found = cut_log(tmp_path)
    assert (found.path, found.later, found.later_records, found.later_bytes) == (
        path,
        2 - number,
        4 - 2 * number,
        sizes,
    )
    assert not any(log.exists() or ack_path(log).exists() for log in later)
    before = [f"{name}{log}" for log in range(number) for name in "ab"]
    assert added(tmp_path) == [*before, *([f"a{number}"] if damage in ("last record", "cut short") else [])]
    assert (found.bytes > 0) == (damage not in ("emptied", "gone"))
    assert cut_log(tmp_path).bytes == 0
    with LiveIndex(tmp_path) as live:
        live.add(["a9"], CODES)
    assert added(tmp_path)[-1] == "a9"


def test_a_kill_while_logs_are_dropped_leaves_what_can_be_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(tmp_path)
    several_logs(tmp_path, monkeypatch)
    flip(log_path(tmp_path, 0), -1)
    unlink, gone = Path.unlink, []

    def once(path: Path, missing_ok: bool = False) -> None:
        if gone:
            raise KeyboardInterrupt
        gone.append(path)
        unlink(path, missing_ok)

    for _ in range(4):
        gone.clear()
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", once)
            with pytest.raises(KeyboardInterrupt):
                cut_log(tmp_path)
        if len(list(tmp_path.glob("log-??????"))) == 1:
            break
        with pytest.raises(SiglumError, match="--cut-log"):
            open_index(tmp_path)
    cut_log(tmp_path)
    assert added(tmp_path) == ["a0"]


def test_the_command_says_what_was_given_up(
    run_copy: Path, capsys: pytest.CaptureFixture[str], call: Call, fail: Call
) -> None:
    assert "has no log" in fail("index", run_copy, "--cut-log")
    index = run_copy / "4-index"
    with LiveIndex(index) as live:
        live.remove([live.index.ids[3]])
        log = live._tail.log
        assert log is not None
        whole = log.end
    flip(log_path(index, 0), whole - 1)
    assert "--cut-log" in fail("index", run_copy, "--compact")
    assert main(["index", str(run_copy), "--cut-log"]) == 0
    assert f" bytes of {log_path(index, 0)} were given up" in capsys.readouterr().err
    call("info", run_copy, "--check")


def test_an_index_that_is_open_is_not_cut(tmp_path: Path) -> None:
    begin(tmp_path)
    with LiveIndex(tmp_path) as live:
        live.add(["a0"], CODES)
        with pytest.raises(SiglumError, match="open for writing already"):
            cut_log(tmp_path)
