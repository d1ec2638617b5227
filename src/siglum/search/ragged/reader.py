"""Queries become what cross-attention adds; with a lone soft token every attention on the way is one product.

Shapes: Q queries, D numbers a query, S soft tokens, M d_model, H heads, K d_kv.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from siglum.generate.decoder import CodeDecoder
from siglum.search.folded import FoldedReader
from siglum.search.query import EncodedQuery
from siglum.search.ragged.linear import attention_type, build_feed_forward, build_linear, inverse_rms

KeysValuesBias = tuple[Tensor, Tensor, Tensor | None]
"""Keys and values (Q, H, S, K), and minus infinity where there is none, else 0 (Q, 1, 1, S)."""


@dataclass(slots=True)
class Memory:
    """What cross-attention adds: one vector a layer and query, or the keys and values of several tokens."""

    added_QM: list[Tensor]
    kept: list[KeysValuesBias]
    """Of every layer; empty where what is added is constant."""


class Reader:
    """The encoder, folded where there is one soft token."""

    def __init__(self, decoder: CodeDecoder, folded: FoldedReader | None, precision: str) -> None:
        """Lay the weights out; in full precision always, since what is lost here is lost to every score of a query."""
        self.decoder, self.constant, self.dtype = decoder, folded is not None, attention_type(precision)
        if folded is None:
            return
        self.soft, self.soft_bias = build_linear(folded.soft, "fp32"), folded.soft_bias
        self.blocks = [
            (build_linear(mix, "fp32"), build_feed_forward(wide, narrow, "fp32")) for mix, wide, narrow in folded.blocks
        ]
        self.layers, self.cross = len(decoder.decoder.blocks), build_linear(folded.cross, "fp32")

    def __call__(self, query: EncodedQuery) -> Memory:
        """Read the queries: vectors, or what an encoder made of them where it makes several states."""
        query_QD = query.states
        if not self.constant:
            if query_QD.ndim == 3:
                self.decoder.check_states(query_QD)
            states = query_QD if query_QD.ndim == 3 else self.decoder.encode(query_QD.float())
            kept = self.decoder.decoder.keep(states, query.mask_QS)
            return Memory([], [(k.to(self.dtype), v.to(self.dtype), bias) for k, v, bias in kept])
        self.decoder.soft_tokens(query_QD[:0])  # refuses queries of another width
        x_QM = self.soft(query_QD.float()) + self.soft_bias
        for attend, feed in self.blocks:
            x_QM += attend(x_QM, inverse_rms(x_QM))
            x_QM += feed(x_QM, inverse_rms(x_QM))
        added = self.cross(x_QM, inverse_rms(x_QM)).float()
        return Memory(list(added.chunk(self.layers, 1)), [])
