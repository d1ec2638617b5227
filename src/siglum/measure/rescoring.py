"""Live prefixes of one query scored again, by the whole scorer and by each of its parts.

Shapes: R live prefixes, C candidates, P parts of the score.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from siglum.index import Index
from siglum.index.trie import Allowed, Children
from siglum.search.lookahead import LookAhead
from siglum.search.query import EncodedQuery, Questions
from siglum.search.scorers import DecoderScorer, GeometryScorer, OracleScorer, PriorScorer, Scorer, SumScorer

GEOMETRY = "geometry"
PARTS: dict[type, str] = {
    DecoderScorer: "log_probability",
    PriorScorer: "prior",
    GeometryScorer: GEOMETRY,
    OracleScorer: "oracle",
}
"""Names of the parts of a score; a scorer that is not listed goes by its class."""


class Rescoring:
    """Scores live prefixes of one query again, by the whole scorer and by each of its parts."""

    def __init__(
        self, scorer: Scorer, index: Index, query: Questions, allowed: Allowed | None, ahead: LookAhead | None
    ) -> None:
        asked = EncodedQuery.of(query)
        parts = scorer.parts if isinstance(scorer, SumScorer) else [scorer]
        self.names = [PARTS.get(type(part), type(part).__name__) for part in parts]
        self.scorers = [scorer, *parts]
        self.states = [one.begin(asked) for one in self.scorers]
        self.path_PR = np.zeros((len(self.scorers), 1))
        self.levels, self.device = index.levels, asked.device
        self.potential = None if ahead is None else ahead.begin(asked.vector, index, allowed)

    def score(self, depth: int, kids: Children) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the candidates' scores (C,), and by name the parts they are the sum of."""
        parent, token = self._tensors(kids, slice(None))
        pairs = zip(self.scorers, self.states, strict=True)
        step_PC = [one.score(state, depth, parent, token).double().cpu().numpy() for one, state in pairs]
        self.path_PR = self.path_PR[:, kids.parent] + np.stack(step_PC)
        parts = dict.fromkeys(self.names, np.zeros(len(parent)))
        for name, own in zip(self.names, self.path_PR[1:], strict=True):
            parts[name] = parts[name] + own
        if self.potential is None:
            return self.path_PR[0], parts
        # The best leaf below a prefix stands for its geometry, and is not summed along the path.
        most = self.potential.best(np.zeros(len(parent), np.int64), kids.lo, kids.hi)
        return self.path_PR[0] + most, {**parts, GEOMETRY: parts.get(GEOMETRY, 0.0) + most}

    def advance(self, depth: int, kids: Children, keep: np.ndarray) -> None:
        """Go on with these candidates."""
        self.path_PR = self.path_PR[:, keep]
        if depth + 1 < self.levels:
            parent, token = self._tensors(kids, keep)
            pairs = zip(self.scorers, self.states, strict=True)
            self.states = [one.advance(state, depth, parent, token) for one, state in pairs]

    def _tensors(self, kids: Children, some: np.ndarray | slice) -> tuple[Tensor, Tensor]:
        parent, token = (torch.as_tensor(own[some], device=self.device) for own in (kids.parent, kids.token))
        return parent, token.long()


def score_parts(
    scorer: Scorer, index: Index, query_1D: Tensor, rows: np.ndarray, ahead: LookAhead | None = None
) -> list[dict[str, float]]:
    """Return what the score of each of these sorted rows is the sum of, by name, for one query vector (1, D)."""
    mask = np.zeros(len(index), bool)
    mask[rows] = True
    allowed = Allowed.of(mask)
    again = Rescoring(scorer, index, query_1D, allowed, ahead)
    lo, hi = index.root
    parts: dict[str, np.ndarray] = {}
    for depth in range(index.levels):
        kids = index.children(lo, hi, depth, allowed)
        _, parts = again.score(depth, kids)
        again.advance(depth, kids, np.arange(len(kids.lo)))
        lo, hi = kids.lo, kids.hi
    place = np.searchsorted(lo, rows, side="right") - 1
    return [{name: float(own[leaf]) for name, own in parts.items()} for leaf in place.tolist()]
