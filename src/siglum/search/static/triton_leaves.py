# ruff: noqa: ANN001
# mypy: disable-error-code="misc, untyped-decorator, no-untyped-def, no-untyped-call"
"""Triton kernels of the tail: lay out the leaves of a beam with all that their pass reads, then prune and rank them.

They do what `Steps.unfold` and `Steps.settle` do with some hundred operations.
Shapes: Q queries, W live nodes, C leaves, T levels of the tail, d levels before it, L levels, K results, F = 2 K + 1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from siglum.search.static.beam_ops import BeamLeaves, GeometryTables, LiveNodes
from siglum.search.static.beam_steps import Tail
from siglum.search.static.trie import DeviceTrie
from siglum.search.static.triton_kernels import compiled, tl, triton
from siglum.search.static.triton_steps import spread

BLOCK = 32
"""Leaves that one program of `unfold` handles."""


def unfold(
    trie: DeviceTrie,
    beams: LiveNodes,
    depth: int,
    cap: int,
    token_offset_L: Tensor,
    geometry: GeometryTables | None,
    dot_QV: Tensor | None,
) -> Tail:
    """Return the leaves under live nodes, at most `cap` a query, with all that their pass reads."""
    (queries, width), levels, device = beams.lo_QW.shape, trie.levels - depth, beams.lo_QW.device

    def room(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(queries, *shape, dtype=dtype, device=device)

    found = BeamLeaves(
        room(cap, dtype=torch.float64), room(cap, dtype=torch.bool), room(cap), room(cap), room(dtype=torch.bool)
    )
    gain, tables, numbers = None, (found.path_QC,) * 3, (0, 0, 0.0)
    if geometry is not None and dot_QV is not None:
        gain = room(cap, levels, dtype=torch.float32)
        tables = (dot_QV, geometry.length_LN, geometry.start_L)
        numbers = (dot_QV.shape[1], geometry.first_geometric, geometry.omega)
    tail = Tail(found, room(cap, levels), room(cap, levels), room(cap, depth), gain)
    _unfold[(queries, triton.cdiv(cap, BLOCK))](
        beams.path_QW, beams.line_QWS, beams.first_QW, beams.count_QW, trie.leaf_row_I, trie.words_NG,
        trie.word_L, trie.shift_L, trie.mask_L, token_offset_L, *tables,
        found.path_QC, found.begins_QC.view(torch.int8), found.row_QC, found.end_QC, found.over_Q.view(torch.int8),
        tail.token_QCT, tail.code_QCT, tail.past_QCd, found.path_QC if gain is None else gain,
        width, cap, depth, levels, len(trie.rows), trie.words_NG.shape[1], *numbers, WEIGHS=gain is not None,
        BC=BLOCK, BW=triton.next_power_of_2(width), BT=triton.next_power_of_2(levels),
        BD=triton.next_power_of_2(depth),
    )  # fmt: skip
    return tail


def settle(
    trie: DeviceTrie, found: BeamLeaves, step_QCT: Tensor | None, depth: int, beam: int, pruning: list[int], k: int
) -> Tensor:
    """Replay the pruning over scored leaves, or take their scores as they are, and return the k best rows (Q, F)."""
    queries, leaves = found.path_QC.shape
    out = torch.empty(queries, 2 * k + 1, dtype=torch.float64, device=found.path_QC.device)
    step = out if step_QCT is None else step_QCT.contiguous()
    lanes = max(16, triton.next_power_of_2(leaves))
    _settle[(queries,)](
        found.path_QC, step, found.begins_QC.view(torch.int8), found.row_QC, found.end_QC,
        found.over_Q.view(torch.int8), trie.shared_N, out, leaves, k, depth, beam,
        T=0 if step_QCT is None else step_QCT.shape[2], PRUNES=sum(1 << (level - depth) for level in pruning),
        BC=lanes, BJ=lanes if lanes <= 128 else 4_096 // lanes, BK=min(1024, triton.next_power_of_2(k)),
        BT=triton.next_power_of_2(max(1, 0 if step_QCT is None else step_QCT.shape[2])),
        num_warps=4 if lanes <= 64 else 8,
    )  # fmt: skip
    return out


@compiled
def _unfold(
    path, line, first, count, leaf_row, words, word, shift, code_mask, token_first, dot, length, dot_start,
    path_out, begins_out, row_out, end_out, over_out, token_out, code_out, past_out, gain_out,
    width, cap, depth, levels, rows, words_per_row, dots, dot_first, omega,
    WEIGHS: tl.constexpr, BC: tl.constexpr, BW: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr,
) -> None:  # fmt: skip
    query = tl.program_id(0).to(tl.int64)
    slot = tl.program_id(1) * BC + tl.arange(0, BC)
    ok = slot < cap
    owner, offset, total = spread(count, query * width, width, slot, BW)
    used = ok & (slot < total)
    node = query * width + owner
    leaf = tl.where(used, tl.load(first + node, mask=used, other=0) + offset, 0)
    row = tl.load(leaf_row + leaf)
    at = query * cap + slot
    tl.store(row_out + at, row, mask=ok)
    tl.store(end_out + at, tl.load(leaf_row + leaf + 1), mask=ok)
    tl.store(begins_out + at, (offset == 0).to(tl.int8), mask=ok)
    tl.store(path_out + at, tl.load(path + node, mask=used, other=float("-inf")), mask=ok)
    tl.store(over_out + query, (total > cap).to(tl.int8))  # all programs of a query write the same
    d = tl.arange(0, BD)
    ok_d = ok[:, None] & (d < depth)[None, :]
    past = tl.load(line + (node * (depth + 1))[:, None] + d[None, :], mask=ok_d, other=0)
    tl.store(past_out + (at * depth)[:, None] + d[None, :], past, mask=ok_d)
    t = tl.arange(0, BT)
    ok_t, level = t < levels, depth + t
    both = ok[:, None] & ok_t[None, :]
    place = (at * levels)[:, None] + t[None, :]
    codes = words + (row.to(tl.int64) * words_per_row)[:, None]
    packed = tl.load(codes + tl.load(word + level - 1, mask=ok_t, other=0)[None, :], mask=both, other=0)
    shifts = tl.load(shift + level - 1, mask=ok_t, other=0)
    masks = tl.load(code_mask + level - 1, mask=ok_t, other=0)
    starts = tl.load(token_first + level - 1, mask=ok_t, other=0)
    token = ((packed >> shifts[None, :]) & masks[None, :]) + starts[None, :]
    tl.store(token_out + place, token.to(tl.int32), mask=both)
    packed = tl.load(codes + tl.load(word + level, mask=ok_t, other=0)[None, :], mask=both, other=0)
    shifts = tl.load(shift + level, mask=ok_t, other=0)
    masks = tl.load(code_mask + level, mask=ok_t, other=0)
    code = (packed >> shifts[None, :]) & masks[None, :]
    tl.store(code_out + place, code, mask=both)
    if WEIGHS:
        weighed = both & (level >= dot_first)[None, :]
        start = tl.load(dot_start + level, mask=ok_t, other=0)
        gain = tl.load(dot + query * dots + start[None, :] + code, mask=weighed, other=0.0)
        long = length + ((level - dot_first).to(tl.int64) * rows)[None, :] + row[:, None]
        gain -= omega * tl.load(long, mask=weighed, other=0.0)
        tl.store(gain_out + place, gain, mask=both)


@compiled
def _later(left, right) -> Any:
    return tl.maximum(left, right)


@compiled
def _beaten(score, weight, i, rank, ranks, leaves, ROWS: tl.constexpr, BC: tl.constexpr, BJ: tl.constexpr) -> Any:
    """Sum the weights of what beats each place: by score, then by the lower rank (a place's number, or its row)."""
    total = i * 0
    for at in range(0, BC, BJ):
        j = at + tl.arange(0, BJ)
        other, heavy = score, weight
        if BJ < BC:  # numbers of some of the lanes: sums in which all but one are zero
            here = j[:, None] == i[None, :]
            other = tl.sum(tl.where(here, score[None, :], 0.0), 1)
            heavy = tl.sum(tl.where(here, weight[None, :], 0), 1)
        order = tl.load(ranks + j, mask=j < leaves, other=0) if ROWS else j
        ahead = (other[:, None] == score[None, :]) & (order[:, None] < rank[None, :])
        beats = (other[:, None] > score[None, :]) | ahead
        total += tl.sum(tl.where(beats, heavy[:, None], 0), 0)
    return total


@compiled
def _settle(
    path, step, begins, row, end, over, shared, out, leaves, k, depth, beam,
    T: tl.constexpr, PRUNES: tl.constexpr, BC: tl.constexpr, BJ: tl.constexpr, BK: tl.constexpr, BT: tl.constexpr,
) -> None:  # fmt: skip
    query = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BC)
    ok, at = i < leaves, query * leaves + i
    rows = row + query * leaves
    own_row = tl.load(rows + i, mask=ok, other=0)
    start = tl.load(path + at, mask=ok, other=float("-inf"))
    score = start
    stands = (start != float("-inf")).to(tl.int32)
    if PRUNES > 0:
        common = tl.load(shared + own_row, mask=ok, other=0).to(tl.int32)
        leads = tl.load(begins + at, mask=ok, other=0).to(tl.int32)
    if T > 0:
        t = tl.arange(0, BT)
        steps = tl.load(step + (at * T)[:, None] + t[None, :], mask=ok[:, None] & (t < T)[None, :], other=0.0)
        paths = start[:, None] + tl.cumsum(steps.to(tl.float64), 1)
        score = tl.sum(tl.where(t[None, :] == T - 1, paths, 0.0), 1)
    for level in tl.static_range(T):
        if (PRUNES >> level) & 1:
            begin = ok & ((leads != 0) | (common <= depth + level))
            weight = tl.where(begin, stands, 0)
            if tl.sum(weight, 0) > beam:  # fewer nodes stand as they are
                so_far = tl.sum(tl.where(t[None, :] == level, paths, 0.0), 1)
                better = _beaten(so_far, weight, i, i, rows, leaves, False, BC, BJ)
                # Every leaf stands or falls with the first of its node: the latest beginning at or before it.
                verdict = tl.where(begin, 2 * i + (better < beam).to(tl.int32), -1)
                stands = stands & tl.associative_scan(verdict, 0, _later)
    score = tl.where(stands != 0, score, float("-inf"))
    count = tl.where(score == float("-inf"), 0, tl.load(end + at, mask=ok, other=0) - own_row)
    order = tl.where(score == score, score, float("inf"))  # what is not a number comes first
    place = _beaten(order, count, i, own_row, rows, leaves, True, BC, BJ)
    line = out + query * (2 * k + 1)
    for offset in range(tl.minimum(tl.max(count, 0), k)):
        fits = (count > offset) & (place + offset < k)
        tl.store(line + place + offset, (own_row + offset).to(tl.float64), mask=fits)
        tl.store(line + k + place + offset, score, mask=fits)
    found = tl.sum(count, 0)
    for start_k in range(0, k, BK):
        c = start_k + tl.arange(0, BK)
        rest = (c >= found) & (c < k)
        tl.store(line + c, tl.full([BK], -1.0, tl.float64), mask=rest)
        tl.store(line + k + c, tl.full([BK], float("-inf"), tl.float64), mask=rest)
    tl.store(line + 2 * k, tl.load(over + query).to(tl.float64))
