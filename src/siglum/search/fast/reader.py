"""Queries become what cross-attention adds; with a lone soft token every attention on the way is one matrix.

Attention to one position weighs it by 1 whatever is asked, so that what a block adds is W_o W_v x: one product.
Shapes: Q queries, D numbers a query, S soft tokens, M d_model, H heads, K d_kv.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from siglum.generate.decoder import CodeDecoder
from siglum.generate.t5 import Attention, Block
from siglum.search.fast.linear import attention_type, build_feed_forward, build_linear, inverse_rms


@dataclass(slots=True)
class Memory:
    """What cross-attention adds: one vector a layer and query, or the keys and values of several soft tokens."""

    added_QM: list[Tensor]
    kept: list[tuple[Tensor, Tensor]]
    """Keys and values (Q, H, S, K) of every layer; empty where what is added is constant."""


class Reader:
    """The encoder, folded where there is one soft token."""

    def __init__(self, decoder: CodeDecoder, precision: str) -> None:
        """Fold the weights; in full precision always, since what is lost here is lost to every score of a query."""
        self.decoder, self.constant = decoder, decoder.config.soft_tokens == 1
        self.dtype = attention_type(precision)
        if not self.constant:
            return
        precision = "fp32"
        self.soft, self.soft_bias = build_linear(decoder.soft.detach(), "fp32"), decoder.soft_bias.detach()
        self.blocks = [
            (
                build_linear(_through(block.self_attention, block.self_norm.scale), precision),
                build_feed_forward(
                    (block.feed_forward.wi * block.feed_norm.scale).detach(), block.feed_forward.wo.detach(), precision
                ),
            )
            for block in decoder.encoder.blocks
            if isinstance(block, Block)
        ]
        gain = decoder.encoder.final_norm.scale
        cross = [_through(attention, gain) for attention in map(_cross, decoder.decoder.blocks)]
        self.layers, self.cross = len(cross), build_linear(torch.cat(cross), precision)

    def __call__(self, query_QD: Tensor) -> Memory:
        """Read the queries."""
        if not self.constant:
            kept = self.decoder.decoder.keep(self.decoder.encode(query_QD.float()))
            return Memory([], [(k.to(self.dtype), v.to(self.dtype)) for k, v in kept])
        self.decoder.soft_tokens(query_QD[:0])  # refuses queries of another width
        x_QM = self.soft(query_QD.float()) + self.soft_bias
        for attend, feed in self.blocks:
            x_QM += attend(x_QM, inverse_rms(x_QM))
            x_QM += feed(x_QM, inverse_rms(x_QM))
        added = self.cross(x_QM, inverse_rms(x_QM)).float()
        return Memory(list(added.chunk(self.layers, 1)), [])


def _cross(block: object) -> Attention:
    assert isinstance(block, Block) and block.cross_attention is not None
    return block.cross_attention


def _through(attention: Attention, gain_M: Tensor) -> Tensor:
    """Return W_o W_v with a norm's gain (M, M)."""
    both: Tensor = (attention.o.double() @ attention.v.double() * gain_M).detach().float()
    return both
