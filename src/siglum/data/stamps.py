"""Which pictures of its folder a run knows, and of what size and time they were (pictures.json beside the run).

An id without a stamp is of the folder, but what the index holds of it may be out of date.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from siglum.rootfiles import read_kept_json, write_root_json

PICTURES_FILE = "pictures.json"
Stamp = tuple[int, int] | None
"""Size in bytes and time of the last change in nanoseconds, by which a change is noticed; None for no plain file."""


def write_stamps(run: Path, stamps: Mapping[str, Stamp]) -> None:
    """Keep the stamps of the pictures of a run folder, by item id."""
    write_root_json(run, PICTURES_FILE, {"pictures": dict(stamps)})


def read_stamps(run: Path) -> dict[str, Stamp] | None:
    """Return what `write_stamps` kept; None where nothing was kept."""
    kept = read_kept_json(run, PICTURES_FILE, "pictures")
    if kept is None:
        return None
    return {name: None if stamp is None else (stamp[0], stamp[1]) for name, stamp in kept["pictures"].items()}


def forget_stamps(run: Path, ids: Iterable[str]) -> None:
    """Say before an index is made anew, with these ids, that nothing is known of how old its pictures are."""
    known = read_stamps(run)
    if known is not None:
        write_stamps(run, dict.fromkeys([*known, *ids]))
