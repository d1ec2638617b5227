"""Models of open_clip: `openclip:ViT-B-32/laion2b_s34b_b79k`, an architecture with weights of its own or in a file.

Also `openclip:hf-hub:ORG/NAME` from the Hugging Face hub, and a folder that holds `open_clip_config.json`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from siglum.encode.frozen import FrozenEncoder, ImageTransform
from siglum.encode.hub import need
from siglum.files import fingerprint
from siglum.types import SiglumError, one_of

FRAMINGS = {"shortest": "centre", "squash": "whole"}
"""How open_clip calls the two framings."""


class OpenClipEncoder(FrozenEncoder):
    """The projected features of an open_clip model."""

    def __init__(self, name: str, model: Any, tokenizer: Any, transform: ImageTransform, **settings: Any) -> None:
        """Take a model with `encode_text` and `encode_image`, and its tokenizer of a fixed length."""
        model = model.eval()
        with torch.inference_mode():
            dim = model.encode_image(torch.zeros(1, 3, transform.size, transform.size)).shape[1]
        # The weights' file is known to open_clip alone, so the fingerprint is that of the weights themselves.
        parts = [part for key, value in model.state_dict().items() for part in (key, fingerprint(value.float()))]
        super().__init__(name, transform, dim, parts, **settings)
        self.model, self.tokenizer = model.to(self.device, self.dtype), tokenizer

    def text_features(self, texts: Sequence[str]) -> Tensor:
        """Return the projected features of one batch of texts, (N, D)."""
        features_ND: Tensor = self.model.encode_text(self.tokenizer(list(texts)).to(self.device))
        return features_ND

    def image_features(self, pixels_N3SS: Tensor) -> Tensor:
        """Return the projected features of one batch of pictures, (N, D)."""
        features_ND: Tensor = self.model.encode_image(pixels_N3SS)
        return features_ND


def build(model: str, **settings: Any) -> OpenClipEncoder:
    """Return the open_clip model of `ARCH/PRETRAINED`, `ARCH/FILE`, `hf-hub:ORG/NAME` or a folder."""
    name = f"openclip:{model}"
    open_clip = need("open_clip", name, "openclip")
    arch, weights = _split(open_clip, model)
    try:
        # Weights trained with OpenAI's quick form of GELU are wrong with the exact one, and say so only in a log.
        quick = bool(weights and open_clip.get_pretrained_cfg(arch, weights).get("quick_gelu"))
        found = open_clip.create_model(arch, pretrained=weights, force_quick_gelu=quick, require_pretrained=True)
        tokenizer = open_clip.get_tokenizer(arch)
    except Exception as error:  # Raised by open_clip, timm, the hub's client and torch, each in its own way.
        raise SiglumError(
            f"open_clip cannot load {model!r} ({' '.join(str(error).split())[:300].rstrip('.')}); fetch it once where "
            "there is a network, or give ARCH/FILE."
        ) from error
    shown = open_clip.get_model_preprocess_cfg(found)
    size = shown["size"] if isinstance(shown["size"], int) else shown["size"][0]
    framing = FRAMINGS[one_of(f"the resize mode of {model}", shown.get("resize_mode") or "shortest", FRAMINGS)]
    transform = ImageTransform(size, framing, tuple(shown["mean"]), tuple(shown["std"]))
    return OpenClipEncoder(name, found, tokenizer, transform, **settings)


def _split(open_clip: Any, model: str) -> tuple[str, str | None]:
    """Return architecture and weights as open_clip takes them, refusing names it does not know."""
    if Path(model).is_dir():
        return f"local-dir:{model}", None
    if model.startswith("hf-hub:"):
        return model, None
    arch, _, weights = model.partition("/")
    if arch not in open_clip.list_models():
        raise SiglumError(f"open_clip knows no architecture {arch!r}; open_clip.list_models() names them.")
    known = open_clip.list_pretrained_tags_by_model(arch)
    if not Path(weights).is_file() and weights not in known:
        raise SiglumError(
            f"open_clip knows no weights {weights!r} of {arch}, and there is no such file; it knows: "
            f"{', '.join(known) or 'none'}."
        )
    return arch, weights
