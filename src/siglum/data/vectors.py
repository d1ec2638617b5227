"""The `1-vectors` stage on disk: frozen features of items and queries, training pairs and tasks with their pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from siglum.files import (
    begin_stage,
    finish_stage,
    ids_from_arrays,
    ids_to_arrays,
    open_stage,
    read_json,
    read_tensors,
    write_json,
    write_tensors,
)
from siglum.types import Features, SiglumError, Task, Vectors

STAGE = "vectors"


def check_features(features: Features, what: str) -> None:
    """Refuse NaN, infinite or all-zero features and duplicate ids, naming the first offender."""
    if len(features) == 0:
        raise SiglumError(f"there are no {what}: the collection is empty.")
    for name in features.ids:
        if not isinstance(name, str):
            raise SiglumError(f"the ids of the {what} must be strings, but one of them is {name!r}.")
    if len(set(features.ids)) != len(features):
        seen: set[str] = set()
        twice = next(i for i in features.ids if i in seen or seen.add(i))  # type: ignore[func-returns-value]
        raise SiglumError(f"the id {twice!r} stands twice among the {what}; ids must be unique.")
    for part, rows, mask in (("image", features.image, features.has_image), ("text", features.text, features.has_text)):
        for start in range(0, len(rows), 65_536):
            block, there = np.asarray(rows[start : start + 65_536], np.float32), mask[start : start + 65_536]
            for fault, bad in (("NaN or infinite", ~np.isfinite(block).all(1)), ("zero", there & ~block.any(1))):
                if bad.any():
                    first = features.ids[start + int(np.argmax(bad))]
                    raise SiglumError(
                        f"the {part} feature of {what} {first!r} is {fault} ({int(bad.sum())} rows); mend or drop them."
                    )
    features.modality  # noqa: B018  raises where a row has neither part


def with_widths(features: Features, image_dim: int, text_dim: int, what: str) -> Features:
    """Return features (N, Di), (N, Dt) of these widths; a part that no row has may come without columns."""
    parts = {}
    for name, there, dim in (("image", features.has_image, image_dim), ("text", features.has_text, text_dim)):
        rows = getattr(features, name)
        if rows.shape[1] == 0 and not there.any():
            rows = np.zeros((len(features), dim), np.float32)
        if rows.shape[1] != dim:
            raise SiglumError(
                f"{name} features of the {what} have {rows.shape[1]} numbers, but those of this run have {dim}."
            )
        parts[name] = rows
    return replace(features, **parts)


def save_vectors(folder: Path, vectors: Vectors, inputs: dict[str, str], **facts: Any) -> str:
    """Write the stage and return its fingerprint."""
    check_features(vectors.items, "items")
    check_features(vectors.queries, "queries")
    begin_stage(folder)
    for name, features in (("items", vectors.items), ("queries", vectors.queries)):
        write_tensors(folder / f"{name}.safetensors", _features_to_arrays(features))
    arrays: dict[str, np.ndarray] = {
        "pair_query": np.asarray(vectors.pair_query, np.int64),
        "pair_item": np.asarray(vectors.pair_item, np.int64),
    }
    for number, task in enumerate(vectors.tasks):
        offsets = np.concatenate([[0], np.cumsum([len(rows) for rows in task.positives])]).astype(np.int64)
        rows = np.concatenate([np.zeros(0, np.int64), *task.positives]).astype(np.int64)
        parts = {
            "query_rows": task.query_rows,
            "pool_rows": task.pool_rows,
            "positive_rows": rows,
            "positive_offsets": offsets,
        }
        arrays |= {f"task{number}.{name}": np.asarray(value, np.int64) for name, value in parts.items()}
    write_tensors(folder / "tasks.safetensors", arrays)
    write_json(folder / "tasks.json", [{"name": task.name, "split": task.split} for task in vectors.tasks])
    return finish_stage(folder, stage=STAGE, inputs=inputs, **facts)


def load_vectors(folder: Path) -> tuple[Vectors, str]:
    """Read the stage; return the vectors and the stage's fingerprint."""
    record = open_stage(folder, STAGE)
    items, queries = (
        _features_from_arrays(read_tensors(folder / f"{name}.safetensors")) for name in ("items", "queries")
    )
    arrays = read_tensors(folder / "tasks.safetensors")
    tasks = []
    for number, task in enumerate(read_json(folder / "tasks.json")):
        part = {
            name: arrays[f"task{number}.{name}"]
            for name in ("query_rows", "pool_rows", "positive_rows", "positive_offsets")
        }
        positives = np.split(part["positive_rows"], part["positive_offsets"][1:-1]) if len(part["query_rows"]) else []
        tasks.append(Task(task["name"], task["split"], part["query_rows"], part["pool_rows"], positives))
    return Vectors(items, queries, arrays["pair_query"], arrays["pair_item"], tasks), record["fingerprint"]


def features_of(
    ids: Sequence[str],
    *,
    image: np.ndarray | None = None,
    text: np.ndarray | None = None,
) -> Features:
    """Return plain arrays as features; a row of NaN marks a missing part, a missing array means no row has it."""
    size = len(ids)
    parts: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name, rows in (("image", image), ("text", text)):
        if rows is None:
            parts[name] = np.zeros((size, 0), np.float32), np.zeros(size, bool)
            continue
        array = np.array(rows)
        if array.ndim != 2 or len(array) != size:
            raise SiglumError(f"{name} features have shape {array.shape}, but must be ({size}, D): one row an id.")
        if array.dtype.kind not in "fiu":
            raise SiglumError(f"{name} features must be numbers, but they are {array.dtype}.")
        if array.dtype not in (np.float16, np.float32):
            array = array.astype(np.float32)
        there = ~np.isnan(array).all(1)
        array[~there] = 0
        parts[name] = array, there
    return Features(
        list(ids),
        parts["image"][0],
        parts["text"][0],
        parts["image"][1],
        parts["text"][1],
    )


def _features_to_arrays(features: Features) -> dict[str, np.ndarray]:
    arrays = {name: getattr(features, name) for name in ("image", "text", "has_image", "has_text")}
    return arrays | ids_to_arrays(features.ids)


def _features_from_arrays(arrays: dict[str, np.ndarray]) -> Features:
    ids = ids_from_arrays(arrays["id_bytes"], arrays["id_offsets"])
    return Features(
        ids,
        arrays["image"],
        arrays["text"],
        arrays["has_image"].astype(bool),
        arrays["has_text"].astype(bool),
    )
