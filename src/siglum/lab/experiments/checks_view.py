"""Manipulation checks in tables: beside every system's ranking, and whether a treatment was seen to act."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from siglum.lab.experiments.checks import BEAM, LOSS, SHOWN
from siglum.lab.experiments.samples import MEAN, Samples, show_interval
from siglum.lab.tables import Table

COLUMNS = {LOSS: "L_rank", **{f"K{level + 1}": f"K{level + 1}" for level in range(SHOWN)}, "error": "error"}
"""Checks that are numbers, and their heads; survival stands beside them in per cent."""


def check_head() -> list[str]:
    """Return the heads of `check_cells`."""
    return [*COLUMNS.values(), f"kept at B = {BEAM}"]


def check_cells(checks: Samples, system: str) -> list[str]:
    """Return a system's checks for a table, mean over tasks and seeds; dashes where there are none."""
    if system not in checks.by_system:
        return ["–"] * (len(COLUMNS) + 1)
    there = {name: checks.over_seeds(system, MEAN, name) for name in COLUMNS if name in checks.measures}
    cells = [f"{np.mean(there[name]):.2f}" if name in there else "–" for name in COLUMNS]
    return [*cells, f"{100 * np.mean(checks.over_seeds(system, MEAN, 'survival')):.1f}"]


CHECK_NOTE = (
    "L_rank: of test pairs. K1 to K4: ranking divergence of the first levels, in nats. Error: squared distance of "
    f"targets to their reconstructions. Kept: per cent of all targets in the own beam of {BEAM} at the last level. All "
    "are means over tasks."
)


def acted(checks: Samples, weights: Mapping[str, float], part: str) -> dict[str, Any]:
    """Return what a part changed, with intervals, and whether its treatment was seen to act.

    Distillation acts where it lowers what it trains, L_rank, on test pairs; the others where they change anything.
    """
    measures = ("survival",) if part == "SF" else (*COLUMNS, "survival")
    found = {measure: checks.contrast(weights, MEAN, measure) for measure in measures}
    there = {measure: one for measure, one in found.items() if one is not None}
    if part == "PD":
        return {"changes": found, "acted": LOSS in there and there[LOSS]["high"] < 0}
    return {"changes": found, "acted": any(one["low"] > 0 or one["high"] < 0 for one in there.values())}


def reading(effect: Mapping[str, float] | None, acts: bool) -> str:
    """Return what may be said of a part: that it has no effect only where its treatment was seen to act.

    >>> reading({"mean": 0.0, "low": -0.1, "high": 0.1}, True), reading({"mean": 0.0, "low": -0.1, "high": 0.1}, False)
    ('acts, no effect found', 'not seen to act: nothing can be said')
    """
    if effect is None:
        return "not measured"
    if effect["low"] > 0 or effect["high"] < 0:
        return "helps" if effect["low"] > 0 else "harms"
    return "acts, no effect found" if acts else "not seen to act: nothing can be said"


def acted_table(name: str, found: Mapping[str, Mapping[str, Any]], effects: Mapping[str, Any], what: str) -> Table:
    """Return what each part changed in codes and beams, beside its effect and what may be said of it."""
    rows = []
    for part, one in found.items():
        changes, effect = one["changes"], effects[part]
        cells = [show_interval(changes.get(measure), 1.0, 3) for measure in COLUMNS]
        cells += [show_interval(changes.get("survival")), show_interval(effect), reading(effect, one["acted"])]
        rows.append([part, *cells])
    head = ["part", *check_head(), what, "reading"]
    notes = [
        f"On less off, mean over the other parts. {CHECK_NOTE}",
        "95 % intervals over queries (grouped by target) and seeds. A dash: the part cannot change it. PD is seen to "
        "act where L_rank falls, the others where anything here changes.",
    ]
    return Table(name, "Was the treatment seen to act?", head, rows, notes, "l" + "r" * (len(head) - 2) + "l")
