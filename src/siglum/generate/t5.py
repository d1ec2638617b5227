"""The blocks of T5 v1.0: RMS norm, attention with relative position bias, ReLU feed-forward.

As in T5: no biases in linear maps, no scaling of attention scores, pre-norm residuals, dropout on the input,
on attention weights, inside the feed-forward, on every sublayer's output and after the final norm.
"""

# Shapes: B batch, T positions attending, S positions attended to, M d_model, H heads, K d_kv, F d_ff.

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from siglum.config import DecoderConfig

BUCKETS = 32
MAX_DISTANCE = 128
EPS = 1e-6
OUT = -1e9
"""What is added to the score of a position that is not there, so that nothing of it is left after the softmax."""


class Kept(NamedTuple):
    """What attention reads of positions; of a lone key, its share in the output by head (B, H, M) and their sum."""

    k: Tensor
    """Keys (B, H, S, K)."""
    v: Tensor
    """Values (B, H, S, K), or a lone key's sum (B, 1, M)."""
    bias: Tensor | None = None
    """Minus infinity where there is no position (B, 1, 1, S), else 0."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A ragged batch: row r belongs to query `query_R[r]` and is that query's `slot_R[r]`-th row."""

    query_R: Tensor
    slot_R: Tensor
    queries: int
    width: int

    @classmethod
    def of(cls, query_R: Tensor, queries: int) -> Rows:
        """Number every query's rows in the order they come."""
        counts = torch.bincount(query_R, minlength=queries)
        order = query_R.argsort(stable=True)
        first = counts.cumsum(0) - counts
        slot_R = torch.empty_like(query_R)
        slot_R[order] = torch.arange(len(query_R), device=query_R.device) - first[query_R[order]]
        return cls(query_R, slot_R, queries, int(counts.max()) if queries else 0)

    def group(self, x_R1M: Tensor) -> Tensor:
        """Lay rows out as (queries, width, M), padded with zeros."""
        grouped = x_R1M.new_zeros(self.queries, self.width, x_R1M.shape[-1])
        grouped[self.query_R, self.slot_R] = x_R1M[:, 0]
        return grouped

    def ungroup(self, x_QWM: Tensor) -> Tensor:
        """Undo `group`."""
        return x_QWM[self.query_R, self.slot_R][:, None]


class RMSNorm(nn.Module):
    """Divide by the root mean square and scale; no mean is taken off."""

    def __init__(self, width: int, *, trained: bool = True) -> None:
        """Build for vectors of this width; `trained` says whether the scale learns."""
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width), requires_grad=trained)

    def forward(self, x_BTM: Tensor) -> Tensor:
        """Return the same shape."""
        # The mean square is taken in full precision, as T5 does, whatever precision x comes in.
        return x_BTM * torch.rsqrt(x_BTM.float().square().mean(-1, keepdim=True) + EPS) * self.scale


class FeedForward(nn.Module):
    """Widen, ReLU, narrow."""

    def __init__(self, config: DecoderConfig) -> None:
        """Build with weights left unset."""
        super().__init__()
        self.dropout = config.dropout
        self.wi = nn.Parameter(torch.empty(config.d_ff, config.d_model))
        self.wo = nn.Parameter(torch.empty(config.d_model, config.d_ff))

    def forward(self, x_BTM: Tensor) -> Tensor:
        """Return the same shape."""
        hidden_BTF = dropout(F.linear(x_BTM, self.wi).relu(), self.dropout, self.training)
        return F.linear(hidden_BTF, self.wo)


class Attention(nn.Module):
    """Attention of a sequence to itself (`forward`) or to something kept (`keep`, then `attend`).

    With `lone_key` there is one position to attend to. The softmax over it is 1 whatever the query and key are, so
    neither is computed nor trained: each head adds a constant of the memory, and T5's dropout of attention weights
    switches whole heads off, position by position. Both are exact, in training as well.
    """

    def __init__(self, config: DecoderConfig, *, lone_key: bool) -> None:
        """Build with weights left unset."""
        super().__init__()
        self.heads, self.d_kv, self.dropout, self.lone_key = config.heads, config.d_kv, config.dropout, lone_key
        inner = config.heads * config.d_kv
        self.q = nn.Parameter(torch.empty(inner, config.d_model), requires_grad=not lone_key)
        self.k = nn.Parameter(torch.empty(inner, config.d_model), requires_grad=not lone_key)
        self.v = nn.Parameter(torch.empty(inner, config.d_model))
        self.o = nn.Parameter(torch.empty(config.d_model, inner))

    def forward(self, x_BTM: Tensor, bias_HTS: Tensor, past: Kept | None = None) -> tuple[Tensor, Kept]:
        """Attend to the past and to itself; return the output (B, T, M) and the keys and values so far."""
        if self.lone_key:
            kept = self.keep(x_BTM)
            return self.attend(x_BTM, kept), kept
        q, k, v = self._project(x_BTM, self.q), self._project(x_BTM, self.k), self._project(x_BTM, self.v)
        if past is not None:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        return self._mix(q, k, v, bias_HTS), Kept(k, v)

    def keep(self, memory_BSM: Tensor, mask_BS: Tensor | None = None) -> Kept:
        """Return what attending to `memory_BSM` (where the mask is true, if there is one) needs of it, once."""
        if not self.lone_key:
            bias = None
            if mask_BS is not None:
                bias = torch.where(mask_BS, 0.0, -math.inf)[:, None, None]
            return Kept(self._project(memory_BSM, self.k), self._project(memory_BSM, self.v), bias)
        v_BHK = F.linear(memory_BSM[:, 0], self.v).view(-1, self.heads, self.d_kv)
        share_BHM = torch.einsum("bhk,mhk->bhm", v_BHK, self.o.view(-1, self.heads, self.d_kv))
        return Kept(share_BHM, share_BHM.sum(1, keepdim=True))

    def attend(self, x_BTM: Tensor, kept: Kept) -> Tensor:
        """Attend to what was kept, without bias; return (B, T, M), or (B, 1, M) where all T are equal."""
        if not self.lone_key:
            return self._mix(self._project(x_BTM, self.q), *kept)
        share_BHM, sum_B1M, _ = kept
        if not (self.training and self.dropout):
            return sum_B1M
        weight_BTH = dropout(x_BTM.new_ones(*x_BTM.shape[:2], self.heads), self.dropout, True)
        return weight_BTH @ share_BHM

    def _project(self, x_BTM: Tensor, weight: Tensor) -> Tensor:
        """Return (B, H, T, K); one product for all of q, k and v was measured to be no faster."""
        return F.linear(x_BTM, weight).view(*x_BTM.shape[:2], self.heads, self.d_kv).transpose(1, 2)

    def _mix(self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, bias: Tensor | None) -> Tensor:
        score_BHTS = q_BHTK @ k_BHSK.transpose(2, 3)
        if bias is not None:
            score_BHTS = score_BHTS + bias
        weight_BHTS = dropout(score_BHTS.softmax(-1), self.dropout, self.training)
        return F.linear((weight_BHTS @ v_BHSK).transpose(1, 2).flatten(2), self.o)


class T5Block(nn.Module):
    """Self-attention, cross-attention where there is a memory, and feed-forward, each a pre-norm residual."""

    def __init__(self, config: DecoderConfig, *, cross: bool) -> None:
        """Build with weights left unset; `cross` adds cross-attention."""
        super().__init__()
        lone = has_lone_key(config)
        self.dropout = config.dropout
        self.self_norm = RMSNorm(config.d_model)
        self.self_attention = Attention(config, lone_key=lone and not cross)
        self.cross_norm = RMSNorm(config.d_model, trained=not lone) if cross else None
        self.cross_attention = Attention(config, lone_key=lone) if cross else None
        self.feed_norm = RMSNorm(config.d_model)
        self.feed_forward = FeedForward(config)

    def forward(
        self,
        x_BTM: Tensor,
        bias_HTS: Tensor,
        kept: Kept | None = None,
        past: Kept | None = None,
        rows: Rows | None = None,
    ) -> tuple[Tensor, Kept]:
        """Return the output (B, T, M) and the self-attention's keys and values so far.

        With `rows`, the batch is ragged (T is 1) and `kept` has one entry per query, not per row.
        """
        y_BTM, past = self.self_attention(self.self_norm(x_BTM), bias_HTS, past)
        x_BTM = x_BTM + self._drop(y_BTM)
        if kept is not None:
            x_BTM = x_BTM + self._drop(self._cross(x_BTM, kept, rows))
        return x_BTM + self._drop(self.feed_forward(self.feed_norm(x_BTM))), past

    def _cross(self, x_BTM: Tensor, kept: Kept, rows: Rows | None) -> Tensor:
        assert self.cross_norm is not None and self.cross_attention is not None
        if self.cross_attention.lone_key:
            y_BTM = self.cross_attention.attend(x_BTM, kept)
            return y_BTM if rows is None else y_BTM[rows.query_R]
        x_BTM = self.cross_norm(x_BTM)
        if rows is None:
            return self.cross_attention.attend(x_BTM, kept)
        return rows.ungroup(self.cross_attention.attend(rows.group(x_BTM), kept))

    def _drop(self, x: Tensor) -> Tensor:
        return dropout(x, self.dropout, self.training)


class Stack(nn.Module):
    """T5's encoder (`cross` false) or decoder (`cross` true): blocks that share one relative position bias."""

    def __init__(self, config: DecoderConfig, layers: int, *, cross: bool) -> None:
        """Build with weights left unset; `cross` adds cross-attention and causality."""
        super().__init__()
        self.dropout, self.causal = config.dropout, cross
        self.blocks = nn.ModuleList(T5Block(config, cross=cross) for _ in range(layers))
        trained = layers > 0 and (cross or not has_lone_key(config))
        self.bias = nn.Parameter(torch.empty(BUCKETS, config.heads), requires_grad=trained)
        self.final_norm = RMSNorm(config.d_model)

    def forward(self, x_BTM: Tensor, kept: list[Kept] | None = None, mask_BT: Tensor | None = None) -> Tensor:
        """Run all positions at once; return (B, T, M). Where a mask is not true there is nothing to attend to."""
        bias = self.position_bias(x_BTM.shape[1])
        if mask_BT is not None:  # not minus infinity: a row that has nothing at all must not become NaN
            bias = bias + torch.where(mask_BT, 0.0, OUT)[:, None, None]
        x_BTM = dropout(x_BTM, self.dropout, self.training)
        for layer, block in enumerate(self.blocks):
            x_BTM, _ = block(x_BTM, bias, kept[layer] if kept is not None else None)
        return dropout(self.final_norm(x_BTM), self.dropout, self.training)

    def step(self, x_R1M: Tensor, kept: list[Kept], past: list[Kept | None], rows: Rows) -> tuple[Tensor, list[Kept]]:
        """Run one more position of every row; return the output (R, 1, M) and the longer past."""
        seen = 0 if past[0] is None else past[0][0].shape[2]
        bias_H1S = self.position_bias(seen + 1)[:, -1:]
        longer = []
        for block, layer_kept, layer_past in zip(self.blocks, kept, past, strict=True):
            x_R1M, layer_past = block(x_R1M, bias_H1S, layer_kept, layer_past, rows)
            longer.append(layer_past)
        return self.final_norm(x_R1M), longer

    def keep(self, memory_BSM: Tensor, mask_BS: Tensor | None = None) -> list[Kept]:
        """Return what every block's cross-attention needs of the memory."""
        return [block.cross_attention.keep(memory_BSM, mask_BS) for block in self.blocks]  # type: ignore[union-attr, operator]

    def position_bias(self, length: int) -> Tensor:
        """Return the bias (H, length, length) of every pair of positions, minus infinity where looking ahead."""
        position = torch.arange(length, device=self.bias.device)
        distance_TT = position[None, :] - position[:, None]
        bias_HTT = self.bias[bucket(distance_TT, bidirectional=not self.causal)].permute(2, 0, 1)
        return bias_HTT.masked_fill(distance_TT > 0, -math.inf) if self.causal else bias_HTT


def has_lone_key(config: DecoderConfig) -> bool:
    """Return whether the encoder gives the decoder one position only: a lone soft token."""
    return config.soft_tokens == 1 and not config.history.items


def dropout(x: Tensor, share: float, training: bool) -> Tensor:
    """Zero a random share of the entries while training and scale the others up so that the mean stays.

    On the CPU, drawing one random number per entry would take a fifth of a training step; 16 random bits each do.
    """
    if not training or share == 0.0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, share)
    bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    kept = bits[: x.numel()].view(x.shape).ge_(round(share * 2**16) - 2**15)
    return x * kept.to(x.dtype).mul_(1 / (1 - share))


def bucket(distance: Tensor, *, bidirectional: bool) -> Tensor:
    """Return T5's bucket of a distance (attended minus attending position): exact when near, logarithmic when far.

    >>> bucket(torch.tensor([0, -1, -15, -20, -500]), bidirectional=False).tolist()
    [0, 1, 15, 17, 31]
    """
    count = BUCKETS // 2 if bidirectional else BUCKETS
    # One direction uses the whole table; looking ahead is masked there, so its bucket does not matter.
    side = (distance > 0).long() * count if bidirectional else 0
    far = distance.abs() if bidirectional else (-distance).clamp_min(0)
    exact = count // 2
    octaves = torch.log(far.clamp_min(1).float() / exact) / math.log(MAX_DISTANCE / exact)
    logarithmic = (exact + (octaves * (count - exact)).long()).clamp_max(count - 1)
    return side + torch.where(far < exact, far, logarithmic)
