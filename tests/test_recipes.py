"""Every recipe at every scale is whole, and the ablations differ in just what they name."""

from __future__ import annotations

import pytest
import torch

from siglum.config import RunConfig, as_dict, diff, from_dict
from siglum.generate.decoder import CodeDecoder
from siglum.recipes import LEAST_STEPS, RECIPES, SCALES, recipe, recipe_for
from siglum.tokenize.schedule import equal_bits
from siglum.types import SiglumError


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", RECIPES)
def test_recipes_round_trip(name: str, scale: str) -> None:
    config = recipe(name, scale, seed=3)
    assert (config.recipe, config.scale, config.seed) == (name, scale, 3)
    assert from_dict(RunConfig, as_dict(config)) == config


@pytest.mark.parametrize("scale", SCALES)
def test_ablations_change_only_their_part(scale: str) -> None:
    parts = {"pd": {"tokenizer.rank_weight"}, "vs": {"tokenizer.vocab"}, "sf": {"search.scorer"}}
    full = recipe("pro", scale)
    for name in ("pd", "vs", "sf", "pd_vs", "pd_sf", "vs_sf", "genius"):
        kept = set() if name == "genius" else set(name.split("_"))
        gone = set().union(*[fields for part, fields in parts.items() if part not in kept])
        assert set(diff(full, recipe(name, scale))) == gone | {"recipe"}


@pytest.mark.parametrize("scale", ["tiny", "demo", "small"])
def test_genius_has_equal_bits_or_the_largest_size(scale: str) -> None:
    schedule, uniform = recipe("pro", scale).tokenizer.vocab, recipe("genius", scale).tokenizer.vocab
    assert uniform in (equal_bits(schedule), (max(schedule),) * len(schedule))


def test_small_has_at_most_25_million_parameters() -> None:
    config = recipe("pro", "small")
    sizes = (3, *config.tokenizer.vocab)
    assert CodeDecoder(config.decoder, sizes, config.fusion.dim, torch.Generator()).parameter_count() < 20e6
    # The whole run, fusion included, stays below 25 million: 512-wide features, projections, hidden layers, codebooks.
    projections = 2 * 512 * config.fusion.projection
    hidden = 2 * 2 * config.fusion.projection * config.fusion.hidden
    assert projections + hidden + sum(sizes) * config.fusion.dim < 5e6


@pytest.mark.parametrize(("items", "pairs"), [(300, 300), (5_000, 8_640), (100_000, 250_000)])
def test_sized_recipes_train_long_enough(items: int, pairs: int) -> None:
    config = recipe_for("pro", items, pairs)
    for stage in (config.fusion, config.tokenizer, config.decoder):
        assert stage.epochs * max(1, pairs // stage.batch_size) >= min(LEAST_STEPS, 50 * max(1, pairs // 64))
    assert config.tokenizer.vocab[0] <= max(16, items // 32)
    assert len(set(recipe_for("genius", items, pairs).tokenizer.vocab)) == 1


def test_unknown_names_are_refused_with_the_choices() -> None:
    with pytest.raises(SiglumError, match="one of: pro, genius"):
        recipe("prro")
    with pytest.raises(SiglumError, match="one of: tiny, demo"):
        recipe("pro", "huge")
