"""The `2-tokenizer` stage on disk: fusion module and quantiser, which belong together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from siglum.config import TokenizerConfig, as_dict, from_dict
from siglum.files import begin_stage, facts_of, finish_stage, open_stage, write_tensors
from siglum.fuse.store import build_from, building, load_weights, shape_of
from siglum.tokenize.base import build_quantiser
from siglum.tokenize.train import Tokenizer
from siglum.types import SiglumError

STAGE = "tokenizer"


def save_tokenizer(folder: Path, tokenizer: Tokenizer, inputs: dict[str, str], **facts: Any) -> str:
    """Write the stage and return the tokenizer's fingerprint."""
    begin_stage(folder)
    write_tensors(folder / "fusion.safetensors", tokenizer.fusion.state_dict())
    write_tensors(folder / "quantizer.safetensors", tokenizer.quantizer.state_dict())
    own = tokenizer.fingerprint()
    shape = {**shape_of(tokenizer.fusion), "tokenizer": as_dict(tokenizer.quantizer.config)}
    finish_stage(folder, stage=STAGE, inputs=inputs, tokenizer_fingerprint=own, **shape, **facts)
    return own


def load_tokenizer(folder: Path, device: str = "cpu", **inputs: str) -> tuple[Tokenizer, dict[str, Any]]:
    """Read the stage: the tokenizer and the stage's record."""
    record = open_stage(folder, STAGE, **inputs)
    settings, own = facts_of(folder, record, tokenizer=dict, tokenizer_fingerprint=str)
    fusion = build_from(folder, record)
    with building(folder):
        quantizer = build_quantiser(from_dict(TokenizerConfig, settings), fusion.config.dim)
    for name, module in (("fusion", fusion), ("quantizer", quantizer)):
        load_weights(module, folder / f"{name}.safetensors", device)
    tokenizer = Tokenizer(fusion, quantizer)
    if tokenizer.fingerprint() != own:
        raise SiglumError(f"the weights in {folder} are not those its record speaks of; make the stage again.")
    return tokenizer, record
