"""Towers: one a modality, added; each learns from its own part alone, with features dropped in training only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from siglum.config import FusionConfig, from_dict
from siglum.fuse.contrastive import fit_fusion
from siglum.fuse.modules import Fusion, Towers, build_fusion
from siglum.types import SiglumError, Vectors

IMAGE, TEXT = torch.arange(9) % 3 != 1, torch.arange(9) % 3 != 0


def towers(image_dim: int = 6, text_dim: int = 4, **options: Any) -> Fusion:
    torch.manual_seed(0)
    return build_fusion(FusionConfig(kind="towers", dim=5, hidden=8, **options), image_dim, text_dim).eval()


def rows(image_dim: int = 6, text_dim: int = 4, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(9, image_dim, generator=generator), torch.randn(9, text_dim, generator=generator)


def test_the_vector_is_the_normalised_sum_of_the_towers_of_the_parts_that_are_there() -> None:
    (image, text), fusion = rows(), towers()
    weight = fusion.state_dict()

    def tower(name: str, part: Tensor) -> Tensor:
        hidden = part @ weight[f"{name}_bend.0.weight"].T + weight[f"{name}_bend.0.bias"]
        bent = hidden.clamp(min=0) @ weight[f"{name}_bend.3.weight"].T + weight[f"{name}_bend.3.bias"]
        return part @ weight[f"{name}_line.weight"].T + bent

    wanted = IMAGE[:, None] * tower("image", image) + TEXT[:, None] * tower("text", text)
    found = fusion(image, text, IMAGE, TEXT)
    torch.testing.assert_close(found, wanted / wanted.norm(dim=1, keepdim=True))
    assert found.shape == (9, 5)
    torch.testing.assert_close(fusion(image[4:5], text[4:5], IMAGE[4:5], TEXT[4:5]), found[4:5])


@pytest.mark.parametrize("name", ["image", "text"])
def test_a_tower_learns_from_its_own_part_alone(name: str) -> None:
    (image, text), fusion = rows(), towers()
    only = IMAGE & ~TEXT if name == "image" else TEXT & ~IMAGE
    fusion(image[only], text[only], IMAGE[only], TEXT[only])[:, 0].sum().backward()
    for key, parameter in fusion.named_parameters():
        moved = parameter.grad is not None and bool(parameter.grad.any())
        assert moved == key.startswith(name), key


def test_a_collection_without_pictures_needs_no_image_features() -> None:
    text, there = rows()[1], torch.ones(9, dtype=torch.bool)
    fusion = towers(image_dim=0)
    out = fusion(torch.zeros(9, 0), text, ~there, there)
    torch.testing.assert_close(out.norm(dim=1), torch.ones(9))
    assert bool(out.isfinite().all())


def test_input_dropout_drops_features_in_training_only() -> None:
    (image, text), plain = rows(), towers()
    for share in (0.5, 1.0):
        dropping = towers(input_dropout=share)
        dropping.load_state_dict(plain.state_dict())
        assert torch.equal(dropping(image, text, IMAGE, TEXT), plain(image, text, IMAGE, TEXT))
    # All features dropped: what is left are the biases of the towers that are there.
    left = dropping.train()(image, text, IMAGE, TEXT)
    torch.testing.assert_close(left, plain(0 * image, 0 * text, IMAGE, TEXT))
    some = towers(input_dropout=0.5).train()
    assert not torch.equal(some(image, text, IMAGE, TEXT), some(image, text, IMAGE, TEXT))


def test_input_dropout_is_the_dropout_of_the_features_and_not_of_the_hidden_layer() -> None:
    fusion = towers(dropout=0.25, input_dropout=0.5)
    assert isinstance(fusion, Towers)
    assert fusion.drop.p == 0.5
    assert [part.p for part in fusion.modules() if isinstance(part, torch.nn.Dropout)] == [0.25, 0.25, 0.5]
    with pytest.raises(SiglumError, match=r"FusionConfig\.input_dropout is 1\.5, but must be at most 1"):
        from_dict(FusionConfig, {"input_dropout": 1.5})


@pytest.mark.parametrize("negatives", ["all", "modality"])
def test_training_learns_easy_data(vectors: Vectors, negatives: Any) -> None:
    config = FusionConfig(
        kind="towers",
        dim=12,
        hidden=24,
        input_dropout=0.05,
        epochs=10,
        batch_size=60,
        lr=5e-3,
        temperature=0.1,
        smoothing=0.05,
        negatives=negatives,
    )
    fusion, history = fit_fusion(vectors, config, seed=1)
    chance = sum(1 / rank for rank in range(1, 101)) / 100
    assert max(metrics["val_mrr"] for metrics in history) > 6 * chance
    assert history[-1]["loss_cl"] < 0.7 * history[0]["loss_cl"]
    assert not fusion.training


def test_the_settings_of_the_loss_reach_the_training(vectors: Vectors) -> None:
    config = {"kind": "towers", "dim": 12, "hidden": 16, "epochs": 1, "batch_size": 60, "temperature": 0.1}
    losses = [
        fit_fusion(vectors, FusionConfig(**config, **other))[1][0]["loss_cl"]
        for other in ({}, {"negatives": "modality"}, {"smoothing": 0.2}, {"input_dropout": 0.3})
    ]
    assert len(set(np.round(losses, 6))) == 4
    assert losses[1] < losses[0], "fewer negatives, less to lose"
