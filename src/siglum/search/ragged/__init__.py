"""The fast engine: the scores of the beam search, with less arithmetic and fewer passes."""

from __future__ import annotations

from siglum.search.ragged.engine import FastSearch, reason_against

__all__ = ["FastSearch", "reason_against"]
