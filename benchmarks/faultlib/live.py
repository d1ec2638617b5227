"""An index that several threads change at once, each change acknowledged when it is on the disk: kills and readers."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from faultlib import ops
from faultlib.campaign import Base
from faultlib.forks import fork_call
from faultlib.state import ids_of, see
from faultlib.told import Fault, attempt, copy, fault
from faultlib.told import tell as command

THREADS, CALLS, BATCH = 3, 8, 3
Note = Callable[[str], None]
"""Takes `begin X` before a call and `done X` after it."""


def codes_of(name: str, sizes: tuple[int, ...]) -> list[int]:
    """Return the codes of an item, decided by its name."""
    return [Random(f"{name} {level}").randrange(size) for level, size in enumerate(sizes)]


def shown(name: str) -> str:
    """Return what is kept of an item to show it by, decided by its name."""
    return json.dumps({"text": f"this is {name}"})


def work(run: Path, note: Note, seed: int, compactions: int = 2) -> None:
    """Add from some threads, remove from one, replace from one, and compact meanwhile."""
    from siglum.run.live import LiveIndex
    from siglum.run.lock import lock_run

    with lock_run(run, "faults"), LiveIndex(run / "4-index") as live:
        sizes = live.index.sizes

        def add(thread: int) -> None:
            for number in range(CALLS):
                name = f"live{thread}.{number}"
                ids = [f"{name}.{n}" for n in range(BATCH)]
                note(f"begin add {name}")
                live.add(ids, np.array([codes_of(one, sizes) for one in ids]), fields=[shown(one) for one in ids])
                note(f"done add {name}")

        def remove() -> None:
            for number in range(CALLS):
                gone = f"item{10 + number}"
                note(f"begin remove {gone}")
                live.remove([gone])
                note(f"done remove {gone}")

        def replace() -> None:
            for number in range(CALLS):
                name = f"item{30 + number}"
                note(f"begin replace {name}")
                live.change((), [name], np.array([codes_of(name, sizes)]), fields=[shown(name)], upsert=True)
                note(f"done replace {name}")

        crew = [threading.Thread(target=add, args=(n,)) for n in range(THREADS)]
        crew += [threading.Thread(target=remove), threading.Thread(target=replace)]
        for thread in crew:
            thread.start()
        for _ in range(compactions):
            time.sleep(Random(seed).random() * 0.01)
            live.compact()
        for thread in crew:
            thread.join()


def victim(run: Path, injury: ops.Injury, notes: Path, facts: Path) -> int:
    """Begin the work in a process that has this coming to it."""

    def call() -> None:
        handle = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        shim = ops.install(run, injury)
        begun = time.perf_counter()
        work(run, lambda line: shim.real["write"](handle, f"{line}\n".encode()) and None, injury.seed)
        found = {"count": shim.count, "seconds": time.perf_counter() - begun}
        shim.real["io.open"](facts, "w").write(json.dumps(found))
        if injury.power and injury.at is None:
            shim.die()

    return fork_call(call)


LEARNT = ("work",)


def learn(base: Base, name: str, scratch: Path) -> dict[str, Any]:
    """Do the work undisturbed."""
    run = copy(base.root / "mine", scratch / "run")
    os.waitpid(victim(run, ops.Injury(), scratch / "notes", scratch / "facts"), 0)
    found: dict[str, Any] = json.loads((scratch / "facts").read_text())
    return found


def kill(base: Base, number: int, scratch: Path) -> dict[str, Any]:
    """Kill the work somewhere: what was acknowledged is there, what was not begun is not, no call is there by half."""
    rng, known = Random(f"live {base.seed} {number}"), base.facts["live"]["work"]
    run = copy(base.root / "mine", scratch / "run")
    timed, power = number % 4 == 3, rng.random() < 0.5
    at = None if timed or number % 16 == 5 else rng.randrange(known["count"])
    injury = ops.Injury(at=at, torn=rng.random() < 0.5, power=power and not timed, seed=rng.randrange(1 << 30))
    pid = victim(run, injury, scratch / "notes", scratch / "facts")
    if timed:
        time.sleep(rng.random() * known["seconds"])
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    way = f"{'power cut' if injury.power else 'killed'} at {'some time' if at is None else f'operation {at}'}"
    lines = (scratch / "notes").read_text().splitlines() if (scratch / "notes").exists() else []
    state, faults = see(run)
    faults = faults or check(base, state, lines, lines) or again(base, run)
    return {"faults": [one | {"what": f"{one['what']} ({way})"} for one in faults], "way": way}


def again(base: Base, run: Path) -> list[Fault]:
    """Go on with a killed index: it takes further items, and still has the others."""
    before = ids_of(see(run)[0])
    told = command(["index", run, "--add", base.root / "inputs" / "more.jsonl"])
    if told.code or told.trace:
        return [fault("stuck", f"a killed index takes no more: {told.sentence}", told.trace)]
    after = ids_of(see(run)[0])
    lost, extra = before - after, after - before - {f"more{n}" for n in range(100)}
    return (
        [fault("loss", f"adding to a killed index changes others: {sorted(lost | extra)[:3]}")] if lost | extra else []
    )


def check(base: Base, state: dict[str, Any], before: list[str], after: list[str]) -> list[Fault]:
    """Tell whether a state holds what was acknowledged before it was looked at and nothing begun only after."""
    if "error" in state:
        return [fault("loss", f"the index does not open: {state['error']}")]
    here = {hit[0]: [*hit[2], hit[3]] for hit in state["all"]}
    done, begun = {line[5:] for line in before if line.startswith("done ")}, {x[6:] for x in after if x[:6] == "begin "}
    faults = []
    for thread in range(THREADS):
        for number in range(CALLS):
            name = f"live{thread}.{number}"
            there = sum(f"{name}.{n}" in here for n in range(BATCH))
            if f"add {name}" in done and there < BATCH:
                faults.append(fault("loss", f"{BATCH - there} of {BATCH} acknowledged items are gone"))
            elif f"add {name}" not in begun and there:
                faults.append(fault("phantom", "items are there that were not added yet"))
            elif there not in (0, BATCH):
                faults.append(fault("phantom", "half of a call is there"))
    for number in range(CALLS):
        gone = f"item{10 + number}"
        if f"remove {gone}" in done and gone in here:
            faults.append(fault("loss", "an item is there again whose removal was acknowledged"))
        if f"remove {gone}" not in begun and gone not in here:
            faults.append(fault("phantom", "an item is gone that was not removed yet"))
    sizes = base.facts["sizes"]
    replaced = {line.split()[-1] for line in before if line.startswith("done replace ")}
    for name, found in here.items():
        if (name[:4] == "live" or name in replaced) and found != [*codes_of(name, sizes), f"this is {name}"]:
            faults.append(
                fault("loss" if name in replaced else "silent", "an item has the codes or the text of another")
            )
        if str(found[-1]).startswith("this is item") and f"replace {name}" not in begun:
            faults.append(fault("phantom", "an item is replaced that was not to be yet"))
    rest = set(base.facts["ids"]) - {f"item{10 + n}" for n in range(CALLS)} - set(here)
    return faults[:3] + ([fault("loss", f"{len(rest)} items nobody touched are gone")] if rest else [])


def reading(base: Base, rng: Random, scratch: Path) -> list[Fault]:
    """Open the run again and again while threads change its index: every state is one of its time."""
    run, lines, faults = copy(base.root / "mine", scratch / "run"), [], []
    writer = threading.Thread(target=lambda: faults.extend(attempt(lambda: work(run, lines.append, 3), "live")[2]))
    writer.start()
    while writer.is_alive():
        first = list(lines)
        state, wrong = see(run)
        faults += wrong or check(base, state, first, list(lines))
        if faults:
            break
    writer.join()
    state, wrong = see(run)
    return faults or wrong or check(base, state, lines, lines)
