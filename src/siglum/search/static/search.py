"""The engine behind one call: batches padded to a few sizes, a graph for each, results back as rankings.

Shapes: Q queries, D numbers a vector, K results.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from siglum.config import SearchConfig
from siglum.device import check_device
from siglum.generate.decoder import CodeDecoder
from siglum.index import Allowed, Index
from siglum.search.beam import Ranking
from siglum.search.prior import PriorOnce
from siglum.search.query import EncodedQuery
from siglum.search.static.added import Added
from siglum.search.static.asked import AskedLayout
from siglum.search.static.beam_ops import GeometryTables
from siglum.search.static.engine import TOKENS, PackedFound, StaticSearch
from siglum.search.static.graph import Captured
from siglum.search.static.passes import Passes
from siglum.search.static.plan import Plan, Shape
from siglum.search.static.trie import DeviceTrie
from siglum.search.static.weights import Weights
from siglum.types import SiglumError

BUCKETS = (1, 8, 32, 256, 1024)
"""Batch sizes that graphs are captured for; other batches are padded up or cut down to them."""
LATE = 8
"""Queries without room that are walked to the end together."""


class GraphSearch:
    """Exact beam search in static shapes: CUDA graphs on a GPU, the same computation step by step elsewhere.

    On a GPU the decoder runs in bf16 unless told otherwise, elsewhere in fp32. A query that a plan has no room for is
    searched again level by level, so results never depend on the plan.
    """

    def __init__(
        self,
        decoder: CodeDecoder,
        codebooks: list[Tensor],
        index: Index,
        config: SearchConfig,
        first_geometric: int,
        device: str | torch.device,
        *,
        dtype: torch.dtype | None = None,
        plan: Plan | None = None,
        tokens: int | None = None,
        graphs: bool = True,
        fused: bool | None = None,
        kernels: str = "all",
    ) -> None:
        """Copy trie, weights and codebooks to the device; `first_geometric` is the first level that carries a codeword.

        `plan` is for all batch sizes instead of the cheapest for each; `tokens` bounds how many the tail reads at
        once, by default so that they take a sixteenth of the GPU's memory at most; without `graphs` a GPU runs kernel
        by kernel too; `fused` runs what `kernels` names (see `passes.KERNELS`) in Triton, by default where a GPU has it
        and the heads fit.
        """
        _check(config, decoder)
        self._decoder, self._prior_once = decoder, PriorOnce()
        self.device = torch.device(check_device(str(device)))
        self.index, self.config, self.asked = index, config, AskedLayout.of(decoder)
        self.width = self.asked.numbers
        self._graphs = graphs and self.device.type == "cuda"
        against = _reason_against_kernels(decoder)
        if fused and against:
            raise SiglumError(f"fused search needs {against}; leave fused off.")
        fused = self.device.type == "cuda" and not against if fused is None else fused
        precise = dtype or (torch.bfloat16 if self.device.type == "cuda" else torch.float32)
        self.passes = Passes(Weights(decoder, self.device, precise), kernels=kernels if fused else "none")
        self._books = [book.detach().to(self.device, torch.float32) for book in codebooks]
        self._first_geometric, self._plan = first_geometric, plan
        self._tokens = room(decoder, self.device, precise) if tokens is None else tokens
        self.engine = self._engine(None)
        self._captured: dict[tuple[int, int, Plan], Captured] = {}
        self._memory = torch.cuda.graph_pool_handle() if self._graphs else None
        self._alone = Lock()
        self._filter: tuple[Allowed, StaticSearch] | None = None

    def plan(self, batch: int) -> Plan:
        """Return the plan for batches of up to this many queries."""
        return self._plan_of(self.engine, batch)

    def with_(self, index: Index, config: SearchConfig) -> GraphSearch:
        """Return a search of other items or by another configuration; weights, memory and the same trie are shared."""
        _check(config, self._decoder)
        twin, own = copy.copy(self), self.engine
        twin.index, twin.config, twin._captured, twin._filter = index, config, {}, None
        same = index is self.index
        shape = own.shape if same and config.beam == own.beam else None
        length_LN = own.geometry.length_LN if same and own.geometry is not None and not config.lookahead else None
        if not same:
            twin._prior_once = PriorOnce()
        with self._hold():
            twin.engine = twin._engine(None, own.trie if same else None, length_LN, shape)
        return twin

    def learn(self, query_QD: Tensor) -> None:
        """Choose plans by a few typical queries instead of by the trie alone; only speed changes."""
        with self._hold():
            self.engine.learn(query_QD.to(self.device, torch.float32))

    @torch.no_grad()
    def search(self, query: Tensor | EncodedQuery, *, k: int, allowed: Allowed | None = None) -> list[Ranking]:
        """Return rankings of at most k items a query, over the rows a filter allows; a filter's search is no graph."""
        query_QD = self.asked.pack(EncodedQuery.of(query))
        if allowed is not None and not allowed.rows.any():
            nothing = np.zeros(0, np.int64)
            return [Ranking(nothing, nothing, np.zeros(0)) for _ in range(len(query_QD))]
        with self._hold():
            engine = self.engine if allowed is None else self._filtered(allowed)
            packed_QF = self._answer(engine, query_QD, k)
        own_QK, score_QK = packed_QF[:, :k].astype(np.int64), packed_QF[:, k : 2 * k]
        if np.isnan(score_QK).any():
            raise SiglumError("a score is not a number: the query vectors or the model's weights contain NaN.")
        count = np.count_nonzero(own_QK >= 0, axis=1).tolist()
        row_QK = engine.trie.rows[own_QK]  # what stands for no row is cut off below
        position_QK = self.index.order[row_QK].astype(np.int64)
        columns = zip(position_QK, row_QK, score_QK, count, strict=True)
        return [Ranking(position[:n], row[:n], score[:n]) for position, row, score, n in columns]

    @torch.no_grad()
    def search_tensors(self, query_QD: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return the index's sorted rows (Q, K) and scores (Q, K) on the device, -1 and -inf where there are no more.

        With plans that are sure the host waits for nothing; with others it asks once, at the end, whether a query was
        over its plan, and walks those that were.
        """
        self._check(query_QD, k)
        packed_QF = torch.empty(len(query_QD), 2 * k + 1, dtype=torch.float64, device=self.device)
        found, plans = PackedFound(packed_QF), []
        with self._hold():
            for start in range(0, len(query_QD), BUCKETS[-1]):
                part = query_QD[start : start + BUCKETS[-1]]
                plans.append(self.plan(len(part)))
                packed_QF[start : start + len(part)] = self._find(self.engine, part, plans[-1], k).packed_QF
            if not all(plan.sure for plan in plans):
                late = found.over_Q.nonzero()[:, 0]
                if len(late):
                    walked = self._walk(self.engine, query_QD[late.to(query_QD.device)], k)
                    found.packed_QF[late] = torch.from_numpy(walked).to(self.device)
        return found.row_QK, found.score_QK

    @contextmanager
    def _hold(self) -> Iterator[None]:
        """Let one thread search at a time, since graphs share memory and a capture bears no work beside it."""
        own = torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()
        with self._alone, own:
            yield

    def _check(self, query_QD: Tensor, k: int) -> None:
        """Refuse queries of another shape than the model's, and k below one."""
        if k < 1:
            raise SiglumError(f"k must be at least 1, not {k}.")
        if query_QD.ndim != 2 or query_QD.shape[1] != self.width:
            raise SiglumError(f"query vectors must have shape (Q, {self.width}), but have {tuple(query_QD.shape)}.")

    def _answer(self, engine: StaticSearch, query_QD: Tensor, k: int) -> np.ndarray:
        """Search batch by batch, each by its own plan, then walk what a plan had no room for; packed (Q, F)."""
        self._check(query_QD, k)
        if not len(query_QD):
            return np.zeros((0, 2 * k + 1))
        parts = [query_QD] if len(query_QD) <= BUCKETS[-1] else query_QD.split(BUCKETS[-1])
        rows = [self._fetch(engine, part, self._plan_of(engine, len(part)), k) for part in parts]
        packed_QF = rows[0] if len(rows) == 1 else np.concatenate(rows)
        late = np.flatnonzero(packed_QF[:, -1])
        if len(late):
            packed_QF[late] = self._walk(engine, query_QD[torch.from_numpy(late).to(query_QD.device)], k)
        return packed_QF

    def _walk(self, engine: StaticSearch, query_QD: Tensor, k: int) -> np.ndarray:
        """Search level by level to the end, which every query has room for; packed (Q, F)."""
        parts = query_QD.split(LATE)
        return np.concatenate([self._fetch(engine, part, engine.shape.walk(bucket(len(part))), k) for part in parts])

    def _fetch(self, engine: StaticSearch, query_QD: Tensor, plan: Plan, k: int) -> np.ndarray:
        """Search one batch; results are an array of the host's, packed (Q, F)."""
        captured = self._captures(engine, len(query_QD), plan, k)
        if captured is not None:
            return captured.fetch(query_QD)
        return self._find(engine, query_QD, plan, k).packed_QF.cpu().numpy()

    def _find(self, engine: StaticSearch, query_QD: Tensor, plan: Plan, k: int) -> PackedFound:
        """Search one batch; results may lie in memory that the next one is written to."""
        captured = self._captures(engine, len(query_QD), plan, k)
        return engine.find(query_QD.to(self.device, torch.float32), plan, k) if captured is None else captured(query_QD)

    def _captures(self, engine: StaticSearch, batch: int, plan: Plan, k: int) -> Captured | None:
        """Return the graph for a batch, or None where there are no graphs: a filter's engine serves too few calls."""
        if not self._graphs or engine is not self.engine:
            return None
        size = bucket(batch)
        if (size, k, plan) not in self._captured:
            self._capture(size, k, plan)
            # A query without room must not wait for a capture of its own.
            for late in () if plan.sure else {1, bucket(min(size, LATE))}:
                self._capture(late, k, engine.shape.walk(late))
        return self._captured[size, k, plan]

    def _capture(self, size: int, k: int, plan: Plan) -> None:
        """Capture a graph unless it is there."""
        if (size, k, plan) not in self._captured:
            find = self.engine.find
            self._captured[size, k, plan] = Captured(
                lambda query: find(query, plan, k), size, self.width, self.device, self._memory
            )

    def _plan_of(self, engine: StaticSearch, batch: int) -> Plan:
        size = bucket(batch)
        if size not in engine.plans:
            engine.plans[size] = engine.shape.best(size) if self._plan is None else engine.shape.fit(self._plan)
        return engine.plans[size]

    def _filtered(self, allowed: Allowed) -> StaticSearch:
        """Return the engine of the rows a filter allows; the last one is kept, as pages of results ask again."""
        if self._filter is None or self._filter[0] is not allowed:
            self._filter = (allowed, self._engine(allowed))
        return self._filter[1]

    def _engine(
        self,
        allowed: Allowed | None,
        trie: DeviceTrie | None = None,
        length_LN: Tensor | None = None,
        shape: Shape | None = None,
    ) -> StaticSearch:
        """Return the engine of the rows a filter allows, made of parts of another one where there are some."""
        trie = DeviceTrie(self.index, self.device, allowed) if trie is None else trie
        config, geometry, added = self.config, None, None
        if config.scorer == "fused" and config.omega > 0:
            # Look-ahead leaves codewords that carry no geometry out of its sums; the plain score subtracts them.
            left_out = self._first_geometric if config.lookahead else 0
            books = [torch.zeros_like(book) for book in self._books[:left_out]] + self._books[left_out:]
            geometry = GeometryTables(trie, books, config.omega, self._first_geometric, length_LN)
        ahead, geometry = (geometry, None) if config.lookahead else (None, geometry)
        if ahead is not None or config.prior > 0:
            added = Added(trie, ahead, self._prior(trie) if config.prior > 0 else None)
        return StaticSearch(trie, self.passes, geometry, config.beam, self._tokens, shape, added, self.asked)

    def _prior(self, trie: DeviceTrie) -> Tensor:
        """Return what the prior adds for the codes of a trie's rows (L, N)."""
        log_p_LN = self._prior_once.get(self._decoder, self.index, self.device)
        return -self.config.prior * log_p_LN.index_select(1, torch.from_numpy(trie.rows).to(self.device))


def room(decoder: CodeDecoder, device: torch.device, dtype: torch.dtype) -> int:
    """Return how many tokens the tail may read at once, by what a layer makes of each."""
    if device.type != "cuda":
        return TOKENS
    per = dtype.itemsize * (decoder.config.d_ff + 8 * decoder.config.d_model)
    return max(1, min(TOKENS, torch.cuda.get_device_properties(device).total_memory // 16 // per))


def bucket(batch: int) -> int:
    """Return the smallest batch size with a graph that holds so many queries, or the largest there is.

    >>> [bucket(batch) for batch in (1, 2, 500, 5000)]
    [1, 8, 1024, 1024]
    """
    return next((size for size in BUCKETS if batch <= size), BUCKETS[-1])


def _reason_against_kernels(decoder: CodeDecoder) -> str | None:
    if find_spec("triton") is None:
        return "Triton, which is not installed"
    return None if decoder.config.d_kv in (16, 32, 64, 128) else f"d_kv 16, 32, 64 or 128, not {decoder.config.d_kv}"


def reason_against(config: SearchConfig) -> str | None:
    """Return what of this configuration has no static-shape search, or None."""
    refused = {
        f"search.scorer {config.scorer}": config.scorer not in ("fused", "decoder"),
        f"search.normalisation {config.normalisation}": config.normalisation != "level",
        f"search.mode {config.mode}": config.mode != "exact",
        "search.zscore": config.zscore and config.scorer == "fused",
        "search.lookahead with search.scorer decoder": config.lookahead and config.scorer == "decoder",
        "search.leaf_order dense": config.leaf_order == "dense",
    }
    return next((name for name, asked in refused.items() if asked), None)


def _check(config: SearchConfig, decoder: CodeDecoder) -> None:
    """Refuse what this engine does not do."""
    if config.prior > 0 and not decoder.config.null_queries:
        raise SiglumError("search.prior needs a decoder trained with decoder.null_queries above 0.")
    against = reason_against(config)
    if against is not None:
        raise SiglumError(f"{against} has no static-shape search; turn it off or use another engine.")
    if config.beam < 1:
        raise SiglumError(f"the beam must be at least 1, not {config.beam}.")
