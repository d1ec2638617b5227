"""Which numbers a setting may have."""

from __future__ import annotations

import math
from dataclasses import fields
from numbers import Real
from typing import Any

from siglum.types import SiglumError, shown

LEAST = {
    **dict.fromkeys(("epochs", "lr", "weight_decay", "omega", "clip", "dropout", "warmup", "soft_targets"), 0.0),
    **dict.fromkeys(("prior", "null_queries", "input_dropout", "smoothing", "members", "space_epochs", "seed"), 0.0),
    **dict.fromkeys(("rank_weight", "rq_weight", "mse_weight", "revive_below", "decay", "kmeans_iters"), 0.0),
    **dict.fromkeys(("batch_size", "beam", "top_k", "dim", "projection", "hidden", "soft_tokens", "variants"), 1.0),
    **dict.fromkeys(("d_model", "d_ff", "d_kv", "heads", "decoder_layers", "kmeans_per_code", "assign_beam"), 1.0),
    "encoder_layers": 0.0,
    **dict.fromkeys(("items", "users", "fade", "contrast", "patience", "disambiguation"), 0.0),
    **dict.fromkeys(("every", "asked", "latent"), 1.0),
    "temperature": 1e-6,
}
"""The least value of every setting that has one."""


def check_ranges(config: Any) -> None:
    """Refuse numbers no stage could work with."""
    kind = type(config).__name__
    for f in fields(config):
        value, least = getattr(config, f.name), LEAST.get(f.name)
        if least is not None and not value >= least:
            raise SiglumError(f"{kind}.{f.name} is {shown(value)}, but must be at least {least:g}.")
    for name in ("dropout", "input_dropout", "smoothing", "decay", "warmup", "null_queries", "fade"):
        if getattr(config, name, 0.0) > 1:
            raise SiglumError(f"{kind}.{name} is {getattr(config, name)}, but must be at most 1.")
    vocab = getattr(config, "vocab", (2,))
    if not vocab or min(vocab) < 2:
        raise SiglumError(f"{kind}.vocab is {shown(list(vocab))}, but needs levels of at least 2 codewords.")


def as_real(name: str, value: Any) -> float:
    """Return a number as a float, refusing what is none and what has no place among the floats."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise SiglumError(f"{name} is {shown(value)}, but must be of type float.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise SiglumError(f"{name} is {shown(value)}, but must be a finite number.")
    return number
