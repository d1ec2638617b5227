"""Ranking within a modality: a target of another kind is never a candidate, as if the batch had none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from siglum.config import FusionConfig, TokenizerConfig
from siglum.tokenize.losses import candidates, prefix_ranking_loss
from siglum.tokenize.rq import ResidualQuantizer
from siglum.tokenize.train import tokenizer_losses

SEEDS = st.integers(0, 100_000)
IDS = st.lists(st.integers(0, 6), min_size=2, max_size=9)


def case(ids: list[int], seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Unit queries and targets, codes of few words, partial sums and kinds; equal ids are equal targets."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.nn.functional.normalize(torch.randn(2, 7, 4, generator=generator, dtype=torch.float64), dim=-1)
    codes, books = torch.randint(3, (7, 3), generator=generator), torch.randn(3, 3, 4, generator=generator).double()
    mark = torch.tensor(ids)
    query = torch.nn.functional.normalize(torch.randn(len(ids), 4, generator=generator, dtype=torch.float64), dim=-1)
    chosen = torch.stack([books[level][codes[mark][:, level]] for level in range(3)], 1)
    return query, rows[0][mark], codes[mark], chosen.cumsum(1), mark % 2


def first_places(ids: list[int]) -> Tensor:
    return torch.tensor([ids.index(mark) for mark in ids])


def loss_of(ids: list[int], parts: tuple[Tensor, ...], config: TokenizerConfig, *, apart: bool) -> Tensor:
    query, target, codes, partial, kind = parts
    place = first_places(ids)
    other = kind[:, None] != kind[None, :] if apart else None
    repeat = place != torch.arange(len(ids))
    return prefix_ranking_loss(query, target, partial, codes, place, repeat, config, 0, other)


@given(ids=IDS, top_k=st.integers(1, 12), keep=st.booleans(), items=st.booleans(), seed=SEEDS)
def test_the_loss_is_that_of_the_sub_batches_of_one_kind(
    ids: list[int], top_k: int, keep: bool, items: bool, seed: int
) -> None:
    config = TokenizerConfig(
        top_k=top_k, rank_keep_positive=keep, rank_form="items" if items else "prefixes", temperature=0.3
    )
    parts = case(ids, seed)
    partial = parts[3].requires_grad_()
    whole = len(ids) * loss_of(ids, parts, config, apart=True)
    total = torch.zeros(())
    for kind in (0, 1):
        mine = parts[4] == kind
        own = [mark for mark in ids if mark % 2 == kind]
        if own:
            total = total + len(own) * loss_of(own, tuple(part[mine] for part in parts), config, apart=False)
    # Softmaxes are taken in single precision, over rows of another length here.
    torch.testing.assert_close(whole, total, atol=1e-5, rtol=1e-4)
    grads = [torch.autograd.grad(loss, partial, allow_unused=True)[0] for loss in (whole, total)]
    torch.testing.assert_close(grads[0], grads[1], atol=1e-4, rtol=1e-4)


@given(ids=IDS, top_k=st.integers(1, 12), keep=st.booleans(), seed=SEEDS)
def test_targets_of_another_kind_come_after_all_candidates(ids: list[int], top_k: int, keep: bool, seed: int) -> None:
    query, target, *_, kind = case(ids, seed)
    place = first_places(ids)
    out = (place != torch.arange(len(ids)))[None] | (kind[:, None] != kind[None, :])
    for row, pick in enumerate(candidates(query @ target.T, place, out, top_k, keep).tolist()):
        left_out = [bool(out[row, j]) for j in pick]
        assert left_out == sorted(left_out)
        room = int((~out[row]).sum())
        assert left_out.count(False) == min(top_k, room), "a candidate is left out for no one of another kind"


def test_another_kind_has_no_part_in_the_loss() -> None:
    ids, config = [0, 1, 2, 3, 4], TokenizerConfig(top_k=8, temperature=0.3)
    query, target, codes, partial, kind = case(ids, 1)
    mixed = loss_of(ids, (query, target, codes, partial, kind), config, apart=False)
    before = loss_of(ids, (query, target, codes, partial, kind), config, apart=True)
    assert float(mixed) != pytest.approx(float(before))
    # One text among images: moving it moves nothing, for its own query has no one else to rank.
    alone = torch.tensor([0, 0, 1, 0, 0])
    first = loss_of(ids, (query, target, codes, partial, alone), config, apart=True)
    moved, shifted = target.clone(), partial.clone()
    moved[2] += 3.0
    shifted[2] -= 5.0
    assert torch.equal(loss_of(ids, (query, moved, codes, shifted, alone), config, apart=True), first)


def test_negatives_of_one_modality_are_what_the_fusion_config_asks_for() -> None:
    config: dict[str, Any] = {"vocab": (4, 4), "update": "ema", "rank_weight": 1.0, "temperature": 0.3}
    quantizer = ResidualQuantizer(TokenizerConfig(**config), 5)
    generator = torch.Generator().manual_seed(0)
    rows = torch.nn.functional.normalize(torch.randn(3, 30, 5, generator=generator), dim=-1)
    kinds = torch.arange(30) % 3
    quantizer.fit(rows[0], kinds, generator)
    query, target = rows[1, :9].clone().requires_grad_(), rows[2, :9].clone().requires_grad_()

    def losses(pick: Tensor, negatives: Any) -> dict[str, Tensor]:
        fusion = FusionConfig(temperature=0.1, smoothing=0.1, negatives=negatives)
        return tokenizer_losses(quantizer, query[pick], target[pick], pick, kinds[pick], fusion)[0]

    everything = torch.arange(9)
    apart, mixed = losses(everything, "modality"), losses(everything, "all")
    parts = [losses(torch.arange(kind, 9, 3), "all") for kind in range(3)]
    for name in ("cl", "rank"):
        torch.testing.assert_close(apart[name], torch.stack([part[name] for part in parts]).mean())
        assert float((apart[name] - mixed[name]).detach().abs()) > 1e-3
