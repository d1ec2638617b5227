"""The main comparison: dense search, GENIUS, PRO and the best recipe, on every task.

Beside them stands what the codes of the recipe under study find by geometry alone: what is more is the decoder's doing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from siglum.bench.captions import DIMS, code_bits
from siglum.config import RunConfig
from siglum.experiment.base import Outcome, Part, Unit, by_unit
from siglum.experiment.ranks import (
    MEAN,
    MEASURES,
    Ranks,
    choose_weights,
    geometry_alone,
    mean_mrr,
    rank_systems,
    show_interval,
)
from siglum.experiment.setting import Setting
from siglum.experiment.systems import measure_label, systems_figure, systems_table, task_label, weights_notes
from siglum.experiment.tables import Table
from siglum.experiment.trained import open_space, open_trained
from siglum.fuse.contrastive import embed
from siglum.fuse.modules import Fusion, plain_sum
from siglum.measure.evaluate import FlatRanker, Ranker
from siglum.types import Vectors

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
        return [
            Unit(name, seed, setting.config(recipe, seed))
            for seed in range(setting.seeds)
            for name, recipe in recipes.items()
        ]

    def measure(self, setting: Setting, unit: Unit) -> dict[str, Any]:
        """Rank every test query with one system."""
        if unit.name == "dense":
            return self._measure_dense(setting, unit)
        config = self._best_size(setting, unit.config) if unit.config.recipe == "best" else unit.config
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

    def _best_size(self, setting: Setting, config: RunConfig) -> RunConfig:
        """Return `best` with the size of fused space whose codes do best in a scan on validation (folders alone)."""
        if setting.is_world:
            return config
        tried = {}
        for dim in DIMS:
            sized = replace(config, fusion=replace(config.fusion, dim=dim))
            trained = open_trained(setting, sized, decoder=False)
            tried[dim] = (mean_mrr(trained.vectors.of_split("val"), trained.scan()), sized)
        return max(tried.values(), key=lambda found: found[0])[1]

    def assemble(self, setting: Setting, parts: list[Part]) -> Outcome:
        """Make one table a measure, the intervals, and a figure of Success@1."""
        ranks = Ranks.read(parts)
        against = {
            other: {
                task: {measure: ranks.contrast(weights, task, measure) for measure in MEASURES}
                for task in (*ranks.tasks, MEAN)
            }
            for other in ("genius", "geometry")
            for weights in [{other: -1.0, setting.recipe: 0.0 if setting.recipe == other else 1.0}]
        }
        results = {
            "systems": ranks.summary(),
            "against_genius": against["genius"],
            "against_geometry": against["geometry"],
            "bytes_per_item": {name: size for part in parts for name, size in part["bytes"].items()},
            "chosen": {f"{part['unit']}-{part['seed']}": part.get("chosen") for part in parts},
        }
        labels = {**LABELS, setting.recipe: LABELS.get(setting.recipe, setting.recipe)}
        own = labels[setting.recipe]
        labels["geometry"] = f"{own}'s codes, {LABELS['geometry']}"
        notes = weights_notes(_omegas(parts), labels)
        tables = [systems_table(ranks, measure, labels, f"main-{measure}", notes=notes) for measure in MEASURES]
        tables.append(_gaps_table("main-gaps", f"{own} less GENIUS", against["genius"]))
        title = f"{own} less geometry alone on the same codes: what the decoder, and a query head if any, adds"
        tables.append(_gaps_table("main-decoder", title, against["geometry"]))
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


def _gaps_table(name: str, title: str, gaps: dict[str, Any]) -> Table:
    rows = [[task_label(task), *(show_interval(gaps[task][measure]) for measure in MEASURES)] for task in gaps]
    note = "Points, with 95 % intervals of a paired bootstrap over queries (grouped by target) and seeds."
    return Table(name, title, ["task", *map(measure_label, MEASURES)], rows, [note])


def flat_ranker(fusion: Fusion, vectors: Vectors, device: str) -> FlatRanker:
    """Return exhaustive search in a fused space."""
    return FlatRanker(embed(fusion, vectors.queries, device), embed(fusion, vectors.items, device))
