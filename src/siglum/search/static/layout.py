"""Where the cache keeps the tokens of a search, and the constants of a plan for so many queries.

Shapes: Q queries, T tokens of the first pass, S rows a token sees, W live nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from siglum.search.static.beam_ops import LiveNodes
from siglum.search.static.plan import Plan, Shape
from siglum.search.static.trie import DeviceTrie


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """Places of each depth's tokens in the cache: first all that the first pass reads, then a block for every depth.

    In a block the tokens of one query lie together.
    """

    token_QT: Tensor
    """Rows of the embedding table that the first pass reads: the nodes of depth 0 to `merged`; int64."""
    seen_QTS: Tensor
    """Rows of the cache that each of them sees, its own last, -1 for none; int32."""
    start: list[int]
    """First place of every depth, counted for one query; the last entry is the number of places."""
    width: list[int]
    """Places a query has in the block of every depth."""
    query_Q1: Tensor
    """Numbers of the queries, int32."""
    root: LiveNodes
    """The one live node at the start."""

    @classmethod
    def of(cls, trie: DeviceTrie, shape: Shape, token_offset: list[int], plan: Plan, queries: int) -> CacheLayout:
        """Lay out a plan; `token_offset` is where each level's tokens begin in the embedding table."""
        merged, counts = plan.merged, shape.nodes[: plan.merged + 1]
        # A node sees its ancestors and itself; lines end with the node and begin with as many -1 as it is high up.
        place_T = torch.arange(sum(counts), device=trie.device)
        tokens, lines, start = [place_T.new_zeros(1)], [F.pad(place_T[:1, None], (merged, 0), value=-1)], [0]
        for depth in range(1, merged + 1):
            own = trie.generation(depth)
            start.append(start[-1] + counts[depth - 1])
            tokens.append(own.token_C + token_offset[depth - 1])
            place = place_T[start[depth] : start[depth] + counts[depth], None]
            lines.append(torch.cat([lines[-1][own.parent_C, 1:], place], 1))
        start.append(len(place_T))
        width = [len(place_T)] * (merged + 1) + shape.live[merged + 1 :]
        for depth in range(merged + 1, plan.depth):
            start.append(start[-1] + width[depth])
        query_Q1 = torch.arange(queries, dtype=torch.int32, device=trie.device)[:, None]
        line_1TS = torch.cat(lines).int()[None]
        seen_QTS = torch.where(line_1TS < 0, -1, line_1TS + query_Q1[..., None] * len(place_T))
        zero = torch.zeros_like(query_Q1)
        root = LiveNodes(zero, zero + len(trie.rows), zero.double(), zero.long(), query_Q1[..., None] * len(place_T))
        token_QT = torch.cat(tokens).repeat(queries, 1)
        return cls(token_QT, seen_QTS.contiguous(), start, width, query_Q1, root)

    def base(self, depth: int) -> int:
        """Return the row of the cache where the first query's tokens of a depth begin."""
        queries, merged = self.token_QT.shape
        return self.start[depth] * (queries if self.start[depth] >= merged else 1)

    def rows(self, depth: int, place_QW: Tensor | None, width: int) -> Tensor:
        """Return the rows of the cache of a depth's tokens, from their places among its tokens (Q, W), int32."""
        if place_QW is None:
            place_QW = torch.arange(width, dtype=torch.int32, device=self.query_Q1.device)
        return place_QW.int() + (self.query_Q1 * self.width[depth] + self.base(depth))
