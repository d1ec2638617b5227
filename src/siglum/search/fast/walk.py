"""One batch of queries on its way down the trie: level by level at first, then all leaves that are left at once.

Every query leaves the walk on its own schedule, as soon as its live prefixes own few leaves.
Shapes: R live rows (prefixes of all queries), C candidates, P paths, T levels, Q queries, D numbers a vector.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from siglum.generate.decoder import START
from siglum.index import Allowed, Children, Index
from siglum.search.beam import Beams, best_per_query
from siglum.search.fast.cache import Cache, as_rows
from siglum.search.fast.geometry import Geometry, pairwise
from siglum.search.fast.network import Network
from siglum.search.fast.tail import Paths, Plan, replay
from siglum.types import SiglumError

TAIL_ROWS = 1000
"""Positions run together at the end; more would only take memory."""

SLACK = 1.05
"""How many times the positions of a search level by level all leaves at once may take: larger products are worth it."""


@dataclass(slots=True)
class Live:
    """Live prefixes of all queries, by query and then by code order."""

    beams: Beams
    residual_RD: Tensor
    """q - x̂ of every prefix."""
    token_R: np.ndarray
    """Last code."""
    above: list[np.ndarray]
    """Row of every shorter prefix in the cache's table of that position."""

    def part(self, keep: np.ndarray) -> Live:
        """Return some of the rows."""
        beams = Beams(*(column[keep] for column in self.beams))
        residual_RD = self.residual_RD.index_select(0, as_rows(keep, self.residual_RD.device))
        return Live(beams, residual_RD, self.token_R[keep], [rows[keep] for rows in self.above])


class Walk:
    """The search of one batch; `run` returns the surviving leaves."""

    def __init__(
        self,
        network: Network,
        geometry: Geometry | None,
        index: Index,
        beam: int,
        *,
        omega: float,
        budget: int | None,
        renormalise: bool,
        allowed: Allowed | None,
    ) -> None:
        """Take what to search with; `budget` is the most leaves of a query that are scored at once, None what pays."""
        self.network, self.geometry, self.index, self.beam = network, geometry, index, beam
        self.omega, self.budget, self.renormalise, self.allowed = omega, budget, renormalise, allowed
        self.cache = Cache(network)

    @torch.no_grad()
    def run(self, query_QD: Tensor) -> Beams:
        """Return the surviving leaves of every query."""
        live = self._begin(query_QD)
        found = [live.part(np.zeros(0, np.int64)).beams]
        tails: list[tuple[Live, Paths]] = []
        for level in range(self.index.levels):
            live = self._collapse(live, level, tails)
            if not len(live.beams.query):
                break
            live = self._step(live, level)
        else:
            found.append(live.beams)
        found += [self._finish(*tail) for tail in tails]
        joined = Beams(*(np.concatenate(columns) for columns in zip(*found, strict=True)))
        order = np.lexsort((joined.lo, joined.query))
        return Beams(*(column[order] for column in joined))

    @torch.no_grad()
    def rescore(self, query_QD: Tensor, leaves: Beams) -> Beams:
        """Return these leaves with the score of a search in place of their own, in one pass."""
        live = self._begin(query_QD)
        paths = Paths(0, leaves.query, leaves.query, self.index.codes(leaves.lo), leaves.lo, leaves.hi)
        return self._finish(live, paths) if len(paths) else leaves

    def _begin(self, query_QD: Tensor) -> Live:
        """Encode the queries and return their empty prefixes."""
        num = len(query_QD)
        self.device, self.queries, self.memory = query_QD.device, num, self.network.read(query_QD)
        lo, hi = self.index.root
        beams = Beams(np.arange(num), np.repeat(lo, num), np.repeat(hi, num), np.zeros(num))
        residual_QD = query_QD.float() if self.geometry is not None else query_QD[:, :0]
        return Live(beams, residual_QD, np.zeros(num, np.int64), [])

    def _collapse(self, live: Live, level: int, tails: list[tuple[Live, Paths]]) -> Live:
        """Take the queries with few leaves out of the walk and put them to the tails."""
        query, lo, hi, _ = live.beams
        rows = hi - lo if self.allowed is None else self.allowed.count(lo, hi).astype(np.int64)
        small = np.bincount(query, rows, self.queries) <= 4 * (self.budget or self.beam)
        chosen = np.flatnonzero(small[query])
        if not len(chosen):
            return live
        leaves = self.index.leaves(lo[chosen], hi[chosen], self.allowed)
        codes = self.index.codes(leaves.row)
        first = np.ones(len(codes), bool)
        first[1:] = (leaves.parent[1:] != leaves.parent[:-1]) | (codes[1:] != codes[:-1]).any(1)
        heads = np.flatnonzero(first)
        last = np.append(heads, len(codes))[1:] - 1
        parent = chosen[leaves.parent[heads]]
        paths = Paths(level, query[parent], parent, codes[heads], leaves.row[heads], leaves.row[last] + 1)
        done = small & self._pays(paths)
        paths = paths.part(done[paths.query])
        if len(paths):
            tails.append((live, paths))
        return live.part(np.flatnonzero(~done[query]))

    def _pays(self, paths: Paths) -> np.ndarray:
        """Return for which queries scoring all leaves at once runs hardly more positions than pruning on the way."""
        # Renormalised, what is left to run is little, and most of it below prefixes that pruning would take away.
        most = self.budget or (self.beam if self.renormalise else None)
        if most is not None:
            return np.bincount(paths.query, minlength=self.queries) <= most
        shared_P, (pruned_Q, whole_Q) = paths.shared(), np.zeros((2, self.queries), np.int64)
        for level in range(paths.level, self.index.levels):
            prefixes_Q = np.bincount(paths.query[shared_P < level], minlength=self.queries)
            pruned_Q += np.minimum(prefixes_Q, self.beam)
            whole_Q += prefixes_Q
        return whole_Q <= SLACK * pruned_Q

    def _step(self, live: Live, level: int) -> Live:
        """Score all children of the live prefixes and keep each query's best."""
        beams = live.beams
        kids = self.index.children(beams.lo, beams.hi, level, self.allowed)
        rows = self._unfinished(beams) if self.renormalise else np.arange(len(beams.query))
        slot = np.zeros(len(beams.query), np.int64)
        slot[rows] = np.arange(len(rows))
        hidden_RM = self._decode(live, rows, level)
        gained = self._spoken(hidden_RM, slot, kids, level)
        parent, token = as_rows(kids.parent, self.device), as_rows(kids.token, self.device)
        if self.geometry is not None:
            near = self.geometry.gain(live.residual_RD, level, parent, token)
            gained = gained + self.omega * near.double().cpu().numpy()
        query, score = beams.query[kids.parent], beams.score[kids.parent] + gained
        _check(score)
        keep = best_per_query(query, score, self.beam, self.queries)
        chosen = as_rows(keep, self.device)
        residual_RD = live.residual_RD.index_select(0, parent[chosen])
        if self.geometry is not None:
            residual_RD = self.geometry.subtract(residual_RD, level, token[chosen])
        above = [column[kids.parent[keep]] for column in (*live.above, slot)]
        fresh = Beams(query[keep], kids.lo[keep], kids.hi[keep], score[keep])
        return Live(fresh, residual_RD, kids.token[keep].astype(np.int64), above)

    def _unfinished(self, beams: Beams) -> np.ndarray:
        """Return the rows with more than one leaf below them; what follows the others is forced."""
        many = np.flatnonzero(beams.hi - beams.lo > 1)
        differ = (self.index.codes(beams.lo[many]) != self.index.codes(beams.hi[many] - 1)).any(1)
        unfinished: np.ndarray = many[differ]
        return unfinished

    def _decode(self, live: Live, rows: np.ndarray, level: int) -> Tensor:
        """Run one position of these rows and return their hidden states (R, M)."""
        tokens = self.network.first_L[level - 1] + live.token_R[rows] if level else np.full(len(rows), START)
        above = [as_rows(column[rows], self.device) for column in live.above]
        return self.network.run(
            as_rows(tokens, self.device),
            as_rows(live.beams.query[rows], self.device),
            self.memory,
            lambda layer, qkv: self.cache.step(layer, qkv, above),
        )

    def _spoken(self, hidden_RM: Tensor, slot: np.ndarray, kids: Children, level: int) -> np.ndarray:
        """Return the log-probabilities of the candidates, float64 (C,)."""
        if not self.renormalise:
            row, token = as_rows(slot[kids.parent], self.device), as_rows(kids.token, self.device)
            logits = self.network.output[level](hidden_RM)
            return (logits[row, token] - logits.logsumexp(-1)[row]).double().cpu().numpy()
        count = np.bincount(kids.parent, minlength=len(slot))
        several = np.flatnonzero(count[kids.parent] > 1)
        parent = kids.parent[several]
        spoken = np.zeros(len(kids.parent))
        spoken[several] = self._among(hidden_RM, slot[parent], kids.token[several], level, parent)
        return spoken

    def _among(self, hidden: Tensor, row: np.ndarray, token: np.ndarray, level: int, group: np.ndarray) -> np.ndarray:
        """Return log-probabilities among the candidates of each group, which come together, float64 (C,)."""
        if not len(row):
            return np.zeros(0)
        first = self.network.first_L[level]
        table_VM = self.network.output_TM[first : first + self.network.sizes[level]]
        logit = pairwise(hidden, table_VM, as_rows(row, self.device), as_rows(token, self.device))
        logit_C = logit.double().cpu().numpy()
        starts = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
        total: np.ndarray = np.logaddexp.reduceat(logit_C, starts)
        log_p: np.ndarray = logit_C - np.repeat(total, np.diff(np.append(starts, len(group))))
        return log_p

    def _finish(self, live: Live, paths: Paths) -> Beams:
        """Score the rest of the paths, a few queries at a time, and prune as a beam search would have."""
        length = self.index.levels - paths.level
        spoken_PT = np.zeros((len(paths), length))
        bounds = np.searchsorted(paths.query, np.arange(self.queries + 1))
        start = 0
        for query in range(self.queries):
            full = (bounds[query + 1] - bounds[start]) * length >= TAIL_ROWS
            if full or query == self.queries - 1:
                span = slice(bounds[start], bounds[query + 1])
                if span.stop > span.start:
                    spoken_PT[span] = self._speak(live, paths.part(span))
                start = query + 1
        base = live.beams.score[paths.parent]
        codes_PT = as_rows(paths.codes_PL[:, paths.level :], self.device)
        residual_PD = live.residual_RD.index_select(0, as_rows(paths.parent, self.device))
        crowded = np.bincount(paths.query, minlength=self.queries).max() > self.beam
        if crowded:
            if self.geometry is not None:
                near_PT = self.geometry.gains(residual_PD, codes_PT, paths.level)
                spoken_PT += self.omega * near_PT.double().cpu().numpy()
            score_PT = base[:, None] + spoken_PT.cumsum(1)
            _check(score_PT)
            keep = replay(paths, score_PT, self.beam, self.queries)
            return Beams(paths.query[keep], paths.lo[keep], paths.hi[keep], score_PT[keep, -1])
        score = base + spoken_PT.sum(1)
        if self.geometry is not None:
            near_P = self.geometry.total(residual_PD, codes_PT, paths.level)
            score += self.omega * near_P.double().cpu().numpy()
        _check(score)
        return Beams(paths.query, paths.lo, paths.hi, score)

    def _speak(self, live: Live, paths: Paths) -> np.ndarray:
        """Return the log-probability of every code from `paths.level` on, by one teacher-forced pass (P, T)."""
        plan = Plan.of(paths, branching_only=self.renormalise)
        spoken_PT = np.zeros((len(paths), self.index.levels - paths.level))
        if not len(plan.path_U):
            return spoken_PT
        before_U = plan.level_U - 1
        code_U = paths.codes_PL[plan.path_U, before_U]
        tokens = np.where(before_U < 0, START, self.network.first_L[before_U] + code_U)
        above = [as_rows(column[paths.parent], self.device) for column in live.above]
        place_PT = as_rows(plan.place_PT, self.device)
        taken_U = as_rows(plan.path_U * plan.place_PT.shape[1] + plan.level_U - paths.level, self.device)
        hidden_UM = self.network.run(
            as_rows(tokens, self.device),
            as_rows(paths.query[plan.path_U], self.device),
            self.memory,
            lambda layer, qkv: self.cache.rest(layer, qkv, above, place_PT, taken_U),
        )
        score = self._branch_scores if self.renormalise else self._level_scores
        spoken_PT[:, : plan.place_PT.shape[1]] = score(hidden_UM, paths, plan)
        return spoken_PT

    def _level_scores(self, hidden_UM: Tensor, paths: Paths, plan: Plan) -> np.ndarray:
        order = np.argsort(plan.level_U, kind="stable")
        number = np.empty_like(order)
        number[order] = np.arange(len(order))
        ends = np.searchsorted(plan.level_U[order], np.arange(paths.level, self.index.levels + 1))
        hidden_UM = hidden_UM.index_select(0, as_rows(order, self.device))
        columns = []
        for column, (start, end) in enumerate(zip(ends, ends[1:], strict=False)):
            level = paths.level + column
            logits = self.network.output[level](hidden_UM[start:end])
            row = as_rows(number[plan.place_PT[:, column]] - start, self.device)
            token = as_rows(paths.codes_PL[:, level], self.device)
            columns.append(logits[row, token] - logits.logsumexp(-1)[row])
        return torch.stack(columns, 1).double().cpu().numpy()

    def _branch_scores(self, hidden_UM: Tensor, paths: Paths, plan: Plan) -> np.ndarray:
        shared_P, (count, length) = paths.shared(), plan.place_PT.shape
        spoken_PT = np.zeros((count, length))
        for column in range(length):
            level = paths.level + column
            heads = np.flatnonzero(plan.wanted_PT[:, column] & (shared_P <= level))
            row, token = plan.place_PT[heads, column], paths.codes_PL[heads, level]
            spoken_PT[heads, column] = self._among(hidden_UM, row, token, level, row)
            # Paths that go on together after this code have the score of the first of them.
            first_P = np.maximum.accumulate(np.where(shared_P <= level, np.arange(len(paths)), 0))
            spoken_PT[:, column] = spoken_PT[first_P, column]
        return spoken_PT


def _check(score: np.ndarray) -> None:
    if np.isnan(score).any():
        raise SiglumError("a score is not a number: the query vectors or the model's weights contain NaN.")
