"""Who teaches L_rank: fused similarities, or as controls the positive alone and shuffled similarities."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from siglum.config import TokenizerConfig
from siglum.tokenize.losses import prefix_ranking_loss, teach
from siglum.types import SiglumError

SEEDS = st.integers(0, 100_000)


def batch(ids: list[int], seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return queries, targets, partial sums of three levels of two codes, the codes, and which targets repeat."""
    generator = torch.Generator().manual_seed(seed)
    place = torch.tensor([ids.index(mark) for mark in ids])
    query, target = (F.normalize(torch.randn(len(ids), 4, generator=generator), dim=-1) for _ in range(2))
    codes = torch.randint(2, (len(ids), 3), generator=generator)[place]
    books = 0.5 * torch.randn(3, 2, 4, generator=generator)
    partial = torch.stack([books[level][codes[:, level]] for level in range(3)], 1).cumsum(1)
    return query, target[place], partial, codes, place != torch.arange(len(ids))


def test_the_positive_as_teacher_is_cross_entropy_over_prefixes() -> None:
    ids = [0, 1, 2, 3, 1, 4]
    query, target, partial, codes, repeat = batch(ids, 5)
    config = TokenizerConfig(rank_teacher="positive", top_k=4, temperature=0.2)
    positive = torch.tensor([ids.index(mark) for mark in ids])
    found = float(prefix_ranking_loss(query, target, partial, codes, positive, repeat, config, 0))
    wanted = 0.0
    for i, q in enumerate(query):
        others = sorted(
            (j for j in range(6) if j != positive[i] and not repeat[j]), key=lambda j: -float(q @ target[j])
        )
        chosen = [int(positive[i]), *others[:3]]
        for level in range(3):
            score = {tuple(codes[j, : level + 1].tolist()): float(q @ partial[j, level]) / 0.2 for j in chosen}
            own = score[tuple(codes[positive[i], : level + 1].tolist())]
            wanted += math.log(sum(math.exp(value) for value in score.values())) - own
    assert found == pytest.approx(wanted / 18, rel=1e-4)
    with pytest.raises(SiglumError, match="rank_keep_positive=true"):
        teach(query, target, positive, repeat[None], replace(config, rank_keep_positive=False))


@given(st.lists(st.integers(0, 6), min_size=3, max_size=8), st.integers(2, 9), st.booleans(), SEEDS)
def test_a_shuffled_teacher_has_the_same_scores_and_candidates(
    ids: list[int], top_k: int, keep: bool, seed: int
) -> None:
    query, target, _, _, repeat = batch(ids, seed)
    positive, config = torch.arange(len(ids)), TokenizerConfig(top_k=top_k, rank_keep_positive=keep)
    fused, shuffled = (
        teach(query, target, positive, repeat[None], replace(config, rank_teacher=kind))
        for kind in ("fused", "shuffled")
    )
    assert torch.equal(fused[1], shuffled[1])
    assert torch.equal(fused[2], shuffled[2])
    for was, now, real in zip(fused[0].tolist(), shuffled[0].tolist(), fused[2].tolist(), strict=True):
        number = sum(real)
        assert real == [True] * number + [False] * (len(real) - number)
        assert sorted(was[:number]) == sorted(now[:number])
        assert was[number:] == now[number:]


def test_a_shuffled_teacher_deals_anew() -> None:
    query, target, _, _, repeat = batch(list(range(8)), 0)
    config = TokenizerConfig(top_k=8, rank_teacher="shuffled")
    first, second = (teach(query, target, torch.arange(8), repeat[None], config)[0] for _ in range(2))
    assert not torch.equal(first, second)
