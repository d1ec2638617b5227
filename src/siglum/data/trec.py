"""TREC text files: runs (what a system found) and qrels (what is relevant).

A run line is `qid Q0 docid rank score tag`. TREC tools read the score and not the rank, hold it in single
precision and break ties by document id, so a run with tied scores would be measured in another order than it was
written. `write_run` therefore makes scores strictly decreasing: each is rounded to float32 and, where that is
not below the score written before it, replaced by the next smaller float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from siglum.files import atomic
from siglum.types import SiglumError

Run = dict[str, list[tuple[str, float]]]
"""Results of every query, best first: query id to (item id, score)."""

Qrels = dict[str, dict[str, int]]
"""Judgements of every query: query id to item id to grade; a grade above 0 is relevant."""


def read_run(path: Path) -> Run:
    """Read a run file; results are ordered by score, as TREC tools do, and equal scores by the rank column."""
    ranked: dict[str, dict[str, tuple[float, int]]] = {}
    for number, columns in _lines(path, (6,), "qid Q0 docid rank score tag"):
        query, _, item, rank, score, _ = columns
        results = ranked.setdefault(query, {})
        if item in results:
            raise SiglumError(f"{path}, line {number}: query {query!r} lists item {item!r} twice; drop one of them.")
        try:
            results[item] = -float(score), int(rank)
        except ValueError as error:
            raise SiglumError(
                f"{path}, line {number}: rank {rank!r} and score {score!r} must be a whole number and a number."
            ) from error
        if not np.isfinite(results[item][0]):
            raise SiglumError(f"{path}, line {number}: the score {score!r} is not a finite number.")
    return {
        query: [(item, -results[item][0]) for item in sorted(results, key=results.__getitem__)]
        for query, results in ranked.items()
    }


def write_run(path: Path, run: Run, tag: str = "siglum") -> None:
    """Write a run file with ranks from 1 and strictly decreasing scores; a query without results leaves no line."""
    with atomic(path) as file:
        for query, results in run.items():
            file.write(run_lines(query, results, tag).encode())


def run_lines(query: str, results: list[tuple[str, float]], tag: str = "siglum") -> str:
    """Return the lines of one query in a run, ranks from 1 and scores strictly decreasing."""
    _check_id("the tag", tag)
    _check_id("the query id", query)
    if len({item for item, _ in results}) < len(results):
        raise SiglumError(f"query {query!r} lists an item twice, so its run cannot be written.")
    lines = []
    for rank, ((item, _), score) in enumerate(zip(results, decreasing_scores([s for _, s in results]), strict=True), 1):
        _check_id("the item id", item)
        # str() of a float32 is its shortest form; plain formatting would show it as a float64.
        lines.append(f"{query} Q0 {item} {rank} {score!s} {tag}\n")
    return "".join(lines)


def decreasing_scores(scores: list[float]) -> list[np.float32]:
    """Return the float32 scores to write for results in rank order, strictly decreasing and as near as that allows.

    >>> [str(score) for score in decreasing_scores([2.0, 0.5, 0.5])]
    ['2.0', '0.5', '0.49999997']
    """
    written: list[np.float32] = []
    bottom = np.float32(-np.inf)
    for place, score in enumerate(scores):
        if place and score > scores[place - 1]:
            raise SiglumError(
                f"the result at rank {place + 1} has score {score}, above the {scores[place - 1]} of the rank before;"
                " order results by score before writing a run."
            )
        with np.errstate(over="ignore"):
            nearest = np.float32(score)
        if written:
            nearest = min(nearest, np.nextafter(written[-1], bottom))
        if not np.isfinite(nearest):
            raise SiglumError(
                f"the result at rank {place + 1} has score {score}, which no finite float32 can stand for."
            )
        written.append(nearest)
    return written


def read_qrels(path: Path) -> Qrels:
    """Read a qrels file with columns `qid 0 docid grade`, or with a fifth one (M-BEIR's task id), which is dropped."""
    qrels: Qrels = {}
    for number, columns in _lines(path, (4, 5), "qid 0 docid grade, and perhaps a task id"):
        query, _, item, grade = columns[:4]
        try:
            value = int(grade)
        except ValueError as error:
            raise SiglumError(f"{path}, line {number}: the grade {grade!r} must be a whole number.") from error
        if qrels.setdefault(query, {}).setdefault(item, value) != value:
            raise SiglumError(
                f"{path}, line {number}: item {item!r} of query {query!r} has grade {value} here"
                f" and {qrels[query][item]} before; keep one of them."
            )
    return qrels


def write_qrels(path: Path, qrels: Qrels) -> None:
    """Write a qrels file with four columns; a query without judgements leaves no line."""
    with atomic(path) as file:
        for query, grades in qrels.items():
            _check_id("the query id", query)
            for item, grade in grades.items():
                _check_id("the item id", item)
                file.write(f"{query} 0 {item} {grade}\n".encode())


def _lines(path: Path, widths: tuple[int, ...], layout: str) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and columns of every line that is not blank; all lines have the first one's width."""
    width = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                columns = line.decode().split()
                if not columns:
                    continue
                if len(columns) not in widths or (width and len(columns) != width):
                    wanted = width or " or ".join(map(str, widths))
                    raise SiglumError(
                        f"{path}, line {number}: found {len(columns)} columns instead of {wanted} ({layout});"
                        " the file may be truncated."
                    )
                width = len(columns)
                yield number, columns
    except OSError as error:
        raise SiglumError(f"{path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise SiglumError(f"{path}, line {number}: this is not UTF-8 text; a TREC file is plain text.") from error
    if not width:
        raise SiglumError(f"{path} is empty; it needs lines of {layout}.")


def _check_id(what: str, value: str) -> None:
    """Refuse what could not be read back as one column."""
    if value.split() != [value]:
        raise SiglumError(f"{what} {value!r} is empty or holds whitespace, which TREC files cannot carry; rename it.")
