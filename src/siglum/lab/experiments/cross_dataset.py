"""Across data sets: do K and m tell which targets survive everywhere, and do codes carry over to other data?

The first part is the paper's diagnosis (temperature 1, beam 20): survival by quintile of K and of m on every data set,
each with a training of its own; every task counts as a data set, since it has its own kind of query and pool. The
second goes beyond it: what was trained on one data set is asked on another. For the world the other data set is a
world from another seed (other scenes in the same words and shapes), for a folder the one given as --other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from siglum.lab.experiments.base import Outcome, Part, Unit, by_unit
from siglum.lab.experiments.plots import Figure, Panel, Series, level_ticks
from siglum.lab.experiments.ranks import Ranks, choose_weights, in_order, rank_systems
from siglum.lab.experiments.setting import Setting
from siglum.lab.experiments.survival_beams import followed_tasks, targets_of
from siglum.lab.experiments.survival_statistics import QUINTILES, associate, average, between, interval_words
from siglum.lab.experiments.systems import shown_tasks, task_label
from siglum.lab.experiments.trained import Trained, flat_ranker, open_space, open_trained
from siglum.lab.tables import Table, percent
from siglum.types import SiglumError, Vectors

TAU, BEAM = 1.0, 20
LEVELS = (1, 4, 6)
"""Residual levels of the paper's figure, which counts them from 0; shallower codes show what they have."""
OTHER_SEED = 1
QUANTITIES = {"K": "ranking divergence K", "m": "teacher margin m"}
MEASURE = "success@1"
SYSTEMS = {"dense": "dense search", "fused": "the recipe"}


class CrossDataset:
    """Survival by quintile of K and m on every data set, and training on one for another."""

    name = "cross-dataset"
    title = "Across data sets"

    def units(self, setting: Setting) -> list[Unit]:
        """One training a data set and seed, diagnosed on its own test and asked on every data set's."""
        sets = data_sets(setting)
        identities = {name: one.identity() for name, one in sets.items()}
        return [
            Unit(name, seed, one.config(seed=seed), {"data": identities})
            for seed in range(setting.seeds)
            for name, one in sets.items()
        ]

    def measure(self, setting: Setting, unit: Unit) -> dict[str, Any]:
        """Diagnose a training on its own data and rank every data set's queries with it."""
        sets = data_sets(setting)
        own = sets[unit.name]
        trained = open_trained(own, unit.config)
        search = choose_weights(trained).best
        systems: dict[str, Any] = {}
        refused = {}
        for name, other in sets.items():
            try:
                moved = trained if name == unit.name else _move(trained, other.vectors())
            except SiglumError as error:
                refused[name] = str(error)
                continue
            dense = flat_ranker(open_space(own, unit.config)[0], moved.vectors, setting.device)
            found = rank_systems(moved.vectors, {"dense": dense, "fused": moved.beam(search)})
            systems |= {f"{unit.name} → {name}: {system}": tasks for system, tasks in found["systems"].items()}
        return {"systems": systems, "tasks": _diagnose(trained), "refused": refused}

    def assemble(self, setting: Setting, parts: list[Part]) -> Outcome:
        """Make the figure of quintiles, the table of Spearman's rho and the table of carrying over."""
        ranks = Ranks.read(parts)
        names = [name for name in data_sets(setting) if any(part["unit"] == name for part in parts)]
        found: dict[str, Any] = {}
        for name in names:
            seeds = [part["tasks"] for part in parts if part["unit"] == name]
            found[name] = {task: average([one[task] for one in seeds]) for task in in_order(seeds[0])}
        results = {
            "tau": TAU,
            "beam": BEAM,
            "diagnosis": found,
            "systems": ranks.summary(),
            "refused": {part["unit"]: part["refused"] for part in parts},
        }
        tables = [_rho_table(found, interval_words(by_unit(parts))), _carry_table(ranks, names)]
        return Outcome(
            results, tables, [_figure(name, found[name], quantity) for name in names for quantity in QUANTITIES]
        )


def data_sets(setting: Setting) -> dict[str, Setting]:
    """Return all data sets by name, the setting's own first."""
    if setting.is_world:
        return {"world": setting, "other-world": replace(setting, world_seed=setting.world_seed + OTHER_SEED)}
    found = {setting.label: setting}
    if setting.other:
        other = replace(setting, data=setting.other)
        found[other.label if other.label not in found else f"{other.label}-other"] = other
    return found


def _move(trained: Trained, vectors: Vectors) -> Trained:
    """Return a training on other data, which must have features of the same size."""
    for part in ("image", "text"):
        here, there = (getattr(one.items, part).shape[1] for one in (trained.vectors, vectors))
        if here != there:
            raise SiglumError(
                f"{part} features have {here} numbers in training but {there} here, so nothing carries over."
            )
    return trained.moved(vectors)


def _diagnose(trained: Trained) -> dict[str, Any]:
    """Return task -> level -> how K and m go with survival in the quantised oracle's beam."""
    found = {}
    for task in followed_tasks(trained):
        levels = trained.quantities(task, beam=BEAM, tau=TAU)
        cluster_Q = targets_of(task)
        found[task.name] = {
            str(level.level): {
                "survival": float(level.survived_Q.mean()),
                "prefixes": level.prefixes,
                "K": associate(level.K_Q, level.survived_Q, cluster_Q),
                "m": associate(level.m_Q, level.survived_Q, cluster_Q),
            }
            for level in levels
            if level.level in LEVELS
        }
    return found


def _rho_table(found: dict[str, Any], intervals: str) -> Table:
    rows = [
        [
            f"{name} {task_label(task)}, level {level}",
            f"{100 * one['survival']:.1f}",
            *(between(one[q]["rho"]) for q in QUANTITIES),
        ]
        for name, tasks in found.items()
        for task, levels in tasks.items()
        for level, one in levels.items()
    ]
    note = (
        f"Cumulative survival in the quantised oracle's beam at B = {BEAM}, τ = {TAU:g}; {intervals}."
        " A dash: all targets survive or none does."
    )
    head = ["data set", "survival (%)", "ρ of K and survival", "ρ of m and survival"]
    return Table("cross-dataset", "Do K and m tell which targets survive?", head, rows, [note])


def _carry_table(ranks: Ranks, names: list[str]) -> Table:
    tasks = shown_tasks(ranks)
    pairs = [(test, train) for test in names for train in names]
    rows = [
        [f"on {test}, trained on {train}: {label}", *(percent(ranks.over_seeds(key, task, MEASURE)) for task in tasks)]
        for test, train in pairs
        for system, label in SYSTEMS.items()
        for key in [f"{train} → {test}: {system}"]
        if key in ranks.by_system
    ]
    notes = [] if len(names) > 1 else ["There is one data set, so nothing carries over; give another as --other."]
    title = "Success@1 on one data set, trained on another"
    return Table("cross-dataset-carry", title, ["", *map(task_label, tasks)], rows, notes)


def _figure(name: str, tasks: dict[str, Any], quantity: str) -> Figure:
    """Return survival by quintile, one panel a task and one curve a level."""
    panels = []
    for task, levels in tasks.items():
        series = [
            Series(f"level {level}", [part["survival"]["value"] for part in one[quantity]["quintiles"]])
            for level, one in levels.items()
        ]
        axes = (f"quintile of {quantity}", "targets kept")
        panels.append(Panel("lines", series, *axes, task_label(task), level_ticks(QUINTILES), share=True))
    title = f"{name}: survival by quintile of the {QUANTITIES[quantity]} (oracle's beam, B = {BEAM}, τ = {TAU:g})"
    return Figure(f"quintiles-{quantity}-{name}", title, panels)
