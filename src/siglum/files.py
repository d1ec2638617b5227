"""Files on disk: atomic writes, fingerprints, and the record every stage leaves of itself.

Only safetensors, JSON, parquet and TREC text are written; pickle never is.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from siglum.types import SiglumError, one_of

FORMAT_VERSION = 1
STAGE_FILE = "stage.json"


@contextmanager
def atomic(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file beside `path` and move it into place only if the block succeeds."""
    name = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except OSError as error:
        raise SiglumError(
            f"could not write {path}: {error.strerror or error}; what was there before is untouched."
        ) from error
    finally:
        if name and os.path.exists(name):
            os.unlink(name)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic(path) as file:
        file.write(text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write JSON with sorted keys, so that equal values give equal bytes."""
    write_text(path, json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Read JSON, or say in one sentence why that was not possible."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError as error:
        raise SiglumError(f"{path} does not exist.") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise SiglumError(f"{path} is not valid JSON ({error}); it may be truncated.") from error


def read_record(path: Path, *keys: str) -> dict[str, Any]:
    """Read a JSON object that must have these keys."""
    record = read_json(path)
    if not isinstance(record, dict) or not set(keys) <= set(record):
        needed = f" with {', '.join(keys)}" if keys else ""
        raise SiglumError(f"{path} is not what it should be, a JSON object{needed}.")
    return record


def write_tensors(path: Path, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
    """Write torch tensors or numpy arrays as one safetensors file, atomically.

    Small files only pass through memory once more; the index has a streaming writer of its own.
    """
    from safetensors.numpy import save

    arrays = {name: _as_array(value) for name, value in tensors.items()}
    with atomic(path) as file:
        file.write(save(arrays, metadata=dict(metadata or {})))


def _as_array(value: Any) -> np.ndarray:
    if hasattr(value, "detach"):
        value = value.detach().cpu().contiguous().numpy()
    return np.require(np.asarray(value), requirements="C")


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Read a whole safetensors file into memory."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    if not path.exists():
        raise SiglumError(f"{path} does not exist.")
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise SiglumError(f"{path} is not a whole safetensors file ({error}); it may be truncated.") from error


def map_tensors(path: Path) -> dict[str, np.ndarray]:
    """Memory-map every tensor of a safetensors file, read-only, without loading it."""
    if not path.exists():
        raise SiglumError(f"{path} does not exist.")
    size = path.stat().st_size
    kinds = {"U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8", "I64": "<i8"}
    kinds |= {"F16": "<f2", "F32": "<f4", "F64": "<f8", "BOOL": "?"}
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > size:
                raise SiglumError(f"{path} is not a whole safetensors file; it may be truncated.")
            header = json.loads(file.read(length))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise SiglumError(f"{path} is not a whole safetensors file ({error}); it may be truncated.") from error
    if not isinstance(header, dict):
        raise SiglumError(f"{path} is not a whole safetensors file: its header is not an object.")
    header.pop("__metadata__", None)
    arrays = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        if 8 + length + end > size:
            raise SiglumError(f"{path} is truncated: tensor {name!r} ends beyond the file.")
        one_of(f"the type of tensor {name!r} in {path}", entry["dtype"], kinds)
        dtype, shape = np.dtype(kinds[entry["dtype"]]), tuple(entry["shape"])
        if end == start:
            arrays[name] = np.zeros(shape, dtype)
        else:
            arrays[name] = np.memmap(path, dtype, "r", 8 + length + start, shape)
    return arrays


def fingerprint(*parts: Any) -> str:
    """Return 16 hex digits that change when any part does: arrays, tensors, strings or JSON values.

    >>> fingerprint("a", [1, 2]) == fingerprint("a", [1, 2])
    True
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        if isinstance(part, np.ndarray) or hasattr(part, "detach"):
            array = _as_array(part)
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(array.data if array.size else b"")
        else:
            digest.update(json.dumps(part, sort_keys=True, default=str).encode())
        digest.update(b"\x00")
    return digest.hexdigest()


def file_fingerprint(path: Path) -> str:
    """Return the fingerprint of a file's bytes."""
    digest = hashlib.blake2b(digest_size=8)
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def ids_to_arrays(ids: Sequence[str]) -> dict[str, np.ndarray]:
    """Return ids as one UTF-8 blob and offsets, ready for safetensors."""
    encoded = [item.encode() for item in ids]
    offsets = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(item) for item in encoded], out=offsets[1:])
    return {"id_bytes": np.frombuffer(b"".join(encoded), np.uint8), "id_offsets": offsets}


def ids_from_arrays(blob: np.ndarray, offsets: np.ndarray) -> list[str]:
    """Return the ids stored by `ids_to_arrays`."""
    text = bytes(blob)
    bounds = offsets.tolist()
    return [text[a:b].decode() for a, b in zip(bounds, bounds[1:], strict=False)]


def begin_stage(folder: Path) -> None:
    """Mark a stage as unfinished: until `finish_stage`, opening it is refused."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / STAGE_FILE).unlink(missing_ok=True)
    except OSError as error:
        raise SiglumError(f"could not begin a stage in {folder}: {error.strerror or error}.") from error


def finish_stage(folder: Path, *, stage: str, inputs: Mapping[str, str], **facts: Any) -> str:
    """Write the stage's record last, with a fingerprint of every file; return the stage's own fingerprint."""
    files = {
        str(path.relative_to(folder)): file_fingerprint(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.name != STAGE_FILE
        and "checkpoint" not in path.relative_to(folder).parts
        and path.suffix not in (".jsonl", ".tmp")
    }
    own = fingerprint(stage, dict(inputs), files)
    record = {
        "stage": stage,
        "format": FORMAT_VERSION,
        "inputs": dict(inputs),
        "files": files,
        "fingerprint": own,
        **facts,
    }
    write_json(folder / STAGE_FILE, record)
    return own


def open_stage(folder: Path, stage: str, **inputs: str) -> dict[str, Any]:
    """Return a finished stage's record, refusing an unfinished one or one made from other inputs."""
    path = folder / STAGE_FILE
    if not path.exists():
        raise SiglumError(f"{folder} holds no finished {stage} stage; run the command that makes it (again) first.")
    record = read_record(path, "stage", "format", "inputs", "files", "fingerprint")
    if record.get("stage") != stage:
        raise SiglumError(f"{folder} holds a {record.get('stage')} stage, not a {stage} stage.")
    if record.get("format") != FORMAT_VERSION:
        raise SiglumError(
            f"{folder} has format {record.get('format')}, but this version reads format {FORMAT_VERSION}."
        )
    for name, wanted in inputs.items():
        found = record["inputs"].get(name)
        if found != wanted:
            raise SiglumError(
                f"{folder} was made with another {name} (fingerprint {found}, not {wanted}); make it again."
            )
    for name in record["files"]:
        if not (folder / name).exists():
            raise SiglumError(f"{folder} lacks its file {name}; make the stage again.")
    return record
