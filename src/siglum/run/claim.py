"""Whose run a folder holds, kept in RUN/owner.json, so that no run is written over another's by mistake.

The record is written before anything else, so that a half-written run knows whose it is. Runs made before there was
one are known by `source.json` and by what their stages record.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from siglum.data.source import SOURCE_FILE, read_source
from siglum.data.vectors import load_vectors
from siglum.encode.run import IDENTITY
from siglum.files import STAGE_FILE, fingerprint, read_record
from siglum.rootfiles import CHECKS_FILE, read_kept_json, write_root_json
from siglum.run.folder import CONFIG_FILE, INDEX, LOG_FILE, STAGES, TOKENIZER, VECTORS
from siglum.run.lock import LOCK_FILE
from siglum.run.snapshots import FOLDER as SNAPSHOTS
from siglum.types import SiglumError, Vectors, truth_value

OWNER_FILE = "owner.json"
RECORDS = (CHECKS_FILE, CONFIG_FILE, SOURCE_FILE, LOG_FILE, "mbeir.json", "pictures.json", OWNER_FILE)
"""Files beside the stages, in the order in which they go: checks of others before these, the owner last."""
LEFT_OVER = (f".{INDEX}.new", f".{INDEX}.old")
"""What a kill may leave of an index that was to take another's place."""
ARRAYS = "arrays"
"""What `1-vectors` records as the collection of one's own arrays."""


@dataclass(frozen=True, slots=True)
class Owner:
    """What tells a run from others: its collection, or, where only a search engine is saved, its tokenizer."""

    collection: str = ""
    """Identity of the items and queries, whatever encodes them."""
    origin: Mapping[str, Any] = field(default_factory=dict)
    """Where the items come from, as in `source.json`; the same place is the same collection, though it may change."""
    encoding: str = ""
    """What `1-vectors` records of the collection and its encoder; older runs may have nothing else."""
    tokenizer: str = ""
    """Fingerprint of the tokenizer of a saved search engine."""


def claim_run(root: Path, owner: Owner, *, overwrite: bool = False) -> None:
    """Make `root` the run of `owner`, refusing one that holds another's; with `overwrite` that one is removed first.

    Take the run's lock before. An own run, finished or not, stays as it is.
    """
    overwrite = truth_value("overwrite", overwrite)
    try:
        own = not holds_run(root) or is_own(root, owner)
    except SiglumError:  # a damaged run may be anybody's
        if not overwrite:
            raise
        own = False
    if not own and not overwrite:
        raise SiglumError(
            f"{root} holds the run of another collection{_named(root)}; choose another folder, or have that run"
            " removed first (--overwrite, in Python overwrite=True)."
        )
    if not own:
        clear_run(root)
    elif holds_run(root) and owner.tokenizer:
        return  # a search engine saved into its own run leaves it its collection
    told = {"collection": owner.collection, "origin": _place(owner.origin), "tokenizer": owner.tokenizer}
    told = {name: value for name, value in told.items() if value}
    if _read_owner(root) != told:
        write_root_json(root, OWNER_FILE, told)


def holds_run(root: Path) -> bool:
    """Return whether a folder has a configuration or anything of a stage."""
    return (root / CONFIG_FILE).exists() or any(_holds_files(root / stage) for stage in STAGES)


def is_unused(root: Path) -> bool:
    """Return whether there is no folder, or nothing in it but the lock of whoever asks and what a kill leaves there.

    A file of a run is announced in `checks.json`: that is there first, and alone after a kill.
    """
    return not root.exists() or all(
        path.name in (LOCK_FILE, CHECKS_FILE) or (path.name[0] == "." and path.suffix == ".tmp")
        for path in root.iterdir()
    )


def is_own(root: Path, owner: Owner) -> bool:
    """Return whether the run in a folder is of this owner."""
    known, vectors, tokenizer = _read_owner(root), root / VECTORS, root / TOKENIZER / STAGE_FILE
    if owner.tokenizer:
        if tokenizer.exists():
            return bool(read_record(tokenizer).get("tokenizer_fingerprint") == owner.tokenizer)
        return known.get("tokenizer") == owner.tokenizer
    place = _place(owner.origin)
    if known:
        same_place = bool(place) and known.get("origin") == place
        return same_place or (bool(owner.collection) and known.get("collection") == owner.collection)
    if place and _place(read_source(root)) == place:
        return True
    if (vectors / STAGE_FILE).exists():
        found = read_record(vectors / STAGE_FILE, "inputs")["inputs"].get("collection")
        if found == ARRAYS:
            return arrays_identity(load_vectors(vectors)[0]) == owner.collection
        return bool(owner.encoding) and found == owner.encoding
    unfinished = vectors / "checkpoint" / IDENTITY
    return bool(owner.encoding) and unfinished.exists() and read_record(unfinished).get("identity") == owner.encoding


def clear_run(root: Path) -> None:
    """Remove what a run is made of, and nothing else in its folder."""
    for name in (*LEFT_OVER, SNAPSHOTS, *STAGES):
        stage = root / name
        if stage.is_symlink():
            stage.unlink()
        elif stage.exists():
            shutil.rmtree(stage)
    for name in RECORDS:
        (root / name).unlink(missing_ok=True)


def arrays_identity(vectors: Vectors) -> str:
    """Return what tells one's own arrays from others: ids and features, not how they are split for training."""
    parts = [
        [list(side.ids), side.image, side.text, side.has_image, side.has_text]
        for side in (vectors.items, vectors.queries)
    ]
    return fingerprint(ARRAYS, *parts[0], *parts[1])


def _read_owner(root: Path) -> dict[str, Any]:
    return read_kept_json(root, OWNER_FILE) or {}


def _holds_files(folder: Path) -> bool:
    return any(path.is_file() and path.suffix != ".tmp" for path in folder.rglob("*"))


def _place(origin: Mapping[str, Any]) -> dict[str, Any]:
    """Return the place of an origin: a path, or the size and seed of a world."""
    names = ("kind", "items", "seed") if origin.get("kind") == "world" else ("kind", "path")
    return {name: origin[name] for name in names if name in origin}


def _named(root: Path) -> str:
    """Return in words where the items of a run come from, as far as it is known."""
    place = _read_owner(root).get("origin") or _place(read_source(root))
    if place.get("kind") == "world":
        return f" (the drawn world, {place['items']:,} items, seed {place['seed']})"
    return f" ({place['path']})" if "path" in place else ""
