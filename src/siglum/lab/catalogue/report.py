"""A page of example queries and what each system finds, photographs side by side; it is for the shop's eyes alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from siglum.data.catalogue import read_catalogue
from siglum.data.tasks import TASKS
from siglum.files import write_text
from siglum.lab.catalogue.systems import DEPTH
from siglum.lab.units import Part
from siglum.pages.examples import HITS, Listed, RunExample, Shown, show
from siglum.pages.names import colour_system, name_system
from siglum.pages.render import render
from siglum.types import Query

SYSTEMS = ("dense", "genius", "pro", "best")
RULE = (
    "of every kind one that PRO finds first and GENIUS does not, one the other way round, and one that both find first"
    " or neither does"
)
FoundIds = dict[str, list[str]]
"""System -> the ids of what it found, best first."""


def write_report(path: Path, folder: Path, parts: Sequence[Part]) -> None:
    """Write the page from what the parts of the first seed kept, with pictures from the folder."""
    catalogue = read_catalogue(folder)
    things = {item.id: item for item in catalogue.collection.items}
    queries = {query.id: query for query in catalogue.collection.queries["test"]}
    examples = []
    for task in TASKS:
        found = _found(parts, task)
        for name in choose(queries, found):
            query = queries[name]
            right = show(things[query.positives[0]])
            lists = tuple(
                _listed(system, ids, query, {item: show(things[item]) for item in ids[:HITS]})
                for system, ids in found[name].items()
            )
            examples.append(RunExample(task, show(query), right, lists))
    document = {"examples_show": RULE}
    write_text(path, render("catalogue.html.j2", title=folder.resolve().name, examples=examples, document=document))


def _found(parts: Sequence[Part], task: str) -> dict[str, FoundIds]:
    """Return what each system found for every query that parts keep, in the order of the systems."""
    found: dict[str, FoundIds] = {}
    for system in SYSTEMS:
        for part in parts:
            if part["seed"] == 0 and system in part.get("examples", {}):
                for query, ids in part["examples"][system][task].items():
                    found.setdefault(query, {})[system] = ids
    return found


def choose(queries: Mapping[str, Query], found: Mapping[str, FoundIds]) -> list[str]:
    """Return of one task the first query that speaks for PRO, the first for GENIUS, and the first for neither.

    Where one of them was not asked, none speaks for either.
    """

    def lead(name: str) -> int:
        ids, right = found[name], queries[name].positives
        own, other = (bool(ids.get(system)) and ids[system][0] in right for system in ("pro", "genius"))
        return int(own) - int(other) if {"pro", "genius"} <= set(ids) else 0

    first = {lead(name): name for name in reversed(list(found))}
    return [first[sign] for sign in (1, -1, 0) if sign in first]


def _listed(system: str, ids: Sequence[str], query: Query, shown: Mapping[str, Shown]) -> Listed:
    rank = next((place for place, item in enumerate(ids, 1) if item in query.positives), None)
    hits = tuple((shown[item], item in query.positives) for item in ids[:HITS])
    return Listed(name_system(system), colour_system(system, SYSTEMS), hits, rank, len(ids) or DEPTH)
