"""The geometric part of the score, telescoped: a prefix is worth 2 <q, x̂> - |x̂|^2.

Shapes: R live rows, C candidates, P paths, T levels, D numbers a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

DENSE_SHARE = 16
"""One row by a whole table costs about as much as this part of the table looked up entry by entry."""
CHUNK = 256
"""Pairs looked up at a time: memory for many more would be asked of the system and given back at every call."""


def pairwise(left_RD: Tensor, table_VD: Tensor, row_C: Tensor, place_C: Tensor) -> Tensor:
    """Return <left[row], table[place]> of every pair (C,), by whole products where many pairs are asked for.

    >>> pairwise(torch.eye(2), torch.tensor([[3.0, 4.0]]), torch.tensor([0, 1]), torch.tensor([0, 0]))
    tensor([3., 4.])
    """
    if len(row_C) * DENSE_SHARE > len(left_RD) * len(table_VD):
        return (left_RD @ table_VD.T)[row_C, place_C]
    found = [
        left_RD.index_select(0, row).mul_(table_VD.index_select(0, place)).sum(-1)
        for row, place in zip(row_C.split(CHUNK), place_C.split(CHUNK), strict=True)
    ]
    return torch.cat(found)


class Geometry:
    """Codewords of all levels in one table; levels before `first_geometric` carry none."""

    def __init__(self, codebooks: Sequence[Tensor], first_geometric: int) -> None:
        """Lay the codebooks out one after the other."""
        self.first_geometric = first_geometric
        self.start = [0, *accumulate(len(book) for book in codebooks)]
        self.table_VD = torch.cat([book.detach().float() for book in codebooks])
        self.square_V = self.table_VD.square().sum(-1)

    def gain(self, residual_RD: Tensor, level: int, row_C: Tensor, token_C: Tensor) -> Tensor:
        """Return 2 r.c - c.c of appending tokens to rows with these residuals q - x̂ (C,)."""
        if level < self.first_geometric:
            return residual_RD.new_zeros(len(row_C))
        span = slice(self.start[level], self.start[level + 1])
        product_C = pairwise(residual_RD, self.table_VD[span], row_C, token_C)
        return 2 * product_C - self.square_V[span][token_C]

    def subtract(self, residual_RD: Tensor, level: int, token_R: Tensor) -> Tensor:
        """Return the residuals after appending tokens."""
        return residual_RD - self.table_VD.index_select(0, self.start[level] + token_R)

    def total(self, residual_PD: Tensor, codes_PT: Tensor, level: int) -> Tensor:
        """Return |r|^2 - |r - x|^2, all that the codes of `level` and those after it add (P,)."""
        while level < self.first_geometric and codes_PT.shape[1]:
            residual_PD, codes_PT = self.subtract(residual_PD, level, codes_PT[:, 0]), codes_PT[:, 1:]
            level += 1
        if not codes_PT.shape[1]:
            return residual_PD.new_zeros(len(residual_PD))
        start_T = torch.as_tensor(self.start[level : level + codes_PT.shape[1]], device=codes_PT.device)
        sum_PD = F.embedding_bag(codes_PT + start_T, self.table_VD, mode="sum")
        return ((2 * residual_PD - sum_PD) * sum_PD).sum(-1)

    def gains(self, residual_PD: Tensor, codes_PT: Tensor, level: int) -> Tensor:
        """Return what each of the codes adds in turn (P, T); their sum is `total`."""
        found, pair = [], torch.arange(len(residual_PD), device=residual_PD.device)
        for place, token_P in enumerate(codes_PT.unbind(1)):
            found.append(self.gain(residual_PD, level + place, pair, token_P))
            residual_PD = self.subtract(residual_PD, level + place, token_P)
        return torch.stack(found, 1)
