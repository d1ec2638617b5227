"""What tests of the service share: a service in a thread of the test, or in a process of its own that can be killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from siglum.serve.server import make_server
from siglum.serve.service import Service
from siglum.serve.settings import ServeConfig


class Running:
    """A service that listens in a thread."""

    def __init__(self, run: Path, **settings: Any) -> None:
        self.service = Service(run, ServeConfig(**{"port": 0, **settings}))
        ready, ports = threading.Event(), list[int]()
        self.server = make_server(self.service, lambda port: (ports.append(port), ready.set()))  # type: ignore[func-returns-value]
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        assert ready.wait(30)
        self.address = f"http://127.0.0.1:{ports[0]}"
        self.http = httpx.Client(base_url=self.address, timeout=30)

    def search(self, **body: Any) -> list[dict[str, Any]]:
        """Return the hits of one query."""
        options = {name: body.pop(name) for name in list(body) if name not in QUERY}
        answer = self.http.post("/search", json={"queries": [body], **options})
        assert answer.status_code == 200, answer.text
        return answer.json()["results"][0]  # type: ignore[no-any-return]

    def close(self) -> None:
        self.http.close()
        self.server.should_exit = True
        self.thread.join(30)
        self.service.close()


QUERY = ("text", "image", "item", "features", "instruction")


@contextmanager
def running(run: Path, **settings: Any) -> Iterator[Running]:
    one = Running(run, **settings)
    try:
        yield one
    finally:
        one.close()


class Process:
    """`siglum serve` in a process of its own."""

    def __init__(self, run: Path, *flags: str) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "siglum", "serve", str(run), "--port", "0", *flags],
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.lines: list[str] = []
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            self.lines.append(line)
            if found := re.search(r"open (http://\S+)", line):
                self.address = found[1]
                break
        else:
            raise AssertionError("".join(self.lines))
        self._reader = threading.Thread(target=self.lines.extend, args=(self.popen.stderr,), daemon=True)
        self._reader.start()

    def send(self, number: int) -> None:
        os.kill(self.popen.pid, number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.popen.wait()

    def stop(self) -> int:
        self.send(signal.SIGTERM)
        return self.popen.wait(60)


@contextmanager
def serving(run: Path, *flags: str) -> Iterator[Process]:
    process = Process(run, *flags)
    try:
        yield process
    finally:
        if process.popen.poll() is None:
            process.kill()


def until_ready(http: httpx.Client, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if http.get("/ready").is_success:
            return
        time.sleep(0.05)
    raise AssertionError("the service is not ready")
