"""Configs survive the trip through JSON, refuse what they do not know, and tell how they differ."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest

from siglum.config import (
    DecoderConfig,
    FusionConfig,
    RunConfig,
    SearchConfig,
    TokenizerConfig,
    WorldConfig,
    as_dict,
    config_fingerprint,
    diff,
    from_dict,
)
from siglum.types import SiglumError

KINDS = (FusionConfig, TokenizerConfig, DecoderConfig, SearchConfig, WorldConfig, RunConfig)
CHANGED = RunConfig(
    recipe="genius",
    seed=7,
    world=WorldConfig(items=500),
    fusion=FusionConfig(kind="gated", dropout=0.25),
    tokenizer=TokenizerConfig(vocab=(16, 32), modality="none", rank_form="items", rank_cosine=True),
    decoder=DecoderConfig(softmax="joint", augmentation="off"),
    search=SearchConfig(scorer="oracle", zscore=True),
)


@pytest.mark.parametrize("kind", KINDS)
def test_every_config_comes_back_from_json(kind: Any) -> None:
    config = kind()
    values = as_dict(config)
    assert set(values) == {f.name for f in fields(kind)}
    assert json.loads(json.dumps(values)) == values, "as_dict holds plain JSON values only"
    assert from_dict(kind, json.loads(json.dumps(values))) == config


def test_changed_values_come_back_from_json() -> None:
    back = from_dict(RunConfig, json.loads(json.dumps(as_dict(CHANGED))))
    assert back == CHANGED
    assert back.tokenizer.vocab == (16, 32)
    assert back.tokenizer.levels == 2


def test_fields_that_are_left_out_have_their_defaults() -> None:
    assert from_dict(RunConfig, {"fusion": {"dim": 32}}) == RunConfig(fusion=FusionConfig(dim=32))


def test_whole_numbers_are_taken_for_fractions() -> None:
    config = from_dict(SearchConfig, {"omega": 5})
    assert config.omega == 5.0
    assert isinstance(config.omega, float)


@pytest.mark.parametrize(
    ("values", "name"),
    [({"beams": 3}, "SearchConfig has no field 'beams'.* it has batch_size, beam, engine, leaf_order")],
)
def test_an_unknown_field_is_named(values: dict[str, Any], name: str) -> None:
    with pytest.raises(SiglumError, match=name):
        from_dict(SearchConfig, values)


def test_an_unknown_nested_field_is_named() -> None:
    with pytest.raises(SiglumError, match="TokenizerConfig has no field 'levels'"):
        from_dict(RunConfig, {"tokenizer": {"levels": 4}})


@pytest.mark.parametrize("wrong", ["attention", "", None, 3, ["combiner"]])
def test_a_bad_choice_is_named_with_the_choices(wrong: Any) -> None:
    with pytest.raises(
        SiglumError, match=r"FusionConfig\.kind is .*, but must be one of: combiner, towers, gated, sum, none\."
    ):
        from_dict(FusionConfig, {"kind": wrong})


@pytest.mark.parametrize(
    ("kind", "name", "wrong"),
    [
        (SearchConfig, "beam", "50"),
        (SearchConfig, "beam", 50.0),
        (SearchConfig, "beam", True),
        (SearchConfig, "omega", "10"),
        (SearchConfig, "omega", True),
        (SearchConfig, "zscore", 1),
        (SearchConfig, "zscore", None),
        (RunConfig, "recipe", 3),
        (RunConfig, "fusion", 3),
        (RunConfig, "fusion", ["dim", 3]),
        (TokenizerConfig, "vocab", 512),
        (TokenizerConfig, "vocab", "512"),
        (TokenizerConfig, "vocab", [512, "1024"]),
        (TokenizerConfig, "vocab", [512.0]),
        (TokenizerConfig, "vocab", [True]),
        (TokenizerConfig, "vocab", {"512": 1}),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_by_name(kind: Any, name: str, wrong: Any) -> None:
    with pytest.raises(SiglumError, match=f"{kind.__name__}.{name}"):
        from_dict(kind, {name: wrong})


def test_configs_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        FusionConfig().dim = 3  # type: ignore[misc]


def test_diff_names_exactly_what_differs() -> None:
    assert diff(RunConfig(), RunConfig()) == {}
    other = replace(RunConfig(), seed=1, tokenizer=TokenizerConfig(vocab=(4, 8), decay=0.5))
    assert diff(RunConfig(), other) == {
        "seed": (0, 1),
        "tokenizer.vocab": (TokenizerConfig().vocab, (4, 8)),
        "tokenizer.decay": (0.9, 0.5),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_the_fingerprint_changes_with_every_field(kind: Any) -> None:
    def other(value: Any) -> Any:
        if isinstance(value, bool):
            return not value
        if isinstance(value, int | float):
            return value + 1
        if isinstance(value, tuple):
            return (*value, 3)
        return (
            f"{value}!"
            if isinstance(value, str)
            else replace(value, **{fields(value)[0].name: other(getattr(value, fields(value)[0].name))})
        )

    config = kind()
    marks = {config_fingerprint(replace(config, **{f.name: other(getattr(config, f.name))})) for f in fields(kind)}
    assert len(marks) == len(fields(kind))
    assert config_fingerprint(config) not in marks
    assert config_fingerprint(config) == config_fingerprint(kind())


def test_settings_that_name_registered_parts_are_checked_against_them() -> None:
    for kind, name, choices in (
        (TokenizerConfig, "kind", "residual, product"),
        (SearchConfig, "scorer", "fused, decoder, geometry, oracle"),
    ):
        for wrong in ("wrong", "", None, 3, ["fused"]):
            with pytest.raises(SiglumError, match=f"{kind.__name__}.{name} is .*, but must be one of: {choices}"):
                from_dict(kind, {name: wrong})
    assert from_dict(TokenizerConfig, {"kind": "product"}).kind == "product"


def test_fingerprints_of_runs_made_before_a_field_stay() -> None:
    # Taken before `kind` was there: checkpoints and shared stages are known by them.
    assert config_fingerprint(TokenizerConfig()) == "62ca6b63c9ce4842"
    assert config_fingerprint(TokenizerConfig(vocab=(16, 32), modality="none")) == "0d8c11a35bba5a86"
    assert from_dict(TokenizerConfig, {"vocab": [16, 32]}).kind == "residual"
    nested = RunConfig(tokenizer=TokenizerConfig(kind="product"))
    assert config_fingerprint(nested) != config_fingerprint(RunConfig())
