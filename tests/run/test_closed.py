"""What was open for changes and is closed: what was acknowledged is on the disk, and what comes later is refused."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from index_pools import assert_same
from live_pools import add, begin
from siglum import Item
from siglum.run import journal
from siglum.run.generations import open_index
from siglum.run.journal import JournalWriter, log_path
from siglum.run.live import LiveIndex
from siglum.search.retriever import Retriever
from siglum.types import SiglumError

CODES = np.zeros((1, 3), int)
LATER: dict[str, Callable[[LiveIndex], object]] = {
    "add": lambda live: live.add(["late"], CODES),
    "remove": lambda live: live.remove(["item 3"]),
    "change nothing": lambda live: live.change((), (), CODES[:0]),
    "compact": lambda live: live.compact(),
}


@pytest.mark.parametrize("late", LATER)
def test_a_closed_index_takes_no_more_and_touches_no_file(tmp_path: Path, late: str) -> None:
    index, others = tmp_path / "index", [tmp_path / f"other{number}" for number in range(64)]
    pool, rng = begin(index)
    with LiveIndex(index) as live:
        add(live, pool, rng, 1)
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("w+b")) for path in others]
        for file in files:
            file.write(b"theirs")
            file.flush()
        with pytest.raises(SiglumError, match=r"index is open for writing no more; open it again\.$"):
            LATER[late](live)
        live.close()
        assert [path.read_bytes() for path in others] == [b"theirs"] * 64
        assert not any(file.closed for file in files)
    assert_same(open_index(index).index, pool.index())
    with LiveIndex(index) as again:
        live.close()  # closes nothing of the other
        add(again, pool, rng, 1)
        with pytest.raises(SiglumError, match="open for writing already"):
            LiveIndex(index)
    assert_same(open_index(index).index, pool.index())


def test_a_closed_log_writes_into_no_other_file(tmp_path: Path) -> None:
    log = JournalWriter.create(tmp_path, 0, "lineage")
    whole = log_path(tmp_path, 0).read_bytes()
    log.close()
    with (tmp_path / "one").open("w+b") as one, (tmp_path / "two").open("w+b") as two:
        for call in (lambda: log.append(b"record"), lambda: log.sync(log.end)):
            with pytest.raises(SiglumError, match="is closed; open the index again"):
                call()
        log.close()
        assert [(tmp_path / name).read_bytes() for name in ("one", "two")] == [b"", b""]
        assert not one.closed and one.write(b"still open") and two.write(b"still open")
    assert log_path(tmp_path, 0).read_bytes() == whole


@pytest.mark.parametrize("background", [False, True])
def test_what_other_threads_were_told_is_kept_when_the_index_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, background: bool
) -> None:
    begin(tmp_path)
    monkeypatch.setattr("siglum.run.live.FLUSH", 8)
    kept: list[str] = []
    told: list[str] = []
    live, enough = LiveIndex(tmp_path, background=background), threading.Event()

    def work(thread: int) -> None:
        for number in range(10_000):
            name = f"thread {thread} number {number}"
            try:
                live.add([name], CODES)
            except SiglumError as error:
                told.append(str(error))
                return
            kept.append(name)
            if len(kept) > 30:
                enough.set()

    crew = [threading.Thread(target=work, args=(thread,)) for thread in range(3)]
    for thread in crew:
        thread.start()
    assert enough.wait(60)
    live.close()
    on_disk = set(open_index(tmp_path).index.ids)
    with (tmp_path / "other").open("w+b") as other:
        for thread in crew:
            thread.join(60)
        assert (tmp_path / "other").read_bytes() == b"" and other.write(b"still open")
    assert len(told) == 3 and all("open for writing no more" in text for text in told)
    assert set(kept) <= on_disk == set(open_index(tmp_path).index.ids)
    assert on_disk - set(kept) <= set(live.index.ids)


def test_a_writer_ends_with_its_block(run_copy: Path) -> None:
    retriever = Retriever.load(run_copy)
    first, second, *_ = retriever.index.ids
    with retriever.writing(run_copy) as writer:
        writer.remove([first])
    later: list[Callable[[], object]] = [
        lambda: writer.remove([second]),
        lambda: writer.add([Item(id="late", text="a star")]),
        lambda: writer.upsert([Item(id=second, text="a star")]),
        lambda: writer.replace([second], [Item(id="late", text="a star")]),
        writer.compact_if_due,
    ]
    retriever.add([Item(id="mine", text="a star")])
    with ExitStack() as stack:
        others = [run_copy.parent / f"other{number}" for number in range(64)]
        for path in others:
            stack.enter_context(path.open("w+b"))
        for call in later:
            with pytest.raises(SiglumError, match="open for writing no more"):
                call()
        assert [path.read_bytes() for path in others] == [b""] * 64
    assert "mine" in retriever.index.ids and first not in retriever.index.ids
    assert second in Retriever.load(run_copy).index.ids
    writer.close()
    assert "mine" in retriever.index.ids


def test_a_log_is_opened_as_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where line ends would be changed else."""
    binary, real, opened = 1 << 29, os.open, list[int]()

    def note(path: Path, flags: int, mode: int = 0o777) -> int:
        opened.append(flags)
        return real(path, flags & ~binary, mode)

    monkeypatch.setattr(journal, "BINARY", binary)
    monkeypatch.setattr("siglum.run.journal.os.open", note)
    monkeypatch.setattr(journal, "sync_folder", lambda folder: None)
    JournalWriter.create(tmp_path, 0, "lineage").close()
    assert len(opened) == 3 and all(flags & binary for flags in opened)
