"""Files on disk: atomic writes, fingerprints, and the record every stage leaves of itself.

A record holds checks of the stage's files: what was damaged, changed by hand or swapped is refused when it is opened.
Files of a run that belong to no stage are `rootfiles`'s. Only safetensors, JSON, parquet and TREC text are written;
pickle never is.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from siglum.checks import BLOCK as BLOCK
from siglum.checks import BlockChecks as BlockChecks
from siglum.checks import checks_of as checks_of
from siglum.checks import not_the_file, verify_now
from siglum.checks import verify as verify
from siglum.tensors import ids_from_arrays as ids_from_arrays
from siglum.tensors import map_tensors as map_tensors
from siglum.tensors import read_tensors as read_tensors
from siglum.types import SiglumError

FORMAT_VERSION = 1
STAGE_FILE = "stage.json"
CONFIG_FILE = "config.json"
SMALL = 1 << 26
"""Bytes up to which a file of a record without checks is read when it is opened."""

_log = logging.getLogger("siglum")
_told: set[Path] = set()


@contextmanager
def atomic(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file beside `path` and move it into place only if the block succeeds."""
    name = ""
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # /dev/null must not become a file
            raise SiglumError(f"{path} is a device or a pipe, in the place of which no file is written; name a file.")
        make_folder(path.parent)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
        name = ""
    except OSError as error:
        raise SiglumError(
            f"could not write {path}: {error.strerror or error}; what was there before is untouched."
        ) from error
    finally:
        if name and os.path.exists(name):
            os.unlink(name)
    sync_folder(path.parent)


def make_folder(path: Path) -> None:
    """Make a folder and those above it, if they are not there, and have their names reach the disk."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_folder(folder.parent)


def sync_folder(path: Path) -> None:
    """Have the names in a folder reach the disk, as a file that was just moved there must to outlive a power cut."""
    if os.name != "posix":
        return
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that keep no folders by themselves
            raise SiglumError(
                f"could not have {path} reach the disk: {error.strerror or error}; do what was done again."
            ) from error


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic(path) as file:
        file.write(text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write JSON with sorted keys, so that equal values give equal bytes."""
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    """Return JSON as `write_json` writes it."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def read_json(path: Path) -> Any:
    """Read JSON, or say in one sentence why that was not possible."""
    return parse_json(path, read_bytes(path))


def read_bytes(path: Path) -> bytes:
    """Read a file, or say in one sentence why that was not possible."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise SiglumError(f"{path} does not exist.") from error
    except OSError as error:
        raise SiglumError(f"{path} cannot be read ({error.strerror or error}).") from error


def parse_json(path: Path, content: bytes) -> Any:
    """Return the JSON that was read of a file, or say in one sentence why there is none."""
    try:
        return json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise SiglumError(f"{path} is not valid JSON ({error}); it may be truncated.") from error


def read_record(path: Path, *keys: str) -> dict[str, Any]:
    """Read a JSON object that must have these keys."""
    return as_record(path, read_json(path), *keys)


def as_record(path: Path, record: Any, *keys: str) -> dict[str, Any]:
    """Return JSON that was read of a file and must be an object with these keys."""
    if not isinstance(record, dict) or not set(keys) <= set(record):
        needed = f" with {', '.join(keys)}" if keys else ""
        raise SiglumError(f"{path} is not what it should be, a JSON object{needed}.")
    return record


def write_tensors(path: Path, tensors: Mapping[str, Any]) -> None:
    """Write torch tensors or numpy arrays as one safetensors file, atomically.

    Small files only pass through memory once more; the index has a streaming writer of its own.
    """
    from safetensors.numpy import save

    arrays = {name: _as_array(value) for name, value in tensors.items()}
    with atomic(path) as file:
        file.write(save(arrays, metadata={}))


def _as_array(value: Any) -> np.ndarray:
    if hasattr(value, "detach"):
        value = value.detach().cpu().contiguous().numpy()
    return np.require(np.asarray(value), requirements="C")


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


def begin_stage(folder: Path) -> None:
    """Mark a stage as unfinished: until `finish_stage`, opening it is refused."""
    try:
        make_folder(folder)
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
    write_json(folder / STAGE_FILE, with_checks(folder, record))
    return own


def own_files(folder: Path, record: Mapping[str, Any]) -> list[str]:
    """Return the files a stage checks: without those of other stages that lie in its folder and are checked there."""
    if "checks" in record:
        return list(record["checks"])
    return [
        name
        for name in record["files"]
        if not any((folder / part / STAGE_FILE).exists() for part in Path(name).parents if part.name)
    ]


def with_checks(folder: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stage's record with checks of its files as they are now."""
    return sealed({**record, "checks": {name: checks_of(folder / name) for name in own_files(folder, record)}})


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with the fingerprint of all the rest of it, by which a change is noticed."""
    rest = {name: value for name, value in record.items() if name != "record"}
    return {**rest, "record": fingerprint(rest)}


def read_stage(folder: Path) -> dict[str, Any]:
    """Return the record of a finished stage of any kind, refusing one that was changed."""
    path = folder / STAGE_FILE
    if not path.exists():
        raise SiglumError(f"{folder} holds no finished stage; run the command that makes it (again) first.")
    record = read_record(path, "stage", "format", "inputs", "files", "fingerprint")
    if record["format"] != FORMAT_VERSION:
        raise SiglumError(f"{folder} has format {record['format']}, but this version reads format {FORMAT_VERSION}.")
    kinds: dict[str, type] = {"stage": str, "inputs": dict, "files": dict, "fingerprint": str}
    sound = all(isinstance(record[name], kind) for name, kind in kinds.items())
    sound = sound and all(isinstance(value, str) for value in (*record["inputs"].values(), *record["files"].values()))
    if "checks" in record or "record" in record:
        sound = sound and isinstance(record.get("checks"), dict) and sealed(record) == record
    if not sound:
        raise SiglumError(f"{path} was changed by hand or damaged; put it back, or make the stage again.")
    return record


def open_stage(folder: Path, stage: str, *, lazily: Collection[str] = (), **inputs: str) -> dict[str, Any]:
    """Return a finished stage's record, refusing an unfinished or damaged one and one made from other inputs.

    Files named in `lazily` are only looked for; who maps them checks what it touches (`BlockChecks`).
    """
    if not (folder / STAGE_FILE).exists():
        raise SiglumError(f"{folder} holds no finished {stage} stage; run the command that makes it (again) first.")
    record = read_stage(folder)
    if record["stage"] != stage:
        raise SiglumError(f"{folder} holds a {record['stage']} stage, not a {stage} stage.")
    for name, wanted in inputs.items():
        found = record["inputs"].get(name)
        if found != wanted:
            raise SiglumError(
                f"{folder} was made with another {name} (fingerprint {found}, not {wanted}); make it again."
            )
    for name in record["files"]:
        if not (folder / name).exists():
            raise SiglumError(f"{folder} lacks its file {name}; make the stage again.")
    if "checks" not in record:
        warn_unchecked(folder)
        for name in own_files(folder, record):
            if name not in lazily and (folder / name).stat().st_size <= SMALL:
                verify_file(folder, name, record)
    for name, checks in record.get("checks", {}).items():
        if name not in lazily:
            verify(folder / name, checks)
    return record


def facts_of(folder: Path, record: Mapping[str, Any], **kinds: type) -> list[Any]:
    """Return facts of a stage's record, refusing one that is not there or not of its kind."""
    for name, kind in kinds.items():
        if type(record.get(name)) is not kind:
            where, found = folder / STAGE_FILE, record.get(name)
            raise SiglumError(f"{where} holds {found!r} as {name}, not a {kind.__name__}; make the stage again.")
    return [record[name] for name in kinds]


def verify_file(folder: Path, name: str, record: Mapping[str, Any]) -> None:
    """Refuse a file of a stage that is not the recorded one, reading all of it in any case."""
    path = folder / name
    if "checks" in record:
        verify_now(path, record["checks"][name])
    elif file_fingerprint(path) != record["files"][name]:
        raise not_the_file(path)


def warn_unchecked(folder: Path) -> None:
    """Say once of a run that it was made before there were checks."""
    above = (folder, *folder.parents[:2])
    run = next((path for path in above if (path / CONFIG_FILE).exists()), folder).resolve()
    if run not in _told:
        _told.add(run)
        _log.warning(
            "%s was made before files were checked when opened; `siglum info %s --check --record` adds that.", run, run
        )
