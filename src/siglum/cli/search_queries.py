"""`siglum search --queries`: many questions from a file, their hits as JSON lines or a TREC run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

from siglum.console.commands import say
from siglum.log import progress
from siglum.types import SiglumError

if TYPE_CHECKING:
    from siglum.cli.search import Command
    from siglum.search.retriever import Retriever
    from siglum.types import Hit

QueryHits = Iterator[tuple[str, "list[Hit]"]]
"""The hits of every query, by its id."""


def search_queries(
    command: Command, retriever: Retriever, source: dict[str, Any], record: Callable[[Hit], dict[str, Any]]
) -> dict[str, Any]:
    """Search for all queries of a file and write what is found, batch by batch and in their order."""
    if command.batch < 1:
        raise SiglumError(f"--batch is {command.batch}, but must be at least 1.")
    total, found = _found(command, retriever, source)
    results: list[dict[str, Any]] = []
    short = written = 0
    with _lines(command) as write:
        for query, hits in progress(found, "search", total=total, unit="query"):
            written += 1
            short += len(hits) < command.k
            line = {"query": query, "hits": [record(hit) for hit in hits]}
            if command.json and command.out is None:
                results.append(line)
            else:
                write(_text(command, query, hits, line))
    if short:
        say(f"{short:,} of {written:,} queries have fewer than {command.k} hits; a wider --beam reaches more")
    if command.out is not None:
        say(f"{written:,} queries searched; hits: {command.out}")
    told = {"results": results} if command.out is None else {"out": str(command.out), "format": command.format}
    return {"queries": written, **told}


def _found(command: Command, retriever: Retriever, source: dict[str, Any]) -> tuple[int, QueryHits]:
    """Return how many queries there are and, batch by batch, what is found for each."""
    options = {"k": command.k, **command.filters(), **command.options()}
    if command.query_features is not None:
        import numpy as np

        from siglum.data.precomputed import read_features

        given = read_features(command.query_features)
        total = len(given)
        parts = (given.rows(np.arange(total)[span]) for span in _spans(total, command.batch))
        found = (zip(part.ids, retriever.search_features(part, **options), strict=True) for part in parts)
        return total, chain.from_iterable(found)
    from siglum.data.corpus import read_queries

    assert command.queries is not None
    if retriever.encoder is None:
        raise SiglumError(f"{command.folder} has no encoder: give features of the queries (--query-features FILE).")
    asked = read_queries(command.queries)
    retriever.check_words(asked)
    ids = [query.id for query in asked]
    spans = _spans(len(asked), command.batch)
    how = {"exclude_self": command.exclude_self, **options}
    found = (zip(ids[span], retriever.search(asked[span], **how), strict=True) for span in spans)
    return len(asked), chain.from_iterable(found)


def _spans(total: int, size: int) -> Iterator[slice]:
    """Give places in batches of a size."""
    return (slice(start, start + size) for start in range(0, total, size))


@contextmanager
def _lines(command: Command) -> Iterator[Callable[[str], object]]:
    """Open what lines are written to: the file, which appears when it is whole, or stdout."""
    if command.out is None:
        yield sys.stdout.write
    else:
        from siglum.files import atomic

        with atomic(command.out) as file:
            yield lambda text: file.write(text.encode())


def _text(command: Command, query: str, hits: list[Hit], line: dict[str, Any]) -> str:
    """Return the lines of one query."""
    if command.format == "jsonl":
        return json.dumps(line, ensure_ascii=False) + "\n"
    from siglum.data.trec import run_lines

    return run_lines(query, [(hit.item_id, hit.score) for hit in hits])
