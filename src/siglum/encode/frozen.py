"""What encoders of frozen torch models share: pixels as tensors, batches, devices and fingerprints.

Shapes: N inputs, S pixels a side, D numbers a feature.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from siglum.device import check_device
from siglum.encode.base import torch_precision
from siglum.files import file_fingerprint, fingerprint, read_record
from siglum.types import SiglumError

Row = TypeVar("Row")
OPENAI_MEAN, OPENAI_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
"""Mean and spread of the colours OpenAI's CLIP was trained on; its many descendants keep them."""


@dataclass(frozen=True, slots=True)
class ImageTransform:
    """How a model sees a picture: at which size, framed how, with colours on which scale."""

    size: int
    framing: str = "centre"
    mean: tuple[float, ...] = OPENAI_MEAN
    std: tuple[float, ...] = OPENAI_STD

    def pixels(self, pictures: Sequence[np.ndarray] | np.ndarray) -> Tensor:
        """Return uint8 pictures (S, S, 3) as scaled and normalised float32 (N, 3, S, S)."""
        for picture in pictures:
            if picture.shape != (self.size, self.size, 3) or picture.dtype != np.uint8:
                raise SiglumError(
                    f"a picture must be uint8 ({self.size}, {self.size}, 3) for this encoder, but one is "
                    f"{picture.dtype} {picture.shape}."
                )
        if not len(pictures):
            return torch.zeros(0, 3, self.size, self.size)
        scaled_NSS3 = torch.from_numpy(np.stack(list(pictures))).float() / 255
        normal_NSS3 = (scaled_NSS3 - torch.tensor(self.mean)) / torch.tensor(self.std)
        return normal_NSS3.permute(0, 3, 1, 2).contiguous()


def read_transform(folder: Path, default: ImageTransform) -> ImageTransform:
    """Return the transform that a model's folder describes; what it does not say is as in `default`, as is the size."""
    for name, part in (("preprocessor_config.json", None), ("processor_config.json", "image_processor")):
        if (folder / name).exists():
            record: dict[str, Any] = read_record(folder / name)
            record = record if part is None else record.get(part, {})
            crops = record.get("do_center_crop")
            framing = default.framing if crops is None else ("centre" if crops else "whole")
            mean, std = record.get("image_mean") or default.mean, record.get("image_std") or default.std
            return ImageTransform(default.size, framing, tuple(mean), tuple(std))
    return default


class FrozenEncoder:
    """A frozen model of pictures and texts in one space; a subclass says what its features are."""

    joint = True

    def __init__(
        self,
        name: str,
        transform: ImageTransform,
        dim: int,
        sources: Sequence[Path | str],
        *,
        device: str = "cpu",
        precision: str = "auto",
        batch_size: int = 64,
    ) -> None:
        """Keep the settings; `sources` are the files and other facts that make the features what they are."""
        if batch_size < 1:
            raise SiglumError(f"the batch size is {batch_size}, but must be at least 1.")
        self.name, self.transform, self.batch_size = name, transform, batch_size
        self.device, self.dtype = torch.device(check_device(device)), torch_precision(precision, device)
        self._identity = (name.partition(":")[0], transform.size, transform.framing, transform.mean, transform.std)
        self._sources, self._fingerprint = sources, ""
        self.image_dim = self.text_dim = dim

    @property
    def picture_size(self) -> int:
        """Side in pixels of the pictures it takes."""
        return self.transform.size

    @property
    def framing(self) -> str:
        """How a picture becomes a square: `whole` or `centre`."""
        return self.transform.framing

    def fingerprint(self) -> str:
        """Return 16 hex digits that change with the weights, the tokenizer and the transform."""
        if not self._fingerprint:
            parts = [file_fingerprint(part) if isinstance(part, Path) else part for part in self._sources]
            self._fingerprint = fingerprint(*self._identity, *parts)
        return self._fingerprint

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        """Return one row a text, not normalised, float32 (N, D)."""
        return self.in_batches(texts, self.text_features)

    def encode_images(self, pictures: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        """Return one row a picture, not normalised, float32 (N, D), from uint8 pixels (S, S, 3)."""
        return self.in_batches(pictures, lambda some: self.image_features(self.see(some)))

    def text_features(self, texts: Sequence[str]) -> Tensor:
        """Return the features of one batch of texts, (N, D)."""
        raise NotImplementedError

    def image_features(self, pixels_N3SS: Tensor) -> Tensor:
        """Return the features of one batch of pictures, (N, D)."""
        raise NotImplementedError

    def see(self, pictures: Sequence[np.ndarray] | np.ndarray) -> Tensor:
        """Return pictures as the model takes them, (N, 3, S, S)."""
        return self.transform.pixels(pictures).to(self.device, self.dtype)

    def in_batches(self, inputs: Sequence[Row] | Any, encode: Callable[[Sequence[Row]], Tensor]) -> np.ndarray:
        """Encode inputs batch by batch, float32 (N, D)."""
        rows_ND = np.zeros((len(inputs), self.image_dim), np.float32)
        with torch.inference_mode():
            for start in range(0, len(inputs), self.batch_size):
                batch = slice(start, start + self.batch_size)
                rows_ND[batch] = encode(inputs[batch]).float().cpu().numpy()
        return rows_ND


def vocabulary_fingerprint(tokenizer: Any) -> str:
    """Return a tokenizer's vocabulary as a fact for the fingerprint."""
    return json.dumps(sorted(tokenizer.get_vocab().items()), ensure_ascii=False)
