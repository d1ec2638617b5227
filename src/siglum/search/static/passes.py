"""Passes of the decoder: a tree or a beam of new tokens onto a cache, and whole leaf paths at once.

The cache holds queries, keys and values of every token ever read, in rows that never move and that the product writes
itself; a beam knows the rows of its ancestors.
Shapes: Q queries, T new tokens, S rows a token sees, M d_model, H heads, K d_kv, L levels, C leaves, d levels before
the tail.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from siglum.search.query import EncodedQuery
from siglum.search.static.weights import MASK_MULTIPLE, Constant, Cross, KeysValues, LayerWeights, Weights, norm
from siglum.types import one_of

KERNELS = ("none", "attention", "steps", "all")
"""What runs in kernels of our own, each with all before it: nothing; attention and norms; the steps between passes;
products of few rows together with the norms before them."""
FEW_ROWS = 64
"""The most rows that count as few: one tile holds them."""


class Passes:
    """Runs the decoder's layers over new tokens; `kernels` (on a GPU with Triton) says what in kernels of our own."""

    def __init__(self, weights: Weights, *, kernels: str = "none") -> None:
        """Hold the weights."""
        self.weights, self.kernels = weights, one_of("kernels", kernels, KERNELS)
        self.fused = self.fuses("attention")

    def fuses(self, part: str) -> bool:
        """Return whether this part of a search is in kernels of our own."""
        return KERNELS.index(self.kernels) >= KERNELS.index(part)

    def cross(self, query: EncodedQuery) -> Cross:
        """Return what cross-attention adds or reads, per layer."""
        return self.weights.cross(query, product=_kernels().product if self._few(len(query)) else None)

    def cache(self, rows: int) -> Tensor:
        """Return room for tokens (layers, rows, 3 H K)."""
        w = self.weights
        return torch.empty(len(w.layers), rows, 3 * w.heads * w.d_kv, dtype=w.dtype, device=w.device)

    def onto(self, cache: Tensor, at: int, token_QT: Tensor, row_QTS: Tensor, cross: Cross) -> Tensor:
        """Read rows `token_QT` of the table into the cache from row `at` on; return normed hidden states (Q, T, M).

        Every token sees the rows of the cache in `row_QTS`, its own last, -1 for none.
        """
        w, row_QTS = self.weights, row_QTS.contiguous()
        block = slice(at, at + token_QT.numel())

        def attend(layer: int, x_QTM: Tensor, add_Q1M: Tensor | None) -> Tensor:
            if layer == 0:
                torch.index_select(w.begun, 0, token_QT.reshape(-1), out=cache[0, block])
            else:
                self._into(x_QTM, add_Q1M, w.layers[layer].qkv, cache[layer, block])
            if self.fused:
                mixed: Tensor = _kernels().line_attention(cache[layer], at, row_QTS, w.distance_HL, w.heads)
                return mixed
            return self._look(cache[layer], cache[layer, block], row_QTS.flatten(0, 1))

        return self._run(token_QT, cross, attend)

    def tail(self, cache: Tensor, past_QCd: Tensor, token_QCT: Tensor, cross: Cross) -> Tensor:
        """Read the rest of every leaf's path onto its ancestors' rows; return normed hidden states (Q, C, T, M)."""
        w = self.weights
        (queries, leaves, tokens), depth, inner = token_QCT.shape, past_QCd.shape[2], w.heads * w.d_kv
        row_Rd = past_QCd.reshape(-1, depth)
        bias_HTL = None if self.fused else self._tail_bias(depth)[None]

        def attend(layer: int, x_QTM: Tensor, add_Q1M: Tensor | None) -> Tensor:
            if layer == 0:
                own = w.begun.index_select(0, token_QCT.reshape(-1))
            else:
                own = self._into(x_QTM, add_Q1M, w.layers[layer].qkv, None)
            own = own.view(-1, tokens, 3 * inner)
            if self.fused:
                mixed: Tensor = _kernels().leaf_attention(own, cache[layer], row_Rd, w.bias_HLL, w.heads)
                return mixed
            past = cache[layer, :, inner:].index_select(0, row_Rd.view(-1)).view(-1, depth, 2 * inner)
            k, v = torch.cat([past, own[..., inner:]], 1).split(inner, -1)
            return _attend(w.split(own[..., :inner]), w.split(k), w.split(v), bias_HTL)

        hidden = self._run(token_QCT.reshape(queries, -1), cross, attend)
        return hidden.view(queries, leaves, tokens, -1)

    def log_probabilities(self, hidden_QWM: Tensor, level: int) -> Tensor:
        """Return fp32 log-probabilities (Q, W, V) over one level from normed hidden states."""
        logits = self.weights.logits(hidden_QWM.reshape(1, -1, self.weights.width), level)
        return logits[0].log_softmax(-1, dtype=torch.float32).view(*hidden_QWM.shape[:-1], -1)

    def log_probability(self, hidden_RTM: Tensor, code_RT: Tensor, level: int, gain_RT: Tensor | None) -> Tensor:
        """Return fp32 log-probabilities (R, T) of given codes at the levels from `level` on, plus a gain.

        Levels of one size in a row are one product.
        """
        out_RT, at = torch.empty(code_RT.shape, device=code_RT.device), 0
        for _, run in groupby(self.weights.sizes[level:]):
            end = at + len(list(run))
            logits_GRV = self.weights.logits(hidden_RTM[:, at:end].transpose(0, 1), level + at)
            own_RG = code_RT[:, at:end]
            if self.fused:
                _kernels().pick(logits_GRV, own_RG, None if gain_RT is None else gain_RT[:, at:end], out_RT[:, at:end])
            else:
                log_GRV = logits_GRV.log_softmax(-1, dtype=torch.float32)
                out_RT[:, at:end] = log_GRV.gather(2, own_RG.t()[..., None])[..., 0].t()
            at = end
        return out_RT if self.fused or gain_RT is None else out_RT + gain_RT

    def _tail_bias(self, depth: int) -> Tensor:
        """Return the causal bias (H, T, L) of the positions from `depth` on, its rows aligned."""
        bias = self.weights.bias_HLL[:, depth:]
        levels = bias.shape[-1]
        return F.pad(bias, (0, -levels % MASK_MULTIPLE))[..., :levels]

    def _look(self, cache_XN: Tensor, own_RN: Tensor, row_RS: Tensor) -> Tensor:
        """Attend from tokens to rows of the cache (R, H K), as `kernels.line_attention` does."""
        w = self.weights
        (rows, seen), inner = row_RS.shape, w.heads * w.d_kv
        kept = cache_XN[:, inner:].index_select(0, row_RS.clamp(min=0).view(-1)).float()
        k, v = kept.view(rows, seen, 2, w.heads, w.d_kv).unbind(2)
        score_RSH = (own_RN[:, None, :inner].float().view(rows, 1, w.heads, w.d_kv) * k).sum(-1)
        score_RSH += w.distance_HL[:, :seen].flip(1).t().float()
        weight_RSH = score_RSH.masked_fill(row_RS[..., None] < 0, -torch.inf).softmax(1)
        return (weight_RSH[..., None] * v).sum(1).flatten(1).to(w.dtype)

    def _run(self, token_QT: Tensor, cross: Cross, attend: Callable[[int, Tensor, Tensor | None], Tensor]) -> Tensor:
        """Go through the layers; `attend` gets a layer's number, its input (Q, T, M) and what to add to that.

        A product of few rows adds a layer's constant to the stream itself; others leave all constants so far to the
        norms, which read the stream anyway.
        """
        w = self.weights
        x_QTM = F.embedding(token_QT, w.table)
        x_RM = x_QTM.view(-1, w.width)
        few, add_Q1M = self._few(len(x_RM)), None
        for number, (layer, kept) in enumerate(zip(w.layers, cross, strict=True)):
            mixed_RN = attend(number, x_QTM, add_Q1M).reshape(len(x_RM), -1)
            own_Q1M = kept.own if isinstance(kept, Constant) else None
            if few:
                _kernels().product(mixed_RN, layer.o, onto_QTN=x_QTM, add_Q1N=own_Q1M)
            else:
                x_RM.addmm_(mixed_RN, layer.o.t())
                add_Q1M = kept.total if isinstance(kept, Constant) else None
            if isinstance(kept, KeysValues):
                self._cross(x_QTM, layer, kept)
            if few:
                inner_RN = _kernels().product(x_RM, layer.feed.wi, norm=True, relu=True)
                _kernels().product(inner_RN, layer.feed.wo, onto_QTN=x_QTM)
            else:
                layer.feed.add_to(x_RM, self._norm(x_QTM, add_Q1M).view(x_RM.shape))
        return self._norm(x_QTM, add_Q1M)

    def _few(self, rows: int) -> bool:
        """Return whether products of so many rows take kernels of our own."""
        return rows <= FEW_ROWS and self.fuses("all")

    def _into(self, x_QTM: Tensor, add_Q1M: Tensor | None, weight_NM: Tensor, out_RN: Tensor | None) -> Tensor:
        """Return the product of the normed stream (R, N), in `out_RN` where there is one."""
        if self._few(len(x_QTM) * x_QTM.shape[1]):
            product: Tensor = _kernels().product(x_QTM.flatten(0, 1), weight_NM, norm=True, out_RN=out_RN)
            return product
        return torch.mm(self._norm(x_QTM, add_Q1M).flatten(0, 1), weight_NM.t(), out=out_RN)

    def _norm(self, x_QTM: Tensor, add_Q1M: Tensor | None) -> Tensor:
        """Return the norm of the stream and a constant of each query."""
        if self.fused:
            normed: Tensor = _kernels().add_norm(x_QTM, add_Q1M)
            return normed
        return norm(x_QTM if add_Q1M is None else x_QTM + add_Q1M)

    def _cross(self, x_QTM: Tensor, layer: LayerWeights, kept: KeysValues) -> None:
        """Add attention to several tokens, in place."""
        assert layer.cross_q is not None and layer.cross_o is not None
        mixed = _attend(self.weights.split(F.linear(self._norm(x_QTM, None), layer.cross_q)), *kept)
        x_QTM += F.linear(mixed, layer.cross_o)


def _attend(q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, bias_BHTS: Tensor | None) -> Tensor:
    """Return attention without T5's absent scaling, heads joined (B, T, H K)."""
    if bias_BHTS is not None:
        bias_BHTS = bias_BHTS.expand(len(q_BHTK), q_BHTK.shape[1], q_BHTK.shape[2], -1)
    with _backends(q_BHTK):
        mixed = F.scaled_dot_product_attention(q_BHTK, k_BHSK, v_BHSK, attn_mask=bias_BHTS, scale=1.0)
    return mixed.transpose(1, 2).flatten(2)


def _backends(q: Tensor) -> AbstractContextManager[None]:
    """On a GPU take the attention that reads masks without copying them and needs no compilation by shape."""
    if not q.is_cuda:
        return nullcontext()
    return sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])


def _kernels() -> ModuleType:
    """Return the module of kernels, which needs Triton."""
    from siglum.search.static import triton_kernels

    return triton_kernels
