"""Health of a tokenizer: usage, entropy, collisions, reconstruction error.

Shapes: N items, T tokens, D numbers a vector.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from siglum.tokenize.rq import ResidualQuantizer


@dataclass(frozen=True, slots=True)
class LevelHealth:
    """How one level's codebook is used by a set of items."""

    size: int
    usage: float
    """Share of codewords used at least once."""
    entropy: float
    """Entropy of the use, in bits; at most log2(size)."""
    dead: int
    """Codewords never used."""
    error: float
    """Mean squared distance to the items left after this level."""


@dataclass(frozen=True, slots=True)
class Health:
    """How well a tokenizer tells a set of items apart."""

    items: int
    distinct: int
    """Distinct code sequences."""
    collision_rate: float
    """Share of items whose codes are not theirs alone."""
    largest_collision: int
    reconstruction: float
    """Mean squared distance between items and their full reconstructions."""
    levels: list[LevelHealth]

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


@torch.no_grad()
def tokenizer_health(quantizer: ResidualQuantizer, vector_ND: Tensor, codes_NT: Tensor) -> Health:
    """Measure a quantiser on items and their codes."""
    residual = vector_ND.float()
    levels = []
    for level, book in enumerate(quantizer.codebooks):
        residual = residual - book[codes_NT[:, level]]
        count = torch.bincount(codes_NT[:, level], minlength=len(book)).double()
        share = count[count > 0] / count.sum()
        entropy = max(0.0, float(-(share * share.log2()).sum()))
        used = int((count > 0).sum())
        levels.append(
            LevelHealth(len(book), used / len(book), entropy, len(book) - used, float(residual.square().sum(-1).mean()))
        )
    _, group = np.unique(codes_NT.cpu().numpy(), axis=0, return_counts=True)
    shared = int(group[group > 1].sum())
    return Health(len(codes_NT), len(group), shared / len(codes_NT), int(group.max()), levels[-1].error, levels)
