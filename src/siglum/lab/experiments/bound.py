"""Experiment `bound`: do the three quantities of the survival bound tell which targets survive?

K (ranking divergence), m (teacher margin) and ε (decoder mismatch) of every query and level, against cumulative
survival at B = 20 in the quantised oracle's beam and in the recipe's own. The paper's temperature for this is 1; the
one the tokenizer was trained with stands beside it. ε costs a decoder's pass over many prefixes, so fewer queries
have it. Shapes: Q queries, T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from siglum.lab.experiments.base import Outcome, Part, Unit, by_unit
from siglum.lab.experiments.bound_view import quintile_figure, quintile_table, rho_figure, rho_table
from siglum.lab.experiments.setting import Setting
from siglum.lab.experiments.survival_beams import compared_units, follow, followed_tasks, searches, targets_of
from siglum.lab.experiments.survival_statistics import associate, average, interval_words
from siglum.lab.experiments.trained import Trained, open_trained
from siglum.measure.retention import SCOPE, LevelQuantities
from siglum.types import Task

BEAM, TAU = 20, 1.0
"""The paper's beam and temperature of this analysis."""
EPS_QUERIES = 1000
"""Queries, in all tasks together, whose ε is measured."""
QUANTITIES = ("K", "m")
MISMATCHES = ("eps", "eps_plain", "eps_fused", "eps_fused_plain")
"""ε as printed (τ on the decoder's score), with decoder temperature 1, and both of the fused score."""


class Bound:
    """Survival by quintile of K, m and ε, with Spearman's ρ, at every level and pooled over levels."""

    name = "bound"
    title = "Survival by the quantities of the survival bound"

    def units(self, setting: Setting) -> list[Unit]:
        """Return GENIUS and the recipe under study."""
        tau = setting.config().tokenizer.temperature
        return compared_units(setting, beam=BEAM, taus=sorted({tau, TAU}), eps_queries=EPS_QUERIES, eps_scope=SCOPE)

    def measure(self, setting: Setting, unit: Unit) -> dict[str, Any]:
        """Measure the quantities of all test queries in their own pools, and what became of their targets."""
        trained, beam = open_trained(setting, unit.config), int(unit.options["beam"])
        tasks = followed_tasks(trained)
        found: dict[str, Any] = {"beam": beam, "queries": sum(len(task.query_rows) for task in tasks), "taus": {}}
        for tau in unit.options["taus"]:
            rows = [_measure(trained, task, beam, tau, decoder=False) for task in tasks]
            found["taus"][f"{tau:g}"] = describe(rows, QUANTITIES)
        few = followed_tasks(trained, unit.options["eps_queries"])
        rows = [_measure(trained, task, beam, trained.config.tokenizer.temperature, decoder=True) for task in few]
        names = [name for name in MISMATCHES if name in rows[0].value]
        found["mismatch"] = describe(rows, names)
        found["tau"] = f"{trained.config.tokenizer.temperature:g}"
        found["eps_scope"] = {row.name: row.scope for row in rows}
        found["uncovered"] = {row.name: _means([row]) for row in rows}
        found["uncovered_mean"] = _means(rows)
        return found

    def assemble(self, setting: Setting, parts: list[Part]) -> Outcome:
        """Average over seeds."""
        keys = ("queries", "taus", "mismatch", "tau", "uncovered", "uncovered_mean")
        units = by_unit(parts)
        found = {
            name: average([{key: part[key] for key in keys} for part in seeds])
            | {"eps_scope": _widest([part["eps_scope"] for part in seeds])}
            for name, seeds in units.items()
        }
        beam, intervals = int(parts[0]["beam"]), interval_words(units)
        tables = [rho_table(found, beam, intervals), quintile_table(found, beam, intervals)]
        figures = [quintile_figure(found, beam, intervals), rho_figure(found, beam, intervals)]
        return Outcome({"beam": beam, "intervals": intervals, "systems": found}, tables, figures)


@dataclass(slots=True)
class _Measured:
    """One task: what was measured of every query at every residual level, and what became of its target."""

    name: str
    target_Q: np.ndarray
    value: dict[str, np.ndarray]
    """Quantity -> (Q, T)."""
    alive: dict[str, np.ndarray]
    """Beam -> (Q, T)."""
    sizes: list[int]
    prefixes: list[int]
    scope: list[str | None]
    """Which prefixes ε is over, level by level."""
    uncovered_QT: np.ndarray | None = None
    """The oracle's mass that ε leaves out."""


def _measure(trained: Trained, task: Task, beam: int, tau: float, *, decoder: bool) -> _Measured:
    search, first_residual = trained.config.search, trained.tokenizer.quantizer.first_residual
    omega = search.omega if search.scorer == "fused" and not search.zscore else 0.0
    levels = trained.quantities(task, beam=beam, tau=tau, decoder=trained.decoder if decoder else None, omega=omega)
    own = follow(trained, trained.beam(searches(trained, beam)["own"]), task)
    alive = {"oracle": _stack(levels, "survived"), "own": own.alive_QT[:, first_residual:]}
    names = [name for name in (MISMATCHES if decoder else QUANTITIES) if getattr(levels[0], f"{name}_Q") is not None]
    value = {name: _stack(levels, name) for name in names}
    facts = ([level.size for level in levels], [level.prefixes for level in levels], [one.eps_scope for one in levels])
    return _Measured(
        task.name, targets_of(task), value, alive, *facts, _stack(levels, "uncovered") if decoder else None
    )


def _stack(levels: list[LevelQuantities], name: str) -> np.ndarray:
    return np.stack([getattr(level, f"{name}_Q") for level in levels], 1)


def _means(rows: list[_Measured]) -> list[float]:
    """Return the oracle's mass that ε leaves out at every level, mean over the queries of some tasks."""
    uncovered_QT = np.concatenate([row.uncovered_QT for row in rows if row.uncovered_QT is not None])
    return [round(float(mean), 6) for mean in uncovered_QT.mean(0)]


def _widest(seeds: list[dict[str, list[str]]]) -> dict[str, list[str]]:
    """Return task -> scope of every level, `full` only where it is so at every seed."""
    return {
        task: [next((one for one in level if one != "full"), "full") for level in zip(*rows, strict=True)]
        for task in seeds[0]
        for rows in [[seed[task] for seed in seeds]]
    }


def describe(rows: list[_Measured], names: tuple[str, ...] | list[str]) -> dict[str, Any]:
    """Return every quantity's means and associations, level by level and pooled over levels."""
    depth, target_Q = len(rows[0].sizes), np.concatenate([row.target_Q for row in rows])
    alive = {beam: np.concatenate([row.alive[beam] for row in rows]) for beam in rows[0].alive}
    value = {name: np.concatenate([row.value[name] for row in rows]) for name in names}
    levels = []
    for level in range(depth):
        one: dict[str, Any] = {
            "level": level + 1,
            "size": rows[0].sizes[level],
            "prefixes": float(np.mean([row.prefixes[level] for row in rows])),
            "survival": {beam: float(kept[:, level].mean()) for beam, kept in alive.items()},
        }
        for name in names:
            one[name] = _associations(value[name][:, level], alive, target_Q, slice(level, level + 1))
            one[name]["within"] = {beam: _within(rows, name, beam, level) for beam in alive}
        levels.append(one)
    if "K" in value:
        # The lemma, without a decoder: its premise must hold at every level so far.
        premise = np.logical_and.accumulate(np.sqrt(value["K"] / 2) < value["m"] / 2, axis=1)
        for one, sure in zip(levels, premise.mean(0), strict=True):
            one["certain"] = float(sure)
    everything = slice(0, depth)
    pooled = {name: _associations(value[name].ravel(), alive, np.repeat(target_Q, depth), everything) for name in names}
    return {"levels": levels, "pooled": pooled}


def _associations(x: np.ndarray, alive: dict[str, np.ndarray], cluster: np.ndarray, levels: slice) -> dict[str, Any]:
    found: dict[str, Any] = {"mean": float(x.mean()), "std": float(x.std())}
    return found | {beam: associate(x, kept[:, levels].ravel(), cluster) for beam, kept in alive.items()}


def _within(rows: list[_Measured], name: str, beam: str, level: int) -> float | None:
    """Return the mean over tasks of rho inside each, which differences between tasks cannot make."""
    found = list(_rhos(rows, name, beam, level))
    return float(np.mean(found)) if found else None


def _rhos(rows: list[_Measured], name: str, beam: str, level: int) -> Iterator[float]:
    for row in rows:
        one = associate(row.value[name][:, level], row.alive[beam][:, level], row.target_Q, rounds=0)["rho"]["value"]
        if one is not None:
            yield one
