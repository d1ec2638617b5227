"""Does a number tell which targets survive? Rank association, distance of distributions, and survival by quintile.

Intervals come from a bootstrap over clusters: queries with the same target are drawn together. Everything follows
from weighted ranks, so a resample costs no sorting. Shapes: Q queries, R resamples, G distinct values of the number.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from siglum.measure.significance import ENDS, draw_clusters
from siglum.types import SiglumError

ROUNDS = 500
QUINTILES = 5
SHARES = [round(0.01 * place, 2) for place in range(101)]
"""Probabilities at which a distribution is kept."""


def associate(x_Q: np.ndarray, survived_Q: np.ndarray, cluster_Q: np.ndarray, rounds: int = ROUNDS) -> dict[str, Any]:
    """Return how a number goes with survival: Spearman's rho, AUC, the KS distance and survival by quintile.

    AUC is the chance that a pruned target has the larger number, 1/2 where it says nothing. What cannot be had, such
    as rho where all survive, is None. `ks_chance` is the distance that one comparison in twenty exceeds by chance, if
    all queries were independent.

    >>> found = associate(np.arange(10.0), np.arange(10) < 5, np.arange(10))
    >>> round(found["rho"]["value"], 3), found["auc"]["value"], found["ks"]
    (-0.87, 1.0, 1.0)
    """
    if not len(x_Q) == len(survived_Q) == len(cluster_Q) or not len(x_Q):
        raise SiglumError(
            f"each query needs a number, an outcome and a cluster, but there are {len(x_Q)}, {len(survived_Q)} and "
            f"{len(cluster_Q)}; give at least one of each."
        )
    ranks = _Ranks(np.asarray(x_Q, np.float64), np.asarray(survived_Q, bool))
    member_Q = np.unique(cluster_Q, return_inverse=True)[1]
    draws = [ranks.measure(many_RG[:, member_Q].astype(np.float64)) for many_RG in draw_clusters(member_Q, rounds)]
    spread = {name: np.concatenate([draw[name] for draw in draws]) for name in draws[0]} if draws else {}
    point = ranks.measure(np.ones((1, len(x_Q))))
    kept, lost = int(np.sum(survived_Q)), int(len(survived_Q) - np.sum(survived_Q))
    return {
        "survived": kept,
        "pruned": lost,
        "rho": _interval(point["rho"][0], spread.get("rho")),
        "auc": _interval(point["auc"][0], spread.get("auc")),
        "ks": _plain(point["ks"][0]),
        "ks_chance": _plain(1.36 * np.sqrt((kept + lost) / (kept * lost))) if kept and lost else None,
        "quintiles": [
            {
                "queries": int((ranks.quintile_Q == number).sum()),
                "mean": _plain(x_Q[ranks.quintile_Q == number].mean()) if (ranks.quintile_Q == number).any() else None,
                "survival": _interval(point["kept"][0, number], spread["kept"][:, number] if spread else None),
            }
            for number in range(QUINTILES)
        ],
    }


def quintile_of(x_Q: np.ndarray) -> np.ndarray:
    """Return the quintile of every number, 0 to 4; equal numbers go together, so quintiles may differ in size.

    >>> quintile_of(np.array([5.0, 1.0, 3.0, 2.0, 4.0])).tolist(), quintile_of(np.zeros(3)).tolist()
    ([4, 0, 2, 1, 3], [2, 2, 2])
    """
    _, group_Q, count_G = np.unique(x_Q, return_inverse=True, return_counts=True)
    middle_G = np.cumsum(count_G) - count_G / 2
    found: np.ndarray = np.minimum(QUINTILES - 1, (QUINTILES * middle_G / len(x_Q)).astype(np.int64))[group_Q]
    return found


def quantiles(values: np.ndarray) -> list[float] | None:
    """Return the distribution of values at the probabilities `SHARES`; None where there are no values.

    >>> quantiles(np.array([3.0, 1.0, 2.0]))[::50]
    [1.0, 2.0, 3.0]
    """
    if not len(values):
        return None
    return [round(float(value), 6) for value in np.quantile(values, SHARES, method="inverted_cdf")]


def average(parts: list[Any]) -> Any:
    """Return the mean of JSON values of one shape, number by number; None where any is None, words of the first.

    Ends of intervals are numbers too: over seeds they become the mean of the seeds' intervals (`interval_words`),
    which tells how sure one seed is, not how far seeds differ.

    >>> average([{"a": [1, None], "b": "x"}, {"a": [2, 3.0], "b": "x"}])
    {'a': [1.5, None], 'b': 'x'}
    """
    first = parts[0]
    if any(part is None for part in parts):
        return None
    if isinstance(first, dict):
        return {key: average([part[key] for part in parts]) for key in first}
    if isinstance(first, list):
        return [average(list(row)) for row in zip(*parts, strict=True)]
    if isinstance(first, int | float) and not isinstance(first, bool):
        return float(np.mean(parts)) if len(set(parts)) > 1 else first
    return first


def interval_words(parts: dict[str, list[Any]]) -> str:
    """Return what the intervals are, once the seeds of every system are averaged.

    >>> interval_words({"genius": [{}]}), interval_words({"genius": [{}], "pro": [{}, {}]})
    ('95 % intervals over targets', "95 % intervals over targets (mean of the seeds' intervals)")
    """
    several = any(len(seeds) > 1 for seeds in parts.values())
    return "95 % intervals over targets" + (" (mean of the seeds' intervals)" if several else "")


def number(value: float | None, digits: int = 3) -> str:
    """Return a number for a table.

    >>> number(0.12345), number(None)
    ('0.123', '–')
    """
    return "–" if value is None else f"{value:.{digits}f}"


def per_cent(value: float | None) -> str:
    """Return a share in per cent for a table.

    >>> per_cent(0.5), per_cent(None)
    ('50.0', '–')
    """
    return number(None if value is None else 100 * value, 1)


def between(found: dict[str, float | None]) -> str:
    """Return a value with its interval.

    >>> between({"value": 0.5, "low": 0.25, "high": 0.75}), between({"value": None, "low": None, "high": None})
    ('0.50 [0.25, 0.75]', '–')
    """
    value, low, high = (found[key] for key in ("value", "low", "high"))
    if value is None:
        return "–"
    return f"{value:.2f}" + ("" if low is None or high is None else f" [{low:.2f}, {high:.2f}]")


class _Ranks:
    """A number and an outcome, sorted once; `measure` gives all statistics under any weights of the queries."""

    def __init__(self, x_Q: np.ndarray, kept_Q: np.ndarray) -> None:
        self.order = np.argsort(x_Q, kind="stable")
        self.kept = kept_Q[self.order].astype(np.float64)
        ordered = x_Q[self.order]
        self.start_G = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
        self.quintile_Q = quintile_of(x_Q)
        self.quintile = self.quintile_Q[self.order]

    def measure(self, weight_RQ: np.ndarray) -> dict[str, np.ndarray]:
        """Return rho, auc and ks (R,) and the survival of every quintile (R, 5), NaN where undefined."""
        weight = weight_RQ[:, self.order]
        all_RG = np.add.reduceat(weight, self.start_G, axis=1)
        kept_RG = np.add.reduceat(weight * self.kept, self.start_G, axis=1)
        total, kept = all_RG.sum(1), kept_RG.sum(1)
        rank_RG = np.cumsum(all_RG, 1) - (all_RG - 1) / 2
        middle, share = (total + 1) / 2, kept / total
        ranks_kept = (kept_RG * rank_RG).sum(1)
        with np.errstate(invalid="ignore", divide="ignore"):
            spread = (all_RG * (rank_RG - middle[:, None]) ** 2).sum(1) / total
            # Where nothing varies there is nothing to associate; rounding must not pretend otherwise.
            spread[spread < 1e-9] = np.nan
            rho = (ranks_kept / total - middle * share) / np.sqrt(spread * share * (1 - share))
            auc = 1 - (ranks_kept - kept * (kept + 1) / 2) / (kept * (total - kept))
            gap_RG = np.cumsum(kept_RG, 1) / kept[:, None] - np.cumsum(all_RG - kept_RG, 1) / (total - kept)[:, None]
            sets = [self.quintile == number for number in range(QUINTILES)]
            by_quintile = [(weight[:, own] @ self.kept[own]) / weight[:, own].sum(1) for own in sets]
        return {"rho": rho, "auc": auc, "ks": np.abs(gap_RG).max(1), "kept": np.stack(by_quintile, 1)}


def _interval(value: float, draws_R: np.ndarray | None) -> dict[str, float | None]:
    """Return a value with the interval that its resamples span, None for what is not defined."""
    ends: tuple[float | None, float | None] = (None, None)
    if draws_R is not None and np.isfinite(value) and np.isfinite(draws_R).any():
        low, high = np.nanquantile(draws_R, ENDS)
        ends = _plain(low), _plain(high)
    return {"value": _plain(value), "low": ends[0], "high": ends[1]}


def _plain(value: float) -> float | None:
    return round(float(value), 6) if np.isfinite(value) else None
