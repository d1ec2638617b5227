"""`siglum explain`: where and why the beam keeps or loses a target."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siglum.cli.search_flags import SearchFlags
from siglum.console.commands import DeviceVerb, OneRun, say
from siglum.device import check_device
from siglum.types import Query, SiglumError, shown

if TYPE_CHECKING:
    import numpy as np
    from rich.table import Table
    from rich.tree import Tree

    from siglum.measure.explain import Explanation, Prefix
    from siglum.search.query import EncodedQuery, Questions
    from siglum.search.retriever import Retriever
    from siglum.types import Task, Vectors

BEST = 2
"""Best prefixes of a level in the terminal's tree, beside the target."""
WIDE = 400
"""Columns that no table or tree reaches."""


@dataclass(kw_only=True)
class Command(SearchFlags, OneRun, DeviceVerb):
    """Follow one target through the beam of one query, level by level: its rank, its score and what beats it.

    Examples:
      siglum explain runs/demo --query "a big red star left of a blue ring" --target s0000012-i
      siglum explain runs/demo --query-id t2i-s0000004-0 --own-pool
      siglum explain runs/photos --query "two dogs in the snow" --target dogs/7.jpg --out explain.html
    """

    query: str = ""
    """What to look for, in words."""
    image: Path | None = None
    """A picture to look for."""
    query_id: str = ""
    """A test or validation query of the run instead; its first right item is the target unless one is named."""
    target: str = ""
    """The item to follow: its id, or its file where the items are files of a folder."""
    instruction: str = ""
    """What kind of thing is wanted, such as "Find a picture that shows this."."""
    own_pool: bool = False
    """Search only the pool of the query's task, as `siglum eval` does; goes with --query-id."""
    out: Path | None = None
    """Write the tree as a page (HTML) to this file; folders above it that are missing are made."""


def run(command: Command) -> dict[str, Any]:
    """Explain, print the verdict, the levels and the tree, and write the page if asked."""
    from siglum.data.source import read_source
    from siglum.measure.explain import explain, record_of
    from siglum.search.retriever import Retriever

    _check(command)
    source = read_source(command.folder)
    retriever = Retriever.load(command.folder, device=check_device(command.device))
    if retriever.decoder is None:
        say(f"{command.folder} has no trained decoder: searching by geometry alone")
    request = _stored(command, source, retriever) if command.query_id else _typed(command, source, retriever)
    within = request.pool if command.within is None else command.ids()
    explanation = explain(retriever, request.asked, request.target, within=within, **command.options())
    if not command.json:
        _print(explanation)
    if command.out is not None:
        _write_page(command.out, explanation, request.query, source, title=str(command.folder))
    return {"query_id": command.query_id or None, "query": request.query.text, **record_of(explanation)}


@dataclass(frozen=True, slots=True)
class _Request:
    """A query ready to be searched with, and the item it is about."""

    query: Query
    asked: Query | Questions
    """The same, or its vector (1, D) where the run keeps that alone, or a history."""
    target: str
    pool: np.ndarray | None = None
    """Which items of the index are searched; None means all."""


def _check(command: Command) -> None:
    """Refuse what cannot be asked before anything is loaded."""
    for name in ("query", "query_id", "target", "instruction"):
        value = getattr(command, name)
        if value and not value.strip():
            raise SiglumError(f"--{name.replace('_', '-')} is blank ({shown(value)}); say something, or leave it out.")
    typed = bool(command.query or command.image or command.instruction)
    if bool(command.query_id) == typed:
        raise SiglumError("explain needs one query: --query TEXT, --image FILE or both, or --query-id ID.")
    if typed and not (command.query or command.image):
        raise SiglumError("an instruction alone is no query; give --query TEXT, --image FILE or both.")
    if typed and not command.target:
        raise SiglumError("explain needs --target ITEM_ID, the item to follow; only --query-id knows one by itself.")
    if command.own_pool and not command.query_id:
        raise SiglumError("--own-pool goes with --query-id: a query of one's own belongs to no task.")
    if command.own_pool and command.within:
        raise SiglumError("--own-pool and --within both say what to search; give one of them.")
    if command.within is not None and not command.within.exists():
        raise SiglumError(f"{command.within} does not exist.")


def _typed(command: Command, source: dict[str, Any], retriever: Retriever) -> _Request:
    """Encode the query of the command line."""
    if retriever.encoder is None:
        raise SiglumError(f"{command.folder} was made from plain vectors and has no encoder; give --query-id ID.")
    text, instruction = command.query or None, command.instruction or None
    query = Query(id="", text=text, image=command.image, instruction=instruction)
    return _Request(query, query, item_id_of(command.target, source, retriever))


def _stored(command: Command, source: dict[str, Any], retriever: Retriever) -> _Request:
    """Take a query of the run's own tasks, and its first right item that is in the index."""
    import numpy as np

    from siglum.data.vectors import load_vectors
    from siglum.run.folder import RunFolder

    vectors, _ = load_vectors(RunFolder(command.folder).vectors)
    task, place = _find(vectors, command.query_id)
    right = [vectors.items.ids[int(row)] for row in task.positives[place]]
    target = item_id_of(command.target, source, retriever) if command.target else ""
    target = target or next((name for name in right if name in retriever.index.ids), right[0])
    pool = None
    if command.own_pool:
        names = {vectors.items.ids[int(row)] for row in task.pool_rows}
        pool = np.array([name in names for name in retriever.index.ids])
    row = task.query_rows[place : place + 1]
    asked: Questions
    if vectors.histories is None:
        asked = retriever.vectors(vectors.queries.rows(row), "queries")
    else:
        asked = _history(command, vectors, row)
    return _Request(_recall(command.query_id, task, source), asked, target, pool)


def _history(command: Command, vectors: Vectors, row: np.ndarray) -> EncodedQuery:
    """Return a history of the run as its recommender is asked it."""
    from siglum.recommend.recommender import Recommender

    assert vectors.histories is not None
    own = vectors.histories.row_MH[row][0]
    vector = command.options().get("vector")
    names, user = [vectors.items.ids[int(one)] for one in own[own >= 0]], command.query_id.rpartition(":")[0]
    recommender = Recommender.load(command.folder, device=check_device(command.device))
    return recommender.ask(names, user=user, vector=vector)


def _find(vectors: Vectors, query_id: str) -> tuple[Task, int]:
    """Return the task of a query and its place there."""
    tasks = sorted(vectors.tasks, key=lambda task: task.split != "test")
    for task in tasks:
        for place, row in enumerate(task.query_rows):
            if vectors.queries.ids[int(row)] == query_id:
                return task, place
    some = [vectors.queries.ids[int(task.query_rows[0])] for task in tasks if len(task.query_rows)][:3]
    known = f"it has such as {', '.join(some)}" if some else "it has none at all"
    raise SiglumError(f"the run has no test or validation query {query_id!r}; {known}.")


def _recall(query_id: str, task: Task, source: dict[str, Any]) -> Query:
    """Return a query with its words and picture where its source keeps them; else only the id is known."""
    from siglum.data.source import find_queries

    return find_queries(source, task.split, task.name, [query_id]).get(query_id, Query(id=query_id))


def item_id_of(name: str, source: dict[str, Any], retriever: Retriever) -> str:
    """Return the id of an item that may be named by its file."""
    import os

    from siglum.data.folder import id_of

    if source.get("kind") != "folder" or name in retriever.index.ids:
        return name
    return id_of(os.path.relpath(name, source["path"]) if Path(name).exists() else name)


def _print(explanation: Explanation) -> None:
    """Print the verdict, a table of the levels and the tree; what is too wide for a terminal is better not wrapped."""
    from rich.console import Console

    from siglum.measure.explain import tell

    console = Console(width=WIDE, highlight=False)
    console.print("\n".join(tell(explanation)), markup=False, soft_wrap=True)
    console.print()
    console.print(_table(explanation))
    console.print()
    console.print(_tree(explanation))


def _table(explanation: Explanation) -> Table:
    """Return the target's numbers at every level; behind each part of the score, what the last one kept has less."""
    from rich.table import Table

    from siglum.measure.explain import fold_tail, name_group, name_part, spell

    table = Table(box=None, pad_edge=False, header_style="bold")
    parts = list(explanation.levels[0].target.parts)
    for name in ("level", "code", "rank", "of", "in pool", "kept", "score", "last kept", *map(name_part, parts)):
        table.add_column(name, justify="right")
    for levels in fold_tail(explanation):
        level = levels[-1]
        own, gaps = level.target, level.gap_parts
        among = max(level.candidates, own.rank)  # a target that is out already is counted as if it stood there
        codes = spell(own.codes[-len(levels) :])
        counts = [name_group(levels), codes, *map(str, (own.rank, among, level.prefixes))]
        scores = [f"{own.score:.2f} ({level.gap:+.2f})", f"{level.last.score:.2f}"]
        scores += [f"{own.parts[name]:.2f} ({gaps[name]:+.2f})" for name in parts]
        style = "" if own.kept else "bold red" if level is explanation.fall else "dim"
        table.add_row(*counts, str(level.kept), *scores, style=style)
    return table


def _tree(explanation: Explanation) -> Tree:
    """Return the target's path down to its end, with the best prefixes of every level beside it.

    Codes that lead one way only are one line: those of a prefix with one item, and those that nothing is told of.
    """
    from rich.text import Text
    from rich.tree import Tree

    from siglum.measure.explain import spell

    told: dict[tuple[int, ...], Prefix] = {}
    for level in explanation.levels:
        told |= {prefix.codes: prefix for prefix in (*level.best[:BEST], level.target)}
        if level is explanation.fall:
            break
    below: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for codes in told:
        for end in range(len(codes)):
            below.setdefault(codes[:end], set()).add(codes[: end + 1])

    def grow(tree: Tree, codes: tuple[int, ...], above: int) -> None:
        while len(below.get(codes, ())) == 1 and (codes not in told or told[codes].items == 1):
            (codes,) = below[codes]
        words, style = spell(codes[above:]), "dim"
        if codes in told:
            prefix, mine = told[codes], codes == explanation.codes[: len(codes)]
            words += f"  rank {prefix.rank}  {prefix.score:.2f}  {', '.join(prefix.examples)}"
            words += ("  ← target" if prefix.kept else "  ✗ falls here") if mine else ""
            style = "" if not mine else "bold" if prefix.kept else "bold red"
        node = tree.add(Text(words, style=style))
        for child in sorted(below.get(codes, ())):
            grow(node, child, len(codes))

    root = Tree("query", guide_style="dim")
    for codes in sorted(below[()]):
        grow(root, codes, 0)
    return root


def _write_page(path: Path, explanation: Explanation, query: Query, source: dict[str, Any], title: str) -> None:
    """Write the page, with the texts and pictures of the items it tells of where they can be found."""
    from siglum.data.source import find_items
    from siglum.files import write_text
    from siglum.pages.tree import render_explanation

    told = [prefix for level in explanation.levels for prefix in (*level.best, level.last, level.target)]
    names = {name for prefix in told for name in prefix.examples} | {hit.item_id for hit in explanation.hits}
    write_text(path, render_explanation(explanation, query, find_items(source, sorted(names)), title))
    say(f"page: {path}")
