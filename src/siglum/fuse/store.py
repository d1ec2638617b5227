"""The dense fusion module on disk: a stage of its own inside `2-tokenizer`, the space every system starts from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from siglum.config import FusionConfig, as_dict, from_dict
from siglum.files import begin_stage, finish_stage, open_stage, read_tensors, write_tensors
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
    fusion = build_from(record)
    load_weights(fusion, folder / "fusion.safetensors", device)
    return fusion


def shape_of(fusion: Fusion) -> dict[str, Any]:
    """Return what a record must hold for `build_from`."""
    return {
        "fusion": as_dict(fusion.config),
        "image_dim": len(fusion.image_shift),
        "text_dim": len(fusion.text_shift),
    }


def build_from(record: dict[str, Any]) -> Fusion:
    """Return a fusion module of the recorded shape, without its weights."""
    return build_fusion(from_dict(FusionConfig, record["fusion"]), record["image_dim"], record["text_dim"])


def load_weights(module: nn.Module, path: Path, device: str) -> None:
    """Read weights into a module and put it in evaluation mode on the device."""
    try:
        module.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in read_tensors(path).items()})
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise SiglumError(f"{path} does not fit the configuration it lies beside ({reason}).") from error
    module.to(device).eval()
