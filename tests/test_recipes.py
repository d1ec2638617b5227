"""Every recipe at every scale is whole, and the ablations differ in just what they name."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from siglum.config import RunConfig, as_dict, diff, from_dict
from siglum.generate.decoder import CodeDecoder
from siglum.recipes import LEAST_STEPS, RECIPES, SCALES, UNIFORM, fit_to_data, recipe, recipe_for
from siglum.scales import BASES
from siglum.tokenize.schedule import equal_bits
from siglum.types import SiglumError


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", RECIPES)
def test_recipes_round_trip(name: str, scale: str) -> None:
    config = recipe(name, scale, seed=3)
    assert (config.recipe, config.scale, config.seed) == (name, scale, 3)
    assert from_dict(RunConfig, as_dict(config)) == config


@pytest.mark.parametrize("scale", SCALES)
def test_ablations_change_only_their_part(scale: str, subtests: pytest.Subtests) -> None:
    parts = {"pd": {"tokenizer.rank_weight"}, "vs": {"tokenizer.vocab"}, "sf": {"search.scorer"}}
    full = recipe("pro", scale)
    for name in ("pd", "vs", "sf", "pd_vs", "pd_sf", "vs_sf", "genius"):
        with subtests.test(name):
            kept = set() if name == "genius" else set(name.split("_"))
            gone = set().union(*[fields for part, fields in parts.items() if part not in kept])
            assert set(diff(full, recipe(name, scale))) == gone | {"recipe"}


@pytest.mark.parametrize("scale", [scale for scale in SCALES if scale != "paper"])
def test_genius_has_equal_bits_or_a_size_of_the_schedule(scale: str) -> None:
    schedule, uniform = recipe("pro", scale).tokenizer.vocab, recipe("genius", scale).tokenizer.vocab
    sizes = (min(schedule), max(schedule)) if scale.startswith(("captions", "catalogue")) else (max(schedule),)
    assert uniform in (equal_bits(schedule), *((size,) * len(schedule) for size in sizes))


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


def bits(vocab: Sequence[int]) -> float:
    return sum(math.log2(size) for size in vocab)


def test_scales_carry_their_names_and_each_has_a_uniform_vocabulary() -> None:
    assert {scale: base().scale for scale, base in BASES.items()} == {scale: scale for scale in SCALES}
    assert set(UNIFORM) == set(SCALES)
    assert all(recipe("pro", scale) == BASES[scale]() for scale in SCALES)


def test_the_captions_scales_differ_in_size_alone() -> None:
    large, small = recipe("pro", "captions"), recipe("pro", "captions_small")
    sizes = {"scale", *(f"fusion.{name}" for name in ("hidden", "dropout", "input_dropout", "epochs"))}
    sizes |= {f"tokenizer.{name}" for name in ("epochs", "kmeans_per_code", "kmeans_iters")}
    sizes |= {f"decoder.{name}" for name in ("d_model", "d_ff", "d_kv", "decoder_layers", "epochs", "batch_size")}
    assert set(diff(large, small)) == sizes
    # Images stand against images and captions against captions, as in the pools of the tasks.
    assert large.fusion.negatives == small.fusion.negatives == "modality"


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(("name", "factor"), [("genius_half", 0.5), ("genius_double", 2)])
def test_other_vocabularies_of_genius_change_nothing_else(name: str, factor: float, scale: str) -> None:
    plain, other = recipe("genius", scale), recipe(name, scale)
    assert set(diff(plain, other)) == {"recipe", "tokenizer.vocab"}
    assert other.tokenizer.vocab == tuple(int(factor * size) for size in plain.tokenizer.vocab)


@pytest.mark.parametrize("scale", SCALES)
def test_best_has_many_small_levels_in_no_more_bytes(scale: str) -> None:
    config, pro = recipe("best", scale), recipe("pro", scale)
    vocab = config.tokenizer.vocab
    assert max(vocab[2:]) <= 64 and vocab[:2] == (
        pro.tokenizer.vocab[0],
        pro.tokenizer.vocab[pro.tokenizer.levels // 2],
    )
    assert len(vocab) > pro.tokenizer.levels or scale == "tiny"
    assert bits(vocab) <= bits(
        (pro if not scale.startswith(("captions", "catalogue")) else recipe("pro")).tokenizer.vocab
    )
    assert config.tokenizer.assign_beam > 1
    assert (config.tokenizer.epochs, config.tokenizer.rank_weight, config.tokenizer.update) == (0, 0.0, "ema")
    assert config.fusion.epochs > 0, "codes by k-means alone need a space that was trained before"
    assert config.fusion.dim <= 64
    assert config.query.members > 0
    assert config.decoder.null_queries > 0 and config.search.prior > 0 and config.search.lookahead
    assert config.decoder.d_model == config.decoder.d_kv * config.decoder.heads
    parts = (
        "recipe",
        "fusion.dim",
        "fusion.epochs",
        "tokenizer.",
        "query.",
        "decoder.",
        "search.prior",
        "search.lookahead",
    )
    assert all(name.startswith(parts) for name in diff(pro, config))


@pytest.mark.parametrize("items", [300, 5_000, 100_000])
def test_best_keeps_its_small_levels_when_it_is_sized_to_a_collection(items: int) -> None:
    config = recipe_for("best", items, items, seed=2)
    assert (config.recipe, config.scale, config.seed) == ("best", "auto", 2)
    assert max(config.tokenizer.vocab[2:]) <= 64
    assert config.tokenizer.epochs == 0
    for stage in (config.fusion, config.query, config.decoder):
        assert stage.epochs * max(1, items // stage.batch_size) >= min(LEAST_STEPS, 50 * max(1, items // 64))


@pytest.mark.parametrize("name", ["pro", "best", "genius_double"])
@pytest.mark.parametrize(("items", "pairs"), [(3, 3), (40, 200), (1_000, 5_000), (6_000, 30_000)])
def test_a_config_fitted_to_data_has_items_for_every_code_and_steps_for_every_stage(
    name: str, items: int, pairs: int
) -> None:
    config = recipe(name, "captions")
    fitted = fit_to_data(config, items, pairs)
    most = max(2, items // 4)
    for before, size in zip(config.tokenizer.vocab, fitted.tokenizer.vocab, strict=True):
        assert size == before if before <= most else most / 2 < size <= most
        assert math.log2(size).is_integer()
    stages = [fitted.fusion, fitted.query, fitted.decoder]
    if name == "best":
        assert fitted.tokenizer.epochs == 0, "k-means alone stays k-means alone"
    else:
        stages.append(fitted.tokenizer)
    for stage in stages:
        assert stage.batch_size <= max(64, pairs / 40)
        assert stage.epochs * max(1, pairs // stage.batch_size) >= min(LEAST_STEPS, 50 * max(1, pairs // 64))
    ends = ("vocab", "batch_size", "epochs")
    assert all(name.endswith(ends) for name in diff(config, fitted))
    assert from_dict(RunConfig, as_dict(fitted)) == fitted


def test_a_config_with_enough_data_stays_as_it_is() -> None:
    config = recipe("pro", "captions")
    assert fit_to_data(config, 1_000_000, 5_000_000) == config


@pytest.mark.parametrize("scale", [scale for scale in SCALES if scale != "paper"])
@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_trains_its_space_along_if_asked(name: str, scale: str) -> None:
    joint, fixed = (recipe(name, scale, space=space).tokenizer for space in ("joint", "fixed"))
    assert joint.train_fusion and joint.epochs > 0
    literal = name == "pro_literal"
    assert (joint.update, joint.rq_weight, joint.mse_weight) == (("hybrid", 100, 100) if literal else ("ema", 1, 1))
    wanted = (
        {0.0} if joint.rank_weight == 0 else {1.0, 100.0} if name == "pro_released" else {100.0 if literal else 1.0}
    )
    assert joint.rank_weight in wanted
    assert fixed.train_fusion == name.startswith(("pro_literal", "pro_released", "genius_joint"))
    assert joint.vocab == fixed.vocab


def test_the_paper_s_literal_numbers_are_the_paper_s() -> None:
    assert set(diff(recipe("pro"), recipe("pro_literal"))) == {"recipe"}
    own, literal = (recipe("pro", "captions", space="joint"), recipe("pro_literal", "captions"))
    weights = {f"tokenizer.{name}_weight": (1.0, 100.0) for name in ("rq", "mse", "rank")}
    assert diff(own, literal) == {"recipe": ("pro", "pro_literal"), "tokenizer.update": ("ema", "hybrid"), **weights}


def test_the_released_form_weighs_a_quarter_of_the_true_divergence() -> None:
    config = recipe("pro_released", "captions", space="joint").tokenizer
    assert config.rank_scale_tau2
    assert config.rank_weight * config.temperature**2 == pytest.approx(0.25)


def test_the_paper_has_no_fixed_space() -> None:
    with pytest.raises(SiglumError, match="space fixed needs another scale"):
        recipe("pro", "paper", space="fixed")


def test_unknown_names_are_refused_with_the_choices() -> None:
    with pytest.raises(SiglumError, match="one of: pro, genius"):
        recipe("prro")
    with pytest.raises(SiglumError, match="one of: tiny, demo"):
        recipe("pro", "huge")
