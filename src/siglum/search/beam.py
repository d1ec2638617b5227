"""Trie-constrained beam search over arrays, many queries at once, with any scorer.

At every level the B best prefixes of a query stay. Ties are broken by code order: of two prefixes with equal
scores the one with the smaller codes (compared from the first token) is kept and ranked first. Items that share
all codes share their score and stand in pool order, or by dense similarity where vectors are given.
Shapes: Q queries, R live rows (prefixes), C candidates, D numbers a vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from siglum.index import Index
from siglum.index.trie import Allowed, Children
from siglum.search.lookahead import LookAhead
from siglum.search.query import EncodedQuery
from siglum.search.scorers import Scorer
from siglum.types import SiglumError


class Beams(NamedTuple):
    """Live prefixes of all queries, by query and then by code order."""

    query: np.ndarray
    """Query of each prefix, int64."""
    lo: np.ndarray
    """First sorted row under the prefix."""
    hi: np.ndarray
    """End of the rows under the prefix."""
    score: np.ndarray
    """Sum of the scores along the path, plus the potential where there is look-ahead, float64."""


@dataclass(slots=True)
class Ranking:
    """Ranked items of one query; `position` is the place in the pool, `row` the index's sorted row."""

    position: np.ndarray
    row: np.ndarray
    score: np.ndarray

    def __len__(self) -> int:
        return len(self.position)

    def above(self, least: float) -> Ranking:
        """Return the ranking without items of lower scores."""
        keep = self.score >= least
        return Ranking(self.position[keep], self.row[keep], self.score[keep])


def best_per_query(query_C: np.ndarray, score_C: np.ndarray, beam: int, num_queries: int) -> np.ndarray:
    """Return the places of each query's `beam` best candidates, in the order given; ties go to the earlier one.

    >>> best_per_query(np.array([0, 0, 0, 1]), np.array([1.0, 2.0, 2.0, 0.5]), 2, 2).tolist()
    [1, 2, 3]
    """
    count = np.bincount(query_C, minlength=num_queries)
    if len(count) == 0 or count.max() <= beam:
        return np.arange(len(query_C))
    start = np.concatenate([[0], np.cumsum(count)[:-1]])
    table = np.full((num_queries, count.max()), -np.inf)
    column = np.arange(len(query_C)) - start[query_C]
    table[query_C, column] = score_C
    last = -np.partition(-table, beam - 1, axis=1)[:, beam - 1]
    above = table > last[:, None]
    level = (table == last[:, None]) & np.isfinite(table)
    room = beam - above.sum(1)
    keep = above | (level & (np.cumsum(level, axis=1) <= room[:, None]))
    keep |= (count <= beam)[:, None]
    return np.flatnonzero(keep[query_C, column])


def beam_search(
    scorer: Scorer,
    index: Index,
    query: Tensor | EncodedQuery,
    beam: int,
    allowed: Allowed | None = None,
    trace: list[Beams] | None = None,
    ahead: LookAhead | None = None,
) -> Beams:
    """Return the surviving leaves of every query; `trace` collects the live prefixes after every level.

    With look-ahead a prefix is kept for its path's score plus the potential of the best leaf below it.
    """
    if beam < 1:
        raise SiglumError(f"the beam must be at least 1, not {beam}.")
    asked = EncodedQuery.of(query)
    num, device = len(asked), asked.device
    root_lo, root_hi = index.root
    live = Beams(np.arange(num), np.repeat(root_lo, num), np.repeat(root_hi, num), np.zeros(num))
    path, potential = live.score, None if ahead is None else ahead.begin(asked.vector, index, allowed)
    state, codes_RL = scorer.begin(asked), None
    for level in range(index.levels):
        if codes_RL is None and level and (live.hi - live.lo == 1).all():
            codes_RL = index.codes(live.lo)  # of single items, as a few levels down all are, all codes at once
        if codes_RL is None:
            kids = index.children(live.lo, live.hi, level, allowed)
        else:
            kids = Children(np.arange(len(live.lo)), codes_RL[:, level], live.lo, live.hi)
        parent, token = torch.as_tensor(kids.parent, device=device), torch.as_tensor(kids.token, device=device).long()
        step = scorer.score(state, level, parent, token)
        path, owner = path[kids.parent] + step.double().cpu().numpy(), live.query[kids.parent]
        score = path if potential is None else path + potential.best(owner, kids.lo, kids.hi)
        if np.isnan(score).any():
            raise SiglumError("a score is not a number: the query vectors or the model's weights contain NaN.")
        keep = best_per_query(owner, score, beam, num)
        path, live = path[keep], Beams(owner[keep], kids.lo[keep], kids.hi[keep], score[keep])
        if trace is not None:
            trace.append(live)
        if not len(live.query):  # a filter that leaves nothing
            break
        if level + 1 < index.levels:
            chosen = torch.as_tensor(keep, device=device)
            state = scorer.advance(state, level, parent[chosen], token[chosen])
    return live


def rank_items(
    index: Index,
    beams: Beams,
    num_queries: int,
    k: int,
    allowed: Allowed | None = None,
    dense: tuple[Tensor, Tensor] | None = None,
) -> list[Ranking]:
    """Unfold leaves into ranked items, at most `k` a query; fewer where the beam owns fewer.

    `dense` = (query vectors (Q, D), item vectors in pool order (N, D)) orders the items of one leaf by similarity.
    """
    order = np.lexsort((np.arange(len(beams.score)), -beams.score, beams.query))
    query, score = beams.query[order], beams.score[order]
    leaves = index.leaves(beams.lo[order], beams.hi[order], allowed)
    owner = query[leaves.parent]
    position, row, item_score = leaves.position, leaves.row, score[leaves.parent]
    if dense is not None:
        dense_score = (dense[0][torch.as_tensor(owner)] * dense[1][torch.as_tensor(position)]).sum(-1).cpu().numpy()
        again = np.lexsort((position, -dense_score, leaves.parent))
        position, row, item_score, owner = position[again], row[again], item_score[again], owner[again]
    bounds = np.searchsorted(owner, np.arange(num_queries + 1))
    spans = [slice(a, min(b, a + k)) for a, b in zip(bounds, bounds[1:], strict=False)]
    return [Ranking(position[span], row[span], item_score[span]) for span in spans]


def search_items(
    scorer: Scorer,
    index: Index,
    query: Tensor | EncodedQuery,
    *,
    beam: int,
    k: int,
    batch_size: int = 64,
    allowed: Allowed | None = None,
    item_ND: Tensor | None = None,
    ahead: LookAhead | None = None,
) -> list[Ranking]:
    """Search in batches; results do not depend on the batch size (scores to 1e-4)."""
    for name, value in (("k", k), ("the batch size", batch_size)):
        if value < 1:
            raise SiglumError(f"{name} must be at least 1, not {value}.")
    found: list[Ranking] = []
    for part in EncodedQuery.of(query).split(batch_size):
        beams = beam_search(scorer, index, part, beam, allowed, ahead=ahead)
        dense = None if item_ND is None else (part.vector, item_ND)
        found.extend(rank_items(index, beams, len(part), k, allowed, dense))
    return found
