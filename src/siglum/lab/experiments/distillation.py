"""Experiment `distillation`: does prefix ranking distillation act, and is it the ranking that does?

All systems have one vocabulary, and at every seed one fused space to begin with; the seed of that space varies too.
Beside training without and with distillation (PD) stand four controls: a space that got the same extra epochs of L_cl
and then stays, a slower EMA without PD, and two teachers that know no ranking, the positive alone and the fused
similarities dealt anew among their candidates. Only what PD has above those two is ranking distillation. All test
queries are asked and all their positives count. Shapes: Q queries, L residual levels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from siglum.config import SearchConfig, TokenizerConfig
from siglum.fuse.contrastive import embed
from siglum.lab.experiments.base import Outcome, Part, Unit
from siglum.lab.experiments.checks import (
    ORIGINAL,
    Space,
    divergence,
    k_measures,
    kept_share,
    losses_by_task,
    read_samples,
    rounded,
    target_errors,
)
from siglum.lab.experiments.distillation_view import LABELS, contrast_tables, figures, system_tables
from siglum.lab.experiments.prediction import prediction_table, predictions
from siglum.lab.experiments.ranks import Ranks, choose_weights, decoder_alone, geometry_alone, rank_systems
from siglum.lab.experiments.samples import MEAN, Samples
from siglum.lab.experiments.setting import Setting
from siglum.lab.experiments.trained import Trained, open_space, open_trained
from siglum.lab.experiments.verdict import LOSS, PRIMARY, judge
from siglum.measure.evaluate import Ranker
from siglum.types import SiglumError

BEAMS = (10, 20, 50)
SLOW = 0.99
"""EMA decay of the control that only moves its codebooks slowly."""


def _without(config: TokenizerConfig) -> TokenizerConfig:
    return replace(config, rank_weight=0.0)


def _extra(config: TokenizerConfig) -> TokenizerConfig:
    """Train the space by L_cl alone for as many epochs as joint training takes, then the codebooks on what it is."""
    return replace(_without(config), train_fusion=False, space_epochs=config.epochs)


SYSTEMS: dict[str, Callable[[TokenizerConfig], TokenizerConfig]] = {
    "off": _without,
    "on": lambda config: config,
    "extra": _extra,
    "slow_ema": lambda config: replace(_without(config), decay=SLOW),
    "one_hot": lambda config: replace(config, rank_teacher="positive"),
    "shuffled": lambda config: replace(config, rank_teacher="shuffled"),
}
"""What each system makes of the recipe's tokenizer; `LABELS` says it in words."""


class Distillation:
    """PD off, PD on and four controls, from held-out L_rank to Success@k."""

    name = "distillation"
    title = "Does prefix ranking distillation act, and through what?"

    def units(self, setting: Setting) -> list[Unit]:
        """Return every system at every seed, the fusion module learning along with the codebooks."""
        options = {"beams": list(BEAMS), "slow": SLOW}
        found = []
        for name, change in SYSTEMS.items():
            for seed in range(setting.seeds):
                config = setting.config("", seed, "joint")
                if not config.tokenizer.rank_weight:
                    raise SiglumError(
                        f"recipe {setting.recipe} distils nothing; experiment distillation needs one that does, as pro."
                    )
                found.append(Unit(name, seed, replace(config, tokenizer=change(config.tokenizer)), options))
        return found

    def measure(self, setting: Setting, unit: Unit) -> dict[str, Any]:
        """Measure codes, beams and ranks of one system on all test queries."""
        trained = open_trained(setting, unit.config)
        served = choose_weights(trained).best
        own = unit.config.search
        rankers: dict[str, Ranker] = {
            unit.name: trained.beam(served),
            f"{unit.name}_decoder": trained.beam(decoder_alone(own)),
            f"{unit.name}_geometry": trained.beam(geometry_alone(own)),
            f"{unit.name}_dense": trained.dense(),
        }
        space, _ = open_space(setting, unit.config)
        original = tuple(
            embed(space, part, setting.device) for part in (trained.vectors.queries, trained.vectors.items)
        )
        numbers, levels = _numbers(trained, served, (original[0], original[1]), unit.options["beams"])
        return {
            **rank_systems(trained.vectors, rankers),
            "numbers": {unit.name: numbers},
            "K_by_level": {unit.name: levels},
            "omega": served.omega,
            "trained": trained.seconds,
        }

    def assemble(self, setting: Setting, parts: list[Part]) -> Outcome:
        """Judge by the endpoint fixed beforehand, and show what stands behind it."""
        numbers, ranks = read_samples(parts, "numbers"), Ranks.read(parts)
        found = judge(numbers)
        predicted = predictions(numbers)
        levels = _mean_levels(parts)
        results = {
            **found,
            "labels": LABELS,
            "numbers": numbers.summary(numbers.measures),
            "beam_survival_at": _by_beam(numbers, "beam"),
            "oracle_survival_at": _by_beam(numbers, "oracle"),
            "ranks": ranks.summary(),
            "K_by_level": levels,
            "prediction": predicted,
            "omega": {f"{part['unit']}-{part['seed']}": part["omega"] for part in parts},
        }
        tables = [*contrast_tables(numbers, ranks, found), *system_tables(numbers, ranks, levels)]
        return Outcome(results, [*tables, prediction_table(predicted)], figures(numbers, ranks, levels, found))


def _numbers(
    trained: Trained, served: SearchConfig, original: Space, beams: list[int]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return task -> measure -> one number a query, and task -> teacher -> K of every level."""
    tasks = trained.vectors.of_split("test")
    loss = losses_by_task(trained)
    scorers = {"beam": served, "oracle": SearchConfig(scorer="oracle", batch_size=served.batch_size)}
    numbers, levels = {}, {}
    for task in tasks:
        moved, first = divergence(trained, task), divergence(trained, task, original)
        levels[task.name] = {"moved": rounded(moved.mean(0)), "original": rounded(first.mean(0))}
        numbers[task.name] = {
            **k_measures(moved),
            **k_measures(first, ORIGINAL),
            LOSS: rounded(loss[task.name]),
            "error": rounded(target_errors(trained, task)),
            **{
                f"{name}@{beam}": rounded(kept_share(trained.beam(replace(search, beam=beam)), task))
                for name, search in scorers.items()
                for beam in beams
            },
        }
    return numbers, levels


def _by_beam(numbers: Samples, kind: str) -> dict[str, dict[str, float]]:
    """Return beam -> system -> survival at the last level, directions pooled, mean over seeds."""
    return {
        str(beam): {
            system: float(np.mean(numbers.over_seeds(system, MEAN, f"{kind}@{beam}"))) for system in numbers.by_system
        }
        for beam in BEAMS
    }


def _mean_levels(parts: list[Part]) -> dict[str, dict[str, list[float]]]:
    """Return system -> teacher -> K of every level, mean over tasks and seeds."""
    rows: dict[str, dict[str, list[list[float]]]] = {}
    for part in parts:
        for system, tasks in part["K_by_level"].items():
            for teachers in tasks.values():
                for teacher, values in teachers.items():
                    rows.setdefault(system, {}).setdefault(teacher, []).append(values)
    return {
        system: {teacher: np.mean(values, 0).tolist() for teacher, values in teachers.items()}
        for system, teachers in rows.items()
    }


__all__ = ["BEAMS", "PRIMARY", "SYSTEMS", "Distillation"]
