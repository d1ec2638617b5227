"""What look-ahead and prior add to the edges of a trie, in static shapes.

Both come down to one number an edge. The prior of a code depends on its prefix alone and is a table. With look-ahead a
node is worth its potential, the best geometric score of a leaf below it; what an edge adds is the potential of the
node it leads to less that of the node it leaves, so that a leaf in the end has its own geometric score.
Shapes: Q queries, N rows, L levels, C candidates or leaves, T levels of the tail, I nodes of a depth.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from siglum.search.static.beam_ops import BeamLeaves, GeometryTables
from siglum.search.static.trie import DeviceTrie, take


class Potentials(NamedTuple):
    """Potentials of some queries."""

    leaf_QN: Tensor
    """Of every row."""
    node_QI: list[Tensor]
    """Of the nodes of depth 0, where nothing counts yet, to that where the walk ends."""


class Added:
    """What edges add beside the decoder's log-probabilities, given a geometry for look-ahead, a prior or both."""

    def __init__(self, trie: DeviceTrie, ahead: GeometryTables | None, prior_LN: Tensor | None) -> None:
        """Take the parts; `prior_LN` is the prior of every row's codes with its weight, to be added."""
        self.trie, self.ahead, self.prior_LN = trie, ahead, prior_LN
        self._row_N = torch.arange(len(trie.rows), device=trie.device)

    def begin(self, query_QD: Tensor, depth: int) -> Potentials | None:
        """Return the potentials down to the depth where a walk ends; None without look-ahead."""
        trie, ahead = self.trie, self.ahead
        if ahead is None:
            return None
        dot_QV = ahead.begin(query_QD)
        leaf_QN = -ahead.omega * ahead.length_LN.sum(0).expand(len(query_QD), -1)
        for level in range(ahead.first_geometric, trie.levels):
            leaf_QN = leaf_QN + dot_QV.index_select(1, trie.code(self._row_N, level) + ahead.start[level])
        best_QI, below_N, found = leaf_QN, self._row_N, []
        for at in range(depth, 0, -1):  # from the bottom up, as few nodes of many rows would be waited for
            node_N = self._node(at)
            parent_I = torch.zeros_like(best_QI[0], dtype=torch.long).scatter(0, below_N, node_N)
            none_QI = best_QI.new_full((len(best_QI), trie.nodes[at]), -torch.inf)
            best_QI = none_QI.scatter_reduce(1, parent_I.expand(len(best_QI), -1), best_QI, "amax")
            below_N = node_N
            found.append(best_QI)
        return Potentials(leaf_QN, [leaf_QN.new_zeros(len(leaf_QN), 1), *reversed(found)])

    def edge(self, given: Potentials | None, level: int, row_QC: Tensor) -> Tensor:
        """Return what the code at a level adds to the nodes that hold these rows, float64 (Q, C)."""
        added_QC = torch.zeros(row_QC.shape, dtype=torch.float64, device=row_QC.device)
        if self.prior_LN is not None:
            added_QC += take(self.prior_LN[level], row_QC)
        if given is not None:
            added_QC += self._potential(given, level + 1, row_QC)
            added_QC -= self._potential(given, level, row_QC)
        return added_QC

    def tail(self, given: Potentials | None, found: BeamLeaves, depth: int, pruning: list[int]) -> Tensor:
        """Return what the codes from `depth` on add to leaves, right at levels of `pruning` and in sum (Q, C, T)."""
        levels, (queries, leaves) = self.trie.levels, found.row_QC.shape
        added_QCT = torch.zeros(queries, leaves, levels - depth, device=found.row_QC.device)
        if self.prior_LN is not None:
            prior_TR = self.prior_LN[depth:].index_select(1, found.row_QC.reshape(-1))
            added_QCT += prior_TR.view(-1, queries, leaves).permute(1, 2, 0)
        if given is not None:
            leaf_QC = given.leaf_QN.gather(1, found.row_QC.long())
            before_QC = self._potential(given, depth, found.row_QC).float()
            for level in [*(level for level in pruning if level < levels - 1), levels - 1]:
                own_QC = leaf_QC if level == levels - 1 else self._best(leaf_QC, found, level)
                added_QCT[..., level - depth] += own_QC - before_QC
                before_QC = own_QC
        return added_QCT

    def _best(self, leaf_QC: Tensor, found: BeamLeaves, level: int) -> Tensor:
        """Return the highest of the leaves below the node that a level leads to, for every leaf (Q, C)."""
        begins_QC = found.begins_QC | (take(self.trie.shared_N, found.row_QC) <= level)
        place_C = torch.arange(leaf_QC.shape[1], device=leaf_QC.device)
        first_QC = torch.where(begins_QC, place_C, 0).cummax(1).values
        best_QC = leaf_QC.scatter_reduce(1, first_QC, leaf_QC, "amax")
        return best_QC.gather(1, first_QC)

    def _potential(self, given: Potentials, depth: int, row_QC: Tensor) -> Tensor:
        place_QC = take(self._node(depth), row_QC) if depth else torch.zeros_like(row_QC, dtype=torch.long)
        return given.node_QI[depth].gather(1, place_QC).double()

    def _node(self, depth: int) -> Tensor:
        """Return which node of a depth (1 or more) every row lies in (N,)."""
        return (self.trie.shared_N < depth).cumsum(0) - 1
