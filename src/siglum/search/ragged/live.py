"""Live prefixes of a walk, with the same prefixes without a query where there is a prior, and what they read next.

Shapes: R live rows (prefixes of all queries), D numbers a vector.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from siglum.generate.decoder import START
from siglum.index import Children
from siglum.search.beam import Beams
from siglum.search.ragged.cache import as_rows


@dataclass(slots=True)
class Position:
    """Prefixes of one length that are run together, by query."""

    tokens: np.ndarray
    """The token that each reads."""
    query: np.ndarray
    above: list[np.ndarray]
    """Row of every shorter prefix among the prefixes of that length."""


@dataclass(slots=True)
class Live:
    """Live prefixes of all queries, by query and then by code order; scores are those of paths, without look-ahead."""

    beams: Beams
    residual_RD: Tensor
    """q - x̂ of every prefix."""
    token_R: np.ndarray
    """Last code."""
    above: list[np.ndarray]
    """Row of every shorter prefix in the cache's table of that position."""
    null: Live | None = None
    """The distinct prefixes among these, of the empty query; where there is a prior."""
    null_R: np.ndarray | None = None
    """Row in `null` of every prefix."""

    def part(self, keep: np.ndarray) -> Live:
        """Return some of the rows."""
        beams = Beams(*(column[keep] for column in self.beams))
        residual_RD = self.residual_RD.index_select(0, as_rows(keep, self.residual_RD.device))
        chosen = Live(beams, residual_RD, self.token_R[keep], [rows[keep] for rows in self.above])
        if self.null is not None and self.null_R is not None:
            used, chosen.null_R = np.unique(self.null_R[keep], return_inverse=True)
            chosen.null = self.null.part(used)
        return chosen

    def position(self, rows: np.ndarray, first: int) -> Position:
        """Return what these rows read, then all of `null`; `first` is the id of the first code of the level before."""
        tokens = first + self.token_R[rows] if self.above else np.full(len(rows), START)
        own = Position(tokens, self.beams.query[rows], [column[rows] for column in self.above])
        if self.null is None:
            return own
        other = self.null.position(np.arange(len(self.null.token_R)), first)
        above = [np.concatenate(both) for both in zip(own.above, other.above, strict=True)]
        return Position(np.append(own.tokens, other.tokens), np.append(own.query, other.query), above)

    def grown(self, kids: Children, keep: np.ndarray, slot: np.ndarray, score: np.ndarray, residual_RD: Tensor) -> Live:
        """Return the kept children; `slot` says where in the cache's table these rows are, those of `null` after them.

        `residual_RD` and `score` are those of the kept ones.
        """
        parent, token = kids.parent[keep], kids.token[keep].astype(np.int64)
        fresh = Beams(self.beams.query[parent], kids.lo[keep], kids.hi[keep], score)
        live = Live(fresh, residual_RD, token, [column[parent] for column in (*self.above, slot)])
        if self.null is not None and self.null_R is not None:
            _, heads, live.null_R = np.unique(fresh.lo, return_index=True, return_inverse=True)
            above, null = self.null_R[parent[heads]], self.null
            own = Beams(null.beams.query[above], fresh.lo[heads], fresh.hi[heads], null.beams.score[above])
            rows = [column[above] for column in (*null.above, len(slot) + np.arange(len(null.token_R)))]
            live.null = Live(own, null.residual_RD.new_empty(len(heads), 0), token[heads], rows)
        return live
