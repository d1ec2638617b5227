"""The report as one HTML page that needs nothing beside itself: no network, no script, no other file.

Equal input gives equal bytes. Systems and tasks come in their usual order whatever the order of the keys, so that a
report read back from JSON gives the same page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from math import ceil
from typing import Any

import numpy as np

from siglum.data.world import TASK_LABELS, TASKS
from siglum.measure.charts import Series, draw_bars, draw_lines
from siglum.measure.page import (
    NAMES,
    REFERENCES,
    WORDS,
    Report,
    Results,
    colour_system,
    encode_png,
    in_order,
    mark_system,
    mean_over_tasks,
    name_system,
    name_task,
    percent,
    render_page,
    render_results,
    render_rows,
    systems_of,
)
from siglum.types import SiglumError

SUCCESS = {"success@1": "@1", "success@5": "@5", "success@10": "@10"}
OTHERS = {"mrr@10": "MRR", "ndcg@10": "nDCG", "recall@10": "Recall"}
SETTINGS = {
    "recipe": "Recipe",
    "scale": "Scale",
    "seed": "Seed",
    "beam": "Beam width",
    "diagnostic_beam": "Beam width of token survival",
    "union_queries": "Queries a task against the union pool",
    "omega": "Weight of distance in the beam (ω)",
    "items": "Items",
    "queries": "Queries",
    "vocab": "Vocabulary, levels × codewords",
}
TASKS_A_CHART = 4


@dataclass(frozen=True, slots=True)
class Shown:
    """One item as the page shows it."""

    item_id: str
    text: str | None
    picture: np.ndarray | None
    """Pixels, uint8 (height, width, 3)."""
    correct: bool


@dataclass(frozen=True, slots=True)
class Example:
    """One query with its target and what each system found, best first."""

    task: str
    query_text: str | None
    query_picture: np.ndarray | None
    """Pixels, uint8 (height, width, 3)."""
    target: Shown
    hits: Mapping[str, Sequence[Shown]]


def render_report(report: Report, examples: Sequence[Example], title: str) -> str:
    """Return the page: the finding, figures, tables, charts, examples and settings.

    `report` is the content of `report.json`. Only `tasks` is needed; a part that is missing is left out.
    """
    if not report.get("tasks"):
        raise SiglumError("the report has no tasks, so there is nothing to show; evaluate at least one.")
    parts = [
        f"<header><h1>{escape(title)}</h1>{_finding(report)}</header>",
        _key_figures(report),
        _results(report),
        _survival(report),
        _explained(report),
        _health(report),
        _examples(examples),
        _settings(report.get("settings", {})),
    ]
    return render_page(title, "\n".join(part for part in parts if part))


def _finding(report: Report) -> str:
    """Tell in a sentence what came of it, and in a second one by how much."""
    lead, won = _lead(report["tasks"]), _tasks_won(report)
    if won is None:
        return f'<p class="finding">{escape(lead)}</p>'
    text = f"PRO beats GENIUS on {won[0] or 'none'} of {won[1]} tasks in Success@1{_gap_words(report, *won)}."
    return f'<p class="finding">{escape(text)}</p><p class="lead">{escape(lead)}</p>'


def _lead(tasks: Results) -> str:
    """Tell how often the first result is right, for the generative systems and dense search."""
    systems = [system for system in reversed(systems_of(tasks)) if system == "dense" or system not in REFERENCES]
    means = {system: mean_over_tasks(tasks, system, "success@1") for system in systems}
    names = {system: "dense search" if system == "dense" else name_system(system) for system in systems}
    said = [f"{percent(mean)} % with {names[system]}" for system, mean in means.items() if mean is not None]
    listed = " and ".join([", ".join(said[:-1]), said[-1]] if len(said) > 1 else said)
    over = f"on average over {len(tasks)} tasks" if len(tasks) > 1 else f"on {name_task(next(iter(tasks)))}"
    return f"Share of queries whose first result is right, {over}: {listed or 'not measured'}."


def _tasks_won(report: Report) -> tuple[int, int] | None:
    """Return on how many tasks PRO beats GENIUS, and of how many, if both were measured."""
    if gap := report.get("gap"):
        return int(gap["tasks_won"]), int(gap["tasks"])
    rows = [row for row in report["tasks"].values() if "pro" in row and "genius" in row]
    won = sum(row["pro"]["success@1"] > row["genius"]["success@1"] for row in rows)
    return (won, len(rows)) if rows else None


def _gap_closed(report: Report) -> float | None:
    """Return the share of the gap that PRO closes; None where it is not known or GENIUS leaves no gap."""
    dense, genius = (mean_over_tasks(report["tasks"], system, "success@1") for system in ("dense", "genius"))
    level = dense is not None and genius is not None and genius >= dense
    return None if level or not report.get("gap") else float(report["gap"]["closed"])


def _gap_words(report: Report, won: int, tasks: int) -> str:
    closed = _gap_closed(report)
    if closed is None:
        return ", where GENIUS leaves no gap to dense search" if report.get("gap") else ""
    link = " and " if (2 * won >= tasks) == (closed > 0) else " but "
    if closed > 1:
        return f"{link}overtakes dense search on average"
    if closed >= 0:
        return f"{link}closes {100 * closed:.0f} % of GENIUS’s gap to dense search"
    return f"{link}leaves a gap to dense search {-100 * closed:.0f} % wider than GENIUS’s"


def _key_figures(report: Report) -> str:
    cards = []
    if (closed := _gap_closed(report)) is not None:
        share = f"{100 * closed:.0f} %".replace("-", "−")
        cards.append((share, "of the gap between GENIUS and dense search closed by PRO, in Success@1"))
    if (won := _tasks_won(report)) is not None:
        cards.append((f"{won[0]} of {won[1]}", "tasks on which PRO beats GENIUS in Success@1"))
    beams = report.get("beam_survival", {})
    for system in reversed(in_order(beams, NAMES)):
        if system not in REFERENCES and beams[system]:
            owner = f"{name_system(system)}’s beam"
            cards.append((f"{percent(beams[system][-1])} %", f"of targets still in {owner} after the last level"))
    if not cards:
        return ""
    shown = [f'<div class="card"><p class="big">{escape(a)}</p><p class="note">{escape(b)}</p></div>' for a, b in cards]
    return f'<section class="grid figures" aria-label="Key figures">{"".join(shown)}</section>'


def _results(report: Report) -> str:
    tasks: Results = report["tasks"]
    note = (
        "Success@k is the share of queries with a right answer among the first k results; M-BEIR calls it Recall@k."
        " The best generative system of a row is bold."
    )
    table = render_results(tasks, SUCCESS, "Success@k in per cent, each task on its own pool")
    others = render_results(tasks, OTHERS, "MRR@10, nDCG@10 and true recall@10 in per cent, each task on its own pool")
    union = render_results(
        report.get("union", {}), SUCCESS, "Success@k in per cent, each task on the union of all pools"
    )
    return (
        f'<section><h2>Which system finds the target?</h2>{_bars(report)}{table}<p class="note">{note}</p>'
        f"{_fold('Other measures', others)}"
        f"{_fold('The union pool: the same queries against the items of all tasks', union)}</section>"
    )


def _fold(summary: str, inner: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{inner}</details>" if inner else ""


def _bars(report: Report) -> str:
    """Draw Success@1 by task, at most four tasks a chart, so that a phone shows one and a laptop two side by side."""
    tasks: Results = report["tasks"]
    names, systems, charts = in_order(tasks, TASKS), systems_of(tasks), []
    size = ceil(len(names) / ceil(len(names) / TASKS_A_CHART))
    for start in range(0, len(names), size):
        part = names[start : start + size]
        values = {system: [tasks[task].get(system, {}).get("success@1") for task in part] for system in systems}
        rows = [Series(name_system(system), values[system], _paint(report, system)) for system in systems]
        labels = [name_task(task) for task in part]
        title = f"Success@1 by task and system for {', '.join(labels)}; the table below has the numbers"
        charts.append(f"<figure>{draw_bars(labels, rows, title)}</figure>")
    keys = "".join(f"<li>{_swatch(report, system)}</li>" for system in systems)
    words = "Success@1 by task: how often the very first result is right. t is text, i a picture, (i,t) both."
    return f'<p>{words}</p><ul class="legend">{keys}</ul><div class="grid charts">{"".join(charts)}</div>'


def _paint(report: Report, system: str) -> str:
    return colour_system(
        system, {*systems_of(report["tasks"]), *report.get("survival", {}), *report.get("beam_survival", {})}
    )


def _swatch(report: Report, system: str) -> str:
    return f'<span class="swatch" style="background:{_paint(report, system)}"></span>{escape(name_system(system))}'


def _diagnostic_beam(report: Report) -> int | None:
    """Return the beam width of the survival curves, where the report tells."""
    settings = report.get("settings", {})
    return settings.get("diagnostic_beam", settings.get("beam"))  # type: ignore[no-any-return]


def _survival(report: Report) -> str:
    """Draw token survival, with chance, and survival in the real beam."""
    figures, tables = [], []
    if curves := _curves(report, "survival"):
        chances = _chances(report)
        width = _diagnostic_beam(report)
        best = f"{width} best" if width else "best"
        words = f"Given the right prefix so far, is the right token among the {best} of its level?"
        words += " Dashed: what guessing gives." if chances else ""
        ticks = _tokens(max(len(row.values) for row in curves + chances), modality=False)
        figures.append(_figure("Token survival, level by level", words, ticks, "level", curves + chances))
        tables.append(_numbers("Token survival in per cent", ticks, curves + chances))
    if curves := _curves(report, "beam_survival"):
        modality = _has_modality(report)
        words = f"Share of targets whose prefix is still in the beam after each token. {_drops(report, modality)}"
        ticks = _tokens(max(len(row.values) for row in curves), modality)
        axis = "level, after M for the modality token" if modality else "level"
        figures.append(_figure("Where targets fall out of the beam", words, ticks, axis, curves))
        tables.append(_numbers("Targets still in the beam in per cent", ticks, curves))
    if not figures:
        return ""
    charts = f'<div class="grid charts">{"".join(figures)}</div>'
    return f"<section><h2>Do targets survive?</h2>{charts}{_fold('The curves in numbers', ''.join(tables))}</section>"


def _curves(report: Report, key: str) -> list[Series]:
    rows = report.get(key, {})
    systems = [system for system in in_order(rows, NAMES) if rows[system]]
    return [Series(name_system(s), list(rows[s]), _paint(report, s), mark_system(s)) for s in systems]


def _chances(report: Report) -> list[Series]:
    """Return the lines of chance: one if all systems share it."""
    rows = {system: list(values) for system, values in report.get("chance", {}).items() if values}
    if len(rows) > 1 and len({tuple(values) for values in rows.values()}) == 1:
        return [Series("chance", next(iter(rows.values())), "var(--muted)", reference=True)]
    systems = in_order(rows, NAMES)
    return [Series(f"chance, {name_system(s)}", rows[s], _paint(report, s), reference=True) for s in systems]


def _figure(title: str, words: str, ticks: Sequence[str], axis: str, series: Sequence[Series]) -> str:
    ends = "; ".join(f"{row.label} {percent(row.values[0])} to {percent(row.values[-1])} %" for row in series)
    caption = f"<figcaption><b>{escape(title)}</b>{escape(words)}</figcaption>"
    return f"<figure>{caption}{draw_lines(ticks, series, f'{title}, first to last: {ends}', axis)}</figure>"


def _numbers(caption: str, ticks: Sequence[str], series: Sequence[Series]) -> str:
    rows = [[percent(value) for value in row.values] for row in series]
    padded = [[row.label, *cells, *[""] * (len(ticks) - len(cells))] for row, cells in zip(series, rows, strict=True)]
    return render_rows(caption, ["Level", *ticks], padded)


def _has_modality(report: Report) -> bool:
    """Say whether codes begin with a modality token, which token survival leaves out."""
    levels = {system: len(values) for system, values in report.get("survival", {}).items()}
    tokens = [(system, len(values)) for system, values in report.get("beam_survival", {}).items()]
    tokens += [(system, len(own["levels"])) for system, own in report.get("health", {}).items()]
    return all(length != levels.get(system) for system, length in tokens)


def _tokens(length: int, modality: bool) -> list[str]:
    return ["M"] * modality + [str(level + 1) for level in range(length - modality)]


def _drops(report: Report, modality: bool) -> str:
    """Say at which token each generative system loses most."""
    said = []
    for system in in_order(report["beam_survival"], NAMES):
        values = report["beam_survival"][system]
        losses = [before - after for before, after in zip([1.0, *values], values, strict=False)]
        if system not in REFERENCES and losses and max(losses) > 0:
            worst = losses.index(max(losses))
            token = _tokens(len(values), modality)[worst]
            place = "the modality token" if token == "M" else f"level {token}"
            said.append(f"{name_system(system)} loses most at {place}: {percent(losses[worst])} points.")
    return " ".join(said)


def _explained(report: Report) -> str:
    named = {*systems_of(report["tasks"]), *report.get("survival", {})}.intersection(WORDS)
    cards = [
        f'<div class="card"><h3>{_swatch(report, system)}</h3><p class="note">{escape(WORDS[system])}</p></div>'
        for system in in_order(named, NAMES)
    ]
    inner = f'<div class="grid systems">{"".join(cards)}</div>'
    return f"<section><h2>What is compared</h2>{inner}</section>" if cards else ""


def _health(report: Report) -> str:
    health = report.get("health", {})
    if not health:
        return ""
    systems = in_order(health, NAMES)
    head = ("Tokenizer", "Items", "Distinct codes", "Items sharing a code, %", "Most on one code", "Error")
    rows = [(name_system(system), *_codes(health[system])) for system in systems]
    levels = [_levels(name_system(system), health[system]["levels"], _has_modality(report)) for system in systems]
    table = render_rows("How well codes tell items apart; the error is the mean squared distance", head, rows)
    return f"<section><h2>Health of the tokenizers</h2>{table}{_fold('Level by level', ''.join(levels))}</section>"


def _codes(own: Mapping[str, Any]) -> tuple[str, ...]:
    counts = (
        f"{own['items']:,}",
        f"{own['distinct']:,}",
        percent(own["collision_rate"]),
        f"{own['largest_collision']:,}",
    )
    return (*counts, f"{own['reconstruction']:.4f}")


def _levels(name: str, levels: Sequence[Mapping[str, Any]], modality: bool) -> str:
    head = ("Level", "Codewords", "Used, %", "Dead", "Entropy, bits", "Error left")
    rows = []
    for token, own in zip(_tokens(len(levels), modality), levels, strict=True):
        use = f"{own['size']:,}", percent(own["usage"]), f"{own['dead']:,}"
        rows.append((token, *use, f"{own['entropy']:.2f}", f"{own['error']:.4f}"))
    return render_rows(f"{name}, level by level{', after M for the modality token' if modality else ''}", head, rows)


def _examples(examples: Sequence[Example]) -> str:
    words = (
        "The first results of each system. ✓ and a solid border: right; ✗ and a dashed border: wrong. The queries were "
        "picked to show a difference: where there is one, PRO answers it and GENIUS does not."
    )
    cards = "".join(_example(example) for example in examples)
    return f"<section><h2>Examples</h2><p>{words}</p>{cards}</section>" if cards else ""


def _example(example: Example) -> str:
    rows = []
    for system in in_order(example.hits, NAMES):
        hits = example.hits[system]
        # Pictures without words still fit three in a row on a phone.
        kind = "hits pictures" if all(hit.text is None for hit in hits) else "hits"
        listed = "".join(f"<li>{_shown(hit, rank)}</li>" for rank, hit in enumerate(hits, 1))
        found = f'<ol class="{kind}">{listed}</ol>' if hits else '<p class="note">no results</p>'
        rows.append(f'<p class="tag">{escape(name_system(system))}</p>{found}')
    query = _thing(example.query_text, example.query_picture, "Picture of the query")
    return (
        f'<article class="card example"><h3>{escape(name_task(example.task))}</h3><div class="ask">'
        f'<div><p class="tag">Query</p><div class="thing">{query}</div></div>'
        f'<div><p class="tag">Target</p>{_shown(example.target)}</div></div><div>{"".join(rows)}</div></article>'
    )


def _shown(item: Shown, rank: int | None = None) -> str:
    name = f'<span class="id">{escape(item.item_id)}</span>'
    inner = _thing(item.text, item.picture, f"Picture of item {item.item_id}")
    if rank is None:
        return f'<div class="thing"><p class="mark">{name}</p>{inner}</div>'
    kind, sign = ("right", "✓") if item.correct else ("wrong", "✗")
    mark = f'<b>{rank} <span aria-hidden="true">{sign}</span><span class="spoken">{kind}</span></b>'
    return f'<div class="thing {kind}"><p class="mark">{mark} {name}</p>{inner}</div>'


def _thing(text: str | None, picture: np.ndarray | None, alt: str) -> str:
    image = "" if picture is None else f'<img alt="{escape(alt)}" src="data:image/png;base64,{encode_png(picture)}">'
    return f'<div class="both">{image}{"" if text is None else f"<p>{escape(text)}</p>"}</div>'


def _settings(settings: Mapping[str, Any]) -> str:
    rows = [(SETTINGS.get(key, key), _setting(settings[key])) for key in in_order(settings, SETTINGS)]
    table = render_rows("What was run", ("Setting", "Value"), rows)
    return f'<section class="settings"><h2>Settings</h2>{table}</section>' if rows else ""


def _setting(value: Any) -> str:
    """Write a setting: numbers with separators, vocabularies as runs, groups with their names."""
    if isinstance(value, Mapping):
        keys = in_order(value, (*NAMES, *TASKS))
        return "; ".join(f"{NAMES.get(key, TASK_LABELS.get(key, key))}: {_setting(value[key])}" for key in keys)
    if isinstance(value, list | tuple):
        return ", ".join(f"{len(list(run))} × {_setting(one)}" for one, run in groupby(value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,}" if isinstance(value, int) else f"{value:g}"
    return str(value)
