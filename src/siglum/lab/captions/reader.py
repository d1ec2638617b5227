"""A captioned collection as frozen features: image and caption rows with a split, ready for both directions.

The folder holds `images.jsonl` (row, id, split), `captions.jsonl` (row, id, image_row), `image_features.npy` (I, Di)
and `text_features.npy` (C, Dt), row by row. A caption belongs to its image's split.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from siglum.data.collection import SPLITS
from siglum.data.jsonl import scan_lines
from siglum.data.vectors import check_features
from siglum.types import Features, SiglumError, Task, Vectors

FILES = ("images.jsonl", "captions.jsonl", "image_features.npy", "text_features.npy")
IMAGE_FIELDS: dict[str, type] = {"id": str, "split": str}
CAPTION_FIELDS: dict[str, type] = {"id": str, "image_row": int}


def read_captions(folder: Path) -> Vectors:
    """Return the collection as vectors with the tasks t2i and i2t.

    Items are all images, then all captions; queries are all captions, then all images. Each caption asks for its
    image and each image for its captions; the pool of a task is every image (or caption) of the split.
    """
    for name in FILES:
        if not (folder / name).exists():
            raise SiglumError(f"{folder} has no {name}; a captioned collection needs {', '.join(FILES)}.")
    images, captions = _rows(folder / FILES[0], IMAGE_FIELDS), _rows(folder / FILES[1], CAPTION_FIELDS)
    image_ID, text_CD = (_features(folder / name) for name in FILES[2:])
    for name, rows, array in ((FILES[2], images, image_ID), (FILES[3], captions, text_CD)):
        if len(rows) != len(array):
            raise SiglumError(f"{folder / name} has {len(array)} rows, but {len(rows)} are listed beside it.")
    owner_C = np.array([row["image_row"] for row in captions], np.int64)
    if len(owner_C) == 0 or owner_C.min() < 0 or owner_C.max() >= len(images):
        raise SiglumError(f"captions must name image rows 0 to {len(images) - 1} in image_row.")
    split_I = np.array([row["split"] for row in images])
    unknown = sorted(set(split_I.tolist()) - set(SPLITS))
    if unknown:
        raise SiglumError(f"the split {unknown[0]!r} in {folder / FILES[0]} is not one of {', '.join(SPLITS)}.")
    picture = _only(["i:" + row["id"] for row in images], image_ID, text_CD.shape[1], image=True)
    text = _only(
        [f"t:{place}:{row['id']}" for place, row in enumerate(captions)], text_CD, image_ID.shape[1], image=False
    )
    vectors = _assemble(picture, text, owner_C, split_I)
    check_features(vectors.items, "items")
    return vectors


def _rows(path: Path, needed: dict[str, type]) -> list[dict[str, Any]]:
    rows = []
    for number, (_, where, row) in enumerate(scan_lines(path)):
        wrong = [name for name, kind in needed.items() if type(row.get(name)) is not kind]
        if wrong or row.get("row", number) != number:
            fault = f"{wrong[0]} is {row.get(wrong[0])!r:.60}" if wrong else f"this says it is row {row['row']}"
            fields = ", ".join(f"{name} ({'text' if kind is str else 'a number'})" for name, kind in needed.items())
            raise SiglumError(f"{where}: {fault}, but rows are listed in order from 0 on, with {fields}.")
        rows.append(row)
    return rows


def _features(path: Path) -> np.ndarray:
    try:
        array: np.ndarray = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise SiglumError(f"{path} is not a whole numpy file of numbers ({error}).") from error
    if array.ndim != 2 or array.dtype.kind != "f":
        raise SiglumError(f"{path} holds {array.dtype} {array.shape}, but must be floats with one row a feature.")
    return array if array.dtype in (np.float16, np.float32) else array.astype(np.float32)


def _only(ids: list[str], rows: np.ndarray, other_dim: int, *, image: bool) -> Features:
    """Return features that have one part alone."""
    there, nothing = np.ones(len(ids), bool), np.zeros(len(ids), bool)
    blank = np.zeros((len(ids), other_dim), rows.dtype)
    return Features(ids, rows, blank, there, nothing) if image else Features(ids, blank, rows, nothing, there)


def _joined(first: Features, second: Features) -> Features:
    parts = (
        np.concatenate([getattr(first, p), getattr(second, p)]) for p in ("image", "text", "has_image", "has_text")
    )
    return Features([*first.ids, *second.ids], *parts)


def _assemble(picture: Features, text: Features, owner_C: np.ndarray, split_I: np.ndarray) -> Vectors:
    """Join both directions; item rows: images then captions, query rows: captions then images."""
    num_i, num_c = len(picture), len(text)
    captions_of = np.split(np.argsort(owner_C, kind="stable"), np.cumsum(np.bincount(owner_C, minlength=num_i))[:-1])
    for split in SPLITS:
        if not (split_I[owner_C] == split).any():
            raise SiglumError(f"there are no captions of split {split}; training and both measurements need all three.")
    learn = np.flatnonzero(split_I[owner_C] == "train")
    tasks = []
    for split in SPLITS[1:]:
        images = np.flatnonzero((split_I == split) & np.array([len(found) > 0 for found in captions_of]))
        captions = np.flatnonzero(split_I[owner_C] == split)
        pool = np.flatnonzero(split_I == split)
        tasks.append(Task("t2i", split, captions, pool, [owner_C[[row]] for row in captions]))
        tasks.append(Task("i2t", split, num_c + images, num_i + captions, [num_i + captions_of[row] for row in images]))
    return Vectors(
        items=_joined(picture, text),
        queries=_joined(text, picture),
        pair_query=np.concatenate([learn, num_c + owner_C[learn]]),
        pair_item=np.concatenate([owner_C[learn], num_i + learn]),
        tasks=tasks,
    )
