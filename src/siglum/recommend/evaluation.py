"""A fitted recommender measured on the users of a split, beside what costs nothing: popularity and the last item.

Shapes: Q users asked, K items of a list, N items, T tokens an item.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from siglum.data.vectors import load_vectors
from siglum.device import check_device
from siglum.files import write_json
from siglum.given import as_folder
from siglum.measure.health import tokenizer_health
from siglum.recommend.measures import measure_lists
from siglum.recommend.people import histories_of, last_items, training_counts, users_asked
from siglum.recommend.recommender import Recommender
from siglum.recommend.validation import HistorySearch, dense_top
from siglum.run.folder import RunFolder
from siglum.tokenize.disambiguate import count_equal
from siglum.types import SiglumError, Task, Vectors, whole_number

DEPTH = 50
"""Items of a list, of which those seen may then be left out."""
CHUNK = 1024


def evaluate(
    run: str | Path, *, split: str = "test", users: int = 0, device: str = "auto", beam: int | None = None
) -> dict[str, Any]:
    """Return R@5, R@10, NDCG@5 and NDCG@10 of a run's systems over the whole catalogue, matching the full id.

    At most `users` are asked, evenly spread; 0 asks all. The result goes to the run's report too. Systems are the run's
    own search, its decoder alone, dense search with the history's vector, the item nearest to the last one, and
    popularity. Example: `siglum.recommend.evaluate("runs/beauty")["systems"]["tiger"]["recall@10"]`.
    """
    root, device = as_folder(run), check_device(device)
    folder = RunFolder(root)
    recommender, (vectors, _) = Recommender.load(root, device=device), load_vectors(folder.vectors)
    tasks = vectors.of_split(split)
    if not tasks:
        raise SiglumError(f"there are no users in split {split}; there are some in val and test.")
    task = tasks[0].spread(whole_number("users", users, 0) or None)
    search = HistorySearch(vectors, recommender.tokenizer, device)
    codes_NT = search.codes_NT.cpu().numpy()
    own = len(recommender.tokenizer.quantizer.own_sizes)
    asked = users_asked(vectors, task, codes_NT[:, :own])
    lists = own_lists(recommender, search, task, folder.config().recipe, beam) | plain_lists(vectors, search, task)
    health = tokenizer_health(recommender.tokenizer.quantizer, search.item_ND, search.codes_NT)
    sizes = recommender.tokenizer.quantizer.sizes
    found = {
        "split": split,
        "systems": {name: measure_lists(top_QK, asked) for name, top_QK in lists.items()},
        "search": {name: getattr(recommender.config, name) for name in ("beam", "scorer", "omega", "vector")},
        "health": health.as_dict(),
        "disambiguation": count_equal(codes_NT, sizes)._asdict() if own < len(sizes) else None,
    }
    write_json(folder.report / f"recommend-{split}.json", found)
    return found


def own_lists(
    recommender: Recommender, search: HistorySearch, task: Task, name: str, beam: int | None = None
) -> dict[str, np.ndarray]:
    """Return the lists of a recommender's own search, of its decoder alone, and of dense search (Q, K) by system."""
    config, decoder = recommender.config, recommender.decoder
    assert decoder is not None
    config = config if beam is None else replace(config, beam=beam)
    found = {name: search.top(decoder, task, config, DEPTH)}
    if config.scorer == "fused":
        found["decoder"] = search.top(decoder, task, replace(config, scorer="decoder"), DEPTH)
    vector = "learned" if decoder.config.history.contrast > 0 else "ridge"
    found["dense"] = dense_top(search.asked(decoder, task, vector), search.item_ND, DEPTH)  # type: ignore[arg-type]
    return found


def plain_lists(vectors: Vectors, search: HistorySearch, task: Task) -> dict[str, np.ndarray]:
    """Return what needs no training: the items nearest to the last one, and the most frequent of training."""
    last_Q = last_items(histories_of(vectors))[task.query_rows]
    return {
        "last_item": nearest_to(search.item_ND, torch.as_tensor(last_Q)),
        "popularity": most_popular(training_counts(vectors), len(task.query_rows)),
    }


@torch.no_grad()
def nearest_to(item_ND: torch.Tensor, row_Q: torch.Tensor, k: int = DEPTH) -> np.ndarray:
    """Return the items nearest to some of them, themselves left out (Q, K)."""
    found = []
    for rows in row_Q.to(item_ND.device).split(CHUNK):
        score_QN = item_ND[rows] @ item_ND.T
        score_QN.scatter_(1, rows[:, None], -torch.inf)
        found.append(score_QN.topk(min(k, len(item_ND)), dim=1).indices.cpu().numpy())
    return np.concatenate(found)


def most_popular(count_N: np.ndarray, queries: int, k: int = DEPTH) -> np.ndarray:
    """Return the most frequent items of training, the same for everybody (Q, K)."""
    best = np.argsort(-count_N, kind="stable")[:k]
    return np.repeat(best[None], queries, 0)


def table_rows(systems: Mapping[str, Mapping[str, Any]], policy: str = "") -> list[list[str]]:
    """Return the lines of a table of systems; `policy` unseen leaves out what a user has had."""
    rows = []
    for name, found in systems.items():
        own = found[policy] if policy else found
        cells = [f"{own[one]:.4f}" for one in ("recall@5", "recall@10", "ndcg@5", "ndcg@10")]
        rows.append([name, *cells, f"{100 * found['coverage']:.1f}", f"{found['popularity']:.2f}"])
    return rows
