"""The index of a run, open for changes that last: logged, on the disk, and only then acknowledged and seen.

Threads may add and remove at once: each writes its record in turn, and one of them syncs for all that have. Whoever
opens a live index holds the run's lock (`lock_run`); readers need none.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

from siglum.files import sync_folder
from siglum.given import listed
from siglum.index import Index, Layered
from siglum.run.compaction import resting, write_compacted, write_compacted_beside
from siglum.run.generations import (
    Opened,
    clean,
    load_segments,
    next_segment,
    open_for_changes,
    open_index,
    read_generation,
    refuse_open,
    write_generation,
)
from siglum.run.journal import JournalWriter, Record
from siglum.types import SiglumError, truth_value

FLUSH = 1 << 15
"""Logged changes from which on they are to be written as a segment."""
_log = logging.getLogger("siglum")


@dataclass(frozen=True, slots=True)
class LiveState:
    """An index and its kept vectors at one moment; never changed, only replaced by another."""

    index: Index
    vectors_ND: np.ndarray | None
    """Kept vectors in pool order, float16."""


@dataclass(frozen=True, slots=True)
class _Tail:
    """All that has been written; replaced as a whole, since another thread may sync it at any time."""

    log: JournalWriter | None
    """None until the first change: what is refused leaves no trace."""
    end: int
    written: int
    """Changes written since the index was opened."""
    state: LiveState


Change = Callable[[LiveState], tuple[LiveState, Record]]


class LiveIndex:
    """An index folder open for writing.

    Example: `with lock_run(run, "my program"), LiveIndex(run / "4-index") as live: live.remove(["cat-17"])`.
    """

    def __init__(self, folder: Path, tokenizer: str | None = None, *, background: bool = False) -> None:
        """Open the folder and cut a torn end of its log; with `background`, compact beside the work when it is due."""
        truth_value("background", background)
        self._place = refuse_open(folder)
        open_for_changes.add(self._place)
        try:
            self._begin(folder, tokenizer, background)
        except BaseException:
            open_for_changes.discard(self._place)
            raise

    def _begin(self, folder: Path, tokenizer: str | None, background: bool) -> None:
        opened = open_index(folder, tokenizer)
        self.folder, self.generation, self.background = folder, opened.generation, background
        clean(folder, self.generation)
        self.logged = opened.changes
        """Changes that only the logs hold."""
        log = _go_on(opened)
        self._number = max(opened.generation.logs(), default=opened.generation.log)
        # A layer of its own: sorting few new changes in must not cost what the logged ones would cost.
        self.state = LiveState(opened.index.layer(), opened.vectors_ND)
        """All changes that are on the disk."""
        self._tail = _Tail(log, log.end if log else 0, 0, self.state)
        self._durable = 0
        """Changes on the disk."""
        self._writing, self._compacting, self._synced = threading.RLock(), threading.Lock(), threading.Condition()
        self._syncing = False
        self._failed: str | None = None
        self._is_closed = False
        """Whether no more changes are taken ..."""
        self._is_over = False
        """... and whether those that were have been waited for."""
        self._worker: threading.Thread | None = None
        self._patience = 0
        """Logged changes from which on compaction is tried again after it has failed."""
        opened.index.warm()  # files are checked on first use: better now than at the first change

    def __enter__(self) -> LiveIndex:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def index(self) -> Index:
        """The index with all changes that are on the disk."""
        return self.state.index

    @property
    def is_due(self) -> bool:
        """Whether the logs have grown so long that they are to be written as a segment."""
        return self.logged >= max(FLUSH, self._patience)

    def add(
        self,
        ids: Sequence[str],
        codes_NL: np.ndarray,
        vectors_ND: np.ndarray | None = None,
        fields: Sequence[str] = (),
    ) -> LiveState:
        """Add items at the end of the pool; they are on the disk when this returns. A known id is refused."""
        return self.change((), ids, codes_NL, vectors_ND, fields)

    def remove(self, ids: Iterable[str]) -> LiveState:
        """Take items out; that is on the disk when this returns. An unknown id is refused."""
        return self.change(ids, (), np.zeros((0, self.index.levels), np.int64))

    def change(
        self,
        gone: Iterable[str],
        ids: Sequence[str],
        codes_NL: np.ndarray,
        vectors_ND: np.ndarray | None = None,
        fields: Sequence[str] = (),
        *,
        upsert: bool = False,
    ) -> LiveState:
        """Take items out and then add others, all or nothing; return the state once it is on the disk.

        `fields` is what is kept to show of the new ones. With `upsert` those are taken out as well that have their ids.
        """
        self.refuse_closed()
        truth_value("upsert", upsert)
        names, fresh = dict.fromkeys(listed(gone)), listed(ids)
        if not names and not fresh:
            return self.state

        def apply(state: LiveState) -> tuple[LiveState, Record]:
            known = dict.fromkeys(state.index.ids.known(fresh)) if upsert else {}
            return _changed(state, list(names | known), fresh, np.asarray(codes_NL), vectors_ND, fields)

        return self._write(apply)

    def _write(self, change: Change) -> LiveState:
        """Write a change to the log, wait until it is on the disk, and return the state with it."""
        with self._writing:
            self.refuse_closed()
            self._refuse_failed()
            tail = self._tail
            state, record = change(tail.state)
            log = tail.log or JournalWriter.create(self.folder, self._number, self.generation.lineage)
            self._tail = _Tail(log, log.end, tail.written, tail.state)
            content, ticket = record.encoded(), tail.written + 1
            try:
                self._tail = _Tail(log, log.append(content), ticket, state)
            except OSError as error:
                reason = error.strerror or error
                raise SiglumError(f"could not write to {log.path}: {reason}; nothing was changed.") from error
            finally:
                if log.end != self._tail.end or log.is_broken:  # interrupted, or not to be mended
                    self._failed = f"{log.path} may end in half a change; open the index again"
            self.logged += len(record)
        self._sync(ticket)
        if self.background and self.is_due:
            self._start_worker()
        return state

    def _sync(self, ticket: int) -> None:
        """Wait until so many changes are on the disk: by a sync of one's own, or by that of another thread."""
        with self._synced:
            while self._syncing and self._durable < ticket:
                self._synced.wait()
            if self._durable >= ticket:
                return
            self._refuse_failed()
            self._syncing = True
        tail = self._tail
        assert tail.log is not None
        failed: str | None = f"{tail.log.path} may not have reached the disk; open the index again"
        try:
            tail.log.sync(tail.end)
            failed = None
        except OSError as error:
            failed = f"{tail.log.path} could not be brought to disk ({error.strerror or error}); open the index again"
        finally:  # whatever came between: others wait for this
            with self._synced:
                self._syncing = False
                if failed is None:
                    self._durable, self.state = tail.written, tail.state
                else:
                    self._failed = failed
                self._synced.notify_all()
        self._refuse_failed()

    def refuse_closed(self) -> None:
        """Refuse what comes after `close`."""
        if self._is_closed:
            raise SiglumError(f"{self.folder} is open for writing no more; open it again.")

    def _refuse_failed(self) -> None:
        if self._failed is not None:
            raise SiglumError(f"{self._failed}.")

    def compact(self, *, whole: bool = False) -> None:
        """Write what the logs hold as a segment, in a new generation, and let them go; `whole`: all in one piece."""
        with self._compacting:
            self.refuse_closed()
            self._compact(truth_value("whole", whole))

    def _compact(self, whole: bool = False) -> None:
        number = self._rotate()
        segments = self._write_segment(number, whole)
        same = segments[0] == self.generation.segments[0]
        known = self.state.index.base if same else None  # it is mapped and checked already
        below, _ = load_segments(self.folder, segments, self.generation.tokenizer, known)
        below.warm(self.state.index, resting() if self.background else None)
        with self._writing:
            self._sync(self._tail.written)
            self._advance(segments, number + 1)
            layer = self.state.index
            assert isinstance(layer, Layered)
            self._publish(self._tail.log, LiveState(layer.rebased(below), self.state.vectors_ND))
            self.logged = layer.changes
        clean(self.folder, self.generation)

    def _write_segment(self, log: int, whole: bool) -> tuple[str, ...]:
        """Write all changes up to a log as a segment; return the segments of the next generation.

        It gets its name when it is whole: a process that a kill of this one left behind writes to a name of its own.
        """
        name = next_segment(self.folder)
        half = f".{name}.{os.getpid()}-{time.time_ns()}.tmp"
        work = write_compacted_beside if self.background else write_compacted
        try:
            segments = work(self.folder, log, half, whole)
            (self.folder / half).rename(self.folder / name)
        except BaseException:
            shutil.rmtree(self.folder / half, ignore_errors=True)
            raise
        sync_folder(self.folder)
        return (*segments[:-1], name)

    def _advance(self, segments: tuple[str, ...], log: int) -> None:
        """Write the next generation; if it is not known which one counts now, take no more changes."""
        try:
            self.generation = write_generation(self.generation, segments, log, self.generation.lineage)
        except BaseException:
            if read_generation(self.folder).number != self.generation.number:
                self._failed = f"{self.folder} may not have reached the disk; open the index again"
            raise

    def _rotate(self) -> int:
        """Begin a new log and a new layer; return the number of the last log, which grows no more."""
        with self._writing:
            self._refuse_failed()
            self._sync(self._tail.written)
            before = self._tail.log
            if before is None:  # nothing is logged, and there may still be a layer to fold in
                return self._number - 1
            fresh = JournalWriter.create(self.folder, self._number + 1, self.generation.lineage)
            self._number += 1
            self._publish(fresh, LiveState(self.state.index.layer(), self.state.vectors_ND))
            before.close()
            return self._number - 1

    def _publish(self, log: JournalWriter | None, state: LiveState) -> None:
        """Go on with a log and a state of the same items, when all changes are on the disk."""
        self.state = state
        self._tail = _Tail(log, log.end if log else 0, self._tail.written, state)

    def _start_worker(self) -> None:
        """Compact in the background, unless that is under way."""
        with self._writing:
            if not self._is_closed and (self._worker is None or not self._worker.is_alive()):
                self._worker = threading.Thread(target=self._work, name="siglum compaction", daemon=True)
                self._worker.start()

    def _work(self) -> None:
        try:
            with self._compacting:
                self._compact()
        except (SiglumError, OSError) as error:
            self._patience = 2 * self.logged
            _log.warning("%s; its log goes on growing.", error)

    def close(self) -> None:
        """Take no more changes, wait for those of other threads and for a compaction under way, and close the log."""
        with self._writing:
            self._is_closed = True
        if self._worker is not None:
            self._worker.join()
        with self._compacting, self._writing:
            log, was_over, self._is_over = self._tail.log, self._is_over, True
            if was_over:
                return
            try:
                with suppress(SiglumError):  # whose change it was is told
                    self._sync(self._tail.written)
            finally:
                if log is not None:
                    log.close()
                open_for_changes.discard(self._place)


def _changed(
    state: LiveState,
    gone: list[str],
    ids: list[str],
    codes_NL: np.ndarray,
    vectors_ND: np.ndarray | None,
    fields: Sequence[str],
) -> tuple[LiveState, Record]:
    """Return the state after a change, and the change as a record."""
    layer, kept = state.index, state.vectors_ND
    assert isinstance(layer, Layered)
    if codes_NL.shape[:1] != (len(ids),):
        raise SiglumError(
            f"{len(ids)} items were given with the codes of {len(codes_NL) if codes_NL.ndim else 'none'}."
        )
    index = layer.changed(gone, ids, codes_NL, fields)
    own = np.zeros((len(ids), 0), np.float16)
    if kept is not None:
        if ids and (vectors_ND is None or vectors_ND.shape != (len(ids), kept.shape[1])):
            raise SiglumError(f"this index keeps vectors of its items: new ones need ({len(ids)}, {kept.shape[1]}).")
        own = own if vectors_ND is None or not ids else vectors_ND.astype(np.float16)
        kept = np.concatenate([np.delete(kept, layer.positions(gone), 0), *([own] if ids else [])])
    return LiveState(index, kept), Record(gone, ids, index.layout.pack(codes_NL), own, fields)


def _go_on(opened: Opened) -> JournalWriter | None:
    """Return a writer behind the last whole record of the last log, or None where there is no log yet."""
    if not opened.journals:
        return None
    generation, last = opened.generation, opened.journals[-1]
    if not last.end:  # torn off in its first line
        return JournalWriter.create(generation.folder, generation.logs()[-1], generation.lineage)
    if last.torn:
        said = "%s: the last %d bytes are of a change that was torn off before it was acknowledged; they are cut."
        _log.warning(said, last.path, last.torn)
    return JournalWriter.go_on(last.path, last.end)
