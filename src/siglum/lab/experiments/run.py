"""Running experiments: their units leave parts in OUT/NAME/parts, and what is assembled from the parts there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from siglum.config import as_dict, config_fingerprint
from siglum.files import fingerprint, write_json, write_text
from siglum.lab.experiments.base import Experiment, Measurable, Part, Unit, open_experiment
from siglum.lab.experiments.machine import commit, describe_machine
from siglum.lab.experiments.origin import one_origin, origin_of
from siglum.lab.experiments.setting import Setting
from siglum.lab.sources import MEASURING, sources_fingerprint
from siglum.lab.units import Say, Work, run_missing
from siglum.types import SiglumError

FORMAT = 2
"""Rises whenever parts change in what they hold or mean."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Where an experiment stands."""

    units: int
    parts: list[Part]
    missing: dict[str, str]
    """Unit and seed -> why there is no part."""


def run_experiments(
    setting: Setting, names: list[str], *, jobs: int = 1, limit: float = 0.0, draw: bool = True, command: str, say: Say
) -> dict[str, Any]:
    """Measure what is missing, then (unless `draw` is off) assemble every experiment; return where each stands."""
    if draw:
        from siglum.lab.experiments.plots import load_matplotlib

        load_matplotlib()  # refused now, not after hours of training
    experiments = [open_experiment(name) for name in names]
    told = {}
    for experiment, found in zip(
        experiments, measure(setting, experiments, jobs=jobs, limit=limit, say=say), strict=True
    ):
        one: dict[str, Any] = {"units": found.units, "measured": len(found.parts), "missing": found.missing}
        told[experiment.name] = one
        if draw and found.parts:
            one["tables"] = write_outcome(setting, experiment, found, command)
            say(f"{experiment.name}: written to {setting.out / experiment.name}")
    return told


def measure(
    setting: Setting, experiments: Sequence[Measurable], *, jobs: int = 1, limit: float = 0.0, say: Say
) -> list[Measured]:
    """Measure what is missing of some experiments, all their units together; see `siglum.lab.units.run_missing`."""
    work = {
        (place, f"{unit.name}-{unit.seed}"): (unit, work_of(setting, experiment, unit))
        for place, experiment in enumerate(experiments)
        for unit in experiment.units(setting)
    }
    refused = _refused(setting, list(work.values()))
    open_ = [(unit, one) for unit, one in work.values() if one.name not in refused]
    if any(unit.data and not one.is_done() for unit, one in open_):
        setting.vectors()  # made once here, found by every process
    missing = refused | run_missing([one for _, one in open_], jobs=jobs, limit=limit, say=say)
    found = []
    for place in range(len(experiments)):
        mine = {label: one for (own, label), (_, one) in work.items() if own == place}
        absent = {label: missing[one.name] for label, one in mine.items() if one.name in missing}
        found.append(Measured(len(mine), [one.part() for label, one in mine.items() if label not in absent], absent))
    return found


def _refused(setting: Setting, work: list[tuple[Unit, Work]]) -> dict[str, str]:
    """Return by name why units cannot be measured here: what is there of their experiment has another origin."""
    done = {one.path: one.part() for _, one in work if one.is_done()}
    found = {}
    for unit, one in work:
        there = [part for path, part in done.items() if path.parent == one.path.parent]
        if one.path not in done:
            try:
                one_origin([*there, {"unit": one.name, "origin": origin_of(setting, unit)}])
            except SiglumError as error:
                found[one.name] = str(error)
    return found


def work_of(setting: Setting, experiment: Measurable, unit: Unit) -> Work:
    """Return a unit as work; its identity is of format, settings, data and sources, but not of the machine."""
    label, config = f"{unit.name}-{unit.seed}", unit.config
    own = (FORMAT, experiment.name, unit.name, unit.options, config_fingerprint(config))
    return Work(
        f"{experiment.name} {label}",
        setting.out / experiment.name / "parts" / f"{label}.json",
        fingerprint(*own, setting.identity(), setting.recipe, setting.scale, sources_fingerprint(*MEASURING)),
        measure_unit,
        (setting, experiment, unit),
        shares=fingerprint(as_dict(replace(config, recipe="", search=type(config.search)())), unit.options),
        stage=unit.stage,
        alone=unit.alone,
    )


def measure_unit(setting: Setting, experiment: Measurable, unit: Unit) -> Part:
    """Train and measure one unit and return what its part holds."""
    found = experiment.measure(setting, unit)
    own: Part = {
        "experiment": experiment.name,
        "unit": unit.name,
        "seed": unit.seed,
        "options": unit.options,
        "config": as_dict(unit.config),
        "machine": describe_machine(setting.device),
        "origin": origin_of(setting, unit),
    }
    clash = sorted(set(found) & set(own))
    if clash:
        raise SiglumError(f"unit {unit.name} of {experiment.name} returned {clash[0]!r}, a field every part has.")
    return {**own, **found}


def write_outcome(setting: Setting, experiment: Experiment, found: Measured, command: str) -> str:
    """Assemble one experiment into OUT/NAME and return its tables as Markdown."""
    from siglum.lab.experiments.plots import draw

    parts, missing = found.parts, found.missing
    origin = one_origin(parts)
    outcome, folder = experiment.assemble(setting, parts), setting.out / experiment.name
    machines = {fingerprint(part["machine"]): part["machine"] for part in parts}
    facts = {
        "experiment": experiment.name,
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
        "origin": origin,
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
