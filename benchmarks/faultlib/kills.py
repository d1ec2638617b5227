"""Kills: every writing verb, at every operation on a file and at random times, with and without a power cut."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from faultlib import live, ops
from faultlib.campaign import Base, Trial
from faultlib.state import State, difference, ids_of, plain, see, stages_of
from faultlib.told import Fault, fault, faults_of
from faultlib.verbs import BY_NAME, Known, Verb, given_by, injured, start

BAR = 1000
LIVE = "threads that add and remove"


@dataclass
class Way:
    """How a verb is to be killed."""

    injury: ops.Injury
    after: float | None = None
    """Seconds until the kill, where it is a matter of time."""

    @property
    def words(self) -> str:
        """The way in words."""
        if self.after is not None:
            return f"killed after {1000 * self.after:.1f} ms"
        if self.injury.at is None:
            return "power cut after it was done"
        torn = ", half written" if self.injury.torn else ""
        return f"{'power cut' if self.injury.power else 'killed'} at operation {self.injury.at}{torn}"


def plan(base: Base, tries: int | None) -> list[Trial]:
    """Return trials: every operation of every verb once, then as many more as the bar asks for."""
    counts = {name: known.count for name, known in base.known.items()}
    share = {name: count + count // 3 + 6 for name, count in counts.items()}
    share[LIVE] = 100
    wanted = tries or max(BAR, sum(share.values()))
    return base.spread("kills", list(share), wanted, share)


def choose(known: Known, seed: int, case: str, number: int) -> Way:
    """Return the way of one trial: four of six sweep the operations, one is a matter of time, one comes after."""
    rng = Random(f"kills {seed} {case} {number}")
    turn, cycle = number % 6, number // 6
    if turn == 2:
        return Way(ops.Injury(), rng.random() * known.seconds * 1.05)
    if turn == 4 and cycle % 2 == 0:
        return Way(ops.Injury(power=True, seed=rng.randrange(1 << 30)))
    order = list(range(known.count))
    Random(f"order {seed} {case}").shuffle(order)
    place = cycle * 5 + (0, 1, 0, 2, 3, 4)[turn]
    power, torn = rng.random() < 0.4, rng.random() < 0.5
    return Way(ops.Injury(at=order[place % len(order)], torn=torn, power=power, seed=rng.randrange(1 << 30)))


def act(base: Base, trial: Trial, scratch: Path) -> dict[str, Any]:
    """Kill a verb, and look at what it left."""
    if trial.case == LIVE:
        return live.kill(base, trial.number, scratch)
    verb, known = BY_NAME[trial.case], base.known[trial.case]
    way = choose(known, base.seed, trial.case, trial.number)
    run, note = scratch / "run", scratch / "note.json"
    start(verb, base.root, run)
    pid = injured(verb, base.root, run, way.injury, note)
    if way.after is not None:
        time.sleep(way.after)
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    told = base.read_note(note)
    faults = told.faults if told else []
    done = told is not None and told.code == 0
    faults += judge(verb, known, base, run, done)
    return {"faults": [one | {"what": f"{one['what']} ({way.words})"} for one in faults], "way": way.words}


def judge(verb: Verb, known: Known, base: Base, run: Path, done: bool) -> list[Fault]:
    """Tell what is wrong with a run whose verb was interrupted, and take the verb up again."""
    found, faults = see(run)
    faults = faults or compare(verb, known, found, done) or compare_given(verb, known, run, done)
    if faults:
        return faults
    told = verb.do(base.root, run, True)
    faults = faults_of(told, f"{verb.name} again")
    if not faults and told.code == 1 and not same(found, known.after):
        told = verb.do(base.root, run, False)  # a sentence may say to begin anew
        faults = faults_of(told, f"{verb.name} anew")
    if faults:
        return faults
    if told.code and not same(found, known.after):
        return [fault("stuck", f"{verb.name} again: {told.sentence}")]
    final, faults = see(run)
    faults = faults or compare_given(verb, known, run, not told.code)
    if not faults and not same(final, known.after):
        faults = [fault("stuck", f"{verb.name} again gives another state: {difference(final, known.after)}")]
    stages, more = stages_of(run)
    if not faults and not more and stages != known.stages and not verb.whole:
        names = [name for name in stages if stages.get(name) != known.stages.get(name)]
        more = [fault("silent", f"{verb.name} again leaves other stages: {', '.join(names)}")]
    if not told.code and verb.prints and plain(told, run) != known.out:
        more = [*more, fault("silent", f"{verb.name} again gives another answer")]
    return faults + more


def same(found: State, expected: State) -> bool:
    """Return whether two states are equal; errors may differ in their words."""
    return found == expected or ("error" in found and "error" in expected)


def compare_given(verb: Verb, known: Known, run: Path, done: bool) -> list[Fault]:
    """Tell whether the files that a verb gives are whole, wherever they are, and there when it is done."""
    found = given_by(verb, run)
    half = [name for name, mark in found.items() if mark != known.given[name]]
    if half:
        return [fault("silent", f"{verb.name} left half of {', '.join(half)}, or another than it should be")]
    if done and found != known.given:
        return [fault("loss", f"{verb.name} ended well without {', '.join(set(known.given) - set(found))}")]
    return []


def compare(verb: Verb, known: Known, found: State, done: bool) -> list[Fault]:
    """Tell whether a state is one that this verb may leave."""
    before, after = known.before, known.after
    if done:
        if same(found, after):
            return []
        return [fault("loss", f"{verb.name} ended well, but {difference(found, after)}")]
    if "error" in found and not verb.whole:
        return []
    if same(found, before) or same(found, after):
        return []
    gone = (ids_of(before) & ids_of(after)) - ids_of(found)
    kind = "loss" if gone or "error" in found else "phantom"
    return [fault(kind, f"{verb.name} left neither the old nor the new state: {difference(found, before, after)}")]
