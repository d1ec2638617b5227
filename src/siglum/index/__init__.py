"""The index: every item's codes as sorted, bit-packed rows that are an implicit trie."""

from __future__ import annotations

from siglum.index.index import Collisions, Index
from siglum.index.layered import Layered
from siglum.index.trie import Allowed, Children, Leaves

__all__ = ["Allowed", "Children", "Collisions", "Index", "Layered", "Leaves"]
