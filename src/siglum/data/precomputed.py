"""Features somebody else computed: numpy, safetensors, parquet and GENIUS' torch files.

Shapes: N rows, D numbers a row.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from siglum.data.parquet import load_pyarrow
from siglum.data.vectors import features_of
from siglum.files import ids_from_arrays, read_tensors
from siglum.types import Features, SiglumError

PART_OF = {"image": "image", "img": "image", "text": "text", "txt": "text"}
"""Names of arrays and the part they hold."""
LAYOUTS = "image and text (either may be missing), with ids if you like"
GENIUS = ("img", "text", "img_mask", "text_mask", "id_to_index")

BROKEN = (OSError, EOFError, KeyError, NotImplementedError, SyntaxError, zipfile.BadZipFile, zlib.error)
"""What numpy and zipfile raise on damaged files, beside ValueError."""


def read_features(path: Path, ids: Sequence[str] | None = None) -> Features:
    """Read features from a file; a row of NaN, a null or a mask of 0 marks a missing part.

    .npy: one array (N, D), pictures if the file's name begins with image or img, else texts. .npz, .safetensors: arrays
    image and text, perhaps ids. .parquet: a column id and list columns image and text. .pt: a dictionary as GENIUS
    writes it, whose ids are whole numbers. `ids` names the rows of a file without ids of its own; else they are
    numbered from 0.
    """
    readers = {
        ".npy": _read_npy,
        ".npz": _read_npz,
        ".safetensors": _read_safetensors,
        ".parquet": _read_parquet,
        ".pt": _read_genius,
    }
    if path.is_dir():
        inside = ", ".join(sorted(entry.name for entry in path.iterdir())[:8])
        raise SiglumError(f"{path} is a folder (with {inside or 'nothing in it'}); name one file of features.")
    if path.suffix not in readers:
        raise SiglumError(f"{path} has the suffix {path.suffix!r}, but features are read from {', '.join(readers)}.")
    if not path.exists():
        raise SiglumError(f"{path} does not exist.")
    return readers[path.suffix](path, ids)


def match_features(features: Features, ids: Sequence[str]) -> Features:
    """Return the rows of these ids, in their order.

    >>> match_features(features_of(["a", "b"], text=np.eye(2)), ["b"]).text.tolist()
    [[0.0, 1.0]]
    """
    row_of = {name: row for row, name in enumerate(features.ids)}
    missing = [name for name in ids if name not in row_of]
    if missing:
        shown = ", ".join(map(repr, missing[:3])) + (", ..." if len(missing) > 3 else "")
        raise SiglumError(
            f"{len(missing):,} of {len(ids):,} ids have no features: {shown}; those there begin with"
            f" {', '.join(map(repr, features.ids[:3]))}."
        )
    return features.rows(np.array([row_of[name] for name in ids], np.int64))


def _read_npy(path: Path, ids: Sequence[str] | None) -> Features:
    rows = _numpy(path)
    part = "image" if path.stem.lower().startswith(("image", "img")) else "text"
    return _features(path, {part: rows}, None, ids)


def _read_npz(path: Path, ids: Sequence[str] | None) -> Features:
    with _numpy(path) as file:
        try:
            arrays = {name: file[name] for name in file.files}
        except BROKEN as error:
            raise SiglumError(f"{path} is not a whole numpy file of numbers ({error}).") from error
        except ValueError as error:
            raise SiglumError(f"{path} holds arrays of Python objects; save ids as strings of one length.") from error
    own = arrays.pop("ids", None)
    return _features(path, arrays, None if own is None else own.tolist(), ids)


def _numpy(path: Path) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except (*BROKEN, ValueError) as error:
        raise SiglumError(f"{path} is not a whole numpy file of numbers ({error}).") from error


def _read_safetensors(path: Path, ids: Sequence[str] | None) -> Features:
    arrays = read_tensors(path)
    own: Iterable[Any] | None = None
    if {"id_bytes", "id_offsets"} <= set(arrays):
        own = ids_from_arrays(arrays.pop("id_bytes"), arrays.pop("id_offsets"))
    elif "ids" in arrays:
        own = arrays.pop("ids").tolist()
    masks = {part: arrays.pop(f"has_{part}").astype(bool) for part in ("image", "text") if f"has_{part}" in arrays}
    return _features(path, arrays, own, ids, masks)


def _read_parquet(path: Path, ids: Sequence[str] | None) -> Features:
    pa, pq = load_pyarrow()

    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise SiglumError(f"{path} is not a whole parquet file ({error}).") from error
    columns = {name: table[name].combine_chunks() for name in table.column_names}
    own = columns.pop("id").to_pylist() if "id" in columns else None
    wanted = {name: column for name, column in columns.items() if name in PART_OF}
    arrays = {name: _list_column(path, name, column) for name, column in wanted.items()}
    return _features(path, arrays or columns, own, ids)


def _list_column(path: Path, name: str, column: Any) -> np.ndarray:
    """Return a column of lists as an array (N, D), with NaN where it is null."""
    pa, _ = load_pyarrow()

    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        raise SiglumError(f"the column {name} of {path} is of type {kind}, but must be lists of numbers.")
    there = column.is_valid().to_numpy(zero_copy_only=False)
    present = column.drop_null()
    lengths = set(present.value_lengths().to_pylist())
    if len(lengths) != 1:
        raise SiglumError(f"the lists of column {name} of {path} have {sorted(lengths)[:4]} numbers, but must agree.")
    rows = np.full((len(column), lengths.pop()), np.nan, np.float32)
    rows[there] = present.flatten().to_numpy(zero_copy_only=False).reshape(-1, rows.shape[1])
    return rows


def _read_genius(path: Path, ids: Sequence[str] | None) -> Features:
    """Read GENIUS' dictionary; a row no id leads to, which its pools can hold, is left out."""
    import torch

    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises almost anything on a damaged file, IndexError included
        raise SiglumError(f"{path} is not a whole torch file of plain tensors ({type(error).__name__}).") from error
    if not isinstance(found, dict) or not set(GENIUS) <= set(found):
        inside = ", ".join(map(str, found)) if isinstance(found, dict) else type(found).__name__
        raise SiglumError(f"{path} holds {inside}, but must be a dictionary with {', '.join(GENIUS)}.")
    rows = np.array(list(found["id_to_index"].values()), np.int64)
    arrays, masks = {}, {}
    for name in ("img", "text"):
        tensor = found[name] if found[name].dtype == torch.float16 else found[name].float()
        arrays[name] = tensor.numpy()[rows]
        masks[PART_OF[name]] = found[f"{name}_mask"].reshape(-1).bool().numpy()[rows]
    # The ids of a union of pools are tensors of one number.
    return _features(path, arrays, [int(key) for key in found["id_to_index"]], ids, masks)


def _features(
    path: Path,
    arrays: Mapping[str, Any],
    own: Iterable[Any] | None,
    given: Sequence[str] | None,
    masks: Mapping[str, np.ndarray] | None = None,
) -> Features:
    """Return arrays by name as features, under the file's own ids, the given ones, or row numbers."""
    unknown = sorted(set(arrays) - set(PART_OF))
    if unknown or not arrays:
        raise SiglumError(f"{path} holds {', '.join(unknown) or 'nothing'}, but should hold {LAYOUTS}.")
    if own is not None and given is not None:
        raise SiglumError(f"{path} has ids of its own; read it without ids and pick rows with match_features.")
    parts = {PART_OF[name]: np.asarray(rows) for name, rows in arrays.items()}
    for name, there in (masks or {}).items():
        if name in parts:
            rows = parts[name] if parts[name].dtype == np.float16 else parts[name].astype(np.float32)
            parts[name] = np.where(there[:, None], rows, np.asarray(np.nan, rows.dtype))
    names = own if own is not None else given if given is not None else range(len(next(iter(parts.values()))))
    return features_of([str(name) for name in names], **parts)
