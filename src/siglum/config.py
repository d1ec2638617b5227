"""Frozen configuration of every stage: one dataclass a stage, one field a decision, no hidden defaults.

`as_dict`, `from_dict`, `diff` and `config_fingerprint` work on any of them; a recipe returns a `RunConfig`.
"""

from __future__ import annotations

import types
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from numbers import Integral
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from siglum.files import fingerprint
from siglum.ranges import as_real, check_ranges
from siglum.registry import QUANTISERS, SCORERS
from siglum.types import SiglumError, one_of, shown

FusionKind = Literal["combiner", "towers", "gated", "sum", "none"]
ModalityCode = Literal["metadata", "learned", "none"]
CodebookUpdate = Literal["ema", "grad", "hybrid"]
Normalisation = Literal["level", "joint", "children"]
Augmentation = Literal["scalar", "per_dim_sqrt", "off"]
HistoryVector = Literal["mean", "last", "learned", "ridge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionConfig:
    """How frozen image and text features become one unit vector, and its contrastive training."""

    kind: FusionKind = "combiner"
    """combiner (GENIUS), one tower a modality, gated sum, plain sum, or none (one modality only)."""
    dim: int = 768
    """Size d of the fused space."""
    projection: int = 2560
    """Width of each modality's projection in the combiner."""
    hidden: int = 5120
    """Width of the hidden layers of combiner and towers."""
    dropout: float = 0.0
    """Dropout inside the fusion module."""
    input_dropout: float = 0.0
    """Dropout of the frozen features before the towers."""
    standardise: bool = False
    """Shift and scale the frozen features by their training statistics first."""
    epochs: int = 0
    """Epochs of contrastive training alone before the tokenizer; 0 starts the tokenizer from scratch."""
    batch_size: int = 2048
    """Pairs a step."""
    lr: float = 1e-4
    """Peak learning rate, cosine to a tenth."""
    weight_decay: float = 0.0
    """Decoupled weight decay on matrices."""
    temperature: float = 0.01
    """Temperature of the contrastive loss L_cl."""
    smoothing: float = 0.0
    """Label smoothing of L_cl."""
    negatives: Literal["all", "modality"] = "all"
    """Which targets of the batch stand against a query's own: all, or those of the same modality as its own."""
    warmup: float = 0.0
    """Share of all steps with rising learning rate."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Arithmetic of the module while it learns: bf16 autocast on a GPU and fp32 elsewhere (auto), or one of them."""
    members: int = 1
    """Spaces of twice `dim` numbers that are trained apart, put side by side and cut to the `dim` main axes of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerConfig:
    """The quantiser and how it is trained; what concerns training by gradient is for residual codes alone."""

    kind: str = "residual"
    """How vectors become codes: residual, product, or the name of a registered quantiser."""
    vocab: tuple[int, ...] = (512,) * 4 + (1024,) * 8 + (2048,) * 4
    """Codebook size V of every level, shallow to deep (vocabulary schedule)."""
    modality: ModalityCode = "metadata"
    """First token: from metadata, learned (3-way k-means as in GENIUS), or none."""
    modality_vector: bool = True
    """Whether the modality token carries a codeword that is part of the reconstruction."""
    update: CodebookUpdate = "hybrid"
    """Codebooks follow residuals by EMA, by gradient, or EMA plus the gradient of L_rank and L_mse."""
    decay: float = 0.9
    """EMA decay."""
    revive_below: float = 0.02
    """A code is dead when it was not chosen once in 1 / revive_below fair shares; 0 turns revival off."""
    revive_absolute: bool = False
    """Read `revive_below` as the least EMA count of vectors a step, as GENIUS does."""
    kmeans_iters: int = 10
    """Lloyd iterations of the initialisation, level by level."""
    kmeans_per_code: int = 50
    """Vectors per codeword used for the initialisation, if the collection has that many."""
    assign_beam: int = 1
    """Code sequences kept while an item is coded; 1 is the greedy rule, more find a nearer reconstruction."""
    disambiguation: int = 0
    """Codes of a last token that numbers the items whose other codes are equal, as TIGER does; 0 has no such token."""
    widths: tuple[int, ...] = (512, 256, 128)
    """Widths of the layers between vectors and what they are coded in, for kind `rqvae`."""
    latent: int = 32
    """Numbers of what vectors are coded in, for kind `rqvae`."""
    statistics: Literal["both", "targets"] = "both"
    """Which vectors feed the EMA: queries and targets, or targets alone."""
    rq_weight: float = 100.0
    """Weight beta of L_rq."""
    mse_weight: float = 100.0
    """Weight gamma of L_mse."""
    rank_weight: float = 100.0
    """Weight lambda of L_rank, prefix ranking distillation; 0 turns it off."""
    rank_form: Literal["prefixes", "items"] = "prefixes"
    """Distributions over distinct prefixes with maximum aggregation (paper) or over items (released code)."""
    rank_teacher: Literal["fused", "positive", "shuffled"] = "fused"
    """What L_rank teaches: fused similarities (paper), or as a control the positive alone or shuffled similarities."""
    rank_cosine: bool = False
    """Normalise partial reconstructions in L_rank, as the released code does."""
    rank_scale_tau2: bool = False
    """Multiply L_rank by tau squared, as the released code does."""
    rank_keep_positive: bool = True
    """Force the positive into the candidate set."""
    rank_straight_through: bool = True
    """Let L_rank reach the fusion module through the straight-through path, not the codewords alone."""
    rank_student_gradient: bool = False
    """Let the student's similarities send gradient to the query as well."""
    temperature: float = 0.05
    """Temperature tau shared by the teacher and the quantised ranking."""
    top_k: int = 128
    """In-batch candidates per query, by teacher score."""
    warmup: float = 0.1
    """Share of all steps over which lambda rises linearly."""
    train_fusion: bool = True
    """Whether the fusion module learns along with the codebooks."""
    space_epochs: int = 0
    """Epochs of L_cl alone, in the same batches and at that rate, before the codebooks: a control of joint training."""
    refit: bool = False
    """Fit the codebooks anew by k-means when training is over, to the space as it has become."""
    fusion_lr_scale: float = 1.0
    """Learning rate of the fusion module relative to the codebooks'."""
    epochs: int = 20
    """Passes over the training pairs."""
    batch_size: int = 2048
    """Pairs a step, over all processes."""
    lr: float = 1e-4
    """Peak learning rate, cosine to a tenth."""
    weight_decay: float = 0.0
    """Decoupled weight decay on the fusion module's matrices."""

    @property
    def levels(self) -> int:
        """Number L of residual levels, the modality token not counted."""
        return len(self.vocab)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryConfig:
    """How a decoder reads a history of items in the place of a vector, and what geometry takes for its vector."""

    items: int = 0
    """Most recent items it reads; 0 reads a vector."""
    users: int = 0
    """Tokens that users are spread over, one of which stands before a history; 0 has none."""
    fade: float = 0.7
    """Weight of an item in the mean, relative to the one that came after it."""
    contrast: float = 0.0
    """Weight of the contrastive loss that teaches the learned map to aim at the next item, beside the codes' own."""
    temperature: float = 0.07
    """Temperature of that loss."""
    patience: int = 0
    """Validations in a row without a better NDCG@10 after which training stops; 0 never stops early."""
    every: int = 1
    """Epochs from one validation to the next."""
    asked: int = 2000
    """Most users that a validation asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """The T5-shaped generator and how it is trained."""

    d_model: int = 512
    """Width."""
    d_ff: int = 2048
    """Feed-forward width."""
    d_kv: int = 64
    """Width of one head."""
    heads: int = 8
    """Attention heads."""
    encoder_layers: int = 6
    """Encoder blocks over the soft tokens."""
    decoder_layers: int = 6
    """Decoder blocks."""
    soft_tokens: int = 1
    """Soft tokens made from the query vector by one linear layer."""
    dropout: float = 0.1
    """Dropout, placed as in T5."""
    softmax: Literal["level", "joint"] = "level"
    """Cross-entropy over the level's own vocabulary, or over all tokens at once."""
    code_init: bool = True
    """Start token embeddings from a random projection of the codewords (GENIUS)."""
    t5_weights: str = ""
    """Folder with T5 weights (safetensors) to start from; empty is a random start."""
    augmentation: Augmentation = "scalar"
    """Query augmentation by interpolation with the target."""
    soft_targets: float = 0.0
    """Temperature T of soft code targets; 0 is the paper's one-hot cross-entropy."""
    soft_relative: bool = False
    """Read T relative to the mean squared length of each level's residuals, which shrink with depth."""
    null_queries: float = 0.0
    """Share of training queries blanked to zeros, so that the decoder also learns P(codes) without a query."""
    epochs: int = 30
    """Passes over the training pairs."""
    batch_size: int = 512
    """Pairs a step."""
    lr: float = 1e-4
    """Peak learning rate."""
    lr_end: float = 0.1
    """Final learning rate as a share of the peak (cosine)."""
    warmup: float = 0.0
    """Share of all steps with rising learning rate."""
    weight_decay: float = 0.0
    """Decoupled weight decay on matrices."""
    clip: float = 1.0
    """Largest gradient norm; 0 turns clipping off."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Arithmetic of training: bf16 autocast on a GPU and fp32 elsewhere (auto), or one of them everywhere."""
    history: HistoryConfig = HistoryConfig()
    """Reading of histories, for recommendation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryConfig:
    """The query head: towers that learn to aim at the finished codes, for queries alone."""

    members: int = 0
    """Number of towers, each trained apart; 0 searches with the fused vector, as the paper does."""
    hidden: int = 1024
    """Width of a tower's hidden layer."""
    dropout: float = 0.6
    """Dropout of the hidden layer."""
    input_dropout: float = 0.3
    """Dropout of the frozen features."""
    temperature: float = 0.05
    """Temperature of the contrastive loss against reconstructions."""
    smoothing: float = 0.1
    """Label smoothing of that loss."""
    epochs: int = 6
    """Passes over the training pairs."""
    batch_size: int = 1024
    """Pairs a step."""
    lr: float = 2e-3
    """Peak learning rate, with a short rise and cosine to a twentieth."""
    weight_decay: float = 0.2
    """Decoupled weight decay on matrices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchConfig:
    """Trie-constrained beam search and its score."""

    scorer: str = "fused"
    """What ranks prefixes: fused (decoder + geometry), decoder, geometry, oracle (quantised), or a registered one."""
    beam: int = 50
    """Beam width B."""
    omega: float = 10.0
    """Weight of the geometric score, by default 1 / (2 tau)."""
    prior: float = 0.0
    """Weight of -log P(codes) without a query: takes out what the decoder believes of an item whatever is asked."""
    normalisation: Normalisation = "level"
    """Log-softmax over the level, over all tokens (joint), or over legal children only."""
    vector: HistoryVector = "mean"
    """Vector of a history: mean of its items, the last one, a learned map of encoder states, or a ridge regression."""
    zscore: bool = False
    """Standardise the geometric score over the level's codebook, as the released code does."""
    lookahead: bool = False
    """Keep a prefix for the best geometric score of a leaf below it instead of its own partial sum's."""
    leaf_order: Literal["pool", "dense"] = "pool"
    """Order of items that share all codes: pool order, or dense similarity where vectors are kept."""
    batch_size: int = 64
    """Queries decoded at once; does not change results."""
    engine: Literal["auto", "fast", "reference"] = "auto"
    """The fast engine where it gives the same result as the reference search (auto), or one of them."""
    precision: Literal["fp32", "bf16", "int8"] = "fp32"
    """Arithmetic of the fast engine's decoder; bf16 and int8 move scores by their rounding."""
    mode: Literal["exact", "renormalised", "scan", "scan-rescore"] = "exact"
    """The paper's beam search, the same with normalisation children, a scan of all codes, or a scan then the score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldConfig:
    """The drawn world of scenes."""

    items: int = 12_000
    """Items in all splits together, 200 to 1,000,000."""
    variants: int = 1
    """Wordings and redrawings of every training query."""
    seed: int = 0
    """Seed of the world itself, apart from the seed of training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Everything that decides a run."""

    recipe: str = "pro"
    """Name of the recipe this came from."""
    scale: str = "paper"
    """tiny, demo, small, captions[_small], catalogue[_small] or paper."""
    seed: int = 0
    """Seed of initialisation, shuffling, dropout and augmentation."""
    world: WorldConfig = field(default_factory=WorldConfig)
    fusion: FusionConfig = field(default_factory=FusionConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    query: QueryConfig = field(default_factory=QueryConfig)
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    search: SearchConfig = field(default_factory=SearchConfig)


def as_dict(config: Any, *, later: bool = True) -> dict[str, Any]:
    """Return a config as plain JSON values, with or without fields of `LATER` that have their defaults."""
    left_out = () if later else LATER.get(type(config), ())
    kept = (f for f in fields(config) if f.name not in left_out or getattr(config, f.name) != f.default)
    values = {f.name: getattr(config, f.name) for f in kept}
    for name, value in values.items():
        if is_dataclass(value):
            values[name] = as_dict(value, later=later)
        elif isinstance(value, tuple):
            values[name] = list(value)
    return values


_hints = cache(get_type_hints)  # every search reads a configuration


def from_dict(kind: type[Any], values: dict[str, Any]) -> Any:
    """Build a config from JSON values; an unknown field or a value of the wrong kind is refused by name."""
    if not isinstance(values, dict):
        raise SiglumError(f"{kind.__name__} is {shown(values)}, but must be an object with its fields.")
    hints = _hints(kind)  # type: ignore[arg-type]
    known = {f.name for f in fields(kind)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise SiglumError(f"{kind.__name__} has no field {shown(unknown[0])}; it has {', '.join(sorted(known))}.")
    built = kind(**{name: _read(f"{kind.__name__}.{name}", hints[name], value) for name, value in values.items()})
    check_ranges(built)
    return built


NAMED = {"TokenizerConfig.kind": QUANTISERS, "SearchConfig.scorer": SCORERS}
"""Settings that name a registered part."""
LATER = {
    FusionConfig: ("members",),
    TokenizerConfig: ("kind", "rank_teacher", "space_epochs", "refit", "disambiguation", "widths", "latent"),
    DecoderConfig: ("history",),
    SearchConfig: ("vector",),
}
"""Fields that a `config.json` may lack."""


def _read(name: str, hint: Any, value: Any) -> Any:
    if is_dataclass(hint):
        if not isinstance(value, dict):
            raise SiglumError(f"{name} is {shown(value)}, but must be an object with the fields of {hint.__name__}.")  # type: ignore[union-attr]
        return from_dict(hint, value)  # type: ignore[arg-type]
    if name in NAMED:
        return NAMED[name].checked(name, value)
    origin = get_origin(hint)
    if origin is Literal:
        return one_of(name, value, get_args(hint))
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise SiglumError(f"{name} is {shown(value)}, but must be a list.")
        return tuple(_read(f"{name}[{place}]", get_args(hint)[0], entry) for place, entry in enumerate(value))
    if origin in (Union, types.UnionType):
        return value
    if hint is float:
        return as_real(name, value)
    if hint is int and isinstance(value, Integral) and not isinstance(value, bool):
        value = int(value)  # a number of numpy's as well, which JSON could not write
        if value.bit_length() > 63:
            raise SiglumError(f"{name} is {shown(value)}, which is too large.")
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise SiglumError(f"{name} is {shown(value)}, but must be of type {hint.__name__}.")
    return value


def diff(left: Any, right: Any, prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Return the fields in which two configs differ, by dotted name.

    >>> diff(SearchConfig(beam=10), SearchConfig(beam=20))
    {'beam': (10, 20)}
    """
    found: dict[str, tuple[Any, Any]] = {}
    for f in fields(left):
        a, b = getattr(left, f.name), getattr(right, f.name)
        if is_dataclass(a):
            found |= diff(a, b, f"{prefix}{f.name}.")
        elif a != b:
            found[f"{prefix}{f.name}"] = (a, b)
    return found


def config_fingerprint(config: Any) -> str:
    """Return the fingerprint of a config's values; a later field counts only where it is not at its default."""
    return fingerprint(as_dict(config, later=False))
