"""The tokenizer's losses against slow implementations of their definitions, and where their gradients go."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from siglum.config import FusionConfig, TokenizerConfig
from siglum.tokenize.losses import (
    alignment_loss,
    candidates,
    codebook_loss,
    first_of_prefix,
    listwise_kl,
    prefix_numbers,
    prefix_ranking_loss,
    residual_loss,
    straight_through,
)
from siglum.tokenize.rq import ResidualQuantizer
from siglum.tokenize.train import tokenizer_losses, total_loss
from siglum.types import SiglumError

SEEDS = st.integers(0, 100_000)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.integers(0, 1), SEEDS)
def test_residual_and_codebook_loss_are_means_of_squares(
    num: int, levels: int, dim: int, first: int, seed: int
) -> None:
    first = min(first, levels - 1)
    residuals, codewords = list(normal(levels, num, dim, seed=seed)), normal(num, levels, dim, seed=seed + 1)

    def mean_square(start: int) -> float:
        total = 0.0
        for level in range(start, levels):
            for n in range(num):
                for d in range(dim):
                    total += float(residuals[level][n, d] - codewords[n, level, d]) ** 2
        return total / (num * dim * (levels - start))

    assert float(residual_loss(residuals, codewords, first)) == pytest.approx(mean_square(first), rel=1e-9)
    assert float(codebook_loss(residuals, codewords)) == pytest.approx(mean_square(0), rel=1e-9)


def test_residual_loss_moves_the_vectors_and_codebook_loss_the_codewords() -> None:
    residual, codewords = normal(4, 3, seed=0).requires_grad_(), normal(4, 2, 3, seed=1).requires_grad_()
    residual_loss([residual, residual], codewords).backward()  # type: ignore[no-untyped-call]
    assert codewords.grad is None
    assert residual.grad is not None
    assert float(residual.grad.abs().min()) > 0
    residual.grad = None
    codebook_loss([residual, residual], codewords).backward()  # type: ignore[no-untyped-call]
    assert residual.grad is None
    assert codewords.grad is not None
    assert float(codewords.grad.abs().min()) > 0


@given(st.integers(1, 5), st.integers(1, 4), SEEDS)
def test_alignment_loss_is_the_mean_square_of_normalised_rows(num: int, dim: int, seed: int) -> None:
    query, target = normal(num, dim, seed=seed), normal(num, dim, seed=seed + 1)
    total = 0.0
    for q, x in zip(query.tolist(), target.tolist(), strict=True):
        norm_q, norm_x = math.hypot(*q), math.hypot(*x)
        total += sum((a / norm_q - b / norm_x) ** 2 for a, b in zip(q, x, strict=True))
    assert float(alignment_loss(query, target)) == pytest.approx(total / (num * dim), rel=1e-9, abs=1e-12)
    assert float(alignment_loss(query, 3 * query)) == pytest.approx(0, abs=1e-12)


@given(st.lists(st.lists(st.integers(0, 4), min_size=6, max_size=6), min_size=1, max_size=4))
def test_the_first_of_every_prefix_is_marked(rows: list[list[int]]) -> None:
    wanted = [[value not in row[:place] for place, value in enumerate(row)] for row in rows]
    assert first_of_prefix(torch.tensor(rows), 5).tolist() == wanted


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=8),
    st.integers(1, 3),
)
def test_equal_numbers_are_equal_prefixes(rows: list[tuple[int, int, int]], length: int) -> None:
    numbers = prefix_numbers(torch.tensor(rows), length).tolist()
    for i, left in enumerate(rows):
        for j, right in enumerate(rows):
            assert (numbers[i] == numbers[j]) == (left[:length] == right[:length])


def slow_candidates(
    scores: list[float], positive: int, repeat: list[bool], top_k: int, keep_positive: bool
) -> list[int]:
    allowed = [j for j in range(len(scores)) if not repeat[j] or (keep_positive and j == positive)]
    best = sorted(allowed, key=lambda j: -scores[j])
    if keep_positive:
        best = [positive] + [j for j in best if j != positive]
    return sorted(best[:top_k], key=lambda j: -scores[j])


def repeats(ids: list[int]) -> list[bool]:
    return [mark in ids[:place] for place, mark in enumerate(ids)]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.integers(1, 10), st.booleans(), SEEDS)
def test_candidates_are_the_best_distinct_targets_with_the_positive(
    ids: list[int], top_k: int, keep: bool, seed: int
) -> None:
    teacher, positive, repeat = normal(len(ids), len(ids), seed=seed), torch.arange(len(ids)), repeats(ids)
    found = candidates(teacher, positive, torch.tensor(repeat)[None], top_k, keep)
    assert found.shape == (len(ids), min(top_k, len(ids)))
    for row, pick in enumerate(found.tolist()):
        wanted = slow_candidates(teacher[row].tolist(), row, repeat, top_k, keep)
        assert pick[: len(wanted)] == wanted, "left-out targets come last, if at all"
        assert len(set(pick)) == len(pick)


def slow_kl(teacher: list[float], student: list[float], temperature: float) -> float:
    def log_softmax(values: list[float]) -> list[float]:
        norm = math.log(sum(math.exp(value / temperature) for value in values))
        return [value / temperature - norm for value in values]

    log_t, log_s = log_softmax(teacher), log_softmax(student)
    return sum(math.exp(t) * (t - s) for t, s in zip(log_t, log_s, strict=True))


def slow_rank_loss(
    query: Tensor,
    target: Tensor,
    partial: Tensor,
    codes: Tensor,
    positive: list[int],
    repeat: list[bool],
    config: TokenizerConfig,
    first: int,
) -> float:
    """Prefix ranking distillation from its definition, with lists and dictionaries."""
    total = 0.0
    for i, q in enumerate(query):
        scores = [float(q @ x) for x in target]
        chosen = slow_candidates(scores, positive[i], repeat, config.top_k, config.rank_keep_positive)
        for level in range(first, codes.shape[1]):
            best: dict[Any, tuple[float, float]] = {}
            for j in chosen:
                vector = partial[j, level]
                student = float(q @ vector) / (float(vector.norm()) if config.rank_cosine else 1.0)
                key: Any = j if config.rank_form == "items" else tuple(codes[j, : level + 1].tolist())
                if key not in best or scores[j] > best[key][0]:
                    best[key] = scores[j], student
            total += slow_kl([t for t, _ in best.values()], [s for _, s in best.values()], config.temperature)
    scale = config.temperature**2 if config.rank_scale_tau2 else 1.0
    return scale * total / (len(query) * (codes.shape[1] - first))


def rank_case(
    ids: list[int], levels: int, vocab: int, seed: int, *, dropout: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Random unit queries and targets, few codes (so that prefixes are shared) and their partial sums.

    Pairs with the same target have the same vector and codes, unless `dropout` made them differ.
    """
    num = len(ids)
    query, target = (torch.nn.functional.normalize(normal(num, 4, seed=seed + k), dim=-1) for k in range(2))
    codes = torch.randint(vocab, (num, levels), generator=torch.Generator().manual_seed(seed))
    if not dropout:
        place = torch.tensor([ids.index(mark) for mark in ids])
        target, codes = target[place], codes[place]
    books = 0.5 * normal(levels, vocab, 4, seed=seed + 2)
    partial = torch.stack([books[level][codes[:, level]] for level in range(levels)], 1).cumsum(1)
    return query, target, partial, codes, torch.tensor(repeats(ids))


@given(
    ids=st.lists(st.integers(0, 6), min_size=1, max_size=8),
    levels=st.integers(2, 4),
    vocab=st.integers(1, 4),
    first=st.integers(0, 1),
    top_k=st.integers(1, 9),
    flags=st.tuples(*[st.booleans()] * 5),
    temperature=st.sampled_from([0.05, 0.2, 1.0]),
    seed=SEEDS,
)
def test_ranking_loss_is_its_definition(
    ids: list[int],
    levels: int,
    vocab: int,
    first: int,
    top_k: int,
    flags: tuple[bool, ...],
    temperature: float,
    seed: int,
) -> None:
    items, cosine, tau2, keep, dropout = flags
    config = TokenizerConfig(
        rank_form="items" if items else "prefixes",
        rank_cosine=cosine,
        rank_scale_tau2=tau2,
        rank_keep_positive=keep,
        temperature=temperature,
        top_k=top_k,
    )
    query, target, partial, codes, repeat = rank_case(ids, levels, vocab, seed, dropout=dropout)
    positive = torch.arange(len(ids))
    found = float(prefix_ranking_loss(query, target, partial, codes, positive, repeat, config, first))
    wanted = slow_rank_loss(query, target, partial, codes, positive.tolist(), repeat.tolist(), config, first)
    assert found == pytest.approx(wanted, rel=1e-4, abs=1e-6)
    assert found >= -1e-6


def test_a_prefix_counts_once_with_its_best_candidate() -> None:
    query = torch.tensor([[1.0, 0.0]])
    target = torch.tensor([[0.9, 0.0], [0.5, 0.0], [0.4, 0.0]])
    codes = torch.tensor([[0, 0], [0, 1], [1, 0]])
    partial = torch.tensor([[[0.6, 0.0]] * 2, [[0.6, 0.0]] * 2, [[0.3, 0.0]] * 2])
    config = TokenizerConfig(temperature=0.5, top_k=3)
    found = prefix_ranking_loss(
        query, target, partial[:, :1], codes[:, :1], torch.tensor([0]), torch.zeros(3, dtype=torch.bool), config, 0
    )
    assert float(found) == pytest.approx(slow_kl([0.9, 0.4], [0.6, 0.3], 0.5), rel=1e-5)


@given(st.integers(1, 6), st.integers(1, 6), st.sampled_from([0.01, 0.05, 1.0]), SEEDS)
def test_kl_is_never_negative_and_zero_for_equal_rankings(rows: int, size: int, temperature: float, seed: int) -> None:
    teacher, student = normal(rows, size, seed=seed), normal(rows, size, seed=seed + 1)
    keep = torch.rand(rows, size, generator=torch.Generator().manual_seed(seed)) < 0.6
    keep[:, 0] = True
    found = listwise_kl(teacher, student, keep, temperature)
    for row in range(rows):
        kept = keep[row].tolist()
        pick = [[float(v) for v, k in zip(side[row].tolist(), kept, strict=True) if k] for side in (teacher, student)]
        if temperature > 0.02:  # below, the exponentials of the slow form overflow
            assert float(found[row]) == pytest.approx(slow_kl(pick[0], pick[1], temperature), rel=1e-3, abs=1e-4)
    assert bool((found >= -1e-5).all())
    assert bool(found.isfinite().all())
    shifted = listwise_kl(teacher, teacher + 3.0, keep, temperature)
    torch.testing.assert_close(shifted, torch.zeros_like(shifted), atol=1e-4, rtol=0)


def test_the_loss_is_zero_where_the_quantised_ranking_is_the_teacher() -> None:
    query, target, _, codes, repeat = rank_case([0, 1, 2, 3, 4], 2, 4, 3, dropout=True)
    codes = torch.arange(5)[:, None].repeat(1, 2)
    partial = target[:, None].repeat(1, 2, 1)
    config = TokenizerConfig(top_k=4)
    assert float(
        prefix_ranking_loss(query, target, partial, codes, torch.arange(5), repeat, config, 0)
    ) == pytest.approx(0, abs=1e-6)


def test_an_unknown_form_is_named() -> None:
    query, target, partial, codes, repeat = rank_case([0, 1], 2, 2, 0, dropout=False)
    config = TokenizerConfig(rank_form="lists")  # type: ignore[arg-type]
    with pytest.raises(SiglumError, match=r"rank_form is 'lists', but must be one of: prefixes, items"):
        prefix_ranking_loss(query, target, partial, codes, torch.arange(2), repeat, config, 0)


@pytest.mark.parametrize("student", [False, True])
def test_the_teacher_gets_no_gradient_and_the_query_only_if_asked(student: bool) -> None:
    query, target, partial, codes, repeat = rank_case([0, 1, 2, 3], 3, 2, 1, dropout=False)
    query, target = query.requires_grad_(), target.requires_grad_()
    config = TokenizerConfig(rank_student_gradient=student)
    loss = prefix_ranking_loss(query, target, partial, codes, torch.arange(4), repeat, config, 0)
    assert loss.requires_grad == student
    if student:
        loss.backward()  # type: ignore[no-untyped-call]
        assert target.grad is None
        assert query.grad is not None
        assert float(query.grad.abs().sum()) > 0


def small_quantizer(update: Any, **options: Any) -> ResidualQuantizer:
    config = TokenizerConfig(vocab=(4, 4, 4), update=update, **options)
    quantizer = ResidualQuantizer(config, 5)
    generator = torch.Generator().manual_seed(0)
    rows = torch.nn.functional.normalize(torch.randn(60, 5, generator=generator), dim=-1)
    quantizer.fit(rows, torch.arange(60) % 3, generator)
    return quantizer


def small_batch(number: int = 8) -> tuple[Tensor, Tensor]:
    rows = torch.nn.functional.normalize(torch.randn(2, number, 5, generator=torch.Generator().manual_seed(1)), dim=-1)
    return rows[0].clone().requires_grad_(), rows[1].clone().requires_grad_()


@pytest.mark.parametrize("update", ["hybrid", "grad", "ema"])
def test_codewords_feel_the_ranking_loss_unless_they_follow_the_average_alone(update: Any) -> None:
    quantizer = small_quantizer(update)
    query, target = small_batch()
    losses, _, codes = tokenizer_losses(
        quantizer, query, target, torch.arange(8), torch.arange(8) % 3, FusionConfig(temperature=0.1)
    )
    losses["rank"].backward()  # type: ignore[no-untyped-call]
    assert target.grad is not None
    assert float(target.grad.abs().sum()) > 0, "the straight-through gradient reaches the targets"
    assert query.grad is None or float(query.grad.abs().sum()) == 0
    for level, book in enumerate(quantizer.codebooks):
        if update == "ema":
            assert book.grad is None
            assert not book.requires_grad
        else:
            chosen = torch.zeros(len(book), dtype=torch.bool)
            chosen[codes[8:, level]] = True
            assert book.grad is not None
            assert bool((book.grad[~chosen] == 0).all())
            assert float(book.grad[chosen].abs().sum()) > 0


def test_the_residual_loss_pulls_vectors_and_leaves_codewords_alone() -> None:
    quantizer = small_quantizer("hybrid")
    query, target = small_batch()
    losses, _, _ = tokenizer_losses(
        quantizer, query, target, torch.arange(8), torch.arange(8) % 3, FusionConfig(temperature=0.1)
    )
    grads = torch.autograd.grad(losses["rq"], [query, *quantizer.codebooks], allow_unused=True)
    assert grads[0] is not None
    assert float(grads[0].abs().sum()) > 0
    assert all(grad is None for grad in grads[1:])


def test_the_straight_through_gradient_is_the_identity_at_every_level() -> None:
    quantizer = small_quantizer("hybrid")
    _, target = small_batch()
    codes, _ = quantizer.assign(target, torch.arange(8) % 3)
    partial = straight_through(quantizer.partial_sums(codes), target)
    torch.testing.assert_close(partial, quantizer.partial_sums(codes))
    weight = torch.randn(partial.shape, generator=torch.Generator().manual_seed(2))
    for level in range(partial.shape[1]):
        (found,) = torch.autograd.grad((weight[:, level] * partial[:, level]).sum(), target, retain_graph=True)
        torch.testing.assert_close(found, weight[:, level])
    book_grads = torch.autograd.grad((weight[:, -1] * partial[:, -1]).sum(), list(quantizer.codebooks))
    for level, found in enumerate(book_grads):
        torch.testing.assert_close(found, torch.zeros_like(found).index_add_(0, codes[:, level], weight[:, -1]))


def test_the_alignment_gradient_to_the_vectors_is_not_multiplied_by_the_levels() -> None:
    quantizer = small_quantizer("ema")
    query, target = small_batch()
    kinds = torch.arange(8) % 3
    losses, _, codes = tokenizer_losses(quantizer, query, target, torch.arange(8), kinds, FusionConfig(temperature=0.1))
    (found,) = torch.autograd.grad(losses["mse"], query)
    query_hat = quantizer.decode(codes[:8]).detach().requires_grad_()
    (wanted,) = torch.autograd.grad(alignment_loss(query_hat, quantizer.decode(codes[8:])), query_hat)
    torch.testing.assert_close(found, wanted)


def test_a_repeated_target_is_one_candidate_even_for_its_own_query() -> None:
    config: dict[str, Any] = {"rank_form": "items", "top_k": 8, "temperature": 0.5}
    quantizer = small_quantizer("hybrid", **config)
    query, target = (rows.detach() for rows in small_batch(5))
    ids, place = torch.tensor([4, 9, 4, 2, 9]), torch.tensor([0, 1, 0, 3, 1])
    target = target[place]
    kinds = ids % 3
    losses, _, codes = tokenizer_losses(quantizer, query, target, ids, kinds, FusionConfig(temperature=0.1))
    distinct = torch.tensor([0, 1, 3])
    partial = quantizer.partial_sums(codes[5:])[distinct].detach()
    wanted = slow_rank_loss(
        query, target[distinct], partial, codes[5:][distinct], [0, 1, 0, 2, 1], [False] * 3, quantizer.config, 1
    )
    assert float(losses["rank"].detach()) == pytest.approx(wanted, rel=1e-4)


def test_losses_named_and_weighted_as_configured() -> None:
    query, target = small_batch()
    for update, rank, wanted in (
        ("hybrid", 5.0, {"rq", "cl", "mse", "rank"}),
        ("grad", 0.0, {"rq", "cl", "mse", "codebook"}),
    ):
        quantizer = small_quantizer(update, rank_weight=rank, rq_weight=2.0, mse_weight=3.0)
        losses, _, _ = tokenizer_losses(
            quantizer, query, target, torch.arange(8), torch.arange(8) % 3, FusionConfig(temperature=0.1)
        )
        assert set(losses) == wanted
        weight = {"rq": 2.0, "codebook": 2.0, "mse": 3.0, "cl": 1.0, "rank": 0.25 * rank}
        found = total_loss(losses, quantizer.config, 0.25 * rank)
        assert float(found.detach()) == pytest.approx(
            sum(weight[name] * float(value.detach()) for name, value in losses.items()), rel=1e-5
        )
    fixed, _, _ = tokenizer_losses(
        quantizer, query.detach(), target.detach(), torch.arange(8), torch.arange(8) % 3, FusionConfig(temperature=0.1)
    )
    assert "cl" not in fixed, "with fixed vectors L_cl is a constant"
