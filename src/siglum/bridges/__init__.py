"""Bridges to other libraries' files and objects: GENIUS, GRID, faiss and parquet."""

from __future__ import annotations

from siglum.bridges.faiss import from_faiss, to_faiss
from siglum.bridges.genius import Genius, read_genius
from siglum.bridges.grid import read_grid
from siglum.bridges.items import CodedItems, read_codes, write_codes

__all__ = [
    "CodedItems",
    "Genius",
    "from_faiss",
    "read_codes",
    "read_genius",
    "read_grid",
    "to_faiss",
    "write_codes",
]
