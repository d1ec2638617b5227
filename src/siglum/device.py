"""Devices: asked for by name, refused in one sentence where they are not there."""

from __future__ import annotations

from siglum.types import SiglumError


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
