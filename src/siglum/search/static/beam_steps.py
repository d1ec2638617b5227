"""What happens between passes of the decoder: a beam grows by a level, unfolds into leaves, and leaves are settled.

Shapes: Q queries, W live nodes, C candidates or leaves, V codes of a level, T levels of the tail, d levels before it,
K results, F numbers of a packed result.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from siglum.search.static.added import Added, Potentials
from siglum.search.static.beam_ops import (
    BeamLeaves,
    Candidates,
    GeometryTables,
    LiveNodes,
    all_children,
    children,
    leaves,
    narrow,
    only_children,
    pack,
    ranked,
    replay,
)
from siglum.search.static.layout import CacheLayout
from siglum.search.static.plan import Plan, Shape
from siglum.search.static.trie import DeviceTrie


class Tail(NamedTuple):
    """Leaves of live nodes and what the pass over their paths reads."""

    leaves: BeamLeaves
    token_QCT: Tensor
    """Rows of the embedding table: the last code of the node above and all later ones but the last."""
    code_QCT: Tensor
    """The codes from the first of the tail on."""
    past_QCd: Tensor
    """Rows of the cache of the positions before the tail, int32."""
    gain_QCT: Tensor | None
    """What geometry adds to the codes' log-probabilities, fp32."""


class Steps:
    """The steps of one search as plain operations; `token_offset` is where each level's tokens begin in the table."""

    def __init__(
        self,
        trie: DeviceTrie,
        geometry: GeometryTables | None,
        shape: Shape,
        beam: int,
        token_offset: list[int],
        added: Added | None = None,
    ) -> None:
        """Hold the parts."""
        self.added = added
        self.trie, self.geometry, self.shape, self.beam, self.token_offset = trie, geometry, shape, beam, token_offset
        self.token_offset_L = torch.tensor(token_offset, device=trie.device)

    def grow(
        self,
        level: int,
        beams: LiveNodes,
        log_QWV: Tensor,
        dot_QV: Tensor | None,
        layout: CacheLayout,
        plan: Plan,
        given: Potentials | None = None,
    ) -> LiveNodes:
        """Return the best children of the live nodes."""
        shape = self.shape
        if self.all_live(level):
            found = all_children(self.trie, len(log_QWV), level)
        elif shape.children[level] == shape.live[level]:
            found = only_children(self.trie, beams, level)
        else:
            found = children(self.trie, beams, level, shape.children[level])
        path_QC = beams.path_QW.gather(1, found.owner_QC) + self._score(level, found, log_QWV, dot_QV)
        if self.added is not None:
            path_QC = path_QC + self.added.edge(given, level, found.lo_QC)
        if found.used_QC is not None:
            path_QC = path_QC.masked_fill(~found.used_QC, -torch.inf)
        kept, path_QW, place_QW = narrow(found, path_QC, shape.live[level + 1])
        past_QWS = beams.line_QWS.gather(1, kept.owner_QC[..., None].expand(-1, -1, level + 1))
        own_QW = layout.rows(level + 1, place_QW if level < plan.merged else None, path_QW.shape[1])
        line_QWS = torch.cat([past_QWS, own_QW[..., None]], 2)
        return LiveNodes(kept.lo_QC, kept.hi_QC, path_QW, kept.token_QC + self.token_offset[level], line_QWS)

    def unfold(self, beams: LiveNodes, dot_QV: Tensor | None, plan: Plan, given: Potentials | None = None) -> Tail:
        """Return the leaves under the live nodes with all that their pass reads."""
        depth = plan.depth
        found, owner_QC = leaves(self.trie, beams, plan.cap)
        code_QCL = self.trie.codes(found.row_QC)
        token_QCT = code_QCL[..., depth - 1 : -1] + self.token_offset_L[depth - 1 : -1]
        past_QCd = beams.line_QWS[..., :depth].gather(1, owner_QC[..., None].expand(-1, -1, depth))
        gain_QCT = None
        if self.geometry is not None and dot_QV is not None:
            gain_QCT = self.geometry.tail(dot_QV, depth, code_QCL[..., depth:], found.row_QC)
        return self.more(Tail(found, token_QCT, code_QCL[..., depth:], past_QCd, gain_QCT), plan, given)

    def more(self, tail: Tail, plan: Plan, given: Potentials | None) -> Tail:
        """Return a tail with what look-ahead and prior add."""
        if self.added is None:
            return tail
        gain_QCT = self.added.tail(given, tail.leaves, plan.depth, self.pruning(plan.depth))
        return tail._replace(gain_QCT=gain_QCT if tail.gain_QCT is None else gain_QCT + tail.gain_QCT)

    def settle(self, found: BeamLeaves, step_QCT: Tensor, plan: Plan, k: int) -> Tensor:
        """Replay the pruning over scored leaves and return the k best rows, packed (Q, F)."""
        score_QC = replay(self.trie, found, step_QCT, plan.depth, self.beam, self.pruning(plan.depth))
        return pack(*ranked(self.trie, found.row_QC, found.end_QC, score_QC, k), found.over_Q)

    def finish(self, beams: LiveNodes, k: int) -> Tensor:
        """Return the k best rows of beams that were walked to the end, packed (Q, F)."""
        return pack(*ranked(self.trie, beams.lo_QW, beams.hi_QW, beams.path_QW, k), None)

    def all_live(self, level: int) -> bool:
        """Return whether every node of the trie at this depth is live."""
        return self.shape.nodes[level] <= self.shape.live[level]

    def pruning(self, depth: int) -> list[int]:
        """Return the levels from `depth` on at which a beam can have more children than it has room for."""
        return [level for level in range(depth, self.shape.levels) if self.shape.children[level] > self.beam]

    def _score(self, level: int, found: Candidates, log_QWV: Tensor, dot_QV: Tensor | None) -> Tensor:
        """Return what each candidate adds to its path (Q, C)."""
        step_QC = log_QWV.flatten(1).gather(1, found.owner_QC * log_QWV.shape[2] + found.token_QC)
        if self.geometry is not None and dot_QV is not None:
            step_QC = self.geometry.add(step_QC, dot_QV, level, found.token_QC, found.lo_QC)
        return step_QC
