"""Token survival: would the target's next code stay in a beam, if the beam ranked by the quantised oracle?

It needs a tokenizer and no decoder, so it is watched while the tokenizer trains.
Shapes: Q queries, T tokens, D numbers a vector, V_t codewords at token t.
"""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def token_survival(
    query_QD: Tensor, codes_QT: Tensor, codebooks: list[Tensor], beam: int, first_residual: int = 0
) -> list[float]:
    """Per-level token survival under the quantised oracle (the paper's Fig. 2a), from level `first_residual` on.

    At each level the preceding target prefix is given; the target token survives if it is among the top `beam`
    of ALL the level's codewords by <q, c>. Chance is beam / V.
    """
    shares = []
    for level in range(first_residual, codes_QT.shape[1]):
        scores = query_QD @ codebooks[level].T
        own = scores.gather(1, codes_QT[:, level : level + 1])
        shares.append(((scores > own).sum(1) < beam).double().mean())
    return torch.stack(shares).tolist()
