"""The same trained systems on larger pools: what of survival and of Success@k is left as distractors are added.

Given `--pools`, the experiments `survival` and `main` have these units beside their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from siglum.config import RunConfig
from siglum.lab.experiments.base import Outcome, Part, Unit
from siglum.lab.experiments.checks import kept_share, read_samples, rounded
from siglum.lab.experiments.distractors import block_of, blocks, by_pool, widened
from siglum.lab.experiments.plots import Figure, Panel, Series, short
from siglum.lab.experiments.ranks import DIMS, Ranks, best_size, choose_weights, rank_systems
from siglum.lab.experiments.samples import MEAN, Samples, show_interval
from siglum.lab.experiments.setting import Setting
from siglum.lab.experiments.systems import measure_label
from siglum.lab.experiments.trained import open_trained
from siglum.lab.tables import Table, percent
from siglum.measure.evaluate import Ranker
from siglum.recipes import recipe, without_pd
from siglum.types import Modality, Vectors

BEAMS = (10, 20, 50)
QUERIES = 2_000
"""Test queries asked of each pool, spread evenly over the tasks."""
BLOCKS, AT = "distractors-", "@"
DENSE = "dense"
LABELS = {
    "genius": "GENIUS",
    "genius_pd": "GENIUS + PD",
    "pro_off": "PRO, PD off",
    "pro": "PRO",
    "best_off": "best, PD off",
    "best": "best",
    DENSE: "dense search",
}
MEASURES = ("success@1", "success@10", "mrr@10")


def wide_units(setting: Setting) -> list[Unit]:
    """Return what makes the distractors, then every system on every pool at every seed; nothing without `--pools`."""
    found = [
        Unit(f"{BLOCKS}{kind.short}-{block}", 0, setting.config(), options, data=False, anywhere=True)
        for kind in Modality
        for block in blocks(max(setting.pools, default=0))
        for options in [{"kind": int(kind), "block": block}]
    ]
    for seed in range(setting.seeds):
        for name, config in _systems(setting, seed).items():
            for size in setting.pools:
                options = {"size": size, "queries": QUERIES, "beams": list(BEAMS)}
                found.append(Unit(f"{name}{AT}{size}", seed, config, options, stage=1))
    return found if setting.is_world else [unit for unit in found if AT in unit.name]


def _systems(setting: Setting, seed: int) -> dict[str, RunConfig]:
    """Return the compared systems, with and without distillation where a recipe has it."""
    names = {"genius": "genius", "genius_pd": "pd", "pro": setting.recipe, "best": "best"}
    found = {name: recipe(one, setting.scale, seed) for name, one in names.items()}
    for name in ("pro", "best"):
        if found[name].tokenizer.rank_weight:
            found[f"{name}_off"] = without_pd(found[name])
    return {name: setting.fit(config) for name, config in found.items()}


def is_wide(unit: str) -> bool:
    """Whether a unit belongs here.

    >>> is_wide("pro@25000"), is_wide("distractors-i-0"), is_wide("pro")
    (True, True, False)
    """
    return AT in unit or unit.startswith(BLOCKS)


def measure_wide(setting: Setting, unit: Unit, *, ranks: bool) -> dict[str, Any]:
    """Make a block of distractors, or ask a system: for the ranks in its own beam, or for survival in several."""
    if unit.name.startswith(BLOCKS):
        return {"rows": len(block_of(setting, Modality(unit.options["kind"]), unit.options["block"]))}
    config, size = unit.config, unit.options["size"]
    if config.recipe == "best" and not setting.is_world:
        config, _ = best_size(setting, config, DIMS)
    trained = open_trained(setting, config)
    served = trained.config.search
    served = replace(served, prior=0.0) if served.scorer == "decoder" else choose_weights(trained).best
    found: dict[str, Any] = {"systems": {}, "numbers": {}, "groups": {}}
    name = unit.name.partition(AT)[0]
    for tasks in by_pool(setting.vectors(), unit.options["queries"]):
        wide = trained.moved(widened(setting, tasks, size))
        if ranks:
            rankers: dict[str, Ranker] = {name: wide.beam(served)}
            rankers |= {DENSE: wide.dense()} if name == "pro" else {}
            _join(found, rank_systems(wide.vectors, rankers))
            continue
        beams = {beam: wide.beam(replace(served, beam=beam)) for beam in unit.options["beams"]}
        for task in wide.vectors.tasks:
            row = {f"beam@{beam}": rounded(kept_share(ranker, task)) for beam, ranker in beams.items()}
            found["numbers"].setdefault(name, {})[task.name] = row
        found["groups"] |= _groups(wide.vectors)
    return {**found, "omega": served.omega if served.scorer == "fused" else None}


def _join(found: dict[str, Any], more: dict[str, Any]) -> None:
    for system, tasks in more["systems"].items():
        found["systems"].setdefault(system, {}).update(tasks)
    found["groups"] |= more["groups"]


def _groups(vectors: Vectors) -> dict[str, list[int]]:
    """Return the target of every query where queries of a task share theirs."""
    return dict(rank_systems(vectors, {})["groups"])


def with_pools(parts: list[Part], assemble: Callable[[list[Part]], Outcome], *, ranks: bool) -> Outcome:
    """Return an experiment's own outcome, and after it what was measured on larger pools, where any was."""
    own = [part for part in parts if not is_wide(part["unit"])]
    outcome = assemble(own) if own else Outcome({})
    wide = [part for part in parts if AT in part["unit"]]
    if wide:
        results, tables, figure = _over_sizes(wide, ranks=ranks)
        outcome.results["pools"] = results
        outcome.tables += tables
        outcome.figures.append(figure)
    return outcome


def _over_sizes(wide: list[Part], *, ranks: bool) -> tuple[dict[str, Any], list[Table], Figure]:
    by_size: dict[int, list[Part]] = {}
    for part in wide:
        by_size.setdefault(int(part["options"]["size"]), []).append(part)
    sizes = sorted(by_size)
    read: Callable[[list[Part]], Samples] = Ranks.read if ranks else lambda some: read_samples(some, "numbers")
    samples = {size: read(by_size[size]) for size in sizes}
    measures = MEASURES if ranks else tuple(f"beam@{beam}" for beam in BEAMS)
    names = [name for name in LABELS if any(name in one.by_system for one in samples.values())]
    results: dict[str, Any] = {
        "systems": {
            str(size): {
                name: {measure: one.cell(name, MEAN, measure) for measure in measures} for name in one.by_system
            }
            for size, one in samples.items()
        },
        "differences": {
            str(size): {
                pair: {measure: one.contrast(weights, MEAN, measure) for measure in measures}
                for pair, weights in PAIRS.items()
            }
            for size, one in samples.items()
        },
    }
    tables = [_table(samples, names, measure) for measure in measures]
    tables.append(_effects(results["differences"], measures))
    return results, tables, _figure(samples, names, measures)


PAIRS = {
    "GENIUS: PD on less off": {"genius_pd": 1.0, "genius": -1.0},
    "PRO: PD on less off": {"pro": 1.0, "pro_off": -1.0},
    "best: PD on less off": {"best": 1.0, "best_off": -1.0},
    "PRO less GENIUS": {"pro": 1.0, "genius": -1.0},
    "best less PRO": {"best": 1.0, "pro": -1.0},
}


def words_of(measure: str) -> str:
    """Return a measure for people.

    >>> words_of("beam@20"), words_of("success@1")
    ('Targets kept in the own beam, B = 20', 'Success@1')
    """
    kind, _, depth = measure.partition("@")
    return f"Targets kept in the own beam, B = {depth}" if kind == "beam" else measure_label(measure)


def _table(samples: dict[int, Samples], names: list[str], measure: str) -> Table:
    rows = [
        [
            LABELS[name],
            *(
                percent(one.over_seeds(name, MEAN, measure)) if name in one.by_system else "–"
                for one in samples.values()
            ),
        ]
        for name in names
    ]
    notes = [
        f"Per cent, mean over tasks (and deviation over seeds); {QUERIES:,} test queries, the same at every size. "
        "Every task's own pool with distractors of its kind added, the same trained models.",
    ]
    head = ["system", *(f"{size:,} items" for size in samples)]
    return Table(f"pools-{measure}", f"{words_of(measure)}, by the size of the pool", head, rows, notes)


def _effects(found: dict[str, Any], measures: tuple[str, ...]) -> Table:
    rows = [
        [f"{pair}, {int(size):,} items", *(show_interval(one[measure]) for measure in measures)]
        for pair in PAIRS
        for size, pairs in found.items()
        for one in [pairs[pair]]
        if any(one.values())
    ]
    note = "Points, tasks pooled, with 95 % intervals of a paired bootstrap over queries (grouped by target) and seeds."
    return Table("pools-effects", "Differences as the pool grows", ["", *map(words_of, measures)], rows, [note])


def _figure(samples: dict[int, Samples], names: list[str], measures: tuple[str, ...]) -> Figure:
    sizes, panels = list(samples), []
    for measure in measures:
        series = []
        for style, name in enumerate(names):
            there = [size for size in sizes if name in samples[size].by_system]
            cells = [samples[size].cell(name, MEAN, measure)["mean"] for size in there]
            series.append(Series(LABELS[name], cells, [float(size) for size in there], style=style))
        is_beam = measure.startswith("beam")
        y_label, words = ("targets kept", f"B = {measure.partition('@')[2]}") if is_beam else (words_of(measure), "")
        panels.append(Panel("lines", series, "items in the pool", y_label, words, log_x=True, share=True))
    title = f"The same models on pools of {short(sizes[0])} to {short(sizes[-1])} items, mean over tasks"
    return Figure("pools", title, panels)
