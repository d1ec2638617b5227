"""Micro-batching: requests wait in a bounded queue, and one thread takes whatever waits when it is free.

A lone request is taken at once; while the thread works others gather, and the next batch is what has gathered. One that
has waited beyond its time is dropped before any work is done for it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from siglum.serve.errors import ServiceError
from siglum.types import SiglumError

A = TypeVar("A")
B = TypeVar("B")
_log = logging.getLogger("siglum.serve")


@dataclass(slots=True, eq=False)
class Ticket(Generic[A, B]):
    """One request on its way through the queue."""

    ask: A
    size: int
    deadline: float
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[B]
    begun: float = field(default_factory=time.monotonic)


@dataclass(slots=True)
class BatcherEvents:
    """What is told of the queue; each is called on the engine's thread, or where a request enters."""

    taken: Callable[[int, float], None] = lambda size, waited: None
    worked: Callable[[float], None] = lambda seconds: None
    expired: Callable[[], None] = lambda: None
    refused: Callable[[], None] = lambda: None


class Batcher(Generic[A, B]):
    """A queue with one thread behind it.

    `answer` gets the asks of a batch and returns as many answers; an exception among them goes to its own request.
    """

    def __init__(
        self,
        answer: Callable[[Sequence[A]], Sequence[B | Exception]],
        *,
        batch: int,
        limit: int,
        events: BatcherEvents | None = None,
    ) -> None:
        """Start the thread; `limit` is how much may wait, `batch` how much is taken at once."""
        self._answer, self._batch, self._limit = answer, batch, limit
        self.events = events or BatcherEvents()
        self._waiting: deque[Ticket[A, B]] = deque()
        self._size = 0
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="siglum engine", daemon=True)
        self._thread.start()

    @property
    def size(self) -> int:
        """How much waits now."""
        return self._size

    @property
    def is_alive(self) -> bool:
        """Whether there is a thread that answers."""
        return self._thread.is_alive() and not self._closing

    async def ask(self, ask: A, *, size: int, deadline: float) -> B:
        """Wait for the answer; 503 at once when the queue is full, 504 when the time is over."""
        loop = asyncio.get_running_loop()
        ticket: Ticket[A, B] = Ticket(ask, size, deadline, loop, loop.create_future())
        with self._changed:
            if self._closing:
                raise ServiceError("not_ready", "the service is shutting down.")
            # What is larger than the whole queue still has its turn in an empty one.
            if self._waiting and self._size + size > self._limit:
                self.events.refused()
                raise ServiceError("overloaded", f"{self._size} queries wait already; try again in a moment.")
            self._waiting.append(ticket)
            self._size += size
            self._changed.notify()
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                return await ticket.future
        except TimeoutError:
            raise expired(time.monotonic() - ticket.begun) from None

    def _work(self) -> None:
        while (tickets := self._take()) is not None:
            live = [ticket for ticket in tickets if not self._is_over(ticket)]
            if live:
                self._settle(live)

    def _take(self) -> list[Ticket[A, B]] | None:
        """Return what waits, up to a batch; None when there will be no more."""
        with self._changed:
            while not self._waiting and not self._closing:
                self._changed.wait()
            if not self._waiting:
                return None
            taken, size = [self._waiting.popleft()], 0
            size = taken[0].size
            while self._waiting and size + self._waiting[0].size <= self._batch:
                taken.append(self._waiting.popleft())
                size += taken[-1].size
            self._size -= size
            return taken

    def _is_over(self, ticket: Ticket[A, B]) -> bool:
        now = time.monotonic()
        if now < ticket.deadline and not ticket.future.done():
            return False
        self.events.expired()
        _deliver([(ticket, expired(now - ticket.begun))])
        return True

    def _settle(self, tickets: Sequence[Ticket[A, B]]) -> None:
        begun = time.monotonic()
        size = sum(ticket.size for ticket in tickets)
        self.events.taken(size, begun - min(ticket.begun for ticket in tickets))
        answers: Sequence[B | Exception]
        try:
            answers = self._answer([ticket.ask for ticket in tickets])
        except Exception as error:  # whatever it is, the thread must live on
            if not isinstance(error, SiglumError):
                _log.exception("a batch of %d could not be answered", size)
            answers = [error] * len(tickets)
        self.events.worked(time.monotonic() - begun)
        _deliver(list(zip(tickets, answers, strict=True)))

    def close(self) -> None:
        """Answer what waits, take no more, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()


def expired(waited: float) -> ServiceError:
    """Return what is told of a request that took too long."""
    return ServiceError("expired", f"no answer within {waited:.1f} s; try again, or ask for less.")


def _deliver(answers: Sequence[tuple[Ticket[A, B], B | Exception]]) -> None:
    """Hand answers over to the event loops that wait for them, with one call for each loop."""

    def settle(mine: Sequence[tuple[Ticket[A, B], B | Exception]]) -> None:
        for ticket, answer in mine:
            if ticket.future.done():
                continue
            if isinstance(answer, Exception):
                ticket.future.set_exception(answer)
            else:
                ticket.future.set_result(answer)

    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Ticket[A, B], B | Exception]]] = {}
    for ticket, answer in answers:
        by_loop.setdefault(ticket.loop, []).append((ticket, answer))
    for loop, mine in by_loop.items():
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, mine)
