"""The ablation: all eight combinations of PD, VS and SF, their interactions, and what the released code does instead.

Score fusion acts in search alone, so that four trainings give all eight. Two further ones distil over items as the
released code does; raw and z-scored bias are compared on the same codes. Geometry alone searches the codes of every
training too, so that what the decoder adds can be told from what the codes give.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from siglum.config import TokenizerConfig
from siglum.lab.experiments.base import Outcome, Part, Unit, by_unit
from siglum.lab.experiments.checks import checks_of, read_samples
from siglum.lab.experiments.checks_view import acted, acted_table
from siglum.lab.experiments.plots import Figure
from siglum.lab.experiments.ranks import (
    MEAN,
    Ranks,
    choose_weights,
    decoder_alone,
    geometry_alone,
    rank_systems,
    show_interval,
    t_test_notes,
)
from siglum.lab.experiments.setting import Setting
from siglum.lab.experiments.systems import (
    GEOMETRY,
    contrast_panel,
    contrast_table,
    measure_label,
    shown_tasks,
    systems_figure,
    systems_table,
    task_label,
    weights_notes,
)
from siglum.lab.experiments.trained import open_trained
from siglum.lab.tables import Table
from siglum.recipes import recipe, without_pd, without_vs

PARTS = ("pd", "vs", "sf")
LABELS = {
    "base": "base (GENIUS)",
    "pd": "+ PD",
    "vs": "+ VS",
    "sf": "+ SF",
    "pd_vs": "+ PD + VS",
    "pd_sf": "+ PD + SF",
    "vs_sf": "+ VS + SF",
    "pd_vs_sf": "PRO: + PD + VS + SF",
}
VARIANTS = {
    "pd_vs_sf": "prefixes (paper), raw bias (paper)",
    "pd_vs_sf_z": "prefixes (paper), z-scored bias (released)",
    "items_sf": "items, raw bias (paper)",
    "items_sf_z": "items, z-scored bias (released)",
    "released_sf": "items, cosine, τ², student's gradient (released), raw bias (paper)",
    "released_sf_z": "items, cosine, τ², student's gradient (released), z-scored bias (released)",
}
"""How distillation ranks and how the bias is scaled; all have PD, VS and SF."""
CODES = {
    "base": "base codes",
    "vs": "codes with VS",
    "pd": "codes with PD",
    "pd_vs": "codes with PD + VS",
    "items": "codes with PD over items + VS",
    "released": "codes with the released PD + VS",
}
"""The trainings, by what they make."""
RELEASED_WEIGHT = 100.0
"""The released code's λ, which its factor τ² makes 0.25 on the divergence itself."""
MAIN_MEASURES = ("success@1", "success@5", "mrr@10")


def _items(config: TokenizerConfig) -> TokenizerConfig:
    """Distil over items instead of distinct prefixes, and nothing else."""
    return replace(config, rank_form="items")


def _released(config: TokenizerConfig) -> TokenizerConfig:
    """Distil with all that the released code does otherwise in L_rank."""
    return replace(
        _items(config),
        rank_cosine=True,
        rank_scale_tau2=True,
        rank_keep_positive=False,
        rank_student_gradient=True,
        rank_weight=RELEASED_WEIGHT,
    )


LOSSES: dict[str, Callable[[TokenizerConfig], TokenizerConfig]] = {"items": _items, "released": _released}


class Ablation:
    """Eight combinations of the three parts, main effects, interactions, and the released code's choices."""

    name = "ablation"
    title = "What each part adds"

    def units(self, setting: Setting) -> list[Unit]:
        """Six trainings a seed: PD and VS on and off, and two other losses of distillation; then geometry on each."""
        found = []
        for seed in range(setting.seeds):
            full = recipe(setting.recipe, setting.scale, seed)
            for pd, vs in product((False, True), repeat=2):
                config = full if pd else without_pd(full)
                config = config if vs else without_vs(config)
                found.append(Unit(name_of(pd, vs), seed, setting.fit(config)))
            for name, change in LOSSES.items():
                found.append(Unit(name, seed, setting.fit(replace(full, tokenizer=change(full.tokenizer)))))
        return found + [replace(unit, name=unit.name + GEOMETRY) for unit in found]

    def measure(self, setting: Setting, unit: Unit) -> dict[str, Any]:
        """Rank with the decoder alone and with score fusion, its weight chosen on validation; or by geometry alone."""
        if unit.name.endswith(GEOMETRY):
            trained, search = open_trained(setting, unit.config, decoder=False), geometry_alone(unit.config.search)
            found = rank_systems(trained.vectors, {unit.name: trained.beam(search)})
            return {**found, **checks_of(trained, {unit.name: search})}
        trained = open_trained(setting, unit.config)
        own = replace(unit.config.search, zscore=False)
        fused = {with_sf(unit.name): own}
        if unit.name in (*LOSSES, name_of(True, True)):
            fused[with_sf(unit.name) + "_z"] = replace(own, zscore=True, lookahead=False)
        chosen = {name: choose_weights(trained, search).best for name, search in fused.items()}
        searches = {unit.name: decoder_alone(own), **chosen}
        found = rank_systems(trained.vectors, {name: trained.beam(one) for name, one in searches.items()})
        omega = {name: one.omega for name, one in chosen.items()}
        return {**found, **checks_of(trained, searches), "omega": omega, "trained": trained.seconds}

    def assemble(self, setting: Setting, parts: list[Part]) -> Outcome:
        """Make the tables of combinations, contrasts and variants."""
        ranks, checks = Ranks.read(parts), read_samples(parts)
        found, released, added = (
            {label: ranks.contrasts(weights) for label, weights in all_().items()}
            for all_ in (contrasts, released_contrasts, added_contrasts)
        )
        t_tests = ranks.t_tests(name_of(True, True, True), name_of(False, False))
        acts = {part: acted(checks, contrasts()[part], part) for part in map(str.upper, PARTS)}
        results = {
            "systems": ranks.summary(),
            "checks": checks.summary(checks.measures),
            "acted": acts,
            "contrasts": found,
            "released": released,
            "added_to_geometry": added,
            "t_test_against_base": t_tests,
            "omega": {f"{part['unit']}-{part['seed']}": part["omega"] for part in parts if "omega" in part},
        }
        omegas, geometry = _omegas(parts), {f"{name}{GEOMETRY}": f"geometry alone, {CODES[name]}" for name in CODES}
        notes = weights_notes(omegas, LABELS) + t_test_notes(t_tests, "all three parts and none")
        labels = LABELS | {name: label for name, label in geometry.items() if name.removesuffix(GEOMETRY) in LABELS}
        tables = [systems_table(ranks, m, labels, f"ablation-{m}", notes=notes, checks=checks) for m in MAIN_MEASURES]
        effects = {part: found[part][MEAN]["mrr@10"] for part in acts}
        tables.append(acted_table("ablation-acted", acts, effects, measure_label("mrr@10")))
        tables.append(_by_measure("ablation-contrasts", "Effects and interactions, mean over tasks", found))
        shown = shown_tasks(ranks)
        rows = [[label, *(show_interval(one[task]["success@1"]) for task in shown)] for label, one in found.items()]
        head = ["contrast", *map(task_label, shown)]
        tables.append(Table("ablation-tasks", "The same in Success@1, task by task", head, rows))
        tables.append(_by_measure("ablation-decoder", "What is added to geometry alone, mean over tasks", added))
        title = "Distillation and bias: the paper's and the released code's"
        notes = weights_notes(omegas, VARIANTS)
        tables.append(systems_table(ranks, "success@1", VARIANTS, "ablation-released", title, notes, checks))
        tables.append(_by_measure("ablation-choices", "Released less paper, mean over tasks", released))
        return Outcome(results, tables, [_combinations(ranks), _effects(found)])


def name_of(pd: bool, vs: bool, sf: bool = False) -> str:
    """Return the name of a combination.

    >>> name_of(True, False), name_of(False, False), name_of(True, True, True)
    ('pd', 'base', 'pd_vs_sf')
    """
    return "_".join(part for part, on in zip(PARTS, (pd, vs, sf), strict=True) if on) or "base"


def with_sf(name: str) -> str:
    """Return the name of the same training with score fusion."""
    return "sf" if name == "base" else f"{name}_sf"


def contrasts() -> dict[str, dict[str, float]]:
    """Return the weights of every contrast of the eight combinations.

    A main effect is the mean over the other two parts of on less off; an interaction is the effect of one part with
    the other on, less with it off, both averaged over the third part and (as the paper reads its table) without it.

    >>> contrasts()["PD×VS, SF off"]
    {'pd_vs': 1.0, 'pd': -1.0, 'vs': -1.0, 'base': 1.0}
    """
    cells = list(product((True, False), repeat=3))
    sign = {True: 1.0, False: -1.0}
    found = {}
    for place, part in enumerate(PARTS):
        found[part.upper()] = {name_of(*cell): sign[cell[place]] / 4 for cell in cells}
    for left, right, third in ((0, 1, 2), (0, 2, 1), (1, 2, 0)):
        label = f"{PARTS[left].upper()}×{PARTS[right].upper()}"
        weights = {cell: sign[cell[left]] * sign[cell[right]] for cell in cells}
        found[label] = {name_of(*cell): weight / 2 for cell, weight in weights.items()}
        without = {name_of(*cell): weight for cell, weight in weights.items() if not cell[third]}
        found[f"{label}, {PARTS[third].upper()} off"] = without
    return found


def released_contrasts() -> dict[str, dict[str, float]]:
    """Return the weights of what the released code does otherwise, less what the paper says."""
    return {
        "items less prefixes, raw bias": {"items_sf": 1.0, "pd_vs_sf": -1.0},
        "items less prefixes, decoder alone": {"items": 1.0, "pd_vs": -1.0},
        "released loss less the paper's, raw bias": {"released_sf": 1.0, "pd_vs_sf": -1.0},
        "released loss less the paper's, decoder alone": {"released": 1.0, "pd_vs": -1.0},
        "z-scored less raw bias": {"pd_vs_sf_z": 1.0, "pd_vs_sf": -1.0},
        "released loss and z-scored bias less the paper's": {"released_sf_z": 1.0, "pd_vs_sf": -1.0},
    }


def added_contrasts() -> dict[str, dict[str, float]]:
    """Return the weights of what the decoder, alone and fused, finds more than geometry on the same codes.

    >>> list(added_contrasts().items())[0]
    ('fused less geometry, base codes', {'sf': 1.0, 'base_geometry': -1.0})
    """
    return {
        f"{words} less geometry, {codes}": {system: 1.0, name + GEOMETRY: -1.0}
        for name, codes in CODES.items()
        for words, system in (("fused", with_sf(name)), ("decoder alone", name))
    }


def _omegas(parts: list[Part]) -> dict[str, list[float]]:
    """Return the weights of geometry that fused systems search with, one a seed."""
    found: dict[str, list[float]] = {}
    for part in (part for seeds in by_unit(parts).values() for part in seeds):
        for name, omega in part.get("omega", {}).items():
            found.setdefault(name, []).append(omega)
    return found


def _combinations(ranks: Ranks) -> Figure:
    """Return bars of all eight combinations."""
    names = [name_of(pd, vs) for pd, vs in product((False, True), repeat=2)]
    rows = {"decoder alone": names, "with score fusion (SF)": [with_sf(name) for name in names]}
    ticks = ["base", "VS", "PD", "PD+VS"]
    return systems_figure(ranks, "ablation", "Success@1 of all combinations of PD, VS and SF", ticks, rows)


def _effects(found: Mapping[str, Any]) -> Figure:
    """Return bars of main effects and interactions with their intervals."""
    one = {label: tasks[MEAN]["success@1"] for label, tasks in found.items()}
    effects = {label: value for label, value in one.items() if "×" not in label}
    whole = {label: value for label, value in one.items() if "×" in label and "," not in label}
    without = {label.partition(",")[0]: value for label, value in one.items() if "," in label}
    both = {"mean over the other parts": whole, "without the third part": without}
    panels = [
        contrast_panel("effects", "Success@1 gained", {"mean over the other parts": effects}),
        contrast_panel("interactions", "Success@1 gained", both),
    ]
    return Figure("interactions", "What the parts add and how they interact, mean over tasks", panels)


def _by_measure(name: str, title: str, found: Mapping[str, Any]) -> Table:
    return contrast_table(name, title, "contrast", {label: one[MEAN] for label, one in found.items()})
