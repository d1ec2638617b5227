"""Parquet by pyarrow, which is an extra."""

from __future__ import annotations

from typing import Any

from siglum.types import SiglumError


def load_pyarrow() -> tuple[Any, Any]:
    """Return pyarrow and its part for parquet, or say how to get them."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise SiglumError(
            "parquet files need the package pyarrow; `pip install 'siglum[parquet]'` brings it."
        ) from error
    return pyarrow, pyarrow.parquet
