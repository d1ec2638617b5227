"""Chunked k-means in torch: k-means++ seeding on a sample, then Lloyd iterations. Deterministic by generator.

Shapes: N vectors of D numbers, K centroids.
"""

from __future__ import annotations

import torch
from torch import Tensor

from siglum.types import SiglumError

CHUNK = 8192


def nearest(vector_ND: Tensor, centroid_KD: Tensor) -> Tensor:
    """Return the index of the nearest centroid of every vector, in fp32; ties go to the lowest index."""
    half = centroid_KD.float().square().sum(-1) / 2
    parts = [(half - part.float() @ centroid_KD.float().T).argmin(-1) for part in vector_ND.split(CHUNK)]
    return torch.cat(parts)


def seed_centroids(vector_ND: Tensor, num: int, generator: torch.Generator) -> Tensor:
    """Return `num` starting centroids by k-means++ (distance-weighted sampling) on at most 16 vectors a centroid."""
    pick = torch.randperm(len(vector_ND), generator=generator)[: 16 * num].to(vector_ND.device)
    sample = vector_ND[pick]
    chosen = torch.empty(num, dtype=torch.long, device=sample.device)
    gap = torch.full((len(sample),), torch.inf, device=sample.device)
    draws = torch.rand(num, generator=generator).double().to(sample.device)
    for position in range(num):
        # No value leaves the device in this loop: waiting for one costs more than the arithmetic.
        index = torch.as_tensor(position % len(sample), device=sample.device)
        if position:
            running = gap.double().cumsum(0)
            drawn = torch.searchsorted(running, draws[position] * running[-1]).clamp(max=len(sample) - 1)
            index = torch.where(running[-1] > 0, drawn, index)
        chosen[position] = index
        gap = torch.minimum(gap, (sample - sample[index]).square().sum(-1))
    return sample[chosen].clone()


def kmeans(vector_ND: Tensor, num: int, iterations: int, generator: torch.Generator) -> Tensor:
    """Return `num` centroids (K, D); an empty cluster restarts at a random vector."""
    if len(vector_ND) < num:
        raise SiglumError(
            f"{num} codewords need at least {num} training vectors, not {len(vector_ND)}; choose a smaller vocabulary."
        )
    vectors = vector_ND.float()
    centroids = seed_centroids(vectors, num, generator)
    for _ in range(iterations):
        label = nearest(vectors, centroids)
        count = torch.bincount(label, minlength=num).to(vectors.dtype)
        total = torch.zeros_like(centroids).index_add_(0, label, vectors)
        centroids = total / count.clamp(min=1)[:, None]
        empty = count == 0
        if bool(empty.any()):
            again = torch.randint(len(vectors), (int(empty.sum()),), generator=generator).to(vectors.device)
            centroids[empty] = vectors[again]
    return centroids
