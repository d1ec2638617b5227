"""Searching settings on validation: a plan of trials, each a recipe with some settings changed, and what each gives.

A plan is a JSON list of trials; a trial has a `name`, the `recipe` and `space` it begins with, the settings it changes
(`set`, as in `siglum tokenize --set`), a `seed`, and whether it trains a decoder. Nothing here looks at the test split.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from siglum.config import SearchConfig, from_dict
from siglum.console.commands import override
from siglum.files import read_json
from siglum.generate.query import QueryHead, fit_dense_head, fit_query_head
from siglum.lab.experiments.base import Unit
from siglum.lab.experiments.ranks import (
    MEAN,
    Ranks,
    choose_weights,
    decoder_alone,
    geometry_alone,
    rank_systems,
)
from siglum.lab.experiments.setting import Setting
from siglum.lab.experiments.trained import Trained, open_trained
from siglum.lab.tables import Table
from siglum.lab.units import Part
from siglum.measure.evaluate import Ranker
from siglum.measure.rankers import FlatRanker
from siglum.recipes import recipe
from siglum.tokenize.heldout import held_out_rank_loss
from siglum.types import SiglumError, Task

SYSTEMS = ("dense", "dense_head", "scan", "scan_head", "geometry", "decoder", "fused")
BEAMS = (10, 20, 50)
"""Beams whose survival is measured."""
FOLLOWED, SURVEYED = 1000, 300
"""Queries of a task on which survival and divergence are measured, evenly spread."""
LEAVES = 10
"""Items under a beam that are looked at, as a multiple of its width: more than those of equal codes."""
TAU, SHOWN_BEAM, SHOWN_LEVELS = 0.05, 20, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One setting to try."""

    name: str
    recipe: str = "pro"
    space: str = ""
    set: tuple[str, ...] = ()
    seed: int = 0
    decoder: bool = True
    """Whether a decoder is trained; geometry, scan and dense search need none."""


def read_plan(path: Path) -> list[Trial]:
    """Return the trials of a plan, in its order."""
    rows = read_json(path)
    if not isinstance(rows, list):
        raise SiglumError(f"{path} must be a list of trials.")
    trials: list[Trial] = [from_dict(Trial, row) for row in rows]
    names = [(trial.name, trial.seed) for trial in trials]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SiglumError(f"{path} has two trials named {twice[0][0]!r} with seed {twice[0][1]}.")
    return trials


@dataclass(frozen=True, slots=True)
class Tuning:
    """The trials of a plan as units."""

    trials: tuple[Trial, ...]
    name = "tuning"

    def units(self, setting: Setting) -> list[Unit]:
        """Return a unit a trial, first trials first."""
        return [
            Unit(
                trial.name,
                trial.seed,
                override(setting.fit(recipe(trial.recipe, setting.scale, trial.seed, trial.space)), trial.set),  # type: ignore[arg-type]
                {"decoder": trial.decoder},
            )
            for trial in self.trials
        ]

    def measure(self, setting: Setting, unit: Unit) -> dict[str, Any]:
        """Train what the trial needs and rank the validation queries with all that it gives."""
        config, wants_decoder = unit.config, bool(unit.options["decoder"])
        trained = open_trained(setting, config, decoder=wants_decoder)
        head, chosen = _head(trained), None
        rankers: dict[str, Ranker] = {
            "dense": trained.dense(),
            "scan": trained.scan(),
            "geometry": trained.beam(geometry_alone(config.search)),
        }
        if head is not None:
            dense = fit_dense_head(
                trained.vectors, trained.tokenizer.fusion, config.query, seed=config.seed, device=setting.device
            )
            rankers["scan_head"] = trained.scan(_asked(trained, head))
            rankers["dense_head"] = FlatRanker(_asked(trained, dense), trained.item_ND)
        served = geometry_alone(config.search)
        if wants_decoder:
            chosen = choose_weights(trained).best
            rankers |= {"decoder": trained.beam(decoder_alone(config.search)), "fused": trained.beam(chosen)}
            served = chosen if config.search.scorer == "fused" else decoder_alone(config.search)
        tasks = [task.spread(FOLLOWED) for task in trained.vectors.of_split("val")]
        return {
            **rank_systems(trained.vectors, rankers, split="val"),
            "omega": None if chosen is None else chosen.omega,
            "prior": None if chosen is None else chosen.prior,
            "survival": {
                name: {
                    str(beam): {task.name: survival(trained, search, task, beam) for task in tasks} for beam in BEAMS
                }
                for name, search in {"geometry": geometry_alone(config.search), "served": served}.items()
            },
            "divergence": {task.name: _divergence(trained, task.spread(SURVEYED)) for task in tasks},
            "error": {task.name: _error(trained, task) for task in tasks},
            "rank_loss": held_out_rank_loss(trained.tokenizer, trained.vectors, device=setting.device),
            "trained": trained.seconds,
        }


def _head(trained: Trained) -> QueryHead | None:
    """Return the trial's query head, trained here where there is no decoder that it was trained beside."""
    config = trained.config
    return trained.head or fit_query_head(
        trained.vectors, trained.tokenizer, config.query, seed=config.seed, device=trained.device
    )


def _asked(trained: Trained, head: QueryHead) -> torch.Tensor:
    return head.adapt(trained.query_MD, trained.vectors.queries, trained.device)


def survival(trained: Trained, search: SearchConfig, task: Task, beam: int) -> float:
    """Return the share of a task's positives that are under a beam at its last level, mean over queries."""
    ranker = trained.beam(replace(search, beam=beam))
    found = ranker.rank(task.query_rows, task.pool_rows, LEAVES * beam)
    kept = [np.isin(own, one.position).mean() for own, one in zip(task.positives, found, strict=True)]
    return round(float(np.mean(kept)), 4)


def _divergence(trained: Trained, task: Task) -> list[float]:
    """Return K, mean over queries, level by level."""
    return [round(float(level.K_Q.mean()), 4) for level in trained.quantities(task, beam=SHOWN_BEAM, tau=TAU)]


def _error(trained: Trained, task: Task) -> float:
    """Return the mean squared distance of a pool's vectors to their reconstructions."""
    pool = torch.as_tensor(task.pool_rows).to(trained.item_ND.device)
    gap = trained.item_ND[pool] - trained.reconstructions()[pool]
    return round(float(gap.square().sum(-1).mean()), 4)


def summary(parts: Sequence[Part]) -> Table:
    """Return a row a trial: MRR@10 of every system, mean over tasks, and what says whether the treatment acted."""
    head = ["trial", *SYSTEMS, f"kept at {SHOWN_BEAM}", "K 1-4", "L_rank", "error", "ω"]
    rows = []
    for part in parts:
        ranks = Ranks.read([part])
        cells = [_cell(ranks, system, part["seed"]) for system in SYSTEMS]
        kept = np.mean(list(part["survival"]["served"][str(SHOWN_BEAM)].values()))
        levels = np.mean([levels[:SHOWN_LEVELS] for levels in part["divergence"].values()], 0)
        omega = "" if part["omega"] is None else f"{part['omega']:g}"
        told = [f"{100 * kept:.1f}", " ".join(f"{k:.2f}" for k in levels), f"{part['rank_loss']:.3f}"]
        error = f"{np.mean(list(part['error'].values())):.3f}"
        rows.append([f"{part['unit']}-{part['seed']}", *cells, *told, error, omega])
    note = "MRR@10 on validation in per cent, mean over tasks; kept: positives under the served beam at its last level."
    return Table("tuning", "Trials on validation", head, rows, [note])


def _cell(ranks: Ranks, system: str, seed: int) -> str:
    if system not in ranks.by_system:
        return ""
    return f"{100 * ranks.over_seeds(system, MEAN, 'mrr@10')[0]:.2f}"
