"""The index on disk: two safetensors files, streamed out array by array and mapped back in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from siglum import files
from siglum.index.pack import Layout, narrow
from siglum.types import SiglumError

STAGE = "index"
LAYOUT = 2
"""Version of the arrays; 1 had the shared-prefix lengths and the positions as plain arrays of their own."""
ROWS_FILE = "index.safetensors"
IDS_FILE = "ids.safetensors"


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays as one safetensors file, atomically and without a copy of them in memory."""
    kinds = {"uint8": "U8", "uint32": "U32", "int64": "I64"}
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


def map_rows(path: Path, layout: Layout, count: int, version: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the mapped packed rows and positions of an index; those of version 1 are brought into the new form."""
    if version == LAYOUT:
        rows = map_arrays(path, {"packed": ("u1", (count, layout.row_bytes)), "order": ("u1", (count, None))})
        return rows["packed"], rows["order"]
    if version != 1:
        raise SiglumError(f"{path} has layout {version}, but this version reads layouts 1 and {LAYOUT}.")
    code_bytes = -(-layout.starts[-1] // 8)
    expected = {"packed": ("u1", (count, code_bytes)), "shared": ("u1", (count,)), "order": ("u4", (count,))}
    old = map_arrays(path, expected)
    packed_NB = np.zeros((count, layout.row_bytes), np.uint8)
    packed_NB[:, :code_bytes] = old["packed"]
    packed_NB[:, -1] |= old["shared"]
    return packed_NB, narrow(old["order"])


def map_arrays(path: Path, expected: Mapping[str, tuple[str, tuple[int | None, ...]]]) -> dict[str, np.ndarray]:
    """Map arrays back in, checking each one's dtype and shape (None is any length)."""
    mapped = files.map_tensors(path)
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
