"""Exhaustive search: dense (inner product with the item vectors) and scan (squared distance to reconstructions).

Both are baselines without any pruning. Shapes: Q queries, N items, D numbers a vector.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from siglum.search.beam import Ranking
from siglum.types import SiglumError


def flat_search(
    query_QD: Tensor, item_ND: Tensor, k: int, *, squared_distance: bool = False, chunk: int = 65_536
) -> list[Ranking]:
    """Return the k best items of every query; positions are rows of `item_ND`, ties go to the lower row.

    The score is <q, x>, or 2 <q, x> - |x|^2 with `squared_distance` (the same order as -|q - x|^2).
    """
    if k < 1:
        raise SiglumError(f"k must be at least 1, not {k}.")
    best = torch.empty(len(query_QD), 0, device=query_QD.device)
    place = torch.empty(len(query_QD), 0, dtype=torch.long, device=query_QD.device)
    for start in range(0, len(item_ND), chunk):
        items = item_ND[start : start + chunk]
        scores = query_QD @ items.T
        if squared_distance:
            scores = 2 * scores - items.square().sum(-1)
        rows = torch.arange(start, start + len(items), device=scores.device).expand_as(scores)
        best, place = _merge(torch.cat([best, scores], 1), torch.cat([place, rows], 1), k)
    positions, scores_np = place.cpu().numpy(), best.double().cpu().numpy()
    return [Ranking(p, np.full(len(p), -1), s) for p, s in zip(positions, scores_np, strict=True)]


def _merge(score_QM: Tensor, place_QM: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k best columns, highest score first and lower places first among equals."""
    top = min(k, score_QM.shape[1])
    cut = score_QM.topk(top, dim=1).values[:, -1:]
    keep = score_QM >= cut
    width = int(keep.sum(1).max())
    masked = torch.where(keep, score_QM, -torch.inf)
    order = masked.argsort(dim=1, descending=True, stable=True)[:, : min(width, top)]
    return masked.gather(1, order), place_QM.gather(1, order)
