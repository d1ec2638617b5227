"""Tables and figures of the experiment on distillation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from siglum.lab.experiments.plots import Figure, Panel, Series, level_ticks
from siglum.lab.experiments.ranks import Ranks
from siglum.lab.experiments.samples import MEAN, Samples, show_interval
from siglum.lab.experiments.systems import contrast_panel, measure_label, shown_tasks, task_label
from siglum.lab.experiments.verdict import LOSS, OFF, ON, PRIMARY
from siglum.lab.tables import Table, percent

LABELS = {
    "off": "PD off",
    "on": "PD on",
    "extra": "(a) extra epochs of L_cl, then frozen",
    "slow_ema": "(b) slower EMA, no PD",
    "one_hot": "(c) teacher: the positive alone",
    "shuffled": "(d) teacher: shuffled",
}
SHORT = {"on": "PD", "extra": "(a) L_cl", "slow_ema": "(b) EMA", "one_hot": "(c) one-hot", "shuffled": "(d) shuffled"}
"""Names below bars."""
CODES = {
    LOSS: "held-out L_rank",
    "K1": "K₁",
    "K2": "K₂",
    "K3": "K₃",
    "K4": "K₄",
    "K": "K, all levels",
    "K1_original": "K₁, original",
    "K_original": "K, original",
    "error": "error",
}
BEAMS = {"oracle@10": "oracle, B = 10", "oracle@20": "B = 20", "oracle@50": "B = 50"} | {
    "beam@10": "real beam, B = 10",
    PRIMARY: "B = 20",
    "beam@50": "B = 50",
}
SERVED = {"": "fused", "_decoder": "decoder alone", "_geometry": "geometry alone", "_dense": "dense of its space"}
"""Searches by how their names end, with their words."""
SHOWN = ("success@1", "mrr@10")
INTERVALS = "95 % intervals of a paired bootstrap over items (the queries of one target together) and seeds."


def contrast_tables(numbers: Samples, ranks: Ranks, found: Mapping[str, Any]) -> list[Table]:
    """Return the primary endpoint with the verdict, and what else differs from training without distillation."""
    pairs = {f"{LABELS[name]} less PD off": (name, OFF) for name in LABELS if name != OFF}
    pairs |= {f"PD on less {LABELS[name]}": (ON, name) for name in LABELS if name not in (OFF, ON)}
    pairs = {label: pair for label, pair in pairs.items() if set(pair) <= set(numbers.by_system)}
    tasks = shown_tasks(numbers)
    rows = [
        [label, *(show_interval(numbers.contrast({left: 1.0, right: -1.0}, task, PRIMARY)) for task in tasks), _p(p)]
        for label, (left, right) in pairs.items()
        for p in [numbers.t_test(left, right, MEAN, PRIMARY)]
    ]
    smallest = found["primary"]["smallest_detectable"]
    notes = [
        f"**{found['verdict']}**",
        "Points of targets still in the real beam at its last level, B = 20, served scorer, all positives of all test "
        f"queries; mean: tasks pooled, the endpoint fixed beforehand. {INTERVALS}",
        *([f"Smallest effect that is found with 80 % power at 5 %: {100 * smallest:.2f} points."] if smallest else []),
        "p: the paper's two-sample t-test over seeds, of the tasks pooled.",
    ]
    first = Table("distillation-primary", "Primary endpoint", ["contrast", *map(task_label, tasks), "p"], rows, notes)
    codes = (LOSS, "K1", "K", "K1_original", "K_original", "error")
    beams = ("oracle@20", "beam@10", "beam@50")
    rows = [[label, *_contrast_cells(numbers, ranks, *pair, codes, beams)] for label, pair in pairs.items()]
    head = ["contrast", *(CODES[name] for name in codes), *(f"{kind} (points)" for kind in _names(beams))]
    head += [f"{words}, {measure_label(SHOWN[0])}" for words in SERVED.values()]
    notes = [f"Tasks pooled. K and L_rank in nats, error squared; the rest in points. {INTERVALS}"]
    return [first, Table("distillation-contrasts", "What else differs", head, rows, notes)]


def _names(beams: tuple[str, ...]) -> list[str]:
    return [f"{'oracle' if name.startswith('oracle') else 'real beam'}, B = {name.partition('@')[2]}" for name in beams]


def _contrast_cells(
    numbers: Samples, ranks: Ranks, left: str, right: str, codes: tuple[str, ...], beams: tuple[str, ...]
) -> list[str]:
    """Return differences of codes, of survival and of ranks, tasks pooled."""
    weights = {left: 1.0, right: -1.0}
    ends = [{f"{name}{end}": weight for name, weight in weights.items()} for end in SERVED]
    return [
        *(show_interval(numbers.contrast(weights, MEAN, measure), 1.0, 3) for measure in codes),
        *(show_interval(numbers.contrast(weights, MEAN, measure)) for measure in beams),
        *(show_interval(ranks.contrast(one, MEAN, SHOWN[0])) for one in ends),
    ]


def _p(value: float | None) -> str:
    return "–" if value is None else f"{value:.2g}"


def system_tables(numbers: Samples, ranks: Ranks, levels: Mapping[str, Mapping[str, list[float]]]) -> list[Table]:
    """Return what every system's codes, beams and rankings are, tasks pooled."""
    names = [name for name in LABELS if name in numbers.by_system]

    def values(name: str, measure: str) -> list[float]:
        return numbers.over_seeds(name, MEAN, measure)

    measures = [measure for measure in CODES if measure in numbers.measures]
    rows = [[LABELS[name], *(_plain(values(name, measure)) for measure in measures)] for name in names]
    seeds = max((len(values(name, LOSS)) for name in names), default=0)
    mean = f"Mean and standard deviation over {seeds} seeds, tasks pooled." if seeds > 1 else "One seed, tasks pooled."
    notes = [
        f"{mean} L_rank: the paper's, on test pairs in the same batches. K in nats over all prefixes of the pool, "
        "against the teacher of the system's own (moved) space and of the space before (original). Error: squared "
        "distance of targets to their reconstructions.",
    ]
    head = ["system", *(CODES[measure] for measure in measures)]
    tables = [Table("distillation-codes", "Codes", head, rows, notes)]
    rows = [[LABELS[name], *(percent(values(name, measure)) for measure in BEAMS)] for name in names]
    notes = [f"Per cent of targets under the last level of the beam. {mean}"]
    tables.append(Table("distillation-survival", "Survival", ["system", *BEAMS.values()], rows, notes))
    rows = [
        [LABELS[name], *(percent(ranks.over_seeds(name + end, MEAN, one)) for end in SERVED for one in SHOWN)]
        for name in names
    ]
    head = ["system", *(f"{words}, {measure_label(one)}" for words in SERVED.values() for one in SHOWN)]
    tables.append(Table("distillation-ranks", "Ranking", head, rows, [f"Per cent. {mean}"]))
    return [*tables, _level_table(levels, names)]


def _plain(values: list[float]) -> str:
    spread = f" ±{np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{spread}"


def _level_table(levels: Mapping[str, Mapping[str, list[float]]], names: list[str]) -> Table:
    """Return K of every level, a row a system and teacher."""
    rows = [
        [f"{LABELS[name]}, {teacher} teacher", *(f"{value:.2f}" for value in levels[name][teacher])]
        for name in names
        for teacher in levels[name]
    ]
    depth = max((len(row) for row in rows), default=1) - 1
    head = ["system", *(str(level + 1) for level in range(depth))]
    return Table("distillation-levels", "K by level", head, rows, ["Nats, mean over tasks and seeds."])


def figures(
    numbers: Samples, ranks: Ranks, levels: Mapping[str, Mapping[str, list[float]]], found: Mapping[str, Any]
) -> list[Figure]:
    """Draw what PD and every control change against training without distillation."""
    names = [name for name in LABELS if name in numbers.by_system and name != OFF]
    if OFF not in numbers.by_system or not names:
        return []
    weights = {SHORT[name]: {name: 1.0, OFF: -1.0} for name in names}
    survival = {
        f"B = {measure.partition('@')[2]}": {
            tick: numbers.contrast(one, MEAN, measure) for tick, one in weights.items()
        }
        for measure in BEAMS
        if measure.startswith("beam")
    }
    served = {
        words: {
            SHORT[name]: ranks.contrast({f"{name}{end}": 1.0, f"{OFF}{end}": -1.0}, MEAN, SHOWN[0]) for name in names
        }
        for end, words in SERVED.items()
    }
    effect = found["primary"]["effect"]
    gain = f"at B = 20 PD gains {show_interval(effect)} points" if effect else "PD off was not measured"
    kept = contrast_panel("", "gained over PD off", survival)
    ranked = contrast_panel("", "gained over PD off", served)
    panels = [_level_panel(levels, names, teacher) for teacher in ("moved", "original")]
    return [
        Figure("distillation-survival", f"Targets kept in the real beam, tasks pooled: {gain}", [kept]),
        Figure("distillation-success", f"{measure_label(SHOWN[0])} of each search, tasks pooled", [ranked]),
        Figure("distillation-K", "Ranking divergence K by level, less that of training without PD", panels),
    ]


def _level_panel(levels: Mapping[str, Mapping[str, list[float]]], names: list[str], teacher: str) -> Panel:
    """Return the change of K by level against training without distillation."""
    base = np.array(levels[OFF][teacher])
    series = [
        Series(LABELS[name], (np.array(levels[name][teacher]) - base).tolist(), style=place)
        for place, name in enumerate(names)
    ]
    series.append(Series("PD off", [0.0] * len(base), reference=True))
    title = f"{teacher} teacher"
    return Panel("lines", series, "residual level", "nats more than PD off", title, level_ticks(len(base)))
