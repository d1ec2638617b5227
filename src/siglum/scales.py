"""The sizes recipes come in: what `pro` is at each scale. Values were chosen on validation; see docs/lab-notes.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from siglum.config import DecoderConfig, FusionConfig, RunConfig, SearchConfig, TokenizerConfig, WorldConfig
from siglum.tokenize.schedule import ascending

DRAWN = FusionConfig(dropout=0.1, epochs=8, lr=4e-3, temperature=0.08)
"""How the fusion module learns on the drawn world."""
APART = TokenizerConfig(statistics="targets", train_fusion=False, lr=3e-4)
"""Codebooks that are learnt in a fused space that stays as it is."""
LONE = DecoderConfig(heads=4, encoder_layers=0, decoder_layers=1)
"""One block that reads the query's soft token."""


def tiny() -> RunConfig:
    """Seconds: every stage runs, nothing is good."""
    return RunConfig(
        scale="tiny",
        world=WorldConfig(items=1_200, variants=2),
        fusion=replace(DRAWN, dim=64, projection=96, hidden=128, batch_size=256),
        tokenizer=replace(APART, vocab=ascending(4, (16, 32, 64)), epochs=2, batch_size=256, top_k=64),
        decoder=replace(LONE, d_model=64, d_ff=128, d_kv=16, epochs=4, batch_size=128, lr=3e-3),
        search=SearchConfig(beam=10, omega=50.0, batch_size=128),
    )


def demo() -> RunConfig:
    """Minutes on two cores: the drawn world of 12,000 items."""
    return RunConfig(
        scale="demo",
        world=WorldConfig(items=12_000, variants=2),
        fusion=replace(DRAWN, dim=128, projection=256, hidden=512, batch_size=1024),
        tokenizer=replace(APART, vocab=ascending(16, (64, 128, 256)), epochs=2, batch_size=512),
        decoder=replace(LONE, d_model=128, d_ff=512, d_kv=32, epochs=5, batch_size=256, lr=2e-3),
        search=SearchConfig(omega=50.0),
    )


def small() -> RunConfig:
    """The drawn world of 60,000 items."""
    decoder = replace(LONE, d_model=256, d_ff=1024, encoder_layers=2, decoder_layers=4, dropout=0.2)
    return RunConfig(
        scale="small",
        world=WorldConfig(items=60_000, variants=2),
        fusion=replace(DRAWN, dim=256, projection=512, hidden=1024, epochs=12, batch_size=1024, lr=2e-3),
        tokenizer=replace(APART, vocab=ascending(16, (128, 256, 512)), epochs=4, batch_size=1024),
        decoder=replace(decoder, epochs=10, lr=1e-3),
        search=SearchConfig(omega=50.0),
    )


def captions() -> RunConfig:
    """Frozen features of captioned images, some thousands of them; minutes on a GPU."""
    fusion = FusionConfig(kind="towers", dim=128, hidden=2048, dropout=0.6, input_dropout=0.4, negatives="modality")
    learnt = {"epochs": 12, "batch_size": 1024, "lr": 2e-3, "weight_decay": 0.2, "warmup": 0.05}
    decoder = replace(LONE, d_model=256, d_ff=1024, decoder_layers=3, dropout=0.2, weight_decay=0.05)
    return RunConfig(
        scale="captions",
        fusion=replace(fusion, temperature=0.05, smoothing=0.1, **learnt),  # type: ignore[arg-type]
        tokenizer=replace(APART, vocab=ascending(16, (128, 256, 512)), kmeans_per_code=1000, epochs=3),
        decoder=replace(decoder, epochs=10, batch_size=1024, lr=1e-3, lr_end=0.02, warmup=0.05),
        search=SearchConfig(omega=80.0, batch_size=128),
    )


def captions_small() -> RunConfig:
    """The same with smaller models, for two CPU cores."""
    base = captions()
    return replace(
        base,
        scale="captions_small",
        fusion=replace(base.fusion, hidden=512, dropout=0.5, input_dropout=0.3, epochs=8),
        tokenizer=replace(base.tokenizer, epochs=1, kmeans_per_code=200, kmeans_iters=6),
        decoder=replace(base.decoder, d_model=128, d_ff=512, d_kv=32, decoder_layers=1, epochs=5, batch_size=512),
    )


def catalogue() -> RunConfig:
    """Frozen features of products, some ten thousands of them, and all eight kinds of query; minutes on a GPU."""
    return _of_eight_kinds(replace(captions(), scale="catalogue"))


def catalogue_small() -> RunConfig:
    """The same with smaller models, for two CPU cores."""
    return _of_eight_kinds(replace(captions_small(), scale="catalogue_small"))


def _of_eight_kinds(base: RunConfig) -> RunConfig:
    """Drop less than for captions, and set kinds of items against each other."""
    return replace(base, fusion=replace(base.fusion, dropout=0.4, input_dropout=0.2, negatives="all"))


def paper() -> RunConfig:
    """What the paper gives."""
    return RunConfig(scale="paper")


JOINT = {
    "tiny": (2, 1e-3),
    "demo": (4, 1e-3),
    "small": (6, 1e-3),
    "captions_small": (4, 1e-3),
    "captions": (10, 1e-3),
    "catalogue_small": (4, 1e-3),
    "catalogue": (10, 1e-3),
}
"""Epochs and learning rate of the tokenizer where the fusion module learns along."""
JOINT_SCALES: tuple[str, ...] = ()
"""Scales where validation prefers that; `paper` has joint training as the paper gives it."""
SIZES = (tiny, demo, small, captions_small, captions, catalogue_small, catalogue, paper)
BASES: dict[str, Callable[[], RunConfig]] = {size.__name__: size for size in SIZES}
FROZEN = ("captions_small", "captions", "catalogue_small", "catalogue")
"""Scales for frozen features of pictures and texts."""
SCALES = tuple(BASES)
