"""Reading safetensors files that may be damaged: whole into memory or mapped, and the ids kept in them."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from siglum.types import SiglumError, one_of


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Read a whole safetensors file into memory."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    if not path.exists():
        raise SiglumError(f"{path} does not exist.")
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise SiglumError(f"{path} is not a whole safetensors file ({error}); it may be truncated.") from error


KINDS = {"U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8", "I64": "<i8"}
KINDS |= {"F16": "<f2", "F32": "<f4", "F64": "<f8", "BOOL": "?"}


def map_tensors(path: Path) -> dict[str, np.ndarray]:
    """Memory-map every tensor of a safetensors file, read-only, without loading it."""
    if not path.exists():
        raise SiglumError(f"{path} does not exist.")
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > size - 8:
                raise SiglumError(f"{path} is not a whole safetensors file; it may be truncated.")
            header = json.loads(file.read(length))
        if not isinstance(header, dict):
            raise SiglumError(f"{path} is not a whole safetensors file: its header is not an object.")
        header.pop("__metadata__", None)
        return {name: _map_tensor(path, name, entry, 8 + length, size) for name, entry in header.items()}
    except SiglumError:
        raise
    except (OSError, ValueError, OverflowError, RecursionError) as error:
        raise SiglumError(f"{path} is not a whole safetensors file ({error}); it may be truncated.") from error


def _map_tensor(path: Path, name: str, entry: Any, data: int, size: int) -> np.ndarray:
    """Map one tensor as its entry in the header says, which may be damaged."""
    found = entry if isinstance(entry, dict) else {}
    shape, bounds = (_counts(found.get(key)) for key in ("shape", "data_offsets"))
    if shape is None or bounds is None or len(bounds) != 2:
        raise SiglumError(f"{path} is not a whole safetensors file: its header says nothing sensible about {name!r}.")
    kind = one_of(f"the type of tensor {name!r} in {path}", str(found.get("dtype")), KINDS)
    dtype, (start, end) = np.dtype(KINDS[kind]), bounds
    if data + end > size:
        raise SiglumError(f"{path} is truncated: tensor {name!r} ends beyond the file.")
    if end - start != math.prod(shape) * dtype.itemsize:
        raise SiglumError(f"{path} is not a whole safetensors file: tensor {name!r} does not fill its place.")
    if end == start:
        return np.zeros(shape, dtype)
    return np.memmap(path, dtype, "r", data + start, shape)


def _counts(value: Any) -> tuple[int, ...] | None:
    """Return a list of numbers from 0 on; None where it is anything else."""
    sound = isinstance(value, list) and all(type(number) is int and number >= 0 for number in value)
    return tuple(value) if sound else None


def ids_from_arrays(blob: np.ndarray, offsets: np.ndarray) -> list[str]:
    """Return the ids stored by `ids_to_arrays`."""
    flat = blob.ndim == offsets.ndim == 1 and blob.dtype == np.uint8 and offsets.dtype.kind in "iu"
    bounds = offsets.tolist() if flat else []
    if not bounds or bounds[0] != 0 or bounds[-1] != len(blob) or any(a > b for a, b in pairwise(bounds)):
        raise SiglumError("the ids are damaged: their offsets do not fit their bytes; make them again.")
    text = bytes(blob)
    try:
        return [text[a:b].decode() for a, b in pairwise(bounds)]
    except UnicodeDecodeError as error:
        raise SiglumError(f"the ids are damaged: one is not UTF-8 ({error}); make them again.") from error
