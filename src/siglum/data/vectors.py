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
from siglum.given import as_array, listed
from siglum.types import Features, Histories, SiglumError, Task, Vectors, shown

STAGE = "vectors"
FIELDS_FILE = "fields.safetensors"
HISTORIES_FILE = "histories.safetensors"
HISTORIES = ("row_MH", "user_M", "seen_M")


def check_parts(features: Features, what: str) -> None:
    """Refuse features that are not ids with as many rows of numbers and as many masks."""
    if isinstance(features.ids, str) or not isinstance(features.ids, Sequence | np.ndarray):
        raise SiglumError(f"the ids of the {what} must be a list of strings, not {shown(features.ids)}.")
    if isinstance(features.ids, np.ndarray) and features.ids.ndim != 1:
        raise SiglumError(f"the ids of the {what} must be a list of strings, not of shape {features.ids.shape}.")
    size = len(features.ids)
    for part in ("image", "text"):
        rows, there = getattr(features, part), getattr(features, f"has_{part}")
        if not isinstance(rows, np.ndarray) or rows.ndim != 2 or len(rows) != size or rows.dtype.kind not in "fiu":
            raise SiglumError(f"{part} features of the {what} must be numbers ({size}, D), not {_described(rows)}.")
        if not isinstance(there, np.ndarray) or there.shape != (size,) or there.dtype != bool:
            raise SiglumError(f"has_{part} of the {what} must be {size} truth values, not {_described(there)}.")


def _described(value: object) -> str:
    return f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else shown(value)


def check_features(features: Features, what: str) -> None:
    """Refuse NaN, infinite or all-zero features and duplicate ids, naming the first offender."""
    check_parts(features, what)
    if len(features) == 0:
        raise SiglumError(f"there are no {what}: the collection is empty.")
    for name in features.ids:
        if not isinstance(name, str):
            raise SiglumError(f"the ids of the {what} must be strings, but one of them is {shown(name)}.")
    if len(set(features.ids)) != len(features):
        seen: set[str] = set()
        twice = next(i for i in features.ids if i in seen or seen.add(i))  # type: ignore[func-returns-value]
        raise SiglumError(f"the id {shown(twice)} stands twice among the {what}; ids must be unique.")
    for part, rows, mask in (("image", features.image, features.has_image), ("text", features.text, features.has_text)):
        for start in range(0, len(rows), 65_536):
            block, there = np.asarray(rows[start : start + 65_536], np.float32), mask[start : start + 65_536]
            for fault, bad in (("NaN or infinite", ~np.isfinite(block).all(1)), ("zero", there & ~block.any(1))):
                if bad.any():
                    first = shown(features.ids[start + int(np.argmax(bad))])
                    raise SiglumError(
                        f"the {part} feature of {what} {first} is {fault} ({int(bad.sum())} rows); mend or drop them."
                    )
    features.modality  # noqa: B018  raises where a row has neither part


def with_widths(features: Features, image_dim: int, text_dim: int, what: str) -> Features:
    """Return features (N, Di), (N, Dt) of these widths; a part that no row has may come in any."""
    check_parts(features, what)
    parts = {}
    for name, there, dim in (("image", features.has_image, image_dim), ("text", features.has_text, text_dim)):
        rows = getattr(features, name)
        if rows.shape[1] != dim and not there.any():
            rows = np.zeros((len(features), dim), np.float32)
        if rows.shape[1] != dim:
            raise SiglumError(
                f"{name} features of the {what} have {rows.shape[1]} numbers, but those of this run have {dim}."
            )
        parts[name] = rows
    return replace(features, **parts)


def save_vectors(
    folder: Path, vectors: Vectors, inputs: dict[str, str], fields: Sequence[str] = (), **facts: Any
) -> str:
    """Write the stage, with what is kept of the items to show them by, and return its fingerprint."""
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
    for name in (FIELDS_FILE, HISTORIES_FILE):
        (folder / name).unlink(missing_ok=True)
    if vectors.histories is not None:
        rows, *counts = (getattr(vectors.histories, name) for name in HISTORIES)
        stored = [np.asarray(rows, np.int32), *(np.asarray(count, np.int64) for count in counts)]
        write_tensors(folder / HISTORIES_FILE, dict(zip(HISTORIES, stored, strict=True)))
    if any(fields):
        kept = ids_to_arrays(fields)
        write_tensors(folder / FIELDS_FILE, {"field_bytes": kept["id_bytes"], "field_offsets": kept["id_offsets"]})
    write_json(folder / "tasks.json", [{"name": task.name, "split": task.split} for task in vectors.tasks])
    return finish_stage(folder, stage=STAGE, inputs=inputs, **facts)


def load_vectors(folder: Path) -> tuple[Vectors, str]:
    """Read the stage; return the vectors and the stage's fingerprint."""
    record = open_stage(folder, STAGE)
    items, queries = (_load_features(folder / f"{name}.safetensors") for name in ("items", "queries"))
    stored = _Stored(folder / "tasks.safetensors", len(items), len(queries))
    known = read_json(folder / "tasks.json")
    if not isinstance(known, list) or not all(isinstance(task, dict) for task in known):
        raise SiglumError(f"{folder / 'tasks.json'} is not what it should be, a list of objects; encode again.")
    tasks = []
    for number, task in enumerate(known):
        name, split = task.get("name"), task.get("split")
        if not isinstance(name, str) or not isinstance(split, str):
            raise SiglumError(f"{folder / 'tasks.json'} holds a task without name or split; encode again.")
        tasks.append(stored.task(number, name, split))
    query, item = stored.rows("pair_query", len(queries)), stored.rows("pair_item", len(items))
    if len(query) != len(item):
        raise stored.fault("pair_query")
    histories = _load_histories(folder, len(queries), len(items)) if HISTORIES_FILE in record["files"] else None
    return Vectors(items, queries, query, item, tasks, histories), record["fingerprint"]


def _load_histories(folder: Path, queries: int, items: int) -> Histories:
    """Return what the queries are, refusing rows of items that are not there."""
    stored = read_tensors(folder / HISTORIES_FILE)
    found = [stored.get(name, np.zeros(0)) for name in HISTORIES]
    row_MH, *counts = found
    whole = row_MH.ndim == 2 and all(array.dtype.kind == "i" and len(array) == queries for array in found)
    if not whole or any(count.ndim != 1 for count in counts) or not -1 <= row_MH.min() <= row_MH.max() < items:
        raise SiglumError(f"{folder / HISTORIES_FILE} does not hold a history for each query; make the run again.")
    return Histories(*found)


def load_fields(folder: Path) -> list[str]:
    """Return what the stage keeps of its items to show them by; nothing where it keeps nothing."""
    if FIELDS_FILE not in open_stage(folder, STAGE)["files"]:
        return []
    arrays = read_tensors(folder / FIELDS_FILE)
    if not {"field_bytes", "field_offsets"} <= set(arrays):
        raise SiglumError(f"{folder / FIELDS_FILE} lacks arrays that it should have; encode again.")
    return ids_from_arrays(arrays["field_bytes"], arrays["field_offsets"])


class _Stored:
    """The arrays of tasks.safetensors, each checked for what it must be when it is taken."""

    def __init__(self, path: Path, items: int, queries: int) -> None:
        self.path, self.items, self.queries = path, items, queries
        self.arrays = read_tensors(path)

    def rows(self, name: str, below: int) -> np.ndarray:
        """Return an array of whole numbers from 0 up to a bound."""
        array = self.arrays.get(name)
        if array is None or array.ndim != 1 or array.dtype != np.int64:
            raise self.fault(name)
        if array.size and not (array.min() >= 0 and array.max() < below):
            raise self.fault(name)
        return array

    def task(self, number: int, name: str, split: str) -> Task:
        """Return one task."""
        query, pool = (
            self.rows(f"task{number}.query_rows", self.queries),
            self.rows(f"task{number}.pool_rows", self.items),
        )
        rows = self.rows(f"task{number}.positive_rows", self.items)
        bounds = self.rows(f"task{number}.positive_offsets", len(rows) + 1)
        whole = len(bounds) == len(query) + 1 and bounds[0] == 0 and bounds[-1] == len(rows)
        if not whole or (np.diff(bounds) < 0).any():
            raise self.fault(f"task{number}.positive_offsets")
        return Task(name, split, query, pool, np.split(rows, bounds[1:-1]) if len(query) else [])

    def fault(self, name: str) -> SiglumError:
        """Return what to say of an array that is not what it must be."""
        return SiglumError(f"{self.path} lacks the array {name!r} as it should be; encode again.")


def features_of(
    ids: Sequence[str],
    *,
    image: np.ndarray | None = None,
    text: np.ndarray | None = None,
) -> Features:
    """Return plain arrays as features; a row of NaN marks a missing part, a missing array means no row has it."""
    names = listed(ids)
    size = len(names)
    parts: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name, rows in (("image", image), ("text", text)):
        if rows is None:
            parts[name] = np.zeros((size, 0), np.float32), np.zeros(size, bool)
            continue
        array = np.array(as_array(f"{name} features", rows))
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
        names,
        parts["image"][0],
        parts["text"][0],
        parts["image"][1],
        parts["text"][1],
    )


def _features_to_arrays(features: Features) -> dict[str, np.ndarray]:
    arrays = {name: getattr(features, name) for name in ("image", "text", "has_image", "has_text")}
    return arrays | ids_to_arrays(features.ids)


def _load_features(path: Path) -> Features:
    arrays = read_tensors(path)
    if not {"image", "text", "has_image", "has_text", "id_bytes", "id_offsets"} <= set(arrays):
        raise SiglumError(f"{path} lacks arrays that features have; encode again.")
    try:
        ids = ids_from_arrays(arrays["id_bytes"], arrays["id_offsets"])
    except SiglumError as error:
        raise SiglumError(f"{path}: {error}") from error
    image, text, *has = (arrays[name] for name in ("image", "text", "has_image", "has_text"))
    whole = all(rows.ndim == 2 and len(rows) == len(ids) and rows.dtype.kind == "f" for rows in (image, text))
    if not whole or any(mask.shape != (len(ids),) for mask in has):
        raise SiglumError(f"{path} holds arrays of other sizes than its {len(ids)} ids need; encode again.")
    return Features(ids, image, text, has[0].astype(bool), has[1].astype(bool))
