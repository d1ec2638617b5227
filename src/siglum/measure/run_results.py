"""The part of the page about runs that tells what they find: figures, tables, bars and paired differences."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil

from siglum.data.world import TASKS
from siglum.measure.charts import Series, draw_bars
from siglum.measure.page import MISSING, colour_system, in_order, name_system, name_task, percent
from siglum.measure.run_parts import best_bold, fold, paint, points, render_grid, section, show_difference, swatch
from siglum.measure.run_report import MEAN, MEASURES, Document, Portrait, mean_of

TASKS_A_CHART, MOST_NAMED = 4, 4
"""Most tasks in one chart, and most runs that the first sentence names."""
Column = tuple[str, dict[str, dict[str, float]]]
"""The head of a group of columns, in HTML, and its values: task -> measure -> value."""


def name_own(portrait: Portrait) -> str:
    """Return what the run's own search goes by: its recipe, or geometry before a decoder is trained."""
    return name_system(portrait["own"]) if portrait["own"] else "no search yet"


def tell_finding(document: Document) -> tuple[str, str]:
    """Return in a sentence what came of it, and in a second one how to read that."""
    runs = document["runs"]
    first = [mean_of(run, run["own"], "success@1") for run in runs]
    if len(runs) == 1:
        return _tell_one(runs[0], first[0])
    known = [(value, run) for value, run in zip(first, runs, strict=True) if value is not None]
    if not known:
        return "None of these runs can be searched yet.", "What is missing, and how to make it, stands below."
    known.sort(key=lambda pair: -pair[0])
    said = [f"{percent(value)} % with {run['name']}" for value, run in known[:MOST_NAMED]]
    said += [f"{len(known) - MOST_NAMED} more"] if len(known) > MOST_NAMED else []
    listed = " and ".join([", ".join(said[:-1]), said[-1]] if len(said) > 1 else said)
    text = f"The right item comes first for {listed}."
    lead = f"Share of queries, each run’s own search, {_over(known[0][1])}."
    lead += f" Differences are against {document['reference']}." if any(document["differences"].values()) else ""
    return text, lead


def _tell_one(run: Portrait, first: float | None) -> tuple[str, str]:
    dense = mean_of(run, "dense", "success@1")
    if first is not None:
        beside = "" if dense is None else f"; dense search does for {percent(dense)} %"
        lead = f"Success@1 of {name_own(run)}, {_over(run)}."
        return f"The right item comes first for {percent(first)} % of queries{beside}.", lead
    if dense is not None:
        return f"Dense search finds the right item first for {percent(dense)} % of queries.", (
            "The run itself cannot be searched yet; what is missing stands below."
        )
    return "Nothing of this run can be measured yet.", "What is missing, and how to make it, stands below."


def _over(run: Portrait) -> str:
    tasks = list(run["tasks"])
    return f"on average over {len(tasks)} tasks" if len(tasks) > 1 else f"on {name_task(tasks[0])}"


def render_cards(document: Document) -> str:
    """Return one card a run, or the key figures of the only one."""
    runs = document["runs"]
    cards = _figures(runs[0]) if len(runs) == 1 else [_card(document, place) for place in range(len(runs))]
    return f'<section class="grid figures" aria-label="Key figures">{"".join(cards)}</section>' if cards else ""


def _card(document: Document, place: int) -> str:
    run = document["runs"][place]
    value = mean_of(run, run["own"], "success@1")
    told = document["differences"].get(run["name"], {}).get(MEAN, {}).get("success@1")
    if value is None:
        note = "cannot be searched yet"
    elif run["name"] == document["reference"]:
        note = "Success@1; the others are compared with this run"
    elif told is None:
        note = "Success@1; asked other queries than the first"
    else:
        note = f"Success@1; {show_difference(told)} points"
    big = MISSING if value is None else f"{percent(value)} %"
    return (
        f'<div class="card" style="--own:{paint(place)}"><p class="name">{escape(run["name"])}</p>'
        f'<p class="big">{big}</p><p class="note">{note}</p></div>'
    )


def _figures(run: Portrait) -> list[str]:
    found, told = [], run["diagnosis"]
    for measure, name in (("success@1", "first"), ("success@10", "among the first ten")):
        if (value := mean_of(run, run["own"], measure)) is not None:
            found.append((f"{percent(value)} %", f"of queries find a right item {name}"))
    own, dense = (mean_of(run, system, "success@1") for system in (run["own"], "dense"))
    if own is not None and dense is not None:
        found.append((points(own - dense), "points to dense search in Success@1"))
    if told:
        rung = next(rung for rung in told["ladder"] if rung["rung"] == told["own"])
        found.append((f"{percent(rung['survival'][-1])} %", "of targets still in the beam after the last level"))
    return [f'<div class="card"><p class="big">{a}</p><p class="note">{b}</p></div>' for a, b in found]


def render_results(document: Document) -> str:
    """Return the section of results; nothing where nothing was measured."""
    runs: Sequence[Portrait] = document["runs"]
    measured = [run for run in runs if run["tasks"]]
    if not measured:
        return ""
    note = (
        "Success@k (@1, @5, @10) is the share of queries with a right answer among the first k results; M-BEIR and the"
        " paper call it Recall@k. MRR is the mean reciprocal rank among the first ten. All in per cent, each task on"
        " its own pool."
    )
    if len(runs) == 1:
        return section("What is found", _bars_of_one(runs[0]), _systems_table(runs[0]), f'<p class="note">{note}</p>')
    found = document["differences"]
    searched = [(place, run) for place, run in enumerate(runs) if run["own"] in run["systems"]]
    marks = " ▲ and ▼: the 95 % interval of the difference does not hold 0." if any(found.values()) else ""
    marks += " The best run of a row is bold." if _alike(document) else ""
    details = "".join(fold(f"All systems of {run['name']}", _systems_table(run)) for run in measured)
    return section(
        "What is found",
        _overview(document),
        _bars_of_all(searched) if searched else "",
        _by_task(searched, _alike(document)) if searched else "",
        _differences(document, searched),
        f'<p class="note">{note}{marks}</p>',
        details,
    )


def _tasks_of(runs: Sequence[Portrait]) -> list[str]:
    return in_order((task for run in runs for task in run["tasks"]), TASKS)


def _own(run: Portrait) -> dict[str, dict[str, float]]:
    return {task: row[run["own"]] for task, row in run["tasks"].items() if run["own"] in row}


def _results_table(caption: str, columns: Sequence[Column], tasks: Sequence[str], best: bool) -> str:
    """Return tasks by columns by measures with the means below, the best column of a row in bold if asked."""
    rows: list[tuple[str, list[str], str]] = []

    def add(name: str, values: list[list[float | None]], kind: str) -> None:
        by_measure = [(best_bold if best else show_all)(one) for one in zip(*values, strict=True)]
        rows.append((escape(name), [cell for column in zip(*by_measure, strict=True) for cell in column], kind))

    for task in tasks:
        add(name_task(task), [[found.get(task, {}).get(m) for m in MEASURES] for _, found in columns], "")
    if len(tasks) > 1:
        whole = [found if set(found) == set(tasks) else {} for _, found in columns]
        means = [[_mean([row[m] for row in found.values()]) for m in MEASURES] for found in whole]
        add("mean", means, "mean")
    heads = list(MEASURES.values())
    return render_grid(caption, "Task", [(head, heads) for head, _ in columns], rows)


def show_all(values: Sequence[float | None]) -> list[str]:
    """Write shares in per cent.

    >>> show_all([0.5, None])
    ['50.0', '–']
    """
    return [percent(value) for value in values]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _systems_table(run: Portrait) -> str:
    columns = [
        (escape(name_system(system)), {t: row[system] for t, row in run["tasks"].items() if system in row})
        for system in run["systems"]
    ]
    return _results_table(f"Systems of {run['name']} by task", columns, _tasks_of([run]), best=False)


def _alike(document: Document) -> bool:
    """Say whether all runs that can be searched were asked the same, so that one of them may be called the best."""
    others = [run["name"] for run in document["runs"] if run["own"] and run["name"] != document["reference"]]
    return all(document["differences"].get(name) for name in others)


def _by_task(runs: Sequence[tuple[int, Portrait]], best: bool) -> str:
    columns = [(swatch(run["name"], paint(place)), _own(run)) for place, run in runs]
    return _results_table("Each run’s own search by task", columns, _tasks_of([run for _, run in runs]), best)


def _overview(document: Document) -> str:
    """Return one row a run: the means over tasks of its systems and of its own search, and the difference."""
    runs: Sequence[Portrait] = document["runs"]
    systems = list(dict.fromkeys(s for run in runs for s in run["systems"] if s != run["own"]))
    own = [[mean_of(run, run["own"], measure) for run in runs] for measure in MEASURES]
    others = [[mean_of(run, system, "success@1") for run in runs] for system in systems]
    write = best_bold if _alike(document) else show_all
    rows = []
    for place, run in enumerate(runs):
        told = document["differences"].get(run["name"], {}).get(MEAN, {}).get("success@1")
        cells = [escape(name_own(run)), *(write(column)[place] for column in own), show_difference(told)]
        rows.append((swatch(run["name"], paint(place)), [*cells, *(write(column)[place] for column in others)], ""))
    groups = [("own search", ["by", *MEASURES.values()]), (f"less {escape(document['reference'])}", ["@1, points"])]
    groups += [("Success@1 of", [name_system(system) for system in systems])] if systems else []
    return render_grid("The runs side by side, means over tasks", "Run", groups, rows)


def _differences(document: Document, runs: Sequence[tuple[int, Portrait]]) -> str:
    """Return what every run has more or less than the reference, task by task."""
    found = document["differences"]
    shown = [(place, run["name"]) for place, run in runs if found.get(run["name"])]
    if not shown:
        words = (
            "the runs were asked other queries, or searched other pools"
            if len(runs) > 1
            else "only one can be searched"
        )
        return f'<p class="note">Differences between runs are left out: {words}.</p>' if runs else ""
    measures = {"success@1": "@1", "mrr@10": "MRR"}
    rows = [
        (
            escape(name_task(task)),
            [show_difference(found[name].get(task, {}).get(measure)) for _, name in shown for measure in measures],
            "mean" if task == MEAN else "",
        )
        for task in [*_tasks_of([run for _, run in runs]), MEAN]
        if any(task in found[name] for _, name in shown)
    ]
    groups = [(swatch(name, paint(place)), list(measures.values())) for place, name in shown]
    caption = f"Points more or less than {document['reference']}, paired by query, with 95 % intervals over targets"
    return render_grid(caption, "Task", groups, rows)


def _charts(tasks: Sequence[str], rows: Sequence[tuple[str, dict[str, dict[str, float]], str]], title: str) -> str:
    """Draw Success@1 of named rows (name, values, colour), at most four tasks a chart."""
    charts, size = [], ceil(len(tasks) / ceil(len(tasks) / TASKS_A_CHART))
    for start in range(0, len(tasks), size):
        part = tasks[start : start + size]
        series = [
            Series(name, [found.get(t, {}).get("success@1") for t in part], colour) for name, found, colour in rows
        ]
        labels = [name_task(task) for task in part]
        words = f"{title} for {', '.join(labels)}; the table below has the numbers"
        charts.append(f"<figure>{draw_bars(labels, series, words)}</figure>")
    keys = "".join(f"<li>{swatch(name, colour)}</li>" for name, _, colour in rows)
    return f'<p>{escape(title)}.</p><ul class="legend">{keys}</ul><div class="grid charts">{"".join(charts)}</div>'


def _bars_of_one(run: Portrait) -> str:
    rows = [
        (
            name_system(system),
            {t: row[system] for t, row in run["tasks"].items() if system in row},
            colour_system(system, run["systems"]),
        )
        for system in run["systems"]
    ]
    return _charts(_tasks_of([run]), rows, "Success@1 by task and system: how often the very first result is right")


def _bars_of_all(runs: Sequence[tuple[int, Portrait]]) -> str:
    """Draw the runs' own searches, before dense search where that is the same in all runs."""
    rows = [(run["name"], _own(run), paint(place)) for place, run in runs]
    dense = [{task: row["dense"] for task, row in run["tasks"].items() if "dense" in row} for _, run in runs]
    if dense[0] and all(one == dense[0] for one in dense):
        rows = [("dense", dense[0], "var(--dense)"), *rows]
    title = "Success@1 by task and run: how often the very first result is right"
    return _charts(_tasks_of([run for _, run in runs]), rows, title)
