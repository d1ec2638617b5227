"""What the experiment on efficiency times: a random pool of any size, and the systems that search it.

Speed does not depend on what the weights learnt, so decoder, codebooks and codes are random, at the size of a recipe.
Systems of siglum are searched by the engine that a retriever would choose.
Shapes: Q queries, N items, T tokens, D numbers a vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from siglum.config import RunConfig, SearchConfig
from siglum.generate.decoder import CodeDecoder
from siglum.index import Index
from siglum.search.cuda import Graphs
from siglum.search.fast import Engines
from siglum.tokenize.rq import NUM_MODALITIES
from siglum.types import SiglumError

K = 10
"""Items a query asks for."""
CELLS = 1 << 24
"""Scores held at once by exhaustive search."""
CHUNK = 1 << 16
Search = Callable[[Tensor], Any]
"""Takes queries (Q, D), returns whatever the system finds."""


@dataclass(slots=True)
class Pool:
    """N items as vectors and as an index of codes, with everything a generative system needs to search them."""

    config: RunConfig
    codebooks: list[Tensor]
    item_ND: Tensor
    query_QD: Tensor
    index: Index
    decoder: CodeDecoder
    first: int


@torch.no_grad()
def random_pool(config: RunConfig, items: int, queries: int, device: str) -> Pool:
    """Draw codes evenly, and vectors near their reconstructions; codewords shrink with depth as residuals do."""
    dim, modality = config.fusion.dim, config.tokenizer.modality != "none"
    sizes = ((NUM_MODALITIES,) if modality else ()) + tuple(config.tokenizer.vocab)
    generator = torch.Generator().manual_seed(0)
    books = [0.8**level * torch.randn(size, dim, generator=generator) for level, size in enumerate(sizes)]
    codes_NT = torch.stack([torch.randint(size, (items,), generator=generator) for size in sizes], 1)
    if modality:
        books[0].zero_()
        codes_NT[:, 0] = 0
    item_ND = torch.empty(items, dim)
    for start in range(0, items, CHUNK):
        codes = codes_NT[start : start + CHUNK]
        item_ND[start : start + CHUNK] = sum(book[codes[:, level]] for level, book in enumerate(books))
    length = item_ND[:CHUNK].norm(dim=1).mean()  # one scale for all, so that vectors stay sums of their codewords
    item_ND /= length
    near = item_ND[torch.randint(items, (queries,), generator=generator)]
    query_QD = F.normalize(near + 0.5 * torch.randn(queries, dim, generator=generator) / dim**0.5, dim=1)
    ids = [str(place) for place in range(items)]
    return Pool(
        config,
        [(book / length).to(device) for book in books],
        item_ND.to(device),
        query_QD.to(device),
        Index.build(ids, codes_NT.numpy(), sizes, "random"),
        CodeDecoder(config.decoder, sizes, dim, generator).eval().to(device),
        int(modality),
    )


def generative(pool: Pool, scorer: str) -> Search:
    """Return trie-constrained beam search by decoder alone or fused with geometry: the paper's score, in fp32.

    Beam and omega are the recipe's.
    """
    search = pool.config.search
    return engine(pool, SearchConfig(scorer=scorer, beam=search.beam, omega=search.omega))  # type: ignore[arg-type]


def scan(pool: Pool) -> Search:
    """Return exhaustive search of the codes: every item by its distance to the query, from tables."""
    return engine(pool, SearchConfig(mode="scan"))


def engine(pool: Pool, config: SearchConfig) -> Search:
    """Return what answers a retriever's searches of this configuration on the pool's device, a batch in one piece."""
    device = pool.query_QD.device
    parts = (replace(config, batch_size=len(pool.query_QD)), pool.decoder, pool.codebooks, pool.index, pool.first)
    chosen = (Graphs().choose(*parts, str(device)) if device.type == "cuda" else None) or Engines().choose(*parts)
    if chosen is None:
        raise SiglumError(f"no fast engine searches in mode {config.mode} by scorer {config.scorer}, so none is timed.")
    return lambda query_QD: chosen.search(query_QD, k=K)


def dense(pool: Pool, kind: torch.dtype) -> Search:
    """Return exhaustive search of the vectors by matrix products."""
    item_ND = pool.item_ND.to(kind)

    def search(query_QD: Tensor) -> Any:
        step = max(1, CELLS // len(query_QD))
        query = query_QD.to(kind)
        return best_of((query @ item_ND[start : start + step].T, start) for start in range(0, len(item_ND), step))

    return search


def best_of(blocks: Iterable[tuple[Tensor, int]]) -> Tensor:
    """Return the places of the K best items a query (Q, K), from blocks of scores and where each block starts.

    >>> best_of([(torch.tensor([[1.0, 3.0]]), 0), (torch.tensor([[2.0]]), 2)])
    tensor([[1, 2, 0]])
    """
    tops = [(block.topk(min(K, block.shape[1]), dim=1), start) for block, start in blocks]
    score, place = (
        torch.cat([top.values for top, _ in tops], 1),
        torch.cat([top.indices + start for top, start in tops], 1),
    )
    order = score.topk(min(K, score.shape[1]), dim=1).indices
    return place.gather(1, order)


def hnsw(pool: Pool, links: int = 32, effort: int = 64) -> tuple[Search, dict[str, Any]]:
    """Return approximate search by a graph of neighbours, and what it took to build; needs faiss, on the CPU."""
    import faiss

    faiss.omp_set_num_threads(torch.get_num_threads())
    graph = faiss.IndexHNSWFlat(pool.item_ND.shape[1], links, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction, graph.hnsw.efSearch = 2 * effort, effort
    start = perf_counter()
    graph.add(pool.item_ND.cpu().numpy())
    facts = {"build_seconds": round(perf_counter() - start, 2), "links": links, "effort": effort}
    facts["item_bytes"] = faiss.serialize_index(graph).nbytes / len(pool.item_ND)

    def search(query_QD: Tensor) -> Any:
        return graph.search(query_QD.cpu().numpy(), K)[1]

    found, exact = search(pool.query_QD), dense(pool, torch.float32)(pool.query_QD).cpu().numpy()
    facts["recall"] = float(np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(found, exact, strict=True)]))
    return search, facts


@dataclass(frozen=True, slots=True)
class Clock:
    """How long something is timed."""

    seconds: float = 1.0
    """Calls are repeated for this long, at least `least` times ..."""
    least: int = 3
    longest: float = 60.0
    """... unless that takes longer than this; a batch that would take longer than this is left out."""

    def rate(self, search: Search, query_QD: Tensor, batch: int) -> dict[str, Any]:
        """Return queries a second, from the median time of a batch after one that does not count."""
        pick = torch.arange(batch, device=query_QD.device) % len(query_QD)
        part, times = query_QD[pick], [self._time(search, query_QD[pick])]
        while len(times) <= self.least or sum(times[1:]) < self.seconds:
            if sum(times) > self.longest:
                break
            times.append(self._time(search, part))
        counted = times[1:] or times
        return {"rate": batch / median(counted), "repeats": len(counted), "slowest": batch / max(counted)}

    def rates(self, search: Search, query_QD: Tensor, batches: list[int]) -> dict[str, Any]:
        """Return the rate at every size of batch; None where a batch would take too long."""
        found: dict[str, Any] = {}
        speed = float("inf")
        for batch in sorted(batches):
            found[str(batch)] = self.rate(search, query_QD, batch) if batch / speed <= self.longest else None
            speed = found[str(batch)]["rate"] if found[str(batch)] else speed
        return found

    @staticmethod
    def _time(search: Search, query_QD: Tensor) -> float:
        _wait(query_QD)
        start = perf_counter()
        search(query_QD)
        _wait(query_QD)
        return perf_counter() - start


def _wait(tensor: Tensor) -> None:
    """Let an accelerator finish, which works on while Python goes on."""
    if tensor.device.type == "cuda":
        torch.cuda.synchronize(tensor.device)
