"""Start the decoder's blocks from a Hugging Face T5 folder, without needing its library."""

# Shapes: M d_model, H heads.

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from siglum.files import read_json
from siglum.generate.decoder import CodeDecoder
from siglum.generate.t5 import BUCKETS, EPS, MAX_DISTANCE
from siglum.types import SiglumError

PARTS = {
    "self_norm.scale": "{first}.layer_norm.weight",
    "self_attention": "{first}.SelfAttention",
    "cross_norm.scale": "{cross}.layer_norm.weight",
    "cross_attention": "{cross}.EncDecAttention",
    "feed_norm.scale": "{last}.layer_norm.weight",
    "feed_forward": "{last}.DenseReluDense",
}
"""Where T5 keeps each part of a block, by sublayer."""


def load_t5(decoder: CodeDecoder, folder: Path) -> list[str]:
    """Copy the encoder's and decoder's blocks from a T5 folder; return the parameters left as they were.

    The first layers are taken where `decoder` has fewer than the folder. Token embeddings and soft tokens have no
    counterpart and stay. The folder holds config.json and model.safetensors, or else pytorch_model.bin.
    """
    _check_config(read_json(folder / "config.json"), folder)
    source = _read_weights(folder)
    parameters = dict(decoder.named_parameters())
    pairs = {name: key for name in parameters if (key := t5_key(name)) is not None}
    for name, key in pairs.items():
        if key not in source:
            raise SiglumError(f"{folder} has no tensor {key!r}; give the decoder at most as many layers as it has.")
        if source[key].shape != parameters[name].shape:
            raise SiglumError(
                f"{key!r} in {folder} has shape {tuple(source[key].shape)}, but the decoder needs "
                f"{tuple(parameters[name].shape)}; set d_model, d_ff, d_kv and heads to those of the folder."
            )
    # Copy only after everything was checked, so that a refused folder leaves the decoder as it was.
    with torch.no_grad():
        for name, key in pairs.items():
            parameters[name].copy_(source[key])
    return [name for name in parameters if name not in pairs]


def t5_key(name: str) -> str | None:
    """Return T5's name of one of our parameters, or None if T5 has no counterpart.

    >>> t5_key("decoder.blocks.3.feed_forward.wi")
    'decoder.block.3.layer.2.DenseReluDense.wi.weight'
    >>> t5_key("soft") is None
    True
    """
    if match := re.fullmatch(r"(encoder|decoder)\.final_norm\.scale", name):
        return f"{match[1]}.final_layer_norm.weight"
    if match := re.fullmatch(r"(encoder|decoder)\.bias", name):
        return f"{match[1]}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    if match := re.fullmatch(r"(encoder|decoder)\.blocks\.(\d+)\.(\w+)\.(\w+)", name):
        side, layer, part, kind = match.groups()
        sublayers = {"first": "layer.0", "cross": "layer.1", "last": "layer.1" if side == "encoder" else "layer.2"}
        ending = PARTS[f"{part}.scale"] if kind == "scale" else f"{PARTS[part]}.{kind}.weight"
        return f"{side}.block.{layer}.{ending.format(**sublayers)}"
    return None


def _check_config(config: Mapping[str, Any], folder: Path) -> None:
    """Refuse a model that is not T5 v1.0 in what shapes alone do not tell."""
    wanted = {
        "feed_forward_proj": "relu",
        "relative_attention_num_buckets": BUCKETS,
        "relative_attention_max_distance": MAX_DISTANCE,
        "layer_norm_epsilon": EPS,
    }
    for name, value in wanted.items():
        if config.get(name, value) != value:
            raise SiglumError(f"{folder} has {name} {config[name]!r}, but the decoder is T5 v1.0 with {value!r}.")


def _read_weights(folder: Path) -> dict[str, Tensor]:
    path = folder / "model.safetensors"
    try:
        if path.exists():
            from safetensors.torch import load_file

            return load_file(path)
        path = folder / "pytorch_model.bin"
        if path.exists():
            weights: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
            return weights
    except Exception as error:
        raise SiglumError(f"{path} could not be read ({type(error).__name__}); it may be truncated.") from error
    raise SiglumError(f"{folder} has neither model.safetensors nor pytorch_model.bin; point t5_weights to a T5 folder.")
