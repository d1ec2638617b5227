"""The t-test equals scipy's, and the randomisation test equals enumeration and keeps its level."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from siglum.measure import significance
from siglum.measure.significance import Bootstrap, draw_clusters, interval, paired_randomisation, two_sample
from siglum.types import SiglumError

SAMPLE = st.lists(st.floats(-100, 100), min_size=2, max_size=8)


def table(values: np.ndarray) -> dict[str, float]:
    """Return values by query id."""
    return {f"q{number}": float(value) for number, value in enumerate(values)}


@settings(deadline=None)
@given(SAMPLE, SAMPLE, st.booleans())
def test_t_test_equals_scipy(a: list[float], b: list[float], pooled: bool) -> None:
    assume(min(np.std(a), np.std(b)) > 1e-3)
    truth = stats.ttest_ind(a, b, equal_var=pooled)
    found = two_sample(a, b, pooled=pooled)
    assert found.p == pytest.approx(truth.pvalue, rel=1e-8, abs=1e-300)
    assert found.t == pytest.approx(truth.statistic, rel=1e-8, abs=1e-8)
    assert found.df == pytest.approx(truth.df, rel=1e-8)
    assert found.difference == pytest.approx(np.mean(a) - np.mean(b), abs=1e-9)


@pytest.mark.filterwarnings("ignore:Precision loss:RuntimeWarning")
def test_t_test_of_one_constant_sample_equals_scipy() -> None:
    a, b = [0.0, 0.0, 0.0], [1.5, 2.0, 2.5, 3.5]
    for pooled in (True, False):
        assert two_sample(a, b, pooled=pooled).p == pytest.approx(stats.ttest_ind(a, b, equal_var=pooled).pvalue)


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ([1.0], [1.0, 2.0], "at least 2 values a sample, but there are 1 and 2"),
        ([1.0, 1.0], [2.0, 2.0], "constant"),
        ([1.0, math.nan], [2.0, 3.0], "not finite"),
    ],
)
def test_t_tests_without_meaning_are_refused(a: list[float], b: list[float], message: str) -> None:
    for pooled in (True, False):
        with pytest.raises(SiglumError, match=message):
            two_sample(a, b, pooled=pooled)


def enumerate_p(sums: list[float]) -> float:
    """Return the two-sided p value by trying every assignment of signs."""
    signs = itertools.product((-1, 1), repeat=len(sums))
    reached = [abs(math.fsum(s * x for s, x in zip(sign, sums, strict=True))) >= abs(math.fsum(sums)) for sign in signs]
    return sum(reached) / len(reached)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(-8, 8), st.integers(0, 4)), min_size=1, max_size=12))
def test_few_clusters_are_enumerated(cases: list[tuple[int, int]]) -> None:
    a = table(np.array([value for value, _ in cases]) / 8)  # eighths add up without rounding
    b = dict.fromkeys(a, 0.0)
    clusters = {query: str(cluster) for query, (_, cluster) in zip(a, cases, strict=True)}
    sums = [sum(a[q] for q in a if clusters[q] == name) for name in sorted(set(clusters.values()))]
    assert paired_randomisation(a, b, clusters).p == enumerate_p(sums)
    assert paired_randomisation(a, b).p == enumerate_p(list(a.values()))
    assert paired_randomisation(a, b).difference == pytest.approx(np.mean(list(a.values())))


def test_many_clusters_come_near_enumeration() -> None:
    rng = np.random.default_rng(3)
    for values in (rng.normal(0.25, 1, 14), rng.choice([-1.0, 0.0, 1.0, 0.5], 16)):
        found = paired_randomisation(table(values), table(0 * values), rounds=20_000)
        truth = enumerate_p(values[values != 0].tolist())
        assert abs(found.p - truth) < 5 * math.sqrt(truth * (1 - truth) / 20_000) + 1e-4


def test_rounding_of_sums_does_not_hide_an_equal_extreme() -> None:
    for values in np.random.default_rng(0).random((200, 8)):
        assert paired_randomisation(table(values), table(0 * values)).p == 2 / 2**8


def test_p_is_never_zero_and_is_one_without_a_difference() -> None:
    ones, zeros = table(np.ones(200)), table(np.zeros(200))
    assert paired_randomisation(ones, zeros, rounds=999).p == 1 / 1000
    assert paired_randomisation(ones, zeros).difference == 1.0
    assert paired_randomisation(ones, ones) == (1.0, 0.0)


def test_the_seed_decides_and_sides_are_symmetric() -> None:
    rng = np.random.default_rng(0)
    a, b = table(rng.normal(0.1, 1, 60)), table(rng.normal(0, 1, 60))
    first, second = paired_randomisation(a, b, seed=1), paired_randomisation(b, a, seed=1)
    assert first == paired_randomisation(a, b, seed=1)
    assert first.p == second.p
    assert first.difference == -second.difference
    assert first.p != paired_randomisation(a, b, seed=2).p


def rejections(clustered: bool, trials: int = 400) -> float:
    """Return how often 5 % significance is found on null data whose queries come in 20 clusters of 5."""
    rng = np.random.default_rng(11)
    clusters = {f"q{number}": str(number // 5) for number in range(100)}
    found = 0
    for _ in range(trials):
        noise = np.repeat(rng.normal(size=20), 5) + 0.3 * rng.normal(size=100)
        a, b = table(noise), table(np.zeros(100))
        found += paired_randomisation(a, b, clusters if clustered else None, rounds=199).p <= 0.05
    return found / trials


def test_false_positives_keep_the_level_only_with_clusters() -> None:
    bound = 3 * math.sqrt(0.05 * 0.95 / 400)
    assert abs(rejections(clustered=True) - 0.05) < bound
    assert rejections(clustered=False) > 0.05 + bound


def test_hundreds_of_clusters_agree_with_plain_sign_flips() -> None:
    rng = np.random.default_rng(5)
    values = rng.normal(0.3, 1, 100)
    signs = rng.choice([-1, 1], (50_000, 100))
    truth = (np.abs(signs @ values) >= abs(values.sum())).mean()
    found = paired_randomisation(table(values), table(0 * values), rounds=50_000).p
    assert abs(found - truth) < 5 * math.sqrt(2 * truth / 50_000)


def test_a_true_difference_of_half_a_deviation_is_found_nearly_always() -> None:
    draws = np.random.default_rng(6).normal(0.5, 1, (100, 100))
    found = [paired_randomisation(table(draw), table(0 * draw), rounds=199).p <= 0.05 for draw in draws]
    assert np.mean(found) > 0.95


def test_wrong_input_is_refused() -> None:
    a = {"p": 1.0, "q": 2.0}
    with pytest.raises(SiglumError, match="they have 2 and 1, of which 1 are shared"):
        paired_randomisation(a, {"p": 1.0})
    with pytest.raises(SiglumError, match="same queries"):
        paired_randomisation({}, {})
    with pytest.raises(SiglumError, match="query 'q' has no cluster"):
        paired_randomisation(a, a, {"p": "x"})
    with pytest.raises(SiglumError, match="not finite"):
        paired_randomisation(a, {"p": math.nan, "q": 1.0})
    with pytest.raises(SiglumError, match="rounds is 0"):
        paired_randomisation(a, a, rounds=0)


def test_the_interval_covers_the_true_difference() -> None:
    rng, covered = np.random.default_rng(0), 0
    for _ in range(60):
        easy = rng.random((1, 150)) < 0.5  # queries are hard or easy for both, which pairing takes out
        left, right = (easy & (rng.random((2, 150)) < chance) for chance in (0.9, 0.7))
        gap_SQ = left.astype(float) - right
        found = interval(Bootstrap(range(150), rounds=400).means(gap_SQ).mean(1))
        assert found["low"] <= found["mean"] <= found["high"]
        assert found["mean"] == pytest.approx(left.mean() - right.mean())
        covered += found["low"] <= 0.1 <= found["high"]
    assert covered >= 51  # 57 expected


def test_the_bootstrap_is_the_same_each_time_and_paired() -> None:
    left, right = np.random.default_rng(0).random((2, 3, 50))
    drawn = Bootstrap(range(50), rounds=100, seed=3)
    assert (drawn.means(left) == Bootstrap(range(50), rounds=100, seed=3).means(left)).all()
    assert (drawn.means(left) != Bootstrap(range(50), rounds=100, seed=4).means(left)).any()
    np.testing.assert_allclose(drawn.means(left) - drawn.means(right), drawn.means(left - right))
    assert interval(drawn.means(np.full((1, 50), 0.25))[:, 0]) == pytest.approx(
        {"mean": 0.25, "low": 0.25, "high": 0.25}
    )


def test_queries_of_a_cluster_are_drawn_together() -> None:
    clusters = ["b", "a", "a", "c", "b"]
    value_Q = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    found = Bootstrap(clusters, rounds=50).means(value_Q[None])[:, 0]
    member_Q = np.array([1, 0, 0, 2, 1])
    many_RQ = np.concatenate([np.ones((1, 5)), *(block[:, member_Q] for block in draw_clusters(member_Q, 50))])
    np.testing.assert_allclose(found, (many_RQ * value_Q).sum(1) / many_RQ.sum(1))


def test_blocks_of_draws_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    member_Q = np.arange(30) // 3
    (whole,) = draw_clusters(member_Q, 100, seed=5)
    monkeypatch.setattr(significance, "CELLS", 30 * 7)
    parts = list(draw_clusters(member_Q, 100, seed=5))
    assert len(parts) == 15 and (np.concatenate(parts) == whole).all()
