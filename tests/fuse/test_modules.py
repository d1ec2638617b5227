"""Fusion modules return unit vectors, and a part that is missing has no say."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from siglum.config import FusionConfig, FusionKind
from siglum.fuse.modules import Fusion, build_fusion
from siglum.types import SiglumError

MIXING: list[FusionKind] = ["combiner", "towers", "gated", "sum"]
ALL: tuple[FusionKind, ...] = get_args(FusionKind)


def fusion_of(kind: FusionKind, image_dim: int = 6, text_dim: int = 6, dim: int = 6, dropout: float = 0.0) -> Fusion:
    torch.manual_seed(0)
    return build_fusion(
        FusionConfig(kind=kind, dim=dim, projection=8, hidden=10, dropout=dropout), image_dim, text_dim
    ).eval()


def rows_of(number: int, image_dim: int = 6, text_dim: int = 6, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(number, image_dim, generator=generator), torch.randn(number, text_dim, generator=generator)


@pytest.mark.parametrize("kind", MIXING)
@pytest.mark.parametrize(("image_dim", "text_dim"), [(6, 6), (9, 4), (6, 3), (2, 6)])
def test_all_kinds_of_rows_become_unit_vectors_whatever_the_sizes(
    kind: FusionKind, image_dim: int, text_dim: int
) -> None:
    image, text = rows_of(9, image_dim, text_dim)
    has_image, has_text = torch.arange(9) % 3 != 1, torch.arange(9) % 3 != 0
    out = fusion_of(kind, image_dim, text_dim)(image, text, has_image, has_text)
    assert out.shape == (9, 6)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out.norm(dim=1), torch.ones(9))


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("junk", [0.0, 7.5, float("nan"), float("inf")])
@pytest.mark.parametrize("standardised", [False, True])
def test_a_missing_part_has_no_influence_whatever_its_row_holds(
    kind: FusionKind, junk: float, standardised: bool
) -> None:
    image, text = rows_of(8)
    has_image = torch.arange(8) % 2 == 0
    fusion = fusion_of(kind)
    if standardised:
        fusion.standardise(image, text, has_image, ~has_image)
    wanted = fusion(image, text, has_image, ~has_image)
    image[~has_image] = junk
    text[has_image] = junk
    assert torch.equal(fusion(image, text, has_image, ~has_image), wanted)
    assert bool(wanted.isfinite().all())


@pytest.mark.parametrize("kind", MIXING)
def test_a_part_that_is_there_has_influence(kind: FusionKind) -> None:
    image, text = rows_of(4)
    there = torch.ones(4, dtype=torch.bool)
    fusion = fusion_of(kind)
    both = fusion(image, text, there, there)
    for other in (
        fusion(image + 1, text, there, there),
        fusion(image, text - 1, there, there),
        fusion(image, text, there, ~there),
    ):
        assert float((both - other).detach().norm(dim=1).min()) > 1e-3


@given(st.sampled_from(MIXING), st.integers(0, 1000))
def test_a_row_does_not_depend_on_the_others(kind: FusionKind, seed: int) -> None:
    image, text = rows_of(6, seed=seed)
    has_image = torch.tensor([True, True, False, True, True, False])
    has_text = torch.tensor([True, False, True, True, True, True])
    fusion = fusion_of(kind)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
    whole = fusion(image, text, has_image, has_text)
    torch.testing.assert_close(fusion(image[order], text[order], has_image[order], has_text[order]), whole[order])
    torch.testing.assert_close(fusion(image[:1], text[:1], has_image[:1], has_text[:1]), whole[:1])


def test_a_sum_of_equal_sizes_has_no_parameters_and_is_the_sum() -> None:
    image, text = rows_of(5)
    fusion = fusion_of("sum")
    assert list(fusion.parameters()) == []
    there = torch.ones(5, dtype=torch.bool)
    wanted = (image + text) / (image + text).norm(dim=1, keepdim=True)
    torch.testing.assert_close(fusion(image, text, there, there), wanted)
    torch.testing.assert_close(fusion(image, text, there, ~there), image / image.norm(dim=1, keepdim=True))
    assert len(list(fusion_of("sum", 6, 3).parameters())) == 1, "only the part of another size is projected"


def test_a_gated_sum_passes_a_single_part_whole_and_mixes_two() -> None:
    image, text = rows_of(5)
    fusion = fusion_of("gated")
    there = torch.ones(5, dtype=torch.bool)
    torch.testing.assert_close(fusion(image, text, there, ~there), image / image.norm(dim=1, keepdim=True))
    torch.testing.assert_close(fusion(image, text, ~there, there), text / text.norm(dim=1, keepdim=True))
    gate = torch.sigmoid(fusion.gate(torch.cat([image, text], 1)))  # type: ignore[operator]
    mixed = gate * text + (1 - gate) * image
    torch.testing.assert_close(fusion(image, text, there, there), mixed / mixed.norm(dim=1, keepdim=True))


def test_the_combiner_is_the_mlp_plus_the_gated_sum() -> None:
    image, text = rows_of(4, 6, 3)
    fusion = fusion_of("combiner", 6, 3)
    weight = fusion.state_dict()

    def linear(name: str, rows: Tensor) -> Tensor:
        return torch.add(rows @ weight[f"{name}.weight"].T, weight[f"{name}.bias"])

    both = torch.cat([linear("text_in", text).clamp(min=0), linear("image_in", image).clamp(min=0)], 1)
    gate = 1 / (1 + torch.exp(-linear("gate.3", linear("gate.0", both).clamp(min=0))))
    mixed = (
        linear("mlp.3", linear("mlp.0", both).clamp(min=0))
        + gate * (text @ weight["text_skip.weight"].T)
        + (1 - gate) * image
    )
    there = torch.ones(4, dtype=torch.bool)
    torch.testing.assert_close(fusion(image, text, there, there), mixed / mixed.norm(dim=1, keepdim=True))


def test_no_fusion_takes_single_parts_as_they_are_and_refuses_mixed_rows() -> None:
    image, text = rows_of(4)
    has_image = torch.tensor([True, False, True, False])
    fusion = fusion_of("none")
    assert list(fusion.parameters()) == []
    wanted = torch.where(has_image[:, None], image, text)
    torch.testing.assert_close(fusion(image, text, has_image, ~has_image), wanted / wanted.norm(dim=1, keepdim=True))
    has_image[1] = True
    with pytest.raises(SiglumError, match=r"none cannot mix rows .* use combiner, towers, gated or sum"):
        fusion(image, text, has_image, torch.ones(4, dtype=torch.bool))


def test_no_fusion_takes_one_modality_alone_and_refuses_other_sizes() -> None:
    image, _ = rows_of(3)
    there = torch.ones(3, dtype=torch.bool)
    out = fusion_of("none", 6, 0)(image, torch.zeros(3, 0), there, ~there)
    torch.testing.assert_close(out, image / image.norm(dim=1, keepdim=True))
    with pytest.raises(SiglumError, match="text features need 6 numbers, not 5"):
        fusion_of("none", 6, 5)


def test_an_unknown_kind_is_named_with_the_choices() -> None:
    with pytest.raises(
        SiglumError, match=r"fusion\.kind is 'mean', but must be one of: combiner, towers, gated, sum, none"
    ):
        build_fusion(FusionConfig(kind="mean"), 4, 4)  # type: ignore[arg-type]


def test_standardised_features_have_mean_zero_and_unit_length_on_average() -> None:
    image, text = rows_of(200)
    image = image * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 0.0]) + 10
    has_image = torch.arange(200) % 4 != 0
    fusion = fusion_of("sum")
    junk = image.masked_fill(~has_image[:, None], 1e6)
    fusion.standardise(junk, text, has_image, torch.ones(200, dtype=torch.bool))
    scaled = (image[has_image] - fusion.image_shift) * fusion.image_scale
    torch.testing.assert_close(scaled.mean(0), torch.zeros(6), atol=1e-5, rtol=0)
    wanted = torch.tensor([6**-0.5] * 5 + [0.0])  # a constant feature stays constant instead of blowing up
    torch.testing.assert_close(scaled.std(0), wanted, atol=1e-4, rtol=0)
    assert not torch.equal(fusion.text_scale, torch.ones(6))


def test_standardisation_is_part_of_the_state() -> None:
    image, text = rows_of(20)
    there = torch.ones(20, dtype=torch.bool)
    fusion, other = fusion_of("gated"), fusion_of("gated")
    fusion.standardise(image, text, there, there)
    other.load_state_dict(fusion.state_dict())
    assert torch.equal(fusion(image, text, there, there), other(image, text, there, there))


def test_dropout_acts_in_training_only() -> None:
    image, text = rows_of(4)
    there = torch.ones(4, dtype=torch.bool)
    fusion = fusion_of("combiner", dropout=0.5)
    assert torch.equal(fusion(image, text, there, there), fusion(image, text, there, there))
    fusion.train()
    assert not torch.equal(fusion(image, text, there, there), fusion(image, text, there, there))


@pytest.mark.parametrize("kind", ["combiner", "towers"])
def test_bf16_is_the_arithmetic_of_learning_alone(kind: FusionKind) -> None:
    torch.manual_seed(0)
    config = FusionConfig(kind=kind, dim=6, projection=8, hidden=10, precision="bf16")
    fusion, full = build_fusion(config, 6, 6), fusion_of(kind)
    full.load_state_dict(fusion.state_dict())
    rows = (*rows_of(5), torch.ones(5, dtype=torch.bool), torch.ones(5, dtype=torch.bool))
    assert torch.equal(fusion.eval()(*rows), full(*rows))
    learns, wanted = fusion.train()(*rows), full.train()(*rows)
    assert learns.dtype == torch.float32 and not torch.equal(learns, wanted)
    torch.testing.assert_close(learns, wanted, atol=0.05, rtol=0)
    torch.testing.assert_close(learns.norm(dim=1), torch.ones(5))
    learns[:, 0].sum().backward()
    assert all(p.grad is None or p.grad.dtype == torch.float32 for p in fusion.parameters())
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in fusion.parameters())


def test_an_unknown_precision_is_refused() -> None:
    fusion = build_fusion(FusionConfig(kind="sum", dim=6, precision="half"), 6, 6).train()  # type: ignore[arg-type]
    with pytest.raises(SiglumError, match=r"fusion.precision is 'half', but must be one of: auto, fp32, bf16"):
        fusion(*rows_of(2), torch.ones(2, dtype=torch.bool), torch.ones(2, dtype=torch.bool))
