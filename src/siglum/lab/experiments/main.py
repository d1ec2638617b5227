"""The main comparison: dense search, GENIUS, PRO and the best recipe, on every task.

Beside them stands what the codes of the recipe under study find by geometry alone: what is more is the decoder's doing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from siglum.fuse.modules import plain_sum
from siglum.lab.experiments.base import Outcome, Part, Unit, by_unit
from siglum.lab.experiments.pools import is_wide, measure_wide, wide_units, with_pools
from siglum.lab.experiments.ranks import (
    DIMS,
    MEASURES,
    Ranks,
    best_size,
    choose_weights,
    geometry_alone,
    rank_systems,
)
from siglum.lab.experiments.setting import Setting
from siglum.lab.experiments.systems import contrast_table, systems_figure, systems_table, task_label, weights_notes
from siglum.lab.experiments.trained import code_bits, flat_ranker, open_space, open_trained
from siglum.measure.evaluate import Ranker

LABELS = {
    "raw": "the features as they are (zero-shot)",
    "dense": "dense search in the fused space",
    "geometry": "geometry alone (no decoder)",
    "genius": "GENIUS",
    "pro": "PRO",
    "best": "best",
}
SHORT = {"genius": "GENIUS", "pro": "PRO"}
"""Names below bars."""


class Main:
    """Systems against tasks: Success@1, 5, 10 and MRR@10, with paired intervals of PRO less GENIUS."""

    name = "main"
    title = "Systems on tasks"

    def units(self, setting: Setting) -> list[Unit]:
        """One training a system and seed; dense space and geometry are those of the recipe under study."""
        own = setting.recipe
        recipes = {"dense": own, "genius": "genius", own: own, "best": "best", "geometry": own}
        units = [
            Unit(name, seed, setting.config(recipe, seed))
            for seed in range(setting.seeds)
            for name, recipe in recipes.items()
        ]
        return units + wide_units(setting)

    def measure(self, setting: Setting, unit: Unit) -> dict[str, Any]:
        """Rank every test query with one system."""
        if is_wide(unit.name):
            return measure_wide(setting, unit, ranks=True)
        if unit.name == "dense":
            return self._measure_dense(setting, unit)
        config = unit.config
        if config.recipe == "best" and not setting.is_world:
            config, _ = best_size(setting, config, DIMS)
        trained = open_trained(setting, config, decoder=unit.name != "geometry")
        tried: list[dict[str, Any]] = []
        if unit.name == "geometry":
            search = geometry_alone(config.search)
        elif config.search.scorer == "decoder":
            search = replace(config.search, prior=0.0)
        else:
            weighed = choose_weights(trained)
            search, tried = weighed.best, weighed.tried
        found = rank_systems(trained.vectors, {unit.name: trained.beam(search)})
        chosen = {"dim": config.fusion.dim, "scorer": search.scorer, "omega": search.omega, "prior": search.prior}
        bytes_per_item = {unit.name: code_bits(config) / 8}
        return {**found, "chosen": chosen, "tried": tried, "bytes": bytes_per_item, "trained": trained.seconds}

    def _measure_dense(self, setting: Setting, unit: Unit) -> dict[str, Any]:
        vectors = setting.vectors()
        fusion, seconds = open_space(setting, unit.config)
        rankers: dict[str, Ranker] = {}
        plain = None if setting.is_world else plain_sum(vectors.items.image.shape[1], vectors.items.text.shape[1])
        if plain is not None:  # features of one size are taken to live in one space
            rankers["raw"] = flat_ranker(plain, vectors, setting.device)
        rankers["dense"] = flat_ranker(fusion, vectors, setting.device)
        sizes = {"dense": 4 * unit.config.fusion.dim, "raw": 4 * vectors.items.image.shape[1]}
        found = rank_systems(vectors, rankers)
        return {**found, "bytes": {name: sizes[name] for name in rankers}, "trained": {"space": seconds}}

    def assemble(self, setting: Setting, parts: list[Part]) -> Outcome:
        """Make one table a measure, the intervals, and a figure of Success@1; more on larger pools, if asked for."""
        return with_pools(parts, lambda own: self._assemble(setting, own), ranks=True)

    def _assemble(self, setting: Setting, parts: list[Part]) -> Outcome:
        ranks = Ranks.read(parts)
        against = {
            other: ranks.contrasts({other: -1.0, setting.recipe: 0.0 if setting.recipe == other else 1.0})
            for other in ("genius", "geometry")
        }
        t_tests = ranks.t_tests(setting.recipe, "genius") if setting.recipe != "genius" else {}
        results = {
            "systems": ranks.summary(),
            "against_genius": against["genius"],
            "against_geometry": against["geometry"],
            "t_test_against_genius": t_tests,
            "bytes_per_item": {name: size for part in parts for name, size in part["bytes"].items()},
            "chosen": {f"{part['unit']}-{part['seed']}": part.get("chosen") for part in parts},
        }
        labels = {**LABELS, setting.recipe: LABELS.get(setting.recipe, setting.recipe)}
        own = labels[setting.recipe]
        labels["geometry"] = f"{own}'s codes, {LABELS['geometry']}"
        notes = weights_notes(_omegas(parts), labels)
        tables = [systems_table(ranks, measure, labels, f"main-{measure}", notes=notes) for measure in MEASURES]
        gaps, added = ({task_label(task): one for task, one in found.items()} for found in against.values())
        p_values = {task_label(task): one for task, one in t_tests.items() if any(p is not None for p in one.values())}
        tables.append(contrast_table("main-gaps", f"{own} less GENIUS", "task", gaps, p_values))
        title = f"{own} less geometry alone on the same codes: what the decoder, and a query head if any, adds"
        tables.append(contrast_table("main-decoder", title, "task", added))
        shown = [system for system in labels if system in ranks.by_system]
        ticks = [SHORT.get(system, system) for system in shown]
        figure = systems_figure(ranks, "main", "Success@1 of systems on tasks", ticks, {"system": shown})
        return Outcome(results, tables, [figure])


def _omegas(parts: list[Part]) -> dict[str, list[float]]:
    """Return the weights of geometry that fused systems search with, one a seed."""
    found: dict[str, list[float]] = {}
    for name, seeds in by_unit(parts).items():
        chosen = [part["chosen"] for part in seeds if part.get("chosen")]
        found[name] = [one["omega"] for one in chosen if one["scorer"] == "fused"]
    return found
