"""The `3-decoder` stage on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from siglum.config import DecoderConfig, QueryConfig, as_dict, from_dict
from siglum.files import STAGE_FILE, begin_stage, facts_of, finish_stage, open_stage, write_tensors
from siglum.fuse.store import building, load_weights
from siglum.generate.decoder import CodeDecoder
from siglum.generate.query import QueryHead
from siglum.types import SiglumError

STAGE = "decoder"


def save_decoder(
    folder: Path, decoder: CodeDecoder, tokenizer: str, head: QueryHead | None = None, **facts: Any
) -> str:
    """Write the stage, made for the tokenizer with this fingerprint; return the stage's fingerprint."""
    begin_stage(folder)
    write_tensors(folder / "decoder.safetensors", decoder.state_dict())
    if head is None:
        (folder / "query.safetensors").unlink(missing_ok=True)  # of an earlier training in this folder
    else:
        write_tensors(folder / "query.safetensors", head.state_dict())
        facts = {**facts, "query": as_dict(head.config), "image_dim": head.image_dim, "text_dim": head.text_dim}
    shape = {"sizes": list(decoder.sizes), "query_dim": decoder.query_dim}
    return finish_stage(
        folder, stage=STAGE, inputs={"tokenizer": tokenizer}, decoder=as_dict(decoder.config), **shape, **facts
    )


def load_decoder(folder: Path, tokenizer: str, device: str = "cpu") -> CodeDecoder:
    """Read the stage; a decoder made for another tokenizer is refused."""
    record = open_stage(folder, STAGE, tokenizer=tokenizer)
    settings, sizes, query_dim = facts_of(folder, record, decoder=dict, sizes=list, query_dim=int)
    if not sizes or not all(type(size) is int and size > 0 for size in sizes):
        raise SiglumError(f"{folder / STAGE_FILE} holds {sizes!r} as sizes, not counts of codes; make the stage again.")
    with building(folder):
        decoder = CodeDecoder(from_dict(DecoderConfig, settings), tuple(sizes), query_dim)
    load_weights(decoder, folder / "decoder.safetensors", device)
    return decoder


def load_query_head(folder: Path, dim: int, device: str = "cpu") -> QueryHead | None:
    """Read the query head of the stage, where it has one."""
    record = open_stage(folder, STAGE)
    if "query" not in record:
        return None
    settings, *widths = facts_of(folder, record, query=dict, image_dim=int, text_dim=int)
    with building(folder):
        head = QueryHead(from_dict(QueryConfig, settings), dim, *widths)
    load_weights(head, folder / "query.safetensors", device)
    return head
