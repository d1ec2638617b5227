"""Systems on tasks: rank every task's queries against its own pool and against the union of all pools.

Shapes: N items and M queries of a collection (rows of `Vectors`), D numbers a vector.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from siglum.config import SearchConfig
from siglum.data.trec import Qrels, Run
from siglum.index import Index
from siglum.log import progress
from siglum.measure.retrieval import MEASURES, evaluate
from siglum.search.beam import Ranking, search_items
from siglum.search.cuda import Graphs, GraphSearch
from siglum.search.fast import Engines, FastSearch, described
from siglum.search.flat import flat_search
from siglum.search.lookahead import LookAhead
from siglum.search.scorers import Scorer
from siglum.types import Task, Vectors

Results = dict[str, dict[str, dict[str, float]]]
"""task -> system -> measure -> value."""


class Ranker(Protocol):
    """One system: ranks items of a pool for queries, both given as rows."""

    def rank(self, query_rows: np.ndarray, pool_rows: np.ndarray, k: int) -> list[Ranking]:
        """Return rankings whose positions are item rows."""
        ...


@dataclass(slots=True)
class FlatRanker:
    """Exhaustive search: dense, or scan over reconstructions with squared distance."""

    query_MD: Tensor
    item_ND: Tensor
    squared_distance: bool = False

    def rank(self, query_rows: np.ndarray, pool_rows: np.ndarray, k: int) -> list[Ranking]:
        """Search the pool's vectors one by one."""
        found = flat_search(
            self.query_MD[torch.as_tensor(query_rows)],
            self.item_ND[torch.as_tensor(pool_rows)],
            k,
            squared_distance=self.squared_distance,
        )
        return [Ranking(pool_rows[r.position], r.row, r.score) for r in found]


@dataclass(slots=True)
class BeamRanker:
    """Beam search over an index whose pool positions are the item rows in `index_rows`."""

    scorer: Scorer
    index: Index
    index_rows: np.ndarray
    query_MD: Tensor
    beam: int
    batch_size: int = 64
    ahead: LookAhead | None = None
    config: SearchConfig = field(default_factory=SearchConfig)
    """Says which engine answers, in which mode and precision; what is scored is the scorer's affair."""
    _engines: Engines = field(default_factory=Engines)
    _graphs: Graphs = field(default_factory=Graphs)

    def rank(self, query_rows: np.ndarray, pool_rows: np.ndarray, k: int) -> list[Ranking]:
        """Search the index, restricted to the pool."""
        allowed = None
        if len(pool_rows) != len(self.index_rows) or set(pool_rows.tolist()) != set(self.index_rows.tolist()):
            allowed = self.index.allow(np.isin(self.index_rows, pool_rows))
        queries = self.query_MD[torch.as_tensor(query_rows)]
        fast = self._fast()
        if fast is not None:
            found = [one for part in queries.split(self.batch_size) for one in fast.search(part, k=k, allowed=allowed)]
        else:
            found = search_items(
                self.scorer,
                self.index,
                queries,
                beam=self.beam,
                k=k,
                batch_size=self.batch_size,
                allowed=allowed,
                ahead=self.ahead,
            )
        return [Ranking(self.index_rows[r.position], r.row, r.score) for r in found]

    def _fast(self) -> FastSearch | GraphSearch | None:
        """Return an engine that gives what the scorer would give, where there is a faster one."""
        config = replace(self.config, beam=self.beam, batch_size=self.batch_size)
        parts = None if self.ahead is not None else described(self.scorer, config)
        if parts is None:
            return None  # a scorer the fast engine does not know
        config, decoder, codebooks, first = parts
        if self.query_MD.is_cuda:
            device = str(self.query_MD.device)
            graph = self._graphs.choose(config, decoder, codebooks, self.index, first, device, graphs=False)
            if graph is not None:
                return graph
        return self._engines.choose(config, decoder, codebooks, self.index, first)


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
