"""Siglum: multimodal generative retrieval.

Items become short code sequences (sigla); a decoder generates the code of the right item from a query; beam search
over a trie lets only real items out. `Retriever` is the object users hold, `fit` makes one from plain arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from siglum.api import features, fit
    from siglum.config import RunConfig
    from siglum.recipes import recipe
    from siglum.search.retriever import Retriever
    from siglum.types import Features, Hit, Item, Modality, Query, SiglumError

_HOME = {
    "fit": "siglum.api",
    "features": "siglum.api",
    "Retriever": "siglum.search.retriever",
    "RunConfig": "siglum.config",
    "recipe": "siglum.recipes",
    "Features": "siglum.types",
    "Hit": "siglum.types",
    "Item": "siglum.types",
    "Modality": "siglum.types",
    "Query": "siglum.types",
    "SiglumError": "siglum.types",
}
__all__ = [
    "Features",
    "Hit",
    "Item",
    "Modality",
    "Query",
    "Retriever",
    "RunConfig",
    "SiglumError",
    "features",
    "fit",
    "recipe",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import siglum` is instant."""
    if name not in _HOME:
        raise AttributeError(f"module 'siglum' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)
