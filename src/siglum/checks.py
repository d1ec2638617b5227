"""Whether a file is the one that was written: CRC-32 of its blocks, in full when opened or by block when touched.

CRC-32 finds every flipped byte and every swapped file and reads as fast as memory does; against forgery it is nothing.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from siglum.types import SiglumError

BLOCK = 1 << 22
"""Bytes a check covers."""
BINARY: int = getattr(os, "O_BINARY", 0)
"""What Windows needs to be told when a file is opened: that its bytes are to be taken as they are."""
SETTLED = 50_000_000
"""Nanoseconds after which a file's time stamps tell a further change apart."""

_verified: dict[str, tuple[Any, ...]] = {}
_guard = threading.Lock()
_seeking = threading.Lock()


def checks_of(path: Path) -> dict[str, Any]:
    """Return the size of a file and the CRC-32 of each of its blocks."""
    found, size, buffer = [], 0, memoryview(bytearray(BLOCK))
    with path.open("rb", buffering=0) as file:
        while count := _fill(file.fileno(), buffer, size):
            found.append(zlib.crc32(buffer[:count]))
            size += count
    return {"bytes": size, "crc32": found}


def verify(path: Path, checks: Mapping[str, Any]) -> None:
    """Refuse a file that is not the one these checks were made of; in one process it is read for that only once."""
    size, wanted = _expected(path, checks)
    try:
        known = path.stat()
        state = (known.st_size, known.st_mtime_ns, known.st_ctime_ns, known.st_ino, size, tuple(wanted))
        with _guard:
            if _verified.get(name := str(path.resolve())) == state:
                return
    except OSError as error:
        raise _unreadable(path, error) from error
    verify_now(path, checks)
    # A file changed again within a tick of the clock keeps its time stamps: such a young one is read again next time.
    if time.time_ns() - known.st_ctime_ns > SETTLED:
        with _guard:
            _verified[name] = state


def verify_now(path: Path, checks: Mapping[str, Any]) -> None:
    """Refuse a file that is not the one these checks were made of, reading all of it in any case."""
    size, wanted = _expected(path, checks)
    try:
        sound = path.stat().st_size == size and checks_of(path)["crc32"] == wanted
    except OSError as error:
        raise _unreadable(path, error) from error
    if not sound:
        raise not_the_file(path)


class BlockChecks:
    """Checks the blocks of a mapped file when they are first touched, each once."""

    def __init__(self, path: Path, checks: Mapping[str, Any], start: int = 0) -> None:
        """Compare the size now; byte ranges given later count from `start` of the file."""
        self.path, self.start = path, start
        self.size, self._wanted = _expected(path, checks)
        try:
            # Held open, so that what is checked stays the file that was mapped if another takes its name.
            self._file = os.open(path, os.O_RDONLY | BINARY)
            weakref.finalize(self, os.close, self._file)
            size = os.fstat(self._file).st_size
        except OSError as error:
            raise _unreadable(path, error) from error
        if size != self.size:
            raise not_the_file(path)
        self._sound = np.zeros(len(self._wanted), bool)
        self.whole = not self._wanted
        """Whether every block is known to be sound."""

    def touch(self, first: int, stop: int) -> None:
        """Check the blocks that hold the bytes from `first` up to `stop`."""
        if self.whole or stop <= first:
            return
        begin, end = (self.start + first) // BLOCK, (self.start + stop - 1) // BLOCK + 1
        if not self._sound[begin:end].all():
            self._check(begin + np.flatnonzero(~self._sound[begin:end]))

    def touch_at(self, offsets: np.ndarray) -> None:
        """Check the blocks that hold the bytes at these places."""
        if self.whole or not offsets.size:
            return
        blocks = (np.asarray(offsets, np.int64) + self.start) // BLOCK
        fresh = blocks[~self._sound[blocks]]
        if fresh.size:
            self._check(np.unique(fresh))

    def _check(self, blocks: np.ndarray) -> None:
        buffer = memoryview(bytearray(min(BLOCK, self.size)))
        for block in blocks.tolist():
            try:
                count = _fill(self._file, buffer, block * BLOCK)
            except OSError as error:
                raise _unreadable(self.path, error) from error
            whole = count == min(BLOCK, self.size - block * BLOCK)
            if not whole or zlib.crc32(buffer[:count]) != self._wanted[block]:
                raise not_the_file(self.path)
            self._sound[block] = True  # only ever set, and only here: threads may at worst check a block twice
        self.whole = bool(self._sound.all())


def _fill(handle: int, buffer: memoryview, place: int) -> int:
    """Read one block from a place of an open file; return how much of it there is."""
    count, read = 0, getattr(os, "preadv", _seek_and_read)
    while count < len(buffer) and (more := read(handle, [buffer[count:]], place + count)):
        count += more
    return count


def _seek_and_read(handle: int, buffers: Sequence[memoryview], place: int) -> int:
    """Do what `os.preadv` does where there is none; the place in the file belongs to all threads, so one at a time."""
    with _seeking:
        os.lseek(handle, place, os.SEEK_SET)
        content = os.read(handle, len(buffers[0]))
    buffers[0][: len(content)] = content
    return len(content)


def _expected(path: Path, checks: Any) -> tuple[int, list[int]]:
    """Return size and sums from a record, which may be damaged itself."""
    size, sums = (checks.get("bytes"), checks.get("crc32")) if isinstance(checks, Mapping) else (None, None)
    numbers: list[Any] = sums if isinstance(sums, list) else [None]
    if isinstance(size, int) and len(numbers) == -(-size // BLOCK) and all(isinstance(n, int) for n in numbers):
        return size, numbers
    raise SiglumError(f"the record beside {path} holds no checks of it as they should be; make the stage again.")


def not_the_file(path: Path) -> SiglumError:
    """Return what to say of a file that is not the recorded one."""
    return SiglumError(
        f"{path} is not the file that was written (damaged, truncated, or swapped with another run's);"
        " put it back, or make the stage again."
    )


def _unreadable(path: Path, error: OSError) -> SiglumError:
    return SiglumError(f"{path} cannot be read ({error.strerror or error}); put it back, or make the stage again.")
