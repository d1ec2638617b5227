"""The `2-tokenizer` stage on disk: fusion module, quantiser and the dense fusion it started from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from siglum.config import FusionConfig, TokenizerConfig, as_dict, from_dict
from siglum.files import begin_stage, finish_stage, open_stage, read_tensors, write_tensors
from siglum.fuse.modules import Fusion, build_fusion
from siglum.tokenize.rq import ResidualQuantizer
from siglum.tokenize.train import Tokenizer
from siglum.types import SiglumError

STAGE = "tokenizer"


def save_tokenizer(folder: Path, tokenizer: Tokenizer, dense: Fusion, inputs: dict[str, str], **facts: Any) -> str:
    """Write the stage and return the tokenizer's fingerprint."""
    fusion, config = as_dict(tokenizer.fusion.config), as_dict(tokenizer.quantizer.config)
    begin_stage(folder)
    write_tensors(folder / "fusion.safetensors", tokenizer.fusion.state_dict())
    write_tensors(folder / "dense.safetensors", dense.state_dict())
    write_tensors(folder / "quantizer.safetensors", tokenizer.quantizer.state_dict())
    shape = {"image_dim": len(tokenizer.fusion.image_shift), "text_dim": len(tokenizer.fusion.text_shift)}
    own = tokenizer.fingerprint()
    finish_stage(
        folder, stage=STAGE, inputs=inputs, fusion=fusion, tokenizer=config, tokenizer_fingerprint=own, **shape, **facts
    )
    return own


def load_tokenizer(folder: Path, device: str = "cpu", **inputs: str) -> tuple[Tokenizer, Fusion, dict[str, Any]]:
    """Read the stage: the tokenizer, the dense fusion module, and the stage's record."""
    record = open_stage(folder, STAGE, **inputs)
    fusion_config, config = from_dict(FusionConfig, record["fusion"]), from_dict(TokenizerConfig, record["tokenizer"])
    fusion, dense = (build_fusion(fusion_config, record["image_dim"], record["text_dim"]) for _ in range(2))
    quantizer = ResidualQuantizer(config, fusion_config.dim)
    for name, module in (("fusion", fusion), ("dense", dense), ("quantizer", quantizer)):
        load_weights(module, folder / f"{name}.safetensors", device)
    tokenizer = Tokenizer(fusion, quantizer)
    if tokenizer.fingerprint() != record["tokenizer_fingerprint"]:
        raise SiglumError(f"the weights in {folder} are not those its record speaks of; make the stage again.")
    return tokenizer, dense, record


def load_weights(module: nn.Module, path: Path, device: str) -> None:
    """Read weights into a module and put it in evaluation mode on the device."""
    try:
        module.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in read_tensors(path).items()})
    except RuntimeError as error:
        raise SiglumError(
            f"{path} does not fit the configuration it lies beside ({str(error).splitlines()[-1].strip()})."
        ) from error
    module.to(device).eval()
