"""The residual quantiser: assignment, EMA fit and dead-code revival.

Random rows for codes that die are drawn ahead: how many are needed is known on the device alone.
Shapes: N vectors of D numbers; T tokens an item (modality first, where there is one), T = L + 1 or L; V codes of a
level; M rows drawn.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from siglum import dist
from siglum.config import TokenizerConfig
from siglum.tokenize.base import Quantiser
from siglum.tokenize.kmeans import nearest
from siglum.types import one_of

EPSILON = 1e-5
"""Laplace smoothing of EMA counts."""
MOST = 1 << 22
"""Rows drawn at most; when they are used up, they are used again, each on another batch."""


class RevivalRows:
    """A stream of random rows of a batch, on the device; every dead code takes the next one.

    >>> picks = RevivalRows(10, 3, torch.Generator().manual_seed(0))
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


class ResidualQuantizer(Quantiser):
    """Every level codes what the levels before it left of a vector; `fit` is where training by gradient begins."""

    trains = True

    def __init__(self, config: TokenizerConfig, dim: int) -> None:
        super().__init__(config, dim)
        one_of("tokenizer.update", config.update, ("ema", "grad", "hybrid"))
        self.register_buffer("offset_T", torch.tensor((0, *self.own_sizes[:-1])).cumsum(0), persistent=False)
        self.offset_T: Tensor
        """Where each level begins when the codes of all are counted in one row."""
        for level, book in enumerate(self.codebooks):
            fixed = level == 0 and self.has_modality and not config.modality_vector
            book.requires_grad_(config.update != "ema" and not fixed)
        for level, size in enumerate(self.own_sizes):
            self.register_buffer(f"count_{level}", torch.ones(size))
            self.register_buffer(f"total_{level}", torch.zeros(size, dim))
            self.register_buffer(f"idle_{level}", torch.zeros(size))

    def weights(self) -> dict[str, Tensor]:
        """Return the codewords; what the EMA counts decides no code."""
        return self.codebooks.state_dict()

    def _choose(self, residual_ND: Tensor, level: int, modality_N: Tensor | None) -> Tensor:
        if level < self.first_residual:
            return self.modality_codes(residual_ND, modality_N)
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

    def codes_of(self, vector_ND: Tensor, modality_N: Tensor | None) -> Tensor:
        """Return codes (N, T) by the greedy rule, or by a beam of `assign_beam`."""
        if self.config.assign_beam == 1:
            return self.assign(vector_ND, modality_N)[0]
        return self._search(vector_ND, modality_N)

    def _search(self, vector_ND: Tensor, modality_N: Tensor | None) -> Tensor:
        """Return the codes (N, T) of the nearest of `assign_beam` reconstructions kept level by level."""
        residual_NBD, codes_NBT = vector_ND.float()[:, None], torch.zeros(len(vector_ND), 1, 0, dtype=torch.long)
        codes_NBT = codes_NBT.to(vector_ND.device)
        for level, book in enumerate(self.codebooks):
            if level < self.first_residual:
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

    @torch.no_grad()
    def fit(
        self,
        vector_ND: Tensor,
        modality_N: Tensor | None,
        generator: torch.Generator,
        vectors_per_step: int | None = None,
    ) -> None:
        """K-means level by level on the residuals of up to `kmeans_per_code` vectors a codeword.

        EMA counts start where they will settle, at each code's share of the vectors of a step (by default, of all
        vectors given); with less weight the first batches would wash the k-means start away.
        """
        weight = 1.0 if vectors_per_step is None else vectors_per_step / len(vector_ND)
        residual = vector_ND.float()
        for level, size in enumerate(self.own_sizes):
            book = self.codebooks[level]
            if level < self.first_residual:
                label = self.fit_modality(residual, modality_N, generator)
            else:
                book.copy_(self.fit_codebook(residual, size, generator))
                label = nearest(residual, book)
            fair = torch.bincount(label, minlength=size).float()
            self._kept("count", level).copy_(fair.clamp(min=1) * weight)
            self._kept("total", level).copy_(book * self._kept("count", level)[:, None])
            residual = residual - book[label]

    def _kept(self, part: str, level: int) -> Tensor:
        """Return what the EMA keeps of a level: its count, total or idle."""
        return self.get_buffer(f"{part}_{level}")

    @torch.no_grad()
    def follow_gradient(self) -> None:
        """After an optimiser step, carry the moved codewords into the EMA state, else the next EMA step undoes it."""
        for level, book in enumerate(self.codebooks):
            if book.requires_grad:
                self._kept("total", level).copy_(book * self._smoothed(level)[:, None])

    def _smoothed(self, level: int) -> Tensor:
        count = self._kept("count", level)
        total = count.sum()
        return (count + EPSILON) / (total + len(count) * EPSILON) * total

    def draw_revival_rows(self, rows: int, steps: int, generator: torch.Generator) -> RevivalRows:
        """Draw what the revivals of so many steps on so many vectors may take."""
        config, sizes = self.config, self.own_sizes[self.first_residual :]
        # By the fair share, a level of any size loses revive_below codes a vector, beside those that were idle before.
        late = math.ceil(config.revive_below * rows * steps)
        deaths = [size * steps if config.revive_absolute else size + late for size in sizes]
        return RevivalRows(rows, sum(deaths), generator, self.codebooks[0].device)

    @torch.no_grad()
    def fit_step(self, residuals: list[Tensor], codes_NT: Tensor, revival_rows: RevivalRows) -> dict[int, Tensor]:
        """One EMA step on the residuals of this batch, then revive dead codes; return which ones (V,), by level.

        No value leaves the device: whether any code is dead is never asked.
        """
        revived = {}
        place = (codes_NT + self.offset_T).flatten()
        used = residuals[0].new_zeros(sum(self.own_sizes)).index_add_(0, place, residuals[0].new_ones(len(place)))
        for level, used_V in enumerate(dist.sum_over_processes(used).split(self.own_sizes)):
            residual_ND, code_N = residuals[level], codes_NT[:, level]
            fixed = level == 0 and self.has_modality and not self.config.modality_vector
            if not fixed and self.config.update != "grad":
                self._ema_step(level, residual_ND, code_N, used_V)
            if level >= self.first_residual and self.config.revive_below > 0:
                revived[level] = self._revive(level, residual_ND, used_V, revival_rows)
        return revived

    def _ema_step(self, level: int, residual_ND: Tensor, code_N: Tensor, used_V: Tensor) -> None:
        decay = self.config.decay
        total = dist.sum_over_processes(torch.zeros_like(self._kept("total", level)).index_add_(0, code_N, residual_ND))
        self._kept("count", level).mul_(decay).add_(used_V, alpha=1 - decay)
        self._kept("total", level).mul_(decay).add_(total, alpha=1 - decay)
        self.codebooks[level].copy_(self._kept("total", level) / self._smoothed(level)[:, None])

    def _revive(self, level: int, residual_ND: Tensor, used_V: Tensor, revival_rows: RevivalRows) -> Tensor:
        """Replace dead codes by random residuals of the batch, reset their EMA state and return which they were (V,).

        A code is dead if it was not chosen once while its fair share came to 1 / revive_below choices. The rule
        counts vectors, not steps, so a small batch does not make living codes look dead. With `revive_absolute`
        a code is dead below that EMA count a step, as in GENIUS.
        """
        count, total, idle = self._kept("count", level), self._kept("total", level), self._kept("idle", level)
        idle.add_(used_V.sum() / len(used_V)).masked_fill_(used_V > 0, 0.0)
        below = self.config.revive_below
        dead_V = count < below if self.config.revive_absolute else idle > 1 / below
        fresh_VD = dist.gather(residual_ND.contiguous())[revival_rows.take(dead_V)]
        fair = count.mean().clamp(min=EPSILON)
        book = self.codebooks[level]
        book.copy_(torch.where(dead_V[:, None], fresh_VD, book))
        count.copy_(torch.where(dead_V, fair, count))
        total.copy_(torch.where(dead_V[:, None], fresh_VD * fair, total))
        idle.masked_fill_(dead_V, 0.0)
        return dead_V
