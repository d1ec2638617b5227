"""`siglum index`: build the index, or add and remove items."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from siglum.cli.common import say
from siglum.device import check_device
from siglum.types import SiglumError


@dataclass(kw_only=True)
class Command:
    """Build the index of a run (4-index), or change it in place.

    Examples:
      siglum index runs/mine
      siglum index runs/mine --add new-items.jsonl
      siglum index runs/mine --remove cat-17 --remove cat-18
    """

    folder: tyro.conf.Positional[Path]
    """The run folder."""
    keep_vectors: bool = False
    """Keep fused vectors (fp16) to order items that share all codes by similarity."""
    add: Path | None = None
    """Add the items of this JSONL or parquet file to the index."""
    remove: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Remove the item with this id; may be repeated."""
    seed: int = 0
    """Accepted for uniformity; indexing draws nothing at random."""
    device: str = "cpu"
    """cpu, cuda or mps."""
    json: bool = False
    """Print one JSON document on stdout."""


def run(command: Command) -> dict[str, Any]:
    """Make or change stage 4."""
    from siglum.data.corpus import read_items
    from siglum.pipeline import RunFolder, make_index
    from siglum.search.retriever import Retriever, save_index

    folder, device = RunFolder(command.folder), check_device(command.device)
    if command.add is None and not command.remove:
        index = make_index(folder, keep_vectors=command.keep_vectors, device=device)
    else:
        if command.keep_vectors:
            raise SiglumError("whether vectors are kept is decided when the index is built, not when it is changed.")
        retriever = Retriever.load(command.folder, device=device)
        if command.remove:
            retriever.remove(command.remove)
        if command.add is not None:
            retriever.add(read_items(command.add))
        index = retriever.index
        save_index(folder.index, index, retriever.item_ND)
    collisions = index.collisions()
    say(f"{len(index):,} items indexed in {folder.index}; {collisions.items:,} share their codes with another")
    return {
        "run": str(command.folder),
        "items": len(index),
        "colliding_items": collisions.items,
        "largest_collision": collisions.largest,
    }
