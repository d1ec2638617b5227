"""Stands between a process and its files: counts what it writes, kills it at one operation, fills its disk.

Everything is patched in a process that ends afterwards, so nothing is ever put back. Operations are counted that
change a disk: creating, writing, syncing, renaming, removing. A power cut is played as a disk with an ordered journal
would show it: bytes of a file that were not synced are gone from some place on, and names that were changed since the
last sync of a folder are as they were.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
MOMENT = 0.12
"""Seconds of a pause: long enough for another process to do all its work."""


@dataclass
class Injury:
    """What is to happen to a process."""

    at: int | None = None
    """Die at this operation, counted from 0; None never."""
    torn: bool = False
    """If that operation is a write, let half of it happen."""
    power: bool = False
    """Also lose what was not synced."""
    room: int | None = None
    """Bytes the disk still takes; None means any number."""
    pause: int | None = None
    """Stand still before this operation for a moment, so that another process may come between; None never."""
    seed: int = 0


@dataclass
class Change:
    """A change of names: how to undo it."""

    undo: Callable[[], None]
    synced: bool = False


@dataclass
class Shim:
    """Patched file operations of one process, for files below `root`."""

    root: Path
    injury: Injury
    count: int = 0
    written: int = 0
    changes: list[Change] = field(default_factory=list)
    dirty: dict[tuple[int, int], int] = field(default_factory=dict)
    """Files with bytes that were not synced: device and inode, and the length that is safe."""
    kept: int = 0
    dying: bool = False
    lock: Any = field(default_factory=threading.RLock)
    real: dict[str, Any] = field(default_factory=dict)

    def step(self) -> bool:
        """Count one operation; return whether it is the one to die at."""
        with self.lock:
            if self.dying:
                threading.Event().wait()
            self.count += 1
            if self.count - 1 == self.injury.pause:
                time.sleep(MOMENT)
            return self.injury.at is not None and self.count - 1 == self.injury.at

    def die(self) -> None:
        """End this process as a kill or a power cut would."""
        with self.lock:
            self.dying = True
            if self.injury.power:
                self.cut_power()
            os.kill(os.getpid(), signal.SIGKILL)

    def cut_power(self) -> None:
        """Lose what was not synced, from a random place on."""
        rng = Random(self.injury.seed)
        last = max((n for n, change in enumerate(self.changes) if change.synced), default=-1)
        keep = rng.choice((last + 1, rng.randint(last + 1, len(self.changes))))
        for change in reversed(self.changes[keep:]):
            change.undo()
        for folder, _, names in os.walk(self.root):
            for name in names:
                path = os.path.join(folder, name)
                found = os.lstat(path)
                safe = self.dirty.get((found.st_dev, found.st_ino))
                if safe is not None and found.st_size > safe:
                    self.real["truncate"](path, rng.choice((safe, rng.randint(safe, found.st_size))))

    def take(self, size: int) -> int:
        """Return how many of these bytes the disk still takes; raise if none."""
        room = self.injury.room
        if room is None:
            self.written += size
            return size
        fits = max(0, min(size, room - self.written))
        if not fits and size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.written += fits
        return fits

    def need_room(self) -> None:
        """Refuse to make anything on a disk that is full."""
        if self.injury.room is not None and self.written >= self.injury.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def inside(self, path: Any) -> bool:
        """Return whether a path lies below the root."""
        try:
            return os.path.abspath(os.fsdecode(path)).startswith(str(self.root))
        except TypeError:
            return False

    def note_open(self, fd: int) -> None:
        """Remember a file opened for writing: what it holds now is taken as safe."""
        found = os.fstat(fd)
        self.dirty.setdefault((found.st_dev, found.st_ino), found.st_size)

    def synced(self, fd: int) -> None:
        """Remember that a file, or the names of a folder, are safe."""
        found = os.fstat(fd)
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            for change in self.changes:
                change.synced = True
        else:
            self.dirty[(found.st_dev, found.st_ino)] = found.st_size

    def keep(self, path: str) -> str | None:
        """Keep a second name of a file that is about to lose its own."""
        if not os.path.isfile(path) or os.path.islink(path):
            return None
        stash = self.root.parent / f".{self.root.name}.kept"
        self.real["mkdir"](stash) if not stash.exists() else None
        self.kept += 1
        name = str(stash / f"{os.getpid()}.{self.kept}")
        self.real["link"](path, name)
        return name

    def changed(self, *undo: tuple[str, tuple[Any, ...]]) -> None:
        """Remember a change of names and the operations that undo it."""

        def back() -> None:
            for name, args in undo:
                try:
                    self.real[name](*args)
                except OSError:
                    continue

        self.changes.append(Change(back))


def place(path: Any, dir_fd: int | None = None) -> str:
    """Return the absolute path of a name, perhaps relative to an open folder."""
    name = os.fsdecode(path)
    return os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), name) if dir_fd is not None else os.path.abspath(name)


def install(root: Path, injury: Injury) -> Shim:
    """Patch this process' file operations below `root` and return what counts them."""
    shim = Shim(root.absolute(), injury)
    names = "open write fsync fdatasync replace rename link unlink remove mkdir rmdir ftruncate truncate pwrite writev"
    shim.real = {name: getattr(os, name) for name in names.split()}
    shim.real["io.open"] = io.open
    _patch_descriptors(shim)
    _patch_names(shim)
    _patch_files(shim)
    return shim


def _patch_descriptors(shim: Shim) -> None:
    real = shim.real

    def open_(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if not flags & WRITES or not shim.inside(place(path, dir_fd)):
            return int(real["open"](path, flags, mode, dir_fd=dir_fd))
        if shim.step():
            shim.die()
        fresh = not os.path.lexists(where := place(path, dir_fd))
        if fresh:
            shim.need_room()
        fd = int(real["open"](path, flags, mode, dir_fd=dir_fd))
        shim.note_open(fd)
        if fresh:
            shim.changed(("unlink", (where,)))
        return fd

    def write(fd: int, data: Any) -> int:
        if not shim.inside(os.readlink(f"/proc/self/fd/{fd}")):
            return int(real["write"](fd, data))
        if shim.step():
            if shim.injury.torn:
                real["write"](fd, bytes(data)[: len(bytes(data)) // 2])
            shim.die()
        return int(real["write"](fd, bytes(data)[: shim.take(len(bytes(data)))]))

    def sync(name: str) -> Callable[[int], None]:
        def call(fd: int) -> None:
            number = fd if isinstance(fd, int) else fd.fileno()
            if shim.step():
                shim.die()
            shim.need_room()
            real[name](number)
            shim.synced(number)

        return call

    def counted(name: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if shim.step():
                shim.die()
            return real[name](*args)

        return call

    os.open, os.write = open_, write
    os.fsync, os.fdatasync = sync("fsync"), sync("fdatasync")
    os.ftruncate, os.truncate, os.pwrite, os.writev = (
        counted(name) for name in ("ftruncate", "truncate", "pwrite", "writev")
    )


def _patch_names(shim: Shim) -> None:
    real = shim.real

    def move(name: str) -> Callable[..., None]:
        def call(src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
            if shim.step():
                shim.die()
            here, there = place(src, src_dir_fd), place(dst, dst_dir_fd)
            old = shim.keep(there)
            real[name](here, there)
            again = [("link", (old, there))] if old else []
            shim.changed(("rename", (there, here)), *again)

        return call

    def remove(path: Any, *, dir_fd: int | None = None) -> None:
        where = place(path, dir_fd)
        if not os.path.lexists(where):
            real["unlink"](where)
        if shim.step():
            shim.die()
        old = shim.keep(where)
        real["unlink"](where)
        if old:
            shim.changed(("link", (old, where)))

    def link(src: Any, dst: Any, **options: Any) -> None:
        if shim.step():
            shim.die()
        real["link"](src, dst, **options)
        shim.changed(("unlink", (place(dst),)))

    def mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        where = place(path, dir_fd)
        if os.path.lexists(where):
            real["mkdir"](where)
        if shim.step():
            shim.die()
        real["mkdir"](where, mode)
        shim.changed(("rmdir", (where,)))

    def rmdir(path: Any, *, dir_fd: int | None = None) -> None:
        if shim.step():
            shim.die()
        where = place(path, dir_fd)
        real["rmdir"](where)
        shim.changed(("mkdir", (where,)))

    os.replace, os.rename, os.link, os.mkdir, os.rmdir = move("replace"), move("rename"), link, mkdir, rmdir
    os.unlink, os.remove = remove, remove


def _patch_files(shim: Shim) -> None:
    """Give every file opened for writing a lowest layer of ours."""

    class Raw(io.FileIO):
        def write(self, data: Any) -> int:
            whole = bytes(data)
            if shim.step():
                if shim.injury.torn:
                    super().write(whole[: len(whole) // 2])
                shim.die()
            return super().write(whole[: shim.take(len(whole))]) or 0

        def truncate(self, size: int | None = None) -> int:
            if shim.step():
                shim.die()
            return super().truncate(size)

    def open_(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        named = not isinstance(file, int)
        where = place(file) if named else os.readlink(f"/proc/self/fd/{file}")
        if not set(mode) & set("wax+") or not shim.inside(where):
            return shim.real["io.open"](file, mode, buffering, encoding, errors, newline, closefd, opener)
        fresh = named and not os.path.lexists(where)
        if named and shim.step():
            shim.die()
        if fresh:
            shim.need_room()
        raw = Raw(file, mode.replace("t", "").replace("b", ""), closefd, opener)
        shim.note_open(raw.fileno())
        if fresh:
            shim.changed(("unlink", (where,)))
        if buffering == 0:
            return raw
        buffer = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        if "b" in mode:
            return buffer
        text = io.TextIOWrapper(buffer, encoding or "utf-8", errors, newline, line_buffering=buffering == 1)
        text.mode = mode  # type: ignore[misc]
        return text

    io.open = builtins.open = open_  # type: ignore[assignment]
