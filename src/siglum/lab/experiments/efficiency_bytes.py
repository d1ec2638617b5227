"""Bytes of search systems: those of an item, those that do not grow, and where one system becomes the smaller."""

from __future__ import annotations

import math

from siglum.lab.speed.pool import Pool

RIVALS = ("dense_fp32", "dense_fp16", "pq20")
"""What a generative index is weighed against."""


def sizes_of(pool: Pool) -> dict[str, int]:
    """Return the sizes that decide a generative system's bytes."""
    books = pool.codebooks[pool.first_geometric :]
    parameters = pool.decoder().parameter_count()
    return {"levels": len(books), "parameters": parameters, "codewords": sum(len(book) for book in books)}


def bytes_of(pool: Pool, size: dict[str, int]) -> dict[str, dict[str, float]]:
    """Return bytes an item and fixed bytes of every system; weights and codewords count four bytes a number.

    The generative index holds packed codes, the length each row shares with the one before, and the order of the
    pool; ids are left out everywhere. A scan unpacks the codes beside it, into four bytes a level, and keeps the
    squared length of each reconstruction in four more.
    """
    dim, index = pool.query_QD.shape[1], pool.index
    books = 4 * dim * size["codewords"]
    row = index.nbytes / len(index)
    return {
        "generative": {"item": row, "fixed": 4 * size["parameters"]},
        "fused": {"item": row, "fixed": 4 * size["parameters"] + books},
        "scan": {"item": row + 4 * size["levels"] + 4, "fixed": books},
        "codes": {"item": index.layout.row_bytes, "fixed": 0},
        "codes_paper": {"item": 2 * size["levels"], "fixed": 0},
        "dense_fp32": {"item": 4 * dim, "fixed": 0},
        "dense_fp16": {"item": 2 * dim, "fixed": 0},
        "pq20": {"item": 20, "fixed": 4 * 256 * dim},
    }


def break_even(cost: dict[str, dict[str, float]]) -> dict[str, dict[str, int | None]]:
    """Return from how many items on a generative system takes fewer bytes than each rival; None is never.

    >>> cost = {name: {"item": 1, "fixed": 90} for name in ("generative", "fused")}
    >>> break_even(cost | {name: {"item": 10, "fixed": 0} for name in RIVALS})["fused"]["pq20"]
    10
    """
    found: dict[str, dict[str, int | None]] = {}
    for name, half in (("generative", 1.0), ("fused", 1.0), ("generative_fp16", 0.5), ("fused_fp16", 0.5)):
        own = cost[name.removesuffix("_fp16")]
        found[name] = {}
        for rival in RIVALS:
            gain = cost[rival]["item"] - own["item"]
            more = half * own["fixed"] - cost[rival]["fixed"]
            found[name][rival] = max(1, math.ceil(more / gain)) if gain > 0 else None
    return found
