"""The dense fusion module on disk: a stage of its own inside `2-tokenizer`, the space every system starts from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from siglum.config import FusionConfig, as_dict, from_dict
from siglum.files import STAGE_FILE, begin_stage, facts_of, finish_stage, open_stage, read_tensors, write_tensors
from siglum.fuse.modules import Fusion, build_fusion
from siglum.types import SiglumError

STAGE = "dense"


def save_fusion(folder: Path, fusion: Fusion, inputs: dict[str, str], **facts: Any) -> str:
    """Write the stage and return its fingerprint."""
    begin_stage(folder)
    write_tensors(folder / "fusion.safetensors", fusion.state_dict())
    return finish_stage(folder, stage=STAGE, inputs=inputs, **shape_of(fusion), **facts)


def load_fusion(folder: Path, device: str = "cpu", **inputs: str) -> Fusion:
    """Read the stage."""
    record = open_stage(folder, STAGE, **inputs)
    fusion = build_from(folder, record)
    load_weights(fusion, folder / "fusion.safetensors", device)
    return fusion


def shape_of(fusion: Fusion) -> dict[str, Any]:
    """Return what a record must hold for `build_from`."""
    return {
        "fusion": as_dict(fusion.config),
        "image_dim": len(fusion.image_shift),
        "text_dim": len(fusion.text_shift),
    }


def build_from(folder: Path, record: dict[str, Any]) -> Fusion:
    """Return a fusion module of the shape a stage's record speaks of, without its weights."""
    fusion, *dims = facts_of(folder, record, fusion=dict, image_dim=int, text_dim=int)
    with building(folder):
        return build_fusion(from_dict(FusionConfig, fusion), *dims)


@contextmanager
def building(folder: Path) -> Iterator[None]:
    """Say in one sentence that a stage's record speaks of a model that cannot be."""
    try:
        yield
    except SiglumError:
        raise
    except (RuntimeError, ValueError, TypeError, ArithmeticError, MemoryError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SiglumError(
            f"{folder / STAGE_FILE} speaks of a model that cannot be built ({reason}); make the stage again."
        ) from error


def load_weights(module: nn.Module, path: Path, device: str) -> None:
    """Read weights into a module and put it in evaluation mode on the device."""
    try:
        module.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in read_tensors(path).items()})
    except (RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[-1].strip()
        raise SiglumError(f"{path} does not fit the configuration it lies beside ({reason}).") from error
    module.to(device).eval()
