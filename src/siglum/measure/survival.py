"""Prefix survival: does the target's code stay in the beam, level by level?

Shapes: Q queries, T tokens, D numbers a vector, V_t codewords at token t.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from siglum.index import Index
from siglum.index.trie import Allowed
from siglum.search.beam import Beams, beam_search
from siglum.search.scorers import Scorer


@torch.no_grad()
def token_survival(
    query_QD: Tensor, codes_QT: Tensor, codebooks: list[Tensor], beam: int, first: int = 0
) -> list[float]:
    """Per-level token survival under the quantised oracle (the paper's Fig. 2a), residual levels from `first` on.

    At each level the preceding target prefix is given; the target token survives if it is among the top `beam`
    of ALL the level's codewords by <q, c>. Chance is beam / V.
    """
    shares = []
    for level in range(first, codes_QT.shape[1]):
        scores = query_QD @ codebooks[level].T
        own = scores.gather(1, codes_QT[:, level : level + 1])
        shares.append(float(((scores > own).sum(1) < beam).double().mean()))
    return shares


def beam_survival(
    scorer: Scorer,
    index: Index,
    query_QD: Tensor,
    target_rows: np.ndarray,
    beam: int,
    allowed: Allowed | None = None,
    batch_size: int = 64,
) -> list[float]:
    """Cumulative survival in the real beam: the share of queries whose target's prefix is live after each token.

    `target_rows` are sorted rows of the index, one target a query.
    """
    alive = np.zeros(index.levels)
    for start in range(0, len(query_QD), batch_size):
        part, rows = query_QD[start : start + batch_size], target_rows[start : start + batch_size]
        trace: list[Beams] = []
        beam_search(scorer, index, part, beam, allowed, trace)
        for level, live in enumerate(trace):
            wanted = rows[live.query]
            inside = (live.lo <= wanted) & (wanted < live.hi)
            alive[level] += len(np.unique(live.query[inside]))
    return [float(value) for value in alive / max(1, len(query_QD))]
