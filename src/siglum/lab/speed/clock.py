"""The clock of all measurements of speed: calls over different queries, after one that does not count.

Shapes: Q queries, D numbers a vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

Search = Callable[["Tensor"], Any]
"""Takes queries (Q, D) in host memory, returns whatever it finds, in host memory too."""
LEAST = 2
"""Calls that are timed at least."""
WARM = 3.0
"""A batch that takes less than so many seconds is run once before it is timed."""


def seconds_of(search: Search, query_QD: Tensor) -> tuple[float, Any]:
    """Return the seconds of a call, and what it found."""
    start = perf_counter()
    result = search(query_QD)
    return perf_counter() - start, result


def take(query_QD: Tensor, batch: int, start: int = 0) -> Tensor:
    """Return `batch` queries from `start` on, going round."""
    import torch

    return query_QD[torch.arange(start, start + batch) % len(query_QD)]


@dataclass(frozen=True, slots=True)
class Clock:
    """How long something is timed."""

    seconds: float = 2.0
    """Calls are repeated for this long, at least `least` times ..."""
    least: int = LEAST
    longest: float = math.inf
    """... but none begins after this; a batch that would take longer is left out."""

    def calls(
        self, search: Search, query_QD: Tensor, batch: int, more: Callable[[], bool] = lambda: False
    ) -> Iterator[tuple[int, float, Any]]:
        """Go through timed calls: the first query's number, the seconds and what was found.

        Where `more` says so they go on, up to four times as long.
        """
        number, spent = 0, 0.0
        while number < self.least or spent < self.seconds or (spent < 4 * self.seconds and more()):
            if spent > self.longest:
                return
            start = number * batch
            taken, result = seconds_of(search, take(query_QD, batch, start))
            number, spent = number + 1, spent + taken
            yield start, taken, result

    def rates(
        self, searches: Mapping[str, Search], query_QD: Tensor, batches: Sequence[int], rounds: int
    ) -> dict[str, dict[str, dict[str, Any] | None]]:
        """Return what `rate` says of every search and batch; None where a batch would take too long.

        All searches take their turn, then all again, so that what else the machine does meets all of them.
        """
        times: dict[str, dict[int, list[float]]] = {name: {batch: [] for batch in sorted(batches)} for name in searches}
        for number in range(rounds):
            for name, search in searches.items():
                lone = 0.0  # seconds of a query, as far as is known
                for batch, own in times[name].items():
                    if batch * lone > self.longest:
                        continue
                    if not number and batch * lone < WARM:
                        search(take(query_QD, batch))
                    own += [taken for _, taken, _ in self.calls(search, query_QD, batch)]
                    lone = median(own) / batch
        return {name: {str(batch): rate(batch, own) for batch, own in rows.items()} for name, rows in times.items()}


def rate(batch: int, times: Sequence[float]) -> dict[str, Any] | None:
    """Return queries a second by the median call and by the slowest, and how many there were; None of none.

    >>> rate(8, [1.0, 4.0, 2.0])
    {'rate': 4.0, 'repeats': 3, 'slowest': 2.0}
    """
    if not times:
        return None
    return {"rate": batch / median(times), "repeats": len(times), "slowest": batch / max(times)}


def crossings(pools: Sequence[int], leads: Sequence[float]) -> list[float]:
    """Return where a lead, the logarithm of a ratio, becomes another's: straight lines over logarithmic pools.

    >>> [round(pool) for pool in crossings([100, 10000, 1000000], [1.0, -1.0, -2.0])]
    [1000]
    """
    steps = zip(pools, pools[1:], leads, leads[1:], strict=False)
    return [left * (right / left) ** (a / (a - b)) for left, right, a, b in steps if (a > 0) != (b > 0)]
