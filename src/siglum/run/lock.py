"""One writer of a run at a time: an OS lock on RUN/.lock, which the kernel frees when its process dies.

Whoever only reads takes no lock. A thread that holds a run's lock may take it again; other threads and processes wait.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from numbers import Real
from pathlib import Path
from typing import Any

from siglum.types import SiglumError, shown

LOCK_FILE = ".lock"
PAUSE = 0.05
"""Seconds between two tries."""
FAR = 1 << 30
"""The byte that Windows locks: beyond the holder's name, which must stay readable."""

Say = Callable[[str], None]


class _Held(threading.local):
    """The run folders that the running thread holds."""

    def __init__(self) -> None:
        self.places: set[Path] = set()


_held = _Held()
_open: set[int] = set()
"""Descriptors of all locks of this process."""


@contextmanager
def lock_run(
    root: Path, what: str, wait: float | None = None, say: Say | None = None, *, shared: bool = False
) -> Iterator[None]:
    """Hold the run folder `root` for writing; `what` tells others by whom, such as `siglum index`.

    While another holds it, `say` (the log `siglum` by default) tells so once; after `wait` seconds this is an error,
    without `wait` it is never. A folder that is not there is made, and goes again if nothing is written into it.
    Those that hold it `shared` (parts of one encoding) exclude all others but not each other; on Windows they do.
    """
    with lock_file(Path(root) / LOCK_FILE, Path(root), what, wait, say, shared=shared):
        yield


@contextmanager
def lock_file(
    path: Path,
    guarded: Path,
    what: str,
    wait: float | None = None,
    say: Say | None = None,
    *,
    shared: bool = False,
) -> Iterator[None]:
    """Hold what `guarded` names by a lock on the file `path`, as `lock_run` does for a run folder."""
    if wait is not None and not (isinstance(wait, Real) and wait >= 0):
        raise SiglumError(f"the seconds to wait must be 0 or more, not {shown(wait)}.")
    place = path.parent.resolve() / path.name
    if place in _held.places:
        yield
        return
    claim = _Claim(place, guarded, shared, say or logging.getLogger("siglum").warning)
    made = [folder for folder in place.parents if not folder.exists()]
    handle = claim.acquire(wait)
    _open.add(handle)
    _held.places.add(place)
    try:
        _write_holder(handle, what)
        yield
    finally:
        _held.places.discard(place)
        _open.discard(handle)
        claim.release(handle, made)


@dataclass(frozen=True, slots=True)
class _Claim:
    """One try after another to lock a file, and what comes after it."""

    path: Path
    guarded: Path
    shared: bool
    say: Say

    def acquire(self, wait: float | None) -> int:
        """Return the descriptor of the locked file, once nobody else holds it."""
        begun, told = time.monotonic(), False
        while True:
            handle = self._open()
            try:
                if self._try(handle) and self._is_there(handle):
                    return handle
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)
            waited = time.monotonic() - begun
            if wait is not None and waited >= wait:
                still, after = (" still", f" after {wait:g} s") if wait else ("", "")
                raise SiglumError(
                    f"{self.guarded} is{still} being written by {_holder(self.path)}{after}; try again when that is"
                    " done, or wait longer (--wait)."
                )
            if not told and waited >= PAUSE:  # at the first try the holder may not have written its name yet
                self.say(f"{self.guarded} is being written by {_holder(self.path)}; waiting")
                told = True
            time.sleep(PAUSE if wait is None else min(PAUSE, max(0.0, wait - waited)))

    def _open(self) -> int:
        while True:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                return os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            except FileNotFoundError:
                continue  # another that made the folder for nothing has just removed it
            except (FileExistsError, NotADirectoryError) as error:
                raise SiglumError(f"{self.guarded} is not a folder, so no run can be written there.") from error
            except OSError as error:
                raise SiglumError(f"{self.guarded} cannot be written: {error.strerror or error}.") from error

    def _try(self, handle: int) -> bool:
        """Return whether the lock is ours now; where the file system knows no locks, say so and go on."""
        try:
            _lock(handle, self.shared)
        except (BlockingIOError, PermissionError):
            return False
        except OSError as error:
            why = error.strerror or error
            self.say(f"{self.guarded} lies where files cannot be locked ({why}); let no other process write it")
        return True

    def _is_there(self, handle: int) -> bool:
        """Return whether the locked file is still the one by that name, not one that was removed meanwhile."""
        with suppress(OSError):
            return os.path.samestat(os.fstat(handle), self.path.stat())
        return False

    def release(self, handle: int, made: list[Path]) -> None:
        """Remove the file, and the folders made for it in which nothing was written; then free the lock.

        In this order, so that nobody locks a file that goes: who waits for it finds it gone, and makes another.
        """
        if sys.platform == "win32":
            os.close(handle)  # an open file cannot be removed there, neither by us nor by others
        with suppress(OSError):
            if self.shared and sys.platform != "win32":
                _lock(handle, shared=False)  # others that share it need the file
            self.path.unlink()
            for folder in made:
                folder.rmdir()
        if sys.platform != "win32":
            os.close(handle)


def _lock(handle: int, shared: bool) -> None:
    """Lock an open file, or raise BlockingIOError or PermissionError where another holds it."""
    if sys.platform == "win32":
        import msvcrt

        os.lseek(handle, FAR, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


def _write_holder(handle: int, what: str) -> None:
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    holder = {"what": what, "process": os.getpid(), "host": socket.gethostname(), "since": now}
    with suppress(OSError):  # on a full disk it is locked all the same; whoever waits only does not learn by whom
        os.lseek(handle, 0, os.SEEK_SET)
        os.ftruncate(handle, 0)
        os.write(handle, (json.dumps(holder) + "\n").encode())


def _holder(path: Path) -> str:
    """Return who holds the lock, in words."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        since = datetime.fromisoformat(found["since"]).astimezone()
        day = "" if since.date() == datetime.now().astimezone().date() else f"{since:%Y-%m-%d} "
        host = "" if found["host"] == socket.gethostname() else f" on {found['host']}"
        return f"`{found['what']}` (process {found['process']}{host} since {day}{since:%H:%M})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


def _forget() -> None:
    """Let go of the parent's locks in a forked child: they are the parent's, and must be free when it dies."""
    for handle in _open:
        with suppress(OSError):
            os.close(handle)
    _open.clear()
    _held.places.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
