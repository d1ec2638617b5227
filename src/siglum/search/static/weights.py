"""The folded decoder on one device in one precision, and what cross-attention adds or reads.

Shapes: Q queries, D query width, M d_model, H heads, K d_kv, S soft tokens, V codes of a level, T tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from siglum.generate.decoder import CodeDecoder
from siglum.generate.t5 import EPS
from siglum.search.folded import FoldedBlock, FoldedDecoder
from siglum.search.query import EncodedQuery

MASK_MULTIPLE = 16
"""Rows of a mask start at multiples of this many numbers, as fused attention asks for."""


@dataclass(frozen=True, slots=True)
class FeedWeights:
    """The feed-forward part of a block; `zero` is the bias that a fused product and ReLU asks for."""

    wi: Tensor
    wo: Tensor
    zero: Tensor

    def add_to(self, x_RM: Tensor, normed_RM: Tensor) -> None:
        """Add the output for the normed stream to the stream itself, in place."""
        inner = torch._addmm_activation(self.zero, normed_RM, self.wi.t(), use_gelu=False)
        x_RM.addmm_(inner, self.wo.t())


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder block; `cross_q` and `cross_o` are None where cross-attention is a constant."""

    qkv: Tensor
    o: Tensor
    feed: FeedWeights
    cross_q: Tensor | None
    cross_o: Tensor | None


class Constant(NamedTuple):
    """What cross-attention to a lone soft token adds to every position of a query."""

    own: Tensor
    """In this layer (Q, 1, M)."""
    total: Tensor
    """In this layer and all before it (Q, 1, M)."""

    def part(self, rows: slice) -> Constant:
        """Return that of some of the queries."""
        return Constant(self.own[rows], self.total[rows])


class KeysValues(NamedTuple):
    """What cross-attention to several tokens looks at."""

    k: Tensor
    """Keys (Q, H, S, K)."""
    v: Tensor
    """Values (Q, H, S, K)."""
    bias: Tensor | None = None
    """Minus infinity where there is no token, else 0 (Q, 1, 1, S)."""

    def part(self, rows: slice) -> KeysValues:
        """Return that of some of the queries."""
        return KeysValues(self.k[rows], self.v[rows], None if self.bias is None else self.bias[rows])


Cross = list[Constant] | list[KeysValues]
"""What cross-attention adds or looks at, per layer."""


class Weights:
    """A folded copy of a decoder on one device, in one precision."""

    def __init__(self, decoder: CodeDecoder, device: torch.device, dtype: torch.dtype) -> None:
        """Fold in full precision, then round."""
        self.device, self.dtype, self.sizes = device, dtype, decoder.sizes
        self.heads, self.d_kv, self.width = decoder.config.heads, decoder.config.d_kv, decoder.config.d_model
        folded = FoldedDecoder(decoder)
        self.lone, self.token_offset = folded.reader is not None, folded.token_offset_L
        self.layers = [self._layer(block) for block in folded.blocks]
        self.table, self.begun = self._put(folded.embedding_TM), self._put(folded.begun_TI)
        self.head_VM, self.bias_HLL = self._put(folded.output_TM[1:]), self._put(folded.bias_HLL)
        self.distance_HL = self.bias_HLL[:, -1].flip(-1).contiguous()
        """Position bias by how far back a position lies."""
        if folded.reader is None:
            self._source = copy.deepcopy(decoder).to(device).float().eval()
        else:
            soft, bias, blocks, cross = folded.reader
            self._soft, self._soft_bias = soft.to(device), bias.to(device)
            self._encoder = [(self._put(mix), self._feed(wide, narrow)) for mix, wide, narrow in blocks]
            self._cross = self._put(cross)

    def cross(self, query: EncodedQuery, *, product: Callable[..., Tensor] | None = None) -> Cross:
        """Return what cross-attention adds or reads, per layer; `product` is `kernels.product`, for few queries."""
        query_QD = query.states
        if not self.lone:
            states = query_QD if query_QD.ndim == 3 else self._source.encode(query_QD)
            kept = self._source.decoder.keep(states, query.mask_QS)
            found = []
            for k, v, bias in kept:
                if bias is not None:  # its rows begin where fused attention asks for them
                    length = bias.shape[-1]
                    bias = F.pad(bias.to(self.dtype), (0, -length % MASK_MULTIPLE))[..., :length]
                found.append(KeysValues(k.to(self.dtype), v.to(self.dtype), bias))
            return found
        x_QM = F.linear(query_QD, self._soft, self._soft_bias).to(self.dtype)
        for mix, feed in self._encoder:
            if product is None:
                x_QM.addmm_(norm(x_QM), mix.t())
                feed.add_to(x_QM, norm(x_QM))
            else:
                x_QM = product(x_QM, mix, norm=True, add_Q1N=x_QM[:, None])
                product(product(x_QM, feed.wi, norm=True, relu=True), feed.wo, onto_QTN=x_QM[:, None])
        cross_QN = F.linear(norm(x_QM), self._cross) if product is None else product(x_QM, self._cross, norm=True)
        own_Q1LM = cross_QN.view(len(x_QM), 1, len(self.layers), self.width)
        total_Q1LM = own_Q1LM.cumsum(2, dtype=torch.float32).to(self.dtype)
        return [Constant(*both) for both in zip(own_Q1LM.unbind(2), total_Q1LM.unbind(2), strict=True)]

    def logits(self, hidden_GRM: Tensor, level: int) -> Tensor:
        """Return the logits (G, R, V) of G levels of one size, the first of them given, from normed hidden states.

        On a GPU they are fp32 whatever the precision of the weights.
        """
        start, size = self.token_offset[level] - 1, self.sizes[level]
        head_GMV = self.head_VM[start : start + len(hidden_GRM) * size].view(-1, size, self.width).transpose(1, 2)
        if self.dtype != torch.float32 and hidden_GRM.is_cuda:
            return torch.bmm(hidden_GRM, head_GMV, out_dtype=torch.float32)
        return torch.bmm(hidden_GRM, head_GMV)

    def split(self, x_QTM: Tensor) -> Tensor:
        """Return (Q, H, T, K) of a projection (Q, T, H K)."""
        return x_QTM.view(*x_QTM.shape[:-1], self.heads, self.d_kv).transpose(1, 2)

    def _layer(self, block: FoldedBlock) -> LayerWeights:
        cross = (None if one is None else self._put(one) for one in (block.cross_query, block.cross_out))
        return LayerWeights(self._put(block.qkv), self._put(block.out), self._feed(block.wide, block.narrow), *cross)

    def _feed(self, wide: Tensor, narrow: Tensor) -> FeedWeights:
        return FeedWeights(
            self._put(wide), self._put(narrow), torch.zeros(len(wide), dtype=self.dtype, device=self.device)
        )

    def _put(self, tensor: Tensor) -> Tensor:
        return tensor.detach().to(self.device, self.dtype).contiguous()


def norm(x: Tensor) -> Tensor:
    """Divide by the root mean square over the last axis."""
    return F.rms_norm(x, x.shape[-1:], eps=EPS)
