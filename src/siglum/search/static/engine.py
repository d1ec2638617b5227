"""A whole search on one device: from query vectors to ranked rows without reading anything back to the host.

Nothing here looks at a number on the device: shapes come from the trie, the beam and the plan, so that the search can
be captured once and replayed.
Shapes: Q queries, D query width, W live nodes, C candidates or leaves, T levels of the tail, K results.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, cast

import torch
from torch import Tensor

from siglum.search.query import EncodedQuery
from siglum.search.static.added import Added
from siglum.search.static.asked import AskedLayout
from siglum.search.static.beam_ops import GeometryTables, LiveNodes, leaf_bounds
from siglum.search.static.beam_steps import Steps, Tail
from siglum.search.static.fused import BEAM, FusedSteps
from siglum.search.static.layout import CacheLayout
from siglum.search.static.passes import Passes
from siglum.search.static.plan import Plan, Shape
from siglum.search.static.trie import DeviceTrie
from siglum.search.static.weights import Cross

LEARN_BATCH = 64
"""Queries walked at once when plans are learnt."""
TOKENS = 262_144
"""How many tokens the tail reads at once: the more, the fewer gaps between kernels."""
TAIL_LEAVES = 32_768
"""The most leaves in one pass: fused attention numbers its batch with 16 bits."""


class PackedFound(NamedTuple):
    """Results of a search in one tensor, so that they reach the host in one copy."""

    packed_QF: Tensor
    """K sorted rows a query (-1 where there are no more), their K scores (-inf), and whether it was over; float64."""

    @property
    def row_QK(self) -> Tensor:
        """Rows of the trie, best first, int32."""
        return self.packed_QF[:, : self.packed_QF.shape[1] // 2].int()

    @property
    def score_QK(self) -> Tensor:
        """Scores, float64."""
        return self.packed_QF[:, self.packed_QF.shape[1] // 2 : -1]

    @property
    def over_Q(self) -> Tensor:
        """Queries whose beam had more leaves than the plan has room for, bool."""
        return self.packed_QF[:, -1] > 0


class StaticSearch:
    """Trie, decoder and geometry of one search; `tokens` bounds how many the tail reads at once."""

    def __init__(
        self,
        trie: DeviceTrie,
        passes: Passes,
        geometry: GeometryTables | None,
        beam: int,
        tokens: int = TOKENS,
        shape: Shape | None = None,
        added: Added | None = None,
        asked: AskedLayout | None = None,
    ) -> None:
        """Hold the parts and count what fixes the shapes, unless that is known; by default vectors are asked."""
        self.added, self.asked = added, asked or AskedLayout(0, 0, 0)
        self.trie, self.passes, self.geometry, self.beam, self.tokens = trie, passes, geometry, beam, tokens
        self.shape = Shape.of(trie, beam) if shape is None else shape
        self.plans: dict[int, Plan] = {}
        """Plans that were chosen, by batch size."""
        self.steps = self._steps()
        self._side = torch.cuda.Stream(trie.device) if trie.device.type == "cuda" else None
        self._layouts: dict[tuple[int, int, int], CacheLayout] = {}

    @torch.no_grad()
    def find(self, query_QD: Tensor, plan: Plan, k: int, trace: list[LiveNodes] | None = None) -> PackedFound:
        """Return the k best rows of every query; `trace` collects the live nodes after every level walked."""
        shape, queries, asked = self.shape, len(query_QD), self.asked.unpack(query_QD)
        layout = self.layout(plan, queries)
        dot_QV = self._begin(asked)
        given = None if self.added is None else self.added.begin(asked.vector, plan.depth)
        cross = self.passes.cross(asked)
        cache = self.passes.cache(queries * layout.start[-1])
        tree_QTM = self.passes.onto(cache, 0, layout.token_QT, layout.seen_QTS, cross)
        if dot_QV is not None and self._side is not None:
            torch.cuda.current_stream().wait_stream(self._side)
        beams = layout.root
        for level in range(plan.depth):
            if level > plan.merged:
                at = layout.base(level)
                hidden_QWM = self.passes.onto(cache, at, beams.token_QW, beams.line_QWS, cross)
            elif self.steps.all_live(level):
                at = layout.start[level]
                hidden_QWM = tree_QTM[:, at : at + shape.nodes[level]]
            else:
                hidden_QWM = tree_QTM.flatten(0, 1)[beams.line_QWS[..., -1]]
            log_QWV = self.passes.log_probabilities(hidden_QWM, level)
            beams = self.steps.grow(level, beams, log_QWV, dot_QV, layout, plan, given)
            if trace is not None:
                trace.append(beams)
        if plan.depth < shape.levels:
            return self._tail(cache, self.steps.unfold(beams, dot_QV, plan, given), cross, plan, k)
        return PackedFound(self.steps.finish(beams, k))

    def learn(self, query_QD: Tensor) -> None:
        """Choose plans by how many leaves the beams of these queries own; results stay as they are."""
        trace: list[LiveNodes] = []
        for part in query_QD.split(LEARN_BATCH):
            self.find(part, self.shape.walk(len(part)), 1, trace)
        usual = list(self.shape.usual)
        for number, beams in enumerate(trace):
            depth = number % self.shape.levels + 1
            owned = int(leaf_bounds(self.trie, beams)[1].sum(1).max())
            usual[depth] = owned if number == depth - 1 else max(usual[depth], owned)
        self.shape = replace(self.shape, usual=usual)
        self.plans.clear()

    def layout(self, plan: Plan, queries: int) -> CacheLayout:
        """Return the layout of a plan for so many queries, made when first asked for."""
        key = (plan.depth, plan.merged, queries)
        if key not in self._layouts:
            token_offset = self.passes.weights.token_offset
            self._layouts[key] = CacheLayout.of(self.trie, self.shape, token_offset, plan, queries)
        return self._layouts[key]

    def _steps(self) -> Steps:
        """Return the steps between passes, in kernels of our own where asked for and the beam fits."""
        kind = FusedSteps if self.passes.fuses("steps") and self.beam <= BEAM else Steps
        return kind(self.trie, self.geometry, self.shape, self.beam, self.passes.weights.token_offset, self.added)

    def _begin(self, query: EncodedQuery) -> Tensor | None:
        """Return what geometry needs of the queries, worked out beside the first pass on a GPU."""
        if self.geometry is None or self._side is None:
            return None if self.geometry is None else self.geometry.begin(query.vector)
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            return self.geometry.begin(query.vector)

    def _tail(self, cache: Tensor, tail: Tail, cross: Cross, plan: Plan, k: int) -> PackedFound:
        """Score all leaf paths of the live nodes in one pass and replay the pruning."""
        queries, leaves, levels = tail.code_QCT.shape
        per = max(1, min(self.tokens // max(1, leaves * levels), TAIL_LEAVES // plan.cap))
        parts = [
            self._leaf_scores(cache, tail, slice(at, at + per), cross, plan.depth) for at in range(0, queries, per)
        ]
        step_QCT = parts[0] if len(parts) == 1 else torch.cat(parts)
        return PackedFound(self.steps.settle(tail.leaves, step_QCT, plan, k))

    def _leaf_scores(self, cache: Tensor, tail: Tail, part: slice, cross: Cross, depth: int) -> Tensor:
        """Return what the leaves' codes add to their paths (Q, C, T) for some of the queries."""
        own, code_QCT = cast(Cross, [kept.part(part) for kept in cross]), tail.code_QCT[part]
        gain_RT = None if tail.gain_QCT is None else tail.gain_QCT[part].flatten(0, 1)
        hidden_QCTM = self.passes.tail(cache, tail.past_QCd[part], tail.token_QCT[part], own)
        step_RT = self.passes.log_probability(hidden_QCTM.flatten(0, 1), code_QCT.flatten(0, 1), depth, gain_RT)
        return step_RT.view(code_QCT.shape)
