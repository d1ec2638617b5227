"""The implicit trie: a node at depth d is a range [lo, hi) of sorted rows that share their first d codes.

Nothing but the sorted rows is stored. Inside a node at depth d a child begins at its first row and wherever a row
shares exactly d codes with the row before. Every row shares one number of codes, so the rows listed by that number
are one list per level and N numbers in all; a binary search in one of them finds the children of any node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from siglum.index.pack import Layout
from siglum.index.ragged import spread
from siglum.types import SiglumError


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

    def __init__(self, layout: Layout, packed_NB: np.ndarray, shared: np.ndarray, order: np.ndarray) -> None:
        """Wrap sorted packed rows, their shared-prefix lengths and their positions in the pool."""
        self._layout = layout
        self._packed_NB = packed_NB
        self._shared = shared
        self._order = order
        self._branches: dict[int, np.ndarray] = {}

    def children(self, lo: np.ndarray, hi: np.ndarray, depth: int, allowed: Allowed | None = None) -> Children:
        """Return the children of nodes [lo, hi) at one depth, leaving out those without an allowed row."""
        if not 0 <= depth < self._layout.levels:
            raise SiglumError(f"depth is {depth}, but only depths 0 to {self._layout.levels - 1} have children.")
        lo, hi = np.asarray(lo, np.int64), np.asarray(hi, np.int64)
        branches = self._branches_at(depth)
        # Keys of the array's own type: any other would make searchsorted convert the whole array.
        first = np.searchsorted(branches, lo.astype(np.uint32), "right") - 1
        counts = np.where(hi > lo, np.searchsorted(branches, hi.astype(np.uint32), "left") - first, 0)
        ends = np.cumsum(counts)
        some = counts > 0
        child_lo = branches[spread(first, counts)].astype(np.int64)
        child_lo[(ends - counts)[some]] = lo[some]
        child_hi = np.empty_like(child_lo)
        child_hi[:-1] = child_lo[1:]
        child_hi[ends[some] - 1] = hi[some]
        parent = np.repeat(np.arange(len(lo)), counts)
        if allowed is not None:
            keep = allowed.count(child_lo, child_hi) > 0
            parent, child_lo, child_hi = parent[keep], child_lo[keep], child_hi[keep]
        return Children(parent, self._layout.column(self._packed_NB, depth, child_lo), child_lo, child_hi)

    def leaves(self, lo: np.ndarray, hi: np.ndarray, allowed: Allowed | None = None) -> Leaves:
        """Return the (allowed) items in ranges [lo, hi), which may be nodes of any depth."""
        lo, hi = np.asarray(lo, np.int64), np.asarray(hi, np.int64)
        counts = np.maximum(hi - lo, 0)
        row = spread(lo, counts)
        parent = np.repeat(np.arange(len(lo)), counts)
        if allowed is not None:
            keep = allowed.rows[row]
            row, parent = row[keep], parent[keep]
        return Leaves(parent, row, self._order[row].astype(np.int64))

    def _branches_at(self, depth: int) -> np.ndarray:
        """Return row 0 and every row that shares exactly `depth` codes with the row before, uint32."""
        if depth not in self._branches:
            branch = self._shared == depth
            branch[0] = True
            self._branches[depth] = np.flatnonzero(branch).astype(np.uint32)
        return self._branches[depth]
