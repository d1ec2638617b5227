"""Tests of whether two systems differ: a t-test over seeds and a randomisation test over queries."""

# Shapes: R rounds, U distinct sizes of difference.

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from siglum.types import SiglumError

EXACT_CLUSTERS = 12
"""Up to this many clusters every assignment of signs is tried (4,096 of them) and p is exact."""


class TTest(NamedTuple):
    """Outcome of a two-sample t-test."""

    p: float
    """Two-sided p value."""
    difference: float
    """Mean of the first sample less mean of the second."""
    t: float
    df: float
    """Degrees of freedom; not a whole number for Welch's test."""


class Randomisation(NamedTuple):
    """Outcome of a paired randomisation test."""

    p: float
    """Two-sided p value, never 0."""
    difference: float
    """Mean over queries of the first system less the second."""


def two_sample(a: Sequence[float], b: Sequence[float], *, pooled: bool) -> TTest:
    """Compare two samples, such as a measure over seeds: Student's test with `pooled` variance, else Welch's.

    >>> round(two_sample([1.0, 2.0, 3.0], [2.0, 3.0, 4.0], pooled=True).p, 4)
    0.2879
    """
    from scipy.special import betainc

    if min(len(a), len(b)) < 2:
        raise SiglumError(f"a t-test needs at least 2 values a sample, but there are {len(a)} and {len(b)}.")
    difference = float(np.mean(a) - np.mean(b))
    share_a, share_b = float(np.var(a, ddof=1)) / len(a), float(np.var(b, ddof=1)) / len(b)
    if pooled:
        df = float(len(a) + len(b) - 2)
        common = (share_a * len(a) * (len(a) - 1) + share_b * len(b) * (len(b) - 1)) / df
        variance = common * (1 / len(a) + 1 / len(b))
    else:
        variance = share_a + share_b
        spread = share_a**2 / (len(a) - 1) + share_b**2 / (len(b) - 1)
        df = variance**2 / spread if spread else math.nan
    if not variance > 0 or math.isnan(df):
        raise SiglumError("both samples are constant (or not finite), so a t-test says nothing about them.")
    t = difference / math.sqrt(variance)
    return TTest(float(betainc(df / 2, 0.5, df / (df + t * t))), difference, t, df)


def paired_randomisation(
    a: Mapping[str, float],
    b: Mapping[str, float],
    clusters: Mapping[str, str] | None = None,
    rounds: int = 10_000,
    seed: int = 0,
) -> Randomisation:
    """Compare two systems query by query, by random exchange of the systems within clusters of queries.

    Queries that ask for the same item are not independent: give that item's id as their cluster and they are
    exchanged together. Without `clusters` every query stands alone. With up to 12 clusters that differ, all
    exchanges are tried; otherwise p is (1 + exchanges at least as extreme) / (1 + rounds).

    >>> paired_randomisation({"x": 1.0, "y": 1.0, "z": 0.5}, {"x": 0.0, "y": 0.5, "z": 0.0})
    Randomisation(p=0.25, difference=0.6666666666666666)
    """
    if a.keys() != b.keys() or not a:
        raise SiglumError(
            f"both systems must be measured on the same queries, but they have {len(a)} and {len(b)},"
            f" of which {len(a.keys() & b.keys())} are shared."
        )
    if rounds < 1:
        raise SiglumError(f"rounds is {rounds}, but must be at least 1.")
    sums = _cluster_sums(a, b, clusters)
    difference = math.fsum(sums) / len(a)
    differing = np.abs(sums[sums != 0])  # a cluster without a difference is the same either way round
    extreme = abs(math.fsum(sums))
    # The same sum added up in another order must still count as equally extreme.
    threshold = extreme - 1e-9 * float(differing.sum())
    if len(differing) <= EXACT_CLUSTERS:
        bits = np.arange(2 ** len(differing))[:, None] >> np.arange(len(differing)) & 1
        reached = np.abs((2 * bits - 1) @ differing) >= threshold
        return Randomisation(float(reached.mean()), difference)
    return Randomisation((1 + _count(differing, threshold, rounds, seed)) / (1 + rounds), difference)


def _count(differing: np.ndarray, threshold: float, rounds: int, seed: int) -> int:
    """Return how many random exchanges reach the threshold.

    m clusters of equal size under random signs sum to size x (2 binomial(m, 1/2) - m), so that only distinct
    sizes need a draw; measures that are 0 or 1 have very few.
    """
    size_U, many_U = np.unique(differing, return_counts=True)
    rng = np.random.default_rng(seed)
    block = max(1, 2**22 // len(size_U))
    reached = 0
    for start in range(0, rounds, block):
        heads_RU = rng.binomial(many_U, 0.5, size=(min(block, rounds - start), len(size_U)))
        reached += int((np.abs((2 * heads_RU - many_U) @ size_U) >= threshold).sum())
    return reached


def _cluster_sums(a: Mapping[str, float], b: Mapping[str, float], clusters: Mapping[str, str] | None) -> np.ndarray:
    sums: dict[str, float] = {}
    for query, value in a.items():
        if clusters is not None and query not in clusters:
            raise SiglumError(f"query {query!r} has no cluster; give every query one, or none.")
        name = query if clusters is None else clusters[query]
        sums[name] = sums.get(name, 0.0) + value - b[query]
    values = np.array(list(sums.values()))
    if not np.isfinite(values).all():
        raise SiglumError("some measured values are not finite numbers; mend them before comparing systems.")
    return values
