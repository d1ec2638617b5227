"""Several runs side by side, in numbers: their names, paired differences with intervals, and what sets them apart.

Shapes: R rounds of the bootstrap, S measures, Q queries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from siglum.data.tasks import TASKS
from siglum.data.trec import Qrels, Run
from siglum.measure.retrieval import our_name, per_query
from siglum.measure.significance import Bootstrap, interval
from siglum.pages.names import in_order
from siglum.types import SiglumError

MEASURES = ("Success@1", "Success@5", "Success@10", "RR@10")
"""What is measured, in the spelling of ir-measures."""
COLUMNS = {"success@1": "@1", "success@5": "@5", "success@10": "@10", "mrr@10": "MRR"}
"""Our names of the same, with the heads of their columns."""
OTHERS = {"ndcg@10": "nDCG", "recall@10": "Recall"}
"""Measures that only some documents have."""
MEAN = "mean"
"""The name of all tasks together, each counting alike."""
ROUNDS = 2000

PerQuery = Mapping[str, Mapping[str, float]]
"""measure -> query -> value."""
Document = Mapping[str, Any]
"""What `siglum report --json` prints: `runs`, `differences` and how they came about."""
RunSummary = Mapping[str, Any]
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
class RunResults:
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


def compare_all(names: Sequence[str], results: Sequence[RunResults], seed: int = 0) -> dict[str, Any]:
    """Return the run that others are compared with, and what they have more or less.

    That is the first that can be searched, for one that cannot is no measure of others.
    """
    first = next((place for place, one in enumerate(results) if one.own), 0)
    pairs = list(zip(names, results, strict=True))
    others = {name: compare(results[first], one, seed) for name, one in pairs[:first] + pairs[first + 1 :]}
    return {"reference": names[first], "differences": others}


def compare(first: RunResults, other: RunResults, seed: int = 0) -> dict[str, dict[str, dict[str, float]]]:
    """Return task -> measure -> what the other run has more than the first, paired by query, with a 95 % interval.

    Tasks whose queries, right answers or pools differ are left out; `mean` is there if none is.
    """
    result: dict[str, dict[str, dict[str, float]]] = {}
    draws: list[np.ndarray] = []
    if first.own is None or other.own is None:
        return result
    shared = [task for task in in_order(first.tasks, TASKS) if is_comparable(first, other, task)]
    for number, task in enumerate(shared):
        ours, theirs = first.tasks[task], other.tasks[task]
        a = per_query(theirs.found[other.own], theirs.qrels, MEASURES)
        b = per_query(ours.found[first.own], ours.qrels, MEASURES)
        target = {query: min(right) for query, right in ours.qrels.items()}
        draws.append(resample(a, b, target, seed + number))
        result[task] = _intervals(draws[-1])
    if shared and len(shared) == len(first.tasks) == len(other.tasks):
        result[MEAN] = _intervals(np.mean(draws, 0))
    return result


def is_comparable(first: RunResults, other: RunResults, task: str) -> bool:
    """Say whether two runs were asked the same of the same; two worlds share ids, but not scenes."""
    worlds = [one.source for one in (first, other) if one.source.get("kind") == "world"]
    if task not in other.tasks or len({world["seed"] for world in worlds}) > 1:
        return False
    ours, theirs = first.tasks[task], other.tasks[task]
    return ours.qrels == theirs.qrels and ours.pool == theirs.pool


def resample(a: PerQuery, b: PerQuery, target: Mapping[str, str], seed: int, rounds: int = ROUNDS) -> np.ndarray:
    """Return by measure the mean over queries of a less b: as it is, then with targets drawn anew (1 + R, S).

    Queries of one target are drawn together, for they are not independent.
    """
    gap_SQ = np.array([[value - b[measure][query] for query, value in found.items()] for measure, found in a.items()])
    return Bootstrap([target[query] for query in next(iter(a.values()))], rounds, seed).means(gap_SQ)


def _intervals(drawn_RS: np.ndarray) -> dict[str, dict[str, float]]:
    """Return every measure's difference with the ends of its interval."""
    found = {our_name(measure): interval(drawn_R) for measure, drawn_R in zip(MEASURES, drawn_RS.T, strict=True)}
    return {name: {"difference": one["mean"], "low": one["low"], "high": one["high"]} for name, one in found.items()}


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


def mean_of(run: RunSummary, system: str | None, measure: str) -> float | None:
    """Return a system's mean over tasks, or None unless every task has a value."""
    values = [row.get(system, {}).get(measure) for row in run["tasks"].values()]
    return float(np.mean(values)) if values and None not in values else None


def own_rung(diagnosis: Mapping[str, Any]) -> Any:
    """Return what the beam of a run's own search keeps, of all rungs of its ladder."""
    return next(rung for rung in diagnosis["ladder"] if rung["rung"] == diagnosis["own"])


def token_survival_of(diagnosis: Mapping[str, Any]) -> dict[str, Any]:
    """Return a diagnosis' token survival under the quantised oracle by residual level, with chance and beam width."""
    levels = [level for level in diagnosis["levels"] if level["level"] > 0]
    curves = {key: [level[key] for level in levels] for key in ("survival", "chance")}
    return {"beam": diagnosis["beam"], **curves}
