"""One level of a beam in static shapes: children of live nodes, the best of them, and what replays it over leaves.

A dead place of a beam has the path score minus infinity and the numbers of some other place.
Shapes: Q queries, W live nodes, C candidates or leaves, V codes of a level, T levels of the tail, K results.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from siglum.search.static.trie import DeviceTrie, take


class LiveNodes(NamedTuple):
    """Live nodes of all queries at one depth."""

    lo_QW: Tensor
    """First row, int32."""
    hi_QW: Tensor
    """End of the rows, int32."""
    path_QW: Tensor
    """Score of the path so far, float64."""
    token_QW: Tensor
    """Row of the embedding table of the last code."""
    line_QWS: Tensor
    """Rows of the cache of all positions, that of the last code at the end; int32."""
    first_QW: Tensor | None = None
    """Where what lies below each node, and is asked for next, begins in its list in the trie, int32; kernels only."""
    count_QW: Tensor | None = None
    """How many there are, int32; kernels only."""


class Candidates(NamedTuple):
    """Children of live nodes."""

    owner_QC: Tensor
    """The live node above, int64."""
    token_QC: Tensor
    """The code that leads to the child, int64."""
    lo_QC: Tensor
    """First row, int32."""
    hi_QC: Tensor
    """End of the rows, int32."""
    used_QC: Tensor | None = None
    """Whether there is a child in this place; None where all are."""


class GeometryTables:
    """omega (2 <q, x̂> - |x̂|^2) of any prefix as a sum of table look-ups, one a level (eq. cdsb, telescoped)."""

    def __init__(
        self,
        trie: DeviceTrie,
        codebooks: list[Tensor],
        omega: float,
        first_geometric: int,
        length_LN: Tensor | None = None,
    ) -> None:
        """Work out what every code of every row adds to |x̂|^2, unless it is known."""
        self.omega, self.first_geometric = omega, first_geometric
        self.book_VD = 2 * omega * torch.cat(codebooks[first_geometric:])
        self.start = [sum(len(book) for book in codebooks[first_geometric:level]) for level in range(len(codebooks))]
        self.length_LN = trie.lengthen(codebooks, first_geometric) if length_LN is None else length_LN
        self.start_L = torch.tensor(self.start, device=self.book_VD.device)

    def begin(self, query_QD: Tensor) -> Tensor:
        """Return 2 omega <q, c> for all codewords (Q, sum of V)."""
        return query_QD @ self.book_VD.t()

    def add(self, step_QC: Tensor, dot_QV: Tensor, level: int, token_QC: Tensor, row_QC: Tensor) -> Tensor:
        """Add what a code adds at one level."""
        if level < self.first_geometric:
            return step_QC
        length_QC = take(self.length_LN[level - self.first_geometric], row_QC)
        return step_QC + dot_QV.gather(1, token_QC + self.start[level]) - self.omega * length_QC

    def tail(self, dot_QV: Tensor, depth: int, code_QCT: Tensor, row_QC: Tensor) -> Tensor:
        """Return what the codes of the levels from `depth` on add (Q, C, T)."""
        skip = max(0, self.first_geometric - depth)
        code_QCT = code_QCT[..., skip:]
        place = (code_QCT + self.start_L[depth + skip :]).flatten(1)
        length = self.length_LN[depth + skip - self.first_geometric :].index_select(1, row_QC.reshape(-1))
        length_QCT = length.view(-1, *row_QC.shape).permute(1, 2, 0)
        gain_QCT = dot_QV.gather(1, place).view(code_QCT.shape) - self.omega * length_QCT
        return torch.nn.functional.pad(gain_QCT, (skip, 0))


def spread(count_QW: Tensor, slots: int) -> tuple[Tensor, Tensor, Tensor]:
    """Lay runs of these lengths end to end in `slots` places a query: owner, place in its run, and whether in use.

    >>> owner, offset, used = spread(torch.tensor([[2, 0, 1]]), 4)
    >>> owner.tolist(), offset.tolist(), used.tolist()
    ([[0, 0, 2, 2]], [[0, 1, 0, 1]], [[True, True, True, False]])
    """
    end_QW = count_QW.cumsum(1, dtype=torch.int32)
    slot_QS = torch.arange(slots, dtype=torch.int32, device=count_QW.device).repeat(len(count_QW), 1)
    owner_QS = torch.searchsorted(end_QW, slot_QS, right=True).clamp_(max=count_QW.shape[1] - 1)
    offset_QS = slot_QS - (end_QW - count_QW).gather(1, owner_QS)
    return owner_QS, offset_QS, slot_QS < end_QW[:, -1:]


def children(trie: DeviceTrie, beams: LiveNodes, level: int, slots: int) -> Candidates:
    """Return the children of live nodes; there are never more than `slots`."""
    branches, alive = trie.branches[level], beams.path_QW != -torch.inf
    bounds = torch.searchsorted(branches, torch.stack([beams.lo_QW, beams.hi_QW]), out_int32=True)
    first_QW, count_QW = bounds[0], (bounds[1] - bounds[0] + 1) * alive
    owner, offset, used = spread(count_QW, slots)
    place = first_QW.gather(1, owner) + offset
    lo, hi = beams.lo_QW.gather(1, owner), beams.hi_QW.gather(1, owner)
    begin = take(branches, (place - 1).clamp(0, len(branches) - 1))
    end = take(branches, place.clamp(0, len(branches) - 1))
    last = offset + 1 >= count_QW.gather(1, owner)
    lo, hi = torch.where(offset == 0, lo, begin), torch.where(last, hi, end)
    return Candidates(owner, trie.code(lo, level), lo, hi, used)


def only_children(trie: DeviceTrie, beams: LiveNodes, level: int) -> Candidates:
    """Return the children of live nodes at a level where every node has one."""
    owner = torch.arange(beams.lo_QW.shape[1], device=beams.lo_QW.device).expand(beams.lo_QW.shape)
    return Candidates(owner, trie.code(beams.lo_QW, level), beams.lo_QW, beams.hi_QW)


def all_children(trie: DeviceTrie, queries: int, level: int) -> Candidates:
    """Return all nodes of the next depth, for a level where every node is live."""
    own = trie.generation(level + 1)
    columns = (own.parent_C, own.token_C, own.lo_C, own.hi_C)
    return Candidates(*(column.expand(queries, -1) for column in columns))


def narrow(found: Candidates, path_QC: Tensor, width: int) -> tuple[Candidates, Tensor, Tensor | None]:
    """Return the `width` best candidates, their scores and their places; None where there is room for all."""
    if path_QC.shape[1] <= width:
        return found, path_QC, None
    place = path_QC.float().topk(width, dim=1, sorted=False).indices
    columns = (found.owner_QC, found.token_QC, found.lo_QC, found.hi_QC)
    return Candidates(*(column.gather(1, place) for column in columns)), path_QC.gather(1, place), place


class BeamLeaves(NamedTuple):
    """Leaves under the live nodes of every query, laid end to end: those of one node together, in code order."""

    path_QC: Tensor
    """Score of the live node above, minus infinity where there is no leaf; float64."""
    begins_QC: Tensor
    """Whether the leaf is the first of its node."""
    row_QC: Tensor
    """First row, int32."""
    end_QC: Tensor
    """End of the rows, int32."""
    over_Q: Tensor
    """Whether some leaves had no room."""


def leaf_bounds(trie: DeviceTrie, beams: LiveNodes) -> tuple[Tensor, Tensor]:
    """Return the first leaf under every live node and how many there are, int32 (Q, W) each."""
    bounds = torch.searchsorted(trie.leaf_row_I, torch.stack([beams.lo_QW, beams.hi_QW]), out_int32=True)
    return bounds[0], (bounds[1] - bounds[0]) * (beams.path_QW != -torch.inf)


def leaves(trie: DeviceTrie, beams: LiveNodes, cap: int) -> tuple[BeamLeaves, Tensor]:
    """Return the leaves under live nodes, at most `cap` a query, and the live node above each (Q, C)."""
    first_QW, count_QW = leaf_bounds(trie, beams)
    owner, offset, used = spread(count_QW, cap)
    leaf = (first_QW.gather(1, owner) + offset) * used
    row, end = take(trie.leaf_row_I, leaf), take(trie.leaf_row_I, leaf + 1)
    path = beams.path_QW.gather(1, owner).masked_fill(~used, -torch.inf)
    return BeamLeaves(path, offset == 0, row, end, count_QW.sum(1) > cap), owner


def replay(trie: DeviceTrie, found: BeamLeaves, step_QCT: Tensor, depth: int, beam: int, pruning: list[int]) -> Tensor:
    """Return the full path scores of leaves (Q, C), minus infinity for those that a beam would have pruned.

    At every level in `pruning` the leaves of one node stand or fall together, by the score of the node's first leaf; a
    node stands if fewer than `beam` standing nodes beat it, the earlier in the list winning ties.
    """
    score_QCT = found.path_QC[..., None] + step_QCT.double().cumsum(2)
    place_C = torch.arange(step_QCT.shape[1], device=step_QCT.device)
    shared_QC = take(trie.shared_N, found.row_QC)
    stands_QC = found.path_QC != -torch.inf
    for level in pruning:
        begins_QC = found.begins_QC | (shared_QC <= level)
        first_QC = torch.where(begins_QC, place_C, 0).cummax(1).values
        node_QC = score_QCT[..., level - depth].gather(1, first_QC)
        above, below = node_QC[:, :, None], node_QC[:, None, :]
        beats_QCC = (above > below) | ((above == below) & (place_C[:, None] < first_QC[:, None, :]))
        better_QC = (beats_QCC & (begins_QC & stands_QC)[:, :, None]).sum(1)
        stands_QC = stands_QC & (better_QC < beam)
    return score_QCT[..., -1].masked_fill(~stands_QC, -torch.inf)


def ranked(trie: DeviceTrie, lo_QC: Tensor, hi_QC: Tensor, score_QC: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Unfold leaves into the k best rows and their scores; row -1 and minus infinity where there are no more."""
    order = lo_QC.argsort(1)
    order = order.gather(1, score_QC.gather(1, order).argsort(dim=1, descending=True, stable=True))
    lo_QC, score_QC = lo_QC.gather(1, order), score_QC.gather(1, order)
    if trie.lone_leaves:
        room = (0, max(0, k - lo_QC.shape[1]))
        row_QK = torch.nn.functional.pad(lo_QC[:, :k], room)
        score_QK = torch.nn.functional.pad(score_QC[:, :k], room, value=-torch.inf)
        return torch.where(score_QK == -torch.inf, -1, row_QK), score_QK
    count = (hi_QC.gather(1, order) - lo_QC) * (score_QC != -torch.inf)
    owner, offset, used = spread(count.int(), k)
    row_QK = torch.where(used, lo_QC.gather(1, owner) + offset, -1)
    return row_QK, torch.where(used, score_QC.gather(1, owner), -torch.inf)


def pack(row_QK: Tensor, score_QK: Tensor, over_Q: Tensor | None) -> Tensor:
    """Return rows, scores and whether the plan had too little room for a query, in one tensor (Q, 2 K + 1)."""
    over_Q1 = torch.zeros_like(score_QK[:, :1]) if over_Q is None else over_Q[:, None].double()
    return torch.cat([row_QK.double(), score_QK, over_Q1], 1)
