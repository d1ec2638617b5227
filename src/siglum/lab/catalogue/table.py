"""From the parts of the benchmark to its document, its tables and its figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from siglum.data.tasks import TASK_LABELS, TASKS
from siglum.lab.captions import table as captions
from siglum.lab.catalogue.systems import ALONE, is_composed
from siglum.lab.experiments.plots import Figure
from siglum.lab.experiments.ranks import MEASURES, Ranks, show_interval
from siglum.lab.experiments.systems import contrast_panel, systems_figure, systems_table
from siglum.lab.tables import Table
from siglum.lab.units import Part
from siglum.types import Vectors

LABELS = dict(captions.ORDER)
DRAWN = ("dense", "genius", "pro", "best")
"""Systems in the figures."""
PAIR = {"pro": 1.0, "genius": -1.0}


def describe(vectors: Vectors) -> dict[str, Any]:
    """Return what each task of the test split is made of, and what a blind guess finds first."""
    return {
        task.name: {
            "queries": len(task.query_rows),
            "clusters": len(task.query_rows if task.clusters is None else np.unique(task.clusters)),
            "pool": len(task.pool_rows),
            "positives": float(np.mean([len(rows) for rows in task.positives])),
            "chance": float(np.mean([len(rows) for rows in task.positives]) / len(task.pool_rows)),
        }
        for task in vectors.of_split("test")
    }


def build_document(parts: Sequence[Part], facts: dict[str, Any]) -> dict[str, Any]:
    """Return the document: as that of captioned images, with all pools together and what one part alone finds."""
    ranks, union = Ranks.read(parts), union_ranks(parts)
    return {
        **captions.build_document(parts, facts),
        "union": captions.cells_of(union),
        "union_comparisons": {"pro - genius": {task: union.contrast(PAIR, task, "success@1") for task in union.tasks}},
        "composed": {task: found for task in ranks.tasks if (found := _composed(ranks, task))},
    }


def union_ranks(parts: Sequence[Part]) -> Ranks:
    """Return the ranks among all pools together."""
    return Ranks.read([{**part, "systems": part["union"]} for part in parts if "union" in part])


def _composed(ranks: Ranks, task: str) -> dict[str, Any]:
    """Return how far dense search with both parts is above the better of one part alone, by Success@1."""
    there = ranks.systems(task)
    if not is_composed(task) or not {"dense", *ALONE} <= set(there):
        return {}
    better = max(ALONE, key=lambda name: float(np.mean(ranks.over_seeds(name, task, "success@1"))))
    gap = {measure: ranks.contrast({"dense": 1.0, better: -1.0}, task, measure) for measure in MEASURES}
    return {"better_alone": better, "dense - better": gap}


def markdown(document: dict[str, Any], parts: Sequence[Part]) -> str:
    """Return all tables: what the tasks are, the systems on all of them, gaps, then task by task."""
    ranks, union = Ranks.read(parts), union_ranks(parts)
    labels = {name: f"**{text}**" if name in captions.MORE else text for name, text in captions.ORDER}
    for name in ALONE:
        del labels[name]
    there = {name: label for name, label in labels.items() if name in ranks.by_system}
    tables = [
        _tasks_table(document["about"]),
        systems_table(ranks, "success@1", there, "own", "Success@1, each task in its own pool"),
        systems_table(ranks, "mrr@10", there, "own-mrr", "MRR@10, each task in its own pool"),
        systems_table(union, "success@1", there, "union", "Success@1, all pools together"),
    ]
    if set(PAIR) <= set(ranks.by_system):
        tables.append(_gaps_table(document, ranks))
    if document["composed"]:
        tables.append(_composed_table(document["composed"], ranks))
    return "\n".join([*(table.markdown() for table in tables), captions.markdown(document)])


def _tasks_table(about: dict[str, Any]) -> Table:
    rows = [
        [
            TASK_LABELS[task],
            *(f"{found[name]:,}" for name in ("queries", "clusters", "pool")),
            f"{found['positives']:.2f}",
            f"{100 * found['chance']:.2f}",
        ]
        for task, found in ((task, about[task]) for task in TASKS if task in about)
    ]
    head = ["task", "queries", "clusters", "pool", "positives a query", "Success@1 by chance, %"]
    return Table("tasks", "The tasks on the test split", head, rows)


def _gaps_table(document: dict[str, Any], ranks: Ranks) -> Table:
    own = {task: ranks.contrast(PAIR, task, "success@1") for task in ranks.tasks}
    union = document["union_comparisons"]["pro - genius"]
    rows = [[TASK_LABELS[task], show_interval(own[task]), show_interval(union.get(task))] for task in own]
    above = sum(found is not None and found["mean"] > 0 for found in own.values())
    notes = [
        f"PRO is above GENIUS on {above} of {len(own)} tasks in their own pools.",
        "Points, with 95 % intervals of a paired bootstrap over clusters of queries and over seeds.",
    ]
    return Table("gaps", "PRO less GENIUS, Success@1", ["task", "own pool", "all pools"], rows, notes)


def _composed_table(found: dict[str, Any], ranks: Ranks) -> Table:
    rows = []
    for task, one in found.items():
        cells = [100 * float(np.mean(ranks.over_seeds(name, task, "success@1"))) for name in (*ALONE, "dense")]
        gaps = [show_interval(one["dense - better"][measure]) for measure in ("success@1", "success@10")]
        rows.append([TASK_LABELS[task], *(f"{cell:.1f}" for cell in cells), *gaps])
    head = ["task", "words alone", "picture alone", "both", "both less the better one, S@1", "S@10"]
    notes = ["Dense search; a part alone has a space of its own, trained without the other part of composed queries."]
    return Table("composed", "Composed queries need both parts", head, rows, notes)


def figures(document: dict[str, Any], parts: Sequence[Part]) -> list[Figure]:
    """Return bars of the systems on every task, in its own pool and in all, and of the gaps with their intervals."""
    ranks, union = Ranks.read(parts), union_ranks(parts)
    shown = [name for name in DRAWN if name in ranks.by_system]
    words = {"own": "each task in its own pool", "union": "all pools together"}
    found = [
        systems_figure(one, name, f"Success@1, {words[name]}", shown, {"system": shown})
        for name, one in (("own", ranks), ("union", union))
    ]
    panels = []
    if set(PAIR) <= set(ranks.by_system):
        rows = {
            label: {TASK_LABELS[task]: one.contrast(PAIR, task, "success@1") for task in one.tasks}
            for label, one in (("own pool", ranks), ("all pools", union))
        }
        panels.append(contrast_panel("PRO less GENIUS", "Success@1", rows))
    if document["composed"]:
        gaps = {TASK_LABELS[task]: one["dense - better"]["success@1"] for task, one in document["composed"].items()}
        panels.append(contrast_panel("both parts less the better one, dense", "Success@1", {"own pool": gaps}))
    return [*found, *([Figure("gaps", "Differences with 95 % intervals", panels, 2)] if panels else [])]
