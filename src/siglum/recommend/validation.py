"""What a recommender is chosen by: NDCG@10 of a beam search on validation users.

Shapes: Q users asked, K items of a list, N items, T tokens an item, D numbers a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from siglum.config import HistoryVector, RunConfig, SearchConfig
from siglum.data.vectors import load_vectors
from siglum.fuse.contrastive import embed, kinds_of
from siglum.generate.decoder import CodeDecoder
from siglum.generate.history_train import Validate
from siglum.index import Index
from siglum.loop import Metrics
from siglum.recommend.measures import LONGEST, means, ranks_of
from siglum.run.folder import RunFolder
from siglum.search.beam import Ranking
from siglum.search.engine import Engine
from siglum.search.histories import AskedHistories, HistoryReader
from siglum.tokenize.store import load_tokenizer
from siglum.tokenize.train import Tokenizer
from siglum.types import SiglumError, Task, Vectors

ASKED = 1024
"""Histories given to an engine at once."""
OMEGAS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Weights of geometry that are tried beside none."""


class HistorySearch:
    """The coded items of a collection of histories, ready to be searched with any decoder for them."""

    def __init__(self, vectors: Vectors, tokenizer: Tokenizer, device: str = "cpu") -> None:
        """Embed, code and index the items."""
        if vectors.histories is None:
            raise SiglumError("the queries of this run are no histories, so nothing can be recommended.")
        self.vectors, self.tokenizer, self.device = vectors, tokenizer, device
        self.item_ND = embed(tokenizer.fusion, vectors.items, device)
        self.codes_NT = tokenizer.quantizer.encode(self.item_ND, kinds_of(vectors.items, device))
        sizes, own = tokenizer.quantizer.sizes, tokenizer.fingerprint()
        self.index = Index.build(vectors.items.ids, self.codes_NT.cpu().numpy(), sizes, own)

    def asked(self, decoder: CodeDecoder, task: Task, vector: HistoryVector) -> AskedHistories:
        """Return the histories of a task as this decoder reads them."""
        assert self.vectors.histories is not None
        reader = HistoryReader(decoder, self.codes_NT, self.item_ND)
        return AskedHistories(reader, self.vectors.histories.rows(task.query_rows), vector)

    def top(self, decoder: CodeDecoder, task: Task, config: SearchConfig, k: int = LONGEST) -> np.ndarray:
        """Return the item rows of the k best of each query of a task, -1 where there are fewer (Q, K)."""
        engine = Engine.of(self.tokenizer, decoder, self.index, device=self.device, graphs=False)
        asked, found = self.asked(decoder, task, config.vector), list[Ranking]()
        for start in range(0, len(asked), ASKED):
            found += engine.rank(asked[slice(start, start + ASKED)], config, k=k)
        return as_rows(found, k)


def as_rows(rankings: Sequence[Ranking], k: int) -> np.ndarray:
    """Return rankings as places (Q, K), filled with -1."""
    top_QK = np.full((len(rankings), k), -1, np.int64)
    for row, ranking in zip(top_QK, rankings, strict=True):
        row[: len(ranking)] = ranking.position[:k]
    return top_QK


def targets_of(task: Task) -> np.ndarray:
    """Return the one right item of each query."""
    return np.array([int(rows[0]) for rows in task.positives], np.int64)


def validation_task(vectors: Vectors, number: int | None = None) -> Task | None:
    """Return the users that are chosen on, at most so many; None where there are none."""
    tasks = vectors.of_split("val")
    return tasks[0].spread(number) if tasks else None


def validation(vectors: Vectors, tokenizer: Tokenizer, config: RunConfig, device: str = "cpu") -> Validate | None:
    """Return what measures a decoder while it trains: its own beam search, without geometry."""
    task = validation_task(vectors, config.decoder.history.asked)
    if task is None:
        return None
    search, target_Q = HistorySearch(vectors, tokenizer, device), targets_of(task)
    alone = replace(config.search, scorer="decoder", lookahead=False, mode="exact", precision="fp32")

    def measure(decoder: CodeDecoder) -> Metrics:
        found = means(ranks_of(search.top(decoder, task, alone), target_Q))
        return {"select": found["ndcg@10"], **{f"val_{name}": value for name, value in found.items()}}

    return measure


def validation_of(run: RunFolder, device: str = "cpu") -> Validate | None:
    """Return what measures the decoder of a run while it trains; None where it reads vectors."""
    config = run.config()
    if not config.decoder.history.items:
        return None
    vectors, made_from = load_vectors(run.vectors)
    tokenizer, _ = load_tokenizer(run.tokenizer, device, vectors=made_from)
    return validation(vectors, tokenizer, config, device)


def choose_fusion(
    vectors: Vectors, tokenizer: Tokenizer, decoder: CodeDecoder, config: RunConfig, device: str = "cpu"
) -> tuple[SearchConfig, list[dict[str, object]]]:
    """Return the search with the weight and the vector of histories that validate best, and all that was tried.

    A vector is fixed where the recipe names ridge; else all are tried, the learned one where it was trained.
    """
    task, own = validation_task(vectors, config.decoder.history.asked), config.search
    if task is None or own.scorer != "fused":
        return own, []
    search, target_Q = HistorySearch(vectors, tokenizer, device), targets_of(task)
    kinds: tuple[HistoryVector, ...] = ("mean", "last", "ridge")
    if own.vector == "ridge":
        kinds = ("ridge",)
    elif config.decoder.history.contrast > 0:
        kinds = (*kinds, "learned")
    told: list[dict[str, object]] = []
    best, most = own, -1.0
    for vector in kinds:
        for omega in (0.0, *OMEGAS) if vector == kinds[0] else OMEGAS:
            tried = replace(own, vector=vector, omega=omega)
            found = means(ranks_of(search.top(decoder, task, tried), target_Q))
            told.append({"vector": vector, "omega": omega, **found})
            if found["ndcg@10"] > most:
                best, most = tried, found["ndcg@10"]
    return best, told


@torch.no_grad()
def dense_top(query: AskedHistories, item_ND: Tensor, k: int = LONGEST, chunk: int = ASKED) -> np.ndarray:
    """Return the rows of the items nearest to the vectors of histories (Q, K)."""
    found = []
    for start in range(0, len(query), chunk):
        score_QN = query[slice(start, start + chunk)].vector @ item_ND.T
        found.append(score_QN.topk(min(k, len(item_ND)), dim=1).indices.cpu().numpy())
    return np.concatenate(found)
