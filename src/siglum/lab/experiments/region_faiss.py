"""The indexes of faiss that generative search is compared with: flat, IVF-PQ, OPQ, residual quantiser and HNSW-SQ.

Shapes: Q queries, N items, D numbers a vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

SAMPLE, A_CELL = 20_000, 40
"""Items that quantisers are trained on, evenly spread, and as many for every cell of an inverted file."""
LINKS, BUILT_WITH = 16, 80
"""Links an item of the graph, and candidates looked at while it is built."""
PARTS = (16, 32)
"""Bytes of product codes."""
STAGES = (16, 20)
"""Bytes of residual codes; another byte keeps the length of the reconstruction."""
LEAST = 256
"""Codewords of a code of one byte."""
PROBES, EFFORTS = (8, 64), (32, 128)
K = 10
"""Items a query asks for."""


@dataclass(slots=True)
class Candidate:
    """A search to be judged and timed."""

    family: str
    search: Callable[[Tensor], list[np.ndarray]]
    """Takes numbers of queries (Q,), returns the positions of the best items of each."""
    nbytes: float
    """All that is stored for the pool: codes or vectors, and what does not grow with it."""
    fixed: float = 0.0
    """The bytes of it that do not grow."""


def faiss_candidates(query_MD: Tensor, item_ND: Tensor) -> tuple[dict[str, Candidate], list[str]]:
    """Return faiss' searches of these vectors, and notes of what was left out; exhaustive search is always there."""
    query, item = query_MD.cpu().numpy(), item_ND.cpu().numpy()
    if find_spec("faiss") is None:
        pool = torch.from_numpy(item)

        def flat(rows: Tensor) -> list[np.ndarray]:
            best: np.ndarray = (torch.from_numpy(query)[rows] @ pool.T).topk(min(K, len(pool))).indices.numpy()
            return list(best)

        notes = ["faiss was left out: `pip install faiss-cpu` brings it"]
        return {"flat": Candidate("flat", flat, 4 * item.size)}, notes
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    found, notes = dict[str, Candidate](), []
    for family, name, factory, settings in _factories(len(item), item.shape[1]):
        if "x8" in factory and len(item) < LEAST:
            notes.append(f"{name} was left out: it learns {LEAST} codewords from at least as many items")
            continue
        start = perf_counter()
        index = _built(faiss, factory, item)
        notes.append(f"{name} was built in {perf_counter() - start:.0f} s")
        nbytes = float(faiss.serialize_index(index).nbytes)
        for words, change in settings.items():
            search = partial(_search, index, query, change)
            found[f"{name}{words}"] = Candidate(family, search, nbytes)
    return found, notes


Change = Callable[[Any], None]


def _factories(items: int, dim: int) -> Iterator[tuple[str, str, str, dict[str, Change]]]:
    """Return family, name, faiss' factory and the settings that are tried at search, with their words."""
    plain: dict[str, Change] = {"": lambda index: None}
    yield "flat", "flat", "Flat", plain
    cells = max(1, min(int(4 * items**0.5), items // 39))
    for parts in (parts for parts in PARTS if dim % parts == 0):
        probes = {f", {number} probes": _setting("nprobe", number) for number in PROBES}
        yield "IVF-PQ", f"IVF-PQ {parts}", f"IVF{cells},PQ{parts}x8np", probes
        yield "OPQ", f"OPQ {parts}", f"OPQ{parts},PQ{parts}x8np", plain
    for stages in STAGES:
        yield "residual", f"residual quantiser {stages}", f"RQ{stages}x8_Nqint8", plain
    efforts = {f", effort {number}": _setting("hnsw.efSearch", number) for number in EFFORTS}
    yield "HNSW-SQ", "HNSW-SQ8", f"HNSW{LINKS},SQ8", efforts


def _setting(name: str, value: int) -> Change:
    def change(index: Any) -> None:
        *path, last = name.split(".")
        for part in path:
            index = getattr(index, part)
        setattr(index, last, value)

    return change


def _built(faiss: Any, factory: str, item_ND: np.ndarray) -> Any:
    """Return a trained index with all items. Residual codes are scanned by distance, as ours are."""
    metric = faiss.METRIC_L2 if factory.startswith("RQ") else faiss.METRIC_INNER_PRODUCT
    index = faiss.index_factory(item_ND.shape[1], factory, metric)
    _be_quiet(faiss, index)
    if factory.startswith("HNSW"):
        index.hnsw.efConstruction = BUILT_WITH
    if not index.is_trained:
        wanted = max(SAMPLE, A_CELL * getattr(index, "nlist", 0))
        index.train(item_ND[:: max(1, len(item_ND) // wanted)])
    index.add(item_ND)
    return index


def _be_quiet(faiss: Any, index: Any) -> None:
    """Keep faiss from advice on the number of training items."""
    inner = faiss.downcast_index(index.index) if hasattr(index, "chain") else index
    for owner in (inner, getattr(inner, "pq", None), getattr(inner, "rq", None)):
        if owner is not None and hasattr(owner, "cp"):
            owner.cp.min_points_per_centroid = 1


def _search(index: Any, query_MD: np.ndarray, change: Change, rows: Tensor) -> list[np.ndarray]:
    change(index)
    found: np.ndarray = index.search(query_MD[rows.numpy()], min(K, index.ntotal))[1]
    return [row[row >= 0] for row in found]
