"""The record of a run: JSONL for machines, an optional TensorBoard writer, progress for people.

The library prints nothing; a command line sets a reporter and thereby decides what people see.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

from siglum.files import write_text
from siglum.types import SiglumError

T = TypeVar("T")
LATEST = 253_370_764_800
"""Seconds from 1970 to the year 9999, the last that a date can have."""


class Log(Protocol):
    """Anything that takes one record of named numbers."""

    def begin(self, stage: str, step: int) -> None:
        """Forget what an earlier training of the stage wrote from this step on."""

    def write(self, stage: str, step: int, values: dict[str, Any]) -> None:
        """Keep the values of one step (an epoch) of a stage."""


class NoLog:
    """Keeps nothing."""

    def begin(self, stage: str, step: int) -> None:
        """Have nothing to forget."""

    def write(self, stage: str, step: int, values: dict[str, Any]) -> None:
        """Drop the record."""


class JsonlLog:
    """Appends one JSON line a record to a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def begin(self, stage: str, step: int) -> None:
        """Drop the stage's records from this step on, and lines that a kill has torn; those of other stages stay."""
        records, torn = _read(self.path)
        kept = [record for record in records if record["stage"] != stage or record["step"] < step]
        if torn or len(kept) < len(records):
            write_text(self.path, "".join(json.dumps(record) + "\n" for record in kept))

    def write(self, stage: str, step: int, values: dict[str, Any]) -> None:
        """Append one line."""
        record = {"stage": stage, "step": step, "time": round(time.time(), 3), **values}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a+b") as file:
                if file.tell() and not self._ends_whole(file):
                    file.write(b"\n")
                file.write(f"{json.dumps(record)}\n".encode())
        except OSError as error:
            raise SiglumError(f"could not write to {self.path}: {error.strerror or error}.") from error

    @staticmethod
    def _ends_whole(file: IO[bytes]) -> bool:
        """Whether the last line is whole; a kill may have torn it, and the next record must not join it."""
        file.seek(-1, 2)
        return file.read(1) == b"\n"


class TensorBoardLog:
    """Writes the same records for TensorBoard (needs the package `tensorboard`)."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise SiglumError(
                "a TensorBoard log needs the package tensorboard; install it or leave the log out."
            ) from error
        self.writer = SummaryWriter(str(folder))  # type: ignore[no-untyped-call]

    def begin(self, stage: str, step: int) -> None:
        """Leave old events where they are: TensorBoard shows the newest of each step."""

    def write(self, stage: str, step: int, values: dict[str, Any]) -> None:
        """Write every number as a scalar; lists become one scalar an entry."""
        for name, value in values.items():
            numbers = value if isinstance(value, list) else [value]
            for position, number in enumerate(numbers):
                if isinstance(number, int | float):
                    tag = f"{stage}/{name}/{position}" if isinstance(value, list) else f"{stage}/{name}"
                    self.writer.add_scalar(tag, number, step)  # type: ignore[no-untyped-call]
        self.writer.flush()  # type: ignore[no-untyped-call]


class BothLogs:
    """Sends every record to several logs."""

    def __init__(self, *logs: Log) -> None:
        self.logs = logs

    def begin(self, stage: str, step: int) -> None:
        """Begin in each."""
        for log in self.logs:
            log.begin(stage, step)

    def write(self, stage: str, step: int, values: dict[str, Any]) -> None:
        """Write to each."""
        for log in self.logs:
            log.write(stage, step, values)


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the records of a JSONL log, the last one of each stage and step; unreadable lines are left out."""
    return _read(path)[0]


def unreadable_lines(path: Path) -> int:
    """Return how many lines of a JSONL log hold no record: one that a kill has torn, or damaged ones."""
    return _read(path)[1]


def _is_record(record: Any) -> bool:
    """Return whether a line holds what `JsonlLog` writes."""
    if not isinstance(record, dict):
        return False
    moment = record.get("time")
    timed = isinstance(moment, int | float) and 0 <= moment < LATEST
    return timed and isinstance(record.get("stage"), str) and isinstance(record.get("step"), int)


def _read(path: Path) -> tuple[list[dict[str, Any]], int]:
    latest: dict[tuple[str, int], dict[str, Any]] = {}
    unreadable = 0
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    for line in filter(None, lines):
        try:
            record = json.loads(line.decode())
        except (ValueError, RecursionError):
            record = None
        if _is_record(record):
            latest[record["stage"], record["step"]] = record
        else:
            unreadable += 1
    return list(latest.values()), unreadable


@dataclass(slots=True)
class Tick:
    """How far a piece of long work has come."""

    label: str
    done: int
    total: int
    seconds: float
    unit: str

    @property
    def rate(self) -> float:
        """Units a second so far."""
        return self.done / self.seconds if self.seconds > 0 else 0.0

    @property
    def left(self) -> float:
        """Estimated seconds left; infinite where the total is unknown."""
        return (self.total - self.done) / self.rate if self.rate > 0 and self.total else float("inf")


Reporter = Callable[[Tick], None]
_reporter: ContextVar[Reporter | None] = ContextVar("reporter", default=None)


@contextmanager
def reporting(reporter: Reporter) -> Iterator[None]:
    """Send progress to `reporter` inside the block."""
    token = _reporter.set(reporter)
    try:
        yield
    finally:
        _reporter.reset(token)


def progress(
    work: Iterable[T], label: str, *, total: int | None = None, unit: str = "step", size: int = 1
) -> Iterator[T]:
    """Yield from `work`, telling the reporter (if any) after each element; one element is `size` units."""
    reporter = _reporter.get()
    if total is None:
        total = len(work) * size if isinstance(work, Sized) else 0
    start, done = time.perf_counter(), 0
    for element in work:
        yield element
        done = min(done + size, total) if total else done + size
        if reporter is not None:
            reporter(Tick(label, done, total, time.perf_counter() - start, unit))
