"""The entry to the fast engine: folds the weights once, then searches in batches like the reference does."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from siglum.config import SearchConfig
from siglum.generate.decoder import CodeDecoder
from siglum.index import Allowed, Index
from siglum.search.beam import Beams, Ranking, rank_items
from siglum.search.prior import PriorTable
from siglum.search.query import EncodedQuery
from siglum.search.ragged.geometry import Geometry
from siglum.search.ragged.network import Network
from siglum.search.ragged.scan import Scan
from siglum.search.ragged.threads import Workers, can_split
from siglum.search.ragged.walk import Walk
from siglum.types import SiglumError


def reason_against(config: SearchConfig, decoder: CodeDecoder | None) -> str | None:
    """Return what of this configuration the fast engine has no answer to, or None."""
    if config.mode == "scan":
        return None
    children, null = config.normalisation == "children", "search.prior and a decoder trained without"
    refused = {
        "a run without a decoder": decoder is None,
        f"scorer {config.scorer}": config.scorer not in ("fused", "decoder"),
        "normalisation joint": config.normalisation == "joint",
        "normalisation children in mode scan-rescore": config.mode == "scan-rescore" and children,
        "search.zscore": config.zscore and config.scorer == "fused",
        "search.lookahead with scorer decoder": config.lookahead and config.scorer == "decoder",
        "search.prior with normalisation children": config.prior > 0 and (config.mode == "renormalised" or children),
        f"{null} decoder.null_queries": config.prior > 0 and decoder is not None and not decoder.config.null_queries,
    }
    return next((name for name, asked in refused.items() if asked), None)


class FastSearch:
    """Search with the scores and the order of the beam search (or another mode), at a fraction of its cost.

    Example: `FastSearch(decoder, codebooks, index, SearchConfig(), first_geometric=1).search(query_QD, k=10)`.
    """

    def __init__(
        self,
        decoder: CodeDecoder | None,
        codebooks: Sequence[Tensor],
        index: Index,
        config: SearchConfig,
        first_geometric: int = 0,
        *,
        budget: int | None = None,
    ) -> None:
        """Fold the weights; `first_geometric` is the first level whose token carries a codeword.

        `budget` is the most leaves of a query that are scored at once; by default as many as cost little more than
        going on level by level. Results do not depend on it.
        """
        against = reason_against(config, decoder)
        if against is not None:
            raise SiglumError(f"the fast engine does not go with {against}; use search.engine reference or auto.")
        # glibc gives large blocks back when they are freed, and first writing to new ones is slow; a block of this
        # size, once freed, makes it keep up to twice as much.
        torch.empty(31 << 20, dtype=torch.uint8)
        self.index, self.config, self._budget = index, config, budget
        self._decoder, self.network = decoder, None if decoder is None else Network(decoder, config.precision)
        self._geometry = Geometry(codebooks, first_geometric) if codebooks else None
        self._scan: Scan | None = None
        self._prior_table = None if decoder is None else PriorTable(index)
        self.workers = Workers()

    def with_(self, index: Index, config: SearchConfig) -> FastSearch:
        """Return an engine over another index or with another configuration of the same precision; weights stay."""
        against = reason_against(config, self._decoder)
        if against is not None or config.precision != self.config.precision:
            raise SiglumError(f"the fast engine does not go with {against or 'another precision'}; make a new one.")
        other = copy.copy(self)
        other.index, other.config = index, config
        if index is not self.index:
            other._scan, other._prior_table = None, None if self._decoder is None else PriorTable(index)
        return other

    def prepare(self) -> None:
        """Work out now what searches share and else work out as they go: the prior of all items, where one is asked."""
        if self.config.prior > 0 and self._prior_table is not None and self._decoder is not None:
            self._prior_table.fill(self._decoder)

    @torch.no_grad()
    def search(
        self, query: Tensor | EncodedQuery, *, k: int, allowed: Allowed | None = None, item_ND: Tensor | None = None
    ) -> list[Ranking]:
        """Return the k best items of every query; `item_ND` orders items of one leaf by similarity."""
        if k < 1:
            raise SiglumError(f"k must be at least 1, not {k}.")
        asked, found = EncodedQuery.of(query), list[Ranking]()
        if asked.states.ndim == 3:  # without a query there are no states of as many tokens to begin with
            self.prepare()
        for part in asked.split(self.config.batch_size):
            for piece, beams in self._side_by_side(part, k, allowed):
                dense = None if item_ND is None else (piece.vector, item_ND)
                found.extend(rank_items(self.index, beams, len(piece), k, allowed, dense))
        return found

    def _side_by_side(self, query: EncodedQuery, k: int, allowed: Allowed | None) -> list[tuple[EncodedQuery, Beams]]:
        """Search a batch in as many pieces as there are threads, one each: products this small share threads badly."""
        threads = torch.get_num_threads() if query.device.type == "cpu" and can_split() else 1
        pieces = [*query.split(max(1, -(-len(query) // threads)))]
        if self.config.mode in ("scan", "scan-rescore") or self._looks_ahead:
            self._codes()  # made before the pieces ask for it
        if len(pieces) == 1:
            return [(query, self._beams(query, k, allowed))]

        def answer(piece: EncodedQuery) -> Beams:
            with torch.no_grad():
                return self._beams(piece, k, allowed)

        return list(zip(pieces, self.workers.pool().map(answer, pieces), strict=True))

    def _beams(self, query: EncodedQuery, k: int, allowed: Allowed | None) -> Beams:
        """Return the leaves that the mode finds, with their scores."""
        config = self.config
        if config.mode == "scan":
            return self._codes().best(query.vector, k, allowed)
        if config.mode == "scan-rescore":
            short = self._codes().best(query.vector, config.beam, allowed)
            return self._walk(query, len(self.index), allowed).rescore(query, short)
        return self._walk(query, config.beam, allowed).run(query)

    @property
    def _looks_ahead(self) -> bool:
        return self.config.lookahead and self.config.omega > 0 and self.config.mode != "scan"

    def _walk(self, query: EncodedQuery, beam: int, allowed: Allowed | None) -> Walk:
        config = self.config
        assert self.network is not None
        return Walk(
            self.network,
            self._geometry if config.scorer == "fused" and config.omega > 0 and not config.lookahead else None,
            self.index,
            beam,
            omega=config.omega,
            budget=self._budget,
            renormalise=config.mode == "renormalised" or config.normalisation == "children",
            allowed=allowed,
            potential=self._codes().potential(query.vector, config.omega, allowed) if self._looks_ahead else None,
            prior=None if self._prior_table is None or not config.prior else (config.prior, self._prior_table),
        )

    def _codes(self) -> Scan:
        if self._scan is None:
            if self._geometry is None:
                raise SiglumError(f"mode {self.config.mode} needs the codebooks, but none were given.")
            self._scan = Scan(self._geometry, self.index)
        return self._scan
