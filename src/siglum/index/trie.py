"""The implicit trie: a node at depth d is a range [lo, hi) of sorted rows that share their first d codes.

Nothing but the sorted rows is stored. Inside a node at depth d a child begins at its first row and wherever a row
shares exactly d codes with the row before. A node of few rows is read row by row. For one of many rows, those that
share exactly d codes are listed on first use, and a binary search in the list finds its children: every row stands in
one list, so the lists of all depths are 4 bytes an item at most, and fewer as the deep nodes are small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from siglum.index.pack import Layout, chunks, widen
from siglum.index.ragged import spread
from siglum.types import SiglumError

SCAN = 64
"""Rows of the largest node that is read row by row; few enough to cost less than two binary searches."""


class Children(NamedTuple):
    """Children of many nodes, one row a child: parents in the order given, tokens ascending within a parent."""

    parent: np.ndarray
    """Which of the given nodes, int64."""
    token: np.ndarray
    """The code that leads to the child, int32."""
    lo: np.ndarray
    """First row of the child, int64."""
    hi: np.ndarray
    """End of the child's rows, int64."""


class Leaves(NamedTuple):
    """Items under many nodes, one row an item: nodes in the order given, sorted rows ascending within a node."""

    parent: np.ndarray
    """Which of the given nodes, int64."""
    row: np.ndarray
    """Sorted row, int64."""
    position: np.ndarray
    """Position in the pool, int64; ascending within a node of full depth."""

    @classmethod
    def of(
        cls, lo: np.ndarray, hi: np.ndarray, allowed: Allowed | None, positions_at: Callable[[np.ndarray], np.ndarray]
    ) -> Leaves:
        """Return the (allowed) rows of ranges [lo, hi), with the positions that a function gives of rows."""
        lo, hi = np.asarray(lo, np.int64), np.asarray(hi, np.int64)
        counts = np.maximum(hi - lo, 0)
        row = spread(lo, counts)
        parent = np.repeat(np.arange(len(lo)), counts)
        if allowed is not None:
            keep = allowed.rows[row]
            row, parent = row[keep], parent[keep]
        return cls(parent, row, positions_at(row))


@dataclass(frozen=True, slots=True)
class Allowed:
    """A filter over sorted rows, with running counts so that a node is checked by two look-ups.

    >>> allowed = Allowed.of(np.array([True, False, True]))
    >>> allowed.count(np.array([0, 1]), np.array([3, 2])).tolist()
    [2, 0]
    """

    rows: np.ndarray
    """Whether each sorted row may be found, bool (N,)."""
    before: np.ndarray
    """Allowed rows before each row, uint32 (N + 1,)."""

    @classmethod
    def of(cls, rows: np.ndarray) -> Allowed:
        """Return the filter of a boolean mask over sorted rows."""
        before = np.zeros(len(rows) + 1, np.uint32)
        np.cumsum(rows, out=before[1:])
        return cls(rows, before)

    def count(self, lo: np.ndarray, hi: np.ndarray) -> np.ndarray:
        """Return the number of allowed rows in each range, uint32."""
        counts: np.ndarray = self.before[hi] - self.before[lo]
        return counts


class Trie:
    """Children and leaves of ranges of sorted rows; all methods take many nodes at once."""

    def __init__(self, layout: Layout, packed_NB: np.ndarray, order_NW: np.ndarray) -> None:
        """Wrap sorted packed rows and their positions in the pool as `narrow` makes them."""
        self._layout = layout
        self._packed_NB = packed_NB
        self._order_NW = order_NW
        self._branches: dict[int, np.ndarray] = {}

    def children(self, lo: np.ndarray, hi: np.ndarray, depth: int, allowed: Allowed | None = None) -> Children:
        """Return the children of nodes [lo, hi) at one depth, leaving out those without an allowed row."""
        if not 0 <= depth < self._layout.levels:
            raise SiglumError(f"depth is {depth}, but only depths 0 to {self._layout.levels - 1} have children.")
        lo, hi = np.asarray(lo, np.int64), np.asarray(hi, np.int64)
        if (hi - lo == 1).all():  # single items: a few levels down nearly all nodes are
            parent, child_lo, child_hi = np.arange(len(lo)), lo, hi
        else:
            counts, child_lo = self._split(lo, hi, depth)
            parent = np.repeat(np.arange(len(lo)), counts)
            child_hi = np.empty_like(child_lo)
            child_hi[:-1] = child_lo[1:]
            some = counts > 0
            child_hi[np.cumsum(counts)[some] - 1] = hi[some]
        if allowed is not None:
            keep = allowed.count(child_lo, child_hi) > 0
            parent, child_lo, child_hi = parent[keep], child_lo[keep], child_hi[keep]
        return Children(parent, self._layout.column(self._packed_NB, depth, child_lo), child_lo, child_hi)

    @property
    def listed(self) -> list[int]:
        """Depths whose branching rows have been listed."""
        return list(self._branches)

    def list_branches(self, depths: Iterable[int], rest: Callable[[], None] | None = None) -> None:
        """List row 0 and every row that shares exactly so many codes with the row before, for these depths.

        That is done on first use, or now, with a rest between pieces of the work.
        """
        found = {depth: [np.zeros(int(depth > 0), np.int64)] for depth in depths if depth not in self._branches}
        last, tail = self._packed_NB[:, -1], self._layout.tail
        for part in chunks(len(last) if found else 0, rest):
            shared = last[part] & tail
            for depth, rows in found.items():
                rows.append(part.start + np.flatnonzero(shared == depth))
        for depth, rows in found.items():
            self._branches[depth] = np.concatenate(rows).astype(np.uint32)

    def leaves(self, lo: np.ndarray, hi: np.ndarray, allowed: Allowed | None = None) -> Leaves:
        """Return the (allowed) items in ranges [lo, hi), which may be nodes of any depth."""
        return Leaves.of(lo, hi, allowed, lambda rows: widen(self._order_NW, rows).astype(np.int64))

    def _split(self, lo: np.ndarray, hi: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """Return how many children every node has, and the first rows of all of them, int64."""
        is_large = hi - lo > SCAN
        if is_large.all():
            return self._look_up(lo, hi, depth)
        if not is_large.any():
            return self._read(lo, hi, depth)
        counts, parts = np.empty(len(lo), np.int64), []
        for chosen, split in ((is_large, self._look_up), (~is_large, self._read)):
            counts[chosen], rows = split(lo[chosen], hi[chosen], depth)
            parts.append((chosen, rows))
        first = np.cumsum(counts) - counts
        result = np.empty(counts.sum(), np.int64)
        for chosen, rows in parts:
            result[spread(first[chosen], counts[chosen])] = rows
        return counts, result

    def _read(self, lo: np.ndarray, hi: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """Split nodes of few rows by reading all of them."""
        size = np.maximum(hi - lo, 0)
        row = spread(lo, size)
        begins = (self._packed_NB[row, -1] & self._layout.tail) == depth
        begins[(np.cumsum(size) - size)[size > 0]] = True
        parent = np.repeat(np.arange(len(lo)), size)
        return np.bincount(parent[begins], minlength=len(lo)), row[begins]

    def _look_up(self, lo: np.ndarray, hi: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """Split nodes of many rows by binary search among the listed rows of this depth."""
        branches = self._branches_at(depth)
        # Keys of the array's own type: any other would make searchsorted convert the whole array.
        first = np.searchsorted(branches, lo.astype(np.uint32), "right") - 1
        counts = np.searchsorted(branches, hi.astype(np.uint32), "left") - first
        row = branches[spread(first, counts)].astype(np.int64)
        row[np.cumsum(counts) - counts] = lo
        return counts, row

    def _branches_at(self, depth: int) -> np.ndarray:
        """Return the branching rows of a depth, uint32."""
        if depth not in self._branches:
            self.list_branches([depth])
        return self._branches[depth]
