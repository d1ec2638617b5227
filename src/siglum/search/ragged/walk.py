"""One batch of queries on its way down the trie: level by level at first, then all leaves that are left at once.

Every query leaves the walk on its own schedule, as soon as its live prefixes own few leaves.
Shapes: R live rows (prefixes of all queries), C candidates, P paths, T levels, Q queries, D numbers a vector.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from siglum.generate.decoder import START
from siglum.index import Allowed, Children, Index
from siglum.search.beam import Beams, best_per_query
from siglum.search.lookahead import Potential
from siglum.search.prior import PriorTable
from siglum.search.query import EncodedQuery
from siglum.search.ragged.cache import Cache, as_rows
from siglum.search.ragged.geometry import Geometry, pairwise
from siglum.search.ragged.live import Live, Position
from siglum.search.ragged.network import Network
from siglum.search.ragged.tail import PathPlan, Paths, replay
from siglum.types import SiglumError

AHEAD = 4
"""Children of the empty prefix that are run together with it."""

TAIL_ROWS = 2000
"""Positions run together at the end; more would only take memory."""

SLACK = 1.05
"""How many times the positions of a search level by level all leaves at once may take: larger products are worth it."""

SPARE = 8
"""Positions of a query that cost about as much as one more pass, which reads all weights again."""


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
        potential: Potential | None = None,
        prior: tuple[float, PriorTable] | None = None,
    ) -> None:
        """Take what to search with; `budget` is the most leaves of a query that are scored at once, None what pays.

        With a `potential`, which is one of the batch, prefixes are kept for the best leaf below them; `prior` is
        the weight of what the decoder says without a query, and what is known of that.
        """
        self.network, self.geometry, self.index, self.beam = network, geometry, index, beam
        self.omega, self.budget, self.renormalise, self.allowed = omega, budget, renormalise, allowed
        self.potential, self.prior = potential, 0.0 if prior is None else prior[0]
        self.known_prior = None if prior is None else prior[1]
        self.cache = Cache(network)
        self.ahead: Tensor | None = None
        """Hidden states of the live prefixes, where they have been run with the step before."""

    @torch.no_grad()
    def run(self, query: EncodedQuery) -> Beams:
        """Return the surviving leaves of every query."""
        live = self._begin(query)
        found = [live.part(np.zeros(0, np.int64)).beams]
        tails: list[tuple[Live, Paths]] = []
        for level in range(self.index.levels):
            if self.ahead is None:
                live = self._collapse(live, level, tails)
            if not len(live.beams.query):
                break
            live = self._step(live, level)
        else:
            found.append(live.beams._replace(score=self._rank(live.beams.score, live.beams)))
        found += [self._finish(*tail) for tail in tails]
        joined = Beams(*(np.concatenate(columns) for columns in zip(*found, strict=True)))
        order = np.lexsort((joined.lo, joined.query))
        return Beams(*(column[order] for column in joined))

    @torch.no_grad()
    def rescore(self, query: EncodedQuery, leaves: Beams) -> Beams:
        """Return these leaves with the score of a search in place of their own, in one pass."""
        live = self._begin(query)
        paths = Paths(0, leaves.query, leaves.query, self.index.codes(leaves.lo), leaves.lo, leaves.hi)
        return self._finish(live, paths) if len(paths) else leaves

    def _begin(self, query: EncodedQuery) -> Live:
        """Encode the queries and return their empty prefixes."""
        num, device, states = len(query), query.device, query.states
        self.device, self.queries = device, num
        unknown = self.known_prior is not None and not self.known_prior.complete
        null_1D = states.new_zeros(int(unknown), states.shape[1])
        self.memory = self.network.read(EncodedQuery(torch.cat([states, null_1D])) if len(null_1D) else query)
        live = self._roots(np.arange(num), states.new_zeros(num, 0) if self.geometry is None else query.vector.float())
        if len(null_1D):
            live.null, live.null_R = self._roots(np.array([num]), null_1D[:, :0]), np.zeros(num, np.int64)
        return live

    def _roots(self, query: np.ndarray, residual_QD: Tensor) -> Live:
        """Return the empty prefixes of these queries."""
        lo, hi = (np.repeat(end, len(query)) for end in self.index.root)
        return Live(Beams(query, lo, hi, np.zeros(len(query))), residual_QD, np.zeros(len(query), np.int64), [])

    def _rank(self, score: np.ndarray, nodes: Beams) -> np.ndarray:
        """Return what prefixes are kept for, given the scores of their paths."""
        if self.potential is None:
            return score
        rank: np.ndarray = score + self.potential.best(nodes.query, nodes.lo, nodes.hi)
        return rank

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
        if self.budget is not None:
            return np.bincount(paths.query, minlength=self.queries) <= self.budget
        shared_P, runs_P = paths.shared(), paths.positions(branching_only=self.renormalise)
        whole_Q = np.bincount(paths.query, runs_P, self.queries)
        if self.renormalise:  # what is left to run is little, and most of it below prefixes that pruning takes away
            head_P = (shared_P < paths.level) & (runs_P > 0)
            return whole_Q <= np.bincount(paths.query[head_P], minlength=self.queries) + SPARE
        pruned_Q = np.zeros(self.queries, np.int64)
        for level in range(paths.level, self.index.levels):
            prefixes_Q = np.bincount(paths.query[shared_P < level], minlength=self.queries)
            pruned_Q += np.minimum(prefixes_Q, self.beam)
        return whole_Q <= SLACK * pruned_Q

    def _step(self, live: Live, level: int) -> Live:
        """Score all children of the live prefixes and keep each query's best."""
        beams = live.beams
        kids = self.index.children(beams.lo, beams.hi, level, self.allowed)
        rows = self._unfinished(beams, kids) if self.renormalise and self.ahead is None else np.arange(len(beams.query))
        slot = np.zeros(len(beams.query), np.int64)
        slot[rows] = np.arange(len(rows))
        if self.ahead is not None:
            hidden_RM, self.ahead = self.ahead, None
        elif level == 0 and self.index.levels > 1 and 0 < len(kids.token) <= min(AHEAD, self.beam) * self.queries:
            hidden_RM, self.ahead = self._open(live, kids, slot)
        else:
            hidden_RM = self._run([live.position(rows, self.network.token_offset_L[level - 1])], keep=True)[0]
        gained = self._child_scores(hidden_RM, slot, kids, level, live.null_R)
        parent, token = as_rows(kids.parent, self.device), as_rows(kids.token, self.device)
        if self.geometry is not None:
            gain_P = self.geometry.gain(live.residual_RD, level, parent, token)
            gained = gained + self.omega * gain_P.double().cpu().numpy()
        query, score = beams.query[kids.parent], beams.score[kids.parent] + gained
        rank = self._rank(score, Beams(query, kids.lo, kids.hi, score))
        _check(rank)
        keep = best_per_query(query, rank, self.beam, self.queries)
        chosen = as_rows(keep, self.device)
        residual_RD = live.residual_RD.index_select(0, parent[chosen])
        if self.geometry is not None:
            residual_RD = self.geometry.subtract(residual_RD, level, token[chosen])
        return live.grown(kids, keep, slot, score[keep], residual_RD)

    def _unfinished(self, beams: Beams, kids: Children) -> np.ndarray:
        """Return the rows with more than one leaf below them; what follows the others is forced."""
        count = np.bincount(kids.parent, minlength=len(beams.query))
        # Only of a lone child with several items is it not known whether these are one leaf.
        unsure = np.flatnonzero((count == 1) & (beams.hi - beams.lo > 1))
        differ = (self.index.codes(beams.lo[unsure]) != self.index.codes(beams.hi[unsure] - 1)).any(1)
        count[unsure[differ]] = 2
        return np.flatnonzero(count > 1)

    def _open(self, live: Live, kids: Children, slot: np.ndarray) -> list[Tensor]:
        """Run the empty prefixes and their few children in one pass and return the hidden states of both."""
        every, none = np.arange(len(kids.parent)), live.residual_RD[:0]
        first = live.grown(kids, every, slot, np.zeros(len(every)), none)
        return self._run(
            [live.position(np.arange(self.queries), 0), first.position(every, self.network.token_offset_L[0])],
            keep=True,
        )

    def _run(self, positions: list[Position], *, keep: bool) -> list[Tensor]:
        """Run prefixes and longer ones that go on from them in one pass; `keep` adds them to the cache."""
        query = np.concatenate([position.query for position in positions])
        order = np.argsort(query, kind="stable")
        to, back = as_rows(order, self.device), as_rows(np.argsort(order), self.device)
        above = [[as_rows(rows, self.device) for rows in position.above] for position in positions]
        sizes = [len(position.query) for position in positions]

        def attend(layer: int, qkv_RI: Tensor) -> Tensor:
            tables = self.cache.tables[layer][: len(above[0])]
            pieces = qkv_RI.index_select(0, back).split(sizes) if len(sizes) > 1 else [qkv_RI]
            read = [self.cache.step(tables, *pair) for pair in zip(pieces, above, strict=True)]
            if keep:
                self.cache.tables[layer] = tables
            return torch.cat(read).index_select(0, to) if len(sizes) > 1 else read[0]

        tokens = np.concatenate([position.tokens for position in positions])[order]
        hidden_RM = self.network.run(
            as_rows(tokens, self.device), as_rows(query[order], self.device), self.memory, attend
        )
        return list(hidden_RM.index_select(0, back).split(sizes))

    def _child_scores(
        self, hidden_RM: Tensor, slot: np.ndarray, kids: Children, level: int, null_R: np.ndarray | None
    ) -> np.ndarray:
        """Return the log-probabilities of the candidates, less those without a query, float64 (C,)."""
        if not self.renormalise:
            rows = [slot] if null_R is None else [slot, len(slot) + null_R]
            row = as_rows(np.concatenate([row_R[kids.parent] for row_R in rows]), self.device)
            token = as_rows(np.tile(kids.token, len(rows)), self.device)
            log_p, *null = self._log_p(hidden_RM, row, token, level).double().cpu().numpy().reshape(len(rows), -1)
            if self.known_prior is None:
                return log_p
            return log_p - self.prior * (null[0] if null else self.known_prior.log_p_NL[kids.lo, level])
        count = np.bincount(kids.parent, minlength=len(slot))
        several = np.flatnonzero(count[kids.parent] > 1)
        parent = kids.parent[several]
        log_p = np.zeros(len(kids.parent))
        log_p[several] = self._among(hidden_RM, slot[parent], kids.token[several], level, parent)
        return log_p

    def _log_p(self, hidden_RM: Tensor, row_C: Tensor, token_C: Tensor, level: int) -> Tensor:
        """Return log-probabilities among all codes of a level (C,)."""
        return self._logit(hidden_RM, row_C, token_C, level) - self.network.log_total(hidden_RM, level)[row_C]

    def _logit(self, hidden_RM: Tensor, row_C: Tensor, token_C: Tensor, level: int) -> Tensor:
        """Return logits of single codes in full precision, whatever that of the network (C,)."""
        offset = self.network.token_offset_L[level]
        return pairwise(hidden_RM, self.network.output_TM[offset : offset + self.network.sizes[level]], row_C, token_C)

    def _among(self, hidden: Tensor, row: np.ndarray, token: np.ndarray, level: int, group: np.ndarray) -> np.ndarray:
        """Return log-probabilities among the candidates of each group, which come together, float64 (C,)."""
        if not len(row):
            return np.zeros(0)
        logit = self._logit(hidden, as_rows(row, self.device), as_rows(token, self.device), level)
        logit_C = logit.double().cpu().numpy()
        starts = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
        total: np.ndarray = np.logaddexp.reduceat(logit_C, starts)
        log_p: np.ndarray = logit_C - np.repeat(total, np.diff(np.append(starts, len(group))))
        return log_p

    def _finish(self, live: Live, paths: Paths) -> Beams:
        """Score the rest of the paths, a few queries at a time, and prune as a beam search would have."""
        log_p_PT = self._path_scores(live, paths)
        if self.known_prior is not None:
            log_p_PT -= self.prior * self._prior_scores(self.known_prior, live, paths)
        base = live.beams.score[paths.parent]
        codes_PT = as_rows(paths.codes_PL[:, paths.level :], self.device)
        residual_PD = live.residual_RD.index_select(0, as_rows(paths.parent, self.device))
        crowded = np.bincount(paths.query, minlength=self.queries).max() > self.beam
        keep = np.ones(len(paths), bool)
        if crowded:
            # Beyond the last branch nothing is pruned.
            depth = int(paths.last_branch().max()) + 1 - paths.level
            score_PT = log_p_PT[:, :depth]
            if self.geometry is not None:
                near_PT = self.geometry.gains(residual_PD, codes_PT[:, :depth], paths.level)
                score_PT = score_PT + self.omega * near_PT.double().cpu().numpy()
            score_PT = base[:, None] + score_PT.cumsum(1)
            if self.potential is not None:
                score_PT += paths.best_below(self.potential.gain_QN[paths.query, paths.lo], depth)
            _check(score_PT)
            keep = replay(paths, score_PT, self.beam, self.queries)
        score = base + log_p_PT.sum(1)
        if self.geometry is not None:
            near_P = self.geometry.total(residual_PD, codes_PT, paths.level)
            score += self.omega * near_P.double().cpu().numpy()
        found = Beams(paths.query, paths.lo, paths.hi, score)
        score = self._rank(score, found)
        _check(score)
        return Beams(*(column[keep] for column in found._replace(score=score)))

    def _prior_scores(self, table: PriorTable, live: Live, paths: Paths) -> np.ndarray:
        """Return what `_path_scores` says without a query, of each leaf once and for all (P, T)."""
        if live.null is not None and live.null_R is not None:
            heads = np.unique(paths.lo, return_index=True)[1]
            own = paths.part(heads[~table.known(paths.lo[heads], paths.level)])
            own.query, own.parent = np.full(len(own), self.queries), live.null_R[own.parent]
            table.put(own.lo, paths.level, self._path_scores(live.null, own))
        return table.log_p_NL[paths.lo, paths.level :]

    def _path_scores(self, live: Live, paths: Paths) -> np.ndarray:
        """Return the log-probability of every code from `paths.level` on, a bounded number at a time (P, T)."""
        log_p_PT = np.zeros((len(paths), self.index.levels - paths.level))
        ends_P = np.cumsum(paths.positions(branching_only=self.renormalise))
        running = np.arange(len(paths))
        if self.renormalise:
            # Prefixes with a single leaf have nothing to run where forced codes are free; siblings are run together.
            running = np.flatnonzero(paths.last_branch() >= paths.level)
            ends_P = ends_P[np.searchsorted(paths.query, paths.query, "right") - 1]
        for part in np.split(running, 1 + np.flatnonzero(np.diff(ends_P[running] // TAIL_ROWS))):
            if len(part):
                log_p_PT[part] = self._teacher_forced(live, paths.part(part))
        return log_p_PT

    def _teacher_forced(self, live: Live, paths: Paths) -> np.ndarray:
        """Return the log-probability of every code from `paths.level` on, by one teacher-forced pass (P, T)."""
        plan = PathPlan.of(paths, branching_only=self.renormalise)
        log_p_PT = np.zeros((len(paths), self.index.levels - paths.level))
        before_U = plan.level_U - 1
        code_U = paths.codes_PL[plan.path_U, before_U]
        tokens = np.where(before_U < 0, START, self.network.token_offset_L[before_U] + code_U)
        if self.renormalise:
            log_p_PT[:, : plan.place_PT.shape[1]] = self._branch_scores(
                self._sparse(live, paths, plan, tokens), paths, plan
            )
            return log_p_PT
        above = [as_rows(column[paths.parent], self.device) for column in live.above]
        place_PT = as_rows(plan.place_PT, self.device)
        taken_U = as_rows(plan.path_U * plan.place_PT.shape[1] + plan.level_U - paths.level, self.device)
        hidden_UM = self.network.run(
            as_rows(tokens, self.device),
            as_rows(paths.query[plan.path_U], self.device),
            self.memory,
            lambda layer, qkv: self.cache.rest(layer, qkv, above, place_PT, taken_U),
        )
        return self._level_scores(hidden_UM, paths, plan)

    def _sparse(self, live: Live, paths: Paths, plan: PathPlan, token_U: np.ndarray) -> Tensor:
        """Run the few positions of a plan, of which hardly any path has the same number (U, M)."""
        order = np.argsort(plan.level_U, kind="stable")
        bounds = np.flatnonzero(np.diff(plan.level_U[order])) + 1
        number_U, positions = np.empty_like(order), []
        for column, rows in enumerate(np.split(order, bounds)):
            number_U[rows] = np.arange(len(rows))
            path = plan.path_U[rows]
            above = [kept[paths.parent[path]] for kept in live.above]
            above += [number_U[plan.place_PT[path, earlier]] for earlier in range(column)]
            positions.append(Position(token_U[rows], paths.query[path], above))
        return torch.cat(self._run(positions, keep=False)).index_select(0, as_rows(np.argsort(order), self.device))

    def _level_scores(self, hidden_UM: Tensor, paths: Paths, plan: PathPlan) -> np.ndarray:
        order = np.argsort(plan.level_U, kind="stable")
        number = np.empty_like(order)
        number[order] = np.arange(len(order))
        ends = np.searchsorted(plan.level_U[order], np.arange(paths.level, self.index.levels + 1))
        hidden_UM = hidden_UM.index_select(0, as_rows(order, self.device))
        columns = []
        for column, (start, end) in enumerate(zip(ends, ends[1:], strict=False)):
            level = paths.level + column
            row = as_rows(number[plan.place_PT[:, column]] - start, self.device)
            token = as_rows(paths.codes_PL[:, level], self.device)
            columns.append(self._log_p(hidden_UM[start:end], row, token, level))
        return torch.stack(columns, 1).double().cpu().numpy()

    def _branch_scores(self, hidden_UM: Tensor, paths: Paths, plan: PathPlan) -> np.ndarray:
        shared_P, (count, length) = paths.shared(), plan.place_PT.shape
        log_p_PT = np.zeros((count, length))
        for column in range(length):
            level = paths.level + column
            heads = np.flatnonzero(plan.wanted_PT[:, column] & (shared_P <= level))
            row, token = plan.place_PT[heads, column], paths.codes_PL[heads, level]
            log_p_PT[heads, column] = self._among(hidden_UM, row, token, level, row)
            # Paths that go on together after this code have the score of the first of them.
            first_P = np.maximum.accumulate(np.where(shared_P <= level, np.arange(len(paths)), 0))
            log_p_PT[:, column] = log_p_PT[first_P, column]
        return log_p_PT


def _check(score: np.ndarray) -> None:
    if np.isnan(score).any():
        raise SiglumError("a score is not a number: the query vectors or the model's weights contain NaN.")
