"""A last code for items whose other codes are equal, so that every item has an id of its own, as in TIGER.

Shapes: N items, T tokens an item.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Disambiguation(NamedTuple):
    """What a last code had to tell apart."""

    items: int
    """Items whose other codes are not theirs alone."""
    groups: int
    """Distinct codes that several items have."""
    largest: int
    """Items of the largest group."""
    left: int
    """Items that still share all their codes, since there were more of them than last codes."""


def number_equal(codes_NT: Tensor) -> Tensor:
    """Return how many items before each one have its codes (N,).

    >>> number_equal(torch.tensor([[3, 1], [0, 1], [3, 1], [3, 1], [0, 1]])).tolist()
    [0, 0, 1, 2, 1]
    """
    if not len(codes_NT):
        return codes_NT.new_zeros(0)
    _, group_N = torch.unique(codes_NT, dim=0, return_inverse=True)
    order_N = group_N.argsort(stable=True)
    size_G = torch.bincount(group_N)
    first_G = size_G.cumsum(0) - size_G
    place_N = torch.empty_like(order_N)
    place_N[order_N] = torch.arange(len(order_N), device=order_N.device) - first_G[group_N[order_N]]
    return place_N


def disambiguate(codes_NT: Tensor, size: int) -> Tensor:
    """Return the codes with a last one that numbers equal ones; beyond `size` of them the numbers begin anew."""
    return torch.cat([codes_NT, (number_equal(codes_NT) % size)[:, None]], 1)


def fit_in(new_MT: np.ndarray, known_NT: np.ndarray, size: int) -> np.ndarray:
    """Return new items' codes with last ones that are free among those known, as far as there are free ones.

    >>> fit_in(np.array([[3, 0], [3, 0], [5, 0]]), np.array([[3, 0], [3, 2]]), 8).tolist()
    [[3, 1], [3, 3], [5, 0]]
    """
    found_MT, taken = new_MT.copy(), dict[tuple[int, ...], set[int]]()
    for *codes, last in known_NT[np.isin(_as_one(known_NT), _as_one(new_MT))].tolist():
        taken.setdefault(tuple(codes), set()).add(last)
    for place, row in enumerate(new_MT.tolist()):
        used = taken.setdefault(tuple(row[:-1]), set())
        found_MT[place, -1] = next((code for code in range(size) if code not in used), place % size)
        used.add(int(found_MT[place, -1]))
    return found_MT


def _as_one(codes_NT: np.ndarray) -> np.ndarray:
    """Return all codes but the last as one value an item, to be compared (N,)."""
    own = np.ascontiguousarray(codes_NT[:, :-1], np.int64)
    return own.view(f"V{own.shape[1] * own.itemsize}").ravel()


def count_equal(codes_NT: np.ndarray, sizes: Sequence[int]) -> Disambiguation:
    """Return what the last of the codes had to tell apart."""
    if not len(codes_NT):
        return Disambiguation(0, 0, 0, 0)
    _, group_G = np.unique(codes_NT[:, : len(sizes) - 1], axis=0, return_counts=True)
    _, whole_G = np.unique(codes_NT, axis=0, return_counts=True)
    several = group_G[group_G > 1]
    return Disambiguation(
        int(several.sum()), len(several), int(group_G.max(initial=0)), int(whole_G[whole_G > 1].sum())
    )
