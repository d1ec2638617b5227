"""In mode `ema` the quantiser takes the same steps as ResidualVQ of vector-quantize-pytorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from siglum.config import TokenizerConfig
from siglum.tokenize.rq import ResidualQuantizer

vqp = pytest.importorskip("vector_quantize_pytorch")

DIM = 10


def batch_of(number: int, seed: int) -> Tensor:
    return torch.nn.functional.normalize(
        torch.randn(number, DIM, generator=torch.Generator().manual_seed(seed)), dim=-1
    )


def twins(vocab: tuple[int, ...], decay: float) -> tuple[ResidualQuantizer, Any]:
    """Return both quantisers with the same codebooks and the same EMA state."""
    config = TokenizerConfig(vocab=vocab, modality="none", update="ema", decay=decay, revive_below=0.0)
    ours = ResidualQuantizer(config, DIM)
    ours.fit(batch_of(300, 99), None, torch.Generator().manual_seed(0))
    with torch.no_grad():  # a code no vector chooses, whose count falls to where the smoothing matters
        ours.codebooks[0][3] = 3.0
        ours.get_buffer("total_0")[3] = 3.0 * ours.get_buffer("count_0")[3]
    theirs = vqp.ResidualVQ(
        dim=DIM,
        codebook_size=vocab,
        num_quantizers=len(vocab),
        kmeans_init=False,
        rotation_trick=False,
        threshold_ema_dead_code=0,
        decay=decay,
        eps=1e-5,
    )
    for level, layer in enumerate(theirs.layers):
        book = layer._codebook
        book.embed.data.copy_(ours.codebooks[level].detach()[None])
        book.embed_avg.data.copy_(getattr(ours, f"total_{level}")[None])
        book.cluster_size.data.copy_(getattr(ours, f"count_{level}")[None])
    return ours, theirs.train()


@pytest.mark.parametrize("vocab", [(16, 16, 16), (8, 16, 32)])
@pytest.mark.parametrize("decay", [0.9, 0.5])
def test_training_steps_are_equal(vocab: tuple[int, ...], decay: float) -> None:
    ours, theirs = twins(vocab, decay)
    start = [book.detach().clone() for book in ours.codebooks]
    for step in range(12):
        batch = batch_of(200, step)
        codes, residuals = ours.assign(batch)
        reconstruction = ours.decode(codes)
        ours.fit_step(residuals, codes, ours.draw_revival_rows(len(codes), 1, torch.Generator()))
        quantised, indices, _ = theirs(batch[None])
        assert torch.equal(codes, indices[0])
        torch.testing.assert_close(reconstruction, quantised[0], atol=1e-5, rtol=0)
    for level, book in enumerate(ours.codebooks):
        codebook = theirs.layers[level]._codebook
        torch.testing.assert_close(book.detach(), codebook.embed[0], atol=1e-5, rtol=0)
        torch.testing.assert_close(getattr(ours, f"count_{level}"), codebook.cluster_size[0], atol=1e-4, rtol=0)
        assert float((book.detach() - start[level]).abs().max()) > 0.01, "the steps did move the codewords"


def test_the_commitment_losses_are_equal() -> None:
    from siglum.tokenize.losses import residual_loss

    ours, theirs = twins((16, 16, 16), 0.9)
    batch = batch_of(64, 5)
    codes, residuals = ours.assign(batch)
    _, _, losses = theirs(batch[None])
    assert float(residual_loss(residuals, ours.codewords(codes))) == pytest.approx(
        float(losses.detach().mean()), rel=1e-4
    )
