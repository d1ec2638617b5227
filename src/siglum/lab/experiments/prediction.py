"""Does a query's change in K predict its change in survival? Between two trainings at the same seed, query by query.

Ranks are taken within each task and seed, so that differences between those make no association. The same between two
seeds of training without distillation is what any two trainings show. Shapes: Q queries, R rounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from siglum.lab.experiments.checks import ORIGINAL, SHOWN
from siglum.lab.experiments.samples import MEAN, Samples, show_interval
from siglum.lab.experiments.survival_statistics import QUINTILES, quintile_of
from siglum.lab.experiments.verdict import OFF, ON, PRIMARY
from siglum.lab.tables import Table
from siglum.measure.significance import interval

PAIR = "pair"
LEVELS = ("", *map(str, range(1, SHOWN + 1)))
TEACHERS = {"": "moved teacher", ORIGINAL: "original teacher"}
PAIRS = {"on": "PD on less PD off", "seeds": "PD off, another seed less its own"}


def predictions(numbers: Samples) -> dict[str, Any]:
    """Return pair -> K -> Spearman's rho with its interval, and survival's change by quintile of the change in K."""
    seeds = sorted({seed for tasks in numbers.by_system.get(OFF, {}).values() for seed in tasks})
    following = dict(zip(seeds, [*seeds[1:], *seeds[:1]], strict=True))
    found = {}
    for name, after in (("on", (ON, {seed: seed for seed in seeds})), ("seeds", (OFF, following))):
        if name == "seeds" and len(seeds) < 2:
            continue
        measures = [f"K{level}{teacher}" for teacher in TEACHERS for level in LEVELS]
        there = [measure for measure in measures if measure in numbers.measures]
        found[name] = {measure: _predict(numbers, measure, *after) for measure in there}
    return found


def _predict(numbers: Samples, measure: str, system: str, other: dict[int, int]) -> dict[str, Any] | None:
    """Return the association of one K's change with survival's; None where nothing is measured or nothing changes."""
    changes = Samples(groups=numbers.groups, drawn=numbers.drawn)
    for task in numbers.tasks:
        for seed, after in other.items():
            if after in numbers.by_system.get(system, {}).get(task, {}) and seed in numbers.by_system[OFF][task]:
                x_Q, y_Q = (
                    numbers.values(system, task, after, one) - numbers.values(OFF, task, seed, one)
                    for one in (measure, PRIMARY)
                )
                changes.add(PAIR, task, seed, _moments(x_Q, y_Q))
    if not changes.by_system:
        return None
    mean = {name: changes.rounds({PAIR: 1.0}, MEAN, name) for name in changes.measures}
    if any(rounds is None for rounds in mean.values()):
        return None
    mean_R: dict[str, np.ndarray] = {name: rounds for name, rounds in mean.items() if rounds is not None}
    spread_R = (mean_R["xx"] - mean_R["x"] ** 2) * (mean_R["yy"] - mean_R["y"] ** 2)
    if not spread_R.min() > 0:
        return None
    quintiles = []
    for number in range(QUINTILES):
        share_R = mean_R[f"q{number}"]
        quintiles.append(interval(mean_R[f"s{number}"] / share_R) if share_R.min() > 0 else None)
    return {
        "rho": interval((mean_R["xy"] - mean_R["x"] * mean_R["y"]) / np.sqrt(spread_R)),
        "change": float(mean_R["change"][0]),
        "quintiles": quintiles,
    }


def _moments(x_Q: np.ndarray, y_Q: np.ndarray) -> dict[str, np.ndarray]:
    """Return what rho and quintiles are made of, one number a query."""
    a, b = _standard_ranks(x_Q), _standard_ranks(y_Q)
    inside = {number: quintile_of(x_Q) == number for number in range(QUINTILES)}
    return {
        "x": a,
        "y": b,
        "xy": a * b,
        "xx": a * a,
        "yy": b * b,
        "change": x_Q,
        **{f"q{number}": own.astype(float) for number, own in inside.items()},
        **{f"s{number}": np.where(own, y_Q, 0.0) for number, own in inside.items()},
    }


def _standard_ranks(x_Q: np.ndarray) -> np.ndarray:
    """Return ranks, equal numbers sharing theirs, with mean 0 and deviation 1 (0 where nothing varies).

    >>> _standard_ranks(np.array([3.0, 1.0, 1.0, 9.0])).round(2).tolist()
    [0.47, -0.94, -0.94, 1.41]
    """
    _, group_Q, count_G = np.unique(x_Q, return_inverse=True, return_counts=True)
    rank_Q = (np.cumsum(count_G) - (count_G - 1) / 2)[group_Q]
    middle_Q = rank_Q - rank_Q.mean()
    deviation = middle_Q.std()
    standard: np.ndarray = middle_Q / deviation if deviation else middle_Q
    return standard


def k_words(measure: str) -> str:
    """Return the name of a K for people.

    >>> k_words("K2_original"), k_words("K")
    ('K at level 2, original teacher', 'K, mean over levels, moved teacher')
    """
    teacher = ORIGINAL if measure.endswith(ORIGINAL) else ""
    level = measure.removesuffix(ORIGINAL).removeprefix("K")
    return f"K{f' at level {level}' if level else ', mean over levels'}, {TEACHERS[teacher]}"


def prediction_table(found: dict[str, Any]) -> Table:
    """Return rho and quintiles of every K, pair by pair."""
    rows = []
    for pair, measures in found.items():
        for measure, one in measures.items():
            label = f"{PAIRS[pair]}: {k_words(measure)}"
            if one is None:
                rows.append([label, "–", "–", *["–"] * QUINTILES])
                continue
            cells = ["–" if part is None else f"{100 * part['mean']:+.1f}" for part in one["quintiles"]]
            rows.append([label, f"{one['change']:+.3f}", show_interval(one["rho"], 1.0, 3), *cells])
    notes = [
        "ρ: Spearman's, of the change in K and the change in real-beam survival at B = 20 of the same query, ranked "
        "within tasks and seeds; 95 % intervals of a bootstrap over items and seeds. Below 0: where K falls, survival "
        "rises.",
        "Q1 to Q5: points of survival gained, by quintile of the change in K, the largest fall first.",
        "PD off at another seed: what two trainings that differ in nothing but the seed show.",
    ]
    head = ["change in K", "mean", "ρ", *(f"Q{place + 1}" for place in range(QUINTILES))]
    title = "Does a query's change in K predict its change in survival?"
    return Table("distillation-prediction", title, head, rows, notes)
