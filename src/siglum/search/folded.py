"""The decoder's weights with everything folded that depends on no query, for the engines to lay out as they like.

Gains of norms are part of the weights that follow them; queries, keys and values come from one product, and those of
the first layer from a table by token. With one soft token the encoder's self-attention and the decoder's
cross-attention look at a single key: the softmax is 1, so that each is one matrix W_o W_v, and cross-attention adds
the same vector to every position of a query.
Shapes: D query width, M d_model, I heads x d_kv, F d_ff, H heads, T tokens of all levels and the start token, L levels.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from siglum.generate.decoder import CodeDecoder
from siglum.generate.t5 import EPS, Attention, RMSNorm, T5Block, has_lone_key


class FoldedBlock(NamedTuple):
    """One block of the decoder; without the parts of cross-attention where that is a constant."""

    qkv: Tensor
    """Queries, keys and values in one (3 I, M)."""
    out: Tensor
    """(M, I)."""
    wide: Tensor
    """(F, M)."""
    narrow: Tensor
    """(M, F)."""
    cross_query: Tensor | None
    cross_out: Tensor | None


class FoldedReader(NamedTuple):
    """The encoder of a lone soft token, up to what cross-attention adds in every layer."""

    soft: Tensor
    """From a query to its soft token (M, D)."""
    soft_bias: Tensor
    blocks: list[tuple[Tensor, Tensor, Tensor]]
    """What self-attention adds (M, M), and the feed-forward's two products."""
    cross: Tensor
    """What cross-attention adds, layer by layer (layers x M, M)."""


class FoldedDecoder:
    """All weights in full precision, on the decoder's device."""

    @torch.no_grad()
    def __init__(self, decoder: CodeDecoder) -> None:
        """Fold the weights."""
        stack, lone = decoder.decoder, has_lone_key(decoder.config)
        self.token_offset_L = [1 + sum(decoder.sizes[:level]) for level in range(len(decoder.sizes))]
        """Row of the tables where each level's tokens begin; row 0 is the start token."""
        self.blocks = [_block(block, lone) for block in _blocks(stack.blocks)]
        self.embedding_TM = decoder.table.detach().float()
        self.begun_TI = F.rms_norm(self.embedding_TM, self.embedding_TM.shape[1:], eps=EPS) @ self.blocks[0].qkv.T
        """What the first block's product gives for every token, whatever the query."""
        self.output_TM = self.embedding_TM * stack.final_norm.scale * decoder.scale
        """Logits are products of its rows with hidden states of mean square 1."""
        self.bias_HLL = stack.position_bias(len(decoder.sizes)).float()
        self.reader = _reader(decoder) if lone else None
        """None where there are several soft tokens."""


def _blocks(modules: torch.nn.ModuleList) -> list[T5Block]:
    return [block for block in modules if isinstance(block, T5Block)]


def _block(block: T5Block, lone: bool) -> FoldedBlock:
    own, cross, norm = block.self_attention, block.cross_attention, block.cross_norm
    assert cross is not None and norm is not None
    qkv = _gained(torch.cat([own.q, own.k, own.v]), block.self_norm)
    parts = (None, None) if lone else (_gained(cross.q, norm), cross.o.detach().float())
    return FoldedBlock(qkv, own.o.detach().float(), *_feed(block), *parts)


def _feed(block: T5Block) -> tuple[Tensor, Tensor]:
    return _gained(block.feed_forward.wi, block.feed_norm), block.feed_forward.wo.detach().float()


def _reader(decoder: CodeDecoder) -> FoldedReader:
    encoder = _blocks(decoder.encoder.blocks)
    blocks = [(_through(block.self_attention, block.self_norm), *_feed(block)) for block in encoder]
    crosses = [block.cross_attention for block in _blocks(decoder.decoder.blocks)]
    cross = torch.cat([_through(one, decoder.encoder.final_norm) for one in crosses if one is not None])
    return FoldedReader(decoder.soft.detach().float(), decoder.soft_bias.detach().float(), blocks, cross)


def _gained(weight: Tensor, norm: RMSNorm) -> Tensor:
    """Return weights that take rows of mean square 1 in the place of normed ones."""
    return (weight.detach() * norm.scale.detach()).float()


def _through(attention: Attention, norm: RMSNorm) -> Tensor:
    """Return attention to a single key as one matrix, a norm before it (M, M); in double, as it is used for all."""
    o, v, gain = (part.detach().cpu().double() for part in (attention.o, attention.v, norm.scale))
    return (o @ v * gain).float().to(attention.o.device)
