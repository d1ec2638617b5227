"""The systems whose search is timed, behind one call: queries in host memory to results in host memory.

Shapes: Q queries, N items, D numbers a vector.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from siglum.config import SearchConfig
from siglum.lab.speed.bench import Case
from siglum.lab.speed.pool import FEATURES, K, Pool
from siglum.search.beam import Ranking
from siglum.search.engine import Engine
from siglum.search.static import GraphSearch
from siglum.types import Features, SiglumError

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
RECALL_QUERIES = 32
"""Queries that an approximate index's recall is measured with."""
TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
CHECKED = {"joint": 8, "other": 32}
"""Queries that the reference search answers beforehand: by log P over all tokens at once alone, and by other scores."""


class System(Protocol):
    """A search to be timed."""

    reference: str | None
    """Score of the reference search whose results it should have, if any: paper, joint or a recipe's."""
    facts: dict[str, Any]
    """What else is worth telling, by name."""

    def search(self, query_QD: Tensor) -> Any:
        """Answer the queries; this is what is timed."""

    def positions(self, result: Any) -> list[np.ndarray] | None:
        """Return the positions of the items found, best first; None where results are no items."""


def open_system(case: Case, pool: Pool, device: str, threads: int, batch: int, work: Path) -> System:
    """Return a system ready to answer up to `batch` queries a call; what is costly to build is kept in `work`."""
    from siglum.lab.speed.peers import CTranslate2, HuggingFace

    system, mode, dtype = case
    if system in ("siglum", "reference"):
        engine = "fast" if system == "siglum" else "reference"
        own = {"mode": mode, "precision": dtype, "batch_size": max(batch, 1), "engine": engine}
        return Generative(pool, replace(pool.config, **own), device)  # type: ignore[arg-type]
    if system == "hf-generate":
        return HuggingFace(pool, dtype, device)
    if system == "ctranslate2":
        return CTranslate2(pool, threads, work / "ctranslate2")
    if system == "torch-flat":
        return Flat(pool, dtype, device)
    return Faiss(pool, system, threads, work / f"{system}-{len(pool.index)}.faiss")


def open_engine(pool: Pool, config: SearchConfig, device: str) -> Callable[..., list[Ranking]]:
    """Return what searches a pool by a configuration, called with queries and k: the one place that picks an engine.

    `search.engine` says which; a fast engine that cannot answer is an error, not a reason to time the other one.
    """
    decoder = None if config.mode == "scan" else pool.decoder().to(device)
    engine = Engine(
        [book.to(device) for book in pool.codebooks], decoder, pool.index, pool.first_geometric, device=device
    )
    fast = engine.fast(config)
    if isinstance(fast, GraphSearch):
        fast.learn(pool.learnt_LD)
    return partial(engine.rank, config=config)


class Generative:
    """Siglum's search by a configuration; queries pass the query head first, where the recipe has one."""

    def __init__(self, pool: Pool, config: SearchConfig, device: str = "cpu", k: int = K) -> None:
        """Fold the weights, or copy everything to the device and choose plans by queries that are not timed."""
        self.reference: str | None = pool.score
        self.facts: dict[str, Any] = {"item_bytes": pool.index.nbytes / len(pool.index)}
        self.engine, self.head = open_engine(pool, config, device), pool.query_head()
        self.device, self.k = device, k

    @torch.no_grad()
    def search(self, query_QD: Tensor) -> list[Ranking]:
        """Return rankings."""
        query = query_QD.to(self.device)
        if self.head is not None:
            query = self.head.to(self.device).adapt(query, _features(query_QD), self.device)
        return self.engine(query, k=self.k)

    def positions(self, result: list[Ranking]) -> list[np.ndarray]:
        """Return their positions."""
        return [ranking.position for ranking in result]


def _features(query_QD: Tensor) -> Features:
    """Return text features that stand for the queries: their numbers over and over."""
    count, dim = query_QD.shape
    text = query_QD.repeat(1, -(-FEATURES // dim))[:, :FEATURES].numpy()
    has = np.ones(count, bool)
    return Features([""] * count, np.zeros((count, FEATURES), np.float32), text, ~has, has)


def right_answers(pool: Pool, device: str) -> dict[str, list[np.ndarray]]:
    """Return the positions that the reference search finds for the first queries, by the score it ranks by."""
    scores = {pool.score: pool.config}
    if pool.score == "paper":
        scores["joint"] = replace(pool.config, scorer="decoder", normalisation="joint")
    answers = {}
    for name, config in scores.items():
        own = replace(config, engine="reference", batch_size=8)
        system = Generative(pool, own, device)
        answers[name] = system.positions(system.search(pool.query_QD[: CHECKED.get(name, CHECKED["other"])]))
    return answers


class Flat:
    """Exhaustive search by matrix products on any device."""

    reference: str | None = None

    def __init__(self, pool: Pool, dtype: str, device: str, k: int = K) -> None:
        """Copy the vectors to the device."""
        self.kind, self.k = TYPES[dtype], k
        self.item_ND, self.device = pool.item_ND().to(device, self.kind), device
        self.facts: dict[str, Any] = {"item_bytes": self.item_ND.element_size() * self.item_ND.shape[1]}

    @torch.no_grad()
    def search(self, query_QD: Tensor) -> Tensor:
        """Return the positions of the K best items (Q, K)."""
        query = query_QD.to(self.device, self.kind)
        step = max(self.k, CELLS // len(query))
        tops = [
            (start, (query @ part.T).topk(min(self.k, len(part))))
            for start, part in zip(range(0, len(self.item_ND), step), self.item_ND.split(step), strict=True)
        ]
        place = torch.cat([top.indices + start for start, top in tops], 1)
        best = torch.cat([top.values for _, top in tops], 1).topk(min(self.k, place.shape[1])).indices
        return place.gather(1, best).cpu()

    def positions(self, result: Tensor) -> list[np.ndarray]:
        """Return them a query."""
        return list(result.numpy())


class Faiss:
    """An index of faiss on the CPU: Flat, HNSW, IVF or PQ, by inner product."""

    reference: str | None = None

    def __init__(self, pool: Pool, system: str, threads: int, path: Path | None, k: int = K) -> None:
        """Open the index; the first time, build it, and keep it where there is a path."""
        import faiss

        faiss.omp_set_num_threads(threads)
        item_ND, exact = pool.item_ND().numpy(), system == "faiss-flat"
        self.facts: dict[str, Any] = {}
        self.k = k
        if path is not None and path.exists():
            self.index = faiss.read_index(str(path))
        else:
            start = perf_counter()
            self.index = _build_faiss(faiss, system, item_ND)
            self.facts["build_seconds"] = round(perf_counter() - start, 2)
            if path is not None and not exact:
                path.parent.mkdir(parents=True, exist_ok=True)
                faiss.write_index(self.index, f"{path}.new")
                Path(f"{path}.new").rename(path)  # a kill leaves no half of an index
        if not exact:
            some = pool.learnt_LD[:RECALL_QUERIES]
            self.facts[f"recall_at_{k}"] = _recall(self.search(some), some, item_ND)

    def search(self, query_QD: Tensor) -> np.ndarray:
        """Return the positions of the K best items, -1 where fewer were found (Q, K)."""
        return self.index.search(query_QD.numpy(), self.k)[1]

    def positions(self, result: np.ndarray) -> list[np.ndarray]:
        """Return them a query."""
        return [row[row >= 0] for row in result]

    def item_bytes(self) -> float:
        """Return the bytes an item takes, all of the index counted."""
        import faiss

        return float(faiss.serialize_index(self.index).nbytes / self.index.ntotal)


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
    """Return the share of the nearest items that were found."""
    score_QN = query_QD @ torch.from_numpy(item_ND).T
    exact = score_QN.topk(min(found_QK.shape[1], len(item_ND))).indices.tolist()
    return float(np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(found_QK.tolist(), exact, strict=True)]))
