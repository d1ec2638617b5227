"""Whether what training left of itself is sound: checkpoints by their checks, and the log by the checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from siglum.checks import verify_now
from siglum.files import read_record, sealed
from siglum.log import read_log, unreadable_lines
from siglum.run.folder import LOG_FILE, RunFolder
from siglum.types import SiglumError

OWN = ("stage", "step", "time")
"""What a line of the log has beside the numbers of its epoch."""


def training_faults(root: Path) -> dict[str, str]:
    """Return what is wrong with the checkpoints and the log of a run, by file.

    A checkpoint knows the numbers of all epochs before it, which the log must have too.
    """
    run, faults = RunFolder(root), dict[str, str]()
    lines = read_log(root / LOG_FILE)
    if count := unreadable_lines(root / LOG_FILE):
        faults[LOG_FILE] = f"{count} unreadable line{'s'[: count > 1]}"
    for stage in (run.tokenizer, run.decoder):
        for folder in sorted(path.parent for path in (stage / "checkpoint").rglob("checkpoint.json")):
            history, wrong = _check(folder)
            faults |= {path.relative_to(root).as_posix(): what for path, what in wrong.items()}
            name = "decoder" if folder.name == "checkpoint" else folder.name
            logged = {line["step"]: _numbers(line) for line in lines if line["stage"] == name}
            lost = sum(logged.get(step) != numbers for step, numbers in enumerate(history))
            if lost and LOG_FILE not in faults:
                epochs = "1 epoch" if lost == 1 else f"{lost:,} epochs"
                faults[LOG_FILE] = f"lacks {epochs} of {name}, or has other numbers"
    return faults


def _check(folder: Path) -> tuple[list[Any], dict[Path, str]]:
    """Return the epochs that a checkpoint knows, and what is wrong with its files."""
    path = folder / "checkpoint.json"
    try:
        record = read_record(path, "history")
    except SiglumError:
        return [], {path: "damaged"}
    if ("record" in record or "checks" in record) and sealed(record) != record:
        return [], {path: "changed by hand or damaged"}
    faults = {}
    for name, checks in record.get("checks", {}).items():
        try:
            verify_now(folder / name, checks)
        except SiglumError:
            faults[folder / name] = "damaged, or of another run" if (folder / name).exists() else "missing"
    return record["history"], faults


def _numbers(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name not in OWN}
