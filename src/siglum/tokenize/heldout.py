"""L_rank on held-out pairs: whether what distillation trains reaches queries and targets it has not seen."""

from __future__ import annotations

import numpy as np
import torch

from siglum.config import TokenizerConfig
from siglum.fuse.contrastive import embed, kinds_of
from siglum.tokenize.losses import prefix_ranking_loss
from siglum.tokenize.train import Tokenizer, first_places
from siglum.types import SiglumError, Vectors

BATCH = 1000
"""Pairs whose targets are candidates of one another."""


def held_out_rank_loss(
    tokenizer: Tokenizer, vectors: Vectors, split: str = "val", *, device: str = "cpu", seed: int = 0
) -> float:
    """Return the paper's L_rank (prefixes, fused teacher, tau 0.05, 128 candidates) on the pairs of a split."""
    return float(held_out_rank_losses(tokenizer, vectors, split, device=device, seed=seed).mean())


@torch.no_grad()
def held_out_rank_losses(
    tokenizer: Tokenizer, vectors: Vectors, split: str = "val", *, device: str = "cpu", seed: int = 0
) -> np.ndarray:
    """Return the same query by query, task after task (Q,).

    Each query has its first positive. Batches are drawn from the seed, so that they are the same for any tokenizer.
    """
    tokenizer.quantizer.check_geometry("L_rank")
    query_rows, item_rows = vectors.first_pairs(split)
    if len(query_rows) == 0:
        raise SiglumError(f"there are no pairs of split {split} to measure L_rank on.")
    query, item = (embed(tokenizer.fusion, part, device) for part in (vectors.queries, vectors.items))
    kinds = kinds_of(vectors.items, device)
    found_Q = np.zeros(len(query_rows))
    order = np.random.default_rng(seed).permutation(len(query_rows))
    for rows in np.array_split(order, max(1, round(len(order) / BATCH))):
        q, x = (torch.as_tensor(one[rows]).long().to(device) for one in (query_rows, item_rows))
        codes = tokenizer.quantizer.encode(item[x], kinds[x])[:, : len(tokenizer.quantizer.own_sizes)]
        place = first_places(x)
        repeat = place != torch.arange(len(place), device=place.device)
        apart = tokenizer.fusion.config.negatives == "modality"
        other = kinds[x][:, None] != kinds[x][None, :] if apart else None
        partial = tokenizer.quantizer.partial_sums(codes)
        own = (place, repeat, TokenizerConfig(), tokenizer.quantizer.first_residual, other)
        loss_Q = prefix_ranking_loss(query[q], item[x], partial, codes, *own, by_query=True)
        found_Q[rows] = loss_Q.double().cpu().numpy()
    return found_Q
