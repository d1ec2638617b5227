"""Finished experiments on the page about runs: their tables and figures, read from the folders they were written to."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Any

from siglum.files import read_json, read_record
from siglum.measure.page import render_table
from siglum.measure.run_parts import section
from siglum.types import SiglumError

RESULTS, TABLES = "results.json", "table.md"


@dataclass(frozen=True, slots=True)
class FinishedExperiment:
    """One experiment as its folder holds it."""

    name: str
    results: dict[str, Any]
    tables: str
    """In Markdown."""
    figures: tuple[tuple[str, bytes], ...]
    """What each shows, and its SVG."""


def read_experiments(folder: Path) -> list[FinishedExperiment]:
    """Read every finished experiment DIR/NAME, by name."""
    places = sorted(path.parent for path in folder.glob(f"*/{RESULTS}") if (path.parent / TABLES).exists())
    if not places:
        raise SiglumError(f"{folder} holds no finished experiment, NAME/{RESULTS} with {TABLES}; run one first.")
    found = []
    for place in places:
        drawn = [(_title(svg), svg.read_bytes()) for svg in sorted(place.glob("*.svg"))]
        results = read_record(place / RESULTS)
        found.append(FinishedExperiment(place.name, results, (place / TABLES).read_text(), tuple(drawn)))
    return found


def _title(svg: Path) -> str:
    numbers = svg.with_suffix(".json")
    return str(read_json(numbers).get("title", svg.stem)) if numbers.exists() else svg.stem


def render_experiments(experiments: Sequence[FinishedExperiment]) -> str:
    """Return the section of experiments; nothing where there are none."""
    return section("Experiments", *map(_render, experiments))


def _render(experiment: FinishedExperiment) -> str:
    facts = experiment.results
    # An SVG in a picture of its own cannot clash with another's names, nor run anything.
    figures = [
        f'<figure class="drawn"><figcaption><b>{escape(title)}</b></figcaption><img alt="{escape(title)}"'
        f' src="data:image/svg+xml;base64,{b64encode(svg).decode()}"></figure>'
        for title, svg in experiment.figures
    ]
    told = [f"{name} {facts[name]}" for name in ("data", "recipe", "scale", "date") if facts.get(name)]
    commits = {str(machine.get("commit"))[:12] for machine in facts.get("machines", []) if machine.get("commit")}
    told += [f"commit {' and '.join(sorted(commits))}"] if commits else []
    command = f'<p class="command">{escape(facts["command"])}</p>' if facts.get("command") else ""
    head = f"<summary>{escape(str(facts.get('title', experiment.name)))}</summary>"
    body = f"{''.join(figures)}{render_markdown(experiment.tables)}{command}"
    note = f'<p class="note">{escape(" · ".join(told))}</p>' if told else ""
    return f'<details class="experiment" open>{head}{body}{note}</details>'


def render_markdown(text: str) -> str:
    """Return Markdown as the experiments write it: headings that name tables, tables, lists and sentences.

    >>> render_markdown("- **one** & two")
    '<ul><li><b>one</b> &amp; two</li></ul>'
    """
    parts, title = [], ""
    for kind, block in groupby((line for line in text.splitlines() if line.strip()), key=_kind):
        lines = list(block)
        if kind == "heading":
            title = lines[-1].lstrip("# ")
        elif kind == "table":
            parts.append(_table(title, lines))
        elif kind == "list":
            parts.append(f"<ul>{''.join(f'<li>{_inline(line[2:])}</li>' for line in lines)}</ul>")
        else:
            parts += [f"<p>{_inline(line)}</p>" for line in lines]
    return "".join(parts)


def _kind(line: str) -> str:
    kinds = {"#": "heading", "|": "table", "-": "list"}
    return kinds.get(line[0], "words")


def _inline(text: str) -> str:
    return re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", escape(text))


def _table(title: str, lines: Sequence[str]) -> str:
    head, _, *rows = (list(_cells(line)) for line in lines)
    top = "".join(f'<th scope="col"{"" if place else " class=corner"}>{cell}</th>' for place, cell in enumerate(head))
    body = "".join(f'<tr><th scope="row">{r[0]}</th>{"".join(f"<td>{cell}</td>" for cell in r[1:])}</tr>' for r in rows)
    return render_table(title, f"<tr>{top}</tr>", body)


def _cells(line: str) -> Iterator[str]:
    return (_inline(cell.strip()) for cell in line.strip().strip("|").split("|"))
