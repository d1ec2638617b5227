"""The systems of the benchmark on captioned images, on eight tasks and on all their pools together.

Beside them stand two dense spaces that get one part alone of composed queries, in training as in search: what a picture
without words, or words without the picture, can reach.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from siglum.fuse.contrastive import fit_fusion
from siglum.lab.captions.systems import UNITS as SHARED
from siglum.lab.captions.systems import Captions, Ranked
from siglum.lab.experiments.base import Unit
from siglum.lab.experiments.ranks import rank_systems
from siglum.lab.experiments.setting import Setting
from siglum.lab.experiments.trained import flat_ranker
from siglum.measure.evaluate import Ranker, union_rows
from siglum.search.beam import Ranking
from siglum.types import Task, Vectors

ALONE = {"text_alone": "image", "image_alone": "text"}
"""Spaces of one part of composed queries, and the part they do without."""
UNITS = {**SHARED, **{name: (name,) for name in ALONE}}
SHOWN, DEPTH = 24, 10
"""Queries of a task, and answers of each, that a part keeps as examples."""


@dataclass(frozen=True, slots=True)
class CatalogueSystems(Captions):
    """The benchmark as an experiment."""

    names: tuple[str, ...] = tuple(UNITS)
    name: ClassVar[str] = "catalogue"

    def measure(self, setting: Setting, unit: Unit) -> dict[str, Any]:
        """Rank every test query in its task's pool and in all pools together, and keep what some queries find."""
        vectors, rankers, facts = self.open(setting, unit)
        found = {**rank_systems(vectors, rankers), **facts}
        if unit.name not in ALONE:
            others = {name: OthersRanker(ranker, own_rows(vectors)) for name, ranker in rankers.items()}
            found["union"] = rank_systems(united(vectors), others)["systems"]
            found["examples"] = _examples(vectors, rankers)
        return found

    def open(self, setting: Setting, unit: Unit) -> Ranked:
        """Return the systems of a unit."""
        return _open_alone(setting, unit) if unit.name in ALONE else Captions.open(self, setting, unit)


@dataclass(frozen=True, slots=True)
class OthersRanker:
    """A system that leaves out what each query is itself."""

    ranker: Ranker
    own: dict[int, np.ndarray]
    """Rows of the items that hold a query's own words or picture, by the query's row."""

    def rank(self, query_rows: np.ndarray, pool_rows: np.ndarray, k: int) -> list[Ranking]:
        """Rank deeper by as many items as a query may lose, and drop those."""
        none = np.zeros(0, np.int64)
        own = [self.own.get(int(row), none) for row in query_rows]
        deeper = k + max((len(rows) for rows in own), default=0)
        found = self.ranker.rank(query_rows, pool_rows, deeper)
        kept = [~np.isin(one.position, rows) for one, rows in zip(found, own, strict=True)]
        return [
            Ranking(one.position[keep][:k], one.row[keep][:k], one.score[keep][:k])
            for one, keep in zip(found, kept, strict=True)
        ]


def own_rows(vectors: Vectors) -> dict[int, np.ndarray]:
    """Return the items that hold all a query says, by the query's row: its very name, or its very picture.

    In the pool of its own task no query has any; among all pools together a name would find itself and the pairs of
    that name, and a photograph itself and its pair.
    """
    items, queries = vectors.items.ids, vectors.queries.ids
    row_of = {name: row for row, name in enumerate(items)}
    found = {}
    for task in vectors.of_split("test"):
        for row, positives in zip(task.query_rows.tolist(), task.positives, strict=True):
            what = queries[row].partition(":")[2]
            pairs = [f"it:{items[one].partition(':')[2]}" for one in positives]
            own = {"t2i": [f"t:{what}", *pairs], "i2t": [f"i:{what}", f"it:{what}"]}.get(task.name, [])
            if there := [row_of[one] for one in own if one in row_of]:
                found[row] = np.array(there)
    return found


def is_composed(task: str) -> bool:
    """Return whether a task's queries are a picture with words."""
    return task.startswith("it2")


def united(vectors: Vectors, split: str = "test") -> Vectors:
    """Return vectors whose tasks of a split are asked against all of its pools together."""
    tasks = vectors.of_split(split)
    rows = union_rows(tasks)
    return replace(vectors, tasks=[replace(task, pool_rows=rows) for task in tasks])


def without_part(vectors: Vectors, part: str) -> Vectors:
    """Return vectors whose composed queries lack their image or text."""
    queries = vectors.queries
    composed_M = queries.has_image & queries.has_text & np.array([is_composed(name) for name in queries.ids])
    keep_M = getattr(queries, f"has_{part}") & ~composed_M
    rows = np.where(keep_M[:, None], getattr(queries, part), 0).astype(getattr(queries, part).dtype)
    return replace(vectors, queries=replace(queries, **{part: rows, f"has_{part}": keep_M}))


def _open_alone(setting: Setting, unit: Unit) -> Ranked:
    vectors, config = without_part(setting.vectors(), ALONE[unit.name]), unit.config
    fusion, _ = fit_fusion(vectors, config.fusion, seed=config.seed, device=setting.device)
    ranker = flat_ranker(fusion, vectors, setting.device)
    composed = replace(vectors, tasks=[task for task in vectors.tasks if is_composed(task.name)])
    return Ranked(composed, {unit.name: ranker}, {"bytes": {unit.name: 4 * config.fusion.dim}})


def _examples(vectors: Vectors, rankers: dict[str, Ranker]) -> dict[str, Any]:
    """Return system -> task -> query -> the ids of its first answers, for some queries of the test split."""
    tasks = [task.spread(SHOWN) for task in vectors.of_split("test")]
    return {name: {task.name: _answers(vectors, task, ranker) for task in tasks} for name, ranker in rankers.items()}


def _answers(vectors: Vectors, task: Task, ranker: Ranker) -> dict[str, list[str]]:
    queries, items = vectors.queries.ids, vectors.items.ids
    found = ranker.rank(task.query_rows, task.pool_rows, DEPTH)
    return {
        queries[int(row)]: [items[int(place)] for place in ranking.position]
        for row, ranking in zip(task.query_rows, found, strict=True)
    }
