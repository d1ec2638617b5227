"""The steps between passes in kernels of our own, where the sizes allow it; they need Triton.

Shapes: Q queries, W live nodes, C leaves, V codes of a level, T levels of the tail, F numbers of a packed result.
"""

from __future__ import annotations

import torch
from torch import Tensor

from siglum.search.static.added import Potentials
from siglum.search.static.beam_ops import BeamLeaves, LiveNodes
from siglum.search.static.beam_steps import Steps, Tail
from siglum.search.static.layout import CacheLayout
from siglum.search.static.plan import Plan

BEAM = 512
"""The largest beam with kernels: every program holds a number of each live node."""
LEAVES = 512
"""The most leaves that one program prunes and ranks; plain operations do above."""


class FusedSteps(Steps):
    """What `Steps` does, in two kernels a level, one for the leaves and one to settle them."""

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
        """Return the best children of the live nodes, with where to find what is asked of them next."""
        from siglum.search.static.triton_steps import keep_best, score_children

        shape, every = self.shape, self.trie.generation(level + 1) if self.all_live(level) else None
        slots = shape.children[level]
        found = score_children(self.trie, beams, level, slots, log_QWV, self.geometry, dot_QV, every)
        if self.added is not None:
            found = found._replace(path_QC=found.path_QC + self.added.edge(given, level, found.lo_QC))
        own = (layout.base(level + 1), layout.width[level + 1], level < plan.merged)
        return keep_best(
            found, beams, shape.live[level + 1], own, self.token_offset[level], self._below(level + 1, plan)
        )

    def unfold(self, beams: LiveNodes, dot_QV: Tensor | None, plan: Plan, given: Potentials | None = None) -> Tail:
        """Return the leaves under the live nodes with all that their pass reads."""
        from siglum.search.static.triton_leaves import unfold

        tail = unfold(self.trie, beams, plan.depth, plan.cap, self.token_offset_L, self.geometry, dot_QV)
        return self.more(tail, plan, given)

    def settle(self, found: BeamLeaves, step_QCT: Tensor, plan: Plan, k: int) -> Tensor:
        """Replay the pruning over scored leaves and return the k best rows, packed (Q, F)."""
        from siglum.search.static.triton_leaves import settle

        if plan.cap > LEAVES:
            return super().settle(found, step_QCT, plan, k)
        return settle(self.trie, found, step_QCT, plan.depth, self.beam, self.pruning(plan.depth), k)

    def finish(self, beams: LiveNodes, k: int) -> Tensor:
        """Return the k best rows of beams that were walked to the end, packed (Q, F)."""
        from siglum.search.static.triton_leaves import settle

        never = torch.zeros(len(beams.lo_QW), dtype=torch.bool, device=beams.lo_QW.device)
        # Nothing is pruned here, so nothing asks which leaves begin a node.
        found = BeamLeaves(beams.path_QW, never, beams.lo_QW, beams.hi_QW, never)
        return settle(self.trie, found, None, self.shape.levels, self.beam, [], k)

    def _below(self, depth: int, plan: Plan) -> tuple[Tensor, int] | None:
        """Return the list that tells what lies below the nodes of a depth, and what to add to counts in it."""
        shape = self.shape
        if depth == plan.depth:
            return (self.trie.leaf_row_I, 0) if depth < shape.levels else None
        if self.all_live(depth) or shape.children[depth] == shape.live[depth]:
            return None
        return self.trie.branches[depth], 1
