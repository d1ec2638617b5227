"""Theorem 2 as code: when does the target's prefix survive, by the divergence K, the margin m and the mismatch eps?

A distribution is an array of log-probabilities over its last axis, and that axis holds *all* distinct prefixes of the
pool at one level. Shapes: Q queries, N items, P distinct prefixes, T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from siglum.types import SiglumError


def number_prefixes(codes_NT: np.ndarray, length: int) -> np.ndarray:
    """Number the distinct prefixes of `length` tokens in code order, 0 to P - 1, so that siblings stand together (N,).

    >>> number_prefixes(np.array([[1, 0], [0, 5], [1, 0], [1, 2]]), 2).tolist()
    [1, 0, 1, 2]
    """
    return np.unique(codes_NT[:, :length], axis=0, return_inverse=True)[1].reshape(-1)


def teacher_scores(score_QN: np.ndarray, prefix_N: np.ndarray) -> np.ndarray:
    """Return s* of every prefix (appendix, prefix PMFs): the best <q, x> among the items that have it (Q, P)."""
    order = np.argsort(prefix_N, kind="stable")
    starts = np.flatnonzero(np.diff(prefix_N[order], prepend=-1))
    best: np.ndarray = np.maximum.reduceat(score_QN[:, order], starts, axis=1)
    return best


def log_distribution(score_QP: np.ndarray, tau: float | np.ndarray) -> np.ndarray:
    """Return the prefix PMF of the appendix, proportional to exp(score / tau), as log-probabilities.

    >>> np.exp(log_distribution(np.log([[3.0, 1.0]]), tau=1.0)).tolist()
    [[0.75, 0.25]]
    """
    if not np.all(np.asarray(tau) > 0):
        raise SiglumError(f"a temperature must be above 0, not {np.min(tau)}.")
    scaled = score_QP / tau
    scaled = scaled - scaled.max(-1, keepdims=True)
    log_p: np.ndarray = scaled - np.log(np.exp(scaled).sum(-1, keepdims=True))
    return log_p


def total_variation(log_p: np.ndarray, log_q: np.ndarray) -> np.ndarray:
    """Return TV(P, Q) = 1/2 sum |P - Q| (eq. app_tv_def)."""
    distance: np.ndarray = 0.5 * np.abs(np.exp(log_p) - np.exp(log_q)).sum(-1)
    return distance


def divergence(log_p: np.ndarray, log_q: np.ndarray) -> np.ndarray:
    """Return KL(P || Q), in log space and never below 0."""
    kl: np.ndarray = np.maximum((np.exp(log_p) * (log_p - log_q)).sum(-1), 0.0)
    return kl


def pinsker(kl: np.ndarray) -> np.ndarray:
    """Return the bound sqrt(KL / 2) on the total variation (eq. app_pinsker)."""
    return np.sqrt(kl / 2)


def ranking_divergence(log_teacher_QP: np.ndarray, log_oracle_QP: np.ndarray) -> np.ndarray:
    """Return K = KL(pi* || pi-bar) (eq. ranking_kl): how far quantisation moves the teacher (Q,)."""
    return divergence(log_teacher_QP, log_oracle_QP)


def decoder_mismatch(log_oracle_QP: np.ndarray, log_decoder_QP: np.ndarray) -> np.ndarray:
    """Return eps = TV(pi-bar, pi-tilde) (eq. dec_mismatch): how far the decoder is from the quantised oracle (Q,)."""
    return total_variation(log_oracle_QP, log_decoder_QP)


def teacher_margin(log_teacher_QP: np.ndarray, target_Q: np.ndarray, beam: int) -> np.ndarray:
    """Return m = pi*(target) - pi*_(B+1) (eq. margin); with at most B prefixes the second term is 0 (Q,)."""
    if beam < 1:
        raise SiglumError(f"the beam must be at least 1, not {beam}.")
    p_QP = np.exp(log_teacher_QP)
    own = p_QP[np.arange(len(p_QP)), target_Q]
    margin: np.ndarray = own if p_QP.shape[1] <= beam else own + np.partition(-p_QP, beam, axis=1)[:, beam]
    return margin


def oracle_slack(divergence_Q: np.ndarray, margin_Q: np.ndarray) -> np.ndarray:
    """Return m / 2 - sqrt(K / 2) (lemma app_kl_topB): where it is above 0, the oracle's beam keeps the target.

    That is K < m^2 / 2 (eq. app_kl_cond) with m > 0.

    >>> bool(oracle_slack(np.array(0.019), np.array(0.2)) > 0), bool(oracle_slack(np.array(0.021), np.array(0.2)) > 0)
    (True, False)
    """
    return survival_slack(divergence_Q, margin_Q, np.zeros_like(margin_Q))


def combined_distance(divergence_Q: np.ndarray, mismatch_Q: np.ndarray) -> np.ndarray:
    """Return sqrt(K / 2) + eps, which TV(pi*, pi-tilde) cannot exceed (eq. app_combined_tv)."""
    distance: np.ndarray = pinsker(divergence_Q) + mismatch_Q
    return distance


def guaranteed_lead(margin_Q: np.ndarray, distance_Q: np.ndarray) -> np.ndarray:
    """Return m - 2 TV (eq. app_margin_gap): the target's least lead over all that the teacher ranks below B."""
    lead: np.ndarray = margin_Q - 2 * distance_Q
    return lead


def survival_slack(divergence_Q: np.ndarray, margin_Q: np.ndarray, mismatch_Q: np.ndarray) -> np.ndarray:
    """Return m / 2 - sqrt(K / 2) - eps (eq. survival): the premise of Theorem 2 holds where it is above 0."""
    return guaranteed_lead(margin_Q, combined_distance(divergence_Q, mismatch_Q)) / 2


@dataclass(frozen=True, slots=True)
class LevelBound:
    """The three quantities of Theorem 2 for every query at one level."""

    beam: int
    prefixes: int
    """Distinct prefixes P of the pool."""
    divergence_Q: np.ndarray
    """K"""
    margin_Q: np.ndarray
    """m"""
    mismatch_Q: np.ndarray
    """eps; 0 for the quantised oracle alone."""

    @property
    def slack_Q(self) -> np.ndarray:
        """What is left of the margin (eq. survival)."""
        return survival_slack(self.divergence_Q, self.margin_Q, self.mismatch_Q)

    @property
    def certified_Q(self) -> np.ndarray:
        """Where survival of this step is certain: the premise holds, or there are no more prefixes than places."""
        return (self.slack_Q > 0) | (self.prefixes <= self.beam)

    @property
    def obstacle_Q(self) -> np.ndarray:
        """Why the bound says nothing: `margin` (m <= 0), `divergence` or `mismatch` (alone too large), `sum`, or ``.

        Since m <= 1, K >= 1/2 or eps >= 1/2 makes it vacuous for any teacher.
        """
        half = self.margin_Q / 2
        cases = [self.certified_Q, half <= 0, pinsker(self.divergence_Q) >= half, self.mismatch_Q >= half]
        return np.select(cases, ["", "margin", "divergence", "mismatch"], default="sum")


def bound_level(
    teacher_QP: np.ndarray,
    oracle_QP: np.ndarray,
    target_Q: np.ndarray,
    beam: int,
    tau: float,
    decoder_QP: np.ndarray | None = None,
    decoder_tau: float | None = None,
) -> LevelBound:
    """Return K, m and eps of one level from the scores s*, s-bar and s-tilde of all its prefixes (Q, P).

    Without a decoder eps is 0, which is the lemma for the oracle alone. The decoder's score (its log-probability along
    the prefix) is divided by `tau` as printed, or by `decoder_tau`.

    >>> level = bound_level(np.array([[2.0, 1.0, 0.0]]), np.array([[2.0, 1.0, 0.1]]), np.array([0]), beam=1, tau=0.5)
    >>> level.certified_Q.tolist(), level.obstacle_Q.tolist()
    ([True], [''])
    """
    log_teacher, log_oracle = log_distribution(teacher_QP, tau), log_distribution(oracle_QP, tau)
    mismatch = np.zeros(len(log_oracle))
    if decoder_QP is not None:
        log_decoder = log_distribution(decoder_QP, tau if decoder_tau is None else decoder_tau)
        mismatch = decoder_mismatch(log_oracle, log_decoder)
    margin = teacher_margin(log_teacher, target_Q, beam)
    return LevelBound(beam, teacher_QP.shape[1], ranking_divergence(log_teacher, log_oracle), margin, mismatch)


def certify(levels: Sequence[LevelBound]) -> np.ndarray:
    """Return the queries whose target stays in the beam through all levels (theorem survival), bool (Q,)."""
    certain: np.ndarray = np.all([level.certified_Q for level in levels], axis=0)
    return certain


class Certificate(NamedTuple):
    """The tightest certificate of one level that total variation gives; it certifies where `slack_Q` is above 0."""

    slack_Q: np.ndarray
    """m / 2 less the distance."""
    distance_Q: np.ndarray
    """TV(pi*, pi) at the best temperature of pi."""
    temperature_Q: np.ndarray


def tightest_certificate(
    teacher_QP: np.ndarray, score_QP: np.ndarray, target_Q: np.ndarray, beam: int, tau: float
) -> Certificate:
    """Compare the teacher with what the beam ranks by, without Pinsker or triangle (left side of eq. app_tri_expand).

    `score_QP` is s-bar (certifies the oracle's beam) or s-tilde (the decoder's). A temperature does not change a
    ranking, so each query may choose its own: the distance is the least over tau 2^-10 to tau 2^10, refined to 1 %.
    At `tau` itself it is at most sqrt(K / 2) + eps, so this certifies whatever Theorem 2 does.
    """
    log_teacher = log_distribution(teacher_QP, tau)
    distance, temperature = np.full(len(score_QP), np.inf), np.full(len(score_QP), float(tau))
    for reach, steps in ((10.0, 41), (0.5, 17), (1 / 16, 17)):
        centre = temperature.copy()
        for power in np.linspace(-reach, reach, steps):
            trial = centre * 2.0**power
            found = total_variation(log_teacher, log_distribution(score_QP, trial[:, None]))
            temperature = np.where(found < distance, trial, temperature)
            distance = np.minimum(found, distance)
    lead = guaranteed_lead(teacher_margin(log_teacher, target_Q, beam), distance)
    return Certificate(lead / 2, distance, temperature)


def mismatch_range(log_oracle_QP: np.ndarray, log_decoder_QP: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the least and the largest eps a decoder with these probabilities can have, whatever it ranks first.

    The least is reached when the decoder ranks all prefixes as the oracle does: what remains is a difference of
    sharpness, that is of temperature, and no disagreement about prefixes at all.
    """
    oracle, decoder = np.sort(log_oracle_QP, -1), np.sort(log_decoder_QP, -1)
    return total_variation(oracle, decoder), total_variation(oracle, decoder[..., ::-1])


def mismatch_readings(
    oracle_QP: np.ndarray,
    decoder_QP: np.ndarray,
    geometry_QP: np.ndarray,
    target_Q: np.ndarray,
    tau: float,
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Return eps in several readings and with decoders that know nothing or everything, each (Q,).

    `printed` has tau on the decoder's score and `unit` temperature 1. For each, `_agreed` is the same decoder if it
    ranked as the oracle does and `_shuffled` if its scores were dealt out at random. `geometric` is the geometric
    expert of Proposition A.8 in the decoder's place (`geometry_QP` = 2 <q, x̂> - |x̂|^2), `faultless` a decoder that
    gives the target everything. Where the last ones are as large as the first, eps tells nothing of the decoder.
    """
    log_oracle = log_distribution(oracle_QP, tau)
    readings = {}
    for name, temperature in (("printed", tau), ("unit", 1.0)):
        log_decoder = log_distribution(decoder_QP, temperature)
        readings[name] = decoder_mismatch(log_oracle, log_decoder)
        readings[f"{name}_agreed"] = mismatch_range(log_oracle, log_decoder)[0]
        readings[f"{name}_shuffled"] = decoder_mismatch(log_oracle, rng.permuted(log_decoder, axis=-1))
    readings["geometric"] = decoder_mismatch(log_oracle, log_distribution(geometry_QP / 2, tau))
    readings["faultless"] = 1 - np.exp(log_oracle[np.arange(len(log_oracle)), target_Q])
    return readings
