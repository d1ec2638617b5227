"""Giving up what cannot be read of the logs of an index, so that what stands before it can be used again."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from siglum.files import sync_folder
from siglum.run.generations import read_generation, refuse_open
from siglum.run.journal import JournalWriter, ack_path, acknowledged_ends, header, log_path, whole_records
from siglum.types import SiglumError


@dataclass(slots=True)
class Cut:
    """What was given up."""

    path: Path
    """The log that was damaged."""
    bytes: int = 0
    """What followed its last whole record."""
    later: int = 0
    """Logs that came after it, all of which go: they change what is not there any more ..."""
    later_bytes: int = 0
    later_records: int = 0
    """... and the whole records in them."""

    def __str__(self) -> str:
        said = f"{self.bytes:,} bytes of {self.path} were given up"
        if not self.later:
            return said
        logs = "1 later log" if self.later == 1 else f"{self.later:,} later logs"
        return f"{said}, and {logs} with {self.later_records:,} whole changes ({self.later_bytes:,} bytes)"


def cut_log(folder: Path) -> Cut:
    """Cut the first damaged log of an index behind its last whole record, and drop the later ones.

    Even what was acknowledged goes. Where no log is damaged, the last one may have a torn end, which is cut.
    """
    refuse_open(folder)
    generation = read_generation(folder)
    found = (re.fullmatch(r"log-(\d{6})(\.ack)?", path.name) for path in folder.iterdir())
    numbers = {int(name.group(1)) for name in found if name is not None and int(name.group(1)) >= generation.log}
    if not numbers:
        raise SiglumError(f"{folder} has no log.")
    last = max(numbers)
    for number in range(generation.log, last + 1):
        first = header(generation.lineage, number)
        path = log_path(folder, number)
        content = path.read_bytes() if path.exists() else b""
        end, _ = whole_records(content, first)
        if number == last or not end or end < max(len(content), *acknowledged_ends(path, first)):
            break
    cut = Cut(path, len(content) - end)
    for later in range(last, number, -1):  # backwards: after a kill the damaged one is still the first
        _drop(log_path(folder, later), header(generation.lineage, later), cut)
    if end:
        JournalWriter.go_on(path, end).close()
    else:  # nothing of it can be read, or it is gone
        ack_path(path).unlink(missing_ok=True)
        JournalWriter.create(folder, number, generation.lineage).close()
    sync_folder(folder)
    return cut


def _drop(path: Path, first: bytes, cut: Cut) -> None:
    """Remove a log and count what was in it."""
    ack_path(path).unlink(missing_ok=True)
    if path.exists():
        content = path.read_bytes()
        cut.later, cut.later_bytes = cut.later + 1, cut.later_bytes + len(content)
        cut.later_records += whole_records(content, first)[1]
        path.unlink()
