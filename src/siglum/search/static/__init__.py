"""Exact search in static shapes: everything stays on the device, and a whole search can be one CUDA graph."""

from __future__ import annotations

from siglum.search.static.asked import fits
from siglum.search.static.plan import Plan
from siglum.search.static.search import GraphSearch, reason_against

__all__ = ["GraphSearch", "Plan", "fits", "reason_against"]
