"""A collection with its tokenizer, vectors, codes and index: what every measure and every search begins with.

Shapes: M queries, N items, T tokens an item, D numbers a vector.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from siglum.fuse.contrastive import embed, kinds_of
from siglum.index import Index
from siglum.tokenize.train import Tokenizer
from siglum.types import Vectors


@dataclass(slots=True)
class Coded:
    """A collection as a tokenizer sees it; it need not be the one the tokenizer was trained on."""

    vectors: Vectors
    tokenizer: Tokenizer
    device: str
    query_MD: Tensor
    """Fused queries."""
    item_ND: Tensor
    """Fused items."""
    codes_NT: Tensor
    _index: Index | None = field(default=None, repr=False)

    @classmethod
    def of(cls, vectors: Vectors, tokenizer: Tokenizer, device: str = "cpu") -> Coded:
        """Embed queries and items, and code the items."""
        query_MD, item_ND = (embed(tokenizer.fusion, part, device) for part in (vectors.queries, vectors.items))
        codes_NT = tokenizer.quantizer.encode(item_ND, kinds_of(vectors.items, device))
        return cls(vectors, tokenizer, device, query_MD, item_ND, codes_NT)

    @property
    def index(self) -> Index:
        """The index of all items; a position in its pool is an item row."""
        if self._index is None:
            self._index = self.index_of(np.arange(len(self.vectors.items)))
        return self._index

    def index_of(self, rows: np.ndarray) -> Index:
        """Return an index of some items, in this order."""
        ids = [self.vectors.items.ids[int(row)] for row in rows]
        codes_NT = self.codes_NT[torch.as_tensor(rows).to(self.codes_NT.device)].cpu().numpy()
        return Index.build(ids, codes_NT, self.tokenizer.quantizer.sizes, self.tokenizer.fingerprint())

    def reconstructions(self) -> Tensor:
        """Return all reconstructions x̂ (N, D)."""
        return self.tokenizer.quantizer.decode(self.codes_NT).detach()


def item_rows(vectors: Vectors, index: Index) -> np.ndarray:
    """Return the item row of every position of an index's pool, -1 for what the collection does not have."""
    places = index.ids.locate(vectors.items.ids)
    rows, here = np.full(len(index), -1), places >= 0
    rows[places[here]] = np.flatnonzero(here)
    return rows
