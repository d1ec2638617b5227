"""LLM2CLIP: a CLIP that sees, a large language model that reads, and an adapter between: `llm2clip:CLIP+LLM`.

Both parts are names on the Hugging Face hub or folders, such as
`microsoft/LLM2CLIP-Openai-L-14-336+microsoft/LLM2CLIP-Llama-3-8B-Instruct-CC-Finetuned`; without `+LLM` the model is
looked for in the folder `llm` of CLIP's folder. Plain weights are read and no code that comes with them is run. Texts
pass through the Llama 3 in the frame it was tuned in, with attention to both sides; the mean over the text's own tokens
is what the adapter takes. Shapes: N inputs, T tokens, H width of the language model, D numbers a feature.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, normalize

from siglum.encode.frozen import FrozenEncoder, ImageTransform, read_transform, vocabulary_fingerprint
from siglum.encode.hub import count_layers, fill, load_model, load_tokenizer, model_folder, need, take, weight_files
from siglum.files import read_record
from siglum.types import SiglumError

BEFORE, AFTER = "<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"
"""The frame of Llama 3 around a text."""
EXAMPLE = "microsoft/LLM2CLIP-Llama-3-8B-Instruct-CC-Finetuned"
CONTEXT = 512
"""Tokens at which a text is cut, its frame included."""


class AdapterBlock(nn.Module):
    """One step of the adapter, under the names of its weights: a norm, two layers, and a residual connection."""

    def __init__(self, width: int, hidden: int) -> None:
        """Take the width H and the width of the layer between."""
        super().__init__()
        self.ln = nn.LayerNorm(width)
        self.fn = nn.ModuleDict({"0": nn.Linear(width, hidden), "3": nn.Linear(hidden, width)})

    def forward(self, rows_NH: Tensor) -> Tensor:
        """Return rows of the same shape (N, H)."""
        step_NH: Tensor = self.fn["3"](gelu(self.fn["0"](self.ln(rows_NH))))
        return rows_NH + step_NH


class Adapter(nn.Sequential):
    """From the language model's space into CLIP's: blocks, a norm and a last layer, on unit rows."""

    def forward(self, rows_NH: Tensor) -> Tensor:
        """Return the features of text rows (N, H), as (N, D)."""
        features_ND: Tensor = super().forward(normalize(rows_NH, dim=-1))
        return features_ND


class Llm2ClipEncoder(FrozenEncoder):
    """The features of an LLM2CLIP."""

    def __init__(
        self,
        name: str,
        towers: tuple[Any, Any, Adapter],
        tokenizer: Any,
        transform: ImageTransform,
        sources: Sequence[Path | str],
        **settings: Any,
    ) -> None:
        """Take CLIP's vision model with its projection, the language model and the adapter."""
        vision, llm, adapter = towers
        dim = vision.config.projection_dim
        super().__init__(name, transform, dim, [*sources, vocabulary_fingerprint(tokenizer)], **settings)
        self.vision, self.llm, self.adapter = (part.to(self.device, self.dtype) for part in (vision, llm, adapter))
        self.tokenizer = tokenizer

    def image_features(self, pixels_N3SS: Tensor) -> Tensor:
        """Return the projected features of one batch of pictures, (N, D)."""
        features_ND: Tensor = self.vision(pixels_N3SS).image_embeds
        return features_ND

    def text_features(self, texts: Sequence[str]) -> Tensor:
        """Return the adapted features of one batch of texts, (N, D)."""
        framed = [self._ids(f"{BEFORE}{text}{AFTER}", True) for text in texts]
        own = [self._ids(f"{text}{AFTER}", False) for text in texts]
        width = max(map(len, framed))
        ids_NT = torch.zeros(len(texts), width, dtype=torch.long)
        there_NT, mean_NT = torch.zeros(len(texts), width, dtype=torch.bool), torch.zeros(len(texts), width)
        for row, (ids, part) in enumerate(zip(framed, own, strict=True)):
            ids_NT[row, : len(ids)] = torch.tensor(ids)
            there_NT[row, : len(ids)] = True
            mean_NT[row, max(0, len(ids) - len(part)) : len(ids)] = 1 / min(len(part), len(ids))
        # A mask of four axes is taken as it is; it lets every token see all tokens of its text, later ones too.
        mask_N1TT = there_NT[:, None, None, :].expand(-1, 1, width, -1).to(self.device)
        states_NTH = self.llm(ids_NT.to(self.device), attention_mask=mask_N1TT, use_cache=False).last_hidden_state
        rows_NH = torch.einsum("nt,nth->nh", mean_NT.to(self.device), states_NTH.float())
        features_ND: Tensor = self.adapter(rows_NH.to(self.dtype))
        return features_ND

    def _ids(self, text: str, special: bool) -> list[int]:
        found = self.tokenizer(text, add_special_tokens=special, truncation=True, max_length=CONTEXT)
        return list(found["input_ids"])


def build(model: str, **settings: Any) -> Llm2ClipEncoder:
    """Return the LLM2CLIP of `CLIP+LLM`, or of a folder that holds CLIP and, in `llm`, the language model."""
    name = f"llm2clip:{model}"
    transformers = need("transformers", name, "transformers")
    clip, _, llm = model.partition("+")
    clip_folder = model_folder(clip, name)
    if not llm and not (clip_folder / "llm").is_dir():
        raise SiglumError(
            f"{name} names no language model and {clip_folder} has no folder `llm`; add one as in {name}+{EXAMPLE}."
        )
    llm_folder = model_folder(llm or str(clip_folder / "llm"), name)
    vision, adapter = _load_clip(transformers, clip_folder)
    tokenizer = load_tokenizer(llm_folder)
    if AFTER not in tokenizer.get_vocab():
        raise SiglumError(f"{llm_folder} is not a Llama 3 as LLM2CLIP uses it: its tokenizer does not know {AFTER!r}.")
    reader = load_model(transformers.AutoModel, llm_folder, dtype="auto")
    width = adapter[-1].in_features
    if reader.config.hidden_size != width:
        raise SiglumError(
            f"the language model in {llm_folder} gives {reader.config.hidden_size} numbers, but the adapter in "
            f"{clip_folder} takes {width}; pair models that were trained together."
        )
    transform = read_transform(clip_folder, ImageTransform(vision.config.image_size))
    sources = [clip_folder / "config.json", *weight_files(clip_folder)]
    sources += [llm_folder / "config.json", *weight_files(llm_folder)]
    return Llm2ClipEncoder(name, (vision, reader, adapter), tokenizer, transform, sources, **settings)


def _load_clip(transformers: Any, folder: Path) -> tuple[Any, Adapter]:
    """Return the vision model with its projection, and the text adapter."""
    state = _read_weights(folder)
    config = transformers.CLIPVisionConfig(**read_record(folder / "config.json", "vision_config")["vision_config"])
    config.projection_dim = take(state, "visual_projection.weight", folder).shape[0]
    vision = transformers.CLIPVisionModelWithProjection(config)
    fill(vision, lambda key: take(state, key, folder), folder)
    return vision, _build_adapter(state, folder)


def _read_weights(folder: Path) -> dict[str, Tensor]:
    """Return all tensors in the weight files of a folder."""
    from safetensors.torch import load_file

    state: dict[str, Tensor] = {}
    for path in weight_files(folder):
        if path.suffix == ".safetensors":
            state |= load_file(path)
        else:
            state |= torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    return state


def _build_adapter(state: Mapping[str, Tensor], folder: Path) -> Adapter:
    """Build the adapter that weights named `text_adapter.[...].N.part` tell of, and fill it."""
    found = {match[0] for key in state if (match := re.match(r"text_adapter\.([a-z_]+\.)?(?=\d)", key))}
    if len(found) != 1:
        raise SiglumError(f"{folder} lacks the weights 'text_adapter.*', without which texts cannot be encoded.")
    prefix = found.pop()
    blocks = sum(f"{prefix}{place}.ln.weight" in state for place in range(count_layers(state, prefix)))
    parts: list[nn.Module] = []
    for place in range(blocks):
        hidden, width = take(state, f"{prefix}{place}.fn.0.weight", folder).shape
        parts.append(AdapterBlock(width, hidden))
    dim, width = take(state, f"{prefix}{blocks + 1}.weight", folder).shape
    adapter = Adapter(*parts, nn.LayerNorm(width), nn.Linear(width, dim))
    fill(adapter, lambda key: take(state, prefix + key, folder), folder)
    return adapter
