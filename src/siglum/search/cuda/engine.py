"""A whole search on one device: from query vectors to ranked rows without a word to the host.

Nothing here looks at a number on the device: shapes come from the trie, the beam and the plan, so that the search can
be captured once and replayed.
Shapes: Q queries, D query width, W live nodes, C candidates or leaves, T levels of the tail, P cache slots, K results.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from siglum.search.cuda.passes import Passes
from siglum.search.cuda.plan import Plan, Shape
from siglum.search.cuda.step import (
    Beams,
    Candidates,
    Geometry,
    all_children,
    children,
    leaf_bounds,
    leaves,
    narrow,
    only_children,
    ranked,
    replay,
)
from siglum.search.cuda.trie import DeviceTrie
from siglum.search.cuda.weights import Cross

LEARN_BATCH = 64
"""Queries walked at once when plans are learnt."""
TAIL_LEAVES = 32_768
"""The most leaves in one pass: fused attention numbers its batch with 16 bits."""


class Found(NamedTuple):
    """Results of a search in one tensor, so that they reach the host in one copy."""

    packed_QF: Tensor
    """K sorted rows a query (-1 where there are no more), their K scores (-inf), and whether it was over; float64."""

    @classmethod
    def of(cls, row_QK: Tensor, score_QK: Tensor, over_Q: Tensor) -> Found:
        """Pack rows, scores and whether the plan had too little room for a query; those results are not to be used."""
        return cls(torch.cat([row_QK.double(), score_QK, over_Q[:, None].double()], 1))

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


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the cache keeps each position, and what the first pass reads: the nodes of depth 0 to `merged`."""

    start: list[int]
    """First slot of every position; the last entry is the number of slots."""
    token_T: Tensor
    """Rows of the embedding table that the first pass reads, int64."""
    sight: Tensor
    """Which slots each of them sees, as `Passes.sight` has it."""


class Engine:
    """Trie, decoder and geometry of one search; `tokens` bounds how many the tail reads at once."""

    def __init__(
        self, trie: DeviceTrie, passes: Passes, geometry: Geometry | None, beam: int, tokens: int = 65_536
    ) -> None:
        """Hold the parts and count what fixes the shapes."""
        self.trie, self.passes, self.geometry, self.beam, self.tokens = trie, passes, geometry, beam, tokens
        self.shape = Shape.of(trie, beam, fused=passes.fused)
        self.plans: dict[int, Plan] = {}
        """Plans that were chosen, by batch size."""
        self._first_L = torch.tensor(passes.weights.first, device=trie.device)
        self._layouts: dict[tuple[int, int], Layout] = {}

    @torch.no_grad()
    def find(self, query_QD: Tensor, plan: Plan, k: int, trace: list[Beams] | None = None) -> Found:
        """Return the k best rows of every query; `trace` collects the live nodes after every level walked."""
        weights, shape, layout = self.passes.weights, self.shape, self.layout(plan)
        queries, start = len(query_QD), layout.start
        cross = weights.cross(query_QD)
        dot_QV = None if self.geometry is None else self.geometry.begin(query_QD)
        kv = self.passes.cache(queries, start[-1])
        tree_QTM = self.passes.onto(kv, 0, layout.token_T.expand(queries, -1), layout.sight, cross)
        beams = self._root(queries)
        for level in range(plan.depth):
            if level > plan.merged:
                hidden_QWM = self._walk(kv, level, beams, layout, cross)
            elif shape.nodes[level] <= shape.live[level]:
                hidden_QWM = tree_QTM[:, start[level] : start[level] + shape.nodes[level]]
            else:
                hidden_QWM = tree_QTM.gather(1, beams.own_QW[..., None].expand(-1, -1, weights.width))
            log_QWV = self.passes.log_probabilities(hidden_QWM, level)
            beams = self._step(level, beams, log_QWV, dot_QV, layout, plan)
            if trace is not None:
                trace.append(beams)
        if plan.depth < shape.levels:
            return self._tail(kv, beams, dot_QV, cross, plan, k)
        over_Q = torch.zeros(queries, dtype=torch.bool, device=kv.device)
        return Found.of(*ranked(self.trie, beams.lo_QW, beams.hi_QW, beams.path_QW, k), over_Q)

    def learn(self, query_QD: Tensor) -> None:
        """Choose plans by how many leaves the beams of these queries own; results stay as they are."""
        trace: list[Beams] = []
        for part in query_QD.split(LEARN_BATCH):
            self.find(part, self.shape.walk(len(part)), 1, trace)
        usual = list(self.shape.usual)
        for number, beams in enumerate(trace):
            depth = number % self.shape.levels + 1
            owned = int(leaf_bounds(self.trie, beams)[1].sum(1).max())
            usual[depth] = owned if number == depth - 1 else max(usual[depth], owned)
        self.shape = replace(self.shape, usual=usual)
        self.plans.clear()

    def layout(self, plan: Plan) -> Layout:
        """Return the slots of a plan, made when first asked for."""
        key = (plan.depth, plan.merged)
        if key not in self._layouts:
            self._layouts[key] = self._lay_out(plan)
        return self._layouts[key]

    def _lay_out(self, plan: Plan) -> Layout:
        trie, merged, counts = self.trie, plan.merged, self.shape.nodes[: plan.merged + 1]
        start = [0]
        for depth in range(plan.depth):
            start.append(start[-1] + (self.shape.nodes if depth <= merged else self.shape.live)[depth])
        slot_T = torch.arange(sum(counts), device=trie.device)
        # A node sees its ancestors and itself; lines end with the node and begin with as many -1 as it is high up.
        tokens, lines = [slot_T.new_zeros(1)], [F.pad(slot_T[:1, None], (merged, 0), value=-1)]
        for depth in range(1, merged + 1):
            own = trie.generation(depth)
            tokens.append(own.token_C + self.passes.weights.first[depth - 1])
            slot = start[depth] + torch.arange(counts[depth], device=trie.device)
            lines.append(torch.cat([lines[-1][own.parent_C, 1:], slot[:, None]], 1))
        return Layout(start, torch.cat(tokens), self.passes.sight(torch.cat(lines)[None], len(slot_T)))

    def _root(self, queries: int) -> Beams:
        zero = torch.zeros(queries, 1, dtype=torch.int64, device=self.trie.device)
        past = zero.new_zeros(queries, 1, 0)
        return Beams(zero.int(), zero.int() + len(self.trie.rows), zero.double(), zero, past, zero)

    def _walk(self, kv: Tensor, level: int, beams: Beams, layout: Layout, cross: Cross) -> Tensor:
        """Read the last codes of the live nodes; return normed hidden states (Q, W, M)."""
        at, width = layout.start[level], beams.lo_QW.shape[1]
        slot_QWS = torch.cat([beams.past_QWS, beams.own_QW[..., None]], 2)
        sight = self.passes.sight(slot_QWS, at + width)
        return self.passes.onto(kv, at, beams.token_QW + self.passes.weights.first[level - 1], sight, cross)

    def _step(
        self, level: int, beams: Beams, log_QWV: Tensor, dot_QV: Tensor | None, layout: Layout, plan: Plan
    ) -> Beams:
        """Return the best children of the live nodes."""
        shape, queries = self.shape, len(log_QWV)
        if shape.nodes[level] <= shape.live[level]:
            found = all_children(self.trie, queries, level)
        elif shape.children[level] == shape.live[level]:
            found = only_children(self.trie, beams, level)
        else:
            found = children(self.trie, beams, level, shape.children[level])
        path_QC = beams.path_QW.gather(1, found.owner_QC) + self._score(level, found, log_QWV, dot_QV)
        if found.used_QC is not None:
            path_QC = path_QC.masked_fill(~found.used_QC, -torch.inf)
        kept, path_QW, place_QW = narrow(found, path_QC, shape.live[level + 1])
        past_QWS = torch.cat([beams.past_QWS, beams.own_QW[..., None]], 2)
        past_QWS = past_QWS.gather(1, kept.owner_QC[..., None].expand(-1, -1, level + 1))
        if place_QW is None or level + 1 > plan.merged:
            place_QW = torch.arange(path_QW.shape[1], device=path_QW.device).expand(path_QW.shape)
        own_QW = place_QW + layout.start[min(level + 1, plan.depth)]
        return Beams(kept.lo_QC, kept.hi_QC, path_QW, kept.token_QC, past_QWS, own_QW)

    def _score(self, level: int, found: Candidates, log_QWV: Tensor, dot_QV: Tensor | None) -> Tensor:
        """Return what each candidate adds to its path (Q, C)."""
        step_QC = log_QWV.flatten(1).gather(1, found.owner_QC * log_QWV.shape[2] + found.token_QC)
        if self.geometry is not None and dot_QV is not None:
            step_QC = self.geometry.add(step_QC, dot_QV, level, found.token_QC, found.lo_QC)
        return step_QC

    def _tail(self, kv: Tensor, beams: Beams, dot_QV: Tensor | None, cross: Cross, plan: Plan, k: int) -> Found:
        """Score all leaf paths of the live nodes in one pass and replay the pruning."""
        depth, found = plan.depth, leaves(self.trie, beams, plan.cap)
        code_QCL = self.trie.codes(found.row_QC)
        token_QCT = code_QCL[..., depth - 1 : -1] + self._first_L[depth - 1 : -1]
        past_QCd = beams.past_QWS.gather(1, found.owner_QC[..., None].expand(-1, -1, depth))
        code_QCT = code_QCL[..., depth:]
        per = max(1, min(self.tokens // max(1, token_QCT[0].numel()), TAIL_LEAVES // plan.cap))
        parts = [
            self._speak(kv, past_QCd[at : at + per], token_QCT[at : at + per], code_QCT[at : at + per], cross, at)
            for at in range(0, len(code_QCL), per)
        ]
        step_QCT = torch.cat(parts)
        if self.geometry is not None and dot_QV is not None:
            step_QCT = step_QCT + self.geometry.tail(dot_QV, depth, code_QCT, found.row_QC)
        # A level at which no beam can have more children than it has room for prunes nothing.
        pruning = [level for level in range(depth, self.shape.levels) if self.shape.children[level] > self.beam]
        score_QC = replay(self.trie, found, beams.path_QW, step_QCT, depth, self.beam, pruning)
        return Found.of(*ranked(self.trie, found.row_QC, found.end_QC, score_QC, k), found.over_Q)

    def _speak(
        self, kv: Tensor, past_QCd: Tensor, token_QCT: Tensor, code_QCT: Tensor, cross: Cross, at: int
    ) -> Tensor:
        """Return the log-probabilities of the leaves' codes (Q, C, T) for the queries from `at` on."""
        part, depth = slice(at, at + len(token_QCT)), past_QCd.shape[2]
        own: Cross = [kept[part] if isinstance(kept, Tensor) else (kept[0][part], kept[1][part]) for kept in cross]
        hidden_QCTM = self.passes.tail(kv, past_QCd, token_QCT, own, at)
        log_RT = self.passes.log_probability(hidden_QCTM.flatten(0, 1), code_QCT.flatten(0, 1), depth)
        return log_RT.reshape(code_QCT.shape)
