"""Passes of the decoder: a tree or a beam of new tokens onto a cache of slots, and whole leaf paths at once.

The cache holds keys and values of every position ever read, in slots that never move; a beam knows the slots of its
ancestors. New tokens look at all slots through a mask, which on a GPU is cheaper than to gather each one's own.
Shapes: Q queries, T new tokens, P slots, M d_model, H heads, K d_kv, L levels, C leaves, d levels before the tail.
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

from siglum.search.cuda.weights import Cross, Layer, Weights, norm

MASK_MULTIPLE = 16
"""Rows of a mask start at multiples of this many numbers, as fused attention asks for."""


def aligned(count: int) -> int:
    """Return the next multiple of `MASK_MULTIPLE`."""
    return -(-count // MASK_MULTIPLE) * MASK_MULTIPLE


class Passes:
    """Runs the decoder's layers over new tokens; `kv` are the caches of all layers (layers, Q, P, 2 H K).

    With `fused` (a GPU with Triton) attention and norms are kernels of our own.
    """

    def __init__(self, weights: Weights, *, fused: bool = False) -> None:
        """Hold the weights."""
        self.weights, self.fused = weights, fused

    def cache(self, queries: int, slots: int) -> Tensor:
        """Return empty caches; zeros where a mask hides slots, which must hold numbers even so."""
        w = self.weights
        shape = (len(w.layers), queries, aligned(slots), 2 * w.heads * w.d_kv)
        return (torch.empty if self.fused else torch.zeros)(shape, dtype=w.dtype, device=w.device)

    def sight(self, line_QTS: Tensor, slots: int) -> Tensor:
        """Return what `onto` asks for, from the slots that each token sees: its own last, -1 for none.

        With kernels of our own that is the lines as they are; without, the bias (Q, H, T, P) of the first `slots`
        slots, minus infinity for those that are not in a token's line.
        """
        if self.fused:
            return line_QTS.contiguous()
        w, room = self.weights, aligned(slots)
        bias_HS = w.distance_HL[:, : line_QTS.shape[2]].flip(-1)
        shape = (len(line_QTS), w.heads, line_QTS.shape[1], room + MASK_MULTIPLE)
        hidden = torch.full(shape, -torch.inf, dtype=w.dtype, device=w.device)
        # Slots for none go to a column that is left out again.
        place = torch.where(line_QTS < 0, room, line_QTS)[:, None].expand(-1, w.heads, -1, -1)
        return hidden.scatter_(3, place, bias_HS[None, :, None].expand(place.shape))[..., :room]

    def onto(self, kv: Tensor, at: int, token_QT: Tensor, sight: Tensor, cross: Cross) -> Tensor:
        """Read rows `token_QT` of the table into the slots from `at` on; return normed hidden states (Q, T, M)."""
        w, tokens = self.weights, token_QT.shape[1]
        inner = w.heads * w.d_kv

        def attend(layer: int, qkv_QTN: Tensor) -> Tensor:
            kv[layer, :, at : at + tokens] = qkv_QTN[..., inner:]
            if self.fused:
                mixed: Tensor = _kernels().line_attention(qkv_QTN, kv[layer], sight, w.distance_HL, w.heads)
                return mixed
            k, v = kv[layer, :, : sight.shape[-1]].split(inner, -1)
            return _attend(w.split(qkv_QTN[..., :inner]), w.split(k), w.split(v), sight)

        return self._run(token_QT, cross, attend)

    def tail(self, kv: Tensor, past_QCd: Tensor, token_QCT: Tensor, cross: Cross, base: int) -> Tensor:
        """Read the rest of every leaf's path onto its ancestors' slots; return normed hidden states (Q, C, T, M).

        The queries are those of `kv` from `base` on.
        """
        w = self.weights
        (queries, leaves, tokens), depth, inner = token_QCT.shape, past_QCd.shape[2], w.heads * w.d_kv
        query = torch.arange(base, base + queries, device=kv.device)[:, None, None]
        row_Rd = (query * kv.shape[2] + past_QCd).view(-1, depth)
        bias_HTL = self._tail_bias(depth)

        def attend(layer: int, qkv_QTN: Tensor) -> Tensor:
            own, slots = qkv_QTN.view(-1, tokens, 3 * inner), kv[layer].view(-1, 2 * inner)
            if self.fused:
                mixed: Tensor = _kernels().leaf_attention(own, slots, row_Rd, w.bias_HLL, w.heads)
                return mixed
            past = slots.index_select(0, row_Rd.view(-1)).view(-1, depth, 2 * inner)
            k, v = torch.cat([past, own[..., inner:]], 1).split(inner, -1)
            return _attend(w.split(own[..., :inner]), w.split(k), w.split(v), bias_HTL[None])

        hidden = self._run(token_QCT.reshape(queries, -1), cross, attend)
        return hidden.view(queries, leaves, tokens, -1)

    def log_probabilities(self, hidden_QWM: Tensor, level: int) -> Tensor:
        """Return fp32 log-probabilities (Q, W, V) over one level from normed hidden states."""
        logits = self.weights.logits(hidden_QWM.reshape(1, -1, self.weights.width), level)
        return logits[0].log_softmax(-1, dtype=torch.float32).view(*hidden_QWM.shape[:-1], -1)

    def log_probability(self, hidden_RTM: Tensor, code_RT: Tensor, level: int) -> Tensor:
        """Return fp32 log-probabilities (R, T) of given codes at the levels from `level` on.

        Levels of one size in a row are one product.
        """
        parts, at = [], 0
        for _, run in groupby(self.weights.sizes[level:]):
            end = at + len(list(run))
            logits_GRV = self.weights.logits(hidden_RTM[:, at:end].transpose(0, 1), level + at)
            code_GR = code_RT[:, at:end].t().contiguous()
            if self.fused:
                parts.append(_kernels().pick(logits_GRV, code_GR))
            else:
                parts.append(logits_GRV.log_softmax(-1, dtype=torch.float32).gather(2, code_GR[..., None])[..., 0])
            at = end
        return torch.cat(parts).t()

    def _tail_bias(self, depth: int) -> Tensor:
        """Return the causal bias (H, T, L) of the positions from `depth` on, its rows aligned."""
        bias = self.weights.bias_HLL[:, depth:]
        levels = bias.shape[-1]
        return F.pad(bias, (0, aligned(levels) - levels))[..., :levels]

    def _run(self, token_QT: Tensor, cross: Cross, attend: Callable[[int, Tensor], Tensor]) -> Tensor:
        w = self.weights
        x_QTM = F.embedding(token_QT, w.table)
        x_RM = x_QTM.view(-1, w.width)
        for number, (layer, kept) in enumerate(zip(w.layers, cross, strict=True)):
            qkv_QTN = F.linear(self._norm(x_QTM, None), layer.qkv)
            x_RM.addmm_(attend(number, qkv_QTN).reshape(len(x_RM), -1), layer.o.t())
            if not isinstance(kept, Tensor):
                self._cross(x_QTM, layer, kept)
            layer.feed.add_to(x_RM, self._norm(x_QTM, kept if isinstance(kept, Tensor) else None).view(x_RM.shape))
        return self._norm(x_QTM, None)

    def _norm(self, x_QTM: Tensor, add_Q1M: Tensor | None) -> Tensor:
        """Add a constant of each query, in place, and return the norm."""
        if self.fused:
            normed: Tensor = _kernels().add_norm(x_QTM, add_Q1M)
            return normed
        if add_Q1M is not None:
            x_QTM += add_Q1M
        return norm(x_QTM)

    def _cross(self, x_QTM: Tensor, layer: Layer, kept: tuple[Tensor, Tensor]) -> None:
        """Add attention to several soft tokens, in place."""
        assert layer.cross_q is not None and layer.cross_o is not None
        mixed = _attend(self.weights.split(F.linear(self._norm(x_QTM, None), layer.cross_q)), *kept, None)
        x_QTM += F.linear(mixed, layer.cross_o)


def _attend(q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, bias_BHTS: Tensor | None) -> Tensor:
    """Return attention without T5's absent scaling, heads joined (B, T, H K)."""
    if bias_BHTS is not None:
        bias_BHTS = bias_BHTS.expand(len(q_BHTK), -1, -1, -1)
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
    from siglum.search.cuda import kernels

    return kernels
