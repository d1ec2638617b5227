# ruff: noqa: ANN001
# mypy: disable-error-code="misc, untyped-decorator, no-untyped-def, no-untyped-call"
"""Triton kernels for what plain operations do wastefully: attention over few scattered rows, and products of few rows.

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

__all__ = ["add_norm", "compiled", "leaf_attention", "line_attention", "pick", "product", "tl", "triton"]

BEAMS = 16
"""Tokens that one program of `line_attention` handles."""
ROWS = 4
"""Rows that one program of `add_norm` handles."""
COLUMNS = 16
"""Columns that one program of `product` handles: few, so that all parts of the GPU have some."""
ROW_TILE = 8_192
"""Weights that one program of the product of a lone row reads at once."""
ROW_PROGRAMS = 128
"""About how many programs such a product has."""


def compiled(kernel: Callable[..., Any]) -> Any:
    """Return a kernel, or a function that kernels call, as Triton compiles it."""
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
    """Return every token, with a vector of its query added, over its root mean square."""
    queries, tokens, width = x_QTM.shape
    out = torch.empty_like(x_QTM)
    rows = queries * tokens
    _add_norm[(triton.cdiv(rows, ROWS),)](
        x_QTM, x_QTM if add_Q1M is None else add_Q1M, out, rows, tokens, width,
        0 if add_Q1M is None else add_Q1M.stride(0), EPS,
        ADD=add_Q1M is not None, BR=ROWS, BM=triton.next_power_of_2(width),
    )  # fmt: skip
    return out


def product(
    x_RM: Tensor,
    weight_NM: Tensor,
    *,
    norm: bool = False,
    relu: bool = False,
    add_Q1N: Tensor | None = None,
    onto_QTN: Tensor | None = None,
    out_RN: Tensor | None = None,
) -> Tensor:
    """Return `x_RM weight_NM^T` of few rows, with what comes before and after it.

    `norm` divides the rows by their root mean square first; `add_Q1N` is added to all rows of its query; `onto_QTN` is
    added to in place. `x_RM` must not be what is written.
    """
    (rows, inner), outer = x_RM.shape, len(weight_NM)
    out = onto_QTN if onto_QTN is not None else out_RN
    if out is None:
        out = torch.empty(rows, outer, dtype=weight_NM.dtype, device=x_RM.device)
    shared = (
        x_RM, weight_NM, out if add_Q1N is None else add_Q1N, out, rows, inner, outer,
        1 if add_Q1N is None else max(1, rows // len(add_Q1N)), 0 if add_Q1N is None else add_Q1N.stride(0), EPS,
    )  # fmt: skip
    flags = {"NORM": norm, "RELU": relu, "ADD": add_Q1N is not None, "ONTO": onto_QTN is not None}
    if rows == 1:
        deep = triton.next_power_of_2(inner)
        wide = max(1, min(ROW_TILE // deep, triton.next_power_of_2(outer) // ROW_PROGRAMS))
        _row_product[(triton.cdiv(outer, wide),)](*shared, **flags, BN=wide, BK=deep)
        return out
    high = min(64, max(16, triton.next_power_of_2(rows)))
    # A long stretch of the inner axis at once, as far as registers hold it.
    deep = min(64 if x_RM.dtype == torch.float32 else 256, 8_192 // high, max(16, triton.next_power_of_2(inner)))
    grid = (triton.cdiv(outer, COLUMNS), triton.cdiv(rows, high))
    _product[grid](*shared, **flags, BR=high, BN=COLUMNS, BK=deep, num_stages=4)
    return out


def pick(logits_GRV: Tensor, code_RG: Tensor, gain_RG: Tensor | None, out_RG: Tensor) -> None:
    """Write the log-probabilities of given codes under the softmax of their row of logits, plus a gain, fp32.

    Codes, gains and what is written may be columns of wider tensors.
    """
    groups, rows, size = logits_GRV.shape
    gain = out_RG if gain_RG is None else gain_RG
    _pick[(rows, groups)](
        logits_GRV, code_RG, gain, out_RG, rows, size, code_RG.stride(0), gain.stride(0), out_RG.stride(0),
        GAIN=gain_RG is not None, BV=triton.next_power_of_2(size),
    )  # fmt: skip


@compiled
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


@compiled
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


@compiled
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
    scale = tl.rsqrt(tl.sum(value * value, 1) / width + eps)
    tl.store(out + at, (value * scale[:, None]).to(out.dtype.element_ty), mask=ok)


@compiled
def _product(
    x, weight, add, out, rows, inner, outer, tokens, stride, eps,
    NORM: tl.constexpr, RELU: tl.constexpr, ADD: tl.constexpr, ONTO: tl.constexpr,
    BR: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
) -> None:  # fmt: skip
    n, r = tl.program_id(0) * BN + tl.arange(0, BN), tl.program_id(1) * BR + tl.arange(0, BR)
    ok_n, ok_r = n < outer, r < rows
    total = tl.zeros([BR, BN], tl.float32)
    square = tl.zeros([BR], tl.float32)
    for at in range(0, inner, BK):
        k = at + tl.arange(0, BK)
        a = tl.load(x + r[:, None] * inner + k[None, :], mask=ok_r[:, None] & (k < inner)[None, :], other=0.0)
        b = tl.load(weight + n[None, :] * inner + k[:, None], mask=ok_n[None, :] & (k < inner)[:, None], other=0.0)
        if NORM:
            wide = a.to(tl.float32)
            square += tl.sum(wide * wide, 1)
        total = tl.dot(a, b, total, input_precision="ieee")
    if NORM:  # the norm is one factor a row, so it may follow the product
        total = total * tl.rsqrt(square / inner + eps)[:, None]
    if RELU:
        total = tl.maximum(total, 0.0)
    ok = ok_r[:, None] & ok_n[None, :]
    if ADD:
        total += tl.load(add + (r // tokens * stride)[:, None] + n[None, :], mask=ok, other=0.0).to(tl.float32)
    place = out + r[:, None] * outer + n[None, :]
    if ONTO:
        total += tl.load(place, mask=ok, other=0.0).to(tl.float32)
    tl.store(place, total.to(out.dtype.element_ty), mask=ok)


@compiled
def _row_product(
    x, weight, add, out, rows, inner, outer, tokens, stride, eps,
    NORM: tl.constexpr, RELU: tl.constexpr, ADD: tl.constexpr, ONTO: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
) -> None:  # fmt: skip
    n, k = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BK)
    ok = n < outer
    a = tl.load(x + k, mask=k < inner, other=0.0).to(tl.float32)
    b = tl.load(weight + n[:, None] * inner + k[None, :], mask=ok[:, None] & (k < inner)[None, :], other=0.0)
    total = tl.sum(b.to(tl.float32) * a[None, :], 1)
    if NORM:
        total = total * tl.rsqrt(tl.sum(a * a, 0) / inner + eps)
    if RELU:
        total = tl.maximum(total, 0.0)
    if ADD:
        total += tl.load(add + n, mask=ok, other=0.0).to(tl.float32)
    if ONTO:
        total += tl.load(out + n, mask=ok, other=0.0).to(tl.float32)
    tl.store(out + n, total.to(out.dtype.element_ty), mask=ok)


@compiled
def _pick(
    logits, code, gain, out, rows, size, code_stride, gain_stride, out_stride, GAIN: tl.constexpr, BV: tl.constexpr
) -> None:  # fmt: skip
    row, group, c = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64), tl.arange(0, BV)
    line = logits + (group * rows + row) * size
    value = tl.load(line + c, mask=c < size, other=float("-inf")).to(tl.float32)
    top = tl.max(value, 0)
    total = top + tl.log(tl.sum(tl.exp(value - top), 0))
    chosen = tl.load(line + tl.load(code + row * code_stride + group)).to(tl.float32) - total
    if GAIN:
        chosen += tl.load(gain + row * gain_stride + group)
    tl.store(out + row * out_stride + group, chosen)
