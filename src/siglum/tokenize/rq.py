"""The residual quantiser: assignment, partial reconstructions, EMA fit and dead-code revival.

Shapes: N vectors of D numbers; T tokens an item (modality first, where there is one), T = L + 1 or L.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from siglum import dist
from siglum.config import TokenizerConfig
from siglum.tokenize.kmeans import kmeans, nearest
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
        return torch.stack([book[codes_NT[:, level]] for level, book in enumerate(self.codebooks)], 1)

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

    @torch.no_grad()
    def fit_step(
        self, residuals: list[Tensor], codes_NT: Tensor, generator: torch.Generator
    ) -> list[tuple[int, Tensor]]:
        """One EMA step on the residuals of this batch, then revive dead codes; return (level, revived codes)."""
        revived = []
        for level in range(len(self.sizes)):
            fixed = level == 0 and self.has_modality and not self.config.modality_vector
            if not fixed and self.config.update != "grad":
                self._ema_step(level, residuals[level], codes_NT[:, level])
            if level >= self.first and self.config.revive_below > 0:
                dead = self._revive(level, residuals[level], codes_NT[:, level], generator)
                if len(dead):
                    revived.append((level, dead))
        return revived

    def _ema_step(self, level: int, residual_ND: Tensor, code_N: Tensor) -> None:
        size, decay = self.sizes[level], self.config.decay
        count = dist.sum_over_processes(torch.bincount(code_N, minlength=size).float())
        total = dist.sum_over_processes(torch.zeros_like(self._total(level)).index_add_(0, code_N, residual_ND))
        self._count(level).mul_(decay).add_(count, alpha=1 - decay)
        self._total(level).mul_(decay).add_(total, alpha=1 - decay)
        self.codebooks[level].copy_(self._total(level) / self._smoothed(level)[:, None])

    def _revive(self, level: int, residual_ND: Tensor, code_N: Tensor, generator: torch.Generator) -> Tensor:
        """Replace dead codes by random residuals of the batch and reset their EMA state.

        A code is dead if it was not chosen once while its fair share came to 1 / revive_below choices. The rule
        counts vectors, not steps, so a small batch does not make living codes look dead. With `revive_absolute`
        a code is dead below that EMA count a step, as in GENIUS.
        """
        size = self.sizes[level]
        used = dist.sum_over_processes(torch.bincount(code_N, minlength=size).float())
        idle = self._idle(level)
        idle.add_(used.sum() / size).masked_fill_(used > 0, 0.0)
        if self.config.revive_absolute:
            dead = torch.nonzero(self._count(level) < self.config.revive_below)[:, 0]
        else:
            dead = torch.nonzero(idle > 1 / self.config.revive_below)[:, 0]
        if len(dead) == 0:
            return dead
        pool = dist.gather(residual_ND.contiguous())
        pick = torch.randint(len(pool), (len(dead),), generator=generator).to(pool.device)
        fair = self._count(level).mean().clamp(min=EPSILON)
        self.codebooks[level][dead] = pool[pick]
        self._count(level)[dead] = fair
        self._total(level)[dead] = pool[pick] * fair
        idle[dead] = 0.0
        return dead
