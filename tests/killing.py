"""What tests of killed work share: a log that ends a training, and whether a process still runs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from siglum.log import NoLog


class KilledAt(NoLog):
    """Ends a training in one epoch, after its work and before its checkpoint."""

    def __init__(self, at: int) -> None:
        self.at = at

    def write(self, stage: str, step: int, values: dict[str, Any]) -> None:
        if step == self.at:
            raise KeyboardInterrupt


def until(done: Callable[[], bool]) -> None:
    """Wait until something is so."""
    for _ in range(600):
        if done():
            return
        time.sleep(0.1)
    pytest.fail("it did not happen within a minute")


def is_running(pid: int) -> bool:
    """Return whether a process runs; one that merely waits for its parent does not."""
    path = Path(f"/proc/{pid}/stat")
    try:
        return path.read_text().rpartition(")")[2].split()[0] != "Z" if Path("/proc").exists() else not os.kill(pid, 0)
    except (FileNotFoundError, ProcessLookupError):
        return False
