"""Siglum: multimodal generative retrieval.

Items become short code sequences (sigla); a decoder generates the code of the right item from a query; beam search
over a trie lets only real items out. `Retriever` is the object users hold, `fit` makes one from plain arrays.

Example: `siglum.Retriever.load("runs/demo").search("a big red star left of a blue ring", k=3)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from siglum import recommend as recommend
    from siglum.api import diagnose, features, fit
    from siglum.build import build_folder
    from siglum.config import RunConfig, TokenizerConfig
    from siglum.measure.codes import diagnose_codes
    from siglum.measure.explain import explain
    from siglum.pages.report import report
    from siglum.recipes import recipe
    from siglum.search.plain import build_trie, fused_beam_search
    from siglum.search.retriever import Retriever
    from siglum.tokenize.losses import prefix_ranking_loss
    from siglum.types import Features, Hit, Item, Modality, Query, SiglumError

__version__ = "0.1.0"
_PUBLIC = {
    "siglum.api": ("diagnose", "features", "fit"),
    "siglum.build": ("build_folder",),
    "siglum.config": ("RunConfig", "TokenizerConfig"),
    "siglum.measure.codes": ("diagnose_codes",),
    "siglum.measure.explain": ("explain",),
    "siglum.pages.report": ("report",),
    "siglum.recipes": ("recipe",),
    "siglum.search.plain": ("build_trie", "fused_beam_search"),
    "siglum.search.retriever": ("Retriever",),
    "siglum.tokenize.losses": ("prefix_ranking_loss",),
    "siglum.types": ("Features", "Hit", "Item", "Modality", "Query", "SiglumError"),
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names}
__all__ = [
    "Features",
    "Hit",
    "Item",
    "Modality",
    "Query",
    "Retriever",
    "RunConfig",
    "SiglumError",
    "TokenizerConfig",
    "build_folder",
    "build_trie",
    "diagnose",
    "diagnose_codes",
    "explain",
    "features",
    "fit",
    "fused_beam_search",
    "prefix_ranking_loss",
    "recipe",
    "report",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import siglum` is instant."""
    from importlib import import_module

    if name == "recommend":  # a package of its own, for recommenders
        return import_module("siglum.recommend")
    if name not in _HOME:
        raise AttributeError(f"module 'siglum' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
