# ruff: noqa: ANN001
# mypy: disable-error-code="misc, untyped-decorator, no-untyped-def, no-untyped-call"
"""Triton kernels for what plain operations do wastefully: attention over few scattered rows, and add-then-norm.

Each gives what the plain operations of `passes` give, to rounding. They need Triton.
Shapes: Q queries, T tokens, S rows a token sees, X rows of the cache, R leaves, H heads, K d_kv, M d_model, L levels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from siglum.generate.t5 import EPS

try:
    import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]
except ModuleNotFoundError:  # the module can be read and documented without Triton, not used
    triton = tl = None

BEAMS = 16
"""Tokens that one program of `line_attention` handles."""
ROWS = 4
"""Rows that one program of `add_norm` handles."""


def _compiled(kernel: Callable[..., None]) -> Any:
    return kernel if triton is None else triton.jit(kernel)


def line_attention(cache_XN: Tensor, at: int, row_QTS: Tensor, bias_HL: Tensor, heads: int) -> Tensor:
    """Attend from every token, in the cache from row `at` on, to the rows it sees; return (Q, T, H K).

    A token's own row is the last that it sees, -1 is none. `bias_HL` is the position bias by distance from it.
    """
    (queries, tokens, seen), inner = row_QTS.shape, cache_XN.shape[1] // 3
    out = torch.empty(queries, tokens, inner, dtype=cache_XN.dtype, device=cache_XN.device)
    grid = (queries, heads, triton.cdiv(tokens, BEAMS))
    _line_attention[grid](
        cache_XN, row_QTS, bias_HL, out, at, tokens, seen, bias_HL.shape[1], inner, K=inner // heads, BT=BEAMS
    )
    return out


def leaf_attention(qkv_RTN: Tensor, cache_XN: Tensor, past_Rd: Tensor, bias_HLL: Tensor, heads: int) -> Tensor:
    """Attend from every leaf's tail to its ancestors' rows of the cache and, causally, itself (R, T, H K)."""
    leaves, tokens, _ = qkv_RTN.shape
    depth, inner = past_Rd.shape[1], cache_XN.shape[1] // 3
    out = torch.empty(leaves, tokens, inner, dtype=qkv_RTN.dtype, device=qkv_RTN.device)
    sides = [max(16, triton.next_power_of_2(side)) for side in (tokens, depth)]
    _leaf_attention[(leaves, heads)](
        qkv_RTN, cache_XN, past_Rd, bias_HLL, out, tokens, depth, bias_HLL.shape[1], inner,
        K=inner // heads, BT=sides[0], BD=sides[1], num_warps=1,
    )  # fmt: skip
    return out


def add_norm(x_QTM: Tensor, add_Q1M: Tensor | None) -> Tensor:
    """Add a vector of its query to every token, in place, and return the sum over its root mean square."""
    queries, tokens, width = x_QTM.shape
    out = torch.empty_like(x_QTM)
    rows = queries * tokens
    _add_norm[(triton.cdiv(rows, ROWS),)](
        x_QTM, x_QTM if add_Q1M is None else add_Q1M, out, rows, tokens, width,
        0 if add_Q1M is None else add_Q1M.stride(0), EPS,
        ADD=add_Q1M is not None, BR=ROWS, BM=triton.next_power_of_2(width),
    )  # fmt: skip
    return out


def pick(logits_GRV: Tensor, code_GR: Tensor) -> Tensor:
    """Return the log-probabilities of given codes (G, R) under the softmax of their row of logits, fp32."""
    size = logits_GRV.shape[2]
    out = torch.empty(code_GR.shape, dtype=torch.float32, device=code_GR.device)
    _pick[(out.numel(),)](logits_GRV, code_GR, out, size, BV=triton.next_power_of_2(size))
    return out


@_compiled
def _line_attention(cache, row, bias, out, at, tokens, seen, levels, inner, K: tl.constexpr, BT: tl.constexpr) -> None:
    query, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    t, c = tl.program_id(2) * BT + tl.arange(0, BT), tl.arange(0, K)
    ok = t < tokens
    own = query * tokens + t
    q = tl.load(cache + ((at + own) * 3 * inner + head * K)[:, None] + c[None, :], mask=ok[:, None], other=0.0)
    q = q.to(tl.float32)
    top = tl.full([BT], -1e30, tl.float32)
    total = tl.zeros([BT], tl.float32)
    mixed = tl.zeros([BT, K], tl.float32)
    for s in range(seen):
        place = tl.load(row + own * seen + s, mask=ok, other=-1).to(tl.int64)
        there = place >= 0
        line = cache + (place * 3 * inner + inner + head * K)[:, None] + c[None, :]
        k = tl.load(line, mask=there[:, None], other=0.0).to(tl.float32)
        v = tl.load(line + inner, mask=there[:, None], other=0.0).to(tl.float32)
        score = tl.sum(q * k, 1) + tl.load(bias + head * levels + seen - 1 - s).to(tl.float32)
        score = tl.where(there, score, -1e30)
        # What an absent slot adds before the first real one is scaled to nothing by that one.
        higher = tl.maximum(top, score)
        fade, weight = tl.exp(top - higher), tl.exp(score - higher)
        mixed = mixed * fade[:, None] + weight[:, None] * v
        total = total * fade + weight
        top = higher
    mixed = mixed / total[:, None]
    tl.store(out + (own * inner + head * K)[:, None] + c[None, :], mixed.to(out.dtype.element_ty), mask=ok[:, None])


@_compiled
def _leaf_attention(
    qkv, cache, past, bias, out, tokens, depth, levels, inner, K: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr
) -> None:  # fmt: skip
    leaf, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    t, s, c = tl.arange(0, BT), tl.arange(0, BD), tl.arange(0, K)
    ok_t, ok_s = t < tokens, s < depth
    at = qkv + ((leaf * tokens + t) * 3 * inner + head * K)[:, None] + c[None, :]
    q = tl.load(at, mask=ok_t[:, None], other=0.0)
    k = tl.load(at + inner, mask=ok_t[:, None], other=0.0)
    v = tl.load(at + 2 * inner, mask=ok_t[:, None], other=0.0)
    place = tl.load(past + leaf * depth + s, mask=ok_s, other=0).to(tl.int64)
    at = cache + (place * 3 * inner + inner + head * K)[:, None] + c[None, :]
    past_k = tl.load(at, mask=ok_s[:, None], other=0.0)
    past_v = tl.load(at + inner, mask=ok_s[:, None], other=0.0)
    # Rows past the last token look at token 0 alone, so that they stay finite.
    lean = bias + (head * levels + depth + tl.where(ok_t, t, 0)[:, None]) * levels
    own = tl.load(lean + (depth + t)[None, :], mask=ok_t[None, :], other=float("-inf")).to(tl.float32)
    old = tl.load(lean + s[None, :], mask=ok_s[None, :], other=float("-inf")).to(tl.float32)
    own += tl.dot(q, tl.trans(k), input_precision="ieee")
    old += tl.dot(q, tl.trans(past_k), input_precision="ieee")
    top = tl.maximum(tl.max(own, 1), tl.max(old, 1))
    own, old = tl.exp(own - top[:, None]), tl.exp(old - top[:, None])
    total = tl.sum(own, 1) + tl.sum(old, 1)
    mixed = tl.dot(own.to(v.dtype), v, input_precision="ieee")
    mixed += tl.dot(old.to(v.dtype), past_v, input_precision="ieee")
    mixed = mixed / total[:, None]
    at = out + ((leaf * tokens + t) * inner + head * K)[:, None] + c[None, :]
    tl.store(at, mixed.to(out.dtype.element_ty), mask=ok_t[:, None])


@_compiled
def _add_norm(
    x, add, out, rows, tokens, width, stride, eps, ADD: tl.constexpr, BR: tl.constexpr, BM: tl.constexpr
) -> None:  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    m = tl.arange(0, BM)
    ok = (row < rows)[:, None] & (m < width)[None, :]
    at = (row * width)[:, None] + m[None, :]
    value = tl.load(x + at, mask=ok, other=0.0).to(tl.float32)
    if ADD:
        value += tl.load(add + (row // tokens * stride)[:, None] + m[None, :], mask=ok, other=0.0).to(tl.float32)
        rounded = value.to(x.dtype.element_ty)
        tl.store(x + at, rounded, mask=ok)
        value = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 1) / width + eps)
    tl.store(out + at, (value * scale[:, None]).to(out.dtype.element_ty), mask=ok)


@_compiled
def _pick(logits, code, out, size, BV: tl.constexpr) -> None:
    row, c = tl.program_id(0).to(tl.int64), tl.arange(0, BV)
    value = tl.load(logits + row * size + c, mask=c < size, other=float("-inf")).to(tl.float32)
    top = tl.max(value, 0)
    total = top + tl.log(tl.sum(tl.exp(value - top), 0))
    chosen = tl.load(logits + row * size + tl.load(code + row)).to(tl.float32)
    tl.store(out + row, chosen - total)
