"""What was measured of a run, TREC runs and reports: checks of their files, and of what they were measured on.

Each of the folders has a `checks.json`. A file is taken out of it before it is written and put in afterwards, so that a
kill leaves a file that is not vouched for, and never a whole one that counts as damaged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from siglum.checks import checks_of, verify_now
from siglum.config import as_dict
from siglum.files import STAGE_FILE, fingerprint, read_record, read_stage, sealed, write_json
from siglum.rootfiles import CHECKS_FILE
from siglum.run.folder import CONFIG_FILE, RunFolder
from siglum.run.generations import index_record
from siglum.types import SiglumError

SHOWN = ("hits.html",)
"""Files of a report that tell nothing about when the run was measured."""
_log = logging.getLogger("siglum")


def measured_on(run: RunFolder) -> str:
    """Return the fingerprint of all that results depend on: the stages, the index and the settings of search.

    Of a folder that is no run, in which results of another may lie, nothing is known: "".
    """
    if not (run.root / CONFIG_FILE).exists():
        return ""
    folders = (run.vectors, run.tokenizer, run.dense, run.decoder)
    stages = [read_stage(folder)["fingerprint"] if (folder / STAGE_FILE).exists() else "" for folder in folders]
    return fingerprint(stages, index_record(run.index).get("fingerprint", ""), as_dict(run.config().search))


def begin_results(folder: Path, names: Iterable[str]) -> None:
    """Vouch no more for files that are about to be written."""
    before = _checks(folder, mend=True)
    left = {name: checks for name, checks in before.items() if name not in set(names)}
    if left != before:
        _write(folder, left)


def keep_results(folder: Path, names: Iterable[str], made_from: str) -> None:
    """Vouch for files that were written, and say what they were measured on."""
    own = {name: {**checks_of(folder / name), "made_from": made_from} for name in names}
    _write(folder, {**_checks(folder, mend=True), **own})


def write_result(path: Path, value: Any, made_from: str) -> None:
    """Write JSON that was measured, with its checks."""
    begin_results(path.parent, [path.name])
    write_json(path, value)
    keep_results(path.parent, [path.name], made_from)


def verify_result(path: Path) -> str:
    """Refuse a result that is not the one that was written; return what it was measured on, "" if that is not known."""
    known = _checks(path.parent).get(path.name)
    if known is None:
        _log.warning("%s has no checks: it cannot be told whether it is whole, and what it was measured on.", path)
        return ""
    try:
        verify_now(path, known)
    except SiglumError as error:
        raise SiglumError(
            f"{path} is damaged, or of another run; put it back, or delete it and measure again."
        ) from error
    return str(known.get("made_from", ""))


def refuse_stale(run: RunFolder, path: Path, split: str) -> None:
    """Refuse a result that is damaged, or was measured before the run was changed."""
    made_from = verify_result(path)
    if made_from and made_from != measured_on(run):
        raise SiglumError(
            f"{path} was measured before the stages, the index or the settings of {run.root} were changed;"
            f" run `siglum eval {run.root} --split {split}` again."
        )


def results_in(folder: Path) -> list[Path]:
    """Return the files of a folder of results."""
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return [path for path in files if path.is_file() and path.name not in (CHECKS_FILE, *SHOWN) and path.name[0] != "."]


def results_faults(folder: Path) -> tuple[dict[Path, str], list[Path]]:
    """Return what is wrong with the files of a folder of results, and which have no checks."""
    try:
        checks = _checks(folder)
    except SiglumError:
        return {folder / CHECKS_FILE: "changed by hand or damaged"}, []
    faults: dict[Path, str] = {}
    for name, known in checks.items():
        try:
            verify_now(folder / name, known)
        except SiglumError:
            faults[folder / name] = "damaged, or of another run" if (folder / name).exists() else "missing"
    return faults, [path for path in results_in(folder) if path.name not in checks]


def _checks(folder: Path, *, mend: bool = False) -> dict[str, Any]:
    """Return the checks of a folder of results; damaged ones are refused, or, to mend them, taken for none."""
    path = folder / CHECKS_FILE
    if not path.exists():
        return {}
    try:
        record = read_record(path, "files", "record")
        if sealed(record) == record and isinstance(record["files"], dict):
            return dict(record["files"])
    except SiglumError:
        pass
    if mend:
        return {}
    raise SiglumError(f"{path} was changed by hand or damaged; put it back, or delete it and measure again.")


def _write(folder: Path, files: dict[str, Any]) -> None:
    write_json(folder / CHECKS_FILE, sealed({"files": files}))
