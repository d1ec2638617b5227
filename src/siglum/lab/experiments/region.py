"""Where generative search wins: recall, bytes and latency of its modes and of faiss' indexes, on one trained space.

Part of the experiment on efficiency. The test queries of a task that asks for texts are asked of its own pool with
distractors added; faiss searches the vectors of the space that the recipe's codes are made of. Every system is timed
from the query's fused vector on, a query head included. Shapes: Q queries, N items, D numbers a vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from siglum.config import RunConfig, SearchConfig
from siglum.fuse.contrastive import embed
from siglum.lab.experiments.base import Unit
from siglum.lab.experiments.distractors import by_pool, kind_of, widened
from siglum.lab.experiments.ranks import DIMS, best_size, choose_weights, decoder_alone, values_of
from siglum.lab.experiments.region_faiss import Candidate, K, faiss_candidates
from siglum.lab.experiments.setting import Setting
from siglum.lab.experiments.trained import Trained, open_space, open_trained
from siglum.lab.speed.clock import Clock
from siglum.measure.rankers import FlatRanker
from siglum.search.engine import Engine
from siglum.types import Modality, SiglumError, Task, Vectors

NAME = "region-"
POOLS, TINY_POOLS = (10_000, 100_000, 1_000_000), (300,)
QUERIES = 1_000
"""Queries whose answers are judged, and over which calls are timed."""
BATCH = 64
BATCHES = (1, BATCH)
ROUNDS, LONGEST = 3, 60.0
REVISION = 1
"""Rises whenever what is judged or timed changes."""
MEASURES = ("success@1", "success@10", "mrr@10")
BEST, ORIGINAL = "best", "flat, original space"


def region_units(setting: Setting, pools: tuple[int, ...], seconds: float) -> list[Unit]:
    """Return one unit a size of the pool."""
    options = {"seconds": seconds, "revision": REVISION, "queries": QUERIES}
    config = setting.config()
    return [Unit(f"{NAME}{size}", 0, config, {"items": size, **options}, alone=True) for size in sorted(set(pools))]


def measure_region(setting: Setting, unit: Unit) -> dict[str, Any]:
    """Judge every system by the true targets and by exhaustive search, and time all of them in turn."""
    task = text_task(setting.vectors()).spread(unit.options["queries"])
    wide = widened(setting, [task], unit.options["items"])
    (task,) = wide.tasks
    own = open_trained(setting, unit.config)
    codes = own.moved(wide)
    candidates, notes = faiss_candidates(codes.query_MD, codes.item_ND)
    candidates |= dict(_codes(setting.recipe, own, codes, setting.device))
    best = _best(setting)
    further = best.moved(wide)
    candidates |= dict(_codes(BEST, best, further, setting.device))
    if unit.config.tokenizer.train_fusion:  # else codes are made in the original space
        candidates[ORIGINAL] = _original(setting, unit.config, wide)
    rows = torch.arange(len(task.query_rows))
    answers = {}
    for name, one in list(candidates.items()):
        try:
            answers[name] = _answers(one, rows)
        except SiglumError as error:  # arithmetic that this processor does not have
            notes.append(f"{name} was left out: {str(error).rstrip('.')}")
            del candidates[name]
    exact = answers["flat"]
    clock = Clock(unit.options["seconds"] / ROUNDS, least=1, longest=LONGEST)
    # The clock hands round rows of a matrix; each system makes its own vectors of their numbers.
    searches = {name: _timed(one) for name, one in candidates.items()}
    speed = clock.rates(searches, rows[:, None], list(BATCHES), ROUNDS)
    return {
        "items": len(wide.items),
        "task": task.name,
        "queries": len(rows),
        "region": {
            name: {
                "family": one.family,
                "bytes": one.nbytes / len(wide.items),
                "fixed": one.fixed,
                **judge(answers[name], task, exact),
                "speed": speed[name],
            }
            for name, one in candidates.items()
        },
        "size": {"dim": codes.item_ND.shape[1], "best_dim": further.item_ND.shape[1]},
        "notes": notes,
    }


def text_task(vectors: Vectors) -> Task:
    """Return the test task of most queries among those that ask for texts, or of all where none does."""
    groups = by_pool(vectors)
    texts = [tasks for tasks in groups if kind_of(vectors, tasks) == Modality.TEXT] or groups
    return max((task for tasks in texts for task in tasks), key=lambda task: (task.name == "i2t", len(task.query_rows)))


def _best(setting: Setting) -> Trained:
    config = setting.config(BEST)
    if not setting.is_world:
        config, _ = best_size(setting, config, DIMS)
    return open_trained(setting, config)


def _codes(name: str, own: Trained, wide: Trained, device: str) -> Iterator[tuple[str, Candidate]]:
    """Return the searches of a training's codes, their weights chosen on validation of its own collection."""
    assert wide.decoder is not None, "a training is opened with its decoder"
    served = choose_weights(own).best
    books, head = wide.tokenizer.codebooks(), wide.head
    numbers = sum(book.numel() for book in books)
    weights = wide.decoder.parameter_count()
    towers = 0 if head is None else sum(parameter.numel() for parameter in head.parameters())
    levels, items = wide.index.levels, len(wide.index)
    plain = replace(served, engine="auto", batch_size=BATCH)
    searches: dict[str, tuple[SearchConfig, float]] = {
        f"beam {beam}": (replace(plain, beam=beam), 4 * (weights + numbers + towers)) for beam in (10, 50)
    }
    if device == "cpu" and not plain.prior:
        searches["beam 50, int8"] = (replace(plain, beam=50, precision="int8"), weights + 4 * (numbers + towers))
    searches["decoder alone, beam 50"] = (replace(decoder_alone(plain), beam=50), 4 * (weights + towers))
    # A scan unpacks the codes beside the index, and keeps the squared length of every reconstruction.
    searches["scan"] = (replace(plain, mode="scan"), 4 * (numbers + towers))
    for words, (config, fixed) in searches.items():
        more = items * 4 * (levels + 1) if words == "scan" else 0
        family = f"{name}, scan" if words == "scan" else f"{name}, beam"
        nbytes = wide.index.nbytes + more + fixed
        yield f"{name}, {words}", Candidate(family, _ranked(wide, config, device), nbytes, fixed)


def _ranked(wide: Trained, config: SearchConfig, device: str) -> Callable[[Tensor], list[np.ndarray]]:
    """Return the search of an engine of its own; a query passes the query head first, where there is one."""
    engine = Engine.of(wide.tokenizer, wide.decoder, wide.index, device=device)

    @torch.no_grad()
    def search(rows: Tensor) -> list[np.ndarray]:
        query = wide.query_MD[rows.to(wide.query_MD.device)]
        if wide.head is not None:
            query = wide.head.adapt(query, wide.vectors.queries.rows(rows.numpy()), device)
        return [ranking.position for ranking in engine.rank(query, config, k=K)]

    return search


def _original(setting: Setting, config: RunConfig, wide: Vectors) -> Candidate:
    """Return exhaustive search in the fused space before codebooks were trained along."""
    space, _ = open_space(setting, config)
    query_MD, item_ND = (embed(space, part, setting.device) for part in (wide.queries, wide.items))
    ranker, pool = FlatRanker(query_MD, item_ND), np.arange(len(item_ND))

    def search(rows: Tensor) -> list[np.ndarray]:
        return [ranking.position for ranking in ranker.rank(rows.numpy(), pool, K)]

    return Candidate("flat", search, 4 * item_ND.numel())


def _answers(one: Candidate, rows: Tensor) -> list[np.ndarray]:
    return [found for part in rows.split(BATCH) for found in one.search(part)]


def _timed(one: Candidate) -> Callable[[Tensor], list[np.ndarray]]:
    return lambda rows_Q1: one.search(rows_Q1[:, 0])


def judge(found: list[np.ndarray], task: Task, exact: list[np.ndarray]) -> dict[str, float]:
    """Return measures by the true targets, and the share of the exhaustive search's items that were found."""
    ranks = []
    for items, wanted in zip(found, task.positives, strict=True):
        hits = np.flatnonzero(np.isin(items[:K], wanted))
        ranks.append(int(hits[0]) + 1 if len(hits) else 0)
    shared = [len(set(a[:K]) & set(b[:K])) / max(1, len(b[:K])) for a, b in zip(found, exact, strict=True)]
    return {**{m: float(values_of(ranks, m).mean()) for m in MEASURES}, "recall": float(np.mean(shared))}
