"""L_cl against its definition, ranks against a count, and contrastive training that learns and resumes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from killing import KilledAt
from siglum.config import FusionConfig
from siglum.fuse.contrastive import best_ranks, contrastive_loss, dense_mrr, embed, fit_fusion, new_fusion, pool_places
from siglum.fuse.modules import Fusion
from siglum.types import SiglumError, Task, Vectors

CONFIG = FusionConfig(
    kind="combiner", dim=12, projection=24, hidden=24, epochs=6, batch_size=60, lr=3e-3, temperature=0.1
)


def unit(number: int, dim: int, seed: int) -> Tensor:
    rows = torch.randn(number, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(rows, dim=-1)


def slow_contrastive(query: Tensor, target: Tensor, ids: list[int], temperature: float) -> float:
    """Symmetric InfoNCE, one pair at a time; pairs with the same target are neither positive nor negative."""
    total = 0.0
    for i in range(len(ids)):
        others = [j for j in range(len(ids)) if j == i or ids[j] != ids[i]]
        for anchor, pool in ((query[i], target), (target[i], query)):
            logits = {j: float(anchor @ pool[j]) / temperature for j in others}
            total += math.log(sum(math.exp(value) for value in logits.values())) - logits[i]
    return total / (2 * len(ids))


@given(st.lists(st.integers(0, 4), min_size=1, max_size=9), st.integers(0, 10_000), st.sampled_from([0.05, 0.3, 1.0]))
def test_the_loss_is_symmetric_infonce_without_repeated_targets(ids: list[int], seed: int, temperature: float) -> None:
    query, target = unit(len(ids), 5, seed), unit(len(ids), 5, seed + 1)
    found = contrastive_loss(query, target, torch.tensor(ids), temperature)
    assert float(found) == pytest.approx(slow_contrastive(query, target, ids, temperature), rel=1e-9, abs=1e-9)


@given(st.lists(st.integers(0, 6), min_size=2, max_size=9), st.integers(0, 10_000))
def test_the_loss_does_not_depend_on_the_order_of_the_batch(ids: list[int], seed: int) -> None:
    query, target, mark = unit(len(ids), 5, seed), unit(len(ids), 5, seed + 1), torch.tensor(ids)
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))
    left = contrastive_loss(query, target, mark, 0.1)
    right = contrastive_loss(query[order], target[order], mark[order], 0.1)
    assert float(left) == pytest.approx(float(right), rel=1e-9)


def test_a_repeated_target_is_no_negative() -> None:
    query, target = unit(4, 5, 0), unit(4, 5, 1)
    target[1] = target[0]
    masked = contrastive_loss(query, target, torch.tensor([7, 7, 8, 9]), 0.1)
    counted = contrastive_loss(query, target, torch.tensor([6, 7, 8, 9]), 0.1)
    assert float(masked) < float(counted)


def test_the_loss_of_a_single_pair_is_zero_and_has_finite_gradients() -> None:
    query = unit(2, 5, 0).requires_grad_()
    loss = contrastive_loss(query, unit(2, 5, 1), torch.tensor([3, 3]), 0.01)
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == 0.0
    assert query.grad is not None
    assert bool(query.grad.isfinite().all())


@given(st.integers(1, 6), st.integers(2, 12), st.integers(0, 10_000))
def test_ranks_count_the_items_at_or_above_the_best_positive(num_queries: int, num_items: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    query, pool = torch.as_tensor(rng.normal(size=(num_queries, 3))), torch.as_tensor(rng.normal(size=(num_items, 3)))
    positives = [rng.choice(num_items, rng.integers(1, num_items), replace=False) for _ in range(num_queries)]
    wanted = []
    for row, places in zip(query, positives, strict=True):
        scores = [float(row @ item) for item in pool]
        best = max(scores[place] for place in places)
        wanted.append(1 + sum(score > best for score in scores))
    assert best_ranks(query, pool, positives, chunk=2).tolist() == wanted


def test_ties_count_against_the_positive() -> None:
    pool = torch.ones(5, 2)
    assert best_ranks(torch.ones(1, 2), pool, [np.array([3])]).tolist() == [5]


def test_vectors_that_are_not_numbers_are_no_perfect_result() -> None:
    task = Task("t2i", "val", np.arange(2), np.arange(4), [np.array([0]), np.array([1])])
    assert not math.isfinite(dense_mrr(torch.full((2, 3), torch.nan), torch.rand(4, 3), [task]))


def test_mrr_is_the_mean_over_tasks_of_the_mean_reciprocal_rank() -> None:
    items = torch.eye(4)
    queries = torch.tensor([[4.0, 3, 2, 1], [1, 2, 3, 4], [4, 3, 2, 1]])
    first = Task("a", "val", np.array([0, 1]), np.array([0, 1, 2, 3]), [np.array([1]), np.array([0, 2])])
    second = Task("b", "val", np.array([2]), np.array([3, 2]), [np.array([3])])
    assert dense_mrr(queries, items, [first, second]) == pytest.approx(((1 / 2 + 1 / 2) / 2 + 1 / 2) / 2)


def test_positives_are_found_in_their_pool_or_refused() -> None:
    task = Task("a", "val", np.array([0]), np.array([8, 5, 2]), [np.array([2, 8])])
    assert [places.tolist() for places in pool_places(task)] == [[2, 0]]
    with pytest.raises(SiglumError, match=r"a positive of task a \(val\) is not in its pool"):
        pool_places(replace(task, positives=[np.array([3])]))


def bits(fusion: Fusion) -> list[Tensor]:
    return [value.clone() for value in fusion.state_dict().values()]


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_embedding_does_not_depend_on_the_batch_and_leaves_the_mode_alone(vectors: Vectors) -> None:
    fusion = new_fusion(vectors, replace(CONFIG, dropout=0.5), 0, "cpu").train()
    whole = embed(fusion, vectors.items, "cpu")
    torch.testing.assert_close(embed(fusion, vectors.items, "cpu", batch_size=7), whole)
    assert fusion.training
    assert not whole.requires_grad
    assert whole.shape == (300, 12)


def test_a_new_fusion_is_a_function_of_its_seed(vectors: Vectors) -> None:
    torch.manual_seed(5)
    first = new_fusion(vectors, CONFIG, 3, "cpu")
    torch.manual_seed(6)
    assert same(bits(first), bits(new_fusion(vectors, CONFIG, 3, "cpu")))
    assert not same(bits(first), bits(new_fusion(vectors, CONFIG, 4, "cpu")))


def test_standardisation_sees_training_rows_only(vectors: Vectors) -> None:
    config = replace(CONFIG, standardise=True)
    wanted = bits(new_fusion(vectors, config, 0, "cpu"))
    unseen = np.setdiff1d(np.arange(len(vectors.items)), vectors.pair_item)
    assert len(unseen)
    vectors.items.image[unseen] += 3
    vectors.queries.text[300:] += 3  # validation and test
    assert same(wanted, bits(new_fusion(vectors, config, 0, "cpu")))
    vectors.queries.text[:300] += 3
    assert not same(wanted, bits(new_fusion(vectors, config, 0, "cpu")))


@pytest.mark.parametrize("kind", ["combiner", "gated", "sum"])
def test_training_learns_easy_data(vectors: Vectors, kind: Any) -> None:
    config = replace(CONFIG, kind=kind, epochs=10, standardise=True)
    _, history = fit_fusion(vectors, config, seed=1)
    chance = sum(1 / rank for rank in range(1, 101)) / 100
    assert len(history) == 10
    assert history[-1]["loss_cl"] < 0.6 * history[0]["loss_cl"]
    assert max(metrics["val_mrr"] for metrics in history) > 6 * chance


def test_the_best_epoch_is_the_one_returned(vectors: Vectors) -> None:
    # So large a rate spoils what was learned, so the best epoch is not the last.
    fusion, history = fit_fusion(vectors, replace(CONFIG, lr=0.1, epochs=8), seed=0)
    values = [metrics["val_mrr"] for metrics in history]
    assert max(values) > values[-1]
    found = dense_mrr(
        embed(fusion, vectors.queries, "cpu"), embed(fusion, vectors.items, "cpu"), vectors.of_split("val")
    )
    assert found == pytest.approx(max(values), rel=1e-6)
    assert not fusion.training


def test_without_validation_the_last_epoch_is_returned(vectors: Vectors) -> None:
    vectors.tasks = vectors.of_split("test")
    _, history = fit_fusion(vectors, replace(CONFIG, epochs=2), seed=0)
    assert all("select" not in metrics for metrics in history)


def test_nothing_is_trained_without_epochs_or_parameters(make_vectors: Callable[..., Vectors]) -> None:
    vectors = make_vectors(image_dim=12, text_dim=12)
    fusion, history = fit_fusion(vectors, replace(CONFIG, epochs=0), seed=2)
    assert history == []
    assert same(bits(fusion), bits(new_fusion(vectors, CONFIG, 2, "cpu")))
    assert fit_fusion(vectors, replace(CONFIG, kind="sum"), seed=2)[1] == []


def test_no_training_pairs_is_one_sentence(vectors: Vectors) -> None:
    vectors.pair_query = vectors.pair_item = np.zeros(0, np.int64)
    with pytest.raises(SiglumError, match="no training pairs"):
        fit_fusion(vectors, CONFIG)


def test_a_resumed_training_is_bit_equal(vectors: Vectors, tmp_path: Path) -> None:
    config = replace(CONFIG, dropout=0.3, epochs=5, weight_decay=0.01)
    straight, history = fit_fusion(vectors, config, seed=4)
    with pytest.raises(KeyboardInterrupt):
        fit_fusion(vectors, config, seed=4, folder=tmp_path, log=KilledAt(2))
    resumed, again = fit_fusion(vectors, config, seed=4, folder=tmp_path, resume=True)
    assert again == history
    assert same(bits(straight), bits(resumed))
    other, _ = fit_fusion(vectors, config, seed=5)
    assert not same(bits(straight), bits(other))


def test_a_checkpoint_of_other_settings_or_other_pairs_is_refused(vectors: Vectors, tmp_path: Path) -> None:
    fit_fusion(vectors, replace(CONFIG, epochs=1), folder=tmp_path)
    for options in ({"seed": 1}, {"config": replace(CONFIG, epochs=1, lr=1e-4)}):
        with pytest.raises(SiglumError, match="another configuration"):
            fit_fusion(vectors, **{"config": replace(CONFIG, epochs=1), "folder": tmp_path, "resume": True, **options})  # type: ignore[arg-type]
    vectors.pair_item = np.roll(vectors.pair_item, 1)
    with pytest.raises(SiglumError, match="other data"):
        fit_fusion(vectors, replace(CONFIG, epochs=1), folder=tmp_path, resume=True)


def slow_by_kind(query: Tensor, target: Tensor, ids: list[int], kinds: list[int], smoothing: float) -> float:
    """L_cl at temperature 0.2 with label smoothing over those that take part, one pair at a time."""
    total = 0.0
    for i in range(len(ids)):
        others = [j for j in range(len(ids)) if j == i or (ids[j] != ids[i] and kinds[j] == kinds[i])]
        for anchor, pool in ((query[i], target), (target[i], query)):
            logits = {j: float(anchor @ pool[j]) / 0.2 for j in others}
            norm = math.log(sum(math.exp(value) for value in logits.values()))
            wanted = {j: smoothing / len(others) + (1 - smoothing) * (j == i) for j in others}
            total += sum(wanted[j] * (norm - logits[j]) for j in others)
    return total / (2 * len(ids))


PAIRS = st.lists(st.integers(0, 5), min_size=1, max_size=9)


@given(PAIRS, st.sampled_from([0.0, 0.1, 0.7, 1.0]), st.integers(0, 10_000))
def test_smoothing_goes_to_the_targets_that_take_part(ids: list[int], smoothing: float, seed: int) -> None:
    query, target, kinds = unit(len(ids), 5, seed), unit(len(ids), 5, seed + 1), [mark % 3 for mark in ids]
    mark, kind = torch.tensor(ids), torch.tensor(kinds)
    found = contrastive_loss(query, target, mark, 0.2, kind_P=kind, smoothing=smoothing)
    assert float(found) == pytest.approx(slow_by_kind(query, target, ids, kinds, smoothing), rel=1e-9, abs=1e-9)
    turned = contrastive_loss(target, query, mark, 0.2, kind_P=kind, smoothing=smoothing)
    assert float(found) == pytest.approx(float(turned), rel=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_where_nothing_is_masked_smoothing_is_that_of_torch(smoothing: float) -> None:
    query, target, own = unit(7, 5, 0), unit(7, 5, 1), torch.arange(7)
    scores = query @ target.T / 0.1
    wanted = [torch.nn.functional.cross_entropy(side, own, label_smoothing=smoothing) for side in (scores, scores.T)]
    for kind in (None, torch.ones(7)):
        found = contrastive_loss(query, target, own, 0.1, kind_P=kind, smoothing=smoothing)
        torch.testing.assert_close(found, (wanted[0] + wanted[1]) / 2)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_targets_of_another_kind_get_no_gradient_from_each_other(smoothing: float) -> None:
    """The loss and its gradients are those of one batch for each kind."""
    query, target, own = unit(8, 5, 0).requires_grad_(), unit(8, 5, 1).requires_grad_(), torch.arange(8)
    kind = own % 2
    whole = 8 * contrastive_loss(query, target, own, 0.1, kind_P=kind, smoothing=smoothing)
    for k in range(2):
        part = kind == k
        alone = 4 * contrastive_loss(query[part], target[part], own[part], 0.1, smoothing=smoothing)
        whole = whole - alone
    assert float(whole.detach()) == pytest.approx(0, abs=1e-9)
    for grad in torch.autograd.grad(whole, [query, target]):
        torch.testing.assert_close(grad, torch.zeros_like(grad), atol=1e-9, rtol=0)


def test_a_pair_alone_in_its_kind_has_nothing_to_lose_even_with_smoothing() -> None:
    query = unit(3, 5, 0).requires_grad_()
    loss = contrastive_loss(query, unit(3, 5, 1), torch.tensor([3, 3, 4]), 0.01, kind_P=torch.arange(3), smoothing=0.3)
    loss.backward()  # type: ignore[no-untyped-call]
    assert float(loss.detach()) == 0.0
    assert query.grad is not None
    assert not query.grad.any()


@given(st.integers(1, 7), st.integers(1, 9), st.integers(1, 8), st.integers(0, 10_000))
def test_ranks_with_ties_and_ragged_positives(num_queries: int, num_items: int, chunk: int, seed: int) -> None:
    """Small whole numbers tie often; every item that ties with the best positive counts against it."""
    rng = np.random.default_rng(seed)
    query, pool = (torch.as_tensor(rng.integers(-1, 2, (n, 2))).double() for n in (num_queries, num_items))
    positives = [rng.choice(num_items, rng.integers(1, num_items + 1), replace=False) for _ in range(num_queries)]
    wanted = []
    for row, places in zip(query, positives, strict=True):
        scores = [float(row @ item) for item in pool]
        wanted.append(sum(score >= max(scores[place] for place in places) for score in scores))
    assert best_ranks(query, pool, positives, chunk).tolist() == wanted
