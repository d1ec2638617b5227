"""UniIR's CLIP with score fusion: `uniir-clip-sf:clip_sf_large.pth`, a CLIP under OpenAI's key names.

Texts and pictures are encoded apart and not normalised; UniIR adds what a row has, which the fusion `sum` does. The
tokenizer is read from the checkpoint's folder or, if none lies there, taken from OpenAI's ViT-L/14 on the hub.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from siglum.encode.clip import OPENAI, ClipEncoder
from siglum.encode.frozen import ImageTransform
from siglum.encode.hub import count_layers, fill, need, read_checkpoint, take, tokenizer_beside

PREFIX = "clip_model."
HEAD = 64
"""Width of an attention head in every CLIP of OpenAI's."""
RENAMED = (
    ("vision_model.embeddings.class_embedding", "visual.class_embedding"),
    ("vision_model.embeddings.patch_embedding", "visual.conv1"),
    ("vision_model.embeddings.position_embedding.weight", "visual.positional_embedding"),
    ("vision_model.pre_layrnorm", "visual.ln_pre"),
    ("vision_model.post_layernorm", "visual.ln_post"),
    ("vision_model.encoder.layers", "visual.transformer.resblocks"),
    ("visual_projection.weight", "visual.proj"),
    ("text_model.embeddings.token_embedding", "token_embedding"),
    ("text_model.embeddings.position_embedding.weight", "positional_embedding"),
    ("text_model.final_layer_norm", "ln_final"),
    ("text_model.encoder.layers", "transformer.resblocks"),
    ("text_projection.weight", "text_projection"),
    (".layer_norm", ".ln_"),
    (".mlp.fc1", ".mlp.c_fc"),
    (".mlp.fc2", ".mlp.c_proj"),
    (".self_attn.", ".attn."),
)
"""Parts of names in transformers' CLIP, and in OpenAI's."""


def build(model: str, **settings: Any) -> ClipEncoder:
    """Return the CLIP in a checkpoint of UniIR's."""
    name, path = f"uniir-clip-sf:{model}", Path(model)
    transformers = need("transformers", name, "transformers")
    state = read_checkpoint(path)
    tokenizer = tokenizer_beside(path, OPENAI["ViT-L/14"], name)
    config = _configure(transformers, state, tokenizer, path)
    clip = transformers.CLIPModel(config)
    fill(clip, lambda key: _find(state, key, path), path)
    return ClipEncoder(name, clip, tokenizer, ImageTransform(config.vision_config.image_size), [path], **settings)


def _configure(transformers: Any, state: Mapping[str, Tensor], tokenizer: Any, path: Path) -> Any:
    """Return the transformers configuration that the shapes of the weights tell."""

    def tower(prefix: str) -> dict[str, Any]:
        blocks = f"{PREFIX}{prefix}transformer.resblocks."
        hidden, width = take(state, f"{blocks}0.mlp.c_fc.weight", path).shape
        layers = count_layers(state, blocks)
        return {
            "hidden_size": width,
            "intermediate_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": width // HEAD,
            "hidden_act": "quick_gelu",
        }

    vocabulary, _ = take(state, f"{PREFIX}token_embedding.weight", path).shape
    context, _ = take(state, f"{PREFIX}positional_embedding", path).shape
    places, _ = take(state, f"{PREFIX}visual.positional_embedding", path).shape
    patch = take(state, f"{PREFIX}visual.conv1.weight", path).shape[-1]
    text = tower("") | {"vocab_size": vocabulary, "max_position_embeddings": context}
    text |= {f"{mark}_token_id": getattr(tokenizer, f"{mark}_token_id") for mark in ("bos", "eos", "pad")}
    vision = tower("visual.") | {"patch_size": patch, "image_size": patch * round((places - 1) ** 0.5)}
    dim = take(state, f"{PREFIX}text_projection", path).shape[1]
    return transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=dim)


def _find(state: Mapping[str, Tensor], key: str, path: Path) -> Tensor:
    """Return the tensor for a key of transformers' CLIP; OpenAI keeps queries, keys and values in one."""
    for ours, theirs in RENAMED:
        key = key.replace(ours, theirs)
    for place, part in enumerate(("q_proj", "k_proj", "v_proj")):
        if f".attn.{part}." in key:
            return take(state, PREFIX + key.replace(f"{part}.", "in_proj_"), path).chunk(3)[place]
    found = take(state, PREFIX + key, path)
    return found.T if key in ("visual.proj", "text_projection") else found
