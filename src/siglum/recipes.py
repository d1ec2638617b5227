"""Named full configurations. A recipe is a function of a scale; changing an experiment is writing a new one.

`pro` is the paper. `genius` is the empty combination of its three parts: prefix distillation (PD), vocabulary
scheduling (VS) and score fusion (SF). Values at the scales below `paper` were chosen once, on validation, with the
same budget for both; the trials stand in docs/lab-notes.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, TypeVar

from siglum.config import (
    CodebookUpdate,
    DecoderConfig,
    FusionConfig,
    QueryConfig,
    RunConfig,
    TokenizerConfig,
)
from siglum.scales import BASES, FROZEN, JOINT, JOINT_SCALES, SCALES
from siglum.tokenize.schedule import ascending, scaled_sizes, uniform
from siglum.types import SiglumError, one_of, whole_number

LEAST_STEPS = 300
DECODERS = {
    "pro": DecoderConfig(),
    "genius": DecoderConfig(
        soft_tokens=30, encoder_layers=0, softmax="joint", augmentation="per_dim_sqrt", epochs=31, weight_decay=1e-4
    ),
}
"""Decoder presets at paper size: one soft token, 6 + 6 layers (paper); 30 soft tokens, 0 + 6 layers (GENIUS)."""
Space = Literal["", "joint", "fixed"]
StageConfig = TypeVar("StageConfig", FusionConfig, TokenizerConfig, QueryConfig, DecoderConfig)
UNIFORM = {"tiny": 32, "demo": 128, "small": 256, "paper": 4096, **dict.fromkeys(FROZEN, 128)}
"""Uniform vocabulary of `genius`: the paper's 4096 at paper scale; elsewhere the best on validation of equal bits per
item, the schedule's largest size and, for frozen features of pictures, its smallest."""


def recipe_for(name: str, num_items: int, num_pairs: int, seed: int = 0) -> RunConfig:
    """Return a recipe sized to a collection: the demo's models below 20,000 items, the small ones above.

    The vocabulary follows `scaled_sizes`, so that every codeword has items to learn from; batches shrink and epochs
    grow until every training has `LEAST_STEPS` steps. `best` keeps its small levels and fits those to the data.
    """
    base = recipe(name, "demo" if num_items < 20_000 else "small", seed)
    if name == "best":
        return replace(fit_to_data(base, min(num_items, num_pairs), num_pairs), scale="auto")
    levels, sizes = base.tokenizer.levels, scaled_sizes(min(num_items, num_pairs))
    flat = len(set(base.tokenizer.vocab)) == 1
    vocab = uniform(levels, sizes[1]) if flat else ascending(levels, sizes)
    return replace(
        base,
        scale="auto",
        fusion=_long_enough(base.fusion, num_pairs),
        tokenizer=replace(_long_enough(base.tokenizer, num_pairs), vocab=vocab),
        decoder=_long_enough(base.decoder, num_pairs),
    )


def _long_enough(config: StageConfig, num_pairs: int) -> StageConfig:
    """Return the config with a batch of at most a fortieth of the pairs (but 64) and enough epochs."""
    batch = config.batch_size
    while batch > 64 and batch * 40 > num_pairs:
        batch //= 2
    steps = max(1, num_pairs // batch)
    return replace(config, batch_size=batch, epochs=max(config.epochs, min(50, -(-LEAST_STEPS // steps))))


def base_of(scale: str, space: Space = "") -> RunConfig:
    """Return what all recipes of a scale begin with: `pro`, its fusion module learning along or not.

    `joint` trains it with EMA codebooks, beta = gamma = 1 and lambda = 1 on the true KL; `fixed` leaves the space as
    L_cl alone made it. By default each scale has what validation prefers there; `paper` has the paper's own numbers.
    """
    base = replace(BASES[one_of("scale", scale, SCALES)](), recipe="pro")
    one_of("space", space, ("", "joint", "fixed"))
    if space == "fixed" and base.tokenizer.train_fusion:
        raise SiglumError(f"scale {scale} trains no fused space of its own; space fixed needs another scale.")
    return jointly(base) if space == "joint" or (not space and scale in JOINT_SCALES) else base


def jointly(base: RunConfig, update: CodebookUpdate = "ema", weight: float = 1.0) -> RunConfig:
    """Train the fusion module along with the codebooks, with one weight for beta, gamma and lambda."""
    tokenizer = replace(base.tokenizer, rq_weight=weight, mse_weight=weight, rank_weight=weight)
    tokenizer = replace(tokenizer, train_fusion=True, update=update)
    epochs, lr = JOINT.get(base.scale, (tokenizer.epochs, tokenizer.lr))
    return replace(base, tokenizer=replace(tokenizer, epochs=epochs, lr=lr))


def pro(base: RunConfig) -> RunConfig:
    """The paper: prefix distillation, vocabulary scheduling and score fusion, one-hot targets."""
    return base


def pro_literal(base: RunConfig) -> RunConfig:
    """The paper's numbers at any scale: the fusion module learns along, beta = gamma = lambda = 100 on the true KL."""
    return jointly(base, "hybrid", 100.0)


def without_pd(config: RunConfig) -> RunConfig:
    """Turn prefix ranking distillation off."""
    return replace(config, tokenizer=replace(config.tokenizer, rank_weight=0.0))


def without_vs(config: RunConfig) -> RunConfig:
    """Give every level the same vocabulary."""
    return replace(
        config, tokenizer=replace(config.tokenizer, vocab=uniform(config.tokenizer.levels, UNIFORM[config.scale]))
    )


def without_sf(config: RunConfig) -> RunConfig:
    """Rank by the decoder alone."""
    return replace(config, search=replace(config.search, scorer="decoder"))


def genius(base: RunConfig) -> RunConfig:
    """GENIUS as the paper runs it: the same pipeline without any of the three parts."""
    return without_pd(without_vs(without_sf(base)))


def _genius_of(factor: float) -> Callable[[RunConfig], RunConfig]:
    """GENIUS with another uniform vocabulary, so that its gap is not made by a bad choice of one."""

    def build(base: RunConfig) -> RunConfig:
        config = genius(base)
        vocab = uniform(config.tokenizer.levels, max(2, int(factor * UNIFORM[base.scale])))
        return replace(config, tokenizer=replace(config.tokenizer, vocab=vocab))

    return build


def best(base: RunConfig) -> RunConfig:
    """Beyond the paper: many small levels, a query head, and a decoder freed from what it believes without a query.

    More and smaller levels keep more of an unseen item in the same bytes. Items are coded by a beam; the decoder also
    learns P(codes), and search divides by it; the beam looks ahead, so that it prunes no prefix for what its few codes
    do not say yet. docs/lab-notes.md tells each step.
    """
    config, scale = base, base.scale
    own, later = config.tokenizer.vocab, max(2, min(64, config.tokenizer.vocab[-1]))
    head = (own[0], own[len(own) // 2])
    bits = sum(math.log2(size) for size in _BUDGET.get(scale, own))
    deep = max(0, int((bits - sum(math.log2(size) for size in head)) / math.log2(later)))
    tokenizer = replace(config.tokenizer, vocab=head + (later,) * deep, update="ema", assign_beam=8)
    if base.tokenizer.update != "ema":  # where the space does not learn along, k-means alone is best
        tokenizer = replace(tokenizer, rank_weight=0.0, epochs=0)
    small = scale in ("tiny", "demo") or scale.endswith("_small")
    return replace(
        config,
        # Where the codebooks are k-means alone, the fused space must be learnt before them.
        fusion=replace(
            config.fusion, dim=min(64, config.fusion.dim), epochs=config.fusion.epochs or config.tokenizer.epochs
        ),
        tokenizer=tokenizer,
        query=QueryConfig(members=1 if small else 3, hidden=min(1024, config.fusion.hidden)),
        decoder=replace(config.decoder, null_queries=0.15) if small else _best_decoder(config.decoder),
        search=replace(config.search, prior=1.0, lookahead=True),
    )


def best_ensemble(base: RunConfig) -> RunConfig:
    """`best` on the codes of three fused spaces that are trained apart and joined, in as many bytes an item.

    What errs in one space seldom errs in the others, and the main axes of all hold nearly what they hold together.
    """
    config = best(base)
    return replace(config, fusion=replace(config.fusion, members=3))


def _best_decoder(config: DecoderConfig) -> DecoderConfig:
    deeper = replace(config, decoder_layers=max(4, config.decoder_layers), dropout=0.25, null_queries=0.15)
    return replace(deeper, d_model=384, d_ff=1536, heads=6, epochs=12) if config.d_model < 384 else deeper


_BUDGET = dict.fromkeys(FROZEN, ascending(16, (512, 1024, 2048)))
"""Schedules whose bits `best` may spend where the scale's own schedule is smaller: the paper's 20 bytes."""


def fit_to_data(config: RunConfig, num_items: int, num_pairs: int) -> RunConfig:
    """Return the config for this much training data: no level larger than a quarter of the items, in powers of two,
    and batches small enough and epochs many enough for every training to have `LEAST_STEPS` steps.
    """
    most = 2 ** max(1, int(math.log2(max(8, num_items) / 4)))
    vocab = tuple(min(size, most) for size in config.tokenizer.vocab)
    tokenizer = replace(config.tokenizer, vocab=vocab)
    return replace(
        config,
        fusion=_long_enough(config.fusion, num_pairs),
        tokenizer=_long_enough(tokenizer, num_pairs) if tokenizer.epochs else tokenizer,
        query=_long_enough(config.query, num_pairs),
        decoder=_long_enough(config.decoder, num_pairs),
    )


def genius_original(base: RunConfig) -> RunConfig:
    """The published GENIUS architecture: 30 soft tokens, no encoder layers, EMA codebooks, learned modality code."""
    config = genius(base)
    tokenizer = replace(config.tokenizer, update="ema", modality="learned", revive_below=2.0, revive_absolute=True)
    decoder = replace(config.decoder, soft_tokens=30, encoder_layers=0, softmax="joint", augmentation="per_dim_sqrt")
    if base.scale == "paper":
        tokenizer = replace(tokenizer, vocab=uniform(8, 4096), epochs=21, weight_decay=0.2)
        decoder = DECODERS["genius"]
    return replace(config, tokenizer=tokenizer, decoder=decoder, search=replace(config.search, normalisation="joint"))


def pro_released(base: RunConfig) -> RunConfig:
    """What the authors' released code does where it departs from the paper."""
    base = base if base.scale == "paper" else jointly(base)
    tokenizer = replace(
        base.tokenizer,
        update="ema",
        rank_form="items",
        rank_cosine=True,
        rank_scale_tau2=True,
        rank_weight=100.0,
        rank_keep_positive=False,
        rank_student_gradient=True,
        train_fusion=True,
        modality_vector=False,
        revive_below=2.0,
        revive_absolute=True,
    )
    decoder = replace(base.decoder, augmentation="off", softmax="joint", code_init=False, lr_end=1.0, clip=0.0)
    return replace(
        base,
        tokenizer=tokenizer,
        decoder=decoder,
        search=replace(base.search, zscore=True, normalisation="joint", omega=10.0),
    )


def mbeir(base: RunConfig) -> RunConfig:
    """One universal model for M-BEIR, on frozen CLIP-SF features of its up-sampled union of training sets.

    All numbers the paper gives are those of this model, so at paper scale it is `pro` and differs in nothing.
    """
    return base


def _ablation(pd: bool, vs: bool, sf: bool) -> Callable[[RunConfig], RunConfig]:
    def build(base: RunConfig) -> RunConfig:
        config = base
        for keep, remove in ((pd, without_pd), (vs, without_vs), (sf, without_sf)):
            config = config if keep else remove(config)
        return config

    return build


RECIPES: dict[str, Callable[[RunConfig], RunConfig]] = {
    "pro": pro,
    "genius": genius,
    "pd": _ablation(True, False, False),
    "vs": _ablation(False, True, False),
    "sf": _ablation(False, False, True),
    "pd_vs": _ablation(True, True, False),
    "pd_sf": _ablation(True, False, True),
    "vs_sf": _ablation(False, True, True),
    "pro_literal": pro_literal,
    "pro_released": pro_released,
    "genius_original": genius_original,
    "genius_half": _genius_of(0.5),
    "genius_double": _genius_of(2.0),
    "genius_joint": lambda base: genius(jointly(base)),
    "best": best,
    "best_ensemble": best_ensemble,
    "mbeir": mbeir,
}


def recipe(name: str, scale: str = "paper", seed: int = 0, space: Space = "") -> RunConfig:
    """Return the configuration of a recipe at a scale; `space` trains its fused space as `base_of` tells.

    >>> recipe("pro").tokenizer.vocab[:5], recipe("pro").search.omega
    ((512, 512, 512, 512, 1024), 10.0)
    """
    build = RECIPES[one_of("recipe", name, RECIPES)]
    return replace(build(base_of(scale, space)), recipe=name, seed=whole_number("seed", seed, 0))
