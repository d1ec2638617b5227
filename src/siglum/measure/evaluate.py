"""Systems on tasks: rank every task's queries against its own pool and against the union of all pools.

Shapes: N items and M queries of a collection (rows of `Vectors`), D numbers a vector.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from siglum.data.trec import Qrels, Run
from siglum.log import progress
from siglum.measure.retrieval import MEASURES, evaluate
from siglum.search.beam import Ranking
from siglum.types import Task, Vectors

Results = dict[str, dict[str, dict[str, float]]]
"""task -> system -> measure -> value."""


class Ranker(Protocol):
    """One system: ranks items of a pool for queries, both given as rows."""

    def rank(self, query_rows: np.ndarray, pool_rows: np.ndarray, k: int) -> list[Ranking]:
        """Return rankings whose positions are item rows."""


def union_rows(tasks: Iterable[Task]) -> np.ndarray:
    """Return the rows of all pools together, in row order."""
    return np.unique(np.concatenate([task.pool_rows for task in tasks]))


def qrels_of_task(vectors: Vectors, task: Task) -> Qrels:
    """Return the task's relevance judgements by id."""
    items, queries = vectors.items.ids, vectors.queries.ids
    return {
        queries[int(row)]: {items[int(p)]: 1 for p in found}
        for row, found in zip(task.query_rows, task.positives, strict=True)
    }


def run_of_task(vectors: Vectors, task: Task, rankings: list[Ranking]) -> Run:
    """Return rankings as a run by id."""
    items, queries = vectors.items.ids, vectors.queries.ids
    return {
        queries[int(row)]: [(items[int(p)], float(s)) for p, s in zip(ranking.position, ranking.score, strict=True)]
        for row, ranking in zip(task.query_rows, rankings, strict=True)
    }


@dataclass(slots=True)
class Evaluation:
    """Results by task on its own pool, on the union pool, and the runs behind the former."""

    tasks: Results = field(default_factory=dict)
    union: Results = field(default_factory=dict)
    runs: dict[tuple[str, str], Run] = field(default_factory=dict)


def evaluate_systems(
    vectors: Vectors,
    tasks: list[Task],
    systems: dict[str, Ranker],
    *,
    k: int = 10,
    union: bool = True,
    union_queries: int | None = None,
    measures: tuple[str, ...] = MEASURES,
) -> Evaluation:
    """Evaluate systems on tasks through ir-measures; queries without results count as misses.

    Against the union pool at most `union_queries` queries of a task are asked, evenly spread over them.
    """
    result = Evaluation()
    everything = union_rows(tasks)
    work = [(task, name) for task in tasks for name in systems]
    for task, name in progress(work, "evaluate", unit="task"):
        qrels = qrels_of_task(vectors, task)
        run = run_of_task(vectors, task, systems[name].rank(task.query_rows, task.pool_rows, k))
        result.runs[task.name, name] = run
        result.tasks.setdefault(task.name, {})[name] = evaluate(run, qrels, measures)
        if union:
            some = task.spread(union_queries)
            wide = run_of_task(vectors, some, systems[name].rank(some.query_rows, everything, k))
            result.union.setdefault(task.name, {})[name] = evaluate(wide, qrels_of_task(vectors, some), measures)
    return result
