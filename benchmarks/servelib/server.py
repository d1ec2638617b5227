"""`siglum serve` as a process of a benchmark."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any


class Server:
    """A service on a free port; used as a context, which ends it."""

    def __init__(self, run: str | Path, *flags: str, **environment: str) -> None:
        """Start it and wait until it listens."""
        command = [sys.executable, "-m", "siglum", "serve", str(run), "--port", "0", *flags]
        self._log = tempfile.NamedTemporaryFile("r", suffix=".log")  # noqa: SIM115  as long as the service runs
        with open(self._log.name, "w") as log:
            self.popen = subprocess.Popen(
                command, stderr=log, env={**os.environ, "PYTHONUNBUFFERED": "1", **environment}
            )
        while (found := re.search(r"open (http://\S+)", said := Path(self._log.name).read_text())) is None:
            if self.popen.poll() is not None:
                raise RuntimeError(said)
            time.sleep(0.05)
        self.address = found[1]

    @property
    def errors(self) -> list[str]:
        """What the service has logged as errors."""
        return [line for line in Path(self._log.name).read_text().splitlines() if '"level": "error"' in line]

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
            try:
                self.popen.wait(60)
            except subprocess.TimeoutExpired:
                self.popen.kill()

    def kill(self) -> None:
        """End it as a power cut of its process would."""
        self.popen.kill()
        self.popen.wait()

    def megabytes(self) -> float:
        """Return the memory of the service and of its decoders that no other process shares."""
        total = 0
        for pid in (self.popen.pid, *_children(self.popen.pid)):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith(("Private_Clean:", "Private_Dirty:")):
                    total += int(line.split()[1])
        return round(total / 1024, 1)


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def write_result(path: str, found: dict[str, Any]) -> None:
    """Write what was measured."""
    if path:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
