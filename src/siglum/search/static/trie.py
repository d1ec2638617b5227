"""The index as device tensors: rows of packed codes, where nodes branch, and what each code adds to a squared length.

A node at depth d is a range [lo, hi) of sorted rows that share d codes; inside it a child begins at `lo` and at every
row that shares exactly d codes with the row before. Those rows, listed by depth, are N numbers in all, and two binary
searches find the children of any node. At 17 levels a row takes 24 bytes of codes, 64 of lengths and 9 of trie.
Shapes: N rows, L levels, G words a row, I leaves (distinct rows of codes), W nodes, S slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from siglum.index import Allowed, Index
from siglum.types import SiglumError

CHUNK = 65_536
"""Rows whose reconstructions are held at once."""
WORD_BITS = 31
"""Bits of an int32 that a code may lie in; the sign stays free."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the code of one level lies in a row of words; no code straddles two words."""

    word: int
    shift: int
    mask: int


def lay_out(sizes: tuple[int, ...]) -> list[Place]:
    """Return the place of every level's code, filling words from the low bits up.

    >>> [(place.word, place.shift) for place in lay_out((3, 2**20, 2**20))]
    [(0, 0), (0, 2), (1, 0)]
    """
    places, word, used = [], 0, 0
    for size in sizes:
        bits = (size - 1).bit_length()
        if used + bits > WORD_BITS:
            word, used = word + 1, 0
        places.append(Place(word, used, (1 << bits) - 1))
        used += bits
    return places


@dataclass(frozen=True, slots=True)
class TrieDepth:
    """All nodes at one depth with their parents, in code order; kept where every node of the depth before is live."""

    parent_C: Tensor
    """Place of the parent among the nodes of the depth before, int64."""
    token_C: Tensor
    """The code that leads to the node, int64."""
    lo_C: Tensor
    """First row, int32."""
    hi_C: Tensor
    """End of the rows, int32."""


class DeviceTrie:
    """The rows of an index (those a filter allows) on one device, with the numbers that fix static shapes."""

    def __init__(self, index: Index, device: torch.device, allowed: Allowed | None = None) -> None:
        """Copy the codes and shared-prefix lengths of all rows, or of the allowed ones."""
        self.sizes, self.device = index.sizes, device
        self.rows = np.arange(len(index)) if allowed is None else np.flatnonzero(allowed.rows)
        """The index's sorted row of every row here, int64 (N,)."""
        if not len(self.rows):
            raise SiglumError("a trie needs at least one row, but the filter allows none.")
        shared = np.asarray(index.shared)
        if allowed is not None:
            # Of two rows that become neighbours, the shared length is the smallest between them.
            shared = np.minimum.reduceat(shared[: self.rows[-1] + 1], np.append(self.rows[0], self.rows[:-1] + 1))
        self._shared = shared.copy()
        self._shared[0] = 0
        self.places = lay_out(self.sizes)
        words_NG = np.zeros((len(self.rows), self.places[-1].word + 1), np.int32)
        for level, place in enumerate(self.places):
            words_NG[:, place.word] |= index.column(level, self.rows).astype(np.int32) << place.shift
        self.words_NG = torch.from_numpy(words_NG).to(device)
        self.shared_N = torch.from_numpy(self._shared).to(device)
        self.branches = [self._put(1 + np.flatnonzero(self._shared[1:] == depth)) for depth in range(self.levels)]
        """Rows inside each depth's nodes where a child begins, apart from every node's first row; int32."""
        self._leaf_starts = self._starts(self.levels)
        self.leaf_row_I = self._put(np.append(self._leaf_starts, len(self.rows)))
        """First row of every leaf, and N; int32."""
        self.lone_leaves = len(self._leaf_starts) == len(self.rows)
        """Whether no two rows have equal codes."""
        self.word_L = torch.tensor([place.word for place in self.places], device=device)
        self.shift_L = torch.tensor([place.shift for place in self.places], dtype=torch.int32, device=device)
        self.mask_L = torch.tensor([place.mask for place in self.places], dtype=torch.int32, device=device)
        self._generations: dict[int, TrieDepth] = {}

    @property
    def levels(self) -> int:
        """Number L of codes a row."""
        return len(self.sizes)

    @cached_property
    def nodes(self) -> list[int]:
        """Number of nodes at depth 0 to L."""
        return [len(self._starts(depth)) for depth in range(self.levels + 1)]

    def widths(self, beam: int) -> tuple[list[int], list[int]]:
        """Return the most live nodes at depth 0 to L, and the most children they can have at level 0 to L - 1.

        No choice of W nodes has more children than the W largest have, so shapes of this size hold any search.
        """
        live, children = [1], []
        for level in range(self.levels):
            inner = np.bincount(self._owner(level, np.flatnonzero(self._shared == level)), minlength=self.nodes[level])
            if level == 0:
                inner[0] -= 1  # row 0 is the root's first row, not a branch inside it
            children.append(live[-1] + int(largest(inner, live[-1]).sum()))
            live.append(min(beam, children[-1]))
        return live, children

    def leaf_counts(self, depth: int) -> np.ndarray:
        """Return the number of leaves under every node at one depth."""
        return np.bincount(self._owner(depth, self._leaf_starts), minlength=self.nodes[depth])

    def generation(self, depth: int) -> TrieDepth:
        """Return all nodes at one depth (1 or more) with their parents."""
        if depth not in self._generations:
            starts = self._starts(depth)
            token = self.code(self._put(starts), depth - 1)
            parent = torch.from_numpy(self._owner(depth - 1, starts)).to(self.device)
            ends = np.append(starts[1:], len(self.rows))
            self._generations[depth] = TrieDepth(parent, token, self._put(starts), self._put(ends))
        return self._generations[depth]

    def code(self, row: Tensor, level: int) -> Tensor:
        """Return the code of one level for rows of any shape, int64."""
        place = self.places[level]
        return ((take(self.words_NG[:, place.word], row) >> place.shift) & place.mask).long()

    def codes(self, row: Tensor) -> Tensor:
        """Return all codes of rows of any shape (..., L), int64."""
        words = self.words_NG.index_select(0, row.reshape(-1)).index_select(1, self.word_L)
        return ((words >> self.shift_L) & self.mask_L).long().view(*row.shape, self.levels)

    def lengthen(self, codebooks: list[Tensor], first_geometric: int) -> Tensor:
        """Return what every code adds to the squared length of its row's reconstruction, fp32 (L - first, N).

        Codewords before `first_geometric` are part of the reconstruction all the same.
        """
        added = torch.empty(self.levels - first_geometric, len(self.rows), device=self.device)
        for start in range(0, len(self.rows), CHUNK):
            row = torch.arange(start, min(start + CHUNK, len(self.rows)), device=self.device)
            code_RL, hat_RD = (
                self.codes(row),
                torch.zeros(len(row), codebooks[first_geometric].shape[1], device=self.device),
            )
            for level, book_VD in enumerate(codebooks):
                word_RD = book_VD[code_RL[:, level]]
                if level >= first_geometric:
                    added[level - first_geometric, row] = ((2 * hat_RD + word_RD) * word_RD).sum(-1)
                hat_RD += word_RD
        return added

    def _starts(self, depth: int) -> np.ndarray:
        """Return the first row of every node at a depth."""
        begins = self._shared < depth
        begins[0] = True
        return np.flatnonzero(begins)

    def _owner(self, depth: int, rows: np.ndarray) -> np.ndarray:
        """Return which node of a depth each row lies in."""
        return np.searchsorted(self._starts(depth), rows, "right") - 1

    def _put(self, rows: np.ndarray) -> Tensor:
        return torch.from_numpy(rows.astype(np.int32)).to(self.device)


def take(table: Tensor, place: Tensor) -> Tensor:
    """Return `table[place]` for a one-dimensional table and places of any shape."""
    return table.index_select(0, place.reshape(-1)).view(place.shape)


def largest(values: np.ndarray, count: int) -> np.ndarray:
    """Return the `count` largest values (all of them where there are fewer), in any order."""
    return values if len(values) <= count else np.partition(values, len(values) - count)[-count:]
