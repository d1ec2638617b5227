from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

import pytest

from siglum.serve.batcher import Batcher, BatcherEvents
from siglum.serve.errors import ServiceError


class Slow:
    """Answers by doubling; holds every batch until it may go on."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.go, self.begun = threading.Event(), threading.Event()

    def answer(self, asks: Sequence[int]) -> list[int | Exception]:
        self.batches.append(list(asks))
        self.begun.set()
        self.go.wait(10)
        return [ValueError(ask) if ask < 0 else 2 * ask for ask in asks]


def soon(seconds: float = 10) -> float:
    return time.monotonic() + seconds


async def held(slow: Slow, batcher: Batcher[int, int], *asks: int, deadline: float = 10) -> list[asyncio.Task[int]]:
    """Let one ask occupy the engine, and queue others behind it."""
    first = asyncio.ensure_future(batcher.ask(0, size=1, deadline=soon()))
    await asyncio.to_thread(slow.begun.wait, 5)
    rest = [asyncio.ensure_future(batcher.ask(ask, size=1, deadline=soon(deadline))) for ask in asks]
    await asyncio.sleep(0.01)
    return [first, *rest]


def test_a_lone_ask_does_not_wait() -> None:
    slow = Slow()
    slow.go.set()
    batcher: Batcher[int, int] = Batcher(slow.answer, batch=64, limit=64)

    async def work() -> float:
        await batcher.ask(1, size=1, deadline=soon())
        begun = time.perf_counter()
        assert await batcher.ask(21, size=1, deadline=soon()) == 42
        return time.perf_counter() - begun

    assert asyncio.run(work()) < 0.05
    assert slow.batches == [[1], [21]]
    batcher.close()


def test_what_waits_is_taken_at_once_up_to_a_batch() -> None:
    slow = Slow()
    batcher: Batcher[int, int] = Batcher(slow.answer, batch=4, limit=64)

    async def work() -> list[int]:
        tasks = await held(slow, batcher, 1, 2, 3, 4, 5, 6)
        assert batcher.size == 6
        slow.go.set()
        return await asyncio.gather(*tasks)

    assert asyncio.run(work()) == [0, 2, 4, 6, 8, 10, 12]
    assert slow.batches == [[0], [1, 2, 3, 4], [5, 6]]
    batcher.close()


def test_an_error_goes_to_its_own_ask() -> None:
    slow = Slow()
    batcher: Batcher[int, int] = Batcher(slow.answer, batch=4, limit=64)

    async def work() -> list[int | BaseException]:
        tasks = await held(slow, batcher, 1, -2, 3)
        slow.go.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = asyncio.run(work())
    assert found[1] == 2 and isinstance(found[2], ValueError) and found[3] == 6
    batcher.close()


def test_a_full_queue_refuses_at_once() -> None:
    slow, refused = Slow(), []
    batcher: Batcher[int, int] = Batcher(
        slow.answer, batch=4, limit=2, events=BatcherEvents(refused=lambda: refused.append(1))
    )

    async def work() -> None:
        tasks = await held(slow, batcher, 1, 2)
        with pytest.raises(ServiceError, match="2 queries wait already") as told:
            await batcher.ask(3, size=1, deadline=soon())
        assert told.value.status == 503
        slow.go.set()
        assert await asyncio.gather(*tasks) == [0, 2, 4]

    asyncio.run(work())
    assert refused == [1]
    batcher.close()


def test_what_is_larger_than_the_queue_has_its_turn() -> None:
    slow = Slow()
    slow.go.set()
    batcher: Batcher[int, int] = Batcher(slow.answer, batch=4, limit=2)
    assert asyncio.run(batcher.ask(5, size=100, deadline=soon())) == 10
    batcher.close()


def test_who_waited_too_long_is_told_and_not_worked_for() -> None:
    slow, late = Slow(), []
    batcher: Batcher[int, int] = Batcher(
        slow.answer, batch=4, limit=64, events=BatcherEvents(expired=lambda: late.append(1))
    )

    async def work() -> None:
        tasks = await held(slow, batcher, 1, deadline=0.05)
        with pytest.raises(ServiceError, match=r"no answer within 0.\d s") as told:
            await tasks[1]
        assert told.value.status == 504
        slow.go.set()
        assert await tasks[0] == 0
        assert await batcher.ask(4, size=1, deadline=soon()) == 8

    asyncio.run(work())
    assert slow.batches == [[0], [4]]
    assert late == [1]
    batcher.close()


def test_an_engine_that_breaks_is_there_for_the_next() -> None:
    def answer(asks: Sequence[int]) -> list[int | Exception]:
        if asks[0] == 1:
            raise RuntimeError("broken")
        return [*asks]

    batcher: Batcher[int, int] = Batcher(answer, batch=4, limit=64)

    async def work() -> None:
        with pytest.raises(RuntimeError):
            await batcher.ask(1, size=1, deadline=soon())
        assert await batcher.ask(2, size=1, deadline=soon()) == 2

    asyncio.run(work())
    assert batcher.is_alive
    batcher.close()


def test_closing_answers_what_waits_and_takes_no_more() -> None:
    slow = Slow()
    batcher: Batcher[int, int] = Batcher(slow.answer, batch=1, limit=64)

    async def work() -> list[int]:
        tasks = await held(slow, batcher, 1, 2)
        closing = asyncio.to_thread(batcher.close)
        slow.go.set()
        await closing
        with pytest.raises(ServiceError, match="shutting down"):
            await batcher.ask(3, size=1, deadline=soon())
        return await asyncio.gather(*tasks)

    assert asyncio.run(work()) == [0, 2, 4]
    assert not batcher.is_alive
