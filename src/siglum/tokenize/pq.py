"""Product quantisation: the space is cut into orthogonal sub-spaces, and every token codes one of them by itself.

The axes are the principal ones of the vectors, those of the largest variance first, and a sub-space takes as large a
share of all variance as its token has of all bits. A codeword is kept as a vector of the whole space, zero outside its
sub-space; sums of codewords are then reconstructions, as for residual codes, and so is all geometry.
Shapes: N vectors of D numbers, L sub-spaces with V codewords and W axes each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from siglum.config import TokenizerConfig
from siglum.tokenize.base import Quantiser
from siglum.tokenize.kmeans import nearest
from siglum.types import SiglumError


class ProductQuantizer(Quantiser):
    """K-means in every sub-space.

    The nearest codewords of all sub-spaces are the nearest reconstruction, so `assign_beam` has nothing to better.
    """

    def __init__(self, config: TokenizerConfig, dim: int) -> None:
        super().__init__(config, dim)
        if config.levels > dim:
            raise SiglumError(
                f"product quantisation cuts a space of {dim} numbers into at most {dim} sub-spaces, not"
                f" {config.levels}; choose fewer levels (tokenizer.vocab) or a larger fusion.dim."
            )
        self.register_buffer("axes_DD", torch.eye(dim))
        self.axes_DD: Tensor
        """Orthonormal axes, one a column, those of the largest variance first."""
        self.register_buffer("width_L", torch.ones(config.levels, dtype=torch.long))
        self.width_L: Tensor
        """How many of them every sub-space has."""
        self.width_L[-1] = dim - config.levels + 1

    def bases(self) -> list[Tensor]:
        """Return the axes of every sub-space (D, W)."""
        return list(self.axes_DD.split(self.width_L.tolist(), dim=1))

    @torch.no_grad()
    def fit(self, vector_ND: Tensor, modality_N: Tensor | None, generator: torch.Generator) -> None:
        """Turn the axes to the principal ones, then find the codewords of every sub-space."""
        rest_ND = vector_ND.float()
        if self.has_modality:
            rest_ND = rest_ND - self.codebooks[0][self.fit_modality(rest_ND, modality_N, generator)]
        apart_ND = (rest_ND - rest_ND.mean(0)).double()
        variance_D, axes_DD = torch.linalg.eigh(apart_ND.T @ apart_ND)
        self.axes_DD.copy_(axes_DD.flip(1))
        self.width_L.copy_(torch.tensor(share_axes(variance_D.flip(0).tolist(), self.config.vocab)))
        for level, basis_DW in enumerate(self.bases(), self.first_residual):
            centroid_VW = self.fit_codebook(rest_ND @ basis_DW, self.sizes[level], generator)
            self.codebooks[level].copy_(centroid_VW @ basis_DW.T)

    def codes_of(self, vector_ND: Tensor, modality_N: Tensor | None) -> Tensor:
        """Return the nearest codeword of every sub-space (N, T)."""
        rest_ND, codes = vector_ND.float(), []
        if self.has_modality:
            codes.append(self.modality_codes(rest_ND, modality_N))
            rest_ND = rest_ND - self.codebooks[0][codes[0]]
        for book_VD, basis_DW in zip(list(self.codebooks)[self.first_residual :], self.bases(), strict=True):
            codes.append(nearest(rest_ND @ basis_DW, book_VD @ basis_DW))
        return torch.stack(codes, 1)


def share_axes(variance_D: Sequence[float], vocab: Sequence[int]) -> list[int]:
    """Return how many axes every sub-space takes, one at least, so that its variance goes by its token's bits.

    >>> share_axes([4.0, 4.0, 2.0, 2.0, 2.0, 2.0], (256, 256))
    [2, 4]
    """
    bits, total = [math.log2(size) for size in vocab], sum(variance_D)
    widths, axis, seen = [], 0, 0.0
    for level in range(len(vocab) - 1):
        most, width = len(variance_D) - axis - (len(vocab) - 1 - level), 0
        while width == 0 or (width < most and seen < total * sum(bits[: level + 1]) / sum(bits)):
            seen += variance_D[axis + width]
            width += 1
        widths.append(width)
        axis += width
    return [*widths, len(variance_D) - axis]
