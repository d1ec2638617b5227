"""Propositions A.8 and A.9 as code: what geometric score fusion does to the decoder's mismatch.

A distribution is an array of log-probabilities over its last axis: the legal children of one parent prefix, or all
prefixes of a level. Given `parent_P` (ascending, siblings together, as `bound.number_prefixes` leaves them), that axis
holds the children of many parents, every parent is treated on its own, and results have one column a parent.
Shapes: Q queries, V children, P prefixes, R parents, D numbers a vector; leading axes may be anything.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from siglum.lab.theory.bound import log_distribution, pinsker
from siglum.search import scorers
from siglum.types import SiglumError


def geometric_gain(query_D: np.ndarray, parent_D: np.ndarray, codeword_VD: np.ndarray) -> np.ndarray:
    """Return g = 2 r.c - c.c with r = q - x̂_p, what score fusion adds for every child (V,), as the beam does."""
    residual = torch.as_tensor(query_D - parent_D)[None]
    gain: np.ndarray = scorers.geometric_gain(residual, torch.as_tensor(codeword_VD))[0].numpy()
    return gain


def distortion(parent_D: np.ndarray, codeword_VD: np.ndarray) -> np.ndarray:
    """Return eta = 2 x̂_p.c + c.c, the growth of |x̂|^2 with every child (V,)."""
    grown: np.ndarray = 2 * codeword_VD @ parent_D + np.square(codeword_VD).sum(-1)
    return grown


class Decomposition(NamedTuple):
    """The parts of g."""

    log_oracle_V: np.ndarray
    """Conditional quantised oracle, log pi-bar(v | p, q)."""
    kappa: float
    """2 tau log Z, the same for all children."""
    distortion_V: np.ndarray
    """eta"""


def decompose_gain(query_D: np.ndarray, parent_D: np.ndarray, codeword_VD: np.ndarray, tau: float) -> Decomposition:
    """Return the parts of g = 2 tau log pi-bar + kappa - eta (eq. g_decomp).

    >>> q, p, c = np.array([1.0, 0.0]), np.array([0.5, 0.5]), np.array([[0.5, 0.0], [0.0, -0.5]])
    >>> oracle, kappa, eta = decompose_gain(q, p, c, tau=0.5)
    >>> bool(np.allclose(2 * 0.5 * oracle + kappa - eta, geometric_gain(q, p, c)))
    True
    """
    score = codeword_VD @ query_D
    log_oracle = log_distribution(score, tau)
    return Decomposition(log_oracle, float(2 * (score[0] - tau * log_oracle[0])), distortion(parent_D, codeword_VD))


def log_conditional(score_P: np.ndarray, tau: float, parent_P: np.ndarray | None = None) -> np.ndarray:
    """Return the softmax of score / tau among siblings, as log-probabilities, in the shape of the scores."""
    starts, group = _siblings(parent_P, score_P.shape[-1])
    scaled = score_P / tau
    scaled = scaled - np.maximum.reduceat(scaled, starts, axis=-1)[..., group]
    log_p: np.ndarray = scaled - np.log(np.add.reduceat(np.exp(scaled), starts, axis=-1))[..., group]
    return log_p


def fuse(log_decoder_P: np.ndarray, gain_P: np.ndarray, omega: float, parent_P: np.ndarray | None = None) -> np.ndarray:
    """Return the fused family pi^omega, proportional to pi-tilde exp(omega g) (proposition local_tv)."""
    return log_conditional(log_decoder_P + omega * gain_P, 1.0, parent_P)


def multiply_experts(
    log_decoder_P: np.ndarray, log_oracle_P: np.ndarray, distortion_P: np.ndarray, tau: float, omega: float
) -> np.ndarray:
    """Return the same distribution as a product of experts: pi-tilde pi-bar^(2 tau omega) e^(-omega eta) (eq. poe)."""
    return log_conditional(log_decoder_P + 2 * tau * omega * log_oracle_P - omega * distortion_P, 1.0)


def geometric_expert(gain_P: np.ndarray, tau: float, parent_P: np.ndarray | None = None) -> np.ndarray:
    """Return rho, proportional to exp(g / (2 tau)) (proposition geom_expert): fusion at 1 / (2 tau), decoder off."""
    return log_conditional(gain_P, 2 * tau, parent_P)


def oscillation(distortion_P: np.ndarray, parent_P: np.ndarray | None = None) -> np.ndarray:
    """Return osc(eta) = max eta - min eta (proposition geom_expert)."""
    starts, _ = _siblings(parent_P, distortion_P.shape[-1])
    highest, lowest = (turn.reduceat(distortion_P, starts, axis=-1) for turn in (np.maximum, np.minimum))
    return _columns(highest - lowest, parent_P)


class ExpertBounds(NamedTuple):
    """How far the geometric expert can be from the conditional oracle."""

    kl: np.ndarray
    """delta / (2 tau), as printed."""
    tv: np.ndarray
    """sqrt(delta / (4 tau)), as printed; says nothing from delta = 4 tau on."""
    sharp_tv: np.ndarray
    """tanh(delta / (8 tau)): the best there is, always below 1, met by two children of equal weight."""


def bound_expert(oscillation_R: np.ndarray, tau: float) -> ExpertBounds:
    """Return the bounds on KL and TV between pi-bar and rho by the oscillation of eta (eq. geom_expert_bound).

    >>> [float(value.round(3)) for value in bound_expert(np.array(0.2), tau=0.05)]
    [2.0, 1.0, 0.462]
    """
    kl = np.asarray(oscillation_R / (2 * tau))
    return ExpertBounds(kl, pinsker(kl), np.tanh(kl / 4))


def expert_divergence(log_oracle_V: np.ndarray, distortion_V: np.ndarray, tau: float) -> np.ndarray:
    """Return KL(pi-bar || rho) as log E exp(-(eta - E eta) / (2 tau)), V from pi-bar (proof of geom_expert)."""
    centred = distortion_V - _mean(log_oracle_V, distortion_V, None)
    kl: np.ndarray = np.logaddexp.reduce(log_oracle_V - centred / (2 * tau), axis=-1)
    return kl


def covariance(
    log_weight_P: np.ndarray, value_P: np.ndarray, chosen_P: np.ndarray, parent_P: np.ndarray | None = None
) -> np.ndarray:
    """Return Cov(value(V), 1{V chosen}) for V drawn from the weights."""
    starts, _ = _siblings(parent_P, log_weight_P.shape[-1])
    centred = value_P - _mean(log_weight_P, value_P, parent_P)
    return _columns(np.add.reduceat(np.exp(log_weight_P) * centred * chosen_P, starts, axis=-1), parent_P)


def underrated(
    log_oracle_P: np.ndarray, log_decoder_P: np.ndarray, gain_P: np.ndarray, parent_P: np.ndarray | None = None
) -> np.ndarray:
    """Return S+ of Proposition A.9, bool: what the decoder gives less than the oracle, pi-bar > pi-tilde.

    The paper assumes that no two probabilities are equal. Where two are, as for a parent with a single child, the
    token belongs to S+ if fusion is about to lower it; the derivative is then the one to the right of omega = 0.
    """
    falling = gain_P < _mean(log_decoder_P, gain_P, parent_P)
    less: np.ndarray = (log_oracle_P > log_decoder_P) | ((log_oracle_P == log_decoder_P) & falling)
    return less


def mismatch_slope(
    log_oracle_P: np.ndarray, log_decoder_P: np.ndarray, gain_P: np.ndarray, parent_P: np.ndarray | None = None
) -> np.ndarray:
    """Return d TV(pi-bar, pi^omega) / d omega at 0 = -Cov(g(V), 1{V in S+}), V from the decoder (eq. tv_deriv).

    Below 0, a little fusion reduces the mismatch.
    """
    chosen = underrated(log_oracle_P, log_decoder_P, gain_P, parent_P)
    return -covariance(log_decoder_P, gain_P, chosen, parent_P)


class Alignment(NamedTuple):
    """The two parts of Cov(g, 1{S+}); fusion helps at first where the first exceeds the second."""

    oracle: np.ndarray
    """Oracle alignment, 2 tau Cov(log pi-bar, 1{S+})."""
    interference: np.ndarray
    """Distortion interference, Cov(eta, 1{S+})."""


def align_oracle(
    log_oracle_P: np.ndarray,
    log_decoder_P: np.ndarray,
    distortion_P: np.ndarray,
    tau: float,
    parent_P: np.ndarray | None = None,
) -> Alignment:
    """Return the two parts of the covariance of Proposition A.9 (eq. cov_decomp, corollary oracle_align).

    It holds over all prefixes of a level as well, with |x̂_p|^2 for eta: along a path both telescope.
    """
    chosen = underrated(log_oracle_P, log_decoder_P, 2 * tau * log_oracle_P - distortion_P, parent_P)
    oracle = 2 * tau * covariance(log_decoder_P, log_oracle_P, chosen, parent_P)
    return Alignment(oracle, covariance(log_decoder_P, distortion_P, chosen, parent_P))


class Slopes(NamedTuple):
    """Proposition A.9 for every parent, and for the whole level, which is what Theorem 2 asks for."""

    parent_QR: np.ndarray
    """Slope of the mismatch among the children of each parent."""
    whole_Q: np.ndarray
    """Slope of eps itself, over all prefixes of the level."""


def fusion_slopes(
    oracle_QP: np.ndarray,
    decoder_QP: np.ndarray,
    gain_QP: np.ndarray,
    parent_P: np.ndarray,
    tau: float,
    decoder_tau: float | None = None,
) -> Slopes:
    """Return Proposition A.9 per parent and globally, from the scores of all prefixes of a level (Q, P).

    `gain_QP` is g summed along the path, 2 <q, x̂_p> - |x̂_p|^2. The beam adds omega times it to the decoder's score,
    which is divided by `decoder_tau` (`tau`, as printed, if none is given); so is the gain.
    """
    own = tau if decoder_tau is None else decoder_tau
    parts = []
    for parent in (parent_P, None):
        log_oracle, log_decoder = log_conditional(oracle_QP, tau, parent), log_conditional(decoder_QP, own, parent)
        parts.append(mismatch_slope(log_oracle, log_decoder, gain_QP / own, parent))
    return Slopes(*parts)


def _siblings(parent_P: np.ndarray | None, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first place of every parent (R,) and the parent's number at every place (P,)."""
    if parent_P is None:
        return np.zeros(1, np.int64), np.zeros(size, np.int64)
    step = np.diff(parent_P)
    if len(parent_P) != size or (step < 0).any():
        raise SiglumError(f"parents must ascend, one for each of {size} prefixes; sort the prefixes by their codes.")
    return np.flatnonzero(np.r_[True, step > 0]), np.r_[0, np.cumsum(step > 0)]


def _mean(log_weight_P: np.ndarray, value_P: np.ndarray, parent_P: np.ndarray | None) -> np.ndarray:
    """Return the mean of the values among siblings, at the place of each of them."""
    starts, group = _siblings(parent_P, log_weight_P.shape[-1])
    mean: np.ndarray = np.add.reduceat(np.exp(log_weight_P) * value_P, starts, axis=-1)[..., group]
    return mean


def _columns(value_R: np.ndarray, parent_P: np.ndarray | None) -> np.ndarray:
    """Drop the axis of parents where there is but one unnamed parent."""
    return value_R[..., 0] if parent_P is None else value_R
