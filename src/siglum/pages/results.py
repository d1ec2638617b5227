"""What a page about runs says of what they find: tables and bars by task, and the runs in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil

from siglum.data.tasks import TASK_LABELS, TASKS
from siglum.pages.charts import Chart, ShareSeries
from siglum.pages.document import COLUMNS, MEAN, OTHERS, Document, RunSummary, mean_of
from siglum.pages.names import colour_run, colour_system, in_order, name_system, name_task
from siglum.pages.render import percent

TASKS_PER_CHART = 4
"""Most tasks in one chart."""
UNION = "The union pool: the same queries against the items of all tasks"


@dataclass(frozen=True, slots=True)
class Column:
    """What one system reached: task -> measure -> value."""

    name: str
    colour: str
    values: Mapping[str, Mapping[str, float]]
    rival: bool = False
    """Whether the best of such columns is marked."""


@dataclass(frozen=True, slots=True)
class PageTable:
    """Systems by task, with the means over tasks where there are several."""

    caption: str
    columns: Sequence[Column]
    measures: Mapping[str, str] = field(default_factory=lambda: COLUMNS)
    """Measures with the heads of their columns."""

    @property
    def tasks(self) -> list[str]:
        """The tasks, and what stands for all of them."""
        tasks = in_order((task for column in self.columns for task in column.values), TASKS)
        return [*tasks, MEAN] if len(tasks) > 1 else tasks

    @property
    def whole(self) -> bool:
        """Whether it has anything to show, and nothing but tasks with these measures."""
        known = [row for column in self.columns for row in column.values.values()]
        return bool(known) and all(measure in row for row in known for measure in self.measures)

    def share(self, column: Column, task: str, measure: str) -> float | None:
        """Return what a column reached on a task, or on average over all."""
        if task != MEAN:
            return column.values.get(task, {}).get(measure)
        values = [column.values.get(one, {}).get(measure) for one in self.tasks[:-1]]
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if len(known) == len(values) else None

    def best(self, task: str, measure: str) -> str:
        """Return the best of the rivals as it is shown."""
        return best(self.share(column, task, measure) for column in self.columns if column.rival)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The section of results."""

    charts: Sequence[Chart]
    tables: Sequence[PageTable]
    columns: Sequence[Column] = ()
    """What the charts show."""
    folds: Sequence[tuple[str, PageTable]] = ()
    systems: Sequence[str] = ()
    """What runs have beside their own search."""
    best: Mapping[str, str] = field(default_factory=dict)
    """The best means over tasks as they are shown, by measure and by system."""
    compared: Sequence[tuple[str, str]] = ()
    """Names and colours of runs that are compared with the reference."""
    compared_tasks: Sequence[str] = ()

    @property
    def lettered(self) -> bool:
        """Whether the names of tasks have letters that want a word."""
        return any(task in TASK_LABELS for column in self.columns for task in column.values)


def best(values: Iterable[float | None]) -> str:
    """Return the best of shares as shown in per cent, so that equals share it; nothing if all are alike.

    >>> best([0.5, None, 0.25]), best([0.5, 0.5])
    ('50.0', '')
    """
    known = {float(percent(value)) for value in values if value is not None}
    return f"{max(known):.1f}" if len(known) > 1 else ""


def rank_runs(runs: Sequence[RunSummary]) -> list[tuple[float, RunSummary]]:
    """Return the runs that can be searched with the Success@1 of their own search, best first."""
    means = [(mean_of(run, run["own"], "success@1"), run) for run in runs]
    return sorted(((mean, run) for mean, run in means if mean is not None), key=lambda pair: -pair[0])


def gap_closed(document: Document) -> float | None:
    """Return the share of a run's gap to dense search that another closes; None where there is no gap to close."""
    gap = document.get("gap")
    if not gap:
        return None
    behind = next(run for run in document["runs"] if run["name"] == gap["behind"])
    dense = (mean_of(run, "dense", "success@1") for run in document["runs"])
    own, best = mean_of(behind, behind["own"], "success@1"), next((one for one in dense if one is not None), None)
    level = own is not None and best is not None and own >= best
    return None if level else float(gap["closed"])


def is_ranked(document: Document) -> bool:
    """Say whether all runs that can be searched were asked the same, so that one of them may be called the best."""
    others = [run["name"] for run in document["runs"] if run["own"] and run["name"] != document["reference"]]
    return bool(others) and all(document["differences"].get(name) for name in others)


def find_results(document: Document) -> Found | None:
    """Return the section of results; None where nothing was measured."""
    runs: Sequence[RunSummary] = document["runs"]
    measured = [run for run in runs if run["tasks"]]
    if not measured:
        return None
    if len(runs) == 1:
        table = _of_systems(runs[0])
        names = runs[0]["systems"]
        pairs = zip(table.columns, names, strict=True)
        columns = [replace(column, colour=colour_system(name, names)) for column, name in pairs]
        return Found(columns=columns, charts=_bars(columns), tables=[table])
    ranked, differences = is_ranked(document), document["differences"]
    columns = _own_columns(runs, ranked)
    table = PageTable("Each run’s own search by task", columns)
    folds = {
        "Other measures": PageTable("nDCG@10 and true recall@10 by task", columns, OTHERS),
        UNION: PageTable("Each run’s own search on the union of all pools", _own_columns(runs, ranked, "union")),
    }
    systems = list(dict.fromkeys(one for run in runs for one in run["systems"] if one != run["own"]))
    compared = [(run["name"], colour_run(place)) for place, run in enumerate(runs) if differences.get(run["name"])]
    return Found(
        columns=columns,
        charts=_bars(columns),
        tables=[table] if table.whole else [],
        folds=[(title, table) for title, table in folds.items() if table.whole]
        + [(f"All systems of {run['name']}", _of_systems(run)) for run in measured],
        systems=systems,
        best=_best_means(runs, systems) if ranked else {},
        compared=compared,
        compared_tasks=[task for task in table.tasks if any(task in differences[name] for name, _ in compared)],
    )


def _column(name: str, colour: str, run: RunSummary, system: str, *, rival: bool = False, key: str = "tasks") -> Column:
    values = {task: row[system] for task, row in run.get(key, {}).items() if system in row}
    return Column(name, colour, values, rival)


def _of_systems(run: RunSummary) -> PageTable:
    columns = [_column(name_system(system), "", run, system) for system in run["systems"]]
    return PageTable(f"Systems of {run['name']} by task", columns)


def _own_columns(runs: Sequence[RunSummary], rival: bool, key: str = "tasks") -> list[Column]:
    """Return the runs' own searches, after dense search where that is the same in all runs which have it."""
    own = [
        _column(run["name"], colour_run(place), run, run["own"], rival=rival, key=key)
        for place, run in enumerate(runs)
        if run["own"] in run["systems"]
    ]
    dense = [_column("dense", "var(--dense)", run, "dense", key=key) for run in runs if run["own"] in run["systems"]]
    dense = [column for column in dense if column.values]
    shared = dense[:1] if all(column == dense[0] for column in dense) else []
    return [*shared, *own] if any(column.values for column in own) else []


def _best_means(runs: Sequence[RunSummary], systems: Iterable[str]) -> dict[str, str]:
    found = {measure: best(mean_of(run, run["own"], measure) for run in runs) for measure in COLUMNS}
    return found | {system: best(mean_of(run, system, "success@1") for run in runs) for system in systems}


def _bars(columns: Sequence[Column]) -> list[Chart]:
    """Draw Success@1 of columns, at most four tasks a chart."""
    tasks = in_order((task for column in columns for task in column.values), TASKS)
    size = ceil(len(tasks) / ceil(len(tasks) / TASKS_PER_CHART)) if tasks else 1
    charts = []
    for start in range(0, len(tasks), size):
        part = tasks[start : start + size]
        rows = [[column.values.get(task, {}).get("success@1") for task in part] for column in columns]
        series = [ShareSeries(one.name, row, one.colour) for one, row in zip(columns, rows, strict=True)]
        names = [name_task(task) for task in part]
        charts.append(Chart(names, series, f"Success@1 for {', '.join(names)}; the table below has the numbers"))
    return charts
