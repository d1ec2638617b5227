"""UniIR's BLIP with feature fusion: `uniir-blip-ff:blip_ff_large.pth`, one vector for a text and a picture together.

A BERT with cross-attention reads the text and looks at the patches of BLIP's vision transformer; the feature is its
pooled first token. As in UniIR, a missing text is the empty one and a missing picture is all zeros after
normalisation. The tokenizer is read from the checkpoint's folder or else is bert-base-uncased from the hub; the two
tokens BLIP adds to it are never used here. Shapes: N pairs, S pixels a side, D numbers a feature.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from siglum.encode.frozen import FrozenEncoder, ImageTransform, vocabulary_fingerprint
from siglum.encode.hub import count_layers, fill, need, read_checkpoint, take, tokenizer_beside
from siglum.types import SiglumError

HEAD = 64
"""Width of an attention head, in BERT and in both of BLIP's vision transformers."""
CONTEXT = 100
"""Tokens at which UniIR cuts a text."""
RENAMED = (
    ("embeddings.class_embedding", "cls_token"),
    ("embeddings.position_embedding", "pos_embed"),
    ("embeddings.patch_embedding", "patch_embed.proj"),
    ("encoder.layers", "blocks"),
    ("self_attn.projection", "attn.proj"),
    ("self_attn", "attn"),
    ("post_layernorm", "norm"),
    ("layer_norm", "norm"),
)
"""Parts of names in transformers' vision model of BLIP, and in BLIP's own; the text model's names are the same."""

Pair = tuple[str | None, np.ndarray | None]


class BlipFusionEncoder(FrozenEncoder):
    """Reads text and picture together; texts and pictures alone lie in the same space."""

    def __init__(
        self, name: str, towers: tuple[Any, Any], tokenizer: Any, sources: Sequence[Path | str], **settings: Any
    ) -> None:
        """Take BLIP's vision and text models and a BERT tokenizer."""
        vision, text = towers
        transform = ImageTransform(vision.config.image_size, "whole")
        super().__init__(
            name, transform, text.config.hidden_size, [*sources, vocabulary_fingerprint(tokenizer)], **settings
        )
        self.vision, self.text = vision.to(self.device, self.dtype), text.to(self.device, self.dtype)
        self.tokenizer, self.context = tokenizer, min(CONTEXT, text.config.max_position_embeddings)

    def encode_pairs(self, texts: Sequence[str | None], pictures: Sequence[np.ndarray | None]) -> np.ndarray:
        """Return one row a pair, not normalised, float32 (N, D); either part of a pair may be missing."""
        if len(texts) != len(pictures):
            raise SiglumError(f"there are {len(texts)} texts but {len(pictures)} pictures to pair with them.")
        pairs = list(zip(texts, pictures, strict=True))
        if any(text is None and picture is None for text, picture in pairs):
            raise SiglumError("a pair has neither text nor picture; leave it out.")
        return self.in_batches(pairs, self.pair_features)

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        """Return one row a text without a picture, float32 (N, D)."""
        return self.encode_pairs(texts, [None] * len(texts))

    def encode_images(self, pictures: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        """Return one row a picture without a text, float32 (N, D), from uint8 pixels (S, S, 3)."""
        return self.encode_pairs([None] * len(pictures), list(pictures))

    def pair_features(self, pairs: Sequence[Pair]) -> Tensor:
        """Return the features of one batch of pairs, (N, D)."""
        pixels_M3SS = self.see([picture for _, picture in pairs if picture is not None])
        # Row 0 is the missing picture, so that it is looked at once however many pairs miss theirs.
        seen = torch.cat([pixels_M3SS.new_zeros(1, 3, self.picture_size, self.picture_size), pixels_M3SS])
        there_N = torch.tensor([picture is not None for _, picture in pairs], device=self.device)
        patches = self.vision(seen).last_hidden_state[there_N.cumsum(0) * there_N]
        tokens = self.tokenizer(
            [text or "" for text, _ in pairs],
            padding="max_length",
            truncation=True,
            max_length=self.context,
            return_tensors="pt",
        )
        words = {part: tokens[part].to(self.device) for part in ("input_ids", "attention_mask")}
        features_ND: Tensor = self.text(**words, encoder_hidden_states=patches).pooler_output
        return features_ND


def build(model: str, **settings: Any) -> BlipFusionEncoder:
    """Return the BLIP in a checkpoint of UniIR's."""
    name, path = f"uniir-blip-ff:{model}", Path(model)
    transformers = need("transformers", name, "transformers")
    state = read_checkpoint(path)
    tokenizer = tokenizer_beside(path, "google-bert/bert-base-uncased", name)
    vision = transformers.BlipVisionModel(_vision_config(transformers, state, path))
    fill(vision, lambda key: take(state, f"visual_encoder.{_rename(key)}", path), path)
    text = transformers.BlipTextModel(_text_config(transformers, state, path))
    fill(text, lambda key: take(state, f"text_encoder.{key}", path), path)
    return BlipFusionEncoder(name, (vision, text), tokenizer, [path], **settings)


def _rename(key: str) -> str:
    for ours, theirs in RENAMED:
        key = key.replace(ours, theirs)
    return key


def _vision_config(transformers: Any, state: Mapping[str, Tensor], path: Path) -> Any:
    width, _, patch, _ = take(state, "visual_encoder.patch_embed.proj.weight", path).shape
    places = take(state, "visual_encoder.pos_embed", path).shape[1]
    return transformers.BlipVisionConfig(
        hidden_size=width,
        intermediate_size=take(state, "visual_encoder.blocks.0.mlp.fc1.weight", path).shape[0],
        num_hidden_layers=count_layers(state, "visual_encoder.blocks."),
        num_attention_heads=width // HEAD,
        image_size=patch * round((places - 1) ** 0.5),
        patch_size=patch,
        layer_norm_eps=1e-6,
    )


def _text_config(transformers: Any, state: Mapping[str, Tensor], path: Path) -> Any:
    vocabulary, width = take(state, "text_encoder.embeddings.word_embeddings.weight", path).shape
    layer = "text_encoder.encoder.layer."
    return transformers.BlipTextConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        encoder_hidden_size=take(state, f"{layer}0.crossattention.self.key.weight", path).shape[1],
        intermediate_size=take(state, f"{layer}0.intermediate.dense.weight", path).shape[0],
        num_hidden_layers=count_layers(state, layer),
        num_attention_heads=width // HEAD,
        max_position_embeddings=take(state, "text_encoder.embeddings.position_embeddings.weight", path).shape[0],
        bos_token_id=None,
        eos_token_id=None,
        sep_token_id=None,
    )
