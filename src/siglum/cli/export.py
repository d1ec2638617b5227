"""`siglum export`: a run's codes for other programs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from siglum.console.commands import OneRun, Verb, say
from siglum.types import SiglumError


@dataclass(kw_only=True)
class Command(OneRun, Verb):
    """Write the codes of a run's items as parquet, or as a faiss index with the same reconstructions.

    Examples:
      siglum export runs/mine --codes codes.parquet
      siglum export runs/mine --faiss items.index
    """

    codes: Path | None = None
    """Write ids and codes to this parquet file."""
    faiss: Path | None = None
    """Write a faiss index of codes and codewords to this file; its ids are the items' places in the pool."""


def run(command: Command) -> dict[str, Any]:
    """Write what was asked for."""
    from siglum.bridges import CodedItems, to_faiss, write_codes
    from siglum.files import atomic
    from siglum.search.retriever import Retriever

    if command.codes is None and command.faiss is None:
        raise SiglumError("say what to write: --codes FILE, --faiss FILE or both.")
    items = CodedItems.of(Retriever.load(command.folder))
    if command.codes is not None:
        write_codes(command.codes, items)
        say(f"codes of {len(items):,} items: {command.codes}")
    if command.faiss is not None:
        index = to_faiss(items)
        import faiss

        with atomic(command.faiss) as file:
            file.write(faiss.serialize_index(index).tobytes())
        say(f"faiss index of {len(items):,} items: {command.faiss}")
    written = [str(path) for path in (command.codes, command.faiss) if path is not None]
    return {"items": len(items), "levels": len(items.sizes), "sizes": list(items.sizes), "written": written}
