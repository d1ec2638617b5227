"""The index of a run on disk: generations of segments and a log, of which `CURRENT` names the one that counts.

    4-index/stage.json, index.safetensors, ids.safetensors   the index as it was built: all of generation 0
    4-index/log-000000                                       what was added and removed since, see `journal`
    4-index/segment-000001/                                  an index, or a layer of changes over the segment before
    4-index/generation-000001.json                           segments and first log of a generation
    4-index/CURRENT                                          the generation that counts

A segment is never changed and a log only grows. A new generation is written beside the old one, and counts from the
moment `CURRENT` is replaced; then what only the old one needed is removed. Whoever reads takes no lock: it sees the one
generation or the other.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from siglum.files import (
    FORMAT_VERSION,
    STAGE_FILE,
    fingerprint,
    read_record,
    read_stage,
    sealed,
    sync_folder,
    write_json,
    write_tensors,
    write_text,
)
from siglum.index import Index, Layered
from siglum.index.store import FIELDS_FILE, map_arrays, write_arrays
from siglum.run.journal import Journal, ack_path, log_path, read_journal
from siglum.run.replay import replay
from siglum.tensors import read_tensors
from siglum.types import SiglumError

CURRENT = "CURRENT"
LAYER_FILE = "layer.safetensors"
VECTORS_FILE = "vectors.safetensors"
HERE = "."
"""The segment of generation 0: the folder itself."""
open_for_changes: set[tuple[int, Path]] = set()
"""Index folders that are open for changes, by process."""
TRIES = 20
"""How often a reader begins again because a new generation came between."""
_log = logging.getLogger("siglum")


@dataclass(frozen=True, slots=True)
class Generation:
    """What counts of an index folder."""

    folder: Path
    number: int
    segments: tuple[str, ...]
    """The index as it was written, and at most one layer over it."""
    log: int
    """The first log that goes with it; those with the next numbers follow."""
    lineage: str
    """Fingerprint of the index all of this began with; logs name it."""
    tokenizer: str

    def logs(self, upto: int | None = None) -> list[int]:
        """Return the numbers of its logs, up to one of them; refuse a folder from which one is gone."""
        named = [re.fullmatch(r"log-(\d{6})(\.ack)?", path.name) for path in self.folder.iterdir()]
        there = {int(name.group(1)) for name in named if name is not None and name.group(2) is None}
        last = self.log
        while last in there:
            last += 1
        if any(name is not None and int(name.group(1)) >= last for name in named):
            path = log_path(self.folder, last)
            if not path.exists():  # else it was begun while the folder was read
                raise SiglumError(f"{path} is gone; put it back, or give it up with `siglum index RUN --cut-log`.")
        return [number for number in range(self.log, last) if upto is None or number <= upto]


@dataclass(slots=True)
class Opened:
    """An index with all changes that its logs hold."""

    index: Index
    vectors_ND: np.ndarray | None
    """Kept vectors in pool order, float16."""
    generation: Generation
    journals: list[Journal]

    @property
    def changes(self) -> int:
        """How many changes the logs hold."""
        return sum(len(record) for journal in self.journals for record in journal.records)

    @property
    def is_as_built(self) -> bool:
        """Whether nothing was added or removed since it was written in one piece by whoever built it."""
        generation = self.generation
        base = read_stage(generation.folder / generation.segments[0])["fingerprint"]
        return self.changes == 0 and len(generation.segments) == 1 and base == generation.lineage


def read_generation(folder: Path, tokenizer: str | None = None) -> Generation:
    """Return the generation that counts, refusing a folder without an index and one of another tokenizer."""
    found = _pointed(folder) if (folder / CURRENT).exists() else _built(folder)
    if tokenizer is not None and found.tokenizer != tokenizer:
        raise SiglumError(
            f"{folder} was made with another tokenizer (fingerprint {found.tokenizer}, not {tokenizer}); make it again."
        )
    return found


def _built(folder: Path) -> Generation:
    """Return generation 0, which is the folder itself."""
    if not (folder / STAGE_FILE).exists():
        raise SiglumError(f"{folder} holds no finished index stage; run the command that makes it (again) first.")
    record = read_stage(folder)
    if record["stage"] != "index":
        raise SiglumError(f"{folder} holds a {record['stage']} stage, not an index stage.")
    return Generation(folder, 0, (HERE,), 0, record["fingerprint"], record["inputs"].get("tokenizer", ""))


def _pointed(folder: Path) -> Generation:
    """Return the generation that `CURRENT` names."""
    try:
        text = (folder / CURRENT).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SiglumError(f"{folder / CURRENT} cannot be read ({error}); put it back.") from error
    found = re.fullmatch(r"(generation-\d{6}\.json) ([0-9a-f]{16})\n", text)
    if found is None:
        raise SiglumError(f"{folder / CURRENT} does not name a generation; put it back, or make the index again.")
    name, seal = found.groups()
    record = read_record(folder / name, "generation", "segments", "log", "lineage", "inputs", "record")
    if sealed(record) != record or record["record"] != seal:
        raise SiglumError(f"{folder / name} was changed or damaged, or is another's; put it back.")
    if record["format"] != FORMAT_VERSION:
        raise SiglumError(f"{folder} has format {record['format']}, but this version reads format {FORMAT_VERSION}.")
    for segment, own in record["segments"].items():
        if read_stage(folder / segment)["fingerprint"] != own:
            raise SiglumError(f"{folder / segment} is another segment than the index was written with; put it back.")
    names = tuple(sorted(record["segments"]))
    tokenizer = record["inputs"]["tokenizer"]
    return Generation(folder, record["generation"], names, record["log"], record["lineage"], tokenizer)


def open_index(folder: Path, tokenizer: str | None = None, upto: int | None = None) -> Opened:
    """Return the index of a run, with what its logs (up to one of them) say was added and removed."""
    for _ in range(TRIES):
        pointer = _pointer(folder)
        try:
            opened = _open(read_generation(folder, tokenizer), upto)
        except (SiglumError, OSError):
            if _pointer(folder) == pointer:
                raise
            continue  # another process has written a new generation and taken this one away
        if _pointer(folder) == pointer:
            return opened
    raise SiglumError(f"{folder} is changed faster than it can be opened; try again.")


def _pointer(folder: Path) -> bytes | None:
    """Return what tells one generation from the next."""
    try:
        return (folder / CURRENT).read_bytes()
    except OSError:
        return None


def _open(generation: Generation, upto: int | None) -> Opened:
    folder = generation.folder
    index, vectors_ND = load_segments(folder, generation.segments, generation.tokenizer)
    row_bytes = index.layout.row_bytes
    journals = [read_journal(folder, log, generation.lineage, row_bytes) for log in generation.logs(upto)]
    records = [record for journal in journals for record in journal.records]
    if any(journal.torn for journal in journals[:-1]):
        said = f"a log of {folder} ends in the middle of a record, and others follow it"
        raise SiglumError(f"{said}; put it back, or give up what follows with `siglum index RUN --cut-log`.")
    if records:
        index, vectors_ND = replay(index, vectors_ND, records)
    return Opened(index, vectors_ND, generation, journals)


def load_segments(
    folder: Path, names: Sequence[str], tokenizer: str, known: Index | None = None
) -> tuple[Index, np.ndarray | None]:
    """Map an index (unless it is known) and the layer over it, if any; also return the kept vectors in pool order."""
    base, *layers = names
    index: Index = Index.load(folder / base, tokenizer) if known is None else known
    vectors_ND = _vectors(folder / base, len(index))
    for name in layers:
        index, vectors_ND = _load_layer(folder / name, index, vectors_ND)
    return index, vectors_ND


def _vectors(folder: Path, count: int) -> np.ndarray | None:
    path = folder / VECTORS_FILE
    if not path.exists():
        return None
    found = read_tensors(path).get("vectors")
    if found is None or found.shape[:1] != (count,):
        raise SiglumError(f"{path} does not hold the vectors of {count} items; make the index again.")
    return found


def _load_layer(folder: Path, below: Index, vectors_ND: np.ndarray | None) -> tuple[Layered, np.ndarray | None]:
    """Return a layer over the index below, and the vectors of both in pool order."""
    fresh = Index.load(folder, below.tokenizer)
    arrays = map_arrays(folder / LAYER_FILE, {"at": ("i8", (len(fresh),)), "gone": ("i8", (None,))})
    layered = Layered(below, arrays["gone"], fresh, arrays["at"])
    own = _vectors(folder, len(fresh))
    if vectors_ND is None or own is None:
        return layered, None
    return layered, np.concatenate([np.delete(vectors_ND, below.positions_at(layered.gone), 0), own])


def save_segment(folder: Path, index: Index, vectors_ND: np.ndarray | None, *, whole: bool) -> str:
    """Write an index in one piece, or only its uppermost layer; return the segment's fingerprint.

    `vectors_ND` are those of all items in pool order.
    """
    kept = index.flat
    if not whole:
        assert isinstance(index, Layered)
        kept, live = index.fresh, len(index) - len(index.fresh)
        vectors_ND = None if vectors_ND is None else vectors_ND[live:]
        write_arrays(folder / LAYER_FILE, {"at": index.at, "gone": index.gone})
    if vectors_ND is not None:
        write_tensors(folder / VECTORS_FILE, {"vectors": vectors_ND.astype(np.float16, copy=False)})
    return kept.save(folder)


def write_generation(before: Generation, segments: tuple[str, ...], log: int, lineage: str) -> Generation:
    """Write a generation after another one and make it the one that counts."""
    folder, number = before.folder, before.number + 1
    fingerprints = {name: read_stage(folder / name)["fingerprint"] for name in segments}
    record: dict[str, Any] = {
        "stage": "index",
        "format": FORMAT_VERSION,
        "generation": number,
        "segments": fingerprints,
        "log": log,
        "lineage": lineage,
        "inputs": {"tokenizer": before.tokenizer},
        "fingerprint": fingerprint(fingerprints, lineage, log),
    }
    name = f"generation-{number:06d}.json"
    write_json(folder / name, sealed(record))
    write_text(folder / CURRENT, f"{name} {sealed(record)['record']}\n")
    return Generation(folder, number, segments, log, lineage, before.tokenizer)


def replace_index(folder: Path, index: Index, vectors_ND: np.ndarray | None = None) -> None:
    """Write a new index in the place of the one there, which counts until the new one is whole on the disk."""
    refuse_open(folder)
    try:
        before = read_generation(folder)
    except SiglumError:  # nothing, or nothing that could be read
        before = Generation(folder, _last_number(folder), (), 0, "", "")
    if not before.segments and before.number == 0:
        clean(folder, None)
        save_segment(folder, index, vectors_ND, whole=True)
        sync_folder(folder)
        return
    number = _last_number(folder) + 1
    name = f"segment-{number:06d}"
    try:
        own = save_segment(folder / name, index, vectors_ND, whole=True)
        sync_folder(folder)
        other = Generation(folder, number, (), number, own, index.tokenizer)
        fresh = write_generation(other, (name,), number, own)
    except (SiglumError, OSError):
        if (folder / CURRENT).exists() or before.segments:
            clean(folder, read_generation(folder) if before.segments else None)
        raise
    clean(folder, fresh)


def save_index(folder: Path, index: Index, item_ND: Tensor | None = None) -> None:
    """Write an index in the place of the one there, with item vectors (fp16) where they are to be kept."""
    replace_index(folder, index, None if item_ND is None else item_ND.half().cpu().numpy())


def refuse_open(folder: Path) -> tuple[int, Path]:
    """Refuse a folder that this process has open for changes; return what it is known by in `open_for_changes`.

    The run's lock alone does not keep a thread from opening a folder twice.
    """
    place = os.getpid(), folder.resolve()
    if place in open_for_changes:
        raise SiglumError(f"{folder} is open for writing already; close that first.")
    return place


def holds_index(folder: Path) -> bool:
    """Return whether there is an index in a folder, sound or not."""
    return (folder / CURRENT).exists() or (folder / STAGE_FILE).exists()


def index_record(folder: Path) -> dict[str, Any]:
    """Return what an index is and holds (`items`, `sizes`, `inputs`, `fingerprint`); nothing where there is none."""
    if not holds_index(folder):
        return {}
    opened = open_index(folder)
    generation, index = opened.generation, opened.index
    ends = [journal.end for journal in opened.journals if journal.records]
    fingerprints = [read_stage(folder / name)["fingerprint"] for name in generation.segments]
    return {
        "stage": "index",
        "items": len(index),
        "sizes": list(index.sizes),
        "inputs": {"tokenizer": generation.tokenizer},
        "fingerprint": fingerprint(fingerprints, ends) if len(fingerprints) > 1 or ends else fingerprints[0],
        "generation": generation.number,
        "logged_changes": opened.changes,
        "torn_bytes": sum(journal.torn for journal in opened.journals),
    }


def refuse_dropping(folder: Path, index: Index, remedy: str) -> None:
    """Refuse to write an index in the place of one that has items which the new one lacks, or has as they were before.

    Items that the new one has beside those are told of: they may have been removed on purpose.
    """
    if not holds_index(folder):
        return
    try:
        opened = open_index(folder)
        names = list(opened.index.ids)
    except SiglumError as error:
        if not (folder / CURRENT).exists() and not any(folder.glob("log-??????*")):
            return  # nothing was added to it since it was built
        raise SiglumError(
            f"the index in {folder} cannot be read ({str(error).rstrip('.')}), so what was added to it would be lost;"
            f" {remedy} to write a new one all the same."
        ) from error
    places = index.ids.locate(names)
    lost = int((places < 0).sum())
    if lost:
        raise SiglumError(
            f"{lost:,} items of the index in {folder}, added to it or in the collection before, are not in the new one,"
            f" which would drop them; {remedy} to do so."
        )
    if opened.is_as_built:
        return
    outdated = places < np.maximum.accumulate(places)  # who takes the place of another goes to the end of the pool
    if opened.index.tokenizer == index.tokenizer:
        outdated |= (opened.index.codes_of(names) != index.codes_of(names)).any(1)
    if outdated.any():
        items = _counted(int(outdated.sum()), "was", "were")
        raise SiglumError(
            f"{items} replaced in the index in {folder}, but the new one has what was there before; {remedy} to do so."
        )
    if len(index) > len(names):
        more = _counted(len(index) - len(names), "that is", "that are")
        _log.warning("%s not in the index in %s, maybe removed from it, will be there again.", more, folder)


def _counted(count: int, one: str, many: str) -> str:
    return f"1 item {one}" if count == 1 else f"{count:,} items {many}"


def _last_number(folder: Path) -> int:
    """Return the highest number that a file of the folder has, 0 where none has one."""
    names = (path.name for path in folder.glob("*-??????*")) if folder.exists() else ()
    found = (re.match(r"\.?(?:segment|generation|log)-(\d{6})", name) for name in names)
    return max((int(match.group(1)) for match in found if match), default=0)


def next_segment(folder: Path) -> str:
    """Return a name that no segment has."""
    return f"segment-{_last_number(folder) + 1:06d}"


def clean(folder: Path, generation: Generation | None) -> None:
    """Remove what the generation that counts does not need; without one, all that an index consists of."""
    needed: set[str] = set()
    if generation is not None:
        needed = {*generation.segments, f"generation-{generation.number:06d}.json"}
        for number in generation.logs():
            needed |= {log_path(folder, number).name, ack_path(log_path(folder, number)).name}
    own = re.compile(r"(segment-\d{6}|generation-\d{6}\.json|log-\d{6}(\.ack)?)")
    # Backwards: an acknowledgement without its log would tell of changes that are gone.
    for path in sorted(folder.iterdir(), reverse=True) if folder.exists() else ():
        built = path.name in (STAGE_FILE, "index.safetensors", "ids.safetensors", FIELDS_FILE, VECTORS_FILE, LAYER_FILE)
        half = path.name.startswith(".") and path.suffix == ".tmp"  # a kill left it
        if path.name in needed or (built and HERE in needed) or not (built or half or own.fullmatch(path.name)):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    if generation is None:
        (folder / CURRENT).unlink(missing_ok=True)
