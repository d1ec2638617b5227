"""The index on disk: two safetensors files, streamed out array by array and mapped back in.

What is mapped is checked when it is first looked at: the rows as a whole, since a search reads all over them, the ids
block by block.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from siglum import files
from siglum.checks import BlockChecks
from siglum.index.ids import Ids
from siglum.index.pack import Layout
from siglum.index.strings import Guard, Strings
from siglum.tensors import map_tensors
from siglum.types import SiglumError

STAGE = "index"
LAYOUT = 2
"""Version of the arrays."""
ROWS_FILE = "index.safetensors"
IDS_FILE = "ids.safetensors"
FIELDS_FILE = "fields.safetensors"
Shapes = Mapping[str, tuple[str, tuple[int | None, ...]]]
"""Type and shape of each array; None is any length."""


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays as one safetensors file, atomically and without a copy of them in memory."""
    kinds = {"uint8": "U8", "uint32": "U32", "int64": "I64", "uint64": "U64"}
    # Widest first keeps every array aligned to its own element size.
    ordered = sorted(arrays.items(), key=lambda entry: (-entry[1].itemsize, entry[0]))
    header: dict[str, Any] = {}
    end = 0
    for name, array in ordered:
        start, end = end, end + array.nbytes
        header[name] = {"dtype": kinds[array.dtype.name], "shape": list(array.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with files.atomic(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, array in ordered:
            if array.size:
                file.write(np.ascontiguousarray(array).data)


def map_rows(path: Path, layout: Layout, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the mapped packed rows and positions of an index."""
    rows = map_arrays(path, {"packed": ("u1", (count, layout.row_bytes)), "order": ("u1", (count, None))})
    return rows["packed"], rows["order"]


def row_check(folder: Path, record: Mapping[str, Any]) -> Callable[[], None] | None:
    """Return what checks the rows of an index; the file is held open, as another index may take its place meanwhile.

    Rows of an earlier version have no checks by block: they are checked now, unless they are many.
    """
    if "checks" not in record:
        if (folder / ROWS_FILE).stat().st_size <= files.SMALL:
            files.verify_file(folder, ROWS_FILE, record)
        return None
    blocks = BlockChecks(folder / ROWS_FILE, record["checks"].get(ROWS_FILE, {}))
    return lambda: blocks.touch(0, blocks.size)


def map_ids(path: Path, count: int, checks: Mapping[str, Any] | None) -> Ids:
    """Return the mapped ids of an index."""
    mapped = map_tensors(path)
    expected: Shapes = {"id_bytes": ("u1", (None,)), "id_offsets": ("i8", (count + 1,))}
    if "id_lookup" in mapped:  # an earlier version kept none
        expected = {**expected, "id_lookup": ("u8", (count,))}
    arrays = _fitting(path, mapped, expected)
    guard = None if checks is None else _guard(path, checks, mapped, "id")
    return Ids(arrays["id_bytes"], arrays["id_offsets"], arrays.get("id_lookup"), guard)


def _guard(path: Path, checks: Mapping[str, Any], mapped: Mapping[str, np.ndarray], name: str) -> Guard:
    """Return what checks strings of a mapped file."""
    # An array without a single number is no map and has no place in the file.
    blob, offsets = (getattr(mapped[f"{name}_{part}"], "offset", 0) for part in ("bytes", "offsets"))
    return Guard(BlockChecks(path, checks), blob, offsets)


def write_fields(path: Path, fields: Strings) -> None:
    """Write what is kept to show of items; where that is nothing, there is no file."""
    if fields.are_empty:
        path.unlink(missing_ok=True)
    else:
        write_arrays(path, {"field_bytes": fields.blob, "field_offsets": fields.offsets})


def map_fields(folder: Path, count: int, record: Mapping[str, Any]) -> Strings | None:
    """Return the mapped fields of an index; None where it has none."""
    if FIELDS_FILE not in record["files"]:
        return None
    path, checks = folder / FIELDS_FILE, record.get("checks", {}).get(FIELDS_FILE)
    mapped = map_tensors(path)
    arrays = _fitting(path, mapped, {"field_bytes": ("u1", (None,)), "field_offsets": ("i8", (count + 1,))})
    guard = None if checks is None else _guard(path, checks, mapped, "field")
    return Strings(arrays["field_bytes"], arrays["field_offsets"], guard)


def map_arrays(path: Path, expected: Shapes) -> dict[str, np.ndarray]:
    """Map arrays back in, checking each one's dtype and shape."""
    return _fitting(path, map_tensors(path), expected)


def _fitting(path: Path, mapped: Mapping[str, np.ndarray], expected: Shapes) -> dict[str, np.ndarray]:
    for name, (dtype, shape) in expected.items():
        if name not in mapped:
            raise SiglumError(f"{path} holds no array {name!r}; make the index again.")
        found = mapped[name]
        fits = found.ndim == len(shape) and all(b in (None, a) for a, b in zip(found.shape, shape, strict=True))
        if found.dtype != np.dtype(dtype) or not fits:
            raise SiglumError(
                f"{path} holds {name!r} as {found.dtype} {found.shape}, not {dtype} {shape}; make the index again."
            )
    # Plain views of the maps: the memmap class itself makes every small look-up slower.
    return {name: np.asarray(mapped[name]) for name in expected}
