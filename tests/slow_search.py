"""The slow, obvious beam search that the fast ones are tested against: one query, Python lists, no cache.

It shares no code with `beam`: a prefix is scored from scratch, the geometric part as a drop in squared distance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from siglum.generate.decoder import CodeDecoder

Prefix = tuple[int, ...]
PrefixScore = Callable[[Prefix, list[Prefix]], float]
"""Score of a whole prefix, given the legal prefixes that share its parent."""


def reference_search(codes: Sequence[Prefix], score: PrefixScore, beam: int) -> list[tuple[Prefix, float]]:
    """Return the surviving leaves, best first; equal scores in code order.

    >>> codes = [(0, 1), (0, 2), (1, 0)]
    >>> reference_search(codes, lambda prefix, siblings: -sum(prefix), beam=2)
    [((0, 1), -1.0), ((1, 0), -1.0)]
    """
    live: list[Prefix] = [()]
    scores: dict[Prefix, float] = {(): 0.0}
    for depth in range(1, len(codes[0]) + 1):
        legal = sorted({code[:depth] for code in codes if code[: depth - 1] in set(live)})
        siblings = {p: [other for other in legal if other[:-1] == p[:-1]] for p in legal}
        scores = {p: float(score(p, siblings[p])) for p in legal}
        live = sorted(legal, key=lambda p: (-scores[p], p))[:beam]
    return [(leaf, scores[leaf]) for leaf in live]


def oracle_score(query_D: Tensor, codebooks: list[Tensor]) -> PrefixScore:
    """<q, x̂_p>: the quantised oracle."""
    return lambda prefix, siblings: float(query_D @ _reconstruct(codebooks, prefix))


def geometry_score(query_D: Tensor, codebooks: list[Tensor]) -> PrefixScore:
    """|q|^2 - |q - x̂_p|^2."""
    return lambda prefix, siblings: float(
        query_D.square().sum() - (query_D - _reconstruct(codebooks, prefix)).square().sum()
    )


def decoder_score(query_D: Tensor, decoder: CodeDecoder, normalisation: str = "level") -> PrefixScore:
    """log P(p | q) by one teacher-forced pass a prefix and level; `children` renormalises over the siblings."""
    legal_before: dict[Prefix, list[Prefix]] = {}

    @torch.no_grad()
    def score(prefix: Prefix, siblings: list[Prefix]) -> float:
        legal_before[prefix[:-1]] = siblings
        padded = torch.zeros(1, len(decoder.sizes), dtype=torch.long)
        padded[0, : len(prefix)] = torch.tensor(prefix)
        joint = decoder.joint_logits(query_D[None], padded)[0]
        levels = decoder(query_D[None], padded)
        total = 0.0
        for level, token in enumerate(prefix):
            if normalisation == "joint":
                total += float(joint[level].log_softmax(-1)[decoder.token_ids(padded)[0, level]])
            elif normalisation == "level":
                total += float(levels[level][0].log_softmax(-1)[token])
            else:
                legal = [other[-1] for other in legal_before[prefix[:level]]]
                total += float(levels[level][0][legal].log_softmax(-1)[legal.index(token)])
        return total

    return score


def fused_score(
    query_D: Tensor, decoder: CodeDecoder, codebooks: list[Tensor], omega: float, normalisation: str = "level"
) -> PrefixScore:
    """log P(p | q) + omega (|q|^2 - |q - x̂_p|^2): geometric score fusion, telescoped (eq. cdsb)."""
    log_prob, gain = decoder_score(query_D, decoder, normalisation), geometry_score(query_D, codebooks)
    return lambda prefix, siblings: log_prob(prefix, siblings) + omega * gain(prefix, siblings)


def _reconstruct(codebooks: list[Tensor], prefix: Prefix) -> Tensor:
    return torch.stack([codebooks[level][token] for level, token in enumerate(prefix)]).sum(0)
