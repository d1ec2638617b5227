"""The systems whose search is timed, behind one call: queries in host memory to results in host memory.

Shapes: Q queries, N items, D numbers a vector.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from siglum.bench.speed_pool import K, Pool
from siglum.types import SiglumError

CELLS = 1 << 28
"""Scores that exhaustive search holds at once."""
LINKS, EFFORT = 32, 64
"""Links an item and candidates a search of the HNSW graph; its construction looks at twice as many."""
PROBES = 16
"""Cells of an inverted file that are looked at, of four times the root of the number of items."""
SAMPLE = 20_000
"""Items that a product quantiser is trained on."""
PQ_BYTES = 24
"""Most bytes of a product-quantised item, about what an item takes in an index of 16 codes."""


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to time."""

    system: str
    mode: str
    dtype: str


class System(Protocol):
    """A search to be timed."""

    reference: str | None
    """Score of the reference search whose results it should have, if any: paper, or joint."""
    facts: dict[str, Any]
    """What else is worth telling, by name."""

    def search(self, query_QD: Tensor) -> Any:
        """Answer the queries; this is what is timed."""
        ...

    def positions(self, result: Any) -> list[np.ndarray] | None:
        """Return the positions of the items found, best first; None where results are no items."""
        ...


def open_system(case: Case, pool: Pool, device: str, threads: int, batch: int, work: Path) -> System:
    """Return a system ready to answer up to `batch` queries a call; what is costly to build is kept in `work`."""
    from siglum.bench.speed_peers import CTranslate2, HuggingFace

    if case.system == "siglum":
        return Graphs(pool, device) if device.startswith("cuda") else Engine(pool, case.mode, case.dtype, batch)
    if case.system == "hf-generate":
        return HuggingFace(pool, case.dtype, device)
    if case.system == "ctranslate2":
        return CTranslate2(pool, threads, work / "ctranslate2")
    if case.system == "torch-flat":
        return Flat(pool, case.dtype, device)
    return Faiss(pool, case.system, threads, work / f"{case.system}-{len(pool.index)}.faiss")


class Engine:
    """The fast engine on the CPU, in one mode and precision."""

    reference: str | None = "paper"

    def __init__(self, pool: Pool, mode: str, dtype: str, batch: int) -> None:
        """Fold the weights."""
        from siglum.search.fast import FastSearch

        config = replace(pool.config, mode=mode, precision=dtype, batch_size=max(batch, 1))  # type: ignore[arg-type]
        self.facts: dict[str, Any] = {"item_bytes": pool.index.nbytes / len(pool.index)}
        decoder = None if mode == "scan" else pool.decoder()
        self.engine: Any = FastSearch(decoder, pool.codebooks, pool.index, config, pool.first)

    def search(self, query_QD: Tensor) -> Any:
        """Return rankings."""
        return self.engine.search(query_QD, k=K)

    def positions(self, result: Any) -> list[np.ndarray]:
        """Return their positions."""
        return [ranking.position for ranking in result]


class Graphs(Engine):
    """The engine of static shapes on a GPU, in bf16."""

    def __init__(self, pool: Pool, device: str) -> None:
        """Copy everything to the device and choose plans by queries that are not timed."""
        from siglum.search.cuda import GraphSearch

        self.facts = {"item_bytes": pool.index.nbytes / len(pool.index)}
        self.engine = GraphSearch(pool.decoder(), pool.codebooks, pool.index, pool.config, pool.first, device)
        self.engine.learn(pool.learnt_LD)


class Flat:
    """Exhaustive search by matrix products on any device."""

    reference: str | None = None

    def __init__(self, pool: Pool, dtype: str, device: str) -> None:
        """Copy the vectors to the device."""
        self.kind = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
        self.item_ND, self.device = pool.item_ND().to(device, self.kind), device
        self.facts: dict[str, Any] = {"item_bytes": self.item_ND.element_size() * self.item_ND.shape[1]}

    @torch.no_grad()
    def search(self, query_QD: Tensor) -> Tensor:
        """Return the positions of the K best items (Q, K)."""
        query = query_QD.to(self.device, self.kind)
        step = max(K, CELLS // len(query))
        tops = [
            (start, (query @ part.T).topk(min(K, len(part))))
            for start, part in zip(range(0, len(self.item_ND), step), self.item_ND.split(step), strict=True)
        ]
        place = torch.cat([top.indices + start for start, top in tops], 1)
        best = torch.cat([top.values for _, top in tops], 1).topk(min(K, place.shape[1])).indices
        return place.gather(1, best).cpu()

    def positions(self, result: Tensor) -> list[np.ndarray]:
        """Return them a query."""
        return list(result.numpy())


class Faiss:
    """An index of faiss on the CPU: Flat, HNSW, IVF or PQ, by inner product."""

    reference: str | None = None

    def __init__(self, pool: Pool, system: str, threads: int, path: Path) -> None:
        """Open the index; the first time, build it."""
        import faiss

        faiss.omp_set_num_threads(threads)
        item_ND, kept = pool.item_ND().numpy(), system != "faiss-flat"
        self.facts: dict[str, Any] = {}
        if path.exists():
            self.index = faiss.read_index(str(path))
        else:
            start = perf_counter()
            self.index = _build_faiss(faiss, system, item_ND)
            self.facts["build_seconds"] = round(perf_counter() - start, 2)
            if kept:
                path.parent.mkdir(parents=True, exist_ok=True)
                faiss.write_index(self.index, f"{path}.new")
                Path(f"{path}.new").rename(path)  # a kill leaves no half of an index
        if kept:
            self.facts["recall_at_50"] = _recall(self.search(pool.learnt_LD[:32]), pool.learnt_LD[:32], item_ND)

    def search(self, query_QD: Tensor) -> np.ndarray:
        """Return the positions of the K best items, -1 where fewer were found (Q, K)."""
        found: np.ndarray = self.index.search(query_QD.numpy(), K)[1]
        return found

    def positions(self, result: np.ndarray) -> list[np.ndarray]:
        """Return them a query."""
        return [row[row >= 0] for row in result]


def _build_faiss(faiss: Any, system: str, item_ND: np.ndarray) -> Any:
    items, dim = item_ND.shape
    metric = faiss.METRIC_INNER_PRODUCT
    if system == "faiss-flat":
        index = faiss.IndexFlatIP(dim)
    elif system == "faiss-hnsw":
        index = faiss.IndexHNSWFlat(dim, LINKS, metric)
        index.hnsw.efConstruction, index.hnsw.efSearch = 2 * EFFORT, EFFORT
    elif system == "faiss-ivf":
        cells = max(1, min(int(4 * items**0.5), items // 39))  # faiss wants 39 items a cell to train on
        index = faiss.index_factory(dim, f"IVF{cells},Flat", metric)
        index.nprobe = min(PROBES, cells)
        index.train(item_ND[:: max(1, items // (64 * cells))])
    elif system == "faiss-pq":
        parts = next(parts for parts in range(PQ_BYTES, 0, -1) if dim % parts == 0)
        index = faiss.IndexPQ(dim, parts, 8, metric)
        index.train(item_ND[:: max(1, items // SAMPLE)])
    else:
        raise SiglumError(f"there is no system {system}; see `siglum bench speed --help`.")
    index.add(item_ND)
    return index


def _recall(found_QK: np.ndarray, query_QD: Tensor, item_ND: np.ndarray) -> float:
    """Return the share of the K nearest items that were found."""
    score_QN = query_QD @ torch.from_numpy(item_ND).T
    exact = score_QN.topk(min(K, len(item_ND))).indices.tolist()
    return float(np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(found_QK.tolist(), exact, strict=True)]))
