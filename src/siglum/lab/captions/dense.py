"""Dense search as a baseline: the spaces it is asked in, each with a query head too, and the strongest of them.

`dense` is the better on validation of the space that the contrastive loss alone trained and the one that learnt along
with codebooks, `dense_head` the same space asked by a query head as `best` has one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from siglum.config import RunConfig
from siglum.fuse.contrastive import APART, embed
from siglum.fuse.modules import Fusion
from siglum.generate.query import fit_dense_head
from siglum.lab.experiments.base import Part, Unit
from siglum.lab.experiments.distillation import SYSTEMS as DISTILLATION
from siglum.lab.experiments.fusion_weights import first_ranks, mean_reciprocal_rank
from siglum.lab.experiments.ranks import DEPTH
from siglum.lab.experiments.setting import Setting
from siglum.lab.experiments.trained import open_space, open_trained
from siglum.measure.evaluate import Ranker
from siglum.measure.rankers import FlatRanker

HEAD = "_head"
DENSE_UNITS = {
    name: (system, system + HEAD)
    for name, system in (
        ("dense", "dense_original"),
        ("dense_moved", "dense_moved"),
        ("dense_longer", "dense_longer"),
        ("dense_ensemble", "dense_ensemble"),
    )
}
"""Spaces: of the contrastive loss alone, learnt along with codebooks, of that loss for as many epochs more, several."""
CANDIDATES = ("dense_original", "dense_moved")
"""What `dense` is chosen from."""
SPACES = 3
"""Spaces of the ensemble."""


def config_of(setting: Setting, unit: str, seed: int) -> RunConfig:
    """Return the settings of a unit's fused space."""
    if unit not in ("dense_moved", "dense_longer"):
        return setting.config("pro", seed)
    config = setting.config("pro", seed, "joint")
    system = "on" if unit == "dense_moved" else "extra"
    return replace(config, tokenizer=DISTILLATION[system](config.tokenizer))


def open_dense(setting: Setting, unit: Unit) -> tuple[dict[str, Ranker], dict[str, Any]]:
    """Return exhaustive search in a unit's spaces, by fused queries and by a query head, and what a part says of it."""
    vectors, device = setting.vectors(), setting.device
    towers = setting.config("best", unit.seed).query
    sides: list[list[torch.Tensor]] = [[], [], []]
    for fusion in _spaces(setting, unit):
        head = fit_dense_head(vectors, fusion, towers, seed=unit.seed, device=device)
        fused = embed(fusion, vectors.queries, device)
        asked = head.adapt(fused, vectors.queries, device)
        for side, found in zip(sides, (fused, asked, embed(fusion, vectors.items, device)), strict=True):
            side.append(found)
    # The inner product of joined vectors is the sum of those of the parts.
    fused, asked, items = (torch.cat(side, -1) for side in sides)
    rankers: dict[str, Ranker] = dict(
        zip(DENSE_UNITS[unit.name], (FlatRanker(fused, items), FlatRanker(asked, items)), strict=True)
    )
    tasks = vectors.of_split("val")
    validation = {
        system: {task.name: mean_reciprocal_rank(first_ranks(task, ranker, DEPTH)) for task in tasks}
        for system, ranker in rankers.items()
    }
    size = dict.fromkeys(rankers, 4 * items.shape[1])
    return rankers, {"validation": {"mrr@10": validation}, "bytes": size}


def _spaces(setting: Setting, unit: Unit) -> list[Fusion]:
    config = unit.config
    if unit.name in ("dense_moved", "dense_longer"):
        return [open_trained(setting, config, decoder=False).tokenizer.fusion]
    seeds = [config.seed + APART * number for number in range(SPACES if unit.name == "dense_ensemble" else 1)]
    return [open_space(setting, replace(config, seed=seed))[0] for seed in seeds]


def with_dense(parts: Sequence[Part]) -> tuple[list[Part], dict[str, Any]]:
    """Return parts in which the chosen space is called `dense`, and what was chosen: see `strongest_dense`.

    A space that lacks a seed which another has cannot be chosen.
    """
    own = [part for part in parts if part["unit"] in DENSE_UNITS]
    seeds = {name: {part["seed"] for part in own if part["unit"] == name} for name in DENSE_UNITS}
    whole = [name for name in DENSE_UNITS if seeds[name] and seeds[name] == set().union(*seeds.values())]
    values = {
        system: float(np.mean([_mrr(part, system) for part in own if part["unit"] == name]))
        for name in whole
        for system in DENSE_UNITS[name]
    }
    there = [system for system in CANDIDATES if system in values]
    if not there:
        return list(parts), {}
    chosen = max(there, key=values.__getitem__)
    names = {chosen: "dense", chosen + HEAD: "dense" + HEAD}
    found = {
        "space_of_dense": chosen,
        "strongest_dense": max(values, key=values.__getitem__),
        "dense_validation": values,
    }
    return [_called(part, names) for part in parts], found


def _mrr(part: Part, system: str) -> float:
    return float(np.mean(list(part["validation"]["mrr@10"][system].values())))


def _called(part: Part, names: Mapping[str, str]) -> Part:
    """Return a part in which some systems stand under another name as well."""
    more = {}
    for key in ("systems", "union", "examples", "bytes"):
        own = part.get(key, {})
        if added := {new: own[old] for old, new in names.items() if old in own}:
            more[key] = {**own, **added}
    return {**part, **more}
