"""Whether a run is sound: every file read in full and compared with its record."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from siglum.files import STAGE_FILE, own_files, read_record, read_stage, verify_file, with_checks, write_json
from siglum.rootfiles import CHECKS_FILE, ROOT_FILES, accept_root, missing_root_files, read_root_json
from siglum.run.folder import CONFIG_FILE, RunFolder
from siglum.run.generations import holds_index, open_index
from siglum.run.journal import ack_path
from siglum.run.results import keep_results, results_faults, results_in
from siglum.run.snapshots import FOLDER, list_snapshots
from siglum.run.training import training_faults
from siglum.types import SiglumError


@dataclass(slots=True)
class Checked:
    """What a check of a whole run found."""

    files: int = 0
    bytes: int = 0
    faults: dict[str, str] = field(default_factory=dict)
    """What is wrong, by file."""
    unrecorded: list[str] = field(default_factory=list)
    """Stages and results made before there were checks, and `checks.json` where it is missing."""
    recorded: list[str] = field(default_factory=list)
    """Those that were given checks now."""

    def refuse(self, root: Path) -> None:
        """Raise if anything is wrong, naming all of it."""
        if self.faults:
            count = "1 file" if len(self.faults) == 1 else f"{len(self.faults)} files"
            named = ", ".join(f"{name} ({what})" for name, what in self.faults.items())
            raise SiglumError(f"{count} of {root} cannot be relied on: {named}; put back or make again what is named.")


def check_run(root: Path, *, record: bool = False) -> Checked:
    """Read every file of every finished stage in full, the run's own, its checkpoints, its log and its results.

    With `record` stages made before there were checks are given them, if they are sound by their fingerprints, and the
    files of the run that belong to no stage are accepted as they are. A file of a stage that has checks is never
    accepted anew.
    """
    if not (root / CONFIG_FILE).exists():
        raise SiglumError(f"{root} is not a run folder: it has no {CONFIG_FILE}; begin one with `siglum encode`.")
    found = Checked()
    _check_root(root, found, record)
    for folder in stage_folders(root):
        _check_stage(root, folder, found, record)
    found.faults |= training_faults(root)
    for folder in (RunFolder(root).runs, RunFolder(root).report):
        _check_results(root, folder, found, record)
    for folder in unfinished_folders(root):
        found.faults[folder.relative_to(root).as_posix()] = "not finished: it has files, but no record of them"
    for folder in index_folders(root):
        place = folder.relative_to(root).as_posix()
        if not any(f"{name}/".startswith(f"{place}/") for name in found.faults):  # else it is known why it is not sound
            found.faults |= {f"{place}/{name}".rstrip("/"): what for name, what in index_faults(folder).items()}
    return found


def index_folders(root: Path) -> list[Path]:
    """Return the folders of the index of a run and of its snapshots."""
    run = RunFolder(root)
    return [run.index, *(root / FOLDER / name for name in list_snapshots(run))]


def stage_folders(root: Path) -> Iterator[Path]:
    """Yield the folders of a run that hold a finished stage, all those of the index and its snapshots among them."""
    run = RunFolder(root)
    parts = sorted(path.parent for index in index_folders(root) for path in index.rglob(STAGE_FILE))
    for folder in (run.vectors, run.tokenizer, run.dense, run.decoder, *parts):
        if (folder / STAGE_FILE).exists():
            yield folder


def unfinished_folders(root: Path) -> Iterator[Path]:
    """Yield the folders of stages that are being made, were not made to their end, or have lost their record."""
    run, indexes = RunFolder(root), index_folders(root)
    for folder in (run.vectors, run.tokenizer, run.dense, run.decoder, *indexes):
        finished = holds_index(folder) if folder in indexes else (folder / STAGE_FILE).exists()
        files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".tmp")
        if not finished and any(folder == run.dense or run.dense not in path.parents for path in files):
            yield folder


def index_faults(folder: Path) -> dict[str, str]:
    """Return what is wrong, by file, with those of an index's files that lie outside its stages."""
    if not holds_index(folder):
        return {}
    try:
        journals = open_index(folder).journals
    except SiglumError as error:
        return {"": str(error).rstrip(".")}
    acks = [ack_path(journal.path).name for journal in journals if not journal.is_sound]
    torn = {
        journal.path.name: f"ends in {journal.torn:,} bytes of an unfinished change; the next change cuts them"
        for journal in journals
        if journal.torn
    }
    return torn | dict.fromkeys(acks, "missing or damaged, and written anew with the next change of the index")


def _check_results(root: Path, folder: Path, found: Checked, record: bool) -> None:
    files, place = results_in(folder), folder.relative_to(root).as_posix()
    faults, unknown = results_faults(folder)
    found.files, found.bytes = found.files + len(files), found.bytes + sum(path.stat().st_size for path in files)
    found.faults |= {path.relative_to(root).as_posix(): what for path, what in faults.items()}
    if unknown:
        (found.recorded if record else found.unrecorded).append(place)
    if unknown and record:
        keep_results(folder, [path.name for path in unknown], "")


def _check_root(root: Path, found: Checked, record: bool) -> None:
    names = [name for name in ROOT_FILES if (root / name).exists()]
    had = (root / CHECKS_FILE).exists()
    sound = had and all(_opens(root, name) for name in names) and not missing_root_files(root)
    if record and not sound and all(_is_object(root / name) for name in names):
        accept_root(root)
        found.recorded.append(CHECKS_FILE)
    elif not had:
        found.unrecorded.append(CHECKS_FILE)
    for name in names:
        found.files, found.bytes = found.files + 1, found.bytes + (root / name).stat().st_size
        if not _opens(root, name):
            found.faults[name] = "changed by hand or damaged"
    if not found.faults:
        found.faults |= dict.fromkeys(missing_root_files(root), "missing")


def _opens(root: Path, name: str) -> bool:
    try:
        read_root_json(root, name)
    except SiglumError:
        return False
    return True


def _is_object(path: Path) -> bool:
    try:
        read_record(path)
    except SiglumError:
        return False
    return True


def _check_stage(root: Path, folder: Path, found: Checked, record: bool) -> None:
    place, faults = folder / STAGE_FILE, {}
    try:
        known = read_stage(folder)
    except SiglumError:
        found.faults[place.relative_to(root).as_posix()] = "changed by hand or damaged"
        return
    for path in (place, *(folder / name for name in own_files(folder, known))):
        if not path.is_file():
            faults[path] = "missing"
            continue
        found.files, found.bytes = found.files + 1, found.bytes + path.stat().st_size
        try:
            if path != place:
                verify_file(folder, path.relative_to(folder).as_posix(), known)
        except SiglumError:
            faults[path] = "damaged, or of another run"
    found.faults |= {path.relative_to(root).as_posix(): what for path, what in faults.items()}
    if "checks" not in known:
        (found.recorded if record and not faults else found.unrecorded).append(folder.relative_to(root).as_posix())
        if record and not faults:
            times = place.stat()
            write_json(place, with_checks(folder, known))
            os.utime(place, ns=(times.st_atime_ns, times.st_mtime_ns))  # the stage itself is no newer for it
