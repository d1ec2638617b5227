"""K-means finds clusters that are there, the same ones every time."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from siglum.tokenize import kmeans as module
from siglum.tokenize.kmeans import kmeans, nearest, seed_centroids
from siglum.types import SiglumError


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def clusters(num: int, each: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    centre = 20 * torch.eye(num)
    label = torch.arange(num).repeat(each)
    return centre[label] + 0.1 * torch.randn(num * each, num, generator=generator(seed)), centre, label


@given(st.integers(1, 20), st.integers(1, 9), st.integers(1, 4), st.integers(0, 10_000))
def test_nearest_is_the_least_distance(num: int, size: int, dim: int, seed: int) -> None:
    vectors, centroids = (
        torch.randn(num, dim, generator=generator(seed)),
        torch.randn(size, dim, generator=generator(seed + 1)),
    )
    for vector, index in zip(vectors, nearest(vectors, centroids), strict=True):
        distances = [float((vector.double() - centroid.double()).square().sum()) for centroid in centroids]
        assert distances[int(index)] <= min(distances) + 1e-5


def test_ties_go_to_the_lowest_index() -> None:
    centroids = torch.tensor([[5.0, 5.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    assert nearest(torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.0, 2.0]]), centroids).tolist() == [1, 1, 2]


def test_chunks_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, centroids = torch.randn(50, 6, generator=generator()), torch.randn(9, 6, generator=generator(1))
    whole = nearest(vectors, centroids)
    monkeypatch.setattr(module, "CHUNK", 7)
    assert torch.equal(nearest(vectors, centroids), whole)
    assert nearest(vectors[:0], centroids).shape == (0,)


@pytest.mark.parametrize("seed", range(5))
def test_well_separated_clusters_are_recovered(seed: int) -> None:
    vectors, centre, label = clusters(8, 40, seed)
    found = kmeans(vectors, 8, 10, generator(seed))
    assert sorted(found.argmax(1).tolist()) == list(range(8))
    order = found.argmax(1).argsort()
    torch.testing.assert_close(found[order], torch.stack([vectors[label == k].mean(0) for k in range(8)]))
    assert float((found[order] - centre).abs().max()) < 0.1


def test_the_result_is_a_function_of_the_generator() -> None:
    vectors = torch.randn(200, 5, generator=generator(3))
    first, again, other = (kmeans(vectors, 12, 5, generator(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_more_iterations_fit_better() -> None:
    vectors = torch.randn(400, 4, generator=generator(3))

    def error(iterations: int) -> float:
        centroids = kmeans(vectors, 16, iterations, generator(0))
        return float((vectors - centroids[nearest(vectors, centroids)]).square().sum())

    assert error(0) > error(1) > error(10)


def test_fewer_vectors_than_codewords_are_refused() -> None:
    with pytest.raises(
        SiglumError, match="9 codewords need at least 9 training vectors, not 8; choose a smaller vocabulary"
    ):
        kmeans(torch.randn(8, 3), 9, 2, generator())
    assert kmeans(torch.randn(9, 3), 9, 2, generator()).shape == (9, 3)


def test_an_empty_cluster_restarts_at_a_vector() -> None:
    # Three distinct points cannot fill six clusters, so some are empty in every iteration.
    points = torch.tensor([[1.0, 1.0], [3.0, 0.0], [0.0, 5.0]])
    vectors = points[torch.arange(30) % 3]
    found = kmeans(vectors, 6, 4, generator())
    assert bool(found.isfinite().all())
    assert {tuple(row) for row in found.tolist()} == {tuple(row) for row in points.tolist()}


def test_seeding_spreads_over_far_clusters() -> None:
    vectors, _, _ = clusters(6, 30)
    assert len(set(seed_centroids(vectors, 6, generator()).argmax(1).tolist())) == 6


def test_seeds_are_vectors_of_the_sample_and_distinct_as_long_as_there_are_some() -> None:
    vectors = torch.arange(10.0)[:, None]
    assert sorted(seed_centroids(vectors, 10, generator())[:, 0].tolist()) == list(range(10))
