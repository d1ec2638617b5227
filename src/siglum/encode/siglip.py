"""SigLIP and SigLIP 2 of a fixed resolution through transformers: `siglip2:google/siglip2-base-patch16-224`.

NaFlex variants, which take pictures of any shape, are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from siglum.encode.clip import ClipEncoder
from siglum.encode.frozen import ImageTransform, read_transform
from siglum.encode.hub import load_model, load_tokenizer, model_folder, need, weight_files
from siglum.files import read_record
from siglum.types import SiglumError

HALF = (0.5, 0.5, 0.5)


class SiglipEncoder(ClipEncoder):
    """The pooled features of a SigLIP; texts are lower-cased and, as in its training, padded to 64 without a mask."""

    def tokens(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """Return token numbers of one fixed length; the padding is read by the model as well."""
        return {"input_ids": super().tokens([text.lower() for text in texts])["input_ids"]}


def build(model: str, **settings: Any) -> SiglipEncoder:
    """Return the SigLIP of a name on the hub, or of a folder."""
    name = f"siglip2:{model}"
    transformers = need("transformers", name, "transformers")
    folder = model_folder(model, name)
    found = read_record(folder / "config.json").get("model_type")
    if found != "siglip":
        raise SiglumError(
            f"{model} is a model of type {found!r}, but must be 'siglip': a SigLIP of a fixed resolution, such as "
            "google/siglip2-base-patch16-224, and not one of the NaFlex variants."
        )
    siglip = load_model(transformers.SiglipModel, folder)
    tokenizer = load_tokenizer(folder)
    tokenizer.padding_side = "right"
    transform = read_transform(folder, ImageTransform(siglip.config.vision_config.image_size, "whole", HALF, HALF))
    sources = [folder / "config.json", *weight_files(folder)]
    return SiglipEncoder(name, siglip, tokenizer, transform, sources, **settings)
