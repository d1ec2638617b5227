"""Several runs side by side, in numbers: their names, paired differences with intervals, and what sets them apart.

Shapes: R rounds of the bootstrap, G targets, U distinct pairs of a target's difference and its number of queries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from siglum.data.trec import Qrels, Run
from siglum.data.world import TASKS
from siglum.measure.page import in_order
from siglum.measure.retrieval import per_query
from siglum.types import SiglumError

ASKED = ("Success@1", "Success@5", "Success@10", "RR@10")
"""What is measured, in the spelling of ir-measures."""
MEASURES = {"success@1": "@1", "success@5": "@5", "success@10": "@10", "mrr@10": "MRR"}
"""Our names of the same, with the heads of their columns."""
MEAN = "mean"
"""The name of all tasks together, each counting alike."""
ROUNDS = 2000
ENDS = (0.025, 0.975)

Document = Mapping[str, Any]
"""What `siglum report --json` prints: `runs`, `differences` and how they came about."""
Portrait = Mapping[str, Any]
"""One of its `runs`."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What a run's systems found for the queries of one task."""

    qrels: Qrels
    pool: int
    """Items searched."""
    found: dict[str, Run]
    """By system."""


@dataclass(frozen=True, slots=True)
class Asked:
    """All answers of one run."""

    tasks: dict[str, Answers]
    own: str | None
    """The system a search of the run uses; None where no index can be searched."""
    source: dict[str, Any]
    """Where its items come from, as `siglum.data.source` keeps it."""
    split: str


def name_runs(folders: Sequence[Path]) -> list[str]:
    """Return the shortest ends of the paths that tell the runs apart.

    >>> name_runs([Path("runs/a/pro"), Path("runs/b/pro"), Path("runs/c")])
    ['a/pro', 'b/pro', 'c']
    """
    parts = [folder.absolute().resolve().parts for folder in folders]
    twice = [folder for folder, own in zip(folders, parts, strict=True) if parts.count(own) > 1]
    if twice:
        raise SiglumError(f"{twice[0]} is given twice; a run is compared with others, not with itself.")
    names = []
    for own in parts:
        length = next(n for n in range(1, len(own) + 1) if [p[-n:] for p in parts].count(own[-n:]) == 1)
        names.append("/".join(own[-length:]))
    return names


def compare(first: Asked, other: Asked, seed: int = 0) -> dict[str, dict[str, dict[str, float]]]:
    """Return task -> measure -> what the other run has more than the first, paired by query, with a 95 % interval.

    Tasks whose queries, right answers or pools differ are left out; `mean` is there if none is.
    """
    result: dict[str, dict[str, dict[str, float]]] = {}
    draws: dict[str, list[np.ndarray]] = {}
    if first.own is None or other.own is None:
        return result
    shared = [task for task in in_order(first.tasks, TASKS) if is_comparable(first, other, task)]
    for number, task in enumerate(shared):
        ours, theirs = first.tasks[task], other.tasks[task]
        values = [
            per_query(answers.found[own], answers.qrels, ASKED)
            for answers, own in ((theirs, other.own), (ours, first.own))
        ]
        target = {query: min(right) for query, right in ours.qrels.items()}
        for measure in MEASURES:
            drawn_R = resample(values[0][measure], values[1][measure], target, seed + number)
            draws.setdefault(measure, []).append(drawn_R)
            result.setdefault(task, {})[measure] = _interval(drawn_R)
    if shared and len(shared) == len(first.tasks) == len(other.tasks):
        result[MEAN] = {measure: _interval(np.mean(drawn, 0)) for measure, drawn in draws.items()}
    return result


def is_comparable(first: Asked, other: Asked, task: str) -> bool:
    """Say whether two runs were asked the same of the same; two worlds share ids, but not scenes."""
    worlds = [asked.source for asked in (first, other) if asked.source.get("kind") == "world"]
    if task not in other.tasks or len({world["seed"] for world in worlds}) > 1:
        return False
    ours, theirs = first.tasks[task], other.tasks[task]
    return ours.qrels == theirs.qrels and ours.pool == theirs.pool


def resample(
    a: Mapping[str, float], b: Mapping[str, float], target: Mapping[str, str], seed: int, rounds: int = ROUNDS
) -> np.ndarray:
    """Return the mean over queries of a less b: as it is, then with targets drawn with replacement (1 + R,).

    Queries of one target are drawn together, for they are not independent.
    """
    number_of = {name: number for number, name in enumerate(dict.fromkeys(target.values()))}
    pair_G2 = np.zeros((len(number_of), 2))
    for query, value in a.items():
        pair_G2[number_of[target[query]]] += value - b[query], 1
    # Targets alike in both numbers are drawn as one: few are distinct, however many queries there are.
    pair_U2, many_U = np.unique(pair_G2, axis=0, return_counts=True)
    drawn_RU = np.random.default_rng(seed).multinomial(len(pair_G2), many_U / len(pair_G2), rounds)
    total_R2 = np.concatenate([many_U[None], drawn_RU]) @ pair_U2
    share_R: np.ndarray = total_R2[:, 0] / total_R2[:, 1]
    return share_R


def _interval(drawn_R: np.ndarray) -> dict[str, float]:
    low, high = np.quantile(drawn_R[1:], ENDS)
    return {"difference": float(drawn_R[0]), "low": float(low), "high": float(high)}


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the settings of all stages by dotted name.

    >>> flatten({"seed": 1, "search": {"beam": 10}})
    {'seed': 1, 'search.beam': 10}
    """
    found: dict[str, Any] = {}
    for name, value in config.items():
        found |= flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the dotted names of settings that are not the same in all runs.

    >>> differing([{"seed": 1, "beam": 5}, {"seed": 2, "beam": 5}])
    ['seed']
    """
    flat = [flatten(config) for config in configs]
    names = dict.fromkeys(name for one in flat for name in one)
    return [name for name in names if any(one.get(name) != flat[0].get(name) for one in flat)]


def mean_of(portrait: Portrait, system: str | None, measure: str) -> float | None:
    """Return a system's mean over tasks, or None unless every task has a value."""
    values = [row.get(system, {}).get(measure) for row in portrait["tasks"].values()]
    return float(np.mean(values)) if values and None not in values else None
