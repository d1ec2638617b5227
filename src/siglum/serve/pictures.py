"""Pictures of requests and of items, decoded in processes of their own that may die without harm."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from siglum.data.pictures import FRAMINGS
from siglum.serve.batcher import expired
from siglum.serve.decoder import ANSWER, FINE, HEADER, JPEG, PIXELS
from siglum.serve.errors import ServiceError

SECONDS = 10.0
"""Time that one picture may take, whatever a request may."""


class Decoders:
    """A few processes that decode; each takes one picture at a time."""

    def __init__(self, number: int, max_pixels: int, restarted: Callable[[], None] = lambda: None) -> None:
        """Start none yet; `restarted` is told when one had to be replaced."""
        self._free: asyncio.LifoQueue[asyncio.subprocess.Process | None] = asyncio.LifoQueue()
        for _ in range(number):
            self._free.put_nowait(None)
        self._number, self._max_pixels, self._restarted = number, max_pixels, restarted
        self.pids: set[int] = set()
        """Processes that run."""

    async def start(self) -> None:
        """Start all processes, so that no request waits for that."""
        for process in [await self._free.get() for _ in range(self._number)]:
            self._free.put_nowait(process or await self._spawn())

    async def pixels(self, content: bytes, side: int, framing: str, deadline: float) -> np.ndarray:
        """Return a picture as an encoder takes it, uint8 (side, side, 3)."""
        found = await self._make(PIXELS, content, side, FRAMINGS.index(framing), deadline)
        return np.frombuffer(found, np.uint8).reshape(side, side, 3)

    async def jpeg(self, content: bytes, side: int, deadline: float) -> bytes:
        """Return a picture in its own proportions, at most `side` pixels a side, as a JPEG."""
        return await self._make(JPEG, content, side, 0, deadline)

    async def _make(self, kind: int, content: bytes, side: int, framing: int, deadline: float) -> bytes:
        begun = time.monotonic()
        seconds = min(SECONDS, max(0.0, deadline - begun))
        process: asyncio.subprocess.Process | None = None
        try:
            async with asyncio.timeout(seconds):
                process = await self._free.get()
        except TimeoutError:
            raise expired(time.monotonic() - begun) from None
        whole = False
        try:
            async with asyncio.timeout(seconds):
                if process is not None and process.returncode is not None:  # it died while it had nothing to do
                    self.pids.discard(process.pid)
                    self._restarted()
                    process = None
                process = process or await self._spawn()
                status, found = await _talk(process, HEADER.pack(kind, side, framing, len(content)), content)
            whole = True
        except TimeoutError:
            raise ServiceError("bad_request", f"the picture could not be read within {seconds:.1f} s.") from None
        except (OSError, asyncio.IncompleteReadError):
            raise ServiceError("bad_request", "the picture cannot be read: it brings its decoder down.") from None
        finally:
            if not whole and process is not None:
                self._end(process)
                self._restarted()
            self._free.put_nowait(process if whole else None)
        if status != FINE:
            raise ServiceError("bad_request", found.decode())
        return found

    async def _spawn(self) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "siglum.serve.decoder", str(self._max_pixels)),
            stdin=pipe,
            stdout=pipe,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # an interrupt at the terminal is for the service, which ends these itself
        )
        self.pids.add(process.pid)
        return process

    def _end(self, process: asyncio.subprocess.Process) -> None:
        self.pids.discard(process.pid)
        with suppress(ProcessLookupError):
            process.kill()

    async def close(self) -> None:
        """End all processes, once each has finished its picture."""
        for _ in range(self._number):
            process = await self._free.get()
            if process is not None:
                self._end(process)
                await process.wait()


async def _talk(process: asyncio.subprocess.Process, head: bytes, content: bytes) -> tuple[int, bytes]:
    """Send a request and return the status and the bytes of its answer."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(head)
    process.stdin.write(content)
    await process.stdin.drain()
    status, size = ANSWER.unpack(await process.stdout.readexactly(ANSWER.size))
    return status, await process.stdout.readexactly(size)


class PictureCache:
    """The small pictures asked for last, up to so many bytes."""

    def __init__(self, most: int) -> None:
        """Begin empty."""
        self._most, self._bytes = most, 0
        self._kept: OrderedDict[tuple[object, ...], bytes] = OrderedDict()

    def get(self, key: tuple[object, ...]) -> bytes | None:
        """Return a picture that is kept."""
        if key in self._kept:
            self._kept.move_to_end(key)
        return self._kept.get(key)

    def put(self, key: tuple[object, ...], jpeg: bytes) -> None:
        """Keep a picture, and let those go that were not asked for longest."""
        self._bytes += len(jpeg) - len(self._kept.pop(key, b""))
        self._kept[key] = jpeg
        while self._bytes > self._most:
            self._bytes -= len(self._kept.popitem(last=False)[1])
