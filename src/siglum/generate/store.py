"""The `3-decoder` stage on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from siglum.config import DecoderConfig, as_dict, from_dict
from siglum.files import begin_stage, finish_stage, open_stage, write_tensors
from siglum.fuse.store import load_weights
from siglum.generate.decoder import CodeDecoder

STAGE = "decoder"


def save_decoder(folder: Path, decoder: CodeDecoder, tokenizer: str, **facts: Any) -> str:
    """Write the stage, made for the tokenizer with this fingerprint; return the stage's fingerprint."""
    begin_stage(folder)
    write_tensors(folder / "decoder.safetensors", decoder.state_dict())
    shape = {"sizes": list(decoder.sizes), "query_dim": decoder.query_dim}
    return finish_stage(
        folder, stage=STAGE, inputs={"tokenizer": tokenizer}, decoder=as_dict(decoder.config), **shape, **facts
    )


def load_decoder(folder: Path, tokenizer: str, device: str = "cpu") -> CodeDecoder:
    """Read the stage; a decoder made for another tokenizer is refused."""
    record = open_stage(folder, STAGE, tokenizer=tokenizer)
    decoder = CodeDecoder(from_dict(DecoderConfig, record["decoder"]), tuple(record["sizes"]), record["query_dim"])
    load_weights(decoder, folder / "decoder.safetensors", device)
    return decoder
