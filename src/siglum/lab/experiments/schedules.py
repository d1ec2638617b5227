"""Vocabulary schedules: which order of sizes keeps targets in the beam, and what comes of it in the end.

Ascending is the recipe's own schedule and descending its reverse. Uniform ones are controls: as large as the largest
level, of equal bits per item (the paper's uniform), and as small as the first level.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from siglum.lab.experiments.base import Outcome, Part, Unit, by_unit
from siglum.lab.experiments.checks import checks_of, read_samples
from siglum.lab.experiments.plots import Figure, Panel, Series
from siglum.lab.experiments.ranks import MEAN, Ranks, choose_weights, decoder_alone, rank_systems
from siglum.lab.experiments.setting import Setting
from siglum.lab.experiments.survival_beams import followed_tasks
from siglum.lab.experiments.systems import contrast_table, systems_table
from siglum.lab.experiments.trained import Trained, code_bits, open_trained
from siglum.lab.tables import Table
from siglum.tokenize.schedule import equal_bits, uniform
from siglum.types import SiglumError

BEAM = 20
"""Beam of survival, the paper's."""
SHOWN = 4
"""Levels of the table; the paper shows as many."""
LABELS = {
    "descending": "descending",
    "uniform-large": "uniform, large",
    "uniform-bits": "uniform, equal bits",
    "uniform-first": "uniform, equal first level",
    "ascending": "ascending",
}
ROWS = {
    "size": "V",
    "m": "mean m",
    "K": "mean K",
    "token_survival": "survival (%)",
    "chance": "chance B / V (%)",
    "beam_survival": "survival in the oracle's beam (%)",
}


class Schedules:
    """Descending, uniform and ascending vocabularies: m, K and survival by level, and the end."""

    name = "schedules"
    title = "Vocabulary schedules"

    def units(self, setting: Setting) -> list[Unit]:
        """One training a schedule and seed."""
        return [
            Unit(name, seed, replace(config, tokenizer=replace(config.tokenizer, vocab=vocab)))
            for seed in range(setting.seeds)
            for config in [setting.config(seed=seed)]
            for name, vocab in schedules(config.tokenizer.vocab).items()
        ]

    def measure(self, setting: Setting, unit: Unit) -> dict[str, Any]:
        """Measure the levels, and rank with the decoder alone and fused."""
        trained = open_trained(setting, unit.config)
        plain = decoder_alone(unit.config.search)
        weighed = choose_weights(trained).best
        rankers = {f"{unit.name}-decoder": trained.beam(plain), unit.name: trained.beam(weighed)}
        found = rank_systems(trained.vectors, rankers)
        found |= checks_of(trained, {f"{unit.name}-decoder": plain, unit.name: weighed})
        return {**found, "levels": _levels(trained), "bits": code_bits(unit.config), "omega": weighed.omega}

    def assemble(self, setting: Setting, parts: list[Part]) -> Outcome:
        """Make the tables of levels and of the end, and the figure of levels."""
        ranks, units, checks = Ranks.read(parts), by_unit(parts), read_samples(parts)
        levels = {name: _mean_levels([part["levels"] for part in units[name]]) for name in LABELS if name in units}
        bits = {name: units[name][0]["bits"] for name in levels}
        gaps = {
            name: ranks.contrasts({"ascending": 1, name: -1}, [MEAN])[MEAN] for name in levels if name != "ascending"
        }
        results = {"beam": BEAM, "levels": levels, "bits": bits, "systems": ranks.summary(), "ascending_less": gaps}
        results["checks"] = checks.summary(checks.measures)
        labels = {name: f"{LABELS[name]} ({bits[name]:.0f} bits), fused" for name in levels}
        labels |= {f"{name}-decoder": f"{LABELS[name]} ({bits[name]:.0f} bits), decoder alone" for name in levels}
        tables = [_levels_table(levels)]
        tables += [systems_table(ranks, m, labels, f"schedules-{m}", checks=checks) for m in ("success@1", "mrr@10")]
        title = "Ascending less each other schedule, fused, mean over tasks"
        named = {LABELS[name]: one for name, one in gaps.items()}
        tables.append(contrast_table("schedules-gaps", title, "schedule", named))
        return Outcome(results, tables, [_figure(levels)])


def schedules(vocab: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Return all schedules to compare with an ascending one.

    >>> schedules((16, 32, 64))["uniform-bits"], schedules((16, 32, 64))["descending"]
    ((32, 32, 32), (64, 32, 16))
    """
    if list(vocab) != sorted(vocab) or vocab[0] == vocab[-1]:
        raise SiglumError(f"schedules compares with an ascending vocabulary, but the recipe has {list(vocab)}.")
    return {
        "descending": vocab[::-1],
        "uniform-large": uniform(len(vocab), vocab[-1]),
        "uniform-bits": equal_bits(vocab),
        "uniform-first": uniform(len(vocab), vocab[0]),
        "ascending": vocab,
    }


def _levels(trained: Trained) -> list[dict[str, float]]:
    """Return the quantities of every residual level, means over all queries followed."""
    tau = trained.config.tokenizer.temperature
    by_task = [trained.quantities(task, beam=BEAM, tau=tau) for task in followed_tasks(trained)]
    found = []
    for one in zip(*by_task, strict=True):
        columns = {"m": "m_Q", "K": "K_Q", "token_survival": "token_survived_Q", "beam_survival": "survived_Q"}
        means = {
            name: float(np.concatenate([getattr(task, column) for task in one]).mean())
            for name, column in columns.items()
        }
        size = one[0].size
        found.append({"level": one[0].level, "size": size, "chance": min(1.0, BEAM / size), **means})
    return found


def _mean_levels(seeds: list[list[dict[str, float]]]) -> list[dict[str, float]]:
    return [
        {key: float(np.mean([one[key] for one in level])) for key in level[0]} for level in zip(*seeds, strict=True)
    ]


def _levels_table(levels: dict[str, list[dict[str, float]]]) -> Table:
    rows = []
    depth = min(SHOWN, *(len(found) for found in levels.values()))
    for level in range(depth):
        for key, label in ROWS.items():
            values = [found[level][key] for found in levels.values()]
            cells = [f"{v:.0f}" if key == "size" else f"{v:.3f}" if key in "mK" else f"{100 * v:.1f}" for v in values]
            rows.append([f"level {level + 1}: {label}", *cells])
    note = f"Survival of the target's token among all codewords of the level at B = {BEAM}, given the true prefix."
    return Table("schedules-levels", "Levels by schedule", ["", *(LABELS[name] for name in levels)], rows, [note])


def _figure(levels: dict[str, list[dict[str, float]]]) -> Figure:
    shown = {
        "token_survival": ("token survival (true prefix given)", "targets kept"),
        "beam_survival": ("survival in the oracle's beam", "targets kept"),
        "m": ("teacher margin", "mean m"),
        "K": ("ranking divergence", "mean K"),
    }
    panels = []
    for key, (title, label) in shown.items():
        series = [
            Series(LABELS[name], [one[key] for one in found], [one["level"] for one in found], style=style)
            for style, (name, found) in enumerate(levels.items())
        ]
        panels.append(Panel("lines", series, "residual level", label, title, share=key.endswith("survival")))
    return Figure("schedules", f"Levels by vocabulary schedule, B = {BEAM}", panels, columns=2)
