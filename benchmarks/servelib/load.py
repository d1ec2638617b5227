"""Clients that cost little: one connection each, requests made beforehand, answers read and not parsed."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

import numpy as np

T = TypeVar("T")
BOUNDARY = b"siglum"
Body = tuple[bytes, bytes]
"""Content type and content."""


@dataclass(slots=True)
class Result:
    """How long requests took, and what they were answered."""

    seconds: float = 0.0
    times: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)

    @classmethod
    def joined(cls, parts: Sequence[Result]) -> Result:
        """Return what several senders saw together."""
        whole = cls(max(part.seconds for part in parts))
        for part in parts:
            whole.times += part.times
            whole.statuses += part.statuses
        return whole

    @property
    def rate(self) -> float:
        """Requests a second."""
        return len(self.times) / self.seconds

    def told(self, queries: int = 1) -> dict[str, Any]:
        """Return the figures."""
        return {
            "requests_per_second": round(self.rate, 1),
            "queries_per_second": round(self.rate * queries, 1),
            "ms": {f"p{p:g}": round(1000 * float(np.percentile(self.times, p)), 2) for p in (50, 95, 99, 99.9)},
            "statuses": {str(status): count for status, count in sorted(self.statuses.items())},
        }


def multipart(document: dict[str, Any], features: dict[str, np.ndarray]) -> Body:
    """Return a form of a document and rows of features."""
    parts = [b'name="request"\r\n\r\n' + json.dumps(document).encode()]
    for name, rows in features.items():
        head = f'name="{name}_features"; filename="{name}"\r\n\r\n'.encode()
        parts.append(head + np.ascontiguousarray(rows, "<f2").tobytes())
    content = b"".join(b"--" + BOUNDARY + b"\r\nContent-Disposition: form-data; " + part + b"\r\n" for part in parts)
    return b"multipart/form-data; boundary=" + BOUNDARY, content + b"--" + BOUNDARY + b"--\r\n"


def json_body(document: Any) -> Body:
    """Return a document as it is sent."""
    return b"application/json", json.dumps(document).encode()


class Wire:
    """One connection."""

    def __init__(self, address: str) -> None:
        """Do not connect yet."""
        place = urlsplit(address)
        self.host, self.port = place.hostname or "", place.port or 80

    async def __aenter__(self) -> Wire:
        self.reader, self.writer = await asyncio.open_connection(self.host, self.port)
        return self

    async def __aexit__(self, *error: object) -> None:
        self.writer.close()

    async def send(self, path: str, body: Body | None, method: str = "POST") -> tuple[int, bytes]:
        """Send a request; return the status and the content of its answer."""
        kind, content = body or (b"application/json", b"")
        head = f"{method} {path} HTTP/1.1\r\nhost: {self.host}:{self.port}\r\n".encode()
        self.writer.write(head + b"content-type: " + kind + b"\r\ncontent-length: %d\r\n\r\n" % len(content) + content)
        told = await self.reader.readuntil(b"\r\n\r\n")
        size = int(told.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
        return int(told[9:12]), await self.reader.readexactly(size)


def run_fast(work: Coroutine[Any, Any, T]) -> T:
    """Run clients on the loop that costs them least."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)


async def many_clients(address: str, bodies: Sequence[Body], clients: int, seconds: float) -> Result:
    """Have clients search as fast as they are answered."""
    found, end = Result(), time.perf_counter() + seconds

    async def client(number: int) -> None:
        async with Wire(address) as wire:
            place = number
            while (begun := time.perf_counter()) < end:
                status, _ = await wire.send("/search", bodies[place % len(bodies)])
                found.times.append(time.perf_counter() - begun)
                found.statuses[status] += 1
                place += clients

    begun = time.perf_counter()
    await asyncio.gather(*map(client, range(clients)))
    found.seconds = time.perf_counter() - begun
    return found
