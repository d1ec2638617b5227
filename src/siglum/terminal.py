"""Progress on a terminal, for those who ask for it; the command line always does."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from siglum.log import Tick, reporting
from siglum.types import truth_value

if TYPE_CHECKING:
    from rich.progress import Progress

PAUSE = 0.2
"""Seconds between two words on a terminal; elsewhere fifty times as many."""


class ConsoleProgress:
    """One bar on a terminal; elsewhere a line every ten seconds."""

    def __init__(self, terminal: bool | None = None) -> None:
        self.terminal = sys.stderr.isatty() if terminal is None else terminal
        self.last = time.perf_counter()
        self.bar: Progress | None = None

    def __call__(self, tick: Tick) -> None:
        """Show how far the work is, its rate and the time left."""
        now, done = time.perf_counter(), tick.done >= tick.total > 0
        pause = PAUSE if self.terminal else 50 * PAUSE
        if now - self.last < pause and not (done and self.bar):
            return
        self.last = now
        left = f"  {_clock(tick.left)} left" if tick.total and not done else ""
        speed = f"{tick.rate:,.1f} {tick.unit}/s{left}"
        if self.terminal:
            self._draw(tick, speed)
        else:
            share = f"{100 * tick.done / tick.total:3.0f} %  " if tick.total else ""
            sys.stderr.write(f"{tick.label}  {share}{speed}\n")

    def _draw(self, tick: Tick, speed: str) -> None:
        self.bar = self.bar or _new_bar()
        self.bar.tasks[0].total = tick.total or None
        self.bar.update(self.bar.task_ids[0], description=tick.label, completed=tick.done, speed=speed)
        self.bar.start()
        self.bar.refresh()

    def close(self) -> None:
        """Take the bar away."""
        if self.bar:
            self.bar.stop()
            self.bar = None


@contextmanager
def shown_if(asked: bool) -> Iterator[None]:
    """Show the progress of the block on stderr if that is asked for; else whoever reports already goes on."""
    if not truth_value("progress", asked):
        yield
        return
    reporter = ConsoleProgress()
    try:
        with reporting(reporter):
            yield
    finally:
        reporter.close()


def _new_bar() -> Progress:
    """Return a bar with one task, which every work takes in turn; it is drawn when told to, not by a thread."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(30),
        TaskProgressColumn(),
        TextColumn("{task.fields[speed]}", markup=False),
    )
    bar = Progress(
        *columns,
        console=Console(stderr=True),
        transient=True,
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    bar.add_task("", speed="")
    return bar


def _clock(seconds: float) -> str:
    if seconds == float("inf"):
        return "?"
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
