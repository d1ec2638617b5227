"""Exhaustive search gives what faiss gives, whatever the chunks, and breaks ties by row."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from siglum.search.flat import flat_search
from siglum.types import SiglumError

faiss = pytest.importorskip("faiss")
SEEDS = st.integers(0, 10_000)


def unit(rows: int, dim: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(rows, dim, generator=generator), dim=1)


@given(seed=SEEDS, k=st.integers(1, 40), items=st.integers(1, 300))
def test_inner_product_equals_faiss(seed: int, k: int, items: int) -> None:
    query, item = unit(5, 12, seed), unit(items, 12, seed + 1)
    index = faiss.IndexFlatIP(12)
    index.add(item.numpy())
    score, place = index.search(query.numpy(), min(k + 1, items))
    for row, ranking in enumerate(flat_search(query, item, k)):
        np.testing.assert_allclose(ranking.score, score[row, :k], atol=1e-5)
        assert_order(ranking.position, place[row, :k], score[row])


@example(seed=194, k=33, items=179)  # the last hit and the next one are equal but for rounding
@given(seed=SEEDS, k=st.integers(1, 40), items=st.integers(1, 300))
def test_squared_distance_equals_faiss(seed: int, k: int, items: int) -> None:
    query, item = unit(5, 12, seed), 0.5 * unit(items, 12, seed + 1) * torch.arange(1, items + 1)[:, None] / items
    index = faiss.IndexFlatL2(12)
    index.add(item.numpy())
    distance, place = index.search(query.numpy(), min(k + 1, items))
    for row, ranking in enumerate(flat_search(query, item, k, squared_distance=True)):
        np.testing.assert_allclose(float(query[row] @ query[row]) - ranking.score, distance[row, :k], atol=1e-5)
        assert_order(ranking.position, place[row, :k], -distance[row])


def assert_order(found: np.ndarray, wanted: np.ndarray, score: np.ndarray) -> None:
    """The same rows in the same order, but for rows whose scores, one beyond the cut included, differ by rounding."""
    for place in np.flatnonzero(found != wanted):
        assert np.abs(score - score[place])[np.arange(len(score)) != place].min() < 1e-5


@given(seed=SEEDS, k=st.integers(1, 30), chunk=st.integers(1, 30), squared=st.booleans())
def test_ties_go_to_the_lower_row_and_chunks_do_not_matter(seed: int, k: int, chunk: int, squared: bool) -> None:
    """Small whole numbers make sums exact and ties many."""
    generator = torch.Generator().manual_seed(seed)
    query, item = (torch.randint(-2, 3, (rows, 2), generator=generator).float() for rows in (4, 25))
    scores = query @ item.T
    if squared:
        scores = 2 * scores - item.square().sum(1)
    for ranking, row in zip(flat_search(query, item, k, squared_distance=squared, chunk=chunk), scores, strict=True):
        wanted = sorted(range(25), key=lambda place: (-float(row[place]), place))[:k]
        assert ranking.position.tolist() == wanted
        assert ranking.score.tolist() == row[wanted].tolist()


def test_more_asked_for_than_there_is() -> None:
    assert [len(ranking) for ranking in flat_search(unit(2, 4, 0), unit(3, 4, 1), 10)] == [3, 3]
    assert [len(ranking) for ranking in flat_search(unit(2, 4, 0), unit(3, 4, 1)[:0], 10)] == [0, 0]


def test_a_depth_of_nothing_is_refused() -> None:
    with pytest.raises(SiglumError, match="k must be at least 1, not 0"):
        flat_search(unit(2, 4, 0), unit(3, 4, 1), 0)
