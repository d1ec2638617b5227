"""Prefix survival: does the target's code stay in the beam, level by level?

Shapes: Q queries, T tokens, D numbers a vector, V_t codewords at token t.
"""

from __future__ import annotations

import numpy as np

from siglum.index import Index
from siglum.index.trie import Allowed
from siglum.search.beam import Beams, beam_search
from siglum.search.histories import ManyQuestions
from siglum.search.lookahead import LookAhead
from siglum.search.scorers import Scorer
from siglum.tokenize.survival import token_survival

__all__ = ["beam_survival", "token_survival"]


def beam_survival(
    scorer: Scorer,
    index: Index,
    queries: ManyQuestions,
    target_rows: np.ndarray,
    beam: int,
    allowed: Allowed | None = None,
    batch_size: int = 64,
    ahead: LookAhead | None = None,
) -> list[float]:
    """Cumulative survival in the real beam: the share of queries whose target's prefix is live after each token.

    `target_rows` are sorted rows of the index, one target a query.
    """
    alive = np.zeros(index.levels)
    for start in range(0, len(queries), batch_size):
        part, rows = queries[start : start + batch_size], target_rows[start : start + batch_size]
        trace: list[Beams] = []
        beam_search(scorer, index, part, beam, allowed, trace, ahead)
        for level, live in enumerate(trace):
            wanted = rows[live.query]
            inside = (live.lo <= wanted) & (wanted < live.hi)
            alive[level] += len(np.unique(live.query[inside]))
    return [float(value) for value in alive / max(1, len(queries))]
