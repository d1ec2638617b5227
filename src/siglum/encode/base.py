"""What every encoder offers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np


@runtime_checkable
class Encoder(Protocol):
    """A frozen pair of encoders: equal inputs give equal rows, whatever else is in the batch."""

    @property
    def name(self) -> str:
        """Short name, as used on the command line."""
        ...

    @property
    def image_dim(self) -> int:
        """Size Di of a picture's feature."""
        ...

    @property
    def text_dim(self) -> int:
        """Size Dt of a text's feature."""
        ...

    @property
    def picture_size(self) -> int:
        """Side in pixels at which a picture that draws itself should be drawn."""
        ...

    @property
    def joint(self) -> bool:
        """Whether image and text features live in one space and can be compared as they are."""
        ...

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        """Return one float32 row a text, (N, Dt)."""
        ...

    def encode_images(self, pictures: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        """Return one float32 row a picture, (N, Di), from uint8 pixels (height, width, 3) of any size."""
        ...

    def fingerprint(self) -> str:
        """Return 16 hex digits that change when the features would."""
        ...
