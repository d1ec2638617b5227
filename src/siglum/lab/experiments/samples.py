"""Numbers of queries, by system, task and seed: their means, and contrasts between systems with bootstrap intervals.

A round of the bootstrap draws seeds, the same for all tasks and systems, and groups of queries within each task, the
same for all systems, both with replacement: queries that ask for one item are drawn together.
Shapes: S seeds, Q queries, R rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from siglum.data.tasks import TASKS
from siglum.measure.retrieval import summarise
from siglum.measure.significance import Bootstrap, interval, two_sample

MEAN = "mean"
"""The name of all tasks together, each counting alike."""
ROUNDS = 2000
"""Rounds of the bootstrap."""
DETECTED = 2.8
"""Standard errors that an effect must have to be found in four of five experiments (z of 97.5 % and of 80 %)."""


def in_order(tasks: Iterable[str]) -> list[str]:
    """Return tasks in the order of the world's, others behind them.

    >>> in_order(["i2t", "own", "t2i"])
    ['t2i', 'i2t', 'own']
    """
    return sorted(tasks, key=lambda task: TASKS.index(task) if task in TASKS else len(TASKS))


@dataclass(slots=True)
class Samples:
    """What was measured of every query; `values` says what a measure makes of it."""

    by_system: dict[str, dict[str, dict[int, Any]]] = field(default_factory=dict)
    """system -> task -> seed -> what was measured of the task's queries."""
    groups: dict[str, list[Any]] = field(default_factory=dict)
    """task -> cluster of every query, its target unless the data says otherwise, where some share theirs."""
    drawn: dict[str, Bootstrap] = field(default_factory=dict, repr=False)
    """task -> its draws, made when first needed."""

    def values(self, system: str, task: str, seed: int, measure: str) -> np.ndarray:
        """Return a measure of every query: here what is kept under its name."""
        return np.asarray(self.by_system[system][task][seed][measure], float)

    def add(self, system: str, task: str, seed: int, values: Any) -> None:
        """Take in what was measured; mappings of measures are joined."""
        seeds = self.by_system.setdefault(system, {}).setdefault(task, {})
        seeds[seed] = {**seeds.get(seed, {}), **values} if isinstance(values, Mapping) else values

    @property
    def tasks(self) -> list[str]:
        """All tasks, in the order of the world's."""
        return in_order(dict.fromkeys(task for tasks in self.by_system.values() for task in tasks))

    @property
    def measures(self) -> list[str]:
        """All measures that are kept by their names."""
        rows = (one for tasks in self.by_system.values() for seeds in tasks.values() for one in seeds.values())
        return list(dict.fromkeys(measure for row in rows for measure in row))

    def systems(self, task: str) -> list[str]:
        """Return the systems that were measured on a task."""
        return [system for system, tasks in self.by_system.items() if task in tasks]

    def over_seeds(self, system: str, task: str, measure: str) -> list[float]:
        """Return a system's measure on a task (or on `MEAN`, all of them), one value a seed."""
        tasks = self._named(task)
        seeds = self._seeds([system], tasks)
        return [float(np.mean([self.values(system, one, seed, measure).mean() for one in tasks])) for seed in seeds]

    def cell(self, system: str, task: str, measure: str) -> dict[str, Any]:
        """Return mean, deviation (None for one seed) and the value of every seed."""
        values = self.over_seeds(system, task, measure)
        found = summarise(values)
        return {"mean": found.mean, "std": found.std if found.n > 1 else None, "seeds": values}

    def summary(self, measures: Sequence[str]) -> dict[str, Any]:
        """Return system -> task -> measure -> mean, deviation and the value of every seed."""
        return {
            system: {
                task: {measure: self.cell(system, task, measure) for measure in measures}
                for task in (*self.tasks, MEAN)
            }
            for system in self.by_system
        }

    def contrast(
        self, weights: Mapping[str, float], task: str, measure: str, *, draw_seeds: bool = True
    ) -> dict[str, float] | None:
        """Return a weighted sum of systems with its 95 % interval; None where a system or a common seed is missing.

        One seed stays as it is, and so do all if so asked.
        """
        found = self.rounds(weights, task, measure, draw_seeds=draw_seeds)
        return None if found is None else interval(found)

    def rounds(
        self, weights: Mapping[str, float], task: str, measure: str, *, draw_seeds: bool = True
    ) -> np.ndarray | None:
        """Return a weighted sum of systems as it is, then in every round of the bootstrap (1 + R,); None as above."""
        tasks = self._named(task)
        seeds = self._seeds(weights, tasks)
        if not seeds:
            return None
        share_RS = Bootstrap(seeds, ROUNDS).weight_RG
        share_RS = share_RS if draw_seeds else np.full_like(share_RS, 1 / len(seeds))
        mean_R = np.zeros(len(share_RS))
        for one in tasks:
            value_SQ = np.stack(
                [sum(w * self.values(name, one, seed, measure) for name, w in weights.items()) for seed in seeds]
            )
            mean_R += (self._bootstrap(one, value_SQ.shape[1]).means(value_SQ) * share_RS).sum(1) / len(tasks)
        return mean_R

    def _named(self, task: str) -> list[str]:
        return self.tasks if task == MEAN else [task]

    def _seeds(self, systems: Iterable[str], tasks: Sequence[str]) -> tuple[int, ...]:
        """Return the seeds at which all these systems were measured on all these tasks."""
        rows = [set(self.by_system.get(system, {}).get(task, {})) for system in systems for task in tasks]
        return tuple(sorted(set.intersection(*rows)))

    def _bootstrap(self, task: str, queries: int) -> Bootstrap:
        if task not in self.drawn:
            groups = self.groups.get(task, range(queries))
            self.drawn[task] = Bootstrap(groups, ROUNDS, seed=1 + self.tasks.index(task))
        return self.drawn[task]

    def t_test(self, left: str, right: str, task: str, measure: str) -> float | None:
        """Return p of the paper's test, a two-sample t-test over seeds; None where it says nothing.

        It needs two seeds of each system that do not all give the same value.
        """
        if not {left, right} <= set(self.by_system):
            return None
        a, b = (self.over_seeds(name, task, measure) for name in (left, right))
        if min(len(a), len(b)) < 2 or np.ptp(a) == np.ptp(b) == 0:
            return None
        return two_sample(a, b, pooled=True).p


def detectable(mean_R: np.ndarray) -> float:
    """Return the smallest effect that would be found with a power of 80 % at 5 %: 2.8 bootstrap standard errors.

    Drawing seeds and queries both counts what is noise of single queries at single seeds twice, so it is rather large.
    """
    return DETECTED * float(np.std(mean_R[1:]))


def show_interval(found: Mapping[str, float] | None, scale: float = 100.0, digits: int = 1) -> str:
    """Return a difference with its interval: of shares in points, of others at a scale of 1.

    >>> show_interval({"mean": 0.012, "low": -0.001, "high": 0.02})
    '+1.2 [-0.1, +2.0]'
    """
    if found is None:
        return "–"
    mean, low, high = (f"{scale * found[key]:+.{digits}f}" for key in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"
