"""Rankers for collections too large to hold in one space: only a task's queries and pool are embedded at a time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from siglum.fuse.contrastive import embed
from siglum.fuse.modules import Fusion
from siglum.measure.evaluate import BeamRanker
from siglum.search.beam import Ranking
from siglum.search.flat import flat_search
from siglum.search.retriever import Retriever
from siglum.types import Vectors

QUERIES = 256
"""Queries searched at once: a block of scores has this many rows and a chunk of the pool as columns."""


@dataclass(slots=True)
class StreamedDense:
    """Exhaustive search in the space of a fusion module."""

    fusion: Fusion
    vectors: Vectors
    device: str

    def rank(self, query_rows: np.ndarray, pool_rows: np.ndarray, k: int) -> list[Ranking]:
        """Embed the queries and the pool, and search the pool's vectors one by one."""
        query_QD = embed(self.fusion, self.vectors.queries.rows(query_rows), self.device)
        item_ND = embed(self.fusion, self.vectors.items.rows(pool_rows), self.device)
        found = [flat_search(block_QD, item_ND, k) for block_QD in query_QD.split(QUERIES)]
        return [Ranking(pool_rows[r.position], r.row, r.score) for block in found for r in block]


@dataclass(slots=True)
class StreamedBeam:
    """A run's own search over an index whose pool positions are the item rows in `index_rows`."""

    retriever: Retriever
    vectors: Vectors
    index_rows: np.ndarray

    def rank(self, query_rows: np.ndarray, pool_rows: np.ndarray, k: int) -> list[Ranking]:
        """Embed the queries and search the index, restricted to the pool."""
        search = self.retriever.config
        query_QD = self.retriever.vectors(self.vectors.queries.rows(query_rows), "queries")
        beam = BeamRanker(
            self.retriever.scorer(),
            self.retriever.index,
            self.index_rows,
            query_QD,
            search.beam,
            search.batch_size,
            self.retriever.lookahead(),
            search,
        )
        return beam.rank(np.arange(len(query_rows)), pool_rows, k)
