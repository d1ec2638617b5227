"""The decoder's weights as searching wants them: norms folded into what follows them, one product for q, k and v.

With one soft token both the encoder's self-attention and the decoder's cross-attention look at a single key: the
softmax is 1, so each is one matrix (o v), and cross-attention adds the same vector to every position of a query.
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
from siglum.generate.t5 import EPS, Attention, Block, FeedForward


@dataclass(frozen=True, slots=True)
class Feed:
    """The feed-forward part of a block; `zero` is the bias that a fused product and ReLU asks for."""

    wi: Tensor
    wo: Tensor
    zero: Tensor

    def add_to(self, x_RM: Tensor, normed_RM: Tensor) -> None:
        """Add the output for the normed stream to the stream itself, in place."""
        inner = torch._addmm_activation(self.zero, normed_RM, self.wi.t(), use_gelu=False)
        x_RM.addmm_(inner, self.wo.t())


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder block; `cross_q` and `cross_o` are None where cross-attention is a constant."""

    qkv: Tensor
    o: Tensor
    feed: Feed
    cross_q: Tensor | None
    cross_o: Tensor | None


class Constant(NamedTuple):
    """What cross-attention to a lone soft token adds to every position of a query."""

    own: Tensor
    """In this layer (Q, 1, M)."""
    total: Tensor
    """In this layer and all before it (Q, 1, M)."""


class Source(NamedTuple):
    """What cross-attention to several soft tokens looks at."""

    k: Tensor
    """Keys (Q, H, S, K)."""
    v: Tensor
    """Values (Q, H, S, K)."""


Cross = list[Constant] | list[Source]
"""What cross-attention adds or looks at, per layer."""


class Weights:
    """A folded copy of a decoder on one device, in one precision."""

    def __init__(self, decoder: CodeDecoder, device: torch.device, dtype: torch.dtype) -> None:
        """Fold in full precision, then round."""
        self.device, self.dtype, self.sizes = device, dtype, decoder.sizes
        self.heads, self.d_kv, self.width = decoder.config.heads, decoder.config.d_kv, decoder.config.d_model
        self.lone = decoder.config.soft_tokens == 1
        with torch.no_grad():
            self.layers = [self._layer(block) for block in decoder.decoder.blocks]  # type: ignore[arg-type]
            self.first = [1 + sum(decoder.sizes[:level]) for level in range(len(decoder.sizes))]
            """Row of `table` where each level's tokens begin; row 0 is the start token."""
            self.table = self._put(decoder.table)
            self.begun = norm(self.table) @ self.layers[0].qkv.t()
            """What the first layer's product gives for every row of `table`, whatever the query."""
            gain = decoder.decoder.final_norm.scale.float() * decoder.scale
            self.head_VM = self._put(decoder.table[1:].float() * gain)
            self.bias_HLL = self._put(decoder.decoder.position_bias(len(decoder.sizes)))
            self.distance_HL = self.bias_HLL[:, -1].flip(-1).contiguous()
            """Position bias by how far back a position lies."""
            if self.lone:
                self._fold_encoder(decoder)
            else:
                self._source = copy.deepcopy(decoder).to(device).float().eval()

    def cross(self, query_QD: Tensor, *, product: Callable[..., Tensor] | None = None) -> Cross:
        """Return what cross-attention adds or reads, per layer; `product` is `kernels.product`, for few queries."""
        if not self.lone:
            kept = self._source.decoder.keep(self._source.encode(query_QD))
            return [Source(k.to(self.dtype), v.to(self.dtype)) for k, v in kept]
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
        start, size = self.first[level] - 1, self.sizes[level]
        head_GMV = self.head_VM[start : start + len(hidden_GRM) * size].view(-1, size, self.width).transpose(1, 2)
        if self.dtype != torch.float32 and hidden_GRM.is_cuda:
            return torch.bmm(hidden_GRM, head_GMV, out_dtype=torch.float32)
        return torch.bmm(hidden_GRM, head_GMV)

    def split(self, x_QTM: Tensor) -> Tensor:
        """Return (Q, H, T, K) of a projection (Q, T, H K)."""
        return x_QTM.view(*x_QTM.shape[:-1], self.heads, self.d_kv).transpose(1, 2)

    def _layer(self, block: Block) -> Layer:
        own, cross, cross_norm = block.self_attention, block.cross_attention, block.cross_norm
        assert cross is not None and cross_norm is not None
        qkv = torch.cat([own.q, own.k, own.v]) * block.self_norm.scale
        feed = self._feed(block.feed_forward, block.feed_norm.scale)
        if self.lone:
            return Layer(self._put(qkv), self._put(own.o), feed, None, None)
        return Layer(self._put(qkv), self._put(own.o), feed, self._put(cross.q * cross_norm.scale), self._put(cross.o))

    def _feed(self, feed: FeedForward, gain: Tensor) -> Feed:
        zero = torch.zeros(len(feed.wi), dtype=self.dtype, device=self.device)
        return Feed(self._put(feed.wi * gain), self._put(feed.wo), zero)

    def _fold_encoder(self, decoder: CodeDecoder) -> None:
        self._soft = decoder.soft.detach().to(self.device, torch.float32)
        self._soft_bias = decoder.soft_bias.detach().to(self.device, torch.float32)
        self._encoder: list[tuple[Tensor, Feed]] = []
        for block in decoder.encoder.blocks:
            assert isinstance(block, Block)
            mix = _through(block.self_attention) * block.self_norm.scale
            self._encoder.append((self._put(mix), self._feed(block.feed_forward, block.feed_norm.scale)))
        gain = decoder.encoder.final_norm.scale
        blocks = decoder.decoder.blocks
        self._cross = self._put(torch.cat([_through(block.cross_attention) * gain for block in blocks]))  # type: ignore[arg-type]

    def _put(self, tensor: Tensor) -> Tensor:
        return tensor.detach().to(self.device, self.dtype).contiguous()


def norm(x: Tensor) -> Tensor:
    """Divide by the root mean square over the last axis."""
    return F.rms_norm(x, x.shape[-1:], eps=EPS)


def _through(attention: Attention) -> Tensor:
    """Return the one matrix (M, M) of attention to a single key."""
    return attention.o.float() @ attention.v.float()
