"""How good lists of recommended items are, user by user and over all of them.

A user has one right item. R@k is 1 where it is among the first k, NDCG@k is 1 / log2(rank + 1) there, else both are 0.
Shapes: Q users asked, K items of a list, N items, T tokens an item.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

MEASURES = ("recall@5", "recall@10", "ndcg@5", "ndcg@10")
LONGEST = 10
"""Depth of what is measured."""
LENGTHS = ((1, 4), (5, 9), (10, None))
"""Buckets of users by how many items came before."""
POPULAR = 0.2
"""Share of all items that count as popular: those with most events of training."""


def ranks_of(top_QK: np.ndarray, target_Q: np.ndarray) -> np.ndarray:
    """Return the rank of each user's right item from 1 on, 0 where its list has it not (Q,).

    >>> ranks_of(np.array([[4, 2], [1, 3]]), np.array([2, 9])).tolist()
    [2, 0]
    """
    found = top_QK == target_Q[:, None]
    rank: np.ndarray = np.where(found.any(1), found.argmax(1) + 1, 0)
    return rank


def per_user(rank_Q: np.ndarray) -> dict[str, np.ndarray]:
    """Return every measure of every user, given ranks, 0 for none.

    >>> {name: float(value[0]) for name, value in per_user(np.array([3])).items()}
    {'recall@5': 1.0, 'recall@10': 1.0, 'ndcg@5': 0.5, 'ndcg@10': 0.5}
    """
    found = {}
    for name in MEASURES:
        kind, _, depth = name.partition("@")
        there = (rank_Q > 0) & (rank_Q <= int(depth))
        gain = 1 / np.log2(np.maximum(rank_Q, 1) + 1)
        found[name] = np.where(there, gain if kind == "ndcg" else 1.0, 0.0)
    return found


def means(rank_Q: np.ndarray) -> dict[str, float]:
    """Return the mean of every measure; zeros where nobody is asked."""
    return {name: float(value.mean()) if len(value) else 0.0 for name, value in per_user(rank_Q).items()}


def drop_seen(top_QK: np.ndarray, seen: Sequence[np.ndarray]) -> np.ndarray:
    """Return the lists without the items of each user's history, closed up and filled with -1.

    >>> drop_seen(np.array([[4, 2, 7]]), [np.array([4])]).tolist()
    [[2, 7, -1]]
    """
    found = np.full_like(top_QK, -1)
    for row, (top, own) in enumerate(zip(top_QK, seen, strict=True)):
        kept = top[(top >= 0) & ~np.isin(top, own)]
        found[row, : len(kept)] = kept
    return found


def ranks_by_codes(top_QK: np.ndarray, target_Q: np.ndarray, codes_NT: np.ndarray) -> np.ndarray:
    """Return ranks where an item of the right one's codes counts as right, among distinct codes (Q,).

    Given codes without the number that tells equal ones apart, this is what some published numbers count.
    """
    _, group_N = np.unique(codes_NT, axis=0, return_inverse=True)
    group_N = group_N.ravel()
    rank_Q = np.zeros(len(top_QK), np.int64)
    group_QK = np.where(top_QK >= 0, group_N[np.maximum(top_QK, 0)], -1)
    for row, (groups, target) in enumerate(zip(group_QK, target_Q, strict=True)):
        distinct = list(dict.fromkeys(groups[groups >= 0].tolist()))
        own = int(group_N[target])
        rank_Q[row] = distinct.index(own) + 1 if own in distinct else 0
    return rank_Q


@dataclass(frozen=True, slots=True)
class UsersAsked:
    """Whom lists are made for, and what is right for them."""

    target_Q: np.ndarray
    seen: Sequence[np.ndarray]
    """All items of each user's history."""
    count_N: np.ndarray
    """Events of each item in training; 0 is a cold item."""
    codes_NT: np.ndarray | None = None
    """Codes without their disambiguation, where lists are matched by them too."""

    @property
    def cold_Q(self) -> np.ndarray:
        """Whose right item training never saw."""
        cold: np.ndarray = self.count_N[self.target_Q] == 0
        return cold


def measure_lists(top_QK: np.ndarray, asked: UsersAsked) -> dict[str, Any]:
    """Return all there is to say of one system's lists, under both policies on items already seen."""
    rank_Q = ranks_of(top_QK, asked.target_Q)
    unseen = drop_seen(top_QK, asked.seen)
    length_Q = np.array([len(own) for own in asked.seen])
    found: dict[str, Any] = {
        **means(rank_Q),
        "users": len(rank_Q),
        "unseen": means(ranks_of(unseen, asked.target_Q)),
        "cold": {"users": int(asked.cold_Q.sum()), **means(rank_Q[asked.cold_Q])},
        "warm": {"users": int((~asked.cold_Q).sum()), **means(rank_Q[~asked.cold_Q])},
        "lengths": {name: {"users": int(own.sum()), **means(rank_Q[own])} for name, own in buckets(length_Q).items()},
        **bias(top_QK, asked),
    }
    if asked.codes_NT is not None:
        found["by_codes"] = means(ranks_by_codes(top_QK, asked.target_Q, asked.codes_NT))
    return found


def buckets(length_Q: np.ndarray) -> Mapping[str, np.ndarray]:
    """Return which users have histories of each range of lengths.

    >>> {name: own.tolist() for name, own in buckets(np.array([3, 12])).items()}
    {'1-4': [True, False], '5-9': [False, False], '10+': [False, True]}
    """
    return {
        f"{low}+" if high is None else f"{low}-{high}": (length_Q >= low) & (length_Q <= (high or length_Q.max()))
        for low, high in LENGTHS
    }


def bias(top_QK: np.ndarray, asked: UsersAsked) -> dict[str, float]:
    """Return how much of the catalogue the first ten of all lists show, and how far they lean to what is popular.

    `coverage` is the share of all items shown at all, `popular` the share of places that the most popular fifth of
    items takes, and `popularity` the mean number of training events of an item shown, relative to that of the right
    items: above 1 leans to the popular.
    """
    shown = top_QK[:, :LONGEST]
    shown = shown[shown >= 0]
    if not len(shown):
        return {"coverage": 0.0, "popular": 0.0, "popularity": 0.0}
    order = np.argsort(-asked.count_N, kind="stable")
    popular_N = np.zeros(len(asked.count_N), bool)
    popular_N[order[: max(1, int(POPULAR * len(order)))]] = True
    right = max(float(asked.count_N[asked.target_Q].mean()), 1e-9)
    return {
        "coverage": len(np.unique(shown)) / len(asked.count_N),
        "popular": float(popular_N[shown].mean()),
        "popularity": float(asked.count_N[shown].mean()) / right,
    }
