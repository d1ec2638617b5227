"""The residual quantiser: assignment, partial reconstructions, EMA fit and dead-code revival.

Shapes: N vectors of D numbers; T tokens an item (modality first, where there is one), T = L + 1 or L.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from siglum import dist
from siglum.config import TokenizerConfig
from siglum.tokenize.kmeans import kmeans, nearest
from siglum.tokenize.picks import Picks
from siglum.types import SiglumError, one_of

NUM_MODALITIES = 3
EPSILON = 1e-5
"""Laplace smoothing of EMA counts."""


class ResidualQuantizer(nn.Module):
    """Codebooks of all tokens, shallow to deep.

    `codebooks[t]` is (V_t, D). With a modality token, level 0 is the modality codebook: taken from metadata
    (or learned), its codeword is subtracted before the first residual level and is part of every reconstruction.
    """

    def __init__(self, config: TokenizerConfig, dim: int) -> None:
        super().__init__()
        one_of("tokenizer.update", config.update, ("ema", "grad", "hybrid"))
        one_of("tokenizer.modality", config.modality, ("metadata", "learned", "none"))
        if config.modality == "learned" and not config.modality_vector:
            raise SiglumError("modality learned takes the nearest codeword, so it needs modality_vector; turn that on.")
        self.config = config
        self.dim = dim
        self.sizes: tuple[int, ...] = (() if config.modality == "none" else (NUM_MODALITIES,)) + tuple(config.vocab)
        learn = config.update != "ema"
        self.register_buffer("offset_T", torch.tensor((0, *self.sizes[:-1])).cumsum(0), persistent=False)
        self.offset_T: Tensor
        """Where each level begins when the codes of all are counted in one row."""
        self.codebooks = nn.ParameterList(
            nn.Parameter(torch.zeros(size, dim), requires_grad=learn) for size in self.sizes
        )
        if self.has_modality and not config.modality_vector:
            self.codebooks[0].requires_grad_(False)
        for level, size in enumerate(self.sizes):
            self.register_buffer(f"count_{level}", torch.ones(size))
            self.register_buffer(f"total_{level}", torch.zeros(size, dim))
            self.register_buffer(f"idle_{level}", torch.zeros(size))

    @property
    def has_modality(self) -> bool:
        """Whether the first token is a modality code."""
        return self.config.modality != "none"

    @property
    def first(self) -> int:
        """Position of the first residual level."""
        return int(self.has_modality)

    def _choose(self, residual_ND: Tensor, level: int, modality_N: Tensor | None) -> Tensor:
        if level == 0 and self.config.modality == "metadata":
            if modality_N is None:
                raise SiglumError("this tokenizer takes the modality code from metadata, but no modalities were given.")
            return modality_N.long()
        return nearest(residual_ND, self.codebooks[level])

    def assign(self, vector_ND: Tensor, modality_N: Tensor | None = None) -> tuple[Tensor, list[Tensor]]:
        """Return codes (N, T) by the greedy nearest-codeword rule and the residual before every level, all fp32."""
        residual = vector_ND.float()
        codes, residuals = [], []
        for level, book in enumerate(self.codebooks):
            code = self._choose(residual, level, modality_N)
            codes.append(code)
            residuals.append(residual)
            residual = residual - book[code].detach()
        return torch.stack(codes, 1), residuals

    @torch.no_grad()
    def encode(self, vector_ND: Tensor, modality_N: Tensor | None = None, batch_size: int = 8192) -> Tensor:
        """Return codes (N, T) without gradient."""
        parts = []
        for start in range(0, len(vector_ND), batch_size):
            rows = slice(start, start + batch_size)
            kinds = None if modality_N is None else modality_N[rows]
            beam = self.config.assign_beam
            parts.append(self.assign(vector_ND[rows], kinds)[0] if beam == 1 else self._search(vector_ND[rows], kinds))
        return torch.cat(parts) if parts else torch.zeros(0, len(self.sizes), dtype=torch.long)

    def _search(self, vector_ND: Tensor, modality_N: Tensor | None) -> Tensor:
        """Return the codes (N, T) of the nearest of `assign_beam` reconstructions kept level by level."""
        residual_NBD, codes_NBT = vector_ND.float()[:, None], torch.zeros(len(vector_ND), 1, 0, dtype=torch.long)
        codes_NBT = codes_NBT.to(vector_ND.device)
        for level, book in enumerate(self.codebooks):
            if level < self.first:
                chosen = self._choose(residual_NBD[:, 0], level, modality_N)[:, None]
                parent = torch.zeros_like(chosen)
            else:
                far = residual_NBD.square().sum(-1, keepdim=True) + book.square().sum(-1) - 2 * residual_NBD @ book.T
                width = min(self.config.assign_beam, far[0].numel())
                best = far.flatten(1).topk(width, dim=1, largest=False).indices
                parent, chosen = best // len(book), best % len(book)
            residual_NBD = residual_NBD.gather(1, parent[..., None].expand(-1, -1, self.dim)) - book[chosen]
            codes_NBT = codes_NBT.gather(1, parent[..., None].expand(-1, -1, level))
            codes_NBT = torch.cat([codes_NBT, chosen[..., None]], -1)
        return codes_NBT[:, 0]

    def codewords(self, codes_NT: Tensor) -> Tensor:
        """Return the chosen codewords (N, T, D), with gradient to the codebooks."""
        # Not book[code]: on several threads the gradient of an index is summed in any order.
        levels = zip(codes_NT.unbind(1), self.codebooks, strict=True)
        return torch.stack([F.embedding(code_N, book) for code_N, book in levels], 1)

    def partial_sums(self, codes_NT: Tensor) -> Tensor:
        """Return the partial reconstructions x̂_l of every item (N, T, D)."""
        return self.codewords(codes_NT).cumsum(1)

    def decode(self, codes_NT: Tensor) -> Tensor:
        """Return the full reconstructions x̂ (N, D)."""
        return self.codewords(codes_NT).sum(1)

    @torch.no_grad()
    def initialise(
        self,
        vector_ND: Tensor,
        modality_N: Tensor | None,
        generator: torch.Generator,
        vectors_a_step: int | None = None,
    ) -> None:
        """K-means level by level on the residuals of up to `kmeans_per_code` vectors a codeword.

        EMA counts start where they will settle, at each code's share of the vectors of a step (by default, of all
        vectors given); with less weight the first batches would wash the k-means start away.
        """
        weight = 1.0 if vectors_a_step is None else vectors_a_step / len(vector_ND)
        residual = vector_ND.float()
        for level, size in enumerate(self.sizes):
            book = self.codebooks[level]
            if level == 0 and self.has_modality:
                label = self._initialise_modality(residual, modality_N, generator)
            else:
                wanted = max(size, self.config.kmeans_per_code * size)
                pick = torch.randperm(len(residual), generator=generator)[:wanted].to(residual.device)
                book.copy_(kmeans(residual[pick], size, self.config.kmeans_iters, generator))
                label = nearest(residual, book)
            fair = torch.bincount(label, minlength=size).float()
            self._count(level).copy_(fair.clamp(min=1) * weight)
            self._total(level).copy_(book * self._count(level)[:, None])
            residual = residual - book[label]

    def _initialise_modality(self, vector_ND: Tensor, modality_N: Tensor | None, generator: torch.Generator) -> Tensor:
        book = self.codebooks[0]
        if self.config.modality == "learned":
            book.copy_(kmeans(vector_ND, NUM_MODALITIES, self.config.kmeans_iters, generator))
            return nearest(vector_ND, book)
        label = self._choose(vector_ND, 0, modality_N)
        if self.config.modality_vector:
            count = torch.bincount(label, minlength=NUM_MODALITIES).clamp(min=1)
            book.copy_(torch.zeros_like(book).index_add_(0, label, vector_ND) / count[:, None])
        return label

    def _count(self, level: int) -> Tensor:
        return getattr(self, f"count_{level}")  # type: ignore[no-any-return]

    def _total(self, level: int) -> Tensor:
        return getattr(self, f"total_{level}")  # type: ignore[no-any-return]

    def _idle(self, level: int) -> Tensor:
        return getattr(self, f"idle_{level}")  # type: ignore[no-any-return]

    @torch.no_grad()
    def follow_gradient(self) -> None:
        """After an optimiser step, carry the moved codewords into the EMA state, else the next EMA step undoes it."""
        for level, book in enumerate(self.codebooks):
            if book.requires_grad:
                self._total(level).copy_(book * self._smoothed(level)[:, None])

    def _smoothed(self, level: int) -> Tensor:
        count = self._count(level)
        total = count.sum()
        return (count + EPSILON) / (total + len(count) * EPSILON) * total

    def draw_picks(self, rows: int, steps: int, generator: torch.Generator) -> Picks:
        """Draw what the revivals of so many steps on so many vectors may take."""
        config, sizes = self.config, self.sizes[self.first :]
        # By the fair share, a level of any size loses revive_below codes a vector, beside those that were idle before.
        late = math.ceil(config.revive_below * rows * steps)
        deaths = [size * steps if config.revive_absolute else size + late for size in sizes]
        return Picks(rows, sum(deaths), generator, self.codebooks[0].device)

    @torch.no_grad()
    def fit_step(self, residuals: list[Tensor], codes_NT: Tensor, picks: Picks) -> dict[int, Tensor]:
        """One EMA step on the residuals of this batch, then revive dead codes; return which ones (V,), by level.

        No value leaves the device: whether any code is dead is never asked.
        """
        revived = {}
        place = (codes_NT + self.offset_T).flatten()
        used = residuals[0].new_zeros(sum(self.sizes)).index_add_(0, place, residuals[0].new_ones(len(place)))
        for level, used_V in enumerate(dist.sum_over_processes(used).split(self.sizes)):
            residual_ND, code_N = residuals[level], codes_NT[:, level]
            fixed = level == 0 and self.has_modality and not self.config.modality_vector
            if not fixed and self.config.update != "grad":
                self._ema_step(level, residual_ND, code_N, used_V)
            if level >= self.first and self.config.revive_below > 0:
                revived[level] = self._revive(level, residual_ND, used_V, picks)
        return revived

    def _ema_step(self, level: int, residual_ND: Tensor, code_N: Tensor, used_V: Tensor) -> None:
        decay = self.config.decay
        total = dist.sum_over_processes(torch.zeros_like(self._total(level)).index_add_(0, code_N, residual_ND))
        self._count(level).mul_(decay).add_(used_V, alpha=1 - decay)
        self._total(level).mul_(decay).add_(total, alpha=1 - decay)
        self.codebooks[level].copy_(self._total(level) / self._smoothed(level)[:, None])

    def _revive(self, level: int, residual_ND: Tensor, used_V: Tensor, picks: Picks) -> Tensor:
        """Replace dead codes by random residuals of the batch, reset their EMA state and return which they were (V,).

        A code is dead if it was not chosen once while its fair share came to 1 / revive_below choices. The rule
        counts vectors, not steps, so a small batch does not make living codes look dead. With `revive_absolute`
        a code is dead below that EMA count a step, as in GENIUS.
        """
        count, total, idle = self._count(level), self._total(level), self._idle(level)
        idle.add_(used_V.sum() / len(used_V)).masked_fill_(used_V > 0, 0.0)
        below = self.config.revive_below
        dead_V = count < below if self.config.revive_absolute else idle > 1 / below
        fresh_VD = dist.gather(residual_ND.contiguous())[picks.take(dead_V)]
        fair = count.mean().clamp(min=EPSILON)
        book = self.codebooks[level]
        book.copy_(torch.where(dead_V[:, None], fresh_VD, book))
        count.copy_(torch.where(dead_V, fair, count))
        total.copy_(torch.where(dead_V[:, None], fresh_VD * fair, total))
        idle.masked_fill_(dead_V, 0.0)
        return dead_V
