"""CLIP through transformers: `clip:ViT-L/14`, any CLIP on the Hugging Face hub, or a local folder of one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from siglum.encode.frozen import FrozenEncoder, ImageTransform, read_transform, vocabulary_fingerprint
from siglum.encode.hub import load_model, load_tokenizer, model_folder, need, weight_files

OPENAI = {
    "ViT-B/32": "openai/clip-vit-base-patch32",
    "ViT-B/16": "openai/clip-vit-base-patch16",
    "ViT-L/14": "openai/clip-vit-large-patch14",
    "ViT-L/14-336": "openai/clip-vit-large-patch14-336",
}
"""OpenAI's own names of its models, and where they are kept."""


class ClipEncoder(FrozenEncoder):
    """The projected features of a CLIP; texts are cut at its context, usually 77 tokens."""

    def __init__(
        self,
        name: str,
        model: Any,
        tokenizer: Any,
        transform: ImageTransform,
        sources: Sequence[Path | str],
        **settings: Any,
    ) -> None:
        """Take a transformers model with `get_text_features` and `get_image_features`, and its tokenizer."""
        dim = getattr(model.config, "projection_dim", model.config.vision_config.hidden_size)
        super().__init__(name, transform, dim, [*sources, vocabulary_fingerprint(tokenizer)], **settings)
        self.context = model.config.text_config.max_position_embeddings
        self.model, self.tokenizer = model.to(self.device, self.dtype), tokenizer

    def tokens(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """Return token numbers and masks of one fixed length, so that a text's row does not depend on its batch."""
        found = self.tokenizer(
            list(texts), padding="max_length", truncation=True, max_length=self.context, return_tensors="pt"
        )
        return {part: found[part].to(self.device) for part in ("input_ids", "attention_mask")}

    def text_features(self, texts: Sequence[str]) -> Tensor:
        """Return the projected features of one batch of texts, (N, D)."""
        features_ND: Tensor = self.model.get_text_features(**self.tokens(texts)).pooler_output
        return features_ND

    def image_features(self, pixels_N3SS: Tensor) -> Tensor:
        """Return the projected features of one batch of pictures, (N, D)."""
        features_ND: Tensor = self.model.get_image_features(pixels_N3SS).pooler_output
        return features_ND


def build(model: str, **settings: Any) -> ClipEncoder:
    """Return the CLIP of one of OpenAI's names, a name on the hub, or a folder."""
    name = f"clip:{model}"
    transformers = need("transformers", name, "transformers")
    folder = model_folder(OPENAI.get(model, model), name)
    clip = load_model(transformers.CLIPModel, folder)
    transform = read_transform(folder, ImageTransform(clip.config.vision_config.image_size))
    sources = [folder / "config.json", *weight_files(folder)]
    return ClipEncoder(name, clip, load_tokenizer(folder), transform, sources, **settings)
