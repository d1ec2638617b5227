"""Sensitivity to the weight of distillation (lambda), its temperature (tau) and the weight of fusion (omega).

The grids are the paper's; omega's goes on, since smaller codebooks want more. While lambda or tau varies, omega stays:
at 10, as in the paper, and at the recipe's own value beside it. Omega needs no training of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from siglum.config import RunConfig
from siglum.lab.experiments.base import Outcome, Part, Unit
from siglum.lab.experiments.checks import checks_of, read_samples
from siglum.lab.experiments.checks_view import CHECK_NOTE, check_cells, check_head
from siglum.lab.experiments.plots import Figure, Panel, Series
from siglum.lab.experiments.ranks import MEAN, Ranks, rank_systems
from siglum.lab.experiments.samples import Samples
from siglum.lab.experiments.setting import Setting
from siglum.lab.experiments.systems import measure_label
from siglum.lab.experiments.trained import open_trained
from siglum.lab.tables import Table

LAMBDAS = (0.0, 1.0, 10.0, 50.0, 100.0, 200.0, 500.0)
TAUS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
OMEGAS = (0.0, 1.0, 3.0, 5.0, 10.0, 20.0, 50.0)
"""The paper's grids."""
MORE_OMEGAS = (100.0, 200.0, 500.0)
PAPER_OMEGA = 10.0
SEED = 0
"""One seed, as in the paper."""
SHOWN = ("success@1", "success@5", "mrr@10")
PANELS = {"lambda": "λ", "tau": "τ", "omega": "ω"}


class Sensitivity:
    """One parameter at a time, the others at the recipe's values."""

    name = "sensitivity"
    title = "Sensitivity to λ, τ and ω"

    def units(self, setting: Setting) -> list[Unit]:
        """One training a value of lambda and of tau; the recipe's own also tries every omega."""
        config = setting.config(seed=SEED)
        tokenizer, own = config.tokenizer, config.search.omega
        found = []
        for name, field, values in (("lambda", "rank_weight", LAMBDAS), ("tau", "temperature", TAUS)):
            for value in sorted({*values, getattr(tokenizer, field)}):
                omegas = sorted({PAPER_OMEGA, own})
                changed = replace(config, tokenizer=replace(tokenizer, **{field: value}))
                found.append(Unit(f"{name}-{value:g}", SEED, changed, {"value": value, "omegas": omegas}))
        omegas = sorted({*OMEGAS, *MORE_OMEGAS, own})
        return [*found, Unit("omega", SEED, config, {"value": own, "omegas": omegas})]

    def measure(self, setting: Setting, unit: Unit) -> dict[str, Any]:
        """Rank with every omega of the unit; 0 is the decoder alone."""
        trained = open_trained(setting, unit.config)
        searches = {f"{unit.name}@{omega:g}": _search(unit.config, omega) for omega in unit.options["omegas"]}
        found = rank_systems(trained.vectors, {name: trained.beam(search) for name, search in searches.items()})
        # While τ varies in training, K is measured at the recipe's, or its numbers could not be compared.
        return found | checks_of(trained, searches, setting.config(seed=SEED).tokenizer.temperature)

    def assemble(self, setting: Setting, parts: list[Part]) -> Outcome:
        """Make a table and a panel for each of the three."""
        ranks, checks, config = Ranks.read(parts), read_samples(parts), setting.config(seed=SEED)
        defaults = {
            "lambda": config.tokenizer.rank_weight,
            "tau": config.tokenizer.temperature,
            "omega": config.search.omega,
        }
        curves = {name: _curves(name, parts, ranks, config.search.omega) for name in PANELS}
        results = {
            "defaults": defaults,
            "checks": checks.summary(checks.measures),
            "curves": {
                name: {label: _plain(points, ranks) for label, points in one.items()} for name, one in curves.items()
            },
        }
        there = {name: one for name, one in curves.items() if any(one.values())}
        tables = [_table(name, one, ranks, checks, defaults[name]) for name, one in there.items()]
        panels = [_panel(name, one, ranks) for name, one in there.items()]
        title = "Success@1, mean over tasks, as one parameter varies (one seed)"
        return Outcome(results, tables, [Figure("sensitivity", title, panels)])


Points = dict[float, str]
"""Value of the parameter -> system."""


def _search(config: RunConfig, omega: float) -> Any:
    if omega == 0:
        return replace(config.search, scorer="decoder", lookahead=False)
    return replace(config.search, scorer="fused", omega=omega)


def _curves(name: str, parts: list[Part], ranks: Ranks, own: float) -> dict[str, Points]:
    """Return the points of every curve of a panel, by value; one is left out where its unit is missing."""
    if name == "omega":
        points = {float(system.partition("@")[2]): system for system in ranks.by_system if system.startswith("omega@")}
        return {"ω as on the axis": dict(sorted(points.items()))}
    found: dict[str, Points] = {}
    for omega in dict.fromkeys((PAPER_OMEGA, own)):
        values = {
            part["options"]["value"]: f"{part['unit']}@{omega:g}" for part in parts if part["unit"].startswith(name)
        }
        found[f"ω = {omega:g}"] = dict(sorted(values.items()))
    return found


def _plain(points: Points, ranks: Ranks) -> list[dict[str, Any]]:
    tasks = (MEAN, *ranks.tasks)
    return [
        {"value": value, **{task: {m: ranks.over_seeds(system, task, m)[0] for m in SHOWN} for task in tasks}}
        for value, system in points.items()
    ]


def _table(name: str, curves: dict[str, Points], ranks: Ranks, checks: Samples, default: float) -> Table:
    head = [PANELS[name]]
    for label in curves:
        head += [f"{measure_label(m)}{f', {label}' if len(curves) > 1 else ''}" for m in SHOWN]
    head += check_head()
    rows = []
    for value in next(iter(curves.values())):
        cells = [
            f"{100 * ranks.over_seeds(points[value], MEAN, m)[0]:.1f}" for points in curves.values() for m in SHOWN
        ]
        last = list(curves.values())[-1]
        row = [f"{value:g}", *cells, *check_cells(checks, last[value])]
        rows.append([f"**{cell}**" for cell in row] if value == default else row)
    note = "Per cent, mean over tasks, one seed; the recipe's own value in bold. Kept: at the last ω told."
    return Table(f"sensitivity-{name}", f"Sensitivity to {PANELS[name]}", head, rows, [note, CHECK_NOTE])


def _panel(name: str, curves: dict[str, Points], ranks: Ranks) -> Panel:
    series = []
    for place, (label, points) in enumerate(curves.items()):
        values = [ranks.over_seeds(system, MEAN, "success@1")[0] for system in points.values()]
        series.append(Series(label, values, style=2 if name == "omega" else place))
    ticks = [f"{value:g}" for value in next(iter(curves.values()))]
    return Panel("lines", series, PANELS[name], "Success@1", ticks=ticks, share=True)
