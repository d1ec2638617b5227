"""Finished experiments on the page about runs: their tables and figures, read from the folders they were written to."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from siglum.files import read_json, read_record
from siglum.pages.render import inline
from siglum.types import SiglumError

RESULTS, TABLES = "results.json", "table.md"


@dataclass(frozen=True, slots=True)
class Block:
    """A table, a list or sentences."""

    kind: str
    title: str
    lines: Sequence[Any]
    """Of a table, rows of cells."""


@dataclass(frozen=True, slots=True)
class FinishedExperiment:
    """One experiment as its folder holds it."""

    name: str
    results: dict[str, Any]
    blocks: Sequence[Block]
    """Its tables and what is said of them."""
    figures: Sequence[tuple[str, str]]
    """What each shows, and its SVG in base64."""


def read_experiments(folder: Path) -> list[FinishedExperiment]:
    """Read every finished experiment DIR/NAME, by name."""
    places = sorted(path.parent for path in folder.glob(f"*/{RESULTS}") if (path.parent / TABLES).exists())
    if not places:
        raise SiglumError(f"{folder} holds no finished experiment, NAME/{RESULTS} with {TABLES}; run one first.")
    found = []
    for place in places:
        drawn = [(_title(svg), b64encode(svg.read_bytes()).decode()) for svg in sorted(place.glob("*.svg"))]
        blocks = read_markdown((place / TABLES).read_text())
        found.append(FinishedExperiment(place.name, read_record(place / RESULTS), blocks, drawn))
    return found


def _title(svg: Path) -> str:
    numbers = svg.with_suffix(".json")
    return str(read_json(numbers).get("title", svg.stem)) if numbers.exists() else svg.stem


def read_markdown(text: str) -> list[Block]:
    """Return the blocks of Markdown as the experiments write it: headings that name tables, tables, lists, sentences.

    >>> read_markdown("- **one** & two")
    [Block(kind='list', title='', lines=[Markup('<b>one</b> &amp; two')])]
    """
    blocks, title = [], ""
    kinds = {"#": "heading", "|": "table", "-": "list"}
    for kind, block in groupby(
        (line for line in text.splitlines() if line.strip()), lambda line: kinds.get(line[0], "words")
    ):
        lines = list(block)
        if kind == "heading":
            title = lines[-1].lstrip("# ")
        elif kind == "table":
            rows = [[inline(cell.strip()) for cell in line.strip().strip("|").split("|")] for line in lines]
            blocks.append(Block(kind, title, [rows[0], *rows[2:]]))
        else:
            blocks.append(Block(kind, "", [inline(line.removeprefix("- ")) for line in lines]))
    return blocks
