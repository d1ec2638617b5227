"""Systems that are evaluated: exhaustive search, and the search of codes by the engine that also serves them.

Queries and pools are rows of a collection. The streamed ones are for collections too large to hold in one space: only
a task's queries and pool are embedded at a time. Shapes: N items and M queries of a collection, D numbers a vector.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from siglum.config import SearchConfig
from siglum.fuse.contrastive import embed
from siglum.fuse.modules import Fusion
from siglum.index import Index
from siglum.search.beam import Ranking
from siglum.search.engine import Engine
from siglum.search.flat import flat_search
from siglum.search.histories import ManyQuestions
from siglum.search.lookahead import LookAhead
from siglum.search.retriever import Retriever
from siglum.search.scorers import Scorer
from siglum.types import Vectors

ASKED = 1024
"""Queries given to an engine at once."""
QUERIES = 256
"""Queries searched at once: a block of scores has this many rows and a chunk of the pool as columns."""


def geometry_alone(config: SearchConfig) -> SearchConfig:
    """Return the plain search of the same codes without a decoder: the distance of partial sums ranks prefixes."""
    return SearchConfig(scorer="geometry", beam=config.beam, batch_size=config.batch_size)


@dataclass(slots=True)
class FlatRanker:
    """Exhaustive search: dense, or scan over reconstructions with squared distance."""

    query_MD: Tensor
    item_ND: Tensor
    squared_distance: bool = False

    def rank(self, query_rows: np.ndarray, pool_rows: np.ndarray, k: int) -> list[Ranking]:
        """Search the pool's vectors one by one."""
        found = flat_search(
            self.query_MD[torch.as_tensor(query_rows)],
            self.item_ND[torch.as_tensor(pool_rows)],
            k,
            squared_distance=self.squared_distance,
        )
        return [Ranking(pool_rows[r.position], r.row, r.score) for r in found]


@dataclass(slots=True)
class BeamRanker:
    """The search of an engine over an index whose pool positions are the item rows in `index_rows`."""

    engine: Engine
    index_rows: np.ndarray
    query_MD: ManyQuestions
    config: SearchConfig

    def rank(self, query_rows: np.ndarray, pool_rows: np.ndarray, k: int) -> list[Ranking]:
        """Search the index, restricted to the pool."""
        inside = np.isin(self.index_rows, pool_rows)
        allowed = None if inside.all() else self.index.allow(inside)
        found: list[Ranking] = []
        for start in range(0, len(query_rows), ASKED):  # encoded histories are large
            asked = self.query_MD[torch.as_tensor(query_rows[start : start + ASKED])]
            found += self.engine.rank(asked, self.config, k=k, allowed=allowed)
        return [Ranking(self.index_rows[r.position], r.row, r.score) for r in found]

    @property
    def index(self) -> Index:
        """What is searched."""
        return self.engine.index

    @property
    def beam(self) -> int:
        """Width of the beam."""
        return self.config.beam

    @property
    def batch_size(self) -> int:
        """Queries searched at once."""
        return self.config.batch_size

    @property
    def scorer(self) -> Scorer:
        """What ranks prefixes, to follow a beam level by level."""
        return self.engine.scorer(self.config)

    @property
    def ahead(self) -> LookAhead | None:
        """The look-ahead that goes with the scorer."""
        return self.engine.lookahead(self.config)


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
        query_QD = self.retriever.vectors(self.vectors.queries.rows(query_rows), "queries")
        engine = replace(self.retriever.engine, graphs=False)
        beam = BeamRanker(engine, self.index_rows, query_QD, self.retriever.config)
        return beam.rank(np.arange(len(query_rows)), pool_rows, k)
