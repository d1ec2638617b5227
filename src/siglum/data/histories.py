"""Sequences as the vectors of a run: every history is a query, and the item that came next answers it.

Shapes: P targets, H items of a history, N items, D numbers of a feature.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
import torch.nn.functional as F

from siglum.data.sequences import Sequences, SplitEvents
from siglum.types import Features, Histories, SiglumError, Task, Vectors

TASK = "next"
"""The one task of a recommender."""
SMALL = 1000.0
"""Features below this are pooled into half precision, as they are far apart from its largest number."""
ROWS = 8192
"""Histories pooled at once."""


def history_vectors(
    sequences: Sequences, split: SplitEvents, features: Features, *, length: int, fade: float
) -> Vectors:
    """Return items, histories and their answers; a history's features are the mean of its items', older ones fading.

    Queries stand in the order of training, validation and test, and each is named by its user and how many items came
    before. All items are the pool of both tasks.
    """
    if [*features.ids] != [item.id for item in sequences.items]:
        raise SiglumError("the item vectors are not those of the items of these sequences, in their order.")
    at = np.concatenate([split.train, split.val, split.test])
    user = np.searchsorted(sequences.offset_U, at, side="right") - 1
    number_U = np.array([user_number(name) for name in sequences.users], np.int64)
    seen = at - sequences.offset_U[user]
    row_PH = sequences.histories(at, length)
    names = [f"{sequences.users[who]}:{count}" for who, count in zip(user.tolist(), seen.tolist(), strict=True)]
    queries = pooled_features(names, features, row_PH, fade)
    train, every = len(split.train), np.arange(len(features))
    tasks, begin = [], train
    for name, targets in (("val", split.val), ("test", split.test)):
        rows = np.arange(begin, begin + len(targets))
        begin += len(targets)
        if len(targets):
            tasks.append(Task(TASK, name, rows, every, [sequences.row_E[one : one + 1] for one in targets]))
    histories = Histories(row_PH, number_U[user], seen.astype(np.int64))
    return Vectors(features, queries, np.arange(train), sequences.row_E[split.train], tasks, histories)


def user_number(name: str) -> int:
    """Return a number that stands for a user wherever the name does."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) >> 2


def fading(row_PH: np.ndarray, fade: float) -> np.ndarray:
    """Return the weight of every item of histories, 1 for the last one (P, H).

    >>> fading(np.array([[3, 1, 2], [5, -1, -1]]), 0.5).tolist()
    [[0.25, 0.5, 1.0], [1.0, 0.0, 0.0]]
    """
    there = row_PH >= 0
    age_PH = there.sum(1, keepdims=True) - 1 - np.arange(row_PH.shape[1])
    weight: np.ndarray = np.where(there, float(fade) ** np.maximum(age_PH, 0), 0.0)
    return weight


def pooled_features(names: list[str], items: Features, row_PH: np.ndarray, fade: float) -> Features:
    """Return the fading mean of the items of histories, part by part, over those that have the part."""
    found = {}
    for part in ("image", "text"):
        rows, has = torch.from_numpy(getattr(items, part).astype(np.float32)), getattr(items, f"has_{part}")
        small = not rows.numel() or float(rows.abs().max()) < SMALL
        pooled = np.zeros((len(names), rows.shape[1]), np.float16 if small else np.float32)
        for start in range(0, len(names) if rows.shape[1] else 0, ROWS):
            some = row_PH[start : start + ROWS]
            weight = fading(some, fade) * has[some]
            weight /= np.maximum(weight.sum(1, keepdims=True), 1e-12)
            bags = torch.from_numpy(np.maximum(some, 0)), rows, None
            mean = F.embedding_bag(*bags, mode="sum", per_sample_weights=torch.from_numpy(weight).float())
            pooled[start : start + ROWS] = mean.numpy()
        found[part] = pooled, (has[row_PH] & (row_PH >= 0)).any(1)
    return Features(names, found["image"][0], found["text"][0], found["image"][1], found["text"][1])
