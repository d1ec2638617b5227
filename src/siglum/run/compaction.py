"""Compaction: what the logs of an index hold, written as a segment, so that they can go.

Run as a program (`python -m siglum.run.compaction FOLDER LOG SEGMENT WHOLE`) it takes neither the interpreter nor a
core from whoever searches meanwhile.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from siglum.files import sync_folder
from siglum.index import Layered
from siglum.index.index import LAYERED
from siglum.run.generations import open_index, save_segment
from siglum.types import SiglumError

REST = 3
"""Times as long as it works, a program that is searched meanwhile rests at the end of a compaction."""
SHARE = 8
"""A layer of more changes than this part of the index is not written as a layer: both are written in one piece."""


def write_compacted(folder: Path, log: int, name: str, whole: bool = False) -> tuple[str, ...]:
    """Write the segment `name` with all changes up to a log; return the segments of the next generation.

    Few changes of a large index are written as a layer over it, unless the index is wanted in one piece.
    """
    opened = open_index(folder, upto=log)
    index, base = opened.index, opened.generation.segments[0]
    is_layer = not whole and isinstance(index, Layered) and _is_small(index)
    save_segment(folder / name, index, opened.vectors_ND, whole=not is_layer)
    sync_folder(folder)
    return (base, name) if is_layer else (name,)


def _is_small(index: Layered) -> bool:
    """Return whether a layer is worth a segment of its own."""
    return LAYERED <= len(index.below) >= SHARE * index.changes


def write_compacted_beside(folder: Path, log: int, name: str, whole: bool = False) -> tuple[str, ...]:
    """Do the same in a process of its own, of the lowest priority."""
    command = [sys.executable, "-m", "siglum.run.compaction", str(folder), str(log), name, str(int(whole))]
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths})
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it was killed"])[-1]
        raise SiglumError(f"the index could not be compacted ({reason}); it stays as it is.")
    return tuple(json.loads(done.stdout))


def resting() -> Callable[[], None]:
    """Return what, called between pieces of work, waits a few times as long as the last took: searches come first."""
    ended = time.perf_counter()

    def rest() -> None:
        nonlocal ended
        time.sleep(REST * (time.perf_counter() - ended))
        ended = time.perf_counter()

    return rest


def _main() -> None:
    if hasattr(os, "nice"):
        os.nice(19)
    folder, log, name, whole = sys.argv[1:]
    sys.stdout.write(json.dumps(write_compacted(Path(folder), int(log), name, whole == "1")))


if __name__ == "__main__":
    _main()
