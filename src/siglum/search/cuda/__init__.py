"""Exact search in static shapes: everything stays on the device, and a whole search can be one CUDA graph."""

from __future__ import annotations

from siglum.search.cuda.choice import Graphs
from siglum.search.cuda.plan import Plan
from siglum.search.cuda.search import GraphSearch

__all__ = ["GraphSearch", "Graphs", "Plan"]
