"""Theorem 2 on random instances in the real beam, its quantities against loops, and where it says nothing."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from siglum.index import Index
from siglum.lab.theory import bound
from siglum.search.beam import Beams, beam_search
from siglum.search.scorers import OracleScorer
from siglum.types import SiglumError

BEAMS, DEPTHS, A_GROUP, ITEMS = (1, 2, 3, 5, 10), (1, 2, 3, 5), 500, 48


class Level(NamedTuple):
    prefix_N: np.ndarray
    teacher_QP: np.ndarray
    oracle_QP: np.ndarray
    decoder_QP: np.ndarray
    target_Q: np.ndarray


class Group(NamedTuple):
    """Instances with one trie and one beam; each has its own query, items, quantiser, decoder and target."""

    beam: int
    tau: float
    levels: list[Level]
    target_Q: np.ndarray

    def bounds(self, *, decoder: bool = True) -> list[bound.LevelBound]:
        return [
            bound.bound_level(
                part.teacher_QP,
                part.oracle_QP,
                part.target_Q,
                self.beam,
                self.tau,
                part.decoder_QP if decoder else None,
            )
            for part in self.levels
        ]

    def ratio_QL(self) -> np.ndarray:
        """Left side of the premise over its right side; it holds below 1."""
        sides = [(bound.combined_distance(b.divergence_Q, b.mismatch_Q), b.margin_Q / 2) for b in self.bounds()]
        return np.stack([left / right for left, right in sides], 1)


class Noise(NamedTuple):
    oracle: list[np.ndarray]
    decoder: list[np.ndarray]
    theft_Q: np.ndarray
    """Level at which the decoder moves mass from the target to the best prefix outside the beam; -1: nowhere."""


def disturb(clean: Group, noise: Noise, amount_Q: np.ndarray) -> Group:
    levels = []
    for depth, part in enumerate(clean.levels):
        oracle = part.teacher_QP + amount_Q[:, None] * noise.oracle[depth]
        log_p = bound.log_distribution(oracle + amount_Q[:, None] * noise.decoder[depth], clean.tau)
        if log_p.shape[1] > clean.beam:
            log_teacher = bound.log_distribution(part.teacher_QP, clean.tau)
            half = bound.teacher_margin(log_teacher, part.target_Q, clean.beam) / 2
            thief = np.argsort(-part.teacher_QP, axis=1)[:, clean.beam]
            rob = np.flatnonzero(noise.theft_Q == depth)
            own, other = (rob, part.target_Q[rob]), (rob, thief[rob])
            share = np.exp(np.minimum(np.log(amount_Q * half)[rob] - log_p[own], -0.02))
            log_p[other] = np.logaddexp(log_p[other], log_p[own] + np.log(share))
            log_p[own] += np.log1p(-share)
        levels.append(part._replace(oracle_QP=oracle, decoder_QP=clean.tau * log_p))
    return clean._replace(levels=levels)


def draw_scores(rng: np.random.Generator, codes: np.ndarray, beam: int, sharp_Q: np.ndarray, theft_Q: np.ndarray):
    """Draw <q, x> of all items (Q, N). Where `sharp`, the B best differ in the first code, and the next best leave
    the path of one of them at the level of the theft: so a thief is always in sight of the beam."""
    key = rng.random((len(sharp_Q), len(codes)))
    prefixes = [bound.number_prefixes(codes, length) for length in range(codes.shape[1] + 1)]
    repeated = key > -bound.teacher_scores(-key, prefixes[1])[:, prefixes[1]]
    best = np.argsort(np.argsort(key + (sharp_Q[:, None] & repeated), axis=1), axis=1) < beam
    shared = np.stack([bound.teacher_scores(best * 1, prefix)[:, prefix] for prefix in prefixes])
    rows = np.arange(len(key))
    kin = sharp_Q[:, None] & (shared[theft_Q, rows] > shared[theft_Q + 1, rows])
    return np.select([best, kin], [0.6 + 0.2 * key, 0.3 + 0.2 * key], 1.3 * key - 1)


def draw_group(rng: np.random.Generator, beam: int, depth: int, size: int) -> Group:
    """Draw instances and disturb each until the premise is nearly met, just broken, or broken by a wide margin."""
    width = np.r_[beam + rng.integers(1, 4), rng.integers(2, 4, depth - 1)]
    codes = np.stack([rng.integers(0, w, ITEMS) for w in width], 1)
    tau = float(10 ** rng.uniform(-1.3, 0))
    sharp = rng.random(size) < 0.5  # the target is last of those that fit, and the decoder does little but rob it
    theft = np.where(sharp, rng.integers(0, depth, size), rng.integers(-1, depth, size))
    score = draw_scores(rng, codes, beam, sharp, theft)
    place = np.where(sharp, beam - 1, rng.integers(0, beam, size))
    target = np.argsort(-score, axis=1)[np.arange(size), place]
    levels, noisy = [], []
    for length in range(1, depth + 1):
        prefix = bound.number_prefixes(codes, length)
        teacher = bound.teacher_scores(score, prefix)
        levels.append(Level(prefix, teacher, teacher, teacher, prefix[target]))
        noisy.append(rng.normal(size=(2, *teacher.shape)))
    loud = 10 ** rng.uniform(-3, 0, (2, size, 1)) * np.where(sharp, 1e-3, 1.0)[:, None]
    noise = Noise([loud[0] * part[0] for part in noisy], [loud[1] * part[1] for part in noisy], theft)
    clean = Group(beam, tau, levels, target)
    goal = np.choose(
        rng.choice(4, size, p=(0.35, 0.2, 0.25, 0.2)),
        (rng.uniform(0.95, 1, size), rng.uniform(0.3, 0.95, size), rng.uniform(1, 1.05, size), rng.uniform(1, 3, size)),
    )
    low, high = np.full(size, -6.0), np.full(size, 2.0)
    for _ in range(30):
        middle = (low + high) / 2
        below = disturb(clean, noise, 10**middle).ratio_QL().max(1) < goal
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return disturb(clean, noise, 10**low)


def survival(group: Group, scores: list[np.ndarray]) -> np.ndarray:
    """Whether each target is in the project's beam after every level (Q, L).

    Query i is the i-th unit vector and every prefix has a codeword of its own, so that <q_i, x̂> of a prefix is any
    number we like: `OracleScorer` then ranks by `scores`.
    """
    codes = np.stack([part.prefix_N for part in group.levels], 1)
    index = Index.build([str(row) for row in range(len(codes))], codes, codes.max(0) + 1, tokenizer="bound")
    books, before, above = [], np.zeros_like(scores[0]), np.zeros(len(codes), np.int64)
    for score, part in zip(scores, group.levels, strict=True):
        first = np.unique(part.prefix_N, return_index=True)[1]
        books.append(torch.as_tensor((score - before[:, above[first]]).T))
        before, above = score, part.prefix_N
    trace: list[Beams] = []
    beam_search(OracleScorer(books), index, torch.eye(len(scores[0]), dtype=torch.float64), group.beam, trace=trace)
    row = np.argsort(index.order)[group.target_Q]
    alive = np.zeros((len(row), len(trace)), bool)
    for depth, live in enumerate(trace):
        inside = (live.lo <= row[live.query]) & (row[live.query] < live.hi)
        alive[live.query[inside], depth] = True
    return alive


@cache
def instances() -> list[Group]:
    rng = np.random.default_rng(20)
    return [draw_group(rng, beam, depth, A_GROUP) for beam, depth in product(BEAMS, DEPTHS)]


@cache
def decoder_survival() -> list[np.ndarray]:
    return [survival(group, [part.decoder_QP for part in group.levels]) for group in instances()]


def test_bound_keeps_the_target_in_the_real_beam_wherever_its_premise_holds() -> None:
    held, near, by_level, by_cause = {}, {}, np.zeros(max(DEPTHS), int), np.zeros(2, int)
    for group, alive in zip(instances(), decoder_survival(), strict=True):
        ratio = group.ratio_QL()
        premise = ratio.max(1) < 1
        assert np.array_equal(premise, np.all([b.slack_Q > 0 for b in group.bounds()], axis=0))
        assert alive[premise].all()
        key = (group.beam, len(group.levels))
        held[key], near[key] = premise.sum(), (premise & (ratio.max(1) >= 0.95)).sum()
        by_level += np.bincount(ratio[premise].argmax(1), minlength=len(by_level))
        worst = ratio.argmax(1)
        share = np.stack([bound.pinsker(b.divergence_Q) / (b.margin_Q / 2) for b in group.bounds()], 1) / ratio
        by_cause += np.bincount(
            (share[np.arange(len(worst)), worst] > 0.5)[premise & (ratio.max(1) >= 0.95)], minlength=2
        )
    assert sum(len(group.target_Q) for group in instances()) == 10_000
    assert sum(held.values()) >= 3_000
    assert sum(near.values()) >= 1_000
    assert min(held.values()) >= 100 and min(near.values()) >= 30
    assert min(by_level) >= 100
    assert min(by_cause) >= 300  # nearly used up by the mismatch, and by the divergence


def test_bound_is_lost_just_beyond_its_premise() -> None:
    """Within 5 % of equality, on the other side, targets are pruned: at every beam, depth and level."""
    by_case, by_level = {}, np.zeros(max(DEPTHS), int)
    for group, alive in zip(instances(), decoder_survival(), strict=True):
        ratio = group.ratio_QL().max(1)
        fallen = (ratio >= 1) & (ratio <= 1.05) & ~alive[:, -1]
        by_case[group.beam, len(group.levels)] = fallen.sum()
        by_level += np.bincount(alive[fallen].sum(1), minlength=len(by_level))
    assert sum(by_case.values()) >= 500
    assert min(by_case.values()) >= 5
    assert min(by_level) >= 5


def test_bound_for_the_oracle_alone_keeps_the_target_in_the_oracle_s_beam() -> None:
    held = 0
    for group in instances():
        levels = group.bounds(decoder=False)
        premise = np.all([b.divergence_Q < b.margin_Q**2 / 2 for b in levels], axis=0)
        assert np.array_equal(premise, np.all([bound.oracle_slack(b.divergence_Q, b.margin_Q) > 0 for b in levels], 0))
        assert survival(group, [part.oracle_QP for part in group.levels])[premise].all()
        held += premise.sum()
    assert held >= 3_000


def test_bound_is_implied_by_the_tightest_certificate_which_reaches_further_and_is_never_wrong() -> None:
    printed = direct = tight = 0
    for group, alive in zip(instances(), decoder_survival(), strict=True):
        certain, straight = np.ones(len(alive), bool), np.ones(len(alive), bool)
        for part, level in zip(group.levels, group.bounds(), strict=True):
            found = bound.tightest_certificate(part.teacher_QP, part.decoder_QP, part.target_Q, group.beam, group.tau)
            log_teacher = bound.log_distribution(part.teacher_QP, group.tau)
            own = bound.total_variation(log_teacher, bound.log_distribution(part.decoder_QP, group.tau))
            assert (own <= bound.combined_distance(level.divergence_Q, level.mismatch_Q) + 1e-12).all()
            assert (found.distance_Q <= own).all()
            at_best = bound.log_distribution(part.decoder_QP, found.temperature_Q[:, None])
            assert np.allclose(bound.total_variation(log_teacher, at_best), found.distance_Q)
            fits = level.prefixes <= group.beam
            certain &= (found.slack_Q > 0) | fits
            straight &= (level.margin_Q / 2 > own) | fits
        assert alive[certain].all()
        assert (certain | ~bound.certify(group.bounds())).all()
        printed, direct, tight = (
            printed + bound.certify(group.bounds()).sum(),
            direct + straight.sum(),
            tight + certain.sum(),
        )
    assert printed < direct < tight


def test_bound_temperature_frees_a_decoder_that_is_right_but_too_sure() -> None:
    teacher = np.array([[0.9, 0.8, 0.0, -0.5]])
    level = bound.bound_level(teacher, teacher, np.array([1]), 2, 1.0, decoder_QP=20 * teacher)
    assert level.obstacle_Q.tolist() == ["mismatch"]
    found = bound.tightest_certificate(teacher, 20 * teacher, np.array([1]), 2, 1.0)
    assert found.slack_Q[0] > 0
    assert found.temperature_Q[0] == pytest.approx(20, rel=0.01)
    assert found.distance_Q[0] < 0.01 * level.mismatch_Q[0]


@pytest.mark.parametrize("over", [0.999, 1.001])
def test_bound_is_sharp_in_the_divergence_alone(over: float) -> None:
    """Two prefixes of nearly equal mass and a beam of 1: Pinsker loses nothing, and no constant can be improved."""
    margin = 1e-3
    teacher = np.log([[0.5 + margin / 2, 0.5 - margin / 2]])
    shift = over * margin / 2
    oracle = np.log(np.exp(teacher) + np.array([[-shift, shift]]))
    level = bound.bound_level(teacher, oracle, np.array([0]), 1, 1.0)
    assert bound.pinsker(level.divergence_Q)[0] / (margin / 2) == pytest.approx(over, rel=1e-5)
    assert level.certified_Q[0] == (oracle[0, 0] > oracle[0, 1]) == (over < 1)


scores = arrays(np.float64, st.tuples(st.integers(1, 3), st.integers(2, 9)), elements=st.floats(-3, 3))


@given(teacher=scores, seed=st.integers(0, 999), beam=st.integers(1, 5), noise=st.floats(-4, 1), tau=st.floats(0.05, 2))
@settings(max_examples=300)
def test_bound_implies_the_top_of_the_ranking(teacher, seed: int, beam: int, noise: float, tau: float) -> None:
    rng = np.random.default_rng(seed)
    oracle = teacher + 10**noise * rng.normal(size=teacher.shape)
    decoder = oracle + 10**noise * rng.normal(size=teacher.shape)
    target = rng.integers(0, teacher.shape[1], len(teacher))
    for score, level in (
        (oracle, bound.bound_level(teacher, oracle, target, beam, tau)),
        (decoder, bound.bound_level(teacher, oracle, target, beam, tau, decoder)),
    ):
        own = score[np.arange(len(score)), target][:, None]
        inside = (score >= own).sum(1) <= beam
        assert inside[level.certified_Q].all()
        outside = np.argsort(np.argsort(-teacher, axis=1), axis=1) >= beam
        p, q = np.exp(bound.log_distribution(score, tau)), bound.log_distribution(teacher, tau)
        lead = p[np.arange(len(p)), target] - np.where(outside, p, 0).max(1)
        at_least = bound.guaranteed_lead(level.margin_Q, bound.total_variation(q, np.log(np.maximum(p, 1e-300))))
        away = ~outside[np.arange(len(p)), target]
        assert (lead[away] >= at_least[away] - 1e-9).all()
        assert ((level.margin_Q > 0) | ~(level.slack_Q > 0)).all()


@given(seed=st.integers(0, 999), beam=st.integers(1, 4), length=st.integers(1, 3))
@settings(max_examples=50)
def test_bound_quantities_equal_a_loop(seed: int, beam: int, length: int) -> None:
    rng = np.random.default_rng(seed)
    codes, tau = rng.integers(0, 3, (10, 3)), 0.3
    query, item, word = rng.normal(size=4), rng.normal(size=(10, 4)), rng.normal(size=(3, 3, 4)) / 2
    paths = sorted({tuple(row[:length]) for row in codes.tolist()})
    teacher = [
        max(query @ x for x, row in zip(item, codes.tolist(), strict=True) if tuple(row[:length]) == path)
        for path in paths
    ]
    oracle = [query @ sum(word[t][v] for t, v in enumerate(path)) for path in paths]
    decoder = rng.normal(size=len(paths))
    p, o, d = (
        [np.exp(s / tau) / sum(np.exp(u / tau) for u in part) for s in part] for part in (teacher, oracle, decoder)
    )
    at = paths.index(tuple(codes[4, :length].tolist()))

    prefix = bound.number_prefixes(codes, length)
    found = bound.teacher_scores((item @ query)[None], prefix)
    assert np.allclose(found, [teacher])
    partial = sum(word[t][codes[:, t]] for t in range(length)) @ query
    level = bound.bound_level(found, bound.teacher_scores(partial[None], prefix), prefix[4:5], beam, tau, decoder[None])
    assert level.prefixes == len(paths)
    assert level.divergence_Q[0] == pytest.approx(sum(a * np.log(a / b) for a, b in zip(p, o, strict=True)))
    assert level.mismatch_Q[0] == pytest.approx(sum(abs(a - b) for a, b in zip(o, d, strict=True)) / 2)
    assert level.margin_Q[0] == pytest.approx(p[at] - sorted([*p, *[0] * beam], reverse=True)[beam])


@given(p=arrays(np.float64, (3, 6), elements=st.floats(-8, 8)))
def test_bound_tools_pointwise_triangle_and_pinsker(p) -> None:
    a, b, c = (bound.log_distribution(row, 1.0) for row in p)
    tv = bound.total_variation
    assert np.abs(np.exp(a) - np.exp(b)).max() <= tv(a, b) + 1e-12
    assert tv(a, c) <= tv(a, b) + tv(b, c) + 1e-12
    assert tv(a, b) <= bound.pinsker(bound.divergence(a, b)) + 1e-12
    subsets = ((np.exp(a) - np.exp(b))[list(map(bool, mask))].sum() for mask in product((0, 1), repeat=6))
    assert tv(a, b) == pytest.approx(max(map(abs, subsets)))


def test_bound_is_certain_where_the_beam_holds_every_prefix() -> None:
    teacher = np.array([[0.0, 5.0, 1.0]])
    level = bound.bound_level(teacher, -teacher, np.array([0]), 3, 0.05)
    assert level.slack_Q[0] < 0
    assert level.certified_Q.tolist() == [True]
    assert level.obstacle_Q.tolist() == [""]
    assert level.margin_Q[0] == np.exp(bound.log_distribution(teacher, 0.05))[0, 0]


def test_bound_names_what_makes_it_vacuous() -> None:
    half = np.array([0.2, -0.1, 0.2, 0.2, 0.2])
    level = bound.LevelBound(2, 9, np.array([0.001, 0, 0.09, 0.001, 0.03]), 2 * half, np.array([0.1, 0, 0, 0.2, 0.1]))
    assert level.obstacle_Q.tolist() == ["", "margin", "divergence", "mismatch", "sum"]


@given(logits=arrays(np.float64, (2, 12), elements=st.floats(-9, 9)), beam=st.integers(1, 11))
def test_bound_is_vacuous_for_any_teacher_from_half_a_nat_or_half_a_unit_on(logits, beam: int) -> None:
    target = logits[:1].argmax(1)
    level = bound.bound_level(logits[:1], logits[1:], target, beam, 1.0, -logits[1:])
    assert not (level.slack_Q[0] > 0 and (level.divergence_Q[0] >= 0.5 or level.mismatch_Q[0] >= 0.5))
    assert level.margin_Q[0] <= 1


@pytest.mark.parametrize("over", [0.99, 1.01])
def test_bound_is_not_saved_by_warmth(over: float) -> None:
    """As tau grows, the premise tends to: standard deviation of s-bar - s* below the gap in s* divided by P."""
    rng = np.random.default_rng(0)
    teacher, noise = rng.normal(size=(1, 30)), rng.normal(size=(1, 30))
    ranked = np.argsort(-teacher[0])
    gap = teacher[0, ranked[1]] - teacher[0, ranked[4]]
    oracle = teacher + over * gap / 30 * (noise - noise.mean()) / noise.std()
    assert bound.bound_level(teacher, oracle, ranked[1:2], 4, 1e4).certified_Q[0] == (over < 1)


def test_bound_mismatch_at_the_paper_s_scale_says_nothing_of_the_decoder() -> None:
    """At tau = 1 the oracle over thousands of prefixes is flat: eps is near 1 for the best decoder there can be."""
    rng = np.random.default_rng(1)
    oracle = rng.uniform(-1, 1, (50, 4000))
    decoder = 8 * oracle + rng.normal(size=oracle.shape)
    geometry = 2 * oracle - rng.uniform(0.4, 0.6, oracle.shape)
    target = oracle.argmax(1)
    warm = bound.mismatch_readings(oracle, decoder * 5, geometry, target, 1.0, np.random.default_rng(0))
    assert warm["printed"].min() > 0.95
    assert warm["printed_agreed"].min() > 0.95
    assert warm["faultless"].min() > 0.99
    assert warm["geometric"].max() < 0.1
    assert np.array_equal(warm["printed"], warm["unit"])
    cold = bound.mismatch_readings(oracle, decoder, geometry, target, 0.05, np.random.default_rng(0))
    assert cold["unit"].mean() < cold["unit_shuffled"].mean()
    assert not np.allclose(cold["printed"], cold["unit"])
    again = bound.mismatch_readings(oracle, decoder, geometry, target, 0.05, np.random.default_rng(0))
    assert np.array_equal(cold["printed_shuffled"], again["printed_shuffled"])


@given(logits=arrays(np.float64, (2, 5), elements=st.floats(-4, 4)), seed=st.integers(0, 99))
def test_bound_mismatch_lies_between_full_agreement_and_full_disagreement(logits, seed: int) -> None:
    oracle, decoder = bound.log_distribution(logits[:1], 1.0), bound.log_distribution(logits[1:], 1.0)
    least, most = bound.mismatch_range(oracle, decoder)
    dealt = np.random.default_rng(seed).permuted(decoder, axis=-1)
    assert least - 1e-12 <= bound.decoder_mismatch(oracle, dealt) <= most + 1e-12


def test_bound_refuses_what_has_no_meaning() -> None:
    with pytest.raises(SiglumError, match="temperature must be above 0, not 0"):
        bound.log_distribution(np.zeros((1, 2)), 0.0)
    with pytest.raises(SiglumError, match="beam must be at least 1, not 0"):
        bound.teacher_margin(np.zeros((1, 2)), np.array([0]), 0)
