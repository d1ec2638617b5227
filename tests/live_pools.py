"""An index folder open for changes beside what it should hold."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from index_pools import Pool
from siglum.run.generations import replace_index
from siglum.run.live import LiveIndex

WIDTH = 3


def begin(
    folder: Path, count: int = 12, *, vectors: bool = False, shows: bool = False
) -> tuple[Pool, np.random.Generator]:
    rng, pool = np.random.default_rng(0), Pool(shows=shows)
    pool.fresh(rng, count)
    replace_index(folder, pool.index(), vectors_of(pool) if vectors else None)
    return pool, rng


def vectors_of(pool: Pool) -> np.ndarray:
    """A vector of every item that can be told from its id."""
    numbers = [int(name.split()[1]) for name in pool.codes]
    return np.array(numbers, np.float16).reshape(-1, 1) + np.arange(WIDTH, dtype=np.float16) / 4


def add(live: LiveIndex, pool: Pool, rng: np.random.Generator, number: int, *, vectors: bool = False) -> None:
    before = len(pool.codes)
    names, codes = pool.fresh(rng, number)
    live.add(names, codes, vectors_of(pool)[before:] if vectors else None, pool.shown(names))


def fill_disk(patch: pytest.MonkeyPatch) -> None:
    """Let the log take a part of a long record, and then no more."""
    real = os.write

    def half(handle: int, content: memoryview) -> int:
        if len(content) > 60:
            return real(handle, content[:50])
        raise OSError(28, "No space left on device")

    patch.setattr("siglum.run.journal.os.write", half)


def remove(live: LiveIndex, pool: Pool, names: list[str]) -> None:
    live.remove(names)
    for name in names:
        del pool.codes[name]
