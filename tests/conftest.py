"""Shared test data: a small random collection with all three modalities, made with numpy alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

from siglum.types import Features, Task, Vectors

MakeVectors = Callable[..., Vectors]

NUM_ITEMS, NUM_QUERIES, NUM_TRAIN, NUM_VAL = 300, 400, 300, 50
LATENT = 8


def pytest_configure() -> None:
    """Keep to one core and let hypothesis take its time on few examples."""
    torch.set_num_threads(1)
    settings.register_profile("siglum", deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("siglum")


def _features(
    prefix: str, latent: np.ndarray, kind: np.ndarray, maps: list[np.ndarray], noise: float, rng: np.random.Generator
) -> Features:
    """Show each latent row through the parts its kind (0 image, 1 text, 2 both) has; a missing part is a zero row."""
    has = [kind != 1, kind != 0]
    parts = []
    for there, one in zip(has, maps, strict=True):
        rows = latent @ one + noise * rng.normal(size=(len(latent), one.shape[1]))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        parts.append((rows * there[:, None]).astype(np.float32))
    return Features([f"{prefix}{row}" for row in range(len(latent))], parts[0], parts[1], has[0], has[1])


def build_vectors(seed: int = 0, image_dim: int = 16, text_dim: int = 12, noise: float = 0.1) -> Vectors:
    """Return 300 items and 400 queries (300 train, 50 val, 50 test); a query is its item seen with noise."""
    rng = np.random.default_rng(seed)
    maps = [rng.normal(size=(LATENT, dim)) for dim in (image_dim, text_dim)]
    item_latent, kind = rng.normal(size=(NUM_ITEMS, LATENT)), np.arange(NUM_ITEMS) % 3
    # Some items are asked for more than once, so that batches hold repeated targets.
    target = rng.permutation(
        np.concatenate([np.arange(NUM_ITEMS), rng.integers(0, NUM_ITEMS, NUM_QUERIES - NUM_ITEMS)])
    )
    query_latent = item_latent[target] + noise * rng.normal(size=(NUM_QUERIES, LATENT))
    items = _features("x", item_latent, kind, maps, noise, rng)
    queries = _features("q", query_latent, rng.integers(0, 3, NUM_QUERIES), maps, noise, rng)
    queries.wants = kind[target].astype(np.int8)
    tasks = []
    for split, start, end in (("val", NUM_TRAIN, NUM_TRAIN + NUM_VAL), ("test", NUM_TRAIN + NUM_VAL, NUM_QUERIES)):
        for code, name in enumerate(("i", "t", "it")):
            rows = np.arange(start, end)[kind[target[start:end]] == code]
            tasks.append(
                Task(f"any2{name}", split, rows, np.flatnonzero(kind == code), [target[row : row + 1] for row in rows])
            )
    return Vectors(items, queries, np.arange(NUM_TRAIN), target[:NUM_TRAIN], tasks)


@pytest.fixture
def make_vectors() -> MakeVectors:
    """A function that makes a random collection: (seed, image_dim, text_dim, noise)."""
    return build_vectors


@pytest.fixture
def vectors() -> Vectors:
    """300 items and 400 queries of all three modalities, with training pairs, val and test tasks."""
    return build_vectors()
