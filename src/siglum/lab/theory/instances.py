"""Theorem 1 as code: two quantisers no usual objective can tell apart, of which one loses the target.

Shapes: K = B + 1 items of D numbers, T tokens (the modality token first, where there is one), V_t codewords at token t.
Everything is float64. With M = 5/2 every number is a small dyadic fraction, so sums and squares are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from siglum.config import TokenizerConfig
from siglum.index import Index
from siglum.measure.survival import beam_survival
from siglum.search.scorers import OracleScorer
from siglum.tokenize.losses import alignment_loss, prefix_ranking_loss, residual_loss
from siglum.types import SiglumError


@dataclass(frozen=True, slots=True)
class Construction:
    """A query, B + 1 items of which item 0 is the target, and the codebooks of both quantisers."""

    beam: int
    first_residual: int
    """Position of the first residual level: 1 behind a modality token, else 0."""
    query_D: Tensor
    item_KD: Tensor
    kept: list[Tensor]
    """Codebooks of Q+, under which the target survives."""
    lost: list[Tensor]
    """Codebooks of Q-, under which it is pruned at the first residual level."""


def construct(
    beam: int, levels: int, *, m: float = 2.5, height: float = 4.0, leftover: float = 0.5, modality: bool = False
) -> Construction:
    """Return the construction of Theorem 1 (theorem qdg) for a beam and a number of residual levels.

    `m` is the paper's M, `height` its H and `leftover` its alpha. The axes are s, u, K of A_1, K of A_2, one for every
    further level, r, and with `modality` one more for a modality token that all items share.

    >>> pair = construct(beam=3, levels=2)
    >>> oracle_survival(pair, pair.kept), oracle_survival(pair, pair.lost)
    ([True, True], [False, False])
    """
    if beam < 1 or levels < 2:
        raise SiglumError(f"the construction needs a beam of at least 1 and 2 levels, not {beam} and {levels}.")
    if not m > 2 or not height > 0:
        raise SiglumError(f"the construction needs m above 2 and height above 0, not {m} and {height}.")
    num = beam + 1
    axis = torch.eye(2 * num + levels + 1 + modality, dtype=torch.float64)
    s, u, deep, r = axis[0], axis[1], axis[2 + 2 * num : 2 * num + levels], axis[2 * num + levels]
    a_1, a_2 = axis[2 : 2 + num], axis[2 + num : 2 + 2 * num]
    zero = torch.zeros_like(s)
    modality_word = m * axis[-1] if modality else zero
    query = s + height * u
    kept = [torch.cat([query[None], m * a_1]), torch.cat([zero[None], m * a_2])]
    kept[0][1] += s
    kept += [torch.stack([zero, m * word]) for word in deep]
    lost = [book.clone() for book in kept]
    delta = m - sqrt(m * m - 4)
    lost[0][1] = -s + m * a_1[0] + delta * a_2[0]
    lost[1][1] = 2 * s + (m - delta) * a_2[0]
    before = [torch.stack([modality_word, -modality_word, -2 * modality_word])] if modality else []
    items = build_items(kept, leftover * r) + modality_word
    return Construction(beam, int(modality), query + modality_word, items, before + kept, before + lost)


def build_items(codebooks: list[Tensor], leftover_D: Tensor) -> Tensor:
    """Return the items of the construction (eq. app_doc): c_1j + c_2j, deeper codewords, what no code reaches."""
    return codebooks[0][1:] + codebooks[1][1:] + sum((book[1] for book in codebooks[2:]), leftover_D)


def assign(vector_ND: Tensor, codebooks: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Return codes (N, T) by the greedy nearest-codeword rule and the residual before every level, in float64."""
    residual, codes, residuals = vector_ND, [], []
    for book in codebooks:
        residuals.append(residual)
        codes.append((residual[:, None] - book).square().sum(-1).argmin(1))
        residual = residual - book[codes[-1]]
    return torch.stack(codes, 1), residuals


def codewords(codes_NT: Tensor, codebooks: list[Tensor]) -> Tensor:
    """Return the chosen codewords (N, T, D)."""
    return torch.stack([book[codes_NT[:, level]] for level, book in enumerate(codebooks)], 1)


def objectives(pair: Construction, codebooks: list[Tensor], tau: float = 0.05) -> dict[str, float]:
    """Return every objective of Theorem 1 (i) under one quantiser: they see no difference between `kept` and `lost`.

    `contrastive` is L_cl on the embeddings, `residual` L_rq (eq. rq_loss) of query and items, `quantised` the printed
    L_mse |q̂ - x̂|^2, `alignment` its normalised form used in training, `reconstruction` the mean of |x - x̂|^2.
    """
    vector = torch.cat([pair.query_D[None], pair.item_KD])
    codes, residuals = assign(vector, codebooks)
    word = codewords(codes, codebooks)
    rebuilt = word.sum(1)
    target = torch.zeros(1, dtype=torch.long)
    losses = {
        "contrastive": F.cross_entropy((pair.item_KD @ pair.query_D)[None] / tau, target),
        "residual": residual_loss(residuals, word, pair.first_residual),
        "quantised": (rebuilt[0] - rebuilt[1]).square().sum(),
        "alignment": alignment_loss(rebuilt[:1], rebuilt[1:2]),
        "reconstruction": (pair.item_KD - rebuilt[1:]).square().sum(-1).mean(),
    }
    return {name: float(loss) for name, loss in losses.items()}


def rank_loss(pair: Construction, codebooks: list[Tensor], tau: float = 0.05) -> float:
    """Return L_rank (eq. rpq) of the construction, by the loss the tokenizer trains with: it does see the difference.

    It is 0 for Q+ and K_1 / L for Q-, with K_1 as in `separation`.
    """
    codes, _ = assign(pair.item_KD, codebooks)
    loss = prefix_ranking_loss(
        pair.query_D[None],
        pair.item_KD,
        codewords(codes, codebooks).cumsum(1),
        codes,
        torch.zeros(1, dtype=torch.long),
        torch.zeros(len(codes), dtype=torch.bool),
        TokenizerConfig(temperature=tau, top_k=len(codes)),
        pair.first_residual,
    )
    return float(loss)


def separation(beam: int, tau: float = 0.05) -> float:
    """Return K_1 of Q- in closed form (eq. ranking_kl): the teacher scores 1, 0 .. 0 and the oracle -1, 0 .. 0.

    >>> round(separation(beam=20), 3)
    22.996
    """
    score = torch.zeros(2, beam + 1, dtype=torch.float64)
    score[:, 0] = torch.tensor([1.0, -1.0]) / tau
    normaliser = score.logsumexp(-1)
    share = (score[0, 0] - normaliser[0]).exp()
    return float(share * 2 / tau - normaliser[0] + normaliser[1])


def oracle_survival(pair: Construction, codebooks: list[Tensor]) -> list[bool]:
    """Return whether the target's prefix is in the beam after every token (Theorem 1 (ii), lemma app_survival_plus).

    The beam is the one that serves queries, constrained by the trie of the B + 1 items, with quantised-oracle scores.
    """
    codes = assign(pair.item_KD, codebooks)[0].numpy()
    names = [str(row) for row in range(len(codes))]
    index = Index.build(names, codes, [len(book) for book in codebooks], tokenizer="theorem 1")
    target_row = np.flatnonzero(index.order == 0)
    shares = beam_survival(OracleScorer(codebooks), index, pair.query_D[None], target_row, pair.beam)
    return [share == 1.0 for share in shares]
