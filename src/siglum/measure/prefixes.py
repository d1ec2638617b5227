"""The distinct prefixes of a pool and two ways to score them: all at once, or along chosen paths with any scorer.

A prefix is a range of the index's sorted rows, so the prefixes of one length are numbered in code order and the
children of a prefix are consecutive numbers one level down. Scores are laid out prefix by query: a parent's row is
then read for its children, or reduced from them, as one block.
Shapes: Q queries, N items, T tokens, P_l distinct prefixes after token l, R live prefixes, C candidates, D numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from siglum.index import Index
from siglum.index.ragged import spread
from siglum.search.query import EncodedQuery, Questions
from siglum.search.scorers import Scorer


class Prefixes:
    """The distinct prefixes of an index, level by level; lists hold one array a level.

    >>> found = Prefixes(Index.build(["a", "b", "c"], np.array([[0, 7], [1, 2], [0, 5]]), (3, 8), tokenizer="f00d"))
    >>> found.count, found.parent[1].tolist(), found.token[1].tolist(), found.size[0].tolist()
    ([2, 3], [0, 0, 1], [5, 7, 2], [2, 1])
    """

    def __init__(self, index: Index) -> None:
        """Number the prefixes of an index."""
        self.index = index
        self.row_of_position = np.empty(len(index), np.int64)
        self.row_of_position[index.order] = np.arange(len(index))
        self.first: list[np.ndarray] = []
        """First sorted row under each prefix (P_l,)."""
        self.size: list[np.ndarray] = []
        """Items under each prefix (P_l,)."""
        self.parent: list[np.ndarray] = []
        """Number of each prefix's parent, one level up (P_l,)."""
        self.token: list[np.ndarray] = []
        """Last code of each prefix (P_l,)."""
        self._begin: list[np.ndarray] = []
        """First child of each prefix one level up, and the end (P_{l-1} + 1,)."""
        above = np.zeros(1, np.int64)
        for level in range(index.levels):
            first = np.flatnonzero(index.shared <= level)
            self.first.append(first)
            self.size.append(np.diff(first, append=len(index)))
            self.parent.append(np.searchsorted(above, first, "right") - 1)
            self.token.append(index.column(level, first).astype(np.int64))
            self._begin.append(np.searchsorted(first, np.append(above, len(index))))
            above = first

    @property
    def levels(self) -> int:
        """Number of tokens an item."""
        return len(self.first)

    @property
    def count(self) -> list[int]:
        """Number of distinct prefixes of every level."""
        return [len(first) for first in self.first]

    def branches(self, level: int) -> bool:
        """Whether some prefix has more than one child at this level; if none has, numbers stay as they were."""
        return level == 0 or len(self.first[level]) > len(self.first[level - 1])

    def of_rows(self, level: int, row: np.ndarray) -> np.ndarray:
        """Return the prefixes that sorted rows lie under."""
        return np.searchsorted(self.first[level], row, "right") - 1

    def children(self, level: int, prefix_R: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the prefixes of `level` below prefixes one level up: (place of the parent in R, number), each (C,)."""
        begin = self._begin[level]
        counts = begin[prefix_R + 1] - begin[prefix_R]
        return np.repeat(np.arange(len(prefix_R)), counts), spread(begin[prefix_R], counts)


class LevelScores(NamedTuple):
    """Scores of all prefixes of one level for some queries."""

    level: int
    teacher_PQ: Tensor
    """The best <q, x> of the items under each prefix."""
    oracle_PQ: Tensor
    """<q, x̂_l>, which all items under a prefix share."""
    word_VQ: Tensor
    """<q, c> of the level's codewords."""
    fresh: bool
    """Whether the prefixes are others than one level up; where not, the teacher's scores are the same."""


@torch.no_grad()
def prefix_scores(
    prefixes: Prefixes, codebooks: list[Tensor], item_ND: Tensor, query_QD: Tensor
) -> Iterator[LevelScores]:
    """Yield the scores of every level, shallow to deep; `item_ND` are the items in the order of the sorted rows.

    One product of queries and items serves all levels: the maximum over a prefix is that over its children.
    """
    query_DQ = query_QD.T.contiguous()
    best = item_ND @ query_DQ
    groups = [*(prefixes.parent[1:]), prefixes.of_rows(prefixes.levels - 1, np.arange(len(best)))]
    teacher: list[Tensor] = []
    for group, count in zip(reversed(groups), reversed(prefixes.count), strict=True):
        best = best if len(best) == count else _group_max(best, group, count)
        teacher.append(best)
    oracle = torch.zeros_like(query_DQ[:1])
    for level, book in enumerate(codebooks):
        word_VQ = book @ query_DQ
        above = oracle[_as(prefixes.parent[level], oracle)] if prefixes.branches(level) else oracle
        oracle = above + word_VQ[_as(prefixes.token[level], oracle)]
        yield LevelScores(level, teacher.pop(), oracle, word_VQ, prefixes.branches(level))


def half_norms(prefixes: Prefixes, codebooks: list[Tensor], block: int = 2048) -> list[np.ndarray]:
    """Return |x̂_p|^2 / 2 of every prefix, one array a level: <q, x̂_p> less this ranks as -|q - x̂_p|^2 does."""
    norm_TN = np.empty((len(codebooks), len(prefixes.index)))
    for start in range(0, norm_TN.shape[1], block):
        rows = np.arange(start, min(start + block, norm_TN.shape[1]))
        hat = codebooks[0].new_zeros(len(rows), codebooks[0].shape[1])
        for level, book in enumerate(codebooks):
            hat += book[_as(prefixes.index.column(level, rows).astype(np.int64), hat)]
            norm_TN[level, rows] = (hat.square().sum(-1) / 2).double().cpu().numpy()
    return [norm_N[first] for norm_N, first in zip(norm_TN, prefixes.first, strict=True)]


class Walked(NamedTuple):
    """Chosen prefixes of one level, by query and then by code order, with their scores so far."""

    query_C: np.ndarray
    prefix_C: np.ndarray
    score_SC: np.ndarray
    """One row a scorer, float64."""


@torch.no_grad()
def walk(
    prefixes: Prefixes, scorers: list[Scorer], asked: Questions, chosen: list[np.ndarray | None]
) -> Iterator[Walked]:
    """Score chosen prefixes with any scorers, level by level, whether a beam would keep them or not.

    `chosen[l]` are sorted keys query * P_l + prefix, or None for all prefixes of that level. A scorer sees all children
    of the prefixes it is led along, so that one that normalises over them does so rightly.
    """
    needed, count, device = _ancestors(prefixes, chosen, len(asked)), prefixes.count, asked.device
    states = [scorer.begin(EncodedQuery.of(asked)) for scorer in scorers]
    query, prefix, score = np.arange(len(asked)), np.zeros(len(asked), np.int64), np.zeros((len(scorers), 1))
    score = score.repeat(len(asked), 1)
    for level, wanted in enumerate(chosen):
        row, prefix = prefixes.children(level, prefix)
        query, token = query[row], torch.as_tensor(prefixes.token[level][prefix], device=device)
        parent = torch.as_tensor(row, device=device)
        steps = [scorer.score(state, level, parent, token) for scorer, state in zip(scorers, states, strict=True)]
        score = score[:, row] + torch.stack(steps).double().cpu().numpy()
        key = query * count[level] + prefix
        pick = slice(None) if wanted is None else np.isin(key, wanted, assume_unique=True)
        yield Walked(query[pick], prefix[pick], score[:, pick])
        if level + 1 < len(chosen):
            on = np.flatnonzero(np.isin(key, needed[level], assume_unique=True))
            at = torch.as_tensor(on, device=device)
            states = [
                scorer.advance(state, level, parent[at], token[at])
                for scorer, state in zip(scorers, states, strict=True)
            ]
            query, prefix, score = query[on], prefix[on], score[:, on]


def _ancestors(prefixes: Prefixes, chosen: list[np.ndarray | None], queries: int) -> list[np.ndarray]:
    """Return the keys of the prefixes of each level that have chosen ones below them."""
    needed, below = [np.zeros(0, np.int64)], np.zeros(0, np.int64)
    for level in range(len(chosen) - 1, 0, -1):
        wanted, count = chosen[level], prefixes.count[level]
        keys = np.arange(queries * count) if wanted is None else np.union1d(wanted, below)
        below = np.unique(keys // count * prefixes.count[level - 1] + prefixes.parent[level][keys % count])
        needed.append(below)
    return needed[::-1]


def mismatch(
    prefixes: Prefixes,
    scorers: list[Scorer],
    asked: Questions,
    chosen: list[np.ndarray | None],
    oracle: list[Tensor],
    log_total_TQ: np.ndarray,
    tau: float,
) -> dict[str, np.ndarray]:
    """Return TV(pi-bar, pi-tilde) over the chosen prefixes by name, each (T, Q).

    `oracle` are the levels' scores <q, x̂_l> of all prefixes (P_l, Q), `log_total_TQ` the logs of their
    normalisers over all prefixes. The first scorer gives `eps`, the sum of two `eps_fused`; each also comes with
    temperature 1 in place of tau, as `_plain`. `uncovered` is the mass of pi-bar on prefixes left out.
    """
    found: dict[str, list[np.ndarray]] = {}
    for level, (query, prefix, score_SC) in enumerate(walk(prefixes, scorers, asked, chosen)):
        logit = oracle[level][_as(prefix, oracle[level]), _as(query, oracle[level])].double().cpu().numpy() / tau
        bar, mass = _softmax(query, logit), np.bincount(query, np.exp(logit - log_total_TQ[level][query]))
        found.setdefault("uncovered", []).append((1 - mass).clip(0, 1))
        for name, score in zip(("eps", "eps_fused"), score_SC.cumsum(0), strict=False):
            for end, temperature in (("", tau), ("_plain", 1.0)):
                apart = np.bincount(query, np.abs(bar - _softmax(query, score / temperature))) / 2
                found.setdefault(name + end, []).append(apart)
    return {name: np.stack(levels) for name, levels in found.items()}


def _softmax(query_C: np.ndarray, score_C: np.ndarray) -> np.ndarray:
    """Return the softmax within each query; candidates stand by query, and every query has one."""
    starts = np.flatnonzero(np.diff(query_C, prepend=-1))
    exponent = np.exp(score_C - np.maximum.reduceat(score_C, starts)[query_C])
    share: np.ndarray = exponent / np.add.reduceat(exponent, starts)[query_C]
    return share


def _as(place: np.ndarray, like: Tensor) -> Tensor:
    return torch.as_tensor(place, device=like.device)


def _group_max(score_CQ: Tensor, group_C: np.ndarray, count: int) -> Tensor:
    """Return the maximum of every group of rows (count, Q)."""
    best = score_CQ.new_full((count, score_CQ.shape[1]), -torch.inf)
    return best.scatter_reduce_(0, _as(group_C, best)[:, None].expand_as(score_CQ), score_CQ, "amax")
