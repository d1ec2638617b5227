"""Fused beam search for code bases with tokenizers and models of their own: arrays of codes, a function that scores.

Shapes: N items, L levels, V_l codes of level l, Q queries, R live prefixes, C candidates, D numbers a vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from siglum.given import as_array, check_codebooks, check_tensor
from siglum.index import Index
from siglum.search.beam import Ranking, search_items
from siglum.search.query import EncodedQuery
from siglum.search.scorers import GeometryScorer, Scorer, SumScorer
from siglum.types import SiglumError, shown, whole_number

LogProbs = Callable[[Tensor, Tensor], Tensor]
"""From the queries of live prefixes (R, ...) and their codes so far (R, l) to log P of the next code (R, V_l)."""


def build_trie(
    codes_NL: np.ndarray | Tensor | Sequence[Sequence[int]],
    sizes: Sequence[int] | None = None,
    ids: Sequence[str] | None = None,
) -> Index:
    """Return the trie of items by their codes; `sizes` are the vocabularies, by default as large as the codes need.

    >>> build_trie([[0, 7], [0, 2], [1, 7]]).collisions().items
    0
    """
    codes = as_array("codes", codes_NL.cpu() if isinstance(codes_NL, Tensor) else codes_NL)
    if codes.ndim != 2 or not codes.size or codes.dtype.kind not in "iu":
        raise SiglumError(f"codes are whole numbers, one row an item (N, L), not {codes.dtype} {codes.shape}.")
    names = [str(row) for row in range(len(codes))] if ids is None else ids
    return Index.build(names, codes, [int(top) + 1 for top in codes.max(0)] if sizes is None else sizes, tokenizer="")


class Written(NamedTuple):
    """Live prefixes: the query of each, and its codes so far (R, l)."""

    query: Tensor
    codes_RL: Tensor


@dataclass(frozen=True, slots=True)
class FunctionScorer:
    """Scores continuations by a function of queries and prefixes, which reads every prefix anew at every level.

    A model that keeps a cache implements `siglum.search.scorers.Scorer` itself.
    """

    log_probs: LogProbs

    def begin(self, query: EncodedQuery) -> Written:
        """Return one empty prefix a query."""
        return Written(query.states, torch.zeros(len(query), 0, dtype=torch.long, device=query.device))

    @torch.no_grad()
    def score(self, state: Written, level: int, parent_C: Tensor, token_C: Tensor) -> Tensor:
        """Return the function's log-probabilities of the candidates."""
        found_RV, rows = self.log_probs(*state), len(state.query)
        least = int(token_C.max()) + 1 if len(token_C) else 0
        if not isinstance(found_RV, Tensor) or found_RV.ndim != 2 or len(found_RV) != rows or found_RV.shape[1] < least:
            what = tuple(found_RV.shape) if isinstance(found_RV, Tensor) else shown(found_RV)
            raise SiglumError(
                f"at level {level} the scorer was given {rows} prefixes and must return log-probabilities of shape"
                f" ({rows}, {least} or more), but returned {what}."
            )
        return found_RV[parent_C, token_C]

    def advance(self, state: Written, level: int, parent_R: Tensor, token_R: Tensor) -> Written:
        """Append the codes of the surviving prefixes."""
        return Written(state.query[parent_R], torch.cat([state.codes_RL[parent_R], token_R[:, None]], 1))


def as_scorer(scorer: Scorer | LogProbs) -> Scorer:
    """Return a scorer as it is, and a function as a scorer."""
    if all(callable(getattr(scorer, name, None)) for name in ("begin", "score", "advance")):
        return scorer  # type: ignore[return-value]
    if not callable(scorer):
        raise SiglumError(
            f"a scorer is a function of queries and prefixes, or has begin, score and advance, but this is"
            f" {shown(scorer)}."
        )
    return FunctionScorer(scorer)


@torch.no_grad()
def fused_beam_search(
    trie: Index,
    scorer: Scorer | LogProbs | None,
    query: Tensor | EncodedQuery,
    *,
    codebooks: Sequence[Tensor] = (),
    omega: float = 10.0,
    beam: int = 50,
    k: int = 10,
    first_geometric: int = 0,
    within: Iterable[str] | np.ndarray | None = None,
    batch_size: int = 64,
) -> list[Ranking]:
    """Return the k best items of every query by beam search over a trie; `position` is an item's row in its codes.

    A prefix scores the sum of the scorer's log-probabilities and, with codebooks (V_l, D), omega times the drop in
    squared distance to the query vector (eq. cdsb); without a scorer, that drop alone. Levels before `first_geometric`
    carry no codeword. `within` restricts the search to ids or to a mask over the items. Queries that are no vectors of
    the codebooks' space come as an `EncodedQuery`. Example:

        trie = siglum.build_trie(codes)
        best = siglum.fused_beam_search(trie, model.log_probs, queries, codebooks=books, k=5)[0].position
    """
    if not isinstance(trie, Index):
        raise SiglumError(f"the trie is what siglum.build_trie gives, not {shown(trie)}.")
    if not isinstance(query, EncodedQuery):
        check_tensor("queries", query, "QD")
    check_codebooks(codebooks)
    codebooks = [book.float() for book in codebooks]
    first_geometric, batch_size = (
        whole_number("first_geometric", first_geometric, 0),
        whole_number("the batch size", batch_size),
    )
    if isinstance(omega, bool) or not isinstance(omega, Real) or not 0 <= omega < float("inf"):
        raise SiglumError(f"omega is a weight of 0 or more, not {shown(omega)}.")
    parts: list[Scorer] = [] if scorer is None else [as_scorer(scorer)]
    if codebooks and (omega > 0 or not parts):
        parts.append(GeometryScorer(list(codebooks), omega if parts else 1.0, first_geometric=first_geometric))
    if not parts:
        raise SiglumError("a beam search needs something to rank by: a scorer, codebooks or both.")
    _check_codebooks(trie, codebooks)
    if codebooks and (omega > 0 or scorer is None):
        query = _for_geometry(EncodedQuery.of(query), codebooks[0].shape[1])
    ranked: Scorer = parts[0] if len(parts) == 1 else SumScorer(parts)
    k = min(whole_number("k", k), len(trie))
    beam, allowed = whole_number("the beam", beam), None if within is None else trie.allow(within)
    return search_items(ranked, trie, query, beam=beam, k=k, batch_size=batch_size, allowed=allowed)


def _for_geometry(query: EncodedQuery, width: int) -> EncodedQuery:
    """Return queries whose vectors are in full precision, refusing those of another space than the codewords'."""
    vector_QD = query.vector
    if vector_QD.shape[1] != width:
        raise SiglumError(f"the codewords have {width} numbers, but the queries {vector_QD.shape[1]}.")
    return query if vector_QD.dtype == torch.float32 else replace(query, vector_QD=vector_QD.float())


def _check_codebooks(trie: Index, codebooks: Sequence[Tensor]) -> None:
    """Refuse codebooks that are not those of the trie's codes."""
    sizes = tuple(len(book) for book in codebooks)
    if sizes and (len(sizes) != trie.levels or any(a < b for a, b in zip(sizes, trie.layout.sizes, strict=True))):
        raise SiglumError(
            f"the codes of this trie need codebooks of at least {trie.layout.sizes} codewords, but those given have"
            f" {sizes}."
        )
