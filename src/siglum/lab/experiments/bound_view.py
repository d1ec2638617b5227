"""Tables and figures of the experiment on the survival bound."""

from __future__ import annotations

from typing import Any

from siglum.lab.experiments.plots import Figure, Panel, Series, level_ticks
from siglum.lab.experiments.survival_beams import label_of
from siglum.lab.experiments.survival_statistics import QUINTILES, between, number, per_cent
from siglum.lab.tables import Table
from siglum.measure.retention import TOP

SIGNS = {
    "K": "K",
    "m": "m",
    "eps": "ε",
    "eps_plain": "ε (decoder at temperature 1)",
    "eps_fused": "ε fused",
    "eps_fused_plain": "ε fused (at temperature 1)",
}
BEAMS = {"oracle": "oracle's beam", "own": "own beam"}
LEVELS_IN_TABLES = (1, 2, 3, 4, 6, 8, 12, 16)
LEVELS_IN_FIGURES = (1, 4, 6)
"""The paper's levels 0, 3 and 5, counted from 1; with fewer levels the first, middle and last are drawn."""
SystemRow = dict[str, Any]


def _by_tau(system: SystemRow) -> list[tuple[str, dict[str, Any]]]:
    return sorted(system["taus"].items(), key=lambda pair: float(pair[0]))


def _blocks(system: SystemRow) -> list[tuple[str, str, dict[str, Any]]]:
    """Return (quantity, its name with the temperature, what was found of it)."""
    rows = [(name, f"{name}, τ = {tau}", block) for tau, block in _by_tau(system) for name in ("K", "m")]
    mismatch = system["mismatch"]
    return rows + [
        (name, f"{SIGNS[name]}, τ = {system['tau']}", mismatch) for name in SIGNS if name in mismatch["pooled"]
    ]


def rho_table(found: dict[str, SystemRow], beam: int, intervals: str) -> Table:
    """Return Spearman's rho of every quantity with survival, at some levels and pooled."""
    depth = max(len(system["mismatch"]["levels"]) for system in found.values())
    shown = [level for level in LEVELS_IN_TABLES if level <= depth]
    rows = []
    for name, system in found.items():
        for quantity, words, block in _blocks(system):
            for kind, place in BEAMS.items():
                levels = {one["level"]: one[quantity] for one in block["levels"]}
                cells = [number(levels[level][kind]["rho"]["value"], 2) if level in levels else "" for level in shown]
                inside = [one["within"][kind] for one in levels.values() if one["within"][kind] is not None]
                within = number(sum(inside) / len(inside), 2) if inside else "–"
                pooled = block["pooled"][quantity]
                rows.append(
                    [
                        f"{label_of(name)}: {words}, {place}",
                        *cells,
                        between(pooled[kind]["rho"]),
                        within,
                        f"{pooled['mean']:.3g}",
                    ]
                )
    head = ["quantity and beam", *(f"level {level}" for level in shown), "pooled", "in tasks", "mean"]
    notes = [
        f"Spearman's ρ with cumulative survival at B = {beam}; – where all survive or the quantity is constant.",
        f"Pooled: all levels together, with {intervals}. In tasks: mean over levels and tasks of the association "
        "inside each task.",
        scope_note(found),
        "The paper: ρ = −0.59 for K; m positive; ε falls in its main text and shows no trend in its appendix.",
    ]
    return Table("bound-rho", "Rank association of the bound's quantities with survival", head, rows, notes)


def scope_note(found: dict[str, SystemRow]) -> str:
    """Return one sentence: at which levels ε is over all prefixes, and how much is left out at the others."""
    parts, followed = [], ""
    for name, system in found.items():
        full = [set(scopes) == {"full"} for scopes in zip(*system["eps_scope"].values(), strict=True)]
        left = [share for share, whole in zip(system["uncovered_mean"], full, strict=True) if not whole]
        levels = [str(place + 1) for place, whole in enumerate(full) if whole]
        where = f"level{'s' * (len(levels) > 1)} {', '.join(levels)}" if levels else "no level"
        if left:
            where += f" (elsewhere {100 * sum(left) / len(left):.2g} % of the oracle's mass is left out on average)"
            followed = f"; elsewhere it is over the beams, the best {TOP} of teacher and oracle, and the target"
        parts.append(f"{label_of(name)} at {where if left else 'every level'}")
    return f"ε is over all prefixes of the pools for {' and for '.join(parts)}{followed}."


def quintile_table(found: dict[str, SystemRow], beam: int, intervals: str) -> Table:
    """Return survival in the own beam by quintile, pooled over levels."""
    rows = [
        [
            f"{label_of(name)}: {words}",
            *(per_cent(part["survival"]["value"]) for part in block["pooled"][quantity]["own"]["quintiles"]),
            between(block["pooled"][quantity]["own"]["rho"]),
        ]
        for name, system in found.items()
        for quantity, words, block in _blocks(system)
    ]
    certain = [
        f"{label_of(name)} {per_cent(block['levels'][0]['certain'])} % at level 1, "
        f"{per_cent(block['levels'][-1]['certain'])} % at the last (τ = {tau})"
        for name, system in found.items()
        for tau, block in _by_tau(system)
    ]
    notes = [
        f"Per cent of targets still in the own beam at B = {beam}, over all levels, the smallest fifth first; ρ pooled "
        f"over levels, with {intervals}.",
        f"Queries whose survival in the oracle's beam the bound makes certain: {'; '.join(certain)}.",
    ]
    head = ["quantity", *(f"Q{place + 1}" for place in range(QUINTILES)), "ρ"]
    return Table("bound-quintiles", "Survival by quintile", head, rows, notes)


def _drawn(system: SystemRow) -> dict[str, dict[str, Any]]:
    """Return the three quantities at the tokenizer's own temperature."""
    own = system["taus"][system["tau"]]
    return {"K": own, "m": own, "eps": system["mismatch"]}


def quintile_figure(found: dict[str, SystemRow], beam: int, intervals: str) -> Figure:
    """Draw survival in the own beam by quintile of K, m and ε, one line of panels a system."""
    panels = []
    for name, system in found.items():
        for quantity, block in _drawn(system).items():
            depth = len(block["levels"])
            shown = LEVELS_IN_FIGURES if depth >= max(LEVELS_IN_FIGURES) else {1, (depth + 1) // 2, depth}
            levels = [one for one in block["levels"] if one["level"] in shown]
            series = [
                Series.of(
                    f"level {one['level']}", [part["survival"] for part in one[quantity]["own"]["quintiles"]], style
                )
                for style, one in enumerate(levels)
            ]
            rho = number(block["pooled"][quantity]["own"]["rho"]["value"], 2)
            title = f"{label_of(name)}, {SIGNS[quantity]}: ρ = {rho}"
            axes = (f"quintile of {SIGNS[quantity]}", "targets kept")
            panels.append(Panel("lines", series, *axes, title, level_ticks(QUINTILES), share=True))
    title = (
        f"Survival in the own beam (B = {beam}) by quintile of K, m and ε, with {intervals}; ρ is pooled over levels"
    )
    return Figure("bound-quintiles", title, panels)


def rho_figure(found: dict[str, SystemRow], beam: int, intervals: str) -> Figure:
    """Draw rho by level, one panel a system."""
    panels = []
    for name, system in found.items():
        depth = len(system["mismatch"]["levels"])
        series = [
            Series.of(SIGNS[quantity], [one[quantity]["own"]["rho"] for one in block["levels"]], style)
            for style, (quantity, block) in enumerate(_drawn(system).items())
        ]
        series.append(Series("no association", [0.0] * depth, reference=True))
        panels.append(Panel("lines", series, "residual level", "Spearman's ρ", label_of(name), level_ticks(depth)))
    title = f"Rank association of K, m and ε with survival in the own beam (B = {beam}), with {intervals}"
    return Figure("bound-rho", title, panels)
