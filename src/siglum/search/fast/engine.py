"""The entry to the fast engine: folds the weights once, then searches in batches like the reference does."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from siglum.config import SearchConfig
from siglum.generate.decoder import CodeDecoder
from siglum.index import Allowed, Index
from siglum.search.beam import Beams, Ranking, rank_items
from siglum.search.fast.geometry import Geometry
from siglum.search.fast.network import Network
from siglum.search.fast.scan import Scan
from siglum.search.fast.walk import Walk
from siglum.types import SiglumError


def reason_against(config: SearchConfig, decoder: CodeDecoder | None) -> str | None:
    """Return what of this configuration the fast engine has no answer to, or None."""
    if config.mode == "scan":
        return None
    if decoder is None:
        return "a run without a decoder"
    if config.scorer not in ("fused", "decoder"):
        return f"scorer {config.scorer}"
    if config.normalisation == "joint":
        return "normalisation joint"
    if config.mode == "scan-rescore" and config.normalisation == "children":
        return "normalisation children in mode scan-rescore"
    if config.zscore and config.scorer == "fused":
        return "search.zscore"
    return next((f"search.{name}" for name in ("lookahead", "prior") if getattr(config, name)), None)


class FastSearch:
    """Search with the scores and the order of the beam search (or another mode), at a fraction of its cost.

    Example: `FastSearch(decoder, codebooks, index, SearchConfig(), first=1).search(query_QD, k=10)`.
    """

    def __init__(
        self,
        decoder: CodeDecoder | None,
        codebooks: Sequence[Tensor],
        index: Index,
        config: SearchConfig,
        first: int = 0,
        *,
        budget: int | None = None,
    ) -> None:
        """Fold the weights; `first` is the first level whose token carries a codeword.

        `budget` is the most leaves of a query that are scored at once; by default as many as cost little more than
        going on level by level. Results do not depend on it.
        """
        against = reason_against(config, decoder)
        if against is not None:
            raise SiglumError(f"the fast engine does not go with {against}; use search.engine reference or auto.")
        # glibc gives large blocks back when they are freed, and new pages are dear; a block of this size, once freed,
        # makes it keep up to twice as much.
        torch.empty(31 << 20, dtype=torch.uint8)
        self.index, self.config, self._budget = index, config, budget
        self._decoder, self._network = decoder, None if decoder is None else Network(decoder, config.precision)
        self._geometry = Geometry(codebooks, first) if codebooks else None
        self._scan: Scan | None = None
        self._pool: tuple[int, ThreadPoolExecutor] | None = None

    def with_(self, index: Index, config: SearchConfig) -> FastSearch:
        """Return an engine over another index or with another configuration of the same precision; weights stay."""
        against = reason_against(config, self._decoder)
        if against is not None or config.precision != self.config.precision:
            raise SiglumError(f"the fast engine does not go with {against or 'another precision'}; make a new one.")
        other = copy.copy(self)
        other.index, other.config = index, config
        other._scan = self._scan if index is self.index else None
        return other

    @torch.no_grad()
    def search(
        self, query_QD: Tensor, *, k: int, allowed: Allowed | None = None, item_ND: Tensor | None = None
    ) -> list[Ranking]:
        """Return the k best items of every query; `item_ND` orders items of one leaf by similarity."""
        if k < 1:
            raise SiglumError(f"k must be at least 1, not {k}.")
        found: list[Ranking] = []
        for part_QD in query_QD.split(self.config.batch_size):
            for piece_QD, beams in self._side_by_side(part_QD, k, allowed):
                dense = None if item_ND is None else (piece_QD, item_ND)
                found.extend(rank_items(self.index, beams, len(piece_QD), k, allowed, dense))
        return found

    def _side_by_side(self, query_QD: Tensor, k: int, allowed: Allowed | None) -> list[tuple[Tensor, Beams]]:
        """Search a batch in as many pieces as there are threads, one each: products this small share threads badly."""
        threads = torch.get_num_threads() if query_QD.device.type == "cpu" else 1
        pieces = query_QD.chunk(min(threads, len(query_QD))) if len(query_QD) else (query_QD,)
        if self.config.mode in ("scan", "scan-rescore"):
            self._codes()  # made before the pieces ask for it
        if len(pieces) == 1:
            return [(query_QD, self._beams(query_QD, k, allowed))]

        def answer(piece_QD: Tensor) -> Beams:
            torch.set_num_threads(1)
            with torch.no_grad():
                return self._beams(piece_QD, k, allowed)

        try:
            return list(zip(pieces, self._workers().map(answer, pieces), strict=True))
        finally:
            torch.set_num_threads(threads)

    def _workers(self) -> ThreadPoolExecutor:
        """Return threads that stay, since oneDNN prepares its products in every new one; a forked process has none."""
        if self._pool is None or self._pool[0] != os.getpid():
            self._pool = os.getpid(), ThreadPoolExecutor()
        return self._pool[1]

    def _beams(self, query_QD: Tensor, k: int, allowed: Allowed | None) -> Beams:
        """Return the leaves that the mode finds, with their scores."""
        config = self.config
        if config.mode == "scan":
            return self._codes().best(query_QD, k, allowed)
        if config.mode == "scan-rescore":
            short = self._codes().best(query_QD, config.beam, allowed)
            return self._walk(len(self.index), allowed).rescore(query_QD, short)
        return self._walk(config.beam, allowed).run(query_QD)

    def _walk(self, beam: int, allowed: Allowed | None) -> Walk:
        config = self.config
        assert self._network is not None
        return Walk(
            self._network,
            self._geometry if config.scorer == "fused" and config.omega > 0 else None,
            self.index,
            beam,
            omega=config.omega,
            budget=self._budget,
            renormalise=config.mode == "renormalised" or config.normalisation == "children",
            allowed=allowed,
        )

    def _codes(self) -> Scan:
        if self._scan is None:
            if self._geometry is None:
                raise SiglumError(f"mode {self.config.mode} needs the codebooks, but none were given.")
            self._scan = Scan(self._geometry, self.index)
        return self._scan
