"""Choosing the weights of geometry and prior on validation, and ranks of first positives.

One beam search gives each query a shortlist; what decoder, prior and geometry say of its items is worked out once,
and any weights are tried on these numbers. Shapes: Q queries, K items of a shortlist, T tokens, D numbers a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from siglum.config import SearchConfig
from siglum.generate.decoder import CodeDecoder
from siglum.measure.evaluate import Ranker
from siglum.tokenize.base import Quantiser
from siglum.types import Task, Vectors

WEIGHED_QUERIES = 5000
"""Validation queries of each task that weights are tried on, evenly spread."""
ROWS = 4096
"""Code sequences the decoder reads at once."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """The best setting and what each one tried gave."""

    best: SearchConfig
    tried: list[dict[str, Any]]


def first_ranks(task: Task, ranker: Ranker, depth: int) -> np.ndarray:
    """Return the rank of each query's first positive among its first `depth` results, 0 where there is none."""
    found = np.zeros(len(task.query_rows), np.int64)
    for place, ranking in enumerate(ranker.rank(task.query_rows, task.pool_rows, depth)):
        hits = np.flatnonzero(np.isin(ranking.position, task.positives[place]))
        found[place] = hits[0] + 1 if len(hits) else 0
    return found


def reciprocal_ranks(ranks: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return 1 / rank, and 0 for rank 0.

    >>> reciprocal_ranks([1, 0, 4]).tolist()
    [1.0, 0.0, 0.25]
    """
    array = np.asarray(ranks, float)
    inverse: np.ndarray = np.divide(1.0, array, out=np.zeros_like(array), where=array > 0)
    return inverse


def mean_reciprocal_rank(ranks: Sequence[int] | np.ndarray) -> float:
    """Return the mean of `reciprocal_ranks`."""
    return float(reciprocal_ranks(ranks).mean())


def weigh(
    vectors: Vectors,
    ranker: Ranker,
    decoder: CodeDecoder,
    quantizer: Quantiser,
    query_MD: Tensor,
    codes_NT: Tensor,
    search: SearchConfig,
    weights: tuple[Sequence[float], Sequence[float]],
) -> Weighed:
    """Return the weights (omega, prior) with the best mean MRR@10 on validation.

    A task counts by the square root of its queries, as a mean over more queries is known better.
    The shortlist of a query is what `ranker` finds; a setting is ranked by its own score over it.
    """
    tables = []
    for task in (task.spread(WEIGHED_QUERIES) for task in vectors.of_split("val")):
        found = ranker.rank(task.query_rows, task.pool_rows, search.beam)
        item_QK, real_QK = _shortlist([ranking.position for ranking in found])
        right_QK = np.stack([np.isin(item_QK[i], task.positives[i]) for i in range(len(found))]) & real_QK
        queries = query_MD[torch.as_tensor(task.query_rows).to(query_MD.device)]
        tables.append((_components(decoder, quantizer, queries, codes_NT, item_QK), right_QK, real_QK))
    sure = [len(right_QK) ** 0.5 for _, right_QK, _ in tables]
    tried = []
    for prior in weights[1]:
        for omega in weights[0]:
            values = [_mrr(omega * gain + log_p - prior * alone, *which) for (log_p, alone, gain), *which in tables]
            tried.append({"omega": omega, "prior": prior, "mrr@10": float(np.average(values, weights=sure))})
    best = max(tried, key=lambda row: row["mrr@10"])
    return Weighed(replace(search, omega=best["omega"], prior=best["prior"]), tried)


def _shortlist(positions: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the item rows of all shortlists as one table (Q, K) and which entries are real."""
    width = max(1, max(len(found) for found in positions))
    item, real = np.zeros((len(positions), width), np.int64), np.zeros((len(positions), width), bool)
    for place, found in enumerate(positions):
        item[place, : len(found)], real[place, : len(found)] = found, True
    return item, real


@torch.no_grad()
def _components(
    decoder: CodeDecoder, quantizer: Quantiser, query_QD: Tensor, codes_NT: Tensor, item_QK: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return log P(codes | q), log P(codes) and the geometric gain of every shortlisted item, each (Q, K)."""
    device, (num, width) = query_QD.device, item_QK.shape
    item_QK_t = torch.as_tensor(item_QK).to(device)
    own = torch.unique(item_QK_t)
    alone_N = torch.zeros(len(codes_NT), device=device)
    alone_N[own] = _log_probability(decoder, torch.zeros_like(query_QD[:1]).expand(len(own), -1), codes_NT[own])
    hat_ND = torch.zeros(len(codes_NT), quantizer.dim, device=device)
    hat_ND[own] = quantizer.decode(codes_NT[own]).detach()
    step = max(1, ROWS // width)
    log_p, gain = [], []
    for start in range(0, num, step):
        rows, query = item_QK_t[start : start + step], query_QD[start : start + step]
        found = _log_probability(decoder, query.repeat_interleave(width, 0), codes_NT[rows.flatten()])
        log_p.append(found.view(rows.shape))
        hat = hat_ND[rows]
        gain.append(2 * (hat * query[:, None]).sum(-1) - hat.square().sum(-1))
    return torch.cat(log_p).cpu().numpy(), alone_N[item_QK_t].cpu().numpy(), torch.cat(gain).cpu().numpy()


def _log_probability(decoder: CodeDecoder, query_RD: Tensor, codes_RT: Tensor) -> Tensor:
    """Return log P of whole code sequences given their queries (R,)."""
    total = []
    for start in range(0, len(codes_RT), ROWS):
        codes = codes_RT[start : start + ROWS]
        logits = decoder(query_RD[start : start + ROWS], codes)
        steps = [level.log_softmax(-1).gather(1, codes[:, t, None])[:, 0] for t, level in enumerate(logits)]
        total.append(torch.stack(steps).sum(0))
    return torch.cat(total)


def _mrr(score_QK: np.ndarray, right_QK: np.ndarray, real_QK: np.ndarray) -> float:
    """Return MRR@10 of scored shortlists; a query whose shortlist misses all positives counts 0."""
    score = np.where(real_QK, score_QK, -np.inf)
    best = np.where(right_QK, score, -np.inf).max(1)
    rank = (score > best[:, None]).sum(1) + 1
    return mean_reciprocal_rank(np.where(np.isfinite(best) & (rank <= 10), rank, 0))
