"""Tables and figures of systems on tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from siglum.data.tasks import TASK_LABELS
from siglum.lab.experiments.checks_view import CHECK_NOTE, check_cells, check_head
from siglum.lab.experiments.plots import Figure, Panel, Series
from siglum.lab.experiments.ranks import MEAN, MEASURES, Ranks, show_interval
from siglum.lab.experiments.samples import Samples
from siglum.lab.tables import Table, bold_best, percent

Interval = Mapping[str, float]
ABOVE = ("raw", "dense", "geometry")
"""How systems without a decoder are called; the best cell is chosen among the others."""
GEOMETRY = "_geometry"
"""How the name of codes that geometry searches ends, where there are several."""


def task_label(task: str) -> str:
    """Return a task's name for people.

    >>> task_label("t2i"), task_label("mean")
    ('t→i', 'mean')
    """
    return TASK_LABELS.get(task, task or "all")


def measure_label(measure: str) -> str:
    """Return a measure's name for people.

    >>> measure_label("success@1"), measure_label("mrr@10")
    ('Success@1', 'MRR@10')
    """
    return measure.upper() if measure.startswith("mrr") else measure.capitalize()


def shown_tasks(ranks: Samples) -> list[str]:
    """Return all tasks, and their mean first where there are several."""
    return [MEAN, *ranks.tasks] if len(ranks.tasks) > 1 else ranks.tasks


def systems_table(
    ranks: Ranks,
    measure: str,
    labels: Mapping[str, str],
    name: str,
    title: str = "",
    notes: Sequence[str] = (),
    checks: Samples | None = None,
) -> Table:
    """Return a measure of every system that has a label, in that order, on every task, in per cent.

    With `checks` stands beside it what was done to the codes and the beam.
    """
    tasks = shown_tasks(ranks)
    systems = [system for system in labels if system in ranks.by_system]
    values = [[ranks.over_seeds(system, task, measure) for task in tasks] for system in systems]
    rows = [[labels[system], *map(percent, found)] for system, found in zip(systems, values, strict=True)]
    rivals = [place for place, system in enumerate(systems) if system not in ABOVE and not system.endswith(GEOMETRY)]
    means = [[sum(cell) / len(cell) for cell in values[place]] for place in rivals]
    bold_best([rows[place] for place in rivals], range(1, len(tasks) + 1), means)
    title = title or f"{measure_label(measure)} by system and task"
    head, notes = ["system", *map(task_label, tasks)], [seeds_note(values), *notes]
    if checks is not None:
        head, notes = [*head, *check_head()], [*notes, CHECK_NOTE]
        rows = [[*row, *check_cells(checks, system)] for row, system in zip(rows, systems, strict=True)]
    return Table(name, title, head, rows, notes)


def contrast_table(
    name: str,
    title: str,
    first: str,
    found: Mapping[str, Mapping[str, Interval | None]],
    p_values: Mapping[str, Mapping[str, float | None]] | None = None,
) -> Table:
    """Return differences with their intervals, label -> measure -> contrast, and p of the paper's test, if given."""
    head, rows = [first], [[label] for label in found]
    for measure in MEASURES:
        head.append(measure_label(measure))
        for row, one in zip(rows, found.values(), strict=True):
            row.append(show_interval(one[measure]))
        if p_values:
            head.append("p")
            for row, label in zip(rows, found, strict=True):
                p = p_values.get(label, {}).get(measure)
                row.append("–" if p is None else f"{p:.2g}")
    notes = ["Points, with 95 % intervals of a paired bootstrap over queries (grouped by target) and seeds."]
    notes += ["p: the paper's two-sample t-test over seeds."] if p_values else []
    return Table(name, title, head, rows, notes)


def seeds_note(values: Sequence[Sequence[Sequence[float]]]) -> str:
    """Return what the cells of a table are."""
    counts = sorted({len(cell) for row in values for cell in row})
    if not counts:
        return "None of these was measured."
    if counts == [1]:
        return "Per cent, one seed."
    return f"Per cent, mean and standard deviation over {' or '.join(map(str, counts))} seeds."


def weights_notes(chosen: Mapping[str, Sequence[float]], labels: Mapping[str, str]) -> list[str]:
    """Return a sentence with the weights of geometry of every system that has a label, seed by seed; none without any.

    >>> weights_notes({"pro": [10.0, 20.0], "other": [1.0]}, {"genius": "GENIUS", "pro": "PRO"})
    ['ω chosen on validation, seed by seed: PRO = 10, 20.']
    """
    told = [f"{labels[name]} = {', '.join(f'{w:g}' for w in chosen[name])}" for name in labels if chosen.get(name)]
    by_seed = ", seed by seed" if any(len(weights) > 1 for weights in chosen.values()) else ""
    return [f"ω chosen on validation{by_seed}: {'; '.join(told)}."] if told else []


def systems_figure(
    ranks: Ranks,
    name: str,
    title: str,
    ticks: Sequence[str],
    rows: Mapping[str, Sequence[str]],
    measure: str = "success@1",
) -> Figure:
    """Return bars of a measure, one panel a task: `rows` names the systems that stand at the ticks, series by series.

    Where there are several seeds, a bar carries one deviation either way.
    """
    panels = []
    for task in shown_tasks(ranks):
        series = []
        for label, systems in rows.items():
            cells = [ranks.cell(system, task, measure) if system in ranks.by_system else None for system in systems]
            ends = [_ends(cell) for cell in cells]
            y = [None if cell is None else cell["mean"] for cell in cells]
            series.append(Series(label, y, low=[low for low, _ in ends], high=[high for _, high in ends]))
        panels.append(Panel("bars", series, "", measure_label(measure), task_label(task), ticks, share=True))
    return Figure(name, title, panels)


def _ends(cell: Mapping[str, Any] | None) -> tuple[float | None, float | None]:
    """Return one deviation below and above the mean, None where there is none."""
    if cell is None or cell["std"] is None:
        return None, None
    return cell["mean"] - cell["std"], cell["mean"] + cell["std"]


def contrast_panel(title: str, y_label: str, rows: Mapping[str, Mapping[str, Interval | None]]) -> Panel:
    """Return bars of contrasts with their intervals: series -> tick -> contrast, None where it could not be had."""
    ticks = list(dict.fromkeys(tick for found in rows.values() for tick in found))
    series = [Series.of(label, [found.get(tick) for tick in ticks], key="mean") for label, found in rows.items()]
    return Panel("bars", series, "", y_label, title, ticks, share=True)
