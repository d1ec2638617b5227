"""Targets followed through real beams, query by query: what the experiments on survival count.

Shapes: Q queries, T tokens (the modality token, where there is one, is the first).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from siglum.config import SearchConfig
from siglum.lab.experiments.base import Unit
from siglum.lab.experiments.setting import Setting
from siglum.lab.experiments.trained import Trained
from siglum.log import progress
from siglum.measure.rankers import BeamRanker
from siglum.search.beam import Beams, beam_search
from siglum.types import Task

QUERIES = 5000
"""Test queries followed, spread evenly over the tasks; the paper's number."""
LABELS = {"genius": "GENIUS", "pro": "PRO"}
"""How recipes are called in tables and figures; others keep their names."""


@dataclass(slots=True)
class Followed:
    """One task's targets in one beam."""

    alive_QT: np.ndarray
    """Whether the target's prefix was still in the beam after each token."""
    leaves_T: np.ndarray
    """Share of the pool's items under the beam, mean over queries: what a beam of random prefixes would keep."""


def compared_units(setting: Setting, **options: object) -> list[Unit]:
    """Return GENIUS and the recipe under study, at every seed."""
    names = dict.fromkeys(("genius", setting.recipe))
    return [
        Unit(name, seed, setting.config(name, seed), dict(options)) for name in names for seed in range(setting.seeds)
    ]


def label_of(name: str) -> str:
    """Return a recipe's name for people.

    >>> label_of("pro"), label_of("best")
    ('PRO', 'best')
    """
    return LABELS.get(name, name)


def followed_tasks(trained: Trained, number: int = QUERIES) -> list[Task]:
    """Return the test tasks with at most `number` queries in all."""
    tasks = [task for task in trained.vectors.of_split("test") if len(task.query_rows)]
    return [task.spread(max(1, number // len(tasks))) for task in tasks]


def targets_of(task: Task) -> np.ndarray:
    """Return the item row of every query's first positive."""
    return np.array([int(rows[0]) for rows in task.positives], np.int64)


def searches(trained: Trained, beam: int) -> dict[str, SearchConfig]:
    """Return the two beams targets are followed through: the quantised oracle's, and the recipe's own."""
    own = trained.config.search
    return {
        "oracle": SearchConfig(scorer="oracle", beam=beam, batch_size=own.batch_size),
        "own": replace(own, beam=beam),
    }


def follow(trained: Trained, ranker: BeamRanker, task: Task) -> Followed:
    """Search a task's queries in its own pool and tell when each target was lost."""
    index, size = ranker.index, len(task.pool_rows)
    allowed = index.allow(np.isin(ranker.index_rows, task.pool_rows))
    rows_Q = index.rows([trained.vectors.items.ids[row] for row in targets_of(task)])
    alive_QT, leaves_T = np.zeros((len(rows_Q), index.levels), bool), np.zeros(index.levels)
    starts = range(0, len(rows_Q), ranker.batch_size)
    for start in progress(starts, f"following {task.name}", unit="query", size=ranker.batch_size):
        rows = rows_Q[start : start + ranker.batch_size]
        query_QD = ranker.query_MD[torch.as_tensor(task.query_rows[start : start + ranker.batch_size])]
        trace: list[Beams] = []
        beam_search(ranker.scorer, index, query_QD, ranker.beam, allowed, trace, ranker.ahead)
        for level, live in enumerate(trace):
            inside = (live.lo <= rows[live.query]) & (rows[live.query] < live.hi)
            alive_QT[start + live.query[inside], level] = True
            leaves_T[level] += allowed.count(live.lo, live.hi).sum() / size
    return Followed(alive_QT, leaves_T / len(rows_Q))
