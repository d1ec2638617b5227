"""Random rows for codes that die, drawn ahead: how many are needed is known on the device alone.

Shapes: V codes of a level, M rows drawn.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOST = 1 << 22
"""Rows drawn at most; when they are used up, they are used again, each on another batch."""


class Picks:
    """A stream of random rows of a batch, on the device; every dead code takes the next one.

    >>> picks = Picks(10, 3, torch.Generator().manual_seed(0))
    >>> dead = torch.tensor([False, True, True])
    >>> torch.equal(picks.take(dead)[dead], picks.row_M[:2]), picks.taken.item()
    (True, 2)
    """

    def __init__(self, rows: int, number: int, generator: torch.Generator, device: str | torch.device = "cpu") -> None:
        """Draw `number` of the rows 0 to `rows` - 1, with repeats."""
        self.row_M = torch.randint(rows, (max(1, min(number, MOST)),), generator=generator).to(device)
        self.taken = torch.zeros((), dtype=torch.long, device=device)
        """How many have been taken: how many codes died."""

    def take(self, dead_V: Tensor) -> Tensor:
        """Return a row for every code (V,); those at dead codes are new, in the order of the codes."""
        number_V = self.taken + dead_V.cumsum(0)
        self.taken = number_V[-1]
        return self.row_M[(number_V - 1) % len(self.row_M)]
