"""The ladder: one trie, one beam width, and scores that come closer, rung by rung, to what a search really does.

    teacher    the best <q, x> of a prefix's items, unquantised: what the trie itself costs
    oracle     <q, x̂_l>: what quantisation adds
    geometry   the distance |q - x̂_l|: what the lengths of partial sums add
    decoder    log P(codes | q), where a decoder is trained
    fused      both, and `look-ahead` where the search looks ahead

What a rung loses at a level beyond the rung before it is that rung's share; shares add up to all that is lost.
Shapes: T tokens, Q queries, P_l distinct prefixes after token l, R live prefixes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from siglum.measure.prefixes import Prefixes
from siglum.search.beam import best_per_query

CAUSES = {
    "teacher": "the trie (even exact similarities prune there)",
    "oracle": "quantisation",
    "geometry": "distance in place of inner product",
    "decoder": "the decoder",
    "fused": "fusion",
    "look-ahead": "look-ahead",
}
"""The cause that each rung of the ladder stands for; the names are all rungs, in order."""
LITTLE = 0.02
"""A loss of fewer targets than this share is not worth a remedy."""
MUCH = 0.2
"""A beam that holds a larger share of the pool than this has not had to choose yet."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What a run does already, and so need not be told to try."""

    beam: int
    distilled: bool = False
    """Whether the codes learnt to rank (L_rank), or are of a kind that cannot."""
    decoder: bool = False
    """Whether a decoder is trained."""
    omega: float = 0.0
    """Weight of geometry beside the decoder; 0 where they are not fused."""
    lookahead: bool | None = False
    """Whether the beam looks ahead; None where its score does not allow it."""


class PrefixBeam:
    """The beam search whose scores are all known beforehand; ties are broken as in `siglum.search.beam`."""

    def __init__(self, prefixes: Prefixes, queries: int, beam: int) -> None:
        """Begin with the root of every query."""
        self.prefixes, self.queries, self.beam = prefixes, queries, beam
        self.query_R, self.prefix_R = np.arange(queries), np.zeros(queries, np.int64)

    def step(self, level: int, score_PQ: Tensor, less_P: np.ndarray | None = None) -> None:
        """Keep each query's best children by score, less a number of the prefix's own where that is given."""
        if not self.prefixes.branches(level):
            return
        row, child = self.prefixes.children(level, self.prefix_R)
        query, at = self.query_R[row], score_PQ.device
        score = score_PQ[torch.as_tensor(child, device=at), torch.as_tensor(query, device=at)].double().cpu().numpy()
        keep = best_per_query(query, score if less_P is None else score - less_P[child], self.beam, self.queries)
        self.query_R, self.prefix_R = query[keep], child[keep]


def kept(
    prefixes: Prefixes, level: int, query_R: np.ndarray, prefix_R: np.ndarray, own_Q: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return whether each query's own prefix is live, and the share of all items under its live prefixes (Q,)."""
    survived = np.zeros(len(own_Q), bool)
    survived[query_R[prefix_R == own_Q[query_R]]] = True
    leaves = np.bincount(query_R, weights=prefixes.size[level][prefix_R], minlength=len(own_Q))
    return survived, leaves / len(prefixes.index)


@dataclass(frozen=True, slots=True)
class Rung:
    """What the beam of one score keeps, averaged over queries; lists have one entry a token."""

    name: str
    survival: list[float]
    """Share of queries whose target's prefix is live."""
    leaves: list[float]
    """Mean share of the pool's items under live prefixes."""

    @property
    def lost(self) -> np.ndarray:
        """Share of all targets lost at each token (T,)."""
        alive = np.array([1.0, *self.survival])
        lost: np.ndarray = alive[:-1] - alive[1:]
        return lost


def attribute(rungs: Sequence[Rung]) -> list[np.ndarray]:
    """Return each rung's share of the loss at each token (T,): what it loses beyond the rung before it.

    A share is negative where a rung wins targets back. Over rungs they add up to what the last one loses at a token,
    over rungs and tokens to all it loses.

    >>> rungs = [Rung("teacher", [0.9, 0.9], [1, 1]), Rung("oracle", [0.8, 0.5], [1, 1])]
    >>> [share.round(3).tolist() for share in attribute(rungs)]
    [[0.1, 0.0], [0.1, 0.3]]
    """
    before = [np.zeros_like(rungs[0].lost), *(rung.lost for rung in rungs)]
    return [rung.lost - one for rung, one in zip(rungs, before, strict=False)]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where a search loses its targets, why, and what to do about it."""

    text: str
    rung: str
    """Where most of the worst level's loss comes from; empty where little is lost."""
    level: int | None
    """The level that loses most targets; None where little is lost."""
    lost: float
    """Share of all targets lost there."""


def remedy(rung: str, level: int, tried: Tried) -> str:
    """Return what to try where a rung loses most at a level, less what the run does already.

    >>> remedy("oracle", 2, Tried(beam=50))
    'smaller vocabulary there, or distillation (tokenizer.rank_weight)'
    >>> remedy("oracle", 2, Tried(beam=50, distilled=True))
    'smaller vocabulary there, a wider beam (search.beam, now 50), or look-ahead (search.lookahead=true)'
    """
    smaller = ["smaller vocabulary there"] if level > 0 else []  # kinds of items cannot be made fewer
    wider = [f"a wider beam (search.beam, now {tried.beam})"]
    ahead = ["look-ahead (search.lookahead=true)"] if tried.lookahead is False else []
    now = f"search.omega (now {tried.omega:g})"
    fuse = [f"a higher {now}" if tried.omega else "fusion with geometry (search.scorer=fused, search.omega above 0)"]
    learn = ["distillation (tokenizer.rank_weight)"]
    ways = {
        "teacher": smaller + wider,
        "oracle": smaller + (wider + ahead if tried.distilled else learn),
        "geometry": ahead + (wider if tried.decoder else ["a decoder fused with it"]),
        "decoder": [*fuse, "a decoder trained longer or on more queries"],
        "fused": [f"a lower {now}", *ahead],
        "look-ahead": ["no look-ahead (search.lookahead=false)", *([f"another {now}"] if tried.omega else []), *wider],
    }.get(rung, wider)
    if len(ways) < 3:
        return ", or ".join(ways)
    return f"{', '.join(ways[:-1])}, or {ways[-1]}"


def judge(rungs: Sequence[Rung], own: str, first_residual: int, chance: Sequence[float], tried: Tried) -> Verdict:
    """Judge the rung that a run searches with; levels count from 1, a modality token before them is level 0.

    `chance` is what a beam of prefixes drawn blindly would keep at each token.
    """
    upto = list(rungs)[: 1 + [rung.name for rung in rungs].index(own)]
    last = upto[-1]
    end = (
        f"{_percent(last.survival[-1])} of targets reach the last level ({own}; chance {_percent(chance[-1])}), with"
        f" {_percent(last.leaves[-1])} of the pool under the beam."
    )
    if min(chance) >= 1:
        return Verdict(f"the beam holds every prefix of the pool, so nothing can be lost: {end}", "", None, 0.0)
    if 1 - last.survival[-1] < LITTLE:
        return Verdict(f"the beam loses next to nothing; what is missed is missed in the ranking: {end}", "", None, 0.0)
    token = int(last.lost.argmax())
    shares = {rung.name: float(share[token]) for rung, share in zip(upto, attribute(upto), strict=True)}
    cause = max(shares, key=lambda name: shares[name])
    lost, level = float(last.lost[token]), token - first_residual + 1
    parts = [f"{CAUSES.get(name, name)} {100 * share:+.1f}" for name, share in shares.items() if abs(share) >= 0.0005]
    text = (
        f"the beam loses {_percent(lost)} of targets at level {level}: {remedy(cause, level, tried)}."
        f" Of that, in points: {', '.join(parts)}. In all, {end}"
    )
    best = max(rungs[len(upto) :], key=lambda rung: rung.survival[-1], default=last)
    if best.survival[-1] >= last.survival[-1] + LITTLE:
        text += f" The rung {best.name} would keep {_percent(best.survival[-1])} (search.scorer {best.name})."
    if last.leaves[-1] > MUCH:
        text += " That is so much of the pool that survival says little; try a larger pool or a smaller beam."
    return Verdict(text, cause, level, lost)


def _percent(share: float) -> str:
    """Write a share in per cent, with a decimal where it is small.

    >>> _percent(0.413), _percent(0.0312)
    ('41 %', '3.1 %')
    """
    return f"{100 * share:.1f} %" if 0 < share < 0.0995 or 0.995 <= share < 1 else f"{100 * share:.0f} %"
