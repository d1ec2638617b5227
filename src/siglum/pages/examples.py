"""Example queries of runs: which are shown, their words and pictures, and what each run found for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from siglum.data.source import find_items, find_queries
from siglum.data.tasks import TASKS
from siglum.pages.contact_sheet import Thumbnail, make_thumbnail
from siglum.pages.document import Answers, RunResults, is_comparable
from siglum.pages.names import colour_run, in_order, name_system
from siglum.types import Item, Query, SiglumError

EXAMPLES, MOST = 6, 12
"""Examples that a run of few tasks gets, and the most of all."""
HITS, TOLD = 5, 3
"""Hits that are shown, and those with words, which need more room."""
SIDE = 176
"""Pixels a side of an embedded picture; about twice what the page shows, for fine screens."""
LONGEST = 240
"""Letters of a text that are shown."""
NOT_KEPT = "Its words and pictures are not kept."


@dataclass(frozen=True, slots=True)
class Shown:
    """A query or an item as the page shows it."""

    name: str
    text: str = ""
    instruction: str = ""
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
    depth: int = 10
    """How many were looked at for it."""

    @property
    def drawn(self) -> bool:
        """Whether they are pictures without words."""
        return all(hit.picture and not hit.text for hit, _ in self.hits)

    @property
    def shown(self) -> tuple[tuple[Shown, bool], ...]:
        """Those that have room."""
        return self.hits if self.drawn else self.hits[:TOLD]


@dataclass(frozen=True, slots=True)
class RunExample:
    """One query with a right answer and what was found."""

    task: str
    query: Shown
    target: Shown
    lists: tuple[Listed, ...]


def find_examples(
    results: Sequence[RunResults], names: Sequence[str], *, for_the_first: bool = False
) -> list[RunExample]:
    """Return example queries of the first run that was asked any, with the answers of all runs asked the same.

    They speak for and against it in turn, or all for it, beside dense search.
    """
    first = next((one for one in results if one.tasks), None)
    if first is None:
        return []
    pairs = choose_favourable(results) if for_the_first else choose_queries(results)
    chosen = [(task, query, _lists(results, names, task, query, for_the_first)) for task, query in pairs]
    chosen = [one for one in chosen if one[2]]
    wanted = {hit for _, _, lists in chosen for one in lists for hit, _ in _hits(one.hits)}
    wanted |= {min(first.tasks[task].qrels[query]) for task, query, _ in chosen}
    things: dict[str, Item | Query] = dict(_find_all(results, sorted(wanted)))
    by_task: dict[str, list[str]] = {}
    for task, query, _ in chosen:
        by_task.setdefault(task, []).append(query)
    queries = {
        name: q
        for task, ids in by_task.items()
        for name, q in find_queries(first.source, first.split, task, ids).items()
    }
    shown = {name: show(thing) for name, thing in things.items()}
    examples = []
    for task, query, lists in chosen:
        target = min(first.tasks[task].qrels[query])
        filled = [replace(one, hits=tuple((shown.get(s.name, s), ok) for s, ok in one.hits)) for one in lists]
        asks = show(queries[query]) if query in queries else Shown(query, instruction=NOT_KEPT)
        examples.append(RunExample(task, asks, shown.get(target, Shown(target)), tuple(filled)))
    return examples


def _hits(hits: Iterable[tuple[Shown, bool]]) -> Iterator[tuple[str, bool]]:
    return ((shown.name, right) for shown, right in hits)


def _find_all(results: Sequence[RunResults], ids: Sequence[str]) -> dict[str, Item]:
    """Return the items of these ids from the first source that knows them."""
    known: dict[str, Item] = {}
    for one in results:
        if missing := [name for name in ids if name not in known]:
            with suppress(SiglumError, OSError):  # a file that has gone since; ids are shown instead
                known |= find_items(one.source, missing)
    return known


def choose_queries(results: Sequence[RunResults]) -> list[tuple[str, str]]:
    """Return tasks and query ids, in turn one that tells for a run and one that tells against it.

    Of one run: one it finds first, then one that dense search finds first and it does not. Of several: one that
    another run finds first and the first run does not, then the other way round. Where there is none, one that comes
    close. The search for each begins further on, so that examples do not crowd at the front.
    """
    first = next(one for one in results if one.tasks)
    tasks = in_order(first.tasks, TASKS)
    many = min(MOST, max(EXAMPLES, len(tasks)))
    chosen: list[tuple[str, str]] = []
    for number in range(many):
        task = tasks[number % len(tasks)]
        queries, taken = list(first.tasks[task].qrels), {query for name, query in chosen if name == task}
        start = number * len(queries) // many
        left = [query for query in queries[start:] + queries[:start] if query not in taken]
        if left:
            right = _first_right(results, first, task)
            chosen.append((task, min(left, key=lambda query: _example_cost(right, query, for_it=number % 2 == 0))))
    return sorted(chosen, key=lambda pair: tasks.index(pair[0]))


def choose_favourable(results: Sequence[RunResults]) -> list[tuple[str, str]]:
    """Return one query a task that the first run and dense search find first, and no other run does.

    Where there is no such query, one that comes close.
    """
    first = next(one for one in results if one.tasks)
    chosen = []
    for task in in_order(first.tasks, TASKS):
        dense, own, *others = _first_right(results, first, task)
        costs = {
            query: (query not in dense) + (query not in own) + sum(query in right for right in others)
            for query in first.tasks[task].qrels
        }
        chosen.append((task, min(costs, key=costs.__getitem__)))
    return chosen


def _first_right(results: Sequence[RunResults], first: RunResults, task: str) -> list[set[str]]:
    """Return for every row that could be shown the queries whose first hit is right: dense, then each run."""
    answers = first.tasks[task]
    rows = [answers.found.get("dense", {})]
    rows += [one.tasks[task].found[one.own] for one in results if one.own and is_comparable(first, one, task)]
    return [{q for q, hits in row.items() if hits and hits[0][0] in answers.qrels[q]} for row in rows]


def _example_cost(right: Sequence[set[str]], query: str, for_it: bool) -> int:
    """Return 0 where a query shows what it should, more the less it does."""
    dense, *runs = (query in found for found in right)
    if len(runs) > 1:
        own, other = runs[0], any(runs[1:]) if for_it else all(runs[1:])
        return (own == for_it) + (other != for_it)
    own = any(runs)
    return (own != for_it) + (not for_it and not dense)


def _lists(results: Sequence[RunResults], names: Sequence[str], task: str, query: str, dense: bool) -> list[Listed]:
    """Return what stands beside a query: the own search of each run asked it, after dense search if asked or alone."""
    first, alone = next(one for one in results if one.tasks), len(results) == 1
    lists = []
    if (dense or alone) and "dense" in first.tasks[task].found:
        lists.append(_listed("dense", "var(--dense)", first.tasks[task], "dense", query))
    for place, (one, name) in enumerate(zip(results, names, strict=True)):
        if one.own and is_comparable(first, one, task):
            label = name_system(one.own) if alone else name
            lists.append(_listed(label, colour_run(place), one.tasks[task], one.own, query))
    return lists


def _listed(name: str, colour: str, answers: Answers, system: str, query: str) -> Listed:
    hits = [item for item, _ in answers.found[system].get(query, [])]
    right = answers.qrels[query]
    rank = next((place for place, item in enumerate(hits, 1) if item in right), None)
    return Listed(name, colour, tuple((Shown(item), item in right) for item in hits[:HITS]), rank)


def show(thing: Item | Query) -> Shown:
    """Return a query or an item with its picture made small."""
    text = thing.text or ""
    short = text if len(text) <= LONGEST else f"{text[: LONGEST - 1].rstrip()}…"
    picture = None if thing.image is None else make_thumbnail(thing.image, SIDE)
    instruction = (thing.instruction or "") if isinstance(thing, Query) else ""
    return Shown(thing.id, short, instruction, picture)
