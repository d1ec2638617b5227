"""Ragged ranges: many runs of whole numbers laid end to end in one flat array."""

from __future__ import annotations

import numpy as np


def spread(first: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return first[0], first[0]+1, ... (counts[0] of them), then the same for every other run, int64.

    >>> spread(np.array([5, 9, 20]), np.array([2, 0, 3])).tolist()
    [5, 6, 20, 21, 22]
    """
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    values: np.ndarray = np.arange(total) + np.repeat(first - ends + counts, counts)
    return values
