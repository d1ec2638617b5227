"""Experiment `survival`: at which level targets are lost, and whether reconstruction error tells which.

Token survival is the paper's: the true prefix is given, and the target's next code must be among the B best of all
codes of its level by the quantised oracle. Cumulative survival is that of a real beam over the pool's own prefixes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from siglum.lab.experiments.base import Outcome, Part, Unit, by_unit
from siglum.lab.experiments.plots import Figure, Panel, Series, level_ticks
from siglum.lab.experiments.pools import is_wide, measure_wide, wide_units, with_pools
from siglum.lab.experiments.setting import Setting
from siglum.lab.experiments.survival_beams import (
    Followed,
    compared_units,
    follow,
    followed_tasks,
    label_of,
    searches,
    targets_of,
)
from siglum.lab.experiments.survival_statistics import (
    QUINTILES,
    SHARES,
    associate,
    average,
    between,
    interval_words,
    number,
    per_cent,
    quantiles,
)
from siglum.lab.experiments.trained import Trained, open_trained
from siglum.lab.tables import Table, percent
from siglum.measure.survival import token_survival
from siglum.types import Task

BEAM = 20
"""The beam beside the recipe's own; the paper's for its survival figures."""
BEAMS = {"oracle": "quantised oracle's beam", "own": "own beam"}


class Survival:
    """Per-level decay, the distributions of reconstruction error, and survival by its quintiles."""

    name = "survival"
    title = "Where targets are lost, and whether reconstruction error tells which"

    def units(self, setting: Setting) -> list[Unit]:
        """Return GENIUS and the recipe under study, and more systems on larger pools where such are asked for."""
        own = compared_units(setting, beams=sorted({BEAM, setting.config().search.beam}))
        return [*own, *wide_units(setting)]

    def measure(self, setting: Setting, unit: Unit) -> dict[str, Any]:
        """Follow the test queries' targets through the oracle's beam and the recipe's own."""
        if is_wide(unit.name):
            return measure_wide(setting, unit, ranks=False)
        trained = open_trained(setting, unit.config)
        tasks = followed_tasks(trained)
        error_N = (trained.item_ND - trained.reconstructions()).square().sum(-1).cpu().numpy()
        found: dict[str, Any] = {"queries": sum(len(task.query_rows) for task in tasks), "beams": {}}
        for beam in unit.options["beams"]:
            followed = {
                name: [follow(trained, trained.beam(search), task) for task in tasks]
                for name, search in searches(trained, beam).items()
            }
            errors = {name: _errors(tasks, rows, error_N) for name, rows in followed.items()}
            found["beams"][str(beam)] = {"levels": _levels(trained, tasks, followed, beam), "mse": errors}
        return found

    def assemble(self, setting: Setting, parts: list[Part]) -> Outcome:
        """Average over seeds; every figure shows all systems."""
        return with_pools(parts, _assemble, ranks=False)


def _assemble(parts: list[Part]) -> Outcome:
    """Return tables and figures of the task's own pools."""
    units = by_unit(parts)
    found = {name: average([part["beams"] for part in seeds]) for name, seeds in units.items()}
    beams = sorted({beam for systems in found.values() for beam in systems}, key=int)
    found = {name: {beam: values[beam] for beam in beams} for name, values in found.items()}
    seeds = {name: [int(part["seed"]) for part in own] for name, own in units.items()}
    intervals = interval_words(units)
    results = {"queries": parts[0]["queries"], "systems": found, "seeds": seeds, "intervals": intervals}
    tables = [_level_table(units, beam) for beam in beams] + [_error_table(found, intervals)]
    figures = [_decay(found, beams), _distributions(found, beams[0]), _by_quintile(found, beams[0], intervals)]
    return Outcome(results, tables, [figure for figure in figures if figure.panels])


def _levels(
    trained: Trained, tasks: list[Task], followed: dict[str, list[Followed]], beam: int
) -> list[dict[str, Any]]:
    """Return one row a residual level; the modality token comes before level 1."""
    quantizer = trained.tokenizer.quantizer
    query_rows, target_rows = (
        torch.as_tensor(np.concatenate(rows))
        for rows in ([task.query_rows for task in tasks], [targets_of(task) for task in tasks])
    )
    token = token_survival(
        trained.query_MD[query_rows],
        trained.codes_NT[target_rows],
        trained.tokenizer.codebooks(),
        beam,
        quantizer.first_residual,
    )
    count_Q = np.array([len(task.query_rows) for task in tasks])
    rows = []
    for level, size in list(enumerate(quantizer.sizes))[quantizer.first_residual :]:
        row: dict[str, Any] = {
            "level": level - quantizer.first_residual + 1,
            "size": size,
            "chance": min(1.0, beam / size),
        }
        row["token"] = token[level - quantizer.first_residual]
        for name, parts in followed.items():
            row[name] = float(np.concatenate([part.alive_QT[:, level] for part in parts]).mean())
            row[f"{name}_leaves"] = float(np.average([part.leaves_T[level] for part in parts], weights=count_Q))
        rows.append(row)
    return rows


def _errors(tasks: list[Task], followed: list[Followed], error_N: np.ndarray) -> dict[str, Any]:
    """Return how the squared error of the full reconstruction goes with survival to the last level."""
    targets = [targets_of(task) for task in tasks]
    kept = [part.alive_QT[:, -1] for part in followed]
    target_Q, kept_Q = np.concatenate(targets), np.concatenate(kept)
    found = associate(error_N[target_Q], kept_Q, target_Q)
    found["distribution"] = {
        "survived": quantiles(error_N[target_Q[kept_Q]]),
        "pruned": quantiles(error_N[target_Q[~kept_Q]]),
    }
    each = [associate(error_N[rows], alive, rows, rounds=0) for rows, alive in zip(targets, kept, strict=True)]
    # Tasks differ both in error and in survival, so the association inside each is told as well.
    inside = [one["auc"]["value"] for one in each if one["auc"]["value"] is not None]
    found["auc_within"] = float(np.mean(inside)) if inside else None
    found["tasks"] = {
        task.name: {name: one[name] for name in ("survived", "pruned", "auc", "ks")}
        for task, one in zip(tasks, each, strict=True)
    }
    return found


def _level_table(units: dict[str, list[Part]], beam: str) -> Table:
    columns, rows = ["level"], []
    for name in units:
        columns += [f"{label_of(name)} V", "chance", "token", "oracle beam", "own beam", "pool left"]
    depth = max(len(seeds[0]["beams"][beam]["levels"]) for seeds in units.values())
    for place in range(depth):
        row = [str(place + 1)]
        for seeds in units.values():
            levels = [part["beams"][beam]["levels"] for part in seeds]
            if place >= len(levels[0]):
                row += [""] * 6
                continue
            row.append(str(levels[0][place]["size"]))
            row += [
                percent([seed[place][key] for seed in levels])
                for key in ("chance", "token", "oracle", "own", "own_leaves")
            ]
        rows.append(row)
    notes = [
        "Per cent of targets. Token: the target's code is among the B best of its level, given the true prefix; chance "
        "is B / V.",
        "Beams: the target's prefix is still in the beam; pool left: share of the pool's items under the own beam.",
    ]
    return Table(f"survival-{beam}", f"Survival of targets, level by level, at B = {beam}", columns, rows, notes)


def _error_table(found: dict[str, Any], intervals: str) -> Table:
    rows = []
    for name, beams in found.items():
        for beam, values in beams.items():
            for kind, one in values["mse"].items():
                rows.append(
                    [
                        f"{label_of(name)}, B = {beam}, {BEAMS[kind]}",
                        f"{one['survived']:.0f} / {one['pruned']:.0f}",
                        between(one["auc"]),
                        number(one["auc_within"], 2),
                        number(one["ks"]),
                        number(one["ks_chance"]),
                        *(per_cent(part["survival"]["value"]) for part in one["quintiles"]),
                    ]
                )
    head = [
        "system",
        "survived / pruned",
        "AUC",
        "AUC in tasks",
        "KS",
        "KS by chance",
        *(f"Q{place + 1}" for place in range(QUINTILES)),
    ]
    notes = [
        "AUC: chance that a pruned target has the larger squared reconstruction error, 0.5 where error says nothing, "
        f"with {intervals}; in tasks: mean of the tasks' own, free of differences between tasks.",
        "KS: largest distance between the two distributions; one in twenty exceeds the value by chance.",
        "Q1 to Q5: per cent of targets that survive, by quintile of the error, smallest first.",
    ]
    return Table("survival-mse", "Reconstruction error of targets that survive and that are pruned", head, rows, notes)


def _decay(found: dict[str, Any], beams: list[str]) -> Figure:
    kinds = {
        "token": ("chance", "token, true prefix given"),
        "oracle": ("oracle_leaves", "quantised oracle's beam"),
        "own": ("own_leaves", "own beam"),
    }
    panels = []
    for beam in beams:
        for kind, (reference, words) in kinds.items():
            series = []
            for style, (name, values) in enumerate(found.items()):
                levels = values[beam]["levels"]
                chance = f"{label_of(name)}: B/V, or pool under the beam"
                series += [
                    Series(label_of(name), [row[kind] for row in levels], style=style),
                    Series(chance, [row[reference] for row in levels], style=style, reference=True),
                ]
            ticks = level_ticks(max(len(values[beam]["levels"]) for values in found.values()))
            title = f"B = {beam}, {words}"
            panels.append(Panel("lines", series, "residual level", "targets kept", title, ticks, share=True))
    last = [
        f"{100 * values[beams[0]]['levels'][-1]['own']:.0f} % with {label_of(name)}" for name, values in found.items()
    ]
    title = f"Survival of targets by level; at B = {beams[0]} the own beam keeps {', '.join(last)}"
    return Figure("decay", title, panels)


def _distributions(found: dict[str, Any], beam: str) -> Figure:
    panels = []
    for name, beams in found.items():
        one = beams[beam]["mse"]["oracle"]
        series = [
            Series(label, SHARES, one["distribution"][label], style=style)
            for style, label in enumerate(("survived", "pruned"))
            if one["distribution"][label] is not None
        ]
        if series:
            words = f"{label_of(name)}: AUC {number(one['auc']['value'], 2)}, KS {number(one['ks'], 2)}"
            panels.append(Panel("steps", series, "squared error of the target", "share of targets", words, share=True))
    title = f"Reconstruction error of targets that the oracle's beam keeps and prunes (B = {beam})"
    return Figure("mse-ecdf", title, panels)


def _by_quintile(found: dict[str, Any], beam: str, intervals: str) -> Figure:
    panels = []
    for kind, words in BEAMS.items():
        series = [
            Series.of(label_of(name), [part["survival"] for part in beams[beam]["mse"][kind]["quintiles"]], style)
            for style, (name, beams) in enumerate(found.items())
        ]
        axes = ("quintile of reconstruction error", "targets kept")
        panels.append(Panel("bars", series, *axes, words, level_ticks(QUINTILES), share=True, numbers=True))
    title = (
        f"Survival to the last level by quintile of the target's reconstruction error (B = {beam}), with {intervals}"
    )
    return Figure("mse-quintile", title, panels)
