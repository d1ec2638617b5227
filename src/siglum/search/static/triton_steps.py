# ruff: noqa: ANN001
# mypy: disable-error-code="misc, untyped-decorator, no-untyped-def, no-untyped-call"
"""Triton kernels of one level of a beam: score all children of live nodes, and keep the best as the next beam.

Together they do what `Steps.grow` does with some thirty operations.
Shapes: Q queries, W live nodes, C candidates, S rows a node sees, V codes of a level, N rows of the trie, B branches.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from siglum.search.static.beam_ops import GeometryTables, LiveNodes
from siglum.search.static.trie import DeviceTrie, TrieDepth
from siglum.search.static.triton_kernels import compiled, tl, triton

ALL, ONLY, SOME = 0, 1, 2
"""Which children a level has: all nodes of the next depth, one of every live node, or those that branches tell."""
KEEP, COUNT, LIST = 0, 1, 2
"""How children are chosen: all in their order, by counting how many beat each, or from a list of places."""
COUNTED = 2**26
"""The most comparisons by which counting chooses children; a list is cheaper above."""
COUNTED_ALONE = 2**14
"""Up to how many children in all programs take few of them each, so that all parts of the GPU have some."""
TILE = 2_048
"""How many pairs of a child and a live node one program holds at once."""


class Scored(NamedTuple):
    """Children of live nodes with the scores of their paths."""

    owner_QC: Tensor
    """The live node above, int32."""
    token_QC: Tensor
    """The code that leads to the child, int32."""
    lo_QC: Tensor
    """First row, int32."""
    hi_QC: Tensor
    """End of the rows, int32."""
    path_QC: Tensor
    """Score, float64; minus infinity where there is no child."""


def score_children(
    trie: DeviceTrie,
    beams: LiveNodes,
    level: int,
    slots: int,
    log_QWV: Tensor,
    geometry: GeometryTables | None,
    dot_QV: Tensor | None,
    every: TrieDepth | None,
) -> Scored:
    """Return the children of live nodes at a level; `every` lists them where all nodes of the depth are live.

    Beams that know no counts have one child a node.
    """
    (queries, width), place = beams.lo_QW.shape, trie.places[level]
    whole = [torch.empty(queries, slots, dtype=torch.int32, device=log_QWV.device) for _ in range(4)]
    path = torch.empty(queries, slots, dtype=torch.float64, device=log_QWV.device)
    kind = ALL if every is not None else ONLY if beams.count_QW is None else SOME
    lists = (path,) * 4 if every is None else (every.parent_C, every.token_C, every.lo_C, every.hi_C)
    counts = (path, path) if kind != SOME else (beams.first_QW, beams.count_QW)
    weighs = geometry is not None and dot_QV is not None and level >= geometry.first_geometric
    tables, numbers = (path, path), (0, 0, 0.0)
    if weighs:
        assert geometry is not None and dot_QV is not None
        tables = (dot_QV, geometry.length_LN[level - geometry.first_geometric])
        numbers = (dot_QV.shape[1], geometry.start[level], geometry.omega)
    lanes = triton.next_power_of_2(width)
    block = max(8, min(128, TILE // lanes)) if kind == SOME else 128
    _score_children[(queries, triton.cdiv(slots, block))](
        beams.lo_QW, beams.hi_QW, beams.path_QW, *counts, *lists, trie.branches[level], trie.words_NG, log_QWV, *tables,
        *whole, path, width, slots, log_QWV.shape[2], trie.words_NG.shape[1], place.word, place.shift, place.mask,
        *numbers, KIND=kind, WEIGHS=weighs, BC=block, BW=lanes,
    )  # fmt: skip
    owner, token, lo, hi = whole
    return Scored(owner, token, lo, hi, path)


def keep_best(
    found: Scored,
    beams: LiveNodes,
    width: int,
    own: tuple[int, int, bool],
    token_offset: int,
    below: tuple[Tensor, int] | None,
) -> LiveNodes:
    """Return the `width` best children as the next live nodes.

    `own` says where the cache keeps them: the first query's first row, rows a query, and whether places count among
    all children (those of the first pass) or among those that are kept. `token_offset` is where the level's tokens
    begin in the table. `below` is the sorted list to look for what lies below each node in, and what to add to the
    number of its entries inside the node.
    """
    (queries, slots), seen, old = found.path_QC.shape, beams.line_QWS.shape[2], beams.lo_QW.shape[1]
    device = found.path_QC.device
    how = KEEP if slots <= width else COUNT if queries * slots * slots <= COUNTED else LIST
    places = found.path_QC.float().topk(width, dim=1, sorted=False).indices if how == LIST else found.owner_QC
    width = min(width, slots)
    whole = [torch.empty(queries, width, dtype=torch.int32, device=device) for _ in range(5)]
    path = torch.empty(queries, width, dtype=torch.float64, device=device)
    line = torch.empty(queries, width, seen + 1, dtype=torch.int32, device=device)
    table, extra = below if below is not None else (found.owner_QC, 0)
    base, apart, tree = own
    block = 8 if queries * slots <= COUNTED_ALONE else 32
    _keep_best[(queries, triton.cdiv(width if how == LIST else slots, block))](
        *found, places, beams.line_QWS, table, *whole, path, line, slots, width, old, seen, base, apart, token_offset,
        len(table), extra, HOW=how, TREE=tree, SEARCH=below is not None, STEPS=len(table).bit_length(),
        BC=block, BJ=4_096 // block, BS=triton.next_power_of_2(seen + 1),
    )  # fmt: skip
    lo, hi, token, begin, count = whole
    return LiveNodes(lo, hi, path, token, line, *(() if below is None else (begin, count)))


@compiled
def spread(count, at, width, slot, BW: tl.constexpr) -> Any:
    """Lay runs end to end: owner of every slot, place in its run, and the length of all runs, as `step.spread` does."""
    w = tl.arange(0, BW)
    own = tl.load(count + at + w, mask=w < width, other=0)
    end = tl.cumsum(own, 0)
    over = end[None, :] <= slot[:, None]
    owner = tl.minimum(tl.sum(over.to(tl.int32), 1), width - 1)
    offset = slot - tl.sum(tl.where(over, own[None, :], 0), 1)
    return owner, offset, tl.sum(own, 0)


@compiled
def count_below(table, size, low, high, ok, STEPS: tl.constexpr) -> Any:
    """Return how many entries of a sorted table are below each low and high; 2^STEPS must exceed its size.

    Both at once, as a step waits for what it loads.
    """
    below_low, below_high = low * 0, high * 0
    for step in range(STEPS):
        stride = (1 << STEPS) >> (step + 1)
        fits_low, fits_high = ok & (below_low + stride <= size), ok & (below_high + stride <= size)
        entry_low = tl.load(table + below_low + stride - 1, mask=fits_low, other=0)
        entry_high = tl.load(table + below_high + stride - 1, mask=fits_high, other=0)
        below_low = tl.where(fits_low & (entry_low < low), below_low + stride, below_low)
        below_high = tl.where(fits_high & (entry_high < high), below_high + stride, below_high)
    return below_low, below_high


@compiled
def _score_children(
    lo, hi, path, first, count, parents, tokens, los, his, branches, words, log, dot, length,
    owner_out, token_out, lo_out, hi_out, path_out, width, slots, size, words_per_row, word, shift, code_mask,
    dots, dot_at, omega, KIND: tl.constexpr, WEIGHS: tl.constexpr, BC: tl.constexpr, BW: tl.constexpr,
) -> None:  # fmt: skip
    query = tl.program_id(0).to(tl.int64)
    slot = tl.program_id(1) * BC + tl.arange(0, BC)
    used = slot < slots
    if KIND == 0:
        owner = tl.load(parents + slot, mask=used, other=0).to(tl.int32)
        token = tl.load(tokens + slot, mask=used, other=0).to(tl.int32)
        low = tl.load(los + slot, mask=used, other=0)
        high = tl.load(his + slot, mask=used, other=0)
    else:
        if KIND == 1:
            owner = slot
            low = tl.load(lo + query * width + owner, mask=used, other=0)
            high = tl.load(hi + query * width + owner, mask=used, other=0)
        else:
            owner, offset, total = spread(count, query * width, width, slot, BW)
            used = used & (slot < total)
            node = query * width + owner
            place = tl.load(first + node, mask=used, other=0) + offset
            last = offset + 1 >= tl.load(count + node, mask=used, other=0)
            # A node's first child begins where it does, and its last ends where it does.
            low = tl.load(lo + node, mask=used, other=0)
            high = tl.load(hi + node, mask=used, other=0)
            low = tl.where(offset == 0, low, tl.load(branches + place - 1, mask=used & (offset > 0), other=0))
            high = tl.where(last, high, tl.load(branches + place, mask=used & (offset >= 0) & (last == 0), other=0))
            low = tl.where(used, low, 0)
        packed = tl.load(words + low.to(tl.int64) * words_per_row + word, mask=used, other=0)
        token = (packed >> shift) & code_mask
    node = query * width + owner
    value = tl.load(log + node * size + token, mask=used, other=0.0)
    if WEIGHS:
        value += tl.load(dot + query * dots + dot_at + token, mask=used, other=0.0)
        value -= omega * tl.load(length + low, mask=used, other=0.0)
    score = tl.load(path + node, mask=used, other=float("-inf")) + value.to(tl.float64)
    at, ok = query * slots + slot, slot < slots
    tl.store(owner_out + at, owner, mask=ok)
    tl.store(token_out + at, token, mask=ok)
    tl.store(lo_out + at, low, mask=ok)
    tl.store(hi_out + at, high, mask=ok)
    tl.store(path_out + at, score, mask=ok)


@compiled
def _keep_best(
    owner, token, lo, hi, path, places, line, table, lo_out, hi_out, token_out, first_out, count_out, path_out,
    line_out, slots, width, old, seen, base, apart, token_offset, entries, extra,
    HOW: tl.constexpr, TREE: tl.constexpr, SEARCH: tl.constexpr, STEPS: tl.constexpr,
    BC: tl.constexpr, BJ: tl.constexpr, BS: tl.constexpr,
) -> None:  # fmt: skip
    query = tl.program_id(0).to(tl.int64)
    slot = tl.program_id(1) * BC + tl.arange(0, BC)
    place = slot
    kept = slot < slots
    if HOW == 1:
        # What is not a number counts as best, so that every slot has a place of its own and the caller hears of it.
        own = tl.load(path + query * slots + slot, mask=kept, other=float("-inf"))
        own = tl.where(own == own, own, float("inf"))
        place = slot * 0
        for at in range(0, slots, BJ):
            j = at + tl.arange(0, BJ)
            other = tl.load(path + query * slots + j, mask=j < slots, other=float("-inf"))
            other = tl.where(other == other, other, float("inf"))
            ahead = (other[None, :] == own[:, None]) & (j[None, :] < slot[:, None])
            place += tl.sum(((other[None, :] > own[:, None]) | ahead).to(tl.int32), 1)
        kept = kept & (place < width)
    if HOW == 2:
        kept = place < width
        slot = tl.load(places + query * width + place, mask=kept, other=0).to(tl.int32)
    source, target = query * slots + slot, query * width + place
    above = tl.load(owner + source, mask=kept, other=0)
    low = tl.load(lo + source, mask=kept, other=0)
    high = tl.load(hi + source, mask=kept, other=0)
    score = tl.load(path + source, mask=kept, other=float("-inf"))
    tl.store(lo_out + target, low, mask=kept)
    tl.store(hi_out + target, high, mask=kept)
    tl.store(path_out + target, score, mask=kept)
    tl.store(token_out + target, tl.load(token + source, mask=kept, other=0) + token_offset, mask=kept)
    s = tl.arange(0, BS)
    past = line + ((query * old + above) * seen)[:, None] + s[None, :]
    past = tl.load(past, mask=kept[:, None] & (s < seen)[None, :], other=0)
    row = query.to(tl.int32) * apart + base
    row = row + slot if TREE else row + place
    rows = tl.where(s[None, :] == seen, row[:, None], past)
    tl.store(line_out + (target * (seen + 1))[:, None] + s[None, :], rows, mask=kept[:, None] & (s <= seen)[None, :])
    if SEARCH:
        begin, end = count_below(table, entries, low, high, kept, STEPS)
        tl.store(first_out + target, begin, mask=kept)
        tl.store(count_out + target, tl.where(score == float("-inf"), 0, end - begin + extra), mask=kept)
