"""Named configurations of recommenders: TIGER as published, a stronger one, and PRO on it.

`tiger` has the 4 + 4 layers of the paper's row, `tiger_strong` the 6 + 6 of later reproductions, and `pro` adds the
three parts of the paper to the latter: codes distilled on pairs of a history and the next item while the space learns
along, an ascending vocabulary, and fusion with a vector of the history. `bridge` is `tiger_strong` with fusion alone,
by the ridge regression of the authors' released code.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from siglum.config import (
    DecoderConfig,
    FusionConfig,
    HistoryConfig,
    RunConfig,
    SearchConfig,
    TokenizerConfig,
)
from siglum.recipes import RECIPES, recipe
from siglum.scales import SCALES as ALL_SCALES
from siglum.types import Features, SiglumError, one_of, whole_number

PAPER, SMALL, TINY = SCALES = ("paper", "small", "tiny")
"""A GPU; two CPU cores; seconds, of no use."""
LEVELS = (256, 256, 256)
ASCENDING = (160, 240, 256)
"""The vocabularies that the released code has for recommendation."""
LEAST_STEPS = 300


def recommender(name: str, scale: str = PAPER, seed: int = 0) -> RunConfig:
    """Return the configuration of a recommender.

    >>> recommender("tiger").decoder.encoder_layers, recommender("pro").tokenizer.vocab
    (4, (160, 240, 256))
    """
    build = RECOMMENDERS[one_of("recipe", name, RECOMMENDERS)]
    base = replace(_scaled(_base(), one_of("scale", scale, SCALES)), scale=scale)
    return replace(build(base), recipe=name, seed=whole_number("seed", seed, 0))


def fit_to_items(config: RunConfig, features: Features, targets: int) -> RunConfig:
    """Return the configuration for these item vectors and so many training targets.

    No level is larger than a quarter of the items, batches shrink and epochs grow until training has enough steps.
    """
    if len(features) < 8:
        raise SiglumError(f"a recommender needs at least 8 items, not {len(features)}.")
    most = 2 ** int(math.log2(len(features) / 4))
    fusion, tokenizer, decoder = config.fusion, config.tokenizer, config.decoder
    batch = decoder.batch_size
    while batch > 64 and batch * 20 > targets:
        batch //= 2
    epochs = max(decoder.epochs, min(100, -(-LEAST_STEPS // max(1, targets // batch)))) if decoder.epochs else 0
    fewer = max(64, targets // 8)
    return replace(
        config,
        fusion=replace(fusion, batch_size=min(fusion.batch_size, fewer)),
        tokenizer=replace(
            tokenizer,
            vocab=tuple(min(size, most) for size in tokenizer.vocab),
            batch_size=min(tokenizer.batch_size, fewer),
        ),
        decoder=replace(decoder, batch_size=batch, epochs=epochs),
    )


def fit_to_parts(config: RunConfig, features: Features) -> RunConfig:
    """Return the configuration with the items' own space where they have one part, else with one that is learnt."""
    if config.fusion.kind != "none":
        return config
    if features.has_image.any() and features.has_text.any():
        return replace(config, fusion=replace(config.fusion, **_LEARNT))
    width = (features.image if features.has_image.any() else features.text).shape[1]
    return replace(config, fusion=replace(config.fusion, dim=width))


_LEARNT: dict[str, Any] = {
    "kind": "towers",
    "dim": 128,
    "hidden": 512,
    "epochs": 10,
    "lr": 1e-3,
    "temperature": 0.07,
    "dropout": 0.2,
}
"""A space that learns to bring a history's mean to the next item."""


def _base() -> RunConfig:
    """Return TIGER: three levels of k-means and a number, T5 of 4 + 4 layers, the decoder alone."""
    return RunConfig(
        recipe="tiger",
        fusion=FusionConfig(kind="none", standardise=True, batch_size=1024),
        tokenizer=TokenizerConfig(
            vocab=LEVELS,
            modality="none",
            disambiguation=256,
            update="ema",
            statistics="targets",
            kmeans_iters=50,
            kmeans_per_code=1000,
            rank_weight=0.0,
            train_fusion=False,
            epochs=0,
        ),
        decoder=DecoderConfig(
            d_model=128,
            d_ff=1024,
            d_kv=64,
            heads=6,
            encoder_layers=4,
            decoder_layers=4,
            augmentation="off",
            epochs=150,
            batch_size=1024,
            lr=1e-3,
            lr_end=0.01,
            warmup=0.05,
            weight_decay=0.035,
            history=HistoryConfig(items=20, patience=8, every=5),
        ),
        search=SearchConfig(scorer="decoder", beam=50, batch_size=256),
    )


def _scaled(config: RunConfig, scale: str) -> RunConfig:
    """Return the same in another size."""
    decoder, tokenizer = config.decoder, config.tokenizer
    if scale == SMALL:
        decoder = replace(decoder, d_model=64, d_ff=256, d_kv=16, heads=4, encoder_layers=2, decoder_layers=2)
        history = replace(decoder.history, every=2, patience=4, asked=1000)
        decoder = replace(decoder, epochs=20, batch_size=256, lr=3e-3, history=history)
    elif scale == TINY:
        decoder = replace(decoder, d_model=32, d_ff=64, d_kv=8, heads=4, encoder_layers=1, decoder_layers=1)
        history = replace(decoder.history, every=1, patience=0, asked=100)
        decoder = replace(decoder, epochs=2, batch_size=128, lr=3e-3, history=history)
        tokenizer = replace(tokenizer, vocab=(16, 16, 16), disambiguation=32, kmeans_iters=5)
    return replace(config, decoder=decoder, tokenizer=tokenizer)


def tiger(base: RunConfig) -> RunConfig:
    """TIGER as published."""
    return base


def tiger_strong(base: RunConfig) -> RunConfig:
    """Deeper, with more dropout and longer training."""
    if base.scale != PAPER:
        return base
    decoder = replace(base.decoder, encoder_layers=6, decoder_layers=6, dropout=0.2, epochs=200)
    return replace(base, decoder=decoder)


def tiger_rqvae(base: RunConfig) -> RunConfig:
    """TIGER with its published item tokenizer, an RQ-VAE."""
    epochs = {PAPER: 1000, SMALL: 200, TINY: 5}[base.scale]
    tokenizer = replace(base.tokenizer, kind="rqvae", epochs=epochs, batch_size=1024, lr=1e-3)
    return replace(base, tokenizer=tokenizer)


def bridge(base: RunConfig) -> RunConfig:
    """Fusion alone, with the ridge regression from encoder states as the history's vector."""
    strong = tiger_strong(base)
    return replace(strong, search=replace(strong.search, scorer="fused", vector="ridge", omega=1.0))


def liger(base: RunConfig) -> RunConfig:
    """The encoder learns a vector of the history beside the codes, for dense search and for both together."""
    strong = tiger_strong(base)
    history = replace(strong.decoder.history, contrast=1.0)
    return replace(strong, decoder=replace(strong.decoder, history=history))


def pro(base: RunConfig) -> RunConfig:
    """All three parts of PRO on `tiger_strong`."""
    return with_fusion(with_schedule(with_distillation(tiger_strong(base))))


def with_distillation(config: RunConfig) -> RunConfig:
    """Train codebooks and space together on pairs of a history and the next item, with lambda 1 on the true KL."""
    epochs = {PAPER: 20, SMALL: 5, TINY: 1}[config.scale]
    tokenizer = replace(
        config.tokenizer,
        train_fusion=True,
        rq_weight=1.0,
        mse_weight=1.0,
        rank_weight=1.0,
        rank_student_gradient=True,
        # Few items have most of the events: codes of the others must not die for want of them.
        decay=0.99,
        revive_below=0.004,
        epochs=epochs,
        batch_size=1024,
        lr=1e-3,
    )
    smaller: dict[str, Any] = {"dim": 32, "hidden": 32, "epochs": 1} if config.scale == TINY else {}
    fusion = replace(config.fusion, **{**_LEARNT, **smaller})
    return replace(config, fusion=fusion, tokenizer=tokenizer)


def with_schedule(config: RunConfig) -> RunConfig:
    """Give the levels ascending vocabularies."""
    vocab = ASCENDING if config.tokenizer.vocab == LEVELS else tuple(sorted(config.tokenizer.vocab))
    return replace(config, tokenizer=replace(config.tokenizer, vocab=vocab))


def with_fusion(config: RunConfig) -> RunConfig:
    """Fuse the decoder with geometry; weight and vector are chosen on validation."""
    history = replace(config.decoder.history, contrast=1.0)
    search = replace(config.search, scorer="fused", vector="learned", omega=1.0)
    return replace(config, decoder=replace(config.decoder, history=history), search=search)


RECOMMENDERS: dict[str, Callable[[RunConfig], RunConfig]] = {
    "tiger": tiger,
    "tiger_strong": tiger_strong,
    "tiger_rqvae": tiger_rqvae,
    "bridge": bridge,
    "liger": liger,
    "pro": pro,
    "pro_without_pd": lambda base: with_fusion(with_schedule(tiger_strong(base))),
    "pro_without_vs": lambda base: with_fusion(with_distillation(tiger_strong(base))),
    "pro_without_sf": lambda base: with_schedule(with_distillation(tiger_strong(base))),
}


def usual_of(config: RunConfig) -> RunConfig | None:
    """Return the settings that a run's recipe has at its scale; None where neither is known."""
    if not config.decoder.history.items:
        known = config.recipe in RECIPES and config.scale in ALL_SCALES
        return recipe(config.recipe, config.scale, config.seed) if known else None
    known = config.recipe in RECOMMENDERS and config.scale in SCALES
    return recommender(config.recipe, config.scale, config.seed) if known else None
