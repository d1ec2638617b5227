"""RQ-VAE, TIGER's item tokenizer: an MLP makes vectors short, residual codes say the short ones, an MLP undoes it.

A sum of short codewords is no vector of the items' space, so that every code also has a codeword there: the mean of
what the codes before it left of the items that have it. Partial sums, distances and score fusion work on those.
Shapes: N vectors of D numbers, P of them a step, Z short numbers, V codes of a level, T tokens.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from siglum.config import TokenizerConfig
from siglum.cuda_graph_step import GraphedStep
from siglum.loop import adam, batches, cosine_lr, num_batches, set_lr
from siglum.tokenize.base import Quantiser
from siglum.tokenize.kmeans import nearest

COMMITMENT = 0.25
"""Weight of what pulls short vectors to their codewords, as in VQ-VAE."""
START = 1 << 14
"""Vectors that the short codewords begin with, by k-means, at most."""


class RqVae(Quantiser):
    """Residual codes of what an autoencoder makes of a vector, both trained together when it is fitted."""

    def __init__(self, config: TokenizerConfig, dim: int) -> None:
        super().__init__(config, dim)
        sizes = (dim, *config.widths, config.latent)
        self.encoder, self.decoder = _mlp(sizes), _mlp(sizes[::-1])
        own = self.own_sizes[self.first_residual :]
        self.short = nn.ParameterList(nn.Parameter(torch.zeros(size, config.latent)) for size in own)
        self.register_buffer("shift_D", torch.zeros(dim))
        self.register_buffer("scale_D", torch.ones(dim))
        self.shift_D: Tensor
        self.scale_D: Tensor

    def fit(self, vector_ND: Tensor, modality_N: Tensor | None, generator: torch.Generator) -> None:
        """Train the autoencoder with its short codewords, then make the codewords of the items' space."""
        self.requires_grad_(True)
        self.codebooks.requires_grad_(False)
        self._begin(vector_ND.float(), generator)
        config, steps = self.config, num_batches(len(vector_ND), self.config.batch_size)
        optimiser, graphed = adam([(self, 1.0, config.weight_decay)]), GraphedStep[Tensor](vector_ND.device)
        scaled_ND = self._scaled(vector_ND)

        def learn(rows: Tensor) -> Tensor:
            return self._learn(scaled_ND[rows], optimiser)

        for epoch in range(config.epochs):
            work = batches(len(vector_ND), config.batch_size, generator, vector_ND.device)
            for step, rows in enumerate(work, epoch * steps):
                set_lr(optimiser, cosine_lr(config.lr, 0.1, config.warmup, step, config.epochs * steps))
                graphed(learn, rows, optimiser)
            if epoch < config.epochs // 2:
                self._revive(scaled_ND, generator)
        optimiser.zero_grad(set_to_none=True)
        self.requires_grad_(False)
        self._span(vector_ND.float(), modality_N, generator)

    @torch.no_grad()
    def codes_of(self, vector_ND: Tensor, modality_N: Tensor | None) -> Tensor:
        """Return the codes (N, T) of the nearest short codewords, level by level."""
        codes = [self.modality_codes(vector_ND, modality_N)] if self.has_modality else []
        return torch.stack([*codes, *self._coded(self.encoder(self._scaled(vector_ND)))[0]], 1)

    def _scaled(self, vector_ND: Tensor) -> Tensor:
        return (vector_ND.float() - self.shift_D) * self.scale_D

    def _coded(self, short_NZ: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return the codes of short vectors and what was left of these before each level."""
        codes, left = [], [short_NZ]
        for book in self.short:
            codes.append(nearest(left[-1].detach(), book.detach()))
            left.append(left[-1] - F.embedding(codes[-1], book).detach())
        return codes, left

    @torch.no_grad()
    def _begin(self, vector_ND: Tensor, generator: torch.Generator) -> None:
        """Draw the layers, and begin the short codewords by k-means on what they make of the vectors."""
        self.shift_D.copy_(vector_ND.mean(0))
        self.scale_D.copy_(1 / vector_ND.std(0, unbiased=False).clamp(min=1e-6))
        for layer in (*self.encoder, *self.decoder):
            if isinstance(layer, nn.Linear):
                weight = torch.randn(layer.weight.shape, generator=generator)
                layer.weight.copy_(weight * (2 / layer.weight.shape[1]) ** 0.5)
                layer.bias.zero_()
        pick = torch.randperm(len(vector_ND), generator=generator)[:START].to(vector_ND.device)
        left = self.encoder(self._scaled(vector_ND[pick]))
        for book in self.short:
            book.copy_(self.fit_codebook(left, len(book), generator))
            left = left - book[nearest(left, book)]

    def _learn(self, scaled_PD: Tensor, optimiser: torch.optim.Optimizer) -> Tensor:
        """Make a step on scaled vectors and return the loss."""
        short_PZ = self.encoder(scaled_PD)
        codes, left = self._coded(short_PZ)
        loss = scaled_PD.new_zeros(())
        whole_PZ = torch.zeros_like(short_PZ)
        for code_P, book, rest_PZ in zip(codes, self.short, left, strict=False):
            word_PZ = F.embedding(code_P, book)
            loss = loss + F.mse_loss(word_PZ, rest_PZ.detach()) + COMMITMENT * F.mse_loss(rest_PZ, word_PZ.detach())
            whole_PZ = whole_PZ + word_PZ.detach()
        back_PD = self.decoder(short_PZ + (whole_PZ - short_PZ).detach())
        loss = loss + F.mse_loss(back_PD, scaled_PD)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        return loss.detach()

    @torch.no_grad()
    def _revive(self, scaled_ND: Tensor, generator: torch.Generator) -> None:
        """Put codewords that no vector has now where a random vector is."""
        codes, left = self._coded(self.encoder(scaled_ND))
        for code_N, book, rest_NZ in zip(codes, self.short, left, strict=False):
            dead = torch.bincount(code_N, minlength=len(book)) == 0
            pick = torch.randint(len(rest_NZ), (len(book),), generator=generator).to(rest_NZ.device)
            book.copy_(torch.where(dead[:, None], rest_NZ[pick], book))

    @torch.no_grad()
    def _span(self, vector_ND: Tensor, modality_N: Tensor | None, generator: torch.Generator) -> None:
        """Make each code's codeword in the items' space: the mean of what earlier levels left of its items."""
        if self.has_modality:
            self.fit_modality(vector_ND, modality_N, generator)
        left_ND = vector_ND
        for level, code_N in enumerate(self.codes_of(vector_ND, modality_N).unbind(1)):
            book = cast(Tensor, self.codebooks[level])
            if level >= self.first_residual:
                count_V = torch.bincount(code_N, minlength=len(book)).clamp(min=1)
                book.copy_(torch.zeros_like(book).index_add_(0, code_N, left_ND) / count_V[:, None])
            left_ND = left_ND - book[code_N]


def _mlp(sizes: tuple[int, ...]) -> nn.Sequential:
    """Return linear layers of these widths with ReLU between them."""
    layers: list[nn.Module] = []
    for into, out in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(into, out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
