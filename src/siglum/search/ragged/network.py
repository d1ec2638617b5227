"""The folded decoder, run over rows of any number: prefixes of any queries, rows of a query together.

Cross-attention to a lone soft token is one vector a query and layer (`reader`).
Shapes: R rows (positions of any prefixes of any queries, rows of a query together), Q queries, S soft tokens,
M d_model, I heads x d_kv, H heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from siglum.generate.decoder import CodeDecoder
from siglum.search.folded import FoldedBlock, FoldedDecoder
from siglum.search.ragged.linear import Linear, attention_type, build_feed_forward, build_linear, inverse_rms
from siglum.search.ragged.reader import KeysValuesBias, Memory, Reader
from siglum.types import SiglumError

Attend = Callable[[int, Tensor], Tensor]
"""Given the layer and queries, keys and values (R, 3I) of all rows, what the rows read by self-attention (R, I)."""


@dataclass(slots=True)
class Layer:
    """The weights of one block."""

    qkv: Linear
    out: Linear
    feed: Linear
    cross_query: Linear | None
    """None where cross-attention is a constant."""
    cross_out: Linear | None


class Network:
    """The folded decoder; build it once and use it for any number of searches."""

    def __init__(self, decoder: CodeDecoder, precision: str) -> None:
        """Fold the weights."""
        if decoder.training:
            raise SiglumError("the fast engine needs evaluation mode; call eval() on the decoder first.")
        folded, config = FoldedDecoder(decoder), decoder.config
        self.precision, self.dtype = precision, attention_type(precision)
        self.heads, self.width, self.inner = config.heads, config.d_kv, config.heads * config.d_kv
        self.sizes, self.constant = decoder.sizes, folded.reader is not None
        self.token_offset_L = np.array(folded.token_offset_L, np.int64)
        self.layers = [_layer(block, precision) for block in folded.blocks]
        self.embedding_TM, self.output_TM, self.bias_HTT = folded.embedding_TM, folded.output_TM, folded.bias_HLL
        self.first_TI = folded.begun_TI.to(self.dtype)
        self.output = [
            build_linear(self.output_TM[offset : offset + size], precision)
            for offset, size in zip(folded.token_offset_L, self.sizes, strict=True)
        ]
        self.read = Reader(decoder, folded.reader, precision)

    def run(self, id_R: Tensor, query_R: Tensor, memory: Memory, attend: Attend) -> Tensor:
        """Return the hidden states (R, M) of rows that read these tokens, unit in mean square; queries ascend."""
        x_RM = self.embedding_TM.index_select(0, id_R)
        for number, layer in enumerate(self.layers):
            qkv = layer.qkv(x_RM, inverse_rms(x_RM)).to(self.dtype) if number else self.first_TI.index_select(0, id_R)
            x_RM += layer.out(attend(number, qkv))
            if self.constant:
                x_RM += memory.added_QM[number].index_select(0, query_R)
            else:
                x_RM += self._cross(layer, x_RM, query_R, memory.kept[number])
            x_RM += layer.feed(x_RM, inverse_rms(x_RM))
        return x_RM.mul_(inverse_rms(x_RM))

    def log_total(self, hidden_RM: Tensor, level: int) -> Tensor:
        """Return the logarithm of the sum of exp(logit) over all codes of a level (R,)."""
        logits_RV = self.output[level](hidden_RM)
        # Twice as fast as `logsumexp`, whose intermediate results go through memory.
        return logits_RV[:, 0].float() - logits_RV.log_softmax(-1, dtype=torch.float32)[:, 0]

    def _cross(self, layer: Layer, x_RM: Tensor, query_R: Tensor, kept: KeysValuesBias) -> Tensor:
        """Attend to several tokens, one query after the other."""
        assert layer.cross_query is not None and layer.cross_out is not None
        k_QHSK, v_QHSK, bias = kept
        counts = torch.bincount(query_R, minlength=len(k_QHSK)).tolist()
        each = layer.cross_query(x_RM, inverse_rms(x_RM)).split(counts)
        out = [None] * len(each) if bias is None else bias[:, 0]
        read = []
        for q_rI, k_HSK, v_HSK, out_1S in zip(each, k_QHSK, v_QHSK, out, strict=True):
            q_HrK = q_rI.view(-1, self.heads, self.width).transpose(0, 1).to(self.dtype)
            score_HrS = (q_HrK @ k_HSK.transpose(1, 2)).float()
            weight_HrS = (score_HrS if out_1S is None else score_HrS + out_1S).softmax(-1).to(self.dtype)
            read.append((weight_HrS @ v_HSK).transpose(0, 1).flatten(1))
        return layer.cross_out(torch.cat(read))


def _layer(block: FoldedBlock, precision: str) -> Layer:
    cross = (None if one is None else build_linear(one, precision) for one in (block.cross_query, block.cross_out))
    feed = build_feed_forward(block.wide, block.narrow, precision)
    return Layer(build_linear(block.qkv, precision), build_linear(block.out, precision), feed, *cross)
