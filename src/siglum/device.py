"""Devices: asked for by name, refused in one sentence where they are not there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from siglum.types import SiglumError, one_of

if TYPE_CHECKING:
    import torch

PRECISIONS = ("auto", "fp32", "bf16")
"""Arithmetic of training."""


def check_device(device: str) -> str:
    """Return the device's name if torch can use it, else refuse it.

    >>> check_device("cpu")
    'cpu'
    """
    import torch

    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise SiglumError(f"device is {device!r}, but must be one of: cpu, cuda, cuda:N, mps.") from error
    if kind not in ("cpu", "cuda", "mps"):
        raise SiglumError(f"device is {device!r}, but must be one of: cpu, cuda, cuda:N, mps.")
    if kind == "cuda" and not torch.cuda.is_available():
        raise SiglumError(f"device {device} was asked for, but torch sees no CUDA device; use cpu.")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise SiglumError(f"device {device} was asked for, but torch sees no MPS device; use cpu.")
    return device


def trains_in_bf16(name: str, precision: str, device: str | torch.device) -> bool:
    """Return whether a module learns in bf16 autocast: where its precision, an option of this name, says so.

    >>> trains_in_bf16("decoder.precision", "auto", "cpu"), trains_in_bf16("decoder.precision", "bf16", "cpu")
    (False, True)
    """
    one_of(name, precision, PRECISIONS)
    return precision == "bf16" or (precision == "auto" and str(device).startswith("cuda"))
