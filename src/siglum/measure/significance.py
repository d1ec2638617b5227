"""Whether two systems differ: a t-test over seeds, a randomisation test over queries, and the clustered bootstrap.

Queries that ask for the same item are not independent: they form a cluster, and are exchanged or drawn together.
"""

# Shapes: S seeds, Q queries, G clusters of queries, R rounds, U distinct sizes of difference.

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from siglum.types import SiglumError

EXACT_CLUSTERS = 12
"""Up to this many clusters every assignment of signs is tried (4,096 of them) and p is exact."""
ENDS = ((1 - 0.95) / 2, (1 + 0.95) / 2)
"""Quantiles of the rounds that an interval of 95 % lies between."""
CELLS = 1 << 23
"""Counts of the bootstrap held at once."""


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
    return TTest(_beta_share(df / 2, 0.5, df / (df + t * t), t * t / (df + t * t)), difference, t, df)


def _beta_share(a: float, b: float, x: float, rest: float) -> float:
    """Return the regularised incomplete beta function at x, with rest = 1 - x: a power series of positive terms.

    >>> round(_beta_share(2.0, 0.5, 0.75, 0.25), 6)
    0.3125
    """
    if x > (a + 1) / (a + b + 2):  # where the series converges slowly that of the other side does not
        return 1 - _beta_share(b, a, rest, x)
    if x == 0:
        return 0.0
    total = term = 1.0
    number = 0
    while term > 1e-17 * total:
        term *= (a + b + number) / (a + 1 + number) * x
        total, number = total + term, number + 1
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(rest)
    return math.exp(scale) * total / a


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


def draw_clusters(member_Q: np.ndarray, rounds: int, seed: int = 0) -> Iterator[np.ndarray]:
    """Yield blocks of rounds (R, G): how often each cluster is drawn with replacement; queries name theirs from 0 on.

    >>> next(draw_clusters(np.array([0, 0, 1]), rounds=3)).tolist()
    [[1, 1], [1, 1], [0, 2]]
    """
    many = int(member_Q.max()) + 1
    rng, block = np.random.default_rng(seed), max(1, CELLS // len(member_Q))
    for start in range(0, rounds, block):
        yield rng.multinomial(many, np.full(many, 1 / many), min(block, rounds - start))


class Bootstrap:
    """Means over queries as they are, and in rounds that draw clusters of queries with replacement.

    All values meet the same draws, so that a difference of means is paired.

    >>> Bootstrap(["a", "a", "b"], rounds=2).means(np.array([[1.0, 0.0, 4.0]]))[:, 0].round(2).tolist()
    [1.67, 1.67, 1.67]
    """

    def __init__(self, clusters: Sequence[object] | np.ndarray, rounds: int, seed: int = 0) -> None:
        """Draw the clusters, given one a query."""
        self.member_Q = np.unique(np.asarray(clusters), return_inverse=True)[1]
        size_G = np.bincount(self.member_Q)
        drawn = draw_clusters(self.member_Q, rounds, seed)
        many_RG = np.concatenate([np.ones((1, len(size_G)), np.int64), *drawn])
        self.weight_RG = many_RG / (many_RG @ size_G)[:, None]

    def means(self, value_SQ: np.ndarray) -> np.ndarray:
        """Return the mean over queries, one line a round (1 + R, S): the first is without drawing."""
        sum_GS = np.stack([np.bincount(self.member_Q, value_Q) for value_Q in value_SQ], 1)
        return self.weight_RG @ sum_GS


def interval(mean_R: np.ndarray) -> dict[str, float]:
    """Return a mean, the first entry, and the ends between which 95 % of its rounds, the others, lie."""
    low, high = np.quantile(mean_R[1:], ENDS)
    return {"mean": float(mean_R[0]), "low": float(low), "high": float(high)}
