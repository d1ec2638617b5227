"""Running experiments: units in processes, each leaving a part, and what is assembled from the parts there are.

OUT/NAME/parts holds one JSON a unit and seed; one made with the same settings, data and format is not made again.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from time import perf_counter
from typing import Any

from siglum.config import as_dict, config_fingerprint
from siglum.experiment.base import Part, Unit, open_experiment
from siglum.experiment.machine import commit, describe_machine
from siglum.experiment.setting import Setting
from siglum.files import fingerprint, read_json, write_json, write_text
from siglum.types import SiglumError

FORMAT = 1
"""Rises whenever parts change in what they hold or mean."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Work:
    """A unit of an experiment."""

    experiment: str
    unit: Unit

    @property
    def label(self) -> str:
        """The unit's name for people and files."""
        return f"{self.unit.name}-{self.unit.seed}"

    def path(self, setting: Setting) -> Path:
        """Where its part goes."""
        return setting.out / self.experiment / "parts" / f"{self.label}.json"

    def identity(self, setting: Setting) -> str:
        """What must agree for a part to count: format, settings and data, but not the machine."""
        unit = self.unit
        own = (FORMAT, self.experiment, unit.name, unit.options, config_fingerprint(unit.config))
        return fingerprint(*own, setting.identity(), setting.recipe, setting.scale)

    def is_done(self, setting: Setting) -> bool:
        """Whether its part is there."""
        path = self.path(setting)
        return path.exists() and read_json(path).get("identity") == self.identity(setting)


def run_experiments(
    setting: Setting, names: list[str], *, jobs: int = 1, limit: float = 0.0, draw: bool = True, command: str, say: Say
) -> dict[str, Any]:
    """Measure what is missing, then (unless `draw` is off) assemble every experiment; return where each stands.

    A unit that fails is named in one sentence and the others go on. No unit begins after `limit` seconds, if given.
    """
    if draw:
        from siglum.experiment.plots import load_matplotlib

        load_matplotlib()  # refused now, not after hours of training
    work = [Work(name, unit) for name in names for unit in open_experiment(name).units(setting)]
    todo = [piece for piece in work if not piece.is_done(setting)]
    if len(todo) < len(work):
        say(f"{len(work) - len(todo)} of {len(work)} units are there already")
    errors = _measure_all(setting, todo, jobs, limit, say)
    told = {}
    for name in names:
        mine = [piece for piece in work if piece.experiment == name]
        there = [piece for piece in mine if piece.is_done(setting)]
        missing = {w.label: errors.get((name, w.label), "not measured yet") for w in mine if w not in there}
        told[name] = {"units": len(mine), "measured": len(there), "missing": missing}
        if draw and there:
            parts = [read_json(piece.path(setting)) for piece in there]
            told[name]["tables"] = write_outcome(setting, name, parts, missing, command)
            say(f"{name}: written to {setting.out / name}")
    return told


def write_outcome(setting: Setting, name: str, parts: list[Part], missing: dict[str, str], command: str) -> str:
    """Assemble one experiment into OUT/NAME and return its tables as Markdown."""
    from siglum.experiment.plots import draw

    experiment = open_experiment(name)
    outcome, folder = experiment.assemble(setting, parts), setting.out / name
    machines = {fingerprint(part["machine"]): part["machine"] for part in parts}
    facts = {
        "experiment": name,
        "title": experiment.title,
        "command": command,
        "commit": commit(),
        "data": setting.label,
        "recipe": setting.recipe,
        "scale": setting.scale,
        "seeds": sorted({part["seed"] for part in parts}),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(sum(part["seconds"] for part in parts), 1),
        "machines": list(machines.values()),
        "missing": missing,
    }
    write_json(folder / "results.json", {**facts, **outcome.results})
    reasons = {reason: [unit for unit, one in missing.items() if one == reason] for reason in missing.values()}
    absent = [f"Not measured: {', '.join(units)} ({reason.rstrip('.')})." for reason, units in reasons.items()]
    text = "\n".join([f"# {experiment.title}", "", *(table.markdown() for table in outcome.tables), *absent])
    write_text(folder / "table.md", text.rstrip() + "\n")
    write_text(folder / "table.tex", "\n".join(table.latex() for table in outcome.tables))
    draw(outcome.figures, folder)
    return text


def measure_unit(setting: Setting, work: Work) -> None:
    """Train and measure one unit and leave its part."""
    start, unit = perf_counter(), work.unit
    found = open_experiment(work.experiment).measure(setting, unit)
    own: Part = {
        "identity": work.identity(setting),
        "experiment": work.experiment,
        "unit": unit.name,
        "seed": unit.seed,
        "options": unit.options,
        "config": as_dict(unit.config),
        "seconds": round(perf_counter() - start, 2),
        "machine": describe_machine(setting.device),
    }
    clash = sorted(set(found) & set(own))
    if clash:
        raise SiglumError(f"unit {unit.name} of {work.experiment} returned {clash[0]!r}, a field every part has.")
    write_json(work.path(setting), {**own, **found})


def _measure_all(setting: Setting, todo: list[Work], jobs: int, limit: float, say: Say) -> dict[tuple[str, str], str]:
    """Measure the units and return what went wrong with which."""
    if not todo:
        return {}
    errors: dict[tuple[str, str], str] = {}
    start = perf_counter()
    if any(piece.unit.data for piece in todo):
        setting.vectors()  # made once here, found by every process
    together, alone = _order([w for w in todo if not w.unit.alone], jobs), [w for w in todo if w.unit.alone]
    number = 0
    for group, side_by_side in ((together, jobs), (alone, 1)):
        for work, error in _each(setting, group, side_by_side, limit, start):
            number += 1
            if error:
                errors[work.experiment, work.label] = error
            state = f"failed: {error}" if error else "done"
            say(f"{work.experiment} {work.label}: {state} ({number} of {len(todo)}, {perf_counter() - start:.0f} s)")
    return errors


def _order(work: list[Work], jobs: int) -> list[Work]:
    """Put units that share a training two rounds of `jobs` apart, so that processes seldom wait for one another.

    Not further, so that a time limit cuts whole trainings rather than the last units of all of them.
    """
    first: dict[str, int] = {}
    shared: dict[str, int] = {}
    ranked = []
    for piece in work:
        config = piece.unit.config
        key = fingerprint(as_dict(replace(config, recipe="", search=type(config.search)())), piece.unit.options)
        shared[key] = shared.get(key, -1) + 1
        ranked.append((first.setdefault(key, len(first)) + 2 * jobs * shared[key], piece))
    return [piece for _, piece in sorted(ranked, key=lambda pair: pair[0])]


def _each(
    setting: Setting, work: list[Work], jobs: int, limit: float, start: float
) -> Iterator[tuple[Work, str | None]]:
    """Measure the work and yield each unit when it is done, with the error if there was one."""
    if jobs == 1 or len(work) < 2:
        for piece in work:
            if limit and perf_counter() - start >= limit:
                return
            yield piece, _try(setting, piece)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(work)), mp_context=context, initializer=_begin_worker) as pool:
        left, asked = limit - (perf_counter() - start) if limit else 0.0, perf_counter()
        # A replaced setting has not read its data, which would travel with every unit.
        futures = {pool.submit(_try_in_time, replace(setting), piece, left, asked): piece for piece in work}
        try:
            for future in as_completed(futures):
                begun, error = future.result()
                if begun:
                    yield futures[future], error
        except BrokenProcessPool as error:
            raise SiglumError(
                f"a process was ended from outside, perhaps for memory; what is done is kept: try --jobs {jobs // 2}."
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)  # after an error, what has not begun would run for hours unseen


def _begin_worker() -> None:
    """Keep to one thread, since the neighbours need the rest, and end with the parent, however that ends."""
    import torch

    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    Thread(target=watch, daemon=True).start()


def _try_in_time(setting: Setting, work: Work, left: float, asked: float) -> tuple[bool, str | None]:
    """Measure a unit unless its time is over; return whether it was begun and what went wrong."""
    if left and perf_counter() - asked > left:
        return False, None
    return True, _try(setting, work)


def _try(setting: Setting, work: Work) -> str | None:
    """Measure a unit; an error becomes one sentence, so that the other units go on."""
    try:
        measure_unit(setting, work)
    except SiglumError as error:
        return str(error)
    except Exception as error:  # one unit's fault must not end hours of others
        return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return None
