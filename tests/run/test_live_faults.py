"""Changes of an index that are interrupted, refused or left behind: nobody waits, nothing is half there."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from index_pools import assert_same
from live_pools import add, begin, fill_disk
from siglum.run import journal
from siglum.run import live as live_module
from siglum.run.generations import open_index, read_generation, save_segment
from siglum.run.journal import JournalWriter, ack_path, log_path
from siglum.run.live import LiveIndex
from siglum.types import SiglumError


def test_a_log_that_cannot_be_mended_takes_no_more_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, rng = begin(tmp_path)
    with LiveIndex(tmp_path) as live:
        add(live, pool, rng, 1)
        with monkeypatch.context() as patch:

            def broken(handle: int, size: int) -> None:
                raise OSError(5, "Input/output error")

            fill_disk(patch)
            patch.setattr("siglum.run.journal.os.ftruncate", broken)
            with pytest.raises(SiglumError, match="nothing was changed"):
                live.add(["new 1", "new 2"], np.zeros((2, 3), int))
        with pytest.raises(SiglumError, match="open the index again"):
            live.add(["new 3"], np.zeros((1, 3), int))
    with LiveIndex(tmp_path) as live:
        add(live, pool, rng, 2)
    assert_same(open_index(tmp_path).index, pool.index())


def test_an_interrupt_while_syncing_leaves_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(tmp_path)
    with LiveIndex(tmp_path) as live:
        live.add(["a"], np.zeros((1, 3), int))
        with monkeypatch.context() as patch:

            def interrupted(self: object, end: int) -> None:
                raise KeyboardInterrupt

            patch.setattr(live_module.JournalWriter, "sync", interrupted)
            with pytest.raises(KeyboardInterrupt):
                live.add(["b"], np.zeros((1, 3), int))
        with pytest.raises(SiglumError, match="open the index again"):
            live.add(["c"], np.zeros((1, 3), int))
        assert "b" not in live.index.ids
    with LiveIndex(tmp_path) as live:
        live.add(["c"], np.zeros((1, 3), int))
    assert {"a", "c"} <= set(open_index(tmp_path).index.ids)


@pytest.mark.parametrize("late", [False, True])
def test_an_interrupt_while_writing_leaves_a_whole_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    pool, rng = begin(tmp_path)
    with LiveIndex(tmp_path) as live:
        add(live, pool, rng, 1)
        real = live_module.JournalWriter.append
        with monkeypatch.context() as patch:
            if late:

                def interrupted(self: live_module.JournalWriter, content: bytes) -> int:
                    real(self, content)
                    raise KeyboardInterrupt

                patch.setattr(live_module.JournalWriter, "append", interrupted)
            else:
                write = os.write

                def torn(handle: int, content: memoryview) -> int:
                    write(handle, content)
                    raise KeyboardInterrupt

                patch.setattr("siglum.run.journal.os.write", torn)
            with pytest.raises(KeyboardInterrupt):
                live.add([f"long {place}" for place in range(50)], np.zeros((50, 3), int))
        if late:
            with pytest.raises(SiglumError, match="open the index again"):
                live.add(["short"], np.zeros((1, 3), int))
        else:
            live.add(["short"], np.zeros((1, 3), int))
    found = open_index(tmp_path).index
    assert ("long 3" in found.ids) == late
    assert ("short" in found.ids) != late


def test_a_sync_does_not_hide_that_a_log_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(tmp_path)
    with LiveIndex(tmp_path) as live:
        live.add(["first"], np.zeros((1, 3), int))
        append, sync = live_module.JournalWriter.append, live_module.JournalWriter.sync

        def interrupted(self: live_module.JournalWriter, content: bytes) -> int:
            append(self, content)
            raise KeyboardInterrupt

        def meanwhile(self: live_module.JournalWriter, end: int) -> None:
            """Break the log, as another thread may while this one syncs."""
            with monkeypatch.context() as patch:
                patch.setattr(live_module.JournalWriter, "append", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    live.add(["other"], np.zeros((1, 3), int))
            sync(self, end)

        monkeypatch.setattr(live_module.JournalWriter, "sync", meanwhile)
        with pytest.raises(SiglumError, match="half a change"):
            live.add(["a"], np.zeros((1, 3), int))
        monkeypatch.undo()
        with pytest.raises(SiglumError, match="half a change"):
            live.add(["b"], np.zeros((1, 3), int))


def test_codes_without_ids_are_refused(tmp_path: Path) -> None:
    begin(tmp_path)
    with LiveIndex(tmp_path) as live, pytest.raises(SiglumError, match="0 items were given with the codes of 2"):
        live.change(["item 1"], [], np.zeros((2, 3), int))
    with LiveIndex(tmp_path) as live, pytest.raises(SiglumError, match="1 items were given with the codes of none"):
        live.add(["a"], np.array(5))
    assert "item 1" in open_index(tmp_path).index.ids


def test_compaction_that_fails_is_not_tried_at_every_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, rng = begin(tmp_path)
    tries: list[int] = []

    def fails(folder: Path, log: int, name: str, whole: bool) -> tuple[str, ...]:
        tries.append(log)
        (folder / name).mkdir()
        raise SiglumError("the disk is full")

    monkeypatch.setattr(live_module, "FLUSH", 4)
    monkeypatch.setattr(live_module, "write_compacted_beside", fails)
    with LiveIndex(tmp_path, background=True) as live:
        for _ in range(60):
            add(live, pool, rng, 1)
            for thread in threading.enumerate():
                if thread.name == "siglum compaction":
                    thread.join()
        assert 2 <= len(tries) <= 6
        assert_same(live.index, pool.index())
    assert not list(tmp_path.glob(".segment*"))
    assert_same(open_index(tmp_path).index, pool.index())
    monkeypatch.undo()
    with LiveIndex(tmp_path) as live:
        live.compact()
    assert_same(open_index(tmp_path).index, pool.index())


def test_a_compaction_left_behind_by_a_kill_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, rng = begin(tmp_path)
    begun: list[int] = []

    def killed(folder: Path, log: int, name: str, whole: bool) -> tuple[str, ...]:
        begun.append(log)
        raise KeyboardInterrupt

    with LiveIndex(tmp_path) as live:
        add(live, pool, rng, 2)
        monkeypatch.setattr(live_module, "write_compacted", killed)
        with pytest.raises(KeyboardInterrupt):
            live.compact()
        monkeypatch.undo()
        late = open_index(tmp_path, upto=begun[0])
    with LiveIndex(tmp_path) as live:
        add(live, pool, rng, 2)
        live.compact()
        wanted = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
        save_segment(tmp_path / ".segment-000002.1-2.tmp", late.index, None, whole=True)
        assert all(path.read_bytes() == content for path, content in wanted.items())
    assert_same(open_index(tmp_path).index, pool.index())
    with LiveIndex(tmp_path):
        assert not list(tmp_path.glob(".segment*"))


@pytest.mark.parametrize("appended", [False, True])
def test_a_log_that_is_being_begun_is_not_taken_for_a_damaged_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, appended: bool
) -> None:
    """A reader may come before the log has its acknowledgement, and find a record that came after it."""
    begin(tmp_path)
    JournalWriter.create(tmp_path, 0, read_generation(tmp_path).lineage).close()
    ack_path(log_path(tmp_path, 0)).unlink()
    real, asked = journal.acknowledged_ends, []

    def late(path: Path, first: bytes) -> list[int]:
        found = real(path, first)
        asked.append(path)
        if len(asked) == 1 and appended:
            with LiveIndex(tmp_path) as live:
                live.add(["late"], np.zeros((1, 3), int))
        return found

    monkeypatch.setattr(journal, "acknowledged_ends", late)
    opened = open_index(tmp_path)
    assert ("late" in opened.index.ids) == appended
    assert opened.journals[0].is_sound
    assert not caplog.text
