"""Experiment `modes`: what faster precisions and other rules of search find, beside the paper's search.

Beyond the paper. All search the same codes with the same decoder. Precisions round the paper's score; renormalised
children, the scan of all codes and the rescored scan rank by rules of their own, renormalised with an ω of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from siglum.config import SearchConfig
from siglum.lab.experiments.base import Outcome, Part, Unit
from siglum.lab.experiments.ranks import (
    MEAN,
    MEASURES,
    OMEGAS,
    Ranks,
    choose_by_beam,
    choose_weights,
    geometry_alone,
    rank_systems,
    show_interval,
)
from siglum.lab.experiments.setting import Setting
from siglum.lab.experiments.survival_statistics import average
from siglum.lab.experiments.systems import measure_label, systems_figure, systems_table, weights_notes
from siglum.lab.experiments.trained import open_trained
from siglum.lab.tables import Table
from siglum.measure.rankers import BeamRanker
from siglum.types import Task

LABELS = {
    "exact": "exact, fp32 (the paper's)",
    "exact-bf16": "exact, bf16",
    "exact-int8": "exact, int8",
    "renormalised": "renormalised children, fp32",
    "renormalised-bf16": "renormalised children, bf16",
    "renormalised-int8": "renormalised children, int8",
    "scan": "scan of all codes",
    "scan-rescore": "scan, its best rescored, fp32",
    "scan-rescore-bf16": "scan, its best rescored, bf16",
    "scan-rescore-int8": "scan, its best rescored, int8",
    "geometry": "geometry alone, in a beam",
}
SHALLOW, DEEP = 10, 50
"""How many first items are compared with those of the exact search."""
COMPARED = 100
"""Queries of a task whose items are compared."""


class Modes:
    """Quality of every mode and precision of search, and how many items they share with the exact one."""

    name = "modes"
    title = "What faster searches find"

    def units(self, setting: Setting) -> list[Unit]:
        """Return one training a seed."""
        return [Unit("modes", seed, setting.config(seed=seed)) for seed in range(setting.seeds)]

    def measure(self, setting: Setting, unit: Unit) -> dict[str, Any]:
        """Rank every test query in every mode."""
        trained = open_trained(setting, unit.config)
        plain = replace(unit.config.search, scorer="fused", zscore=False, lookahead=False, prior=0.0)
        exact = replace(choose_weights(trained, plain).best, prior=0.0)
        free = choose_by_beam(trained, replace(plain, mode="renormalised"), OMEGAS).best
        rankers = {
            name: trained.beam(one) for name, one in _searches(exact, free).items() if _knows(setting.device, one)
        }
        found = rank_systems(trained.vectors, rankers)
        if setting.device != "cpu":  # int8 is arithmetic of the CPU; there it answers the compared queries alone
            trained = open_trained(replace(setting, device="cpu"), unit.config)
            rankers = {name: trained.beam(search) for name, search in _searches(exact, free).items()}
        tasks = [task.spread(COMPARED) for task in trained.vectors.of_split("test")]
        return {**found, "omega": {"exact": exact.omega, "renormalised": free.omega}, "shared": _shared(rankers, tasks)}

    def assemble(self, setting: Setting, parts: list[Part]) -> Outcome:
        """Make a table a measure, one of differences from the exact search, and a figure."""
        ranks = Ranks.read(parts)
        names = [name for name in LABELS if name in ranks.by_system]
        shared = average([{name: part["shared"][name] for name in LABELS} for part in parts])
        against = {name: ranks.contrasts({name: 1.0, "exact": -1.0}, [MEAN])[MEAN] for name in names if name != "exact"}
        omega = {key: [part["omega"][key] for part in parts] for key in parts[0]["omega"]}
        notes = weights_notes(omega, LABELS)
        tables = [systems_table(ranks, m, LABELS, f"modes-{m}", notes=notes) for m in MEASURES]
        tables.append(_difference_table(against, shared))
        rows = {LABELS[name]: [name] for name in names if name in ("exact", "renormalised", "scan", "scan-rescore")}
        figure = systems_figure(ranks, "modes", "Success@1 by rule of search, fp32", [""], rows)
        results = {"systems": ranks.summary(), "against_exact": against, "shared_with_exact": shared, "omega": omega}
        return Outcome(results, tables, [figure])


def _searches(exact: SearchConfig, free: SearchConfig) -> dict[str, SearchConfig]:
    """Return the search of every label."""
    found = {}
    for base in (exact, free, replace(exact, mode="scan-rescore")):
        name = str(base.mode)
        found[name] = base
        for precision in ("bf16", "int8"):
            found[f"{name}-{precision}"] = replace(base, precision=precision)  # type: ignore[arg-type]
    return {**found, "scan": replace(exact, mode="scan"), "geometry": geometry_alone(exact)}


def _knows(device: str, search: SearchConfig) -> bool:
    """Return whether a device has the arithmetic of a search."""
    return device == "cpu" or search.precision != "int8"


def _shared(rankers: dict[str, BeamRanker], tasks: list[Task]) -> dict[str, dict[str, float]]:
    """Return the share of the exact search's first items that each ranker has among its own, mean over queries."""
    found: dict[str, dict[str, list[float]]] = {name: {str(SHALLOW): [], str(DEEP): []} for name in rankers}
    for task in tasks:
        wanted = rankers["exact"].rank(task.query_rows, task.pool_rows, DEEP)
        for name, ranker in rankers.items():
            own = ranker.rank(task.query_rows, task.pool_rows, DEEP)
            for depth in (SHALLOW, DEEP):
                found[name][str(depth)] += [
                    len(set(a.position[:depth]) & set(b.position[:depth])) / max(1, len(b.position[:depth]))
                    for a, b in zip(own, wanted, strict=True)
                ]
    return {name: {depth: float(np.mean(values)) for depth, values in one.items()} for name, one in found.items()}


def _difference_table(against: dict[str, Any], shared: dict[str, dict[str, float]]) -> Table:
    rows = [
        [
            LABELS[name],
            *(show_interval(one and one[m]) for m in MEASURES),
            *(f"{100 * shared[name][str(depth)]:.1f}" for depth in (SHALLOW, DEEP)),
        ]
        for name, one in ((name, against.get(name)) for name in shared if name != "exact")
    ]
    notes = [
        "Points, mean over tasks; 95 % intervals of a paired bootstrap over queries (grouped by target) and seeds.",
        f"Shared: per cent of the exact search's first items among the own first ones, {COMPARED} queries a task.",
    ]
    head = ["search", *map(measure_label, MEASURES), f"shared of {SHALLOW}", f"shared of {DEEP}"]
    return Table("modes-less-exact", "Less the exact search", head, rows, notes)
