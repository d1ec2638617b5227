"""Trials in forked processes: everything is imported once, and a trial that hangs, crashes or grows harms no other."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import resource
import select
import shutil
import signal
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MEMORY = 6 << 30
"""Bytes of address space a trial may take beyond what it starts with."""
PAUSE = 0.2
"""Seconds between two looks at trials at work."""
Result = dict[str, Any]


@dataclass
class Running:
    """A trial at work."""

    trial: Any
    pid: int
    pipe: int
    scratch: Path
    moved: float = field(default_factory=time.monotonic)
    """When it was last seen to compute."""
    computed: float = 0.0
    """Seconds of processor time of all its processes."""
    text: bytes = b""

    def is_late(self, limit: float) -> bool:
        """Return whether it has computed, or stood still, for longer than this; a busy machine makes nothing late."""
        return self.computed > limit or time.monotonic() - self.moved > limit


def run_trials(
    trials: Iterator[Any], act: Callable[[Any, Path], Result], scratch: Path, *, workers: int, limit: float
) -> Iterator[tuple[Any, Result]]:
    """Yield each trial with its result, as they end; `act` gets the trial and an empty folder of its own.

    A trial that computes or stands still for more than `limit` seconds is killed with all it started: a hang.
    """
    running: dict[int, Running] = {}
    number, more, looked = 0, True, time.monotonic()
    try:
        while more or running:
            while more and len(running) < workers:
                trial = next(trials, None)
                more = trial is not None
                if more:
                    number += 1
                    one = _start(trial, act, scratch / f"t{number}")
                    running[one.pipe] = one
            if time.monotonic() > looked + PAUSE:
                look(running.values())
                looked = time.monotonic()
            yield from _ended(running, limit)
    finally:
        for one in running.values():
            _signal(one.pid, signal.SIGKILL)
            os.waitpid(one.pid, 0)
            shutil.rmtree(one.scratch, ignore_errors=True)


def look(running: Iterable[Running]) -> None:
    """See how much trials have computed since they were last looked at."""
    spent: dict[int, float] = defaultdict(float)
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it may end meanwhile
            told = path.read_text().rpartition(")")[2].split()
            spent[int(told[2])] += sum(map(int, told[11:15])) / os.sysconf("SC_CLK_TCK")
    for one in running:
        if spent[one.pid] != one.computed:
            one.computed, one.moved = spent[one.pid], time.monotonic()


def _ended(running: dict[int, Running], limit: float) -> Iterator[tuple[Any, Result]]:
    """Yield what ended, after waiting a little for something to."""
    if not running:
        return
    ready, _, _ = select.select(list(running), [], [], PAUSE)
    for pipe in list(running):
        one = running[pipe]
        late = one.is_late(limit)
        if pipe in ready:
            block = os.read(pipe, 1 << 16)
            one.text += block
            if block and not late:
                continue
        elif not late:
            continue
        if late:
            _signal(one.pid, signal.SIGUSR1)
            time.sleep(0.5)
        _signal(one.pid, signal.SIGKILL)
        _, status = os.waitpid(one.pid, 0)
        os.close(pipe)
        del running[pipe]
        result = _result(one, status, late)
        shutil.rmtree(one.scratch, ignore_errors=True)
        yield one.trial, result


def _result(one: Running, status: int, late: bool) -> Result:
    if one.text.endswith(b"\n"):
        found: Result = json.loads(one.text)
        return found
    if late:
        stacks = "\n\n".join(path.read_text() for path in sorted(one.scratch.glob("hang.*")))
        return {"faults": [{"kind": "hang", "what": "the trial did not end in time", "trace": stacks[:6000]}]}
    return {"faults": [{"kind": "crash", "what": f"the trial's process ended with status {status}"}]}


def _signal(pid: int, number: int) -> None:
    """Signal a trial and all it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def _start(trial: Any, act: Callable[[Any, Path], Result], scratch: Path) -> Running:
    read, write = os.pipe()
    scratch.mkdir(parents=True)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        _child(trial, act, scratch, write)
    os.close(write)
    with contextlib.suppress(OSError):  # the child may have done so first
        os.setpgid(pid, pid)
    return Running(trial, pid, read, scratch)


def _child(trial: Any, act: Callable[[Any, Path], Result], scratch: Path, pipe: int) -> None:
    """Do one trial and write its result; never returns."""
    code = 1
    try:
        os.setpgid(0, 0)
        limit_memory()
        quiet()
        os.chdir(scratch)
        watch(scratch)
        result = act(trial, scratch)
        data = json.dumps(result).encode() + b"\n"
        while data:
            data = data[os.write(pipe, data) :]
        code = 0
    except BaseException:
        text = traceback.format_exc()
        fault = {"kind": "harness", "what": text.splitlines()[-1], "trace": text}
        os.write(pipe, json.dumps({"faults": [fault]}).encode() + b"\n")
    finally:
        os._exit(code)


def limit_memory() -> None:
    """Let this process grow so far and no further."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def watch(scratch: Path) -> None:
    """Have this process write where it is when it is asked to; forks must ask for themselves."""
    global _scratch
    _scratch = scratch
    faulthandler.register(signal.SIGUSR1, file=(scratch / f"hang.{os.getpid()}").open("w"), all_threads=True)


_scratch: Path | None = None


def quiet() -> None:
    """Send what libraries write past Python nowhere."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nowhere, fd)


def fork_call(call: Callable[[], None]) -> int:
    """Run a call in a fork of its own and return its process id; the fork ends when the call does."""
    pid = os.fork()
    if pid:
        return pid
    try:
        if _scratch:
            watch(_scratch)
        call()
    except BaseException:
        os._exit(70)
    os._exit(0)
