"""Encoders by name."""

from __future__ import annotations

from siglum.encode.base import Encoder
from siglum.encode.builtin import BuiltinEncoder
from siglum.types import one_of

ENCODERS = ("builtin", "none")


def build_encoder(name: str) -> Encoder | None:
    """Return the encoder of that name; `none` is for runs made from one's own vectors."""
    one_of("encoder", name, ENCODERS)
    return BuiltinEncoder() if name == "builtin" else None
