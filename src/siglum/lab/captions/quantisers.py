"""Quantisers of faiss as rows to compare with: product, rotated product and residual quantisation."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from siglum.types import SiglumError, one_of

QUANTISERS = ("faiss_pq", "faiss_opq", "faiss_rq")


def load_faiss() -> Any:
    """Return faiss, or say how to get it."""
    try:
        import faiss
    except ImportError as error:
        raise SiglumError(
            f"the rows {', '.join(QUANTISERS)} need faiss; `pip install faiss-cpu` brings it, --units leaves them out."
        ) from error
    return faiss


def reconstruct(name: str, item_ND: np.ndarray, train_rows: np.ndarray, size: int) -> np.ndarray:
    """Return all items as the quantiser keeps them in `size` bytes, float32 (N, D), trained on some rows.

    A code has 8 bits, or fewer where there are fewer training rows than codewords; the bytes hold as many as fit.
    """
    one_of("quantiser", name, QUANTISERS)
    bits = min(8, int(math.log2(len(train_rows))))
    parts, dim = 8 * size // bits, item_ND.shape[1]
    width = -(-dim // parts) * parts  # product quantisers need a multiple of their parts; zeros change no distance
    rows = np.zeros((len(item_ND), width), np.float32)
    rows[:, :dim] = item_ND
    quantiser = _build(load_faiss(), name, width, parts, bits)
    quantiser.train(rows[train_rows])
    hat: np.ndarray = quantiser.sa_decode(quantiser.sa_encode(rows))[:, :dim]
    return np.ascontiguousarray(hat)


def _build(faiss: Any, name: str, width: int, parts: int, bits: int) -> Any:
    """Return an untrained quantiser that does not print advice on the number of training rows."""
    if name == "faiss_rq":
        residual = faiss.IndexResidualQuantizer(width, parts, bits)
        residual.rq.cp.min_points_per_centroid = 1
        return residual
    product = faiss.IndexPQ(width, parts, bits)
    product.pq.cp.min_points_per_centroid = 1
    if name == "faiss_pq":
        return product
    rotation, shape = faiss.OPQMatrix(width, parts), faiss.ProductQuantizer(width, parts, bits)
    shape.cp.min_points_per_centroid = 1
    rotation.pq, rotation.referenced_objects = shape, [shape]  # faiss keeps a bare pointer; Python must keep the rest
    return faiss.IndexPreTransform(rotation, product)
