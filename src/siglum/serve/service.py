"""The service behind the endpoints: the run that is served, its queue, its writes, and how another takes its place.

Searches run on one thread, one batch at a time, each of one run and one moment. Writes run on a few threads, which
share syncs of the disk. A run's lock belongs to the thread that took it, so one more thread opens and closes runs.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from siglum import __version__
from siglum.serve.asks import Ask, CallAsk, SearchAsk, Searched, answer_all, search_by_codes
from siglum.serve.batcher import Batcher
from siglum.serve.errors import ServiceError
from siglum.serve.metrics import ServiceMetrics
from siglum.serve.pictures import Decoders, PictureCache
from siglum.serve.served import Served
from siglum.serve.settings import ServeConfig
from siglum.types import SiglumError

T = TypeVar("T")
WRITERS = 4
"""Threads that write; one sync of the disk serves all that wait for it."""
_log = logging.getLogger("siglum.serve")


class Service:
    """A run at work; use it as `with Service(...) as service`, in a program that has an event loop."""

    def __init__(self, folder: Path, config: ServeConfig, *, device: str = "cpu", wait: float | None = 0.0) -> None:
        """Load the run and open it; `wait` is how long to wait for another process that writes it."""
        config.check()
        self.folder, self.config, self.device = folder, config, device
        self.metrics = ServiceMetrics()
        self._keeper = ThreadPoolExecutor(1, "siglum keeper")
        self._writers = ThreadPoolExecutor(WRITERS, "siglum writer")
        self._gate = threading.Condition()
        self._writing, self._swapping = 0, False
        self._queued = 0
        self.is_draining, self._closed = False, False
        self.version = __version__
        self.served: Served = self._keep(lambda: self._opened(wait))
        self.batcher: Batcher[Ask, Any] = Batcher(
            self._answer, batch=config.batch, limit=config.queue, events=self.metrics.events()
        )
        self.metrics.watch(lambda: len(self.served.retriever), lambda: self.batcher.size)
        self.decoders = Decoders(config.decoders, config.max_pixels, self.metrics.decoders.inc)
        self.thumbnails = PictureCache(config.picture_cache)

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _keep(self, work: Callable[[], T]) -> T:
        """Do something on the thread that opens and closes runs."""
        return self._keeper.submit(work).result()

    def _opened(self, wait: float | None) -> Served:
        served = self._load(wait)
        served.open()
        return served

    def _load(self, wait: float | None) -> Served:
        return Served(self.folder, device=self.device, read_only=self.config.read_only, wait=wait)

    @property
    def is_ready(self) -> bool:
        """Whether requests should be sent here."""
        return self.batcher.is_alive and not self.is_draining

    def deadline(self) -> float:
        """Return when a request that begins now is over, on the monotonic clock."""
        return time.monotonic() + self.config.timeout

    async def search(self, ask: SearchAsk, deadline: float) -> Searched:
        """Return the hits of every query of a request."""
        found: Searched = await self.batcher.ask(ask, size=max(1, len(ask)), deadline=deadline)
        return found

    async def on_engine(self, call: Callable[[Served], T], deadline: float) -> T:
        """Do something else on the engine's thread."""
        found: T = await self.batcher.ask(CallAsk(call), size=1, deadline=deadline)
        return found

    def _answer(self, asks: Sequence[Ask]) -> Sequence[Any]:
        served = self.served  # of one run from start to end

        def search(retriever: Any, features: Any, how: Any) -> Any:
            return (served.dense.search if how.dense else search_by_codes)(retriever, features, how)

        return answer_all(served, asks, search)

    async def write(self, work: Callable[[Served], T]) -> T:
        """Do a write; it is on the disk when this returns."""
        if self.config.read_only:
            raise ServiceError("forbidden", "this service only reads; it was started with --read-only.")
        if self._queued >= self.config.writes:
            self.metrics.refused.inc()
            raise ServiceError("overloaded", f"{self._queued} writes wait already; try again in a moment.")
        self._queued += 1
        try:
            # Not to be given up half-way: what was begun is finished, and its answer says so.
            return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._writers, self._write, work))
        finally:
            self._queued -= 1

    def _write(self, work: Callable[[Served], T]) -> T:
        with self._writable() as served:
            if served.writer is None:
                raise ServiceError("not_ready", "the run is not open for writing; look into the service's log.")
            return work(served)

    @contextmanager
    def _writable(self) -> Iterator[Served]:
        """Give the run that is served, which is not closed meanwhile."""
        with self._gate:
            self._gate.wait_for(lambda: not self._swapping)
            self._writing += 1
            served = self.served
        try:
            yield served
        finally:
            with self._gate:
                self._writing -= 1
                self._gate.notify_all()

    async def reload(self) -> None:
        """Open the run folder again, which may be another one by now, and serve it from the next batch on.

        If that is refused, the run that is served stays.
        """
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._keeper, self._reload)
        except (SiglumError, OSError) as error:
            self.metrics.reloads.labels("refused").inc()
            _log.error("the run was not reloaded: %s", error)
            return
        self.metrics.reloads.labels("done").inc()
        _log.info("reloaded %s: %d items", self.served.root, len(self.served.retriever))

    def _reload(self) -> None:
        before, after = self.served, self._load(0.0)
        same = before.root == after.root
        if not same:
            after.open()
        with self._gate:  # writes wait until the run they go to is decided
            self._swapping = True
            self._gate.wait_for(lambda: not self._writing)
        try:
            before.close()
            if same:
                self._open_again(before, after)
            self.served = after
        finally:
            with self._gate:
                self._swapping = False
                self._gate.notify_all()

    def _open_again(self, before: Served, after: Served) -> None:
        """Open the new one in the place of the old one of the same folder, or else the old one again."""
        try:
            after.open()
        except BaseException:
            before.open()
            raise

    def close(self) -> None:
        """Finish what was taken, and free the run; a second time does nothing."""
        with self._gate:
            if self._closed:
                return
            self._closed = True
        self.is_draining = True
        self.batcher.close()
        self._writers.shutdown()
        self._keep(lambda: self.served.close())
        self._keeper.shutdown()
