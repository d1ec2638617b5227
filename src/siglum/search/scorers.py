"""What ranks prefixes in a beam: the decoder, the geometry of the codes, both (fusion), or the quantised oracle.

A scorer gives every legal continuation of every live prefix a number; a beam adds them up along the path.
Shapes: Q queries, R live rows (prefixes of all queries, flat), C candidate continuations, D numbers a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from siglum.config import SearchConfig
from siglum.generate.decoder import CodeDecoder, DecoderState
from siglum.registry import SCORERS
from siglum.search.query import EncodedQuery
from siglum.types import SiglumError, one_of


class Scorer(Protocol):
    """Scores continuations of live prefixes; `begin` starts with one empty prefix a query."""

    def begin(self, query: EncodedQuery) -> Any:
        """Return the state of one empty prefix for every query."""

    def score(self, state: Any, level: int, parent_C: Tensor, token_C: Tensor) -> Tensor:
        """Return the score of appending `token_C[i]` to row `parent_C[i]` (C,)."""

    def advance(self, state: Any, level: int, parent_R: Tensor, token_R: Tensor) -> Any:
        """Return the state of the surviving prefixes: row `parent_R[i]` with `token_R[i]` appended."""


def geometric_gain(residual_RD: Tensor, codebook_VD: Tensor) -> Tensor:
    """Drop in squared distance to the query if each codeword is appended: 2 r.c - c.c (eq. cdsb), (R, V)."""
    return 2 * residual_RD @ codebook_VD.T - codebook_VD.square().sum(-1)


@dataclass(slots=True)
class GeometryScorer:
    """Fusion with the decoder off: omega (2 r.c - c.c); the sum over levels is omega (2 <q, x̂> - |x̂|^2).

    With `zscore` each row is standardised over the whole codebook of the level, as the released code does.
    """

    codebooks: list[Tensor]
    omega: float = 1.0
    zscore: bool = False
    first_geometric: int = 0
    """Levels before this one add nothing."""

    def begin(self, query: EncodedQuery) -> Tensor:
        """Return the residuals q - x̂_p, at first the queries."""
        return query.vector

    def score(self, state: Tensor, level: int, parent_C: Tensor, token_C: Tensor) -> Tensor:
        """Return omega times the geometric gain (eq. cdsb)."""
        if level < self.first_geometric:
            return state.new_zeros(len(parent_C))
        gain = geometric_gain(state, self.codebooks[level])
        if self.zscore:
            gain = (gain - gain.mean(-1, keepdim=True)) / gain.std(-1, keepdim=True, unbiased=False).clamp(min=1e-6)
        return self.omega * gain[parent_C, token_C]

    def advance(self, state: Tensor, level: int, parent_R: Tensor, token_R: Tensor) -> Tensor:
        """Subtract the appended codewords."""
        return state[parent_R] - self.codebooks[level][token_R]


@dataclass(slots=True)
class OracleScorer:
    """The quantised oracle of Theorems 1 and 2: <q, c> at every level, so that a prefix scores <q, x̂_l>."""

    codebooks: list[Tensor]

    def begin(self, query: EncodedQuery) -> Tensor:
        """Return the queries."""
        return query.vector

    def score(self, state: Tensor, level: int, parent_C: Tensor, token_C: Tensor) -> Tensor:
        """Return <q, c>."""
        return (state @ self.codebooks[level].T)[parent_C, token_C]

    def advance(self, state: Tensor, level: int, parent_R: Tensor, token_R: Tensor) -> Tensor:
        """Keep the query of every surviving row."""
        return state[parent_R]


@dataclass(slots=True)
class _Decoding:
    state: DecoderState
    token_R: Tensor | None
    hidden_RM: Tensor | None = None


@dataclass(slots=True)
class DecoderScorer:
    """log P(v | q, p): log-softmax over the level, then the trie's mask (default); or `joint`, or `children`."""

    decoder: CodeDecoder
    normalisation: str = "level"

    def begin(self, query: EncodedQuery) -> _Decoding:
        """Encode the queries."""
        one_of("search.normalisation", self.normalisation, ("level", "joint", "children"))
        return _Decoding(self.decoder.start(query.states, query.mask_QS), None)

    def score(self, state: _Decoding, level: int, parent_C: Tensor, token_C: Tensor) -> Tensor:
        """Run one decoder step for the live rows and return the log-probabilities of the candidates."""
        hidden = self.decoder.step(state.state, state.token_R, level)
        with torch.no_grad():
            if self.normalisation == "joint":
                return self.decoder.joint_log_softmax(hidden, level)[parent_C, token_C]
            logits = self.decoder.level_logits(hidden, level)
            if self.normalisation == "level":
                return logits.log_softmax(-1)[parent_C, token_C]
            legal = torch.full_like(logits, -torch.inf)
            legal[parent_C, token_C] = logits[parent_C, token_C]
            return legal.log_softmax(-1)[parent_C, token_C]

    def advance(self, state: _Decoding, level: int, parent_R: Tensor, token_R: Tensor) -> _Decoding:
        """Keep the caches of the surviving rows."""
        return _Decoding(state.state.select(parent_R), token_R)


@dataclass(slots=True)
class _Prior:
    """The decoder without a query, one row a distinct prefix; `row_R` says which of them each live row has."""

    decoding: _Decoding
    row_R: Tensor


@dataclass(slots=True)
class PriorScorer:
    """-weight log P(v | p), the decoder's belief without a query: log P(v | q, p) - log P(v | p) is what q adds.

    A decoder learns how frequent codes were among the items it was trained on; for other items that is noise, and
    for frequent ones a bias. It must have been trained with `null_queries`. Prefixes that several queries share are
    worked out once.
    """

    decoder: CodeDecoder
    weight: float

    def begin(self, query: EncodedQuery) -> _Prior:
        """Start from the empty query, a vector of zeros."""
        state = self.decoder.start(query.states.new_zeros(1, self.decoder.query_dim))
        return _Prior(_Decoding(state, None), torch.zeros(len(query), dtype=torch.long, device=query.device))

    def score(self, state: _Prior, level: int, parent_C: Tensor, token_C: Tensor) -> Tensor:
        """Run one decoder step for the distinct prefixes and return minus their weighted log-probabilities."""
        hidden = self.decoder.step(state.decoding.state, state.decoding.token_R, level)
        with torch.no_grad():
            log_p = self.decoder.level_logits(hidden, level).log_softmax(-1)
        return -self.weight * log_p[state.row_R[parent_C], token_C]

    def advance(self, state: _Prior, level: int, parent_R: Tensor, token_R: Tensor) -> _Prior:
        """Keep one row for each distinct surviving prefix."""
        size = self.decoder.sizes[level]
        prefix, row_R = torch.unique(state.row_R[parent_R] * size + token_R, return_inverse=True)
        kept = state.decoding.state.select(torch.div(prefix, size, rounding_mode="floor"))
        return _Prior(_Decoding(kept, prefix % size), row_R)


@dataclass(slots=True)
class SumScorer:
    """The sum of several scorers: decoder + geometry is geometric score fusion (eq. cdsb)."""

    parts: list[Scorer]

    def begin(self, query: EncodedQuery) -> list[Any]:
        """Begin every part."""
        return [part.begin(query) for part in self.parts]

    def score(self, state: list[Any], level: int, parent_C: Tensor, token_C: Tensor) -> Tensor:
        """Add the parts' scores."""
        scores = [part.score(own, level, parent_C, token_C) for part, own in zip(self.parts, state, strict=True)]
        return torch.stack(scores).sum(0)

    def advance(self, state: list[Any], level: int, parent_R: Tensor, token_R: Tensor) -> list[Any]:
        """Advance every part."""
        return [part.advance(own, level, parent_R, token_R) for part, own in zip(self.parts, state, strict=True)]


def check_codebooks(config: SearchConfig, codebooks: Sequence[Tensor]) -> None:
    """Refuse a search that ranks by vectors of prefixes where the codes have none."""
    what = f"mode {config.mode}" if config.mode in ("scan", "scan-rescore") else f"the scorer {config.scorer}"
    fuses = config.scorer == "fused" and (config.omega > 0 or config.lookahead)
    needed = what.startswith("mode") or fuses or config.scorer in ("geometry", "oracle")
    if needed and not codebooks:
        raise SiglumError(
            f"{what} needs codes whose prefixes have vectors, and these have none; search with scorer decoder."
        )


def build_scorer(
    config: SearchConfig, codebooks: list[Tensor], decoder: CodeDecoder | None, first_geometric: int = 0
) -> Scorer:
    """Return the scorer named by the config; `first_geometric` is the first level whose token carries a codeword.

    Where the config looks ahead, the geometric part is left to `build_lookahead`.
    """
    check_codebooks(config, codebooks)
    scorer: Scorer = SCORERS[SCORERS.checked("search.scorer", config.scorer)](
        config, codebooks, decoder, first_geometric
    )
    return scorer


def build_oracle(
    config: SearchConfig, codebooks: list[Tensor], decoder: CodeDecoder | None, first_geometric: int
) -> Scorer:
    """Return the quantised oracle."""
    return OracleScorer(codebooks)


def build_geometry(
    config: SearchConfig, codebooks: list[Tensor], decoder: CodeDecoder | None, first_geometric: int
) -> Scorer:
    """Return geometry alone."""
    return GeometryScorer(codebooks, 0.0 if config.lookahead else 1.0, first_geometric=first_geometric)


def build_decoder(
    config: SearchConfig, codebooks: list[Tensor], decoder: CodeDecoder | None, first_geometric: int
) -> Scorer:
    """Return the decoder alone, less its prior where the config asks for that."""
    if decoder is None:
        raise SiglumError(
            f"the scorer {config.scorer} needs a trained decoder; train one, or search with scorer geometry."
        )
    normalisation = "children" if config.mode == "renormalised" else config.normalisation
    decoding = DecoderScorer(decoder, normalisation)
    if config.prior <= 0:
        return decoding
    if not decoder.config.null_queries:
        raise SiglumError("search.prior needs a decoder trained with decoder.null_queries above 0.")
    if normalisation != "level":
        raise SiglumError(f"search.prior goes with normalisation level, not {normalisation}.")
    return SumScorer([decoding, PriorScorer(decoder, config.prior)])


def build_fused(
    config: SearchConfig, codebooks: list[Tensor], decoder: CodeDecoder | None, first_geometric: int
) -> Scorer:
    """Return geometric score fusion (eq. cdsb)."""
    decoding = build_decoder(config, codebooks, decoder, first_geometric)
    if config.omega <= 0 or config.lookahead:
        return decoding
    geometry = GeometryScorer(codebooks, config.omega, config.zscore, first_geometric)
    return SumScorer([*(decoding.parts if isinstance(decoding, SumScorer) else [decoding]), geometry])
