"""A full disk: every writing verb runs out of room somewhere, on a small tmpfs or behind a quota."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from random import Random
from typing import Any

from faultlib import ops
from faultlib.campaign import Base, Trial
from faultlib.kills import compare, judge
from faultlib.state import see
from faultlib.told import fault
from faultlib.verbs import BY_NAME, Known, Verb, injured, start

BAR = 300
NEW_MOUNTS, PRIVATE, REMOUNT = 0x20000, 0x4C000, 0x20


def plan(base: Base, tries: int | None) -> list[Trial]:
    """Return trials, evenly over the verbs and over both ways."""
    return base.spread("disk", [f"{way}:{name}" for name in base.known for way in ("quota", "tmpfs")], tries or BAR)


def act(base: Base, trial: Trial, scratch: Path) -> dict[str, Any]:
    """Run a verb out of room, look at what it left, make room and go on."""
    way, _, name = trial.case.partition(":")
    rng = Random(f"disk {base.seed} {trial.case} {trial.number}")
    verb, known = BY_NAME[name], base.known[name]
    disk = scratch / "disk"
    disk.mkdir()
    mounted = way == "tmpfs" and mount(disk, 256 << 20)
    run, note = disk / "run", scratch / "note.json"
    start(verb, base.root, run)
    if mounted:
        room = rng.randrange(0, known.written + 8192)
        mount(disk, used(disk) + room, REMOUNT)
        injury = ops.Injury()
    else:
        room = rng.randrange(0, known.written)
        injury = ops.Injury(room=room)
    os.waitpid(injured(verb, base.root, run, injury, note), 0)
    told = base.read_note(note)
    if mounted:
        mount(disk, 256 << 20, REMOUNT)
    faults = [fault("crash", f"{name} did not end by itself")] if told is None else told.faults
    faults = faults or _judge(verb, known, base, run, told is not None and told.code == 0)
    how = f"{'a disk' if mounted else 'a quota'} with {room:,} bytes left"
    return {"faults": [one | {"what": f"{one['what']} ({how})"} for one in faults], "way": how}


def _judge(verb: Verb, known: Known, base: Base, run: Path, done: bool) -> list[dict[str, str]]:
    found, faults = see(run)
    return faults or compare(verb, known, found, done) or judge(verb, known, base, run, done)


def used(folder: Path) -> int:
    """Return the bytes a file system holds."""
    found = os.statvfs(folder)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


def mount(folder: Path, size: int, flags: int = 0) -> bool:
    """Mount a tmpfs that this process and its children alone see, or change its size; False where nobody may."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not flags and (libc.unshare(NEW_MOUNTS) or libc.mount(b"none", b"/", None, PRIVATE, None)):
        return False
    options = f"size={max(4096, size)}".encode()
    return bool(libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", flags, options) == 0)
