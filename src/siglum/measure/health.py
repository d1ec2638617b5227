"""Health of a tokenizer: usage, entropy, collisions, reconstruction error.

Shapes: N items, T tokens, D numbers a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from siglum.tokenize.base import Quantiser


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
    error: float | None
    """Mean squared distance to the items left after this level; None where prefixes have no vectors."""


@dataclass(frozen=True, slots=True)
class Health:
    """How well a tokenizer tells a set of items apart."""

    items: int
    distinct: int
    """Distinct code sequences."""
    collision_rate: float
    """Share of items whose codes are not theirs alone."""
    largest_collision: int
    reconstruction: float | None
    """Mean squared distance between items and their full reconstructions, if there are any."""
    levels: list[LevelHealth]

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


def tokenizer_health(quantizer: Quantiser, vector_ND: Tensor, codes_NT: Tensor) -> Health:
    """Measure a quantiser on items and their codes."""
    return codes_health(codes_NT, quantizer.sizes, quantizer.books(), vector_ND)


@torch.no_grad()
def codes_health(codes_NT: Tensor, sizes: Sequence[int], codebooks: Sequence[Tensor], vector_ND: Tensor) -> Health:
    """Measure items' codes; without codebooks all but what distances tell."""
    residual = vector_ND.float()
    levels = []
    for level, size in enumerate(sizes):
        error = None
        if codebooks:
            residual = residual - codebooks[level][codes_NT[:, level]]
            error = float(residual.square().sum(-1).mean())
        count = torch.bincount(codes_NT[:, level], minlength=size).double()
        share = count[count > 0] / count.sum()
        entropy = max(0.0, float(-(share * share.log2()).sum()))
        used = int((count > 0).sum())
        levels.append(LevelHealth(size, used / size, entropy, size - used, error))
    _, group = np.unique(codes_NT.cpu().numpy(), axis=0, return_counts=True)
    shared = int(group[group > 1].sum())
    return Health(len(codes_NT), len(group), shared / len(codes_NT), int(group.max()), levels[-1].error, levels)
