"""Look-ahead: a prefix is worth what the best leaf below it is worth, not what its own partial sum is worth.

A beam that ranks prefixes by |q - x̂_l|^2 prunes on what few codes say. The geometric part of the score of every leaf
is known before the decoder speaks, from the codes alone; the best of them under a prefix is the most that geometry
can still give it. Ranked by path score + that potential, prefixes are pruned for what the decoder says against them
only; at the leaves the potential is the geometric score itself, so the ranked scores are those of fusion (eq. cdsb).
Shapes: Q queries, N items, C candidate prefixes, D numbers a vector.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from siglum.config import SearchConfig
from siglum.index import Index
from siglum.index.ragged import spread
from siglum.index.trie import Allowed
from siglum.types import SiglumError, one_of

CHUNK = 65_536
"""Items whose reconstructions are held at once."""

GATHER = 8
"""How many scores in a row are read in the time that one picked out takes."""


@dataclass(frozen=True, slots=True)
class Potential:
    """Geometric scores of all leaves for some queries, in the order of the index's sorted rows."""

    gain_QN: np.ndarray

    def best(self, query_C: np.ndarray, lo: np.ndarray, hi: np.ndarray) -> np.ndarray:
        """Return the highest score in each range of rows, float64 (C,); ranges ascend by query and row.

        >>> Potential(np.array([[1.0, 3.0, 2.0]])).best(np.array([0, 0]), np.array([0, 2]), np.array([2, 3])).tolist()
        [3.0, 2.0]
        """
        if not len(query_C):
            return np.zeros(0)
        counts, first_C = hi - lo, query_C * self.gain_QN.shape[1]
        flat = self.gain_QN.reshape(-1)
        if counts.sum() * GATHER < len(flat):
            found, bounds = flat[spread(first_C + lo, counts)], np.cumsum(counts) - counts
            best: np.ndarray = np.maximum.reduceat(found, bounds)
        else:  # what lies between the ranges is worked out too, and left away
            bounds = np.stack([first_C + lo, first_C + hi], 1).reshape(-1)
            best = np.maximum.reduceat(flat, bounds[: -1 if bounds[-1] == len(flat) else None])[::2]
        return best.astype(np.float64)


@dataclass(frozen=True, slots=True)
class LookAhead:
    """omega (2 <q, x̂> - |x̂|^2) of the best leaf under a prefix."""

    codebooks: list[Tensor]
    omega: float
    first_geometric: int = 0
    """Levels before this one carry no codeword."""

    @torch.no_grad()
    def begin(self, query_QD: Tensor, index: Index, allowed: Allowed | None = None) -> Potential:
        """Score every leaf for every query; rows a filter leaves out are worth nothing."""
        gain_QN = np.empty((len(query_QD), len(index)), np.float32)
        for start in range(0, len(index), CHUNK):
            rows = np.arange(start, min(start + CHUNK, len(index)))
            codes = torch.as_tensor(index.codes(rows), device=query_QD.device).long()
            hat = torch.zeros(len(rows), query_QD.shape[1], device=query_QD.device)
            for level in range(self.first_geometric, index.levels):
                hat += self.codebooks[level][codes[:, level]]
            gain = self.omega * (2 * query_QD @ hat.T - hat.square().sum(-1))
            gain_QN[:, rows[0] : rows[-1] + 1] = gain.cpu().numpy()
        if allowed is not None:
            gain_QN[:, ~allowed.rows] = -np.inf
        return Potential(gain_QN)


def build_lookahead(config: SearchConfig, codebooks: list[Tensor], first_geometric: int = 0) -> LookAhead | None:
    """Return the look-ahead the config asks for; `first_geometric` is the first level whose token has a codeword."""
    if not config.lookahead:
        return None
    one_of("search.scorer with look-ahead", config.scorer, ("fused", "geometry"))
    if config.zscore:
        raise SiglumError("look-ahead needs the plain geometric score; turn search.zscore off.")
    return LookAhead(codebooks, config.omega if config.scorer == "fused" else 1.0, first_geometric)
