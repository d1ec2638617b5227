"""A page of example queries and what each system finds, photographs side by side; it is for the shop's eyes alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from siglum.data.catalogue import read_catalogue
from siglum.data.tasks import TASKS
from siglum.files import write_text
from siglum.lab.units import Part
from siglum.pages.examples import HITS, Listed, RunExample, Shown, show
from siglum.pages.names import colour_system, name_system
from siglum.pages.render import render
from siglum.types import Query

SYSTEMS = ("dense", "genius", "pro", "best")
PER_TASK = 3
RULE = "first those that PRO gets right and GENIUS does not, then the other way round"
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
        ranked = sorted(found, key=lambda name: _interest(queries[name], found[name]))
        for name in ranked[:PER_TASK]:
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


def _interest(query: Query, found: FoundIds) -> tuple[int, int]:
    """Return what sorts queries that tell PRO from GENIUS to the front."""
    right = {system: bool(ids) and ids[0] in query.positives for system, ids in found.items()}
    own, other = right.get("pro", False), right.get("genius", False)
    return (0 if own and not other else 1 if other and not own else 2), -sum(right.values())


def _listed(system: str, ids: Sequence[str], query: Query, shown: Mapping[str, Shown]) -> Listed:
    rank = next((place for place, item in enumerate(ids, 1) if item in query.positives), None)
    hits = tuple((shown[item], item in query.positives) for item in ids[:HITS])
    return Listed(name_system(system), colour_system(system, SYSTEMS), hits, rank)
