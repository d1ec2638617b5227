"""Threads that share one retriever: searches, adds, removes and saves at once."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from faultlib import live
from faultlib.campaign import Base
from faultlib.state import answers_of, hits_of, questions
from faultlib.told import Fault, attempt, copy, fault, where

Case = Callable[[Base, Random, Path], list[Fault]]


class Crew:
    """Threads whose errors are kept."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self.threads: list[threading.Thread] = []
        self.over = threading.Event()

    def start(self, work: Callable[[], None]) -> None:
        """Begin a thread."""

        def run() -> None:
            try:
                work()
            except Exception:
                text = traceback.format_exc()
                self.faults.append(fault("traceback", f"a thread failed: {where(text)}", text))
                self.over.set()

        self.threads.append(threading.Thread(target=run, daemon=True))

    def finish(self) -> list[Fault]:
        """Run all and return what went wrong."""
        for thread in self.threads:
            thread.start()
        for thread in self.threads:
            thread.join()
        return self.faults


def batch(retriever: Any, name: str, rng: Random, number: int, ids: Sequence[str] = ()) -> Any:
    """Return features of new items, or of these."""
    import siglum

    fusion = retriever.tokenizer.fusion
    draw = np.random.default_rng(rng.randrange(1 << 30))
    text = draw.normal(size=(number, len(fusion.text_shift)))
    return siglum.features({"text": text}, ids=ids or [f"{name}.{n}" for n in range(number)])


def load(base: Base, run: Path | None = None) -> Any:
    """Open the run (or a copy) anew and make switches between threads frequent."""
    import siglum

    sys.setswitchinterval(2e-5)
    return siglum.Retriever.load(run or base.root / "mine")


def script(base: Base, retriever: Any, rng: Random, length: int) -> list[tuple[str, Any]]:
    """Return adds, removes and replacements, each possible after those before it."""
    steps: list[tuple[str, Any]] = []
    here = [f"item{n}" for n in range(10, 100)]
    for number in range(length):
        turn = rng.random()
        if turn < 0.4:
            new = batch(retriever, f"s{number}", rng, rng.choice((1, 4)))
            steps.append(("add", new))
            here += new.ids
        elif turn < 0.6:
            steps.append(("upsert", batch(retriever, "", rng, 3, rng.sample(here, 3))))
        else:
            gone = rng.sample(here, 4)
            steps.append(("remove", gone))
            here = [name for name in here if name not in gone]
    return steps


def searching(base: Base, rng: Random, scratch: Path, saving: bool = False) -> list[Fault]:
    """Search from 8 threads while one adds and removes (and saves): every answer is that of one state of its time."""
    import torch

    retriever, twin = load(base), load(base)
    steps, asked = script(base, twin, rng, 10), questions(twin, 4)
    searches = [{}, {"k": 3}, {"beam": 40}, {"scorer": "geometry"}]
    options = [searches[rng.randrange(4)] for _ in range(8)]
    ask = lambda one, choice: hits_of(one.search_features(asked, **{"k": 6, **choice}))  # noqa: E731
    states = [[ask(twin, choice) for choice in searches]]
    for verb, what in steps:
        getattr(twin, verb)(what)
        states.append([ask(twin, choice) for choice in searches])
    crew, begun, done, before = Crew(), [0], [0], torch.get_num_threads()

    def change() -> None:
        for number, (verb, what) in enumerate(steps):
            begun[0] = number + 1
            getattr(retriever, verb)(what)
            done[0] = number + 1
            if saving and number % 3 == 0:
                retriever.save(scratch / "saved")
        crew.over.set()

    def search(choice: dict[str, Any]) -> None:
        place = searches.index(choice)
        while not crew.over.is_set():
            first = done[0]
            found = ask(retriever, choice)
            last = begun[0]
            if not any(found == states[n][place] for n in range(first, last + 1)):
                crew.faults.append(
                    fault("silent", f"a search beside {steps[last - 1][0]} answers with no state's hits")
                )
                crew.over.set()

    crew.start(change)
    for choice in options:
        crew.start(lambda choice=choice: search(choice))  # type: ignore[misc]
    faults = crew.finish()
    if torch.get_num_threads() != before:
        faults.append(fault("silent", "searching changes how many threads the process computes with"))
    if saving and not faults:
        faults = _check_saved(scratch / "saved", twin, steps)
    return faults or _check_equal(retriever, twin)


def saving(base: Base, rng: Random, scratch: Path) -> list[Fault]:
    """Search from 8 threads while one adds, removes and saves."""
    return searching(base, rng, scratch, saving=True)


def _check_saved(folder: Path, twin: Any, steps: list[tuple[str, Any]]) -> list[Fault]:
    """Tell whether what was saved last holds what was there then."""
    import siglum

    saved = siglum.Retriever.load(folder)
    for verb, what in steps[(len(steps) - 1) // 3 * 3 + 1 :]:
        getattr(saved, verb)(what)
    return [] if answers_of(saved) == answers_of(twin) else [fault("loss", "what was saved beside searches is not all")]


def _check_equal(retriever: Any, twin: Any) -> list[Fault]:
    if answers_of(retriever) != answers_of(twin):
        return [fault("silent", "after threads the retriever answers otherwise than after the same steps in a row")]
    return []


def content(retriever: Any) -> dict[str, Any]:
    """Return every item with score and codes, without the order of equal ones."""
    return {name: tuple(rest) for name, *rest in answers_of(retriever)["all"]}


def adding(base: Base, rng: Random, scratch: Path, removing: bool = False) -> list[Fault]:
    """Add from 4 threads (and remove from 2): none is lost, none is twice, every item has its own codes."""
    retriever, twin = load(base), load(base)
    batches = [[batch(twin, f"t{number}.{n}", rng, 3) for n in range(6)] for number in range(4)]
    gone = [[f"item{10 + 30 * number + n}" for n in range(20)] for number in range(2)] if removing else []
    crew = Crew()
    for own in batches:
        crew.start(lambda own=own: [retriever.add(one) for one in own] and None)  # type: ignore[misc]
        for one in own:
            twin.add(one)
    for names in gone:
        crew.start(lambda names=names: [retriever.remove(names[n : n + 2]) for n in range(0, 20, 2)] and None)  # type: ignore[misc]
        twin.remove(names)
    faults = crew.finish()
    if faults:
        return faults
    found, expected = content(retriever), content(twin)
    lost, extra = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    if lost:
        faults.append(fault("loss", f"4 threads adding: {len(lost)} of {len(expected)} items lost"))
    if extra:
        faults.append(fault("phantom", f"items that were removed by a thread are there: {len(extra)}"))
    if not lost and not extra and found != expected:
        faults.append(fault("silent", "4 threads adding: some items have other codes or scores"))
    return faults


def adding_and_removing(base: Base, rng: Random, scratch: Path) -> list[Fault]:
    """Add from 4 threads and remove from 2."""
    return adding(base, rng, scratch, removing=True)


def saves(base: Base, rng: Random, scratch: Path) -> list[Fault]:
    """Save two retrievers into one folder from two threads while it is loaded: what is left is one of them, whole."""
    import siglum

    one, two = load(base), load(base)
    one.add(batch(one, "one", rng, 3))
    two.remove(["item11", "item12"])
    one.save(scratch / "saved")
    expected = [answers_of(one), answers_of(two)]
    crew = Crew()

    def save(retriever: Any) -> None:
        for _ in range(3):
            try:
                retriever.save(scratch / "saved")
            except siglum.SiglumError:
                continue  # refused beside another

    for retriever in (one, two):
        crew.start(lambda retriever=retriever: save(retriever))  # type: ignore[misc]
    faults = crew.finish()
    if faults:
        return faults
    left = answers_of(siglum.Retriever.load(scratch / "saved"))
    return [] if left in expected else [fault("silent", "two saves into one folder left a mixture")]


def leaving(base: Base, rng: Random, scratch: Path) -> list[Fault]:
    """Add from threads, if any, while the block of `writing` ends: what is acknowledged lasts, the rest is refused."""
    import siglum

    run = copy(base.root / "mine", scratch / "run")
    retriever, kept, faults = load(base, run), list[str](), list[Fault]()

    def add(writer: Any, thread: int) -> None:
        for number in range(1000):
            new = batch(retriever, f"left{thread}.{number}", Random(number), 1)
            _, sentence, wrong = attempt(lambda: writer.add(new), "add beside the end of a block")  # noqa: B023
            faults.extend(wrong)
            if sentence or wrong:
                return
            kept.extend(new.ids)
        faults.append(fault("silent", "a writer takes changes after its block"))

    with retriever.writing(run, background=rng.random() < 0.5) as writer:
        crew = [
            threading.Thread(target=add, args=(writer, number), daemon=True) for number in range(rng.choice((0, 3)))
        ]
        for thread in crew:
            thread.start()
        writer.remove(["item10"])
        time.sleep(rng.random() * 0.05)
    with ExitStack() as stack:
        others = [scratch / f"other{number}" for number in range(64)]
        for path in others:
            stack.enter_context(path.open("w+b"))
        for thread in crew:
            thread.join()
        late = attempt(lambda: writer.remove(["item11"]), "remove after the block")[1]
        if not late or any(path.stat().st_size for path in others):
            faults.append(fault("silent", "a writer takes a change after its block, or writes into other files"))
    lost = set(kept) - set(siglum.Retriever.load(run).index.ids)
    if lost:
        faults.append(fault("loss", f"{len(lost)} of {len(kept)} changes acknowledged beside the end of a block"))
    return faults


CASES: dict[str, Case] = {
    "search beside add and remove": searching,
    "search beside add, remove and save": saving,
    "add from 4": adding,
    "add from 4 and remove from 2": adding_and_removing,
    "save beside save": saves,
    "add beside the end of writing": leaving,
    "load beside changes that last": live.reading,
}
