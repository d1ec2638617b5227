"""A setting at scale tiny on a small random collection: every training takes a second."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from conftest import build_vectors
from siglum.lab.experiments.distractors import joined
from siglum.lab.experiments.setting import Setting
from siglum.types import Features, Modality, Vectors


@cache
def _vectors() -> Vectors:
    return build_vectors(noise=0.5)


class SmallSetting(Setting):
    """300 items of three kinds, 50 test queries; distractors are items of another such collection."""

    def vectors(self) -> Vectors:
        return _vectors()

    def distractors(self, kind: Modality, number: int) -> Features:
        parts = []
        for seed in range(9, 9 + -(-number // 100)):
            items = build_vectors(seed=seed, noise=0.5).items
            rows = items.rows(np.flatnonzero(items.modality == int(kind)))
            parts.append(replace(rows, ids=[f"d{seed}-{name}" for name in rows.ids]))
        return joined(parts).rows(np.arange(number))


def small_setting(out: Path, **more: object) -> Setting:
    """Return such a setting."""
    return SmallSetting("world", out, scale="tiny", **more)
