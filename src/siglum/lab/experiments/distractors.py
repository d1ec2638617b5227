"""Larger pools for the same queries: more items of the kind a task asks for, which answer none of its queries.

For the drawn world they are items of further worlds in the same words and shapes, made in blocks that are kept in
OUT/data and shared by all; for a folder of captions its items of training and validation, as far as they reach.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from siglum.encode.builtin import BuiltinEncoder
from siglum.encode.run import encode_rows
from siglum.files import fingerprint, map_tensors, write_tensors
from siglum.lab.sources import DRAWING, sources_fingerprint
from siglum.lab.world.collection import MOST_ITEMS, World
from siglum.types import Features, Modality, SiglumError, Task, Vectors

if TYPE_CHECKING:
    from siglum.lab.experiments.setting import Setting

BLOCK = 25_000
"""Items of a block."""
FIRST_WORLD = 1_000
"""How far the seeds of further worlds lie beyond the world's own."""
PARTS = ("image", "text", "has_image", "has_text")


def blocks(number: int) -> range:
    """Return the blocks that so many items take.

    >>> list(blocks(25_001))
    [0, 1]
    """
    return range(-(-number // BLOCK))


def distractors(setting: Setting, kind: Modality, number: int) -> Features:
    """Return the first `number` distractors of a kind, the same for any number beyond."""
    if setting.is_world:
        found = joined([block_of(setting, kind, block) for block in blocks(number)])
    else:
        found = _others(setting.vectors(), kind)
    if len(found) < number:
        raise SiglumError(
            f"{setting.label} has {len(found):,} items of kind {kind.short} beside those of test, but {number:,} were "
            "asked for; ask for smaller pools."
        )
    return found.rows(np.arange(number))


def block_of(setting: Setting, kind: Modality, block: int) -> Features:
    """Return a block of the world's distractors, from OUT/data where it is there already."""
    from siglum.lab.experiments.setting import locked

    world_seed, encoder = setting.world_seed + FIRST_WORLD + block, BuiltinEncoder()
    own = fingerprint(world_seed, BLOCK, encoder.fingerprint(), sources_fingerprint(*DRAWING))
    path = setting.out / "data" / "distractors" / f"{own}-{kind.short}-{block:03d}.safetensors"
    with locked(path):
        if not path.exists():
            _draw(path, World(MOST_ITEMS, world_seed), kind, encoder)
    arrays = map_tensors(path)
    ids = [f"d{block:03d}-{place:05d}-{kind.short}" for place in range(BLOCK)]
    return Features(ids, *(arrays[part] for part in PARTS))


def _draw(path: Path, world: World, kind: Modality, encoder: BuiltinEncoder) -> None:
    """Draw and encode one item a scene."""
    rows = [world.item(f"s{scene:07d}-{kind.short}") for scene in range(BLOCK)]
    found = encode_rows(rows, encoder, strict=True)
    write_tensors(path, {part: getattr(found, part) for part in PARTS})


def _others(vectors: Vectors, kind: Modality) -> Features:
    """Return the items of a kind that are in no pool of test."""
    outside = np.setdiff1d(np.arange(len(vectors.items)), vectors.pool_rows("test"))
    return vectors.items.rows(outside[vectors.items.modality[outside] == int(kind)])


def joined(parts: list[Features]) -> Features:
    """Return features one after the other."""
    arrays = (np.concatenate([getattr(part, name) for part in parts]) for name in PARTS)
    return Features([name for part in parts for name in part.ids], *arrays)


def by_pool(vectors: Vectors, queries: int | None = None) -> list[list[Task]]:
    """Return the test tasks, those with one pool together, with at most so many queries in all."""
    tasks = [task for task in vectors.of_split("test") if len(task.query_rows)]
    each = None if queries is None else max(1, queries // len(tasks))
    groups: dict[bytes, list[Task]] = {}
    for task in tasks:
        groups.setdefault(np.asarray(task.pool_rows, np.int64).tobytes(), []).append(task.spread(each))
    return list(groups.values())


def kind_of(vectors: Vectors, tasks: list[Task]) -> Modality:
    """Return the kind of item that tasks with one pool ask for."""
    kinds = np.unique(vectors.items.modality[tasks[0].pool_rows])
    if len(kinds) > 1:
        raise SiglumError(f"the pool of task {tasks[0].name} mixes kinds of items, so that it cannot be made larger.")
    return Modality(int(kinds[0]))


def widened(setting: Setting, tasks: list[Task], size: int) -> Vectors:
    """Return tasks that share a pool as a collection of their own, whose pool of `size` items is the whole of it."""
    vectors = setting.vectors()
    own = np.asarray(tasks[0].pool_rows)
    if size < len(own):
        raise SiglumError(
            f"a pool of {size:,} was asked for, but task {tasks[0].name} has {len(own):,} items of its own."
        )
    extra = setting.distractors(kind_of(vectors, tasks), size - len(own)) if size > len(own) else None
    items = vectors.items.rows(own)
    place = {int(row): number for number, row in enumerate(own)}
    asked = np.concatenate([task.query_rows for task in tasks])
    ends = np.cumsum([len(task.query_rows) for task in tasks])
    pool = np.arange(size)
    found = [
        replace(
            task,
            query_rows=np.arange(end - len(task.query_rows), end),
            pool_rows=pool,
            positives=[np.array([place[int(row)] for row in rows], np.int64) for rows in task.positives],
        )
        for task, end in zip(tasks, ends.tolist(), strict=True)
    ]
    none = np.zeros(0, np.int64)
    return Vectors(items if extra is None else joined([items, extra]), vectors.queries.rows(asked), none, none, found)
