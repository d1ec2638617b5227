"""Text to image and image to text over frozen features: what is trained, once a recipe and seed.

A unit is one training (a fused space, or a tokenizer with its decoder) at one seed; it gives one or more systems.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from siglum.config import RunConfig
from siglum.fuse.contrastive import embed
from siglum.lab.captions.dense import DENSE_UNITS, config_of, open_dense
from siglum.lab.captions.quantisers import QUANTISERS, reconstruct
from siglum.lab.experiments.base import Unit
from siglum.lab.experiments.ranks import (
    DIMS,
    best_size,
    choose_weights,
    decoder_alone,
    geometry_alone,
    rank_systems,
)
from siglum.lab.experiments.setting import Setting
from siglum.lab.experiments.trained import code_bits, open_space, open_trained
from siglum.measure.evaluate import Ranker
from siglum.measure.rankers import FlatRanker
from siglum.recipes import RECIPES
from siglum.types import Vectors

BEST = ("best", "best_ensemble")
"""Siglum's own recipes, whose size of fused space is chosen on validation."""
GENIUS = ("genius", "genius_half", "genius_double", "genius_joint", "genius_original")
"""The baseline with other vocabularies, with its fused space learning along, and as it was published."""
UNITS: dict[str, tuple[str, ...]] = {
    **DENSE_UNITS,
    "pro": ("pro", "pd_vs", "pro_scan", "pro_geometry"),
    "vs": ("vs", "vs_sf"),
    "pd": ("pd", "pd_sf"),
    "genius": ("genius", "sf"),
    "genius_half": ("genius_half",),
    "genius_double": ("genius_double",),
    "genius_joint": ("genius_joint",),
    "genius_original": ("genius_original",),
    "pro_literal": ("pro_literal",),
    "pro_released": ("pro_released",),
    "best": ("best", "scan", "geometry", "best_decoder", "best_scan", "best_dense"),
    "best_ensemble": ("best_ensemble", "best_ensemble_scan", "best_ensemble_dense"),
    **{name: (name,) for name in QUANTISERS},
}
"""What each training gives: its own system first, then what its codes and decoder give without some part."""


FUSED = ("sf", "pd_sf", "vs_sf", "pro_literal", "pro_released")
"""What else is searched with fused scores."""


class Ranked(NamedTuple):
    """What a unit gives: its systems, ready to rank, and what else its part says."""

    vectors: Vectors
    rankers: dict[str, Ranker]
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Captions:
    """The benchmark as an experiment: the units asked for, and how each is measured."""

    names: tuple[str, ...] = tuple(UNITS)
    name: ClassVar[str] = "captions"

    def units(self, setting: Setting) -> list[Unit]:
        """Return `dense` of every seed first, since all share its space, then what takes longest."""
        order = {"dense": 0, "best": 1, "dense_ensemble": 2, "best_ensemble": 1, "pro_released": 3}
        return [
            Unit(
                name,
                seed,
                _config_of(setting, name, seed),
                stage=int(name != "dense"),
                anywhere=name in QUANTISERS,  # faiss works on the CPU, wherever the space was trained
            )
            for name in sorted(self.names, key=lambda name: order.get(name, len(order)))
            for seed in range(setting.seeds)
        ]

    def measure(self, setting: Setting, unit: Unit) -> dict[str, Any]:
        """Train what the unit needs and rank every test query with its systems."""
        vectors, rankers, facts = self.open(setting, unit)
        return {**rank_systems(vectors, rankers), **facts}

    def open(self, setting: Setting, unit: Unit) -> Ranked:
        """Train what the unit needs and return its systems."""
        if unit.name in DENSE_UNITS:
            return Ranked(setting.vectors(), *open_dense(setting, unit))
        return (_open_quantiser if unit.name in QUANTISERS else _open_codes)(setting, unit)


def _config_of(setting: Setting, unit: str, seed: int) -> RunConfig:
    """Return the settings that a unit trains by, or whose bytes it keeps to."""
    if unit in DENSE_UNITS:
        return config_of(setting, unit, seed)
    named = unit if unit in RECIPES else "pro"
    return setting.config("best" if unit in QUANTISERS else named, seed)


def _open_quantiser(setting: Setting, unit: Unit) -> Ranked:
    """A quantiser of faiss on the dense space, at the bytes of `best`, searched exhaustively."""
    vectors, size = setting.vectors(), int(code_bits(unit.config) // 8)
    fusion, _ = open_space(setting, config_of(setting, "dense", unit.seed))
    query, item = (embed(fusion, part, setting.device).cpu() for part in (vectors.queries, vectors.items))
    hat = reconstruct(unit.name, item.numpy(), np.unique(vectors.pair_item), size)
    ranker = FlatRanker(query, torch.from_numpy(hat), squared_distance=True)
    return Ranked(vectors, {unit.name: ranker}, {"bytes": {unit.name: size}})


def _open_codes(setting: Setting, unit: Unit) -> Ranked:
    """Train tokenizer and decoder and choose the weights of geometry and prior on validation."""
    dims = DIMS if unit.name in BEST else (unit.config.fusion.dim,)
    config, tried = best_size(setting, unit.config, dims)
    trained = open_trained(setting, config)
    weighed = choose_weights(trained)
    fused, plain, geometry = weighed.best, decoder_alone(config.search), geometry_alone(config.search)
    makers: dict[str, Callable[[], Ranker]] = {
        **dict.fromkeys(("pro", *BEST, *FUSED), lambda: trained.beam(fused)),
        **dict.fromkeys(("pd_vs", "vs", "pd", *GENIUS), lambda: trained.beam(plain)),
        "best_decoder": lambda: trained.beam(replace(fused, scorer="decoder", lookahead=False)),
        **dict.fromkeys(("scan", "pro_scan"), trained.scan),
        **dict.fromkeys(("geometry", "pro_geometry"), lambda: trained.beam(geometry)),
        **{f"{name}_scan": lambda: trained.scan(trained.asked_MD) for name in BEST},
        **dict.fromkeys([f"{name}_dense" for name in BEST], trained.dense),
    }
    systems = UNITS[unit.name]
    facts = {
        "validation": {
            "omega": fused.omega,
            "prior": fused.prior,
            "tried": weighed.tried,
            "blend": None if trained.head is None else trained.head.blend_M.tolist(),
            "decoder_loss": trained.loss,
            "scan_mrr@10": {str(dim): value for dim, value in tried.items()},
        },
        "bytes": {
            name: 4 * config.fusion.dim if name.endswith("_dense") else code_bits(config) / 8 for name in systems
        },
    }
    return Ranked(trained.vectors, {name: makers[name]() for name in systems}, facts)
