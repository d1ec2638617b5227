"""What a search returns: ranked items with their codes, texts and pictures, and how close each is to its query.

Shapes: N items, T tokens an item, D numbers a vector; R ranked items of all queries together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from siglum.data.fields import read_fields
from siglum.index import Index
from siglum.search.beam import Ranking
from siglum.search.query import EncodedQuery
from siglum.search.state import State
from siglum.tokenize.base import Quantiser
from siglum.types import Hit

ROWS = 8192
"""Vectors that are held at once."""


def as_hits(index: Index, ranking: Ranking, similarity: Sequence[float | None] | None = None) -> list[Hit]:
    """Return a ranking as hits, ranks from 1."""
    ids, codes = index.ids.take(ranking.position), index.codes(ranking.row).tolist()
    scores = ranking.score.tolist()
    values = [None] * len(ranking) if similarity is None else similarity
    shown = map(read_fields, index.fields.take(ranking.position))
    found = enumerate(zip(ids, scores, codes, values, shown, strict=True), 1)
    return [Hit(name, score, tuple(path), rank, value, *kept) for rank, (name, score, path, value, kept) in found]


def similarities(
    rankings: Sequence[Ranking], query: EncodedQuery, state: State, quantiser: Quantiser
) -> list[list[float]] | list[None]:
    """Return how close every ranked item is to its query, see `Hit.similarity`; None where there are no vectors."""
    if query.vector_QD is None or (state.item_ND is None and not len(quantiser.codebooks)):
        return [None] * len(rankings)
    owner_R = np.repeat(np.arange(len(rankings)), [len(ranking) for ranking in rankings])
    position_R, row_R = (
        np.concatenate([getattr(ranking, name) for ranking in rankings] or [np.zeros(0, np.int64)])
        for name in ("position", "row")
    )
    near_R = np.empty(len(owner_R))
    for start in range(0, len(owner_R), ROWS):
        part = slice(start, start + ROWS)
        query_RD = query.vector_QD[torch.from_numpy(owner_R[part])]
        if state.item_ND is None:
            item_RD = reconstruct(quantiser, state.index.codes(row_R[part]))
        else:
            item_RD = state.item_ND[torch.from_numpy(position_R[part])]
        apart_R = (query_RD.to(item_RD) - item_RD).square().sum(1)
        near_R[part] = (1 - apart_R / 4).clamp(0, 1).cpu().numpy()
    return [near.tolist() for near in np.split(near_R, np.cumsum([len(ranking) for ranking in rankings])[:-1])]


@torch.no_grad()
def reconstruct(quantiser: Quantiser, codes_NT: np.ndarray) -> Tensor:
    """Return the reconstructions (N, D) of codes."""
    quantiser.check_geometry("a reconstruction")
    device = quantiser.codebooks[0].device
    parts = torch.from_numpy(codes_NT).long().split(ROWS)
    return torch.cat([quantiser.decode(part.to(device)) for part in parts])
