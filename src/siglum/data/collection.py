"""A collection: items, queries with their splits and tasks, and the pools queries are asked against."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from siglum.data.corpus import check_positives, read_items, read_queries
from siglum.types import Features, Item, Query, SiglumError, Task, Vectors

SPLITS = ("train", "val", "test")
T = TypeVar("T")


@dataclass(slots=True)
class Collection:
    """What a run is about. A task without a pool of its own is asked against all items."""

    items: Sequence[Item]
    queries: dict[str, Sequence[Query]]
    """By split: train, val, test."""
    pools: dict[tuple[str, str], Sequence[str]] = field(default_factory=dict)
    """Item ids by (split, task)."""
    notes: dict[str, int] = field(default_factory=dict)
    """What reading left out or could not use, in words, with how often."""
    shared: bool = False
    """Whether rows share pictures (files) and texts, so that each is better encoded once."""


class Chain(Sequence[T], Generic[T]):
    """Several sequences read as one, without copying."""

    def __init__(self, parts: Sequence[Sequence[T]]) -> None:
        self.parts = parts
        self.ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self.ends[-1]) if len(self.parts) else 0

    def __getitem__(self, index: int) -> T:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        part = int(np.searchsorted(self.ends, index, side="right"))
        return self.parts[part][index - (int(self.ends[part - 1]) if part else 0)]


def read_collection(
    items: Path, train: Path | None = None, val: Path | None = None, test: Path | None = None
) -> Collection:
    """Read one's own items and queries (JSONL or parquet); every positive must be an item."""
    found = read_items(items)
    ids = {item.id for item in found}
    queries: dict[str, Sequence[Query]] = {}
    for split, path in zip(SPLITS, (train, val, test), strict=True):
        if path is not None:
            queries[split] = read_queries(path)
            check_positives(queries[split], ids)
    if not queries:
        raise SiglumError("a collection needs queries: give at least training queries with their positives.")
    return Collection(found, queries)


def assemble(
    items: Features,
    queries: Features,
    about: Sequence[tuple[str, str, Sequence[str]]],
    pools: Mapping[tuple[str, str], Sequence[str]],
) -> Vectors:
    """Join features with what is known `about` each query row: (split, task, positive ids).

    Pool items that were not encoded are left out of their pools; tasks that share a pool share its rows.
    """
    row_of = {item_id: row for row, item_id in enumerate(items.ids)}
    pair_query, pair_item = array("q"), array("q")
    members: dict[tuple[str, str], tuple[list[int], list[np.ndarray]]] = {}
    for row, (split, task, positives) in enumerate(about):
        try:
            rows = [row_of[p] for p in positives]
        except KeyError as error:
            raise SiglumError(
                f"query {queries.ids[row]!r} names the positive {error.args[0]!r}, which is not among the items."
            ) from error
        if split == "train":
            pair_query.extend([row] * len(rows))
            pair_item.extend(rows)
        elif rows:
            of_task = members.setdefault((split, task), ([], []))
            of_task[0].append(row)
            of_task[1].append(np.array(rows, np.int64))
    everything = np.arange(len(items))
    known: dict[int, np.ndarray] = {}  # by the pool's identity: in M-BEIR all tasks may ask one pool of millions
    tasks = []
    for key, (rows_of_task, found) in members.items():
        pool_rows = everything
        if key in pools:
            pool = pools[key]
            if id(pool) not in known:
                known[id(pool)] = np.array([row_of[item] for item in pool if item in row_of], np.int64)
            pool_rows = known[id(pool)]
        tasks.append(Task(key[1], key[0], np.array(rows_of_task, np.int64), pool_rows, found))
    return Vectors(items, queries, np.array(pair_query, np.int64), np.array(pair_item, np.int64), tasks)
