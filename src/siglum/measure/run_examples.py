"""Example queries of runs: which are shown, their words and pictures, and what each run found for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

from siglum.data.corpus import read_queries
from siglum.data.folder import path_of, read_folder
from siglum.data.source import find_items
from siglum.data.world import TASKS, World
from siglum.measure.page import in_order, name_system, name_task
from siglum.measure.run_parts import paint, section, swatch
from siglum.measure.run_report import Answers, Asked, is_comparable
from siglum.measure.sheet import Thumbnail, make_thumbnail
from siglum.types import Item, Query, SiglumError

EXAMPLES, MOST = 6, 12
"""Examples that a run of few tasks gets, and the most of all."""
HITS, TOLD = 5, 3
"""Hits that are shown, and those with words, which need more room."""
SIDE = 176
"""Pixels a side of an embedded picture; about twice what the page shows, for fine screens."""
LONGEST = 240
"""Letters of a text that are shown."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A query or an item as the page shows it."""

    name: str
    text: str = ""
    wish: str = ""
    """The instruction of a query."""
    picture: Thumbnail | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """What one run or system found, best first, each with whether it is right."""

    name: str
    colour: str
    hits: tuple[tuple[Shown, bool], ...]
    rank: int | None
    """Rank of the first right item among those found."""


@dataclass(frozen=True, slots=True)
class RunExample:
    """One query with a right answer and what was found."""

    task: str
    query: Shown
    target: Shown
    lists: tuple[Listed, ...]


def find_examples(asked: Sequence[Asked], names: Sequence[str]) -> list[RunExample]:
    """Return example queries of the first run that was asked any, with the answers of all runs asked the same."""
    first = next((one for one in asked if one.tasks), None)
    if first is None:
        return []
    chosen = [(task, query, _lists(asked, names, first, task, query)) for task, query in choose_queries(asked)]
    chosen = [one for one in chosen if one[2]]
    wanted = {hit for _, _, lists in chosen for one in lists for hit, _ in _hits(one.hits)}
    wanted |= {min(first.tasks[task].qrels[query]) for task, query, _ in chosen}
    things: dict[str, Item | Query] = dict(_find_all(asked, sorted(wanted)))
    by_task: dict[str, list[str]] = {}
    for task, query, _ in chosen:
        by_task.setdefault(task, []).append(query)
    queries = {name: q for task, ids in by_task.items() for name, q in find_queries(first, task, ids).items()}
    shown = {name: show(thing) for name, thing in things.items()}
    examples = []
    for task, query, lists in chosen:
        target = min(first.tasks[task].qrels[query])
        filled = [replace(one, hits=tuple((shown.get(s.name, s), ok) for s, ok in one.hits)) for one in lists]
        asks = show(queries[query]) if query in queries else Shown(query, wish="Its words and pictures are not kept.")
        examples.append(RunExample(task, asks, shown.get(target, Shown(target)), tuple(filled)))
    return examples


def _hits(hits: Iterable[tuple[Shown, bool]]) -> Iterator[tuple[str, bool]]:
    return ((shown.name, right) for shown, right in hits)


def _find_all(asked: Sequence[Asked], ids: Sequence[str]) -> dict[str, Item]:
    """Return the items of these ids from the first source that knows them."""
    known: dict[str, Item] = {}
    for one in asked:
        if missing := [name for name in ids if name not in known]:
            with suppress(SiglumError, OSError):  # a file that has gone since; ids are shown instead
                known |= find_items(one.source, missing)
    return known


def choose_queries(asked: Sequence[Asked]) -> list[tuple[str, str]]:
    """Return tasks and query ids, in turn one that tells for a run and one that tells against it.

    Of one run: one it finds first, then one that dense search finds first and it does not. Of several: one that
    another run finds first and the first run does not, then the other way round. Where there is none, one that comes
    close. The search for each begins further on, so that examples do not crowd at the front.
    """
    first = next(one for one in asked if one.tasks)
    tasks = in_order(first.tasks, TASKS)
    many = min(MOST, max(EXAMPLES, len(tasks)))
    chosen: list[tuple[str, str]] = []
    for number in range(many):
        task = tasks[number % len(tasks)]
        queries, taken = list(first.tasks[task].qrels), {query for name, query in chosen if name == task}
        start = number * len(queries) // many
        left = [query for query in queries[start:] + queries[:start] if query not in taken]
        if left:
            right = _first_right(asked, first, task)
            chosen.append((task, min(left, key=lambda query: _dullness(right, query, for_it=number % 2 == 0))))
    return sorted(chosen, key=lambda pair: tasks.index(pair[0]))


def _first_right(asked: Sequence[Asked], first: Asked, task: str) -> list[set[str]]:
    """Return for every row that could be shown the queries whose first hit is right: dense, then each run."""
    answers = first.tasks[task]
    rows = [answers.found.get("dense", {})]
    rows += [one.tasks[task].found[one.own] for one in asked if one.own and is_comparable(first, one, task)]
    return [{q for q, hits in row.items() if hits and hits[0][0] in answers.qrels[q]} for row in rows]


def _dullness(right: Sequence[set[str]], query: str, for_it: bool) -> int:
    """Return 0 where a query shows what it should, more the less it does."""
    dense, *runs = (query in found for found in right)
    if len(runs) > 1:
        own, other = runs[0], any(runs[1:]) if for_it else all(runs[1:])
        return (own == for_it) + (other != for_it)
    own = any(runs)
    return (own != for_it) + (not for_it and not dense)


def _lists(asked: Sequence[Asked], names: Sequence[str], first: Asked, task: str, query: str) -> list[Listed]:
    """Return what stands beside a query: of one run dense search and its own, of several the own search of each."""
    if len(asked) == 1:
        rows = [system for system in dict.fromkeys(("dense", first.own)) if system in first.tasks[task].found]
        return [
            _listed(name_system(str(s)), f"var(--{'dense' if s == 'dense' else 'pro'})", first.tasks[task], s, query)
            for s in rows
        ]
    return [
        _listed(name, paint(place), one.tasks[task], one.own, query)
        for place, (one, name) in enumerate(zip(asked, names, strict=True))
        if one.own and is_comparable(first, one, task)
    ]


def _listed(name: str, colour: str, answers: Answers, system: str | None, query: str) -> Listed:
    hits = [item for item, _ in answers.found[str(system)].get(query, [])]
    right = answers.qrels[query]
    rank = next((place for place, item in enumerate(hits, 1) if item in right), None)
    return Listed(name, colour, tuple((Shown(item), item in right) for item in hits[:HITS]), rank)


def find_queries(asked: Asked, task: str, ids: Sequence[str]) -> dict[str, Query]:
    """Return queries with their words and pictures; one that its source does not keep is left out."""
    source, wanted = asked.source, set(ids)
    with suppress(SiglumError, OSError):  # a file that has gone since; ids are shown instead
        return {query.id: query for query in _known_queries(source, asked.split, task, ids) if query.id in wanted}
    return {}


def _known_queries(source: Mapping[str, Any], split: str, task: str, ids: Sequence[str]) -> Iterable[Query]:
    kind = source.get("kind")
    if kind == "world":
        return World(source["items"], source["seed"]).queries(split, task)
    if kind == "items" and split in source:
        return read_queries(Path(source[split]))
    if kind == "folder" and not source.get("supervised", True):
        return [Query(id=name, image=Path(source["path"]) / path_of(name)) for name in ids]
    if kind == "folder" and "identity" in source:
        found = read_folder(Path(source["path"]), source.get("captions", "auto"), source.get("seed", 0))
        return found.collection.queries.get(split, ()) if found.identity == source["identity"] else ()
    return ()


def show(thing: Item | Query) -> Shown:
    """Return a query or an item with its picture made small."""
    text = thing.text or ""
    short = text if len(text) <= LONGEST else f"{text[: LONGEST - 1].rstrip()}…"
    picture = None if thing.image is None else make_thumbnail(thing.image, SIDE)
    wish = (thing.instruction or "") if isinstance(thing, Query) else ""
    return Shown(thing.id, short, wish, picture)


def render_examples(examples: Sequence[RunExample], runs: Sequence[str]) -> str:
    """Return the section of examples of these runs; nothing where there are none."""
    named = [run for run in runs if any(one.name == run for example in examples for one in example.lists)]
    rule = (
        f"in turn one that another run finds first and {named[0]} does not, and one the other way round"
        if len(named) > 1
        else "in turn one whose first result is right, and one that dense search gets right and the run does not"
    )
    words = (
        f"The first results. ✓ and a solid border: right; ✗ and a dashed border: wrong. The queries were picked to tell"
        f" something: {rule}, where there are such."
    )
    cards = "".join(map(_example, examples))
    return section("Examples", f"<p>{escape(words)}</p>", cards) if cards else ""


def _example(example: RunExample) -> str:
    rows = "".join(map(_row, example.lists))
    return (
        f'<article class="card example"><h3>{escape(name_task(example.task))}</h3><div class="ask">'
        f'<div><p class="tag">Query</p><div class="thing">{_inside(example.query)}</div></div>'
        f'<div><p class="tag">A right answer</p><div class="thing">{_inside(example.target)}</div></div></div>'
        f"<div>{rows}</div></article>"
    )


def _row(listed: Listed) -> str:
    place = "not among the first ten" if listed.rank is None else f"right at rank {listed.rank}"
    tag = f'<p class="tag">{swatch(listed.name, listed.colour)} <span class="place">· {place}</span></p>'
    if not listed.hits:
        return f'{tag}<p class="note">no results</p>'
    drawn = all(hit.picture and not hit.text for hit, _ in listed.hits)
    cards = []
    for rank, (hit, right) in enumerate(listed.hits if drawn else listed.hits[:TOLD], 1):
        mood, sign = ("right", "✓") if right else ("wrong", "✗")
        mark = f'<b>{rank} <span aria-hidden="true">{sign}</span><span class="spoken">{mood}</span></b>'
        cards.append(f'<li><div class="thing {mood}">{_inside(hit, mark)}</div></li>')
    return f'{tag}<ol class="hits{" pictures" * drawn}">{"".join(cards)}</ol>'


def _inside(shown: Shown, mark: str = "") -> str:
    head = f'<p class="mark">{mark} <span class="id">{escape(shown.name)}</span></p>'
    image = ""
    if shown.picture is not None:
        size = f'width="{shown.picture.width}" height="{shown.picture.height}"'
        alt = escape(f"picture of {shown.name}")
        image = f'<img src="data:image/jpeg;base64,{shown.picture.jpeg}" {size} alt="{alt}">'
    words = f"<p>{escape(shown.text)}</p>" if shown.text else ""
    wish = f'<p class="id">{escape(shown.wish)}</p>' if shown.wish else ""
    return f'{head}<div class="both">{image}<div>{words}{wish}</div></div>'
