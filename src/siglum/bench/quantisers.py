"""Quantisers of faiss as rows to compare with: product, rotated product and residual quantisation."""

from __future__ import annotations

from typing import Any

import numpy as np

from siglum.types import SiglumError, one_of

QUANTISERS = ("faiss_pq", "faiss_opq", "faiss_rq")


def reconstruct(name: str, item_ND: np.ndarray, train_rows: np.ndarray, size: int) -> np.ndarray:
    """Return all items as the quantiser keeps them in `size` bytes, float32 (N, D), trained on some rows."""
    one_of("quantiser", name, QUANTISERS)
    try:
        import faiss
    except ImportError as error:
        raise SiglumError(f"the row {name} needs faiss; `pip install faiss-cpu` brings it.") from error
    dim = item_ND.shape[1]
    width = -(-dim // size) * size  # product quantisers need a multiple of their parts; zeros change no distance
    rows = np.zeros((len(item_ND), width), np.float32)
    rows[:, :dim] = item_ND
    quantiser = _build(faiss, name, width, size)
    quantiser.train(rows[train_rows])
    hat: np.ndarray = quantiser.sa_decode(quantiser.sa_encode(rows))[:, :dim]
    return np.ascontiguousarray(hat)


def _build(faiss: Any, name: str, width: int, size: int) -> Any:
    if name == "faiss_rq":
        return faiss.IndexResidualQuantizer(width, size, 8)
    product = faiss.IndexPQ(width, size, 8)
    return faiss.IndexPreTransform(faiss.OPQMatrix(width, size), product) if name == "faiss_opq" else product
