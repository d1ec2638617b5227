"""Units of work: what is missing is made, several at a time, and each leaves a part that says what it was made from.

A part is one JSON file; one with the same identity is not made again, so that a run that was stopped goes on.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from time import perf_counter
from typing import Any, NoReturn

from siglum.files import read_json, write_json
from siglum.types import SiglumError

Part = dict[str, Any]
"""What a unit left: what its work returned, and its `identity` and `seconds` beside it."""
Say = Callable[[str], None]
NOT_BEGUN = "not measured yet"


@dataclass(frozen=True, slots=True)
class Work:
    """One unit: what makes its part, and where that goes; function and arguments travel to other processes."""

    name: str
    """For people, and unique in a run."""
    path: Path
    """Where its part goes."""
    identity: str
    """What must agree for a part to count."""
    make: Callable[..., Part]
    arguments: tuple[Any, ...] = ()
    shares: str = ""
    """Units with the same word here share a training, and had better not begin together."""
    stage: int = 0
    """Units begin when those of earlier stages are done."""
    alone: bool = False
    """Whether nothing else may run beside it, because it measures time; such units come last."""

    def is_done(self) -> bool:
        """Whether its part is there."""
        return self.path.exists() and self.part().get("identity") == self.identity

    def part(self) -> Part:
        """Read its part."""
        found: Part = read_json(self.path)
        return found

    def run(self) -> None:
        """Make the part."""
        start = perf_counter()
        found = self.make(*self.arguments)
        own = {"identity": self.identity, "seconds": round(perf_counter() - start, 2)}
        clash = sorted(set(found) & set(own))
        if clash:
            raise SiglumError(f"unit {self.name} returned {clash[0]!r}, a field every part has.")
        write_json(self.path, {**own, **found})


def run_missing(work: Sequence[Work], *, jobs: int = 1, limit: float = 0.0, say: Say) -> dict[str, str]:
    """Run the units that have left no part; return by name why there is none of the others.

    A unit that fails is told in one sentence and the others go on. No unit begins after `limit` seconds, if given.
    """
    todo = [one for one in work if not one.is_done()]
    if len(todo) < len(work):
        say(f"{len(work) - len(todo)} of {len(work)} units are there already")
    missing, start, number = {one.name: NOT_BEGUN for one in todo}, perf_counter(), 0
    for stage in sorted({(one.alone, one.stage) for one in todo}):
        group = [one for one in todo if (one.alone, one.stage) == stage]
        for one, error in _each(apart(group, jobs), 1 if stage[0] else jobs, limit, start):
            number += 1
            if error:
                missing[one.name] = error
            else:
                del missing[one.name]
            state = f"failed: {error}" if error else "done"
            say(f"{one.name}: {state} ({number} of {len(todo)}, {perf_counter() - start:.0f} s)")
    return missing


def apart(work: Sequence[Work], jobs: int) -> list[Work]:
    """Put units that share a training two rounds of `jobs` apart, so that processes seldom wait for one another.

    Not further, so that a time limit cuts whole trainings rather than the last units of all of them.
    """
    first: dict[str, int] = {}
    shared: dict[str, int] = {}
    ranked = []
    for one in work:
        key = one.shares or one.name
        shared[key] = shared.get(key, -1) + 1
        ranked.append((first.setdefault(key, len(first)) + 2 * jobs * shared[key], one))
    return [one for _, one in sorted(ranked, key=lambda pair: pair[0])]


def check_counts(**counts: int) -> None:
    """Refuse options that count something and are below 1."""
    for name, value in counts.items():
        if value < 1:
            raise SiglumError(f"--{name} must be at least 1, not {value}.")


def refuse_nothing(reasons: Iterable[str]) -> NoReturn:
    """Refuse to go on where nothing was measured, with the first reason."""
    reason = next(iter(reasons), "there are no units")
    raise SiglumError(f"nothing was measured: {reason.rstrip('.')}.")


def _each(work: Sequence[Work], jobs: int, limit: float, start: float) -> Iterator[tuple[Work, str | None]]:
    """Run the work and yield each unit when it is done, with the error if there was one."""
    if jobs == 1 or len(work) < 2:
        for one in work:
            if limit and perf_counter() - start >= limit:
                return
            yield one, _try(one)
        return
    with worker_pool(min(jobs, len(work))) as pool:
        left, asked = limit - (perf_counter() - start) if limit else 0.0, perf_counter()
        futures = {pool.submit(_try_in_time, one, left, asked): one for one in work}
        try:
            for future in as_completed(futures):
                begun, error = future.result()
                if begun:
                    yield futures[future], error
        except BrokenProcessPool as error:
            raise SiglumError(
                f"a process was ended from outside, perhaps for memory; what is done is kept: try --jobs {jobs // 2}."
            ) from error


@contextmanager
def worker_pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Return processes of one thread each that end with this one; after an error, what has not begun never does."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=begin_worker) as pool:
        try:
            yield pool
        finally:
            pool.shutdown(cancel_futures=True)


def begin_worker() -> None:
    """Keep to one thread, since the neighbours need the rest, and end with the parent, however that ends."""
    import torch

    torch.set_num_threads(1)
    Thread(target=end_with_parent, daemon=True).start()


def end_with_parent() -> None:
    """Wait for the process that started this one to end, however that ends, and end this one then."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _try_in_time(work: Work, left: float, asked: float) -> tuple[bool, str | None]:
    """Run a unit unless its time is over; return whether it was begun and what went wrong."""
    if left and perf_counter() - asked > left:
        return False, None
    return True, _try(work)


def _try(work: Work) -> str | None:
    """Run a unit; an error becomes one sentence, so that the other units go on."""
    try:
        work.run()
    except Exception as error:  # one unit's fault must not end hours of others
        return sentence_of(error)
    return None


def sentence_of(error: Exception) -> str:
    r"""Return an error in one sentence.

    >>> sentence_of(SiglumError("no.")), sentence_of(ValueError("two\nlines"))
    ('no.', 'ValueError: two lines')
    """
    if isinstance(error, SiglumError):
        return str(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
