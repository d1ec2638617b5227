"""Files of a run that belong to no stage, and `checks.json`, which holds their fingerprints.

What was damaged or changed by hand is refused when it is read.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from siglum.files import (
    CONFIG_FILE,
    as_record,
    file_fingerprint,
    json_text,
    parse_json,
    read_bytes,
    read_record,
    sync_folder,
    warn_unchecked,
    write_json,
    write_text,
)
from siglum.types import SiglumError

CHECKS_FILE = "checks.json"
ROOT_FILES = (CONFIG_FILE, "source.json", "owner.json", "pictures.json", "mbeir.json")
ABSENT = ""
"""The fingerprint of no file."""


def write_root_json(root: Path, name: str, value: Any) -> None:
    """Write a file of a run that belongs to no stage; a kill at any point leaves a run that opens."""
    checks, before = _accepted(root, name)
    text = json_text(value)
    fingerprint = _fingerprint(text.encode())
    write_json(root / CHECKS_FILE, {**checks, name: [*before, fingerprint]})
    write_text(root / name, text)
    write_json(root / CHECKS_FILE, {**checks, name: [fingerprint]})


def remove_root_json(root: Path, name: str) -> None:
    """Remove a file of a run that belongs to no stage, if it is there; a kill at any point leaves a run that opens."""
    checks, before = _accepted(root, name)
    if name in checks or before != [ABSENT]:
        write_json(root / CHECKS_FILE, {**checks, name: [*before, ABSENT]})
        (root / name).unlink(missing_ok=True)
        sync_folder(root)
        write_json(root / CHECKS_FILE, {known: fingerprints for known, fingerprints in checks.items() if known != name})


def _accepted(root: Path, name: str) -> tuple[dict[str, list[str]], list[str]]:
    """Return the accepted fingerprints of all files, and those that the named one may have until it is changed."""
    checks = _root_checks(root)
    if checks is None:
        checks = {known: [file_fingerprint(root / known)] for known in ROOT_FILES if (root / known).exists()}
    before = checks.get(name, [])
    if not (root / name).exists():
        return checks, [ABSENT]
    there = file_fingerprint(root / name)
    return checks, [there] if there in before else before


def read_root_json(root: Path, name: str, *keys: str) -> dict[str, Any]:
    """Read what `write_root_json` wrote, an object that must have these keys, refusing what it did not write."""
    for _ in range(3):  # a writer may come between the reading of the two files
        content, checks = read_bytes(root / name), _root_checks(root)
        if checks is None:
            warn_unchecked(root)
        if checks is None or _fingerprint(content) in checks.get(name, []):
            return as_record(root / name, parse_json(root / name, content), *keys)
    raise SiglumError(
        f"{root / name} was changed by hand or damaged; put it back, or accept it as it is with"
        f" `siglum info {root} --check --record`."
    )


def read_kept_json(root: Path, name: str, *keys: str) -> dict[str, Any] | None:
    """Read what `write_root_json` wrote; None where nothing was, but a file that was written and is gone is refused."""
    try:
        return read_root_json(root, name, *keys)
    except SiglumError:
        if (root / name).exists():
            raise
    if name in missing_root_files(root):
        raise SiglumError(
            f"{root / name} is gone; put it back, or go on without it after `siglum info {root} --check --record`."
        )
    return None


def missing_root_files(root: Path) -> list[str]:
    """Return the files of a run that belong to no stage, were written, and are gone."""
    checks = _root_checks(root) or {}
    return [name for name in ROOT_FILES if ABSENT not in checks.get(name, [ABSENT]) and not (root / name).exists()]


def accept_root(root: Path) -> None:
    """Take the files of a run that belong to no stage for sound as they are now."""
    write_json(
        root / CHECKS_FILE, {name: [file_fingerprint(root / name)] for name in ROOT_FILES if (root / name).exists()}
    )


def _root_checks(root: Path) -> dict[str, list[str]] | None:
    """Return the accepted fingerprints by file; None in a run made before there were any."""
    if not (root / CHECKS_FILE).exists():
        return None
    wrong = f"accept the files it tells about as they are with `siglum info {root} --check --record`."
    try:
        checks = read_record(root / CHECKS_FILE)
    except SiglumError as error:
        raise SiglumError(f"{str(error).rstrip('.')}; put it back, or {wrong}") from error
    if not all(isinstance(fingerprints, list) for fingerprints in checks.values()):
        raise SiglumError(f"{root / CHECKS_FILE} was changed by hand or damaged; put it back, or {wrong}")
    return checks


def _fingerprint(content: bytes) -> str:
    """Return what `file_fingerprint` gives of a file with this content."""
    return hashlib.blake2b(content, digest_size=8).hexdigest()
