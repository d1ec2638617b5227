"""Exhaustive search by vectors beside the codes, so that one sees what the codes lose.

Where the index keeps vectors they are searched; else those of the run's own features, in the space that dense search
has there. Items that were added since have no features there and cannot be found by it.
Shapes: Q queries, N items, D numbers a vector.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from siglum.data.fields import read_fields
from siglum.data.vectors import load_vectors
from siglum.files import STAGE_FILE
from siglum.fuse.contrastive import embed
from siglum.fuse.modules import Fusion
from siglum.fuse.store import load_fusion
from siglum.run.folder import RunFolder
from siglum.search.flat import flat_search
from siglum.search.retriever import Retriever
from siglum.serve.asks import How
from siglum.serve.errors import ServiceError
from siglum.types import Features, Hit


@dataclass(slots=True)
class DenseSpace:
    """The vectors of a run's items, read when they are first asked for."""

    run: RunFolder
    retriever: Retriever
    _made: tuple[Fusion, Tensor, list[str]] | None = None
    _making: threading.Lock = field(default_factory=threading.Lock)

    @property
    def is_there(self) -> bool:
        """Whether the run keeps what dense search needs."""
        return self.retriever.item_ND is not None or (self.run.vectors / STAGE_FILE).exists()

    def search(self, retriever: Retriever, features: Features, how: How) -> list[list[Hit]]:
        """Return the items whose vectors are closest to those of the queries."""
        index, kept_ND = retriever.index, retriever.item_ND
        if kept_ND is not None and len(kept_ND) == len(index):
            asked_QD, item_ND, ids = retriever.vectors(features, "queries"), kept_ND, None
        else:
            fusion, item_ND, ids = self._space()
            asked_QD = embed(fusion, features, retriever.device)
        mask = how.mask(retriever)
        place_N = np.arange(len(index)) if ids is None else index.ids.locate(ids)
        row_M = np.flatnonzero((place_N >= 0) & mask[place_N])
        if not len(row_M):
            return [[] for _ in range(len(asked_QD))]
        is_all = len(row_M) == len(item_ND)
        some_MD = item_ND if is_all else item_ND[torch.from_numpy(row_M).to(item_ND.device)]
        found = flat_search(asked_QD, some_MD, k=how.k)
        return [_hits(retriever, place_N[row_M[one.position]], one.score) for one in found]

    def _space(self) -> tuple[Fusion, Tensor, list[str]]:
        """Return the space, its vectors and their ids."""
        with self._making:
            if self._made is None:
                if not self.is_there:
                    raise ServiceError(
                        "bad_request", "this run keeps no vectors, so there is nothing to search densely."
                    )
                device = self.retriever.device
                vectors, _ = load_vectors(self.run.vectors)
                is_made = (self.run.dense / STAGE_FILE).exists()
                fusion = load_fusion(self.run.dense, device) if is_made else self.retriever.tokenizer.fusion
                self._made = fusion, embed(fusion, vectors.items, device), list(vectors.items.ids)
            return self._made


def _hits(retriever: Retriever, position_K: np.ndarray, score_K: np.ndarray) -> list[Hit]:
    index = retriever.index
    ids, codes = index.ids.take(position_K), index.codes(index.rows_of(position_K)).tolist()
    kept = map(read_fields, index.fields.take(position_K))
    rows = zip(ids, score_K.tolist(), codes, kept, strict=True)
    return [
        Hit(name, score, tuple(path), rank, min(1.0, max(0.0, (1 + score) / 2)), *shown)
        for rank, (name, score, path, shown) in enumerate(rows, 1)
    ]
