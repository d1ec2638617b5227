"""Large JSON-lines files as sequences: only byte offsets are kept, a line is parsed when it is asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from siglum.types import SiglumError

JsonObject = dict[str, Any]


class JsonLines(Sequence[JsonObject]):
    """Some lines of a JSON-lines file, by the offsets at which they begin, int64 (N,).

    The file is opened anew for every line, so that threads and forked workers may read at the same time.
    """

    def __init__(self, path: Path, offset_N: np.ndarray) -> None:
        self.path = path
        self.offset_N = offset_N

    def __len__(self) -> int:
        return len(self.offset_N)

    def __getitem__(self, index: int) -> JsonObject:  # type: ignore[override]
        with self.path.open("rb") as file:
            file.seek(int(self.offset_N[index]))
            return _parse(file.readline(), self.path, f"byte {int(self.offset_N[index])}")


def scan_lines(path: Path) -> Iterator[tuple[int, str, JsonObject]]:
    """Yield (offset, place in words, record) of every line that is not blank."""
    try:
        with path.open("rb") as file:
            offset = 0
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield offset, f"{path}, line {number}", _parse(line, path, f"line {number}")
                offset += len(line)
    except OSError as error:
        raise SiglumError(f"{path} cannot be read: {error.strerror or error}.") from error


def _parse(line: bytes, path: Path, where: str) -> JsonObject:
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise SiglumError(f"{path}, {where}: this is not valid JSON ({error}); the file may be truncated.") from error
    if not isinstance(record, dict):
        raise SiglumError(f"{path}, {where}: a record must be a JSON object, not {record!r:.60}.")
    return record
