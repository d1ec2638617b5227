"""The fast engine: the scores of the beam search, with less arithmetic and fewer passes."""

from __future__ import annotations

from siglum.search.fast.choice import Engines, described
from siglum.search.fast.engine import FastSearch, reason_against

__all__ = ["Engines", "FastSearch", "described", "reason_against"]
