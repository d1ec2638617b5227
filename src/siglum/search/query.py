"""What a search is asked: what the decoder reads of each query, and a vector for geometry where there is one.

Shapes: Q queries, D numbers a vector, S tokens, M d_model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter

import torch
from torch import Tensor

from siglum.types import SiglumError, shown


@dataclass(frozen=True, slots=True)
class EncodedQuery:
    """Queries, each a fused vector or a sequence of encoder states, such as those of a history of items.

    Example: `EncodedQuery(states_QSM, vector_QD, mask_QS)`; `EncodedQuery.of(query_QD)` for fused vectors.
    """

    states: Tensor
    """What the decoder starts from: vectors (Q, D) that it encodes itself, or encoder states (Q, S, M)."""
    vector_QD: Tensor | None = None
    """What geometry measures distances to; without one only a decoder alone can answer."""
    mask_QS: Tensor | None = None
    """Which of the states are there; all of them by default."""

    @classmethod
    def of(cls, query: Tensor | EncodedQuery) -> EncodedQuery:
        """Return queries that are vectors, for decoder and geometry alike; encoded ones as they are."""
        return query if isinstance(query, EncodedQuery) else cls(query, query)

    def __len__(self) -> int:
        return len(self.states)

    @property
    def device(self) -> torch.device:
        """Where the queries are."""
        return self.states.device

    @property
    def is_vector(self) -> bool:
        """Whether decoder and geometry read one and the same vector."""
        return self.vector_QD is self.states

    @property
    def vector(self) -> Tensor:
        """The vectors for geometry (Q, D); refused where there are none."""
        if self.vector_QD is None:
            raise SiglumError("geometry needs a vector of every query, but these have none; use scorer decoder.")
        return self.vector_QD

    def __getitem__(self, rows: slice | Tensor) -> EncodedQuery:
        """Return some of the queries."""
        return self._each(itemgetter(rows))

    def to(self, device: str) -> EncodedQuery:
        """Return the queries on a device."""
        return self._each(lambda part: part.to(device))

    def split(self, size: int) -> Iterator[EncodedQuery]:
        """Give the queries in batches of this size."""
        for start in range(0, len(self), size):
            yield self[start : start + size]

    def checked(self, dim: int, device: str) -> EncodedQuery:
        """Return the queries in full precision on a device, after refusing what are not finite numbers of this width.

        A query without any token would read nothing and is refused too.
        """
        states, mask = self.states, self.mask_QS
        if self.is_vector or self.vector_QD is not None:
            _check_vectors(self.vector_QD, dim)
        if not self.is_vector and (states.ndim not in (2, 3) or not bool(states.isfinite().all())):
            raise SiglumError("the states of queries must be finite real numbers, (Q, D) or (Q, S, M).")
        if self.vector_QD is not None and len(self.vector_QD) != len(states):
            raise SiglumError(f"{len(states)} queries have {len(self.vector_QD)} vectors.")
        if mask is not None:
            shape = tuple(states.shape[:2])
            if states.ndim != 3 or mask.dtype != torch.bool or mask.shape != shape or not bool(mask.any(1).all()):
                raise SiglumError(f"a mask has a truth value for each of {shape} states, one of each query true.")
        return self._each(lambda part: (part if part.dtype == torch.bool else part.float()).to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> EncodedQuery:
        """Change all parts; a vector that is the states stays so."""
        states, vector, mask = change(self.states), self.vector_QD, self.mask_QS
        if vector is not None:
            vector = states if vector is self.states else change(vector)
        return EncodedQuery(states, vector, None if mask is None else change(mask))


Questions = Tensor | EncodedQuery
"""Fused vectors (Q, D), or encoded queries."""


def _check_vectors(query_QD: Tensor | None, dim: int) -> None:
    """Refuse what are not finite query vectors (Q, D)."""
    if not isinstance(query_QD, Tensor) or query_QD.shape[1:] != (dim,):
        found = tuple(query_QD.shape) if isinstance(query_QD, Tensor) else shown(query_QD)
        raise SiglumError(f"query vectors must be a tensor of shape (Q, {dim}), but have {found}.")
    if not query_QD.is_floating_point() or not bool(query_QD.isfinite().all()):
        raise SiglumError(f"query vectors must be finite real numbers, but {query_QD.dtype} with others were given.")
