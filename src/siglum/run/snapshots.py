"""Snapshots of an index: a generation, its segments by hard links, and a copy of its logs.

A segment is never changed, so that a link to its files is a copy that takes no room.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from siglum.data.stamps import forget_stamps
from siglum.files import STAGE_FILE, atomic, make_folder, read_stage, sync_folder
from siglum.index.store import FIELDS_FILE
from siglum.run.folder import RunFolder
from siglum.run.generations import CURRENT, HERE, VECTORS_FILE, open_index, replace_index
from siglum.run.journal import ack_path
from siglum.types import SiglumError

FOLDER = "snapshots"


def snapshot_path(run: RunFolder, name: str) -> Path:
    """Return where a snapshot lies, refusing a name that is no plain file name."""
    if re.fullmatch(r"[\w][\w.-]*", name) is None:
        raise SiglumError(f"a snapshot is named by letters, digits, dots, dashes and underscores, not {name!r}.")
    return run.root / FOLDER / name


def list_snapshots(run: RunFolder) -> list[str]:
    """Return the names of a run's snapshots."""
    folder = run.root / FOLDER
    return sorted(path.name for path in folder.iterdir() if path.name[0] != ".") if folder.is_dir() else []


def take_snapshot(run: RunFolder, name: str) -> Path:
    """Keep the index of a run as it is now; hold the run's lock."""
    to = snapshot_path(run, name)
    if to.exists():
        raise SiglumError(f"{to} is there already; choose another name.")
    opened = open_index(run.index)
    generation, half = opened.generation, to.with_name(f".{name}.new")
    shutil.rmtree(half, ignore_errors=True)
    try:
        for segment in generation.segments:
            _link(run.index / segment, half / segment, flat=segment == HERE)
        for journal in opened.journals:
            _write(half / journal.path.name, journal.path.read_bytes()[: journal.end])
            ack = ack_path(journal.path)
            if ack.exists():
                _write(half / ack.name, ack.read_bytes())
        if generation.number:
            for file in (f"generation-{generation.number:06d}.json", CURRENT):
                _write(half / file, (run.index / file).read_bytes())
        for folder in (half, *(path for path in half.iterdir() if path.is_dir())):
            sync_folder(folder)
        half.rename(to)
        sync_folder(to.parent)
    except OSError as error:
        shutil.rmtree(half, ignore_errors=True)
        raise SiglumError(f"could not write {to}: {error.strerror or error}.") from error
    return to


def _write(to: Path, content: bytes) -> None:
    """Write a file so that it is on the disk."""
    with atomic(to) as file:
        file.write(content)


def _link(source: Path, to: Path, *, flat: bool) -> None:
    """Link the files of a segment; those of the index as it was built lie beside others that are not its own."""
    make_folder(to)
    own = (STAGE_FILE, "index.safetensors", "ids.safetensors", FIELDS_FILE, VECTORS_FILE)
    for path in source.iterdir():
        if path.is_file() and (not flat or path.name in own):
            os.link(path, to / path.name)


def restore_snapshot(run: RunFolder, name: str) -> None:
    """Make the index of a run what a snapshot holds; hold the run's lock."""
    source = snapshot_path(run, name)
    if not source.is_dir():
        there = ", ".join(list_snapshots(run)) or "none"
        raise SiglumError(f"{run.root} has no snapshot {name!r}; it has {there}.")
    opened = open_index(source, read_stage(run.tokenizer)["tokenizer_fingerprint"])
    forget_stamps(run.root, ())
    replace_index(run.index, opened.index, opened.vectors_ND)
