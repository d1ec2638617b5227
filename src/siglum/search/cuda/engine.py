"""A whole search on one device: from query vectors to ranked rows without a word to the host.

Nothing here looks at a number on the device: shapes come from the trie, the beam and the plan, so that the search can
be captured once and replayed.
Shapes: Q queries, D query width, W live nodes, C candidates or leaves, T levels of the tail, K results.
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
    """Where the cache keeps each depth's tokens: first all that the first pass reads, then a block for every depth.

    In a block the tokens of one query lie together.
    """

    token_T: Tensor
    """Rows of the embedding table that the first pass reads: the nodes of depth 0 to `merged`; int64."""
    line_TS: Tensor
    """Places in the first block that each of them sees, its own last, -1 for none; int32."""
    start: list[int]
    """First place of every depth, counted for one query; the last entry is the number of places."""
    width: list[int]
    """Places a query has in the block of every depth."""
    query_Q1: Tensor
    """Numbers of the queries, int32."""

    def seen(self) -> Tensor:
        """Return the rows of the cache that the tokens of the first pass see (Q, T, S)."""
        line_1TS = self.line_TS[None]
        return torch.where(line_1TS < 0, -1, line_1TS + self.query_Q1[..., None] * len(self.token_T))

    def rows(self, depth: int, place_QW: Tensor | None, width: int) -> Tensor:
        """Return the rows of the cache of a depth's tokens, from their places among its tokens (Q, W), int32."""
        base = self.start[depth] * (len(self.query_Q1) if self.start[depth] >= len(self.token_T) else 1)
        if place_QW is None:
            place_QW = torch.arange(width, dtype=torch.int32, device=self.query_Q1.device)
        return place_QW.int() + (self.query_Q1 * self.width[depth] + base)


class Engine:
    """Trie, decoder and geometry of one search; `tokens` bounds how many the tail reads at once."""

    def __init__(
        self, trie: DeviceTrie, passes: Passes, geometry: Geometry | None, beam: int, tokens: int = 65_536
    ) -> None:
        """Hold the parts and count what fixes the shapes."""
        self.trie, self.passes, self.geometry, self.beam, self.tokens = trie, passes, geometry, beam, tokens
        self.shape = Shape.of(trie, beam)
        self.plans: dict[int, Plan] = {}
        """Plans that were chosen, by batch size."""
        self._first_L = torch.tensor(passes.weights.first, device=trie.device)
        self._layouts: dict[tuple[int, int, int], Layout] = {}

    @torch.no_grad()
    def find(self, query_QD: Tensor, plan: Plan, k: int, trace: list[Beams] | None = None) -> Found:
        """Return the k best rows of every query; `trace` collects the live nodes after every level walked."""
        weights, shape, queries = self.passes.weights, self.shape, len(query_QD)
        layout = self.layout(plan, queries)
        cross = weights.cross(query_QD)
        dot_QV = None if self.geometry is None else self.geometry.begin(query_QD)
        cache = self.passes.cache(queries * layout.start[-1])
        tree_QTM = self.passes.onto(cache, 0, layout.token_T.expand(queries, -1), layout.seen(), cross)
        beams = self._root(layout)
        for level in range(plan.depth):
            if level > plan.merged:
                hidden_QWM = self._walk(cache, level, beams, layout, cross)
            elif shape.nodes[level] <= shape.live[level]:
                at = layout.start[level]
                hidden_QWM = tree_QTM[:, at : at + shape.nodes[level]]
            else:
                hidden_QWM = tree_QTM.flatten(0, 1)[beams.own_QW]
            log_QWV = self.passes.log_probabilities(hidden_QWM, level)
            beams = self._step(level, beams, log_QWV, dot_QV, layout, plan)
            if trace is not None:
                trace.append(beams)
        if plan.depth < shape.levels:
            return self._tail(cache, beams, dot_QV, cross, plan, k)
        over_Q = torch.zeros(queries, dtype=torch.bool, device=cache.device)
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

    def layout(self, plan: Plan, queries: int) -> Layout:
        """Return the layout of a plan for so many queries, made when first asked for."""
        key = (plan.depth, plan.merged, queries)
        if key not in self._layouts:
            self._layouts[key] = self._lay_out(plan, queries)
        return self._layouts[key]

    def _lay_out(self, plan: Plan, queries: int) -> Layout:
        trie, merged, counts = self.trie, plan.merged, self.shape.nodes[: plan.merged + 1]
        # A node sees its ancestors and itself; lines end with the node and begin with as many -1 as it is high up.
        place_T = torch.arange(sum(counts), device=trie.device)
        tokens, lines, start = [place_T.new_zeros(1)], [F.pad(place_T[:1, None], (merged, 0), value=-1)], [0]
        for depth in range(1, merged + 1):
            own = trie.generation(depth)
            start.append(start[-1] + counts[depth - 1])
            tokens.append(own.token_C + self.passes.weights.first[depth - 1])
            place = place_T[start[depth] : start[depth] + counts[depth], None]
            lines.append(torch.cat([lines[-1][own.parent_C, 1:], place], 1))
        start.append(len(place_T))
        width = [len(place_T)] * (merged + 1) + self.shape.live[merged + 1 :]
        for depth in range(merged + 1, plan.depth):
            start.append(start[-1] + width[depth])
        query = torch.arange(queries, dtype=torch.int32, device=trie.device)[:, None]
        return Layout(torch.cat(tokens), torch.cat(lines).int(), start, width, query)

    def _root(self, layout: Layout) -> Beams:
        zero = torch.zeros_like(layout.query_Q1)
        past = zero[..., None][..., :0]
        return Beams(zero, zero + len(self.trie.rows), zero.double(), zero.long(), past, layout.rows(0, None, 1))

    def _walk(self, cache: Tensor, level: int, beams: Beams, layout: Layout, cross: Cross) -> Tensor:
        """Read the last codes of the live nodes; return normed hidden states (Q, W, M)."""
        token_QW = beams.token_QW + self.passes.weights.first[level - 1]
        row_QWS = torch.cat([beams.past_QWS, beams.own_QW[..., None]], 2)
        return self.passes.onto(cache, layout.start[level] * len(token_QW), token_QW, row_QWS, cross)

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
        own_QW = layout.rows(level + 1, place_QW if level < plan.merged else None, path_QW.shape[1])
        return Beams(kept.lo_QC, kept.hi_QC, path_QW, kept.token_QC, past_QWS, own_QW)

    def _score(self, level: int, found: Candidates, log_QWV: Tensor, dot_QV: Tensor | None) -> Tensor:
        """Return what each candidate adds to its path (Q, C)."""
        step_QC = log_QWV.flatten(1).gather(1, found.owner_QC * log_QWV.shape[2] + found.token_QC)
        if self.geometry is not None and dot_QV is not None:
            step_QC = self.geometry.add(step_QC, dot_QV, level, found.token_QC, found.lo_QC)
        return step_QC

    def _tail(self, cache: Tensor, beams: Beams, dot_QV: Tensor | None, cross: Cross, plan: Plan, k: int) -> Found:
        """Score all leaf paths of the live nodes in one pass and replay the pruning."""
        depth, found = plan.depth, leaves(self.trie, beams, plan.cap)
        code_QCL = self.trie.codes(found.row_QC)
        token_QCT = code_QCL[..., depth - 1 : -1] + self._first_L[depth - 1 : -1]
        past_QCd = beams.past_QWS.gather(1, found.owner_QC[..., None].expand(-1, -1, depth))
        code_QCT = code_QCL[..., depth:]
        per = max(1, min(self.tokens // max(1, token_QCT[0].numel()), TAIL_LEAVES // plan.cap))
        parts = [
            self._speak(cache, past_QCd[at : at + per], token_QCT[at : at + per], code_QCT[at : at + per], cross, at)
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
        self, cache: Tensor, past_QCd: Tensor, token_QCT: Tensor, code_QCT: Tensor, cross: Cross, at: int
    ) -> Tensor:
        """Return the log-probabilities of the leaves' codes (Q, C, T) for the queries from `at` on."""
        part, depth = slice(at, at + len(token_QCT)), past_QCd.shape[2]
        own: Cross = [kept[part] if isinstance(kept, Tensor) else (kept[0][part], kept[1][part]) for kept in cross]
        hidden_QCTM = self.passes.tail(cache, past_QCd, token_QCT, own)
        log_RT = self.passes.log_probability(hidden_QCTM.flatten(0, 1), code_QCT.flatten(0, 1), depth)
        return log_RT.reshape(code_QCT.shape)
