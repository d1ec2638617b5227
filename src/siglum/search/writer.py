"""A retriever open for changes that last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from siglum.run.folder import RunFolder
from siglum.run.live import LiveIndex
from siglum.run.lock import lock_run
from siglum.search.state import NewItems
from siglum.types import Features, Item, SiglumError, truth_value

if TYPE_CHECKING:
    from siglum.search.retriever import Retriever


@contextmanager
def open_writer(retriever: Retriever, root: Path, wait: float | None, background: bool) -> Iterator[Writer]:
    """Open the index of a retriever's run, as `Retriever.writing` says."""
    truth_value("background", background)
    with (
        lock_run(root, "a retriever", wait),
        LiveIndex(RunFolder(root).index, retriever.tokenizer.fingerprint(), background=background) as live,
    ):
        if retriever._state.gone or retriever._state.fresh:
            raise SiglumError("this retriever has changes that are in memory only; save it before writing.")
        if retriever._home != root.resolve():
            raise SiglumError(
                f"this retriever does not hold the items of {root}, which writing there would have it search; load that"
                " run, or save this retriever there first."
            )
        retriever._follow(live, root)
        retriever._is_written = True
        writer = Writer(retriever, live, root)
        try:
            yield writer
        finally:
            writer.close()


class Writer:
    """A retriever whose changes are on disk when a call returns, and then seen by its searches.

    It ends with the block of `Retriever.writing`: what is asked of it later is refused.
    """

    def __init__(self, retriever: Retriever, live: LiveIndex, root: Path) -> None:
        """Write through an open index."""
        self.retriever, self.live, self._root = retriever, live, root
        self._following, self._is_over = Lock(), False

    def add(self, items: Sequence[Item] | Features) -> None:
        """Add items; a known id is refused and nothing changes."""
        self.replace((), items)

    def upsert(self, items: Sequence[Item] | Features) -> None:
        """Add items, in the place of those that have their ids: all of them or none."""
        self._change((), self.retriever._coded(items), upsert=True)

    def remove(self, ids: Iterable[str]) -> None:
        """Take items out; an unknown id is refused and nothing changes."""
        self.live.remove(ids)
        self._follow()

    def replace(self, gone: Iterable[str], items: Sequence[Item] | Features, *, about: Iterable[Item] = ()) -> None:
        """Take items out and add others, all or nothing; `about` are the items that features were made from."""
        self._change(gone, self.retriever._coded(items, about))

    def _change(self, gone: Iterable[str], new: NewItems, *, upsert: bool = False) -> None:
        vectors_MD = new.vectors_MD.half().cpu().numpy()
        self.live.change(gone, new.ids, new.codes_ML, vectors_MD, new.fields, upsert=upsert)
        self._follow()

    def compact_if_due(self) -> None:
        """Write a log that has grown long into the index."""
        self.live.refuse_closed()
        if self.live.is_due:
            self.live.compact()
            self._follow()

    def close(self) -> None:
        """Take no more changes; those of other threads that were begun are on disk and seen when this returns."""
        try:
            self.live.close()
        finally:
            self._follow(for_the_last_time=True)

    def _follow(self, for_the_last_time: bool = False) -> None:
        """Have the retriever search what is on disk, unless it goes its own way again."""
        with self._following:
            if not self._is_over:
                self.retriever._follow(self.live, self._root)
                if for_the_last_time:
                    self._is_over, self.retriever._is_written = True, False
