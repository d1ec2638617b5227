"""Progress on a terminal, for those who ask for it; the command line always does."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from siglum.log import Tick, reporting

PAUSE = 0.2
"""Seconds between two words on a terminal; elsewhere fifty times as many."""


class ConsoleProgress:
    """One line on a terminal, rewritten in place; elsewhere a line every ten seconds."""

    def __init__(self, terminal: bool | None = None) -> None:
        self.terminal = sys.stderr.isatty() if terminal is None else terminal
        self.last = time.perf_counter()
        self.open = False

    def __call__(self, tick: Tick) -> None:
        """Show how far the work is, its rate and the time left."""
        now, done = time.perf_counter(), tick.done >= tick.total > 0
        pause = PAUSE if self.terminal else 50 * PAUSE
        if now - self.last < pause and not (done and self.open):
            return
        self.last = now
        share = f"{100 * tick.done / tick.total:3.0f} %  " if tick.total else ""
        left = f"  {_clock(tick.left)} left" if tick.total and not done else ""
        line = f"{tick.label}  {share}{tick.rate:,.1f} {tick.unit}/s{left}"
        if self.terminal:
            sys.stderr.write(f"\r\x1b[2K{line}")
            sys.stderr.flush()
            self.open = True
        else:
            sys.stderr.write(f"{line}\n")

    def close(self) -> None:
        """Clear the line."""
        if self.open:
            sys.stderr.write("\r\x1b[2K")
            self.open = False


@contextmanager
def shown_if(asked: bool) -> Iterator[None]:
    """Show the progress of the block on stderr if that is asked for; else whoever reports already goes on."""
    if not asked:
        yield
        return
    reporter = ConsoleProgress()
    try:
        with reporting(reporter):
            yield
    finally:
        reporter.close()


def _clock(seconds: float) -> str:
    if seconds == float("inf"):
        return "?"
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
