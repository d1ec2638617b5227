"""Ranks of systems on tasks, what they measure, and contrasts between systems with bootstrap intervals.

A part that ranks systems holds `systems` (system -> task -> rank of the first positive of every query, 0 beyond ten)
and, where queries of a task share their target or another cluster, `groups` (task -> the cluster of every query).
Shapes: S seeds, Q queries, R rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from siglum.config import RunConfig, SearchConfig
from siglum.lab.experiments.base import Part
from siglum.lab.experiments.fusion_weights import Weighed, first_ranks, mean_reciprocal_rank, reciprocal_ranks, weigh
from siglum.lab.experiments.origin import one_origin
from siglum.lab.experiments.samples import MEAN as MEAN
from siglum.lab.experiments.samples import Samples
from siglum.lab.experiments.samples import in_order as in_order
from siglum.lab.experiments.samples import show_interval as show_interval
from siglum.lab.experiments.setting import Setting
from siglum.lab.experiments.trained import Trained, open_trained
from siglum.measure.evaluate import Ranker
from siglum.measure.rankers import geometry_alone as geometry_alone
from siglum.types import SiglumError, Task, Vectors

DEPTH = 10
"""Ranks beyond this count as not found."""
MEASURES = ("success@1", "success@5", "success@10", "mrr@10")
OMEGAS = (5.0, 10.0, 20.0, 40.0, 60.0, 80.0, 120.0, 160.0, 240.0, 320.0, 640.0, 2560.0, 10240.0)
PRIORS = (0.0, 0.5, 1.0, 1.5, 2.0)
"""What is tried on validation as weight of geometry and, where the decoder knows it, of the prior."""
DIMS = (64, 128)
"""Sizes of the fused space `best` chooses from, by a scan of its codes on validation."""
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
    groups = {
        task.name: [int(rows[0]) for rows in task.positives] if task.clusters is None else task.clusters.tolist()
        for task in tasks
    }
    shared = {name: rows for name, rows in groups.items() if len(set(rows)) < len(rows)}
    return {"systems": systems, "groups": shared}


def decoder_alone(search: SearchConfig) -> SearchConfig:
    """Return the search of the same codes by the decoder's probabilities, without geometry."""
    return replace(search, scorer="decoder", prior=0.0, lookahead=False)


def best_size(setting: Setting, config: RunConfig, dims: Sequence[int]) -> tuple[RunConfig, dict[int, float]]:
    """Return a configuration with the size of fused space whose codes do best in a scan, and MRR@10 of each size."""
    sized = {dim: replace(config, fusion=replace(config.fusion, dim=dim)) for dim in dims}
    tried = {}
    for dim, one in sized.items():
        trained = open_trained(setting, one, decoder=False)
        tried[dim] = mean_mrr(trained.vectors.of_split("val"), trained.scan())
    return sized[max(tried, key=tried.__getitem__)], tried


def choose_weights(trained: Trained, search: SearchConfig | None = None) -> Weighed:
    """Return the weights of geometry (and prior) with the best MRR@10 on validation.

    The search as it is gives each query a shortlist; what is chosen ranks it by decoder and geometry together. The
    z-scored bias depends on the path, so that each of its weights is tried by a beam search of its own.
    """
    search = search or trained.config.search
    fused = replace(search, scorer="fused")
    if search.zscore:
        return choose_by_beam(trained, fused, ZSCORE_OMEGAS)
    if trained.decoder is None:
        raise SiglumError("weights of geometry are chosen beside a decoder; open the training with its decoder.")
    priors = PRIORS if trained.config.decoder.null_queries else (0.0,)
    parts = (trained.decoder, trained.tokenizer.quantizer, trained.asked_MD, trained.codes_NT)
    return weigh(trained.vectors, trained.beam(search), *parts, fused, (OMEGAS, priors))


def choose_by_beam(trained: Trained, search: SearchConfig, omegas: Sequence[float]) -> Weighed:
    """Return the weight of geometry with the best MRR@10 on validation, each tried by a beam search of its own."""
    tried = []
    tasks = [task.spread(TRIED_QUERIES) for task in trained.vectors.of_split("val")]
    for omega in omegas:
        ranker = trained.beam(replace(search, omega=omega))
        tried.append({"omega": omega, "prior": search.prior, "mrr@10": mean_mrr(tasks, ranker)})
    return Weighed(replace(search, omega=max(tried, key=lambda row: row["mrr@10"])["omega"]), tried)


def mean_mrr(tasks: Sequence[Task], ranker: Ranker) -> float:
    """Return the mean over tasks of MRR@10."""
    return float(np.mean([mean_reciprocal_rank(first_ranks(task, ranker, DEPTH)) for task in tasks]))


def values_of(ranks: Sequence[int] | np.ndarray, measure: str) -> np.ndarray:
    """Return a measure of every query from its rank.

    >>> values_of([1, 3, 0], "success@1").tolist(), values_of([1, 4, 0], "mrr@10").tolist()
    ([1.0, 0.0, 0.0], [1.0, 0.25, 0.0])
    """
    rows = np.asarray(ranks)
    if measure == "mrr@10":
        return reciprocal_ranks(rows)
    return ((rows > 0) & (rows <= int(measure.split("@")[1]))).astype(float)


class Ranks(Samples):
    """The ranks of all systems of an experiment."""

    @classmethod
    def read(cls, parts: Sequence[Part]) -> Ranks:
        """Join the ranks of parts, which must have one origin."""
        one_origin(parts)
        found = cls()
        for part in parts:
            found.groups |= part.get("groups", {})
            for system, tasks in part["systems"].items():
                for task, rows in tasks.items():
                    found.add(system, task, int(part["seed"]), rows)
        return found

    def values(self, system: str, task: str, seed: int, measure: str) -> np.ndarray:
        """Return a measure of every query from its rank."""
        return values_of(self.by_system[system][task][seed], measure)

    def summary(self, measures: Sequence[str] = MEASURES) -> dict[str, Any]:
        """Return system -> task -> measure -> mean, deviation and the value of every seed."""
        return super().summary(measures)

    def contrasts(self, weights: Mapping[str, float], tasks: Sequence[str] = ()) -> dict[str, Any]:
        """Return task -> measure -> `contrast`, on all tasks and their mean unless some are named."""
        return {
            task: {measure: self.contrast(weights, task, measure) for measure in MEASURES}
            for task in tasks or (*self.tasks, MEAN)
        }

    def t_tests(self, left: str, right: str) -> dict[str, Any]:
        """Return task -> measure -> p of the paper's test; nothing where a system is missing."""
        if not {left, right} <= set(self.by_system):
            return {}
        return {task: {m: self.t_test(left, right, task, m) for m in MEASURES} for task in (*self.tasks, MEAN)}


def t_test_notes(found: Mapping[str, Mapping[str, float | None]], names: str) -> list[str]:
    """Return a sentence with the largest p of all tasks, measure by measure; none where there is no p.

    >>> t_test_notes({"t2i": {"success@1": 0.004, "mrr@10": None}, "i2t": {"success@1": 0.02}}, "PRO and GENIUS")
    ['Two-sample t-test over seeds, PRO and GENIUS, largest p of all tasks: success@1 0.02.']
    """
    by_measure = {m: [p for one in found.values() if (p := one.get(m)) is not None] for m in MEASURES}
    told = [f"{measure} {max(values):.2g}" for measure, values in by_measure.items() if values]
    return [f"Two-sample t-test over seeds, {names}, largest p of all tasks: {', '.join(told)}."] if told else []
