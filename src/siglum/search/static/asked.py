"""Queries as one row of numbers each, so that a captured search has one input of one width.

A query that is a vector is its row. A history is the states its encoder made, whether each of them is there, and the
vector for geometry, filled up to the longest history that the decoder reads.
Shapes: Q queries, S states of M numbers, D numbers a vector.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from siglum.generate.decoder import CodeDecoder
from siglum.search.query import EncodedQuery
from siglum.types import SiglumError


@dataclass(frozen=True, slots=True)
class AskedLayout:
    """What a row of numbers is made of; without states it is a vector."""

    states: int
    width: int
    """Numbers of a state."""
    dim: int
    """Numbers of the vector."""

    @classmethod
    def of(cls, decoder: CodeDecoder) -> AskedLayout:
        """Return the layout of what a decoder reads."""
        items = decoder.config.history.items
        return cls(1 + items * len(decoder.sizes) if items else 0, decoder.config.d_model, decoder.query_dim)

    @property
    def numbers(self) -> int:
        """Length of a row."""
        return self.states * (self.width + 1) + self.dim

    def pack(self, query: EncodedQuery) -> Tensor:
        """Return queries as rows."""
        if not self.states:
            return query.states
        states, there = query.states, query.mask_QS
        if states.ndim != 3 or states.shape[1] > self.states:
            raise SiglumError(f"this search takes histories of at most {self.states} tokens, not {states.shape[1]}.")
        there = there if there is not None else states.new_ones(states.shape[:2], dtype=torch.bool)
        more = self.states - states.shape[1]
        vector = states.new_zeros(len(states), self.dim) if query.vector_QD is None else query.vector_QD
        parts = [F.pad(states, (0, 0, 0, more)).flatten(1), F.pad(there, (0, more)).to(states), vector]
        return torch.cat(parts, 1)

    def unpack(self, packed_QF: Tensor) -> EncodedQuery:
        """Return rows as queries."""
        if not self.states:
            return EncodedQuery.of(packed_QF)
        states, there, vector = packed_QF.split([self.states * self.width, self.states, self.dim], 1)
        mask = there > 0
        # Rows that only fill a batch have no state at all, and what is made of none is no number.
        first_S = torch.arange(self.states, device=mask.device) == 0
        mask = mask | (first_S & ~mask.any(1, keepdim=True))
        return EncodedQuery(states.unflatten(1, (self.states, self.width)), vector, mask)


def fits(query: EncodedQuery, decoder: CodeDecoder) -> bool:
    """Return whether a captured search of this decoder can be asked such a query."""
    layout = AskedLayout.of(decoder)
    if not layout.states:
        return query.is_vector
    return query.states.ndim == 3 and query.states.shape[1] <= layout.states
