"""Ranks of systems on tasks, what they measure, and contrasts between systems with bootstrap intervals.

A part that ranks systems holds `systems` (system -> task -> rank of the first positive of every query, 0 beyond ten)
and, where queries of a task share their target, `groups` (task -> the target of every query).
Shapes: S seeds, Q queries, G groups of queries, R rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from siglum.bench.captions import OMEGAS, PRIORS
from siglum.bench.weigh import Weighed, first_ranks, mean_reciprocal_rank, reciprocal_ranks, weigh
from siglum.config import SearchConfig
from siglum.data.world import TASKS
from siglum.experiment.base import Part
from siglum.experiment.trained import Trained
from siglum.measure.evaluate import Ranker
from siglum.measure.retrieval import summarise
from siglum.types import SiglumError, Task, Vectors

DEPTH = 10
"""Ranks beyond this count as not found."""
MEASURES = ("success@1", "success@5", "success@10", "mrr@10")
MEAN = "mean"
"""The name of all tasks together, each counting alike."""
ROUNDS = 2000
"""Rounds of the bootstrap."""
ZSCORE_OMEGAS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""Weights of the z-scored bias tried on validation; the released code uses 10."""
TRIED_QUERIES = 300
"""Validation queries of a task on which a weight is tried by a beam search of its own."""


def rank_systems(vectors: Vectors, rankers: Mapping[str, Ranker], split: str = "test") -> dict[str, Any]:
    """Return `systems` and `groups` of a part."""
    tasks = vectors.of_split(split)
    systems = {
        name: {task.name: first_ranks(task, ranker, DEPTH).tolist() for task in tasks}
        for name, ranker in rankers.items()
    }
    groups = {task.name: [int(rows[0]) for rows in task.positives] for task in tasks}
    shared = {name: rows for name, rows in groups.items() if len(set(rows)) < len(rows)}
    return {"systems": systems, "groups": shared}


def geometry_alone(search: SearchConfig) -> SearchConfig:
    """Return the search of the same codes without a decoder: the distance of partial sums ranks prefixes."""
    return replace(search, scorer="geometry", prior=0.0, zscore=False, lookahead=False)


def choose_weights(trained: Trained, search: SearchConfig | None = None) -> Weighed:
    """Return the weights of geometry (and prior) with the best MRR@10 on validation.

    The z-scored bias depends on the path, so that each of its weights is tried by a beam search of its own.
    """
    search = replace(search or trained.config.search, scorer="fused")
    if search.zscore:
        return choose_by_beam(trained, search, ZSCORE_OMEGAS)
    if trained.decoder is None:
        raise SiglumError("weights of geometry are chosen beside a decoder; open the training with its decoder.")
    priors = PRIORS if trained.config.decoder.null_queries else (0.0,)
    parts = (trained.decoder, trained.tokenizer.quantizer, trained.asked_MD, trained.codes_NT)
    return weigh(trained.vectors, trained.beam(search, "val"), *parts, search, (OMEGAS, priors))


def choose_by_beam(trained: Trained, search: SearchConfig, omegas: Sequence[float]) -> Weighed:
    """Return the weight of geometry with the best MRR@10 on validation, each tried by a beam search of its own."""
    tried = []
    tasks = [task.spread(TRIED_QUERIES) for task in trained.vectors.of_split("val")]
    for omega in omegas:
        ranker = trained.beam(replace(search, omega=omega), "val")
        tried.append({"omega": omega, "prior": search.prior, "mrr@10": mean_mrr(tasks, ranker)})
    return Weighed(replace(search, omega=max(tried, key=lambda row: row["mrr@10"])["omega"]), tried)


def mean_mrr(tasks: Sequence[Task], ranker: Ranker) -> float:
    """Return the mean over tasks of MRR@10."""
    return float(np.mean([mean_reciprocal_rank(first_ranks(task, ranker, DEPTH)) for task in tasks]))


def in_order(tasks: Iterable[str]) -> list[str]:
    """Return tasks in the order of the world's, others behind them.

    >>> in_order(["i2t", "own", "t2i"])
    ['t2i', 'i2t', 'own']
    """
    return sorted(tasks, key=lambda task: TASKS.index(task) if task in TASKS else len(TASKS))


def values_of(ranks: Sequence[int] | np.ndarray, measure: str) -> np.ndarray:
    """Return a measure of every query from its rank.

    >>> values_of([1, 3, 0], "success@1").tolist(), values_of([1, 4, 0], "mrr@10").tolist()
    ([1.0, 0.0, 0.0], [1.0, 0.25, 0.0])
    """
    rows = np.asarray(ranks)
    if measure == "mrr@10":
        return reciprocal_ranks(rows)
    return ((rows > 0) & (rows <= int(measure.split("@")[1]))).astype(float)


@dataclass(slots=True)
class Ranks:
    """The ranks of all systems of an experiment."""

    by_system: dict[str, dict[str, dict[int, list[int]]]] = field(default_factory=dict)
    """system -> task -> seed -> ranks."""
    groups: dict[str, list[int]] = field(default_factory=dict)
    """task -> target of every query, where some share theirs."""
    _drawn: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, parts: Sequence[Part]) -> Ranks:
        """Join the ranks of parts."""
        found = cls()
        for part in parts:
            found.groups |= part.get("groups", {})
            for system, tasks in part["systems"].items():
                for task, rows in tasks.items():
                    found.by_system.setdefault(system, {}).setdefault(task, {})[int(part["seed"])] = rows
        return found

    @property
    def tasks(self) -> list[str]:
        """All tasks, in the order of the world's."""
        return in_order(dict.fromkeys(task for tasks in self.by_system.values() for task in tasks))

    def over_seeds(self, system: str, task: str, measure: str) -> list[float]:
        """Return a system's measure on a task (or on `MEAN`, all of them), one value a seed."""
        tasks = self.tasks if task == MEAN else [task]
        by_seed = [self.by_system[system][name] for name in tasks]
        seeds = sorted(set.intersection(*(set(found) for found in by_seed)))
        return [float(np.mean([values_of(found[seed], measure).mean() for found in by_seed])) for seed in seeds]

    def cell(self, system: str, task: str, measure: str) -> dict[str, Any]:
        """Return mean, deviation (None for one seed) and the value of every seed."""
        values = self.over_seeds(system, task, measure)
        found = summarise(values)
        return {"mean": found.mean, "std": found.std if found.n > 1 else None, "seeds": values}

    def summary(self) -> dict[str, Any]:
        """Return system -> task -> measure -> mean, deviation and the value of every seed."""
        return {
            system: {
                task: {measure: self.cell(system, task, measure) for measure in MEASURES}
                for task in (*self.tasks, MEAN)
            }
            for system in self.by_system
        }

    def contrast(self, weights: Mapping[str, float], task: str, measure: str) -> dict[str, float] | None:
        """Return a weighted sum of systems with its 95 % interval; None where a system or a common seed is missing.

        A round of the bootstrap draws seeds, the same for all tasks and systems, and groups of queries within each
        task, the same for all systems, both with replacement; one seed stays as it is.
        """
        tasks = self.tasks if task == MEAN else [task]
        if not set(weights) <= set(self.by_system):
            return None
        rows = [self.by_system[system][name] for system in weights for name in tasks]
        seeds = tuple(sorted(set.intersection(*(set(found) for found in rows))))
        if not seeds:
            return None
        drawn = [weight * self._rounds(system, tasks, measure, seeds) for system, weight in weights.items()]
        total_R = np.sum(drawn, 0)
        low, high = np.quantile(total_R[1:], (0.025, 0.975))
        return {"mean": float(total_R[0]), "low": float(low), "high": float(high)}

    def _rounds(self, system: str, tasks: Sequence[str], measure: str, seeds: tuple[int, ...]) -> np.ndarray:
        """Return a system's measure, mean over tasks: as it is, then in every round of the bootstrap (1 + R,)."""
        rng = np.random.default_rng(0)
        share_RS = rng.multinomial(len(seeds), np.full(len(seeds), 1 / len(seeds)), ROUNDS) / len(seeds)
        share_RS = np.concatenate([np.full((1, len(seeds)), 1 / len(seeds)), share_RS])
        found = []
        for task in tasks:
            rows = self.by_system[system][task]
            number_Q, weight_RG = self._groups(task, len(rows[seeds[0]]))
            value_GS = np.stack([np.bincount(number_Q, values_of(rows[seed], measure)) for seed in seeds], 1)
            found.append((weight_RG @ value_GS * share_RS).sum(1))
        mean_R: np.ndarray = np.mean(found, 0)
        return mean_R

    def _groups(self, task: str, queries: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the group of each query (Q,) and the weights of groups: alike, then in every round (1 + R, G)."""
        if task not in self._drawn:
            rng = np.random.default_rng(1 + self.tasks.index(task))
            number_Q = np.unique(self.groups.get(task, range(queries)), return_inverse=True)[1]
            size_G = np.bincount(number_Q)
            many_RG = rng.multinomial(len(size_G), np.full(len(size_G), 1 / len(size_G)), ROUNDS)
            many_RG = np.concatenate([np.ones((1, len(size_G)), np.int64), many_RG])
            self._drawn[task] = number_Q, many_RG / (many_RG @ size_G)[:, None]
        return self._drawn[task]


def show_interval(found: Mapping[str, float] | None) -> str:
    """Return a difference of shares in points with its interval.

    >>> show_interval({"mean": 0.012, "low": -0.001, "high": 0.02})
    '+1.2 [-0.1, +2.0]'
    """
    if found is None:
        return "–"
    return f"{100 * found['mean']:+.1f} [{100 * found['low']:+.1f}, {100 * found['high']:+.1f}]"
