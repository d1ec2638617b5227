"""Manipulation checks: what a treatment did to codes and beams, query by query, beside what it did to the ranking.

K is the ranking divergence of the pool's prefixes at the temperature of training; error is the squared distance of a
query's targets to their reconstructions; survival is the share of a query's targets, all of them, that the beam still
holds at the last level. Shapes: Q queries, N items, L residual levels, D numbers a vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from siglum.config import SearchConfig
from siglum.lab.experiments.base import Part
from siglum.lab.experiments.origin import one_origin
from siglum.lab.experiments.samples import Samples
from siglum.lab.experiments.trained import Trained
from siglum.measure.rankers import BeamRanker
from siglum.measure.retention import divergences
from siglum.tokenize.heldout import held_out_rank_losses
from siglum.types import Task

LOSS = "L_rank"
BEAM = 20
"""The beam of the checks, the paper's for its survival figures."""
SHOWN = 4
"""Levels whose K stands in tables and is kept query by query; below them K is kept as a mean."""
ORIGINAL = "_original"
"""What the name of K ends with where its teacher is the fused space before codebooks were trained."""
CHUNK = 256
"""Queries whose K is worked out at once."""
Space = tuple[Tensor, Tensor]
"""Queries and items in a fused space."""


def kept_share(ranker: BeamRanker, task: Task) -> np.ndarray:
    """Return the share of every query's targets that are under a leaf of the beam's last level (Q,)."""
    starts = np.append(np.flatnonzero(ranker.index.shared < ranker.index.levels), len(ranker.index))
    sizes = np.sort(np.diff(starts))[::-1]
    most = int(sizes[: ranker.beam].sum())  # items that the leaves of a beam can hold
    found = ranker.rank(task.query_rows, task.pool_rows, most)
    pairs = zip(found, task.positives, strict=True)
    return np.array([np.isin(wanted, one.position).mean() for one, wanted in pairs])


def divergence(trained: Trained, task: Task, teacher: Space | None = None, *, tau: float | None = None) -> np.ndarray:
    """Return K of a task's queries at every residual level (Q, L): against the own space or another one's teacher."""
    batch, tau = trained.query_batch(task), trained.config.tokenizer.temperature if tau is None else tau
    if teacher is not None:
        # Side by side in one space: products of the first half are the teacher's, those of the second the codes'.
        query, pool = (torch.as_tensor(rows) for rows in (task.query_rows, task.pool_rows))
        query_QD, item_ND = teacher[0][query].to(batch.query_QD), teacher[1][pool].to(batch.query_QD)
        size = query_QD.shape[1]
        batch = replace(
            batch,
            codebooks=[F.pad(book, (size, 0)) for book in batch.codebooks],
            item_ND=F.pad(item_ND, (0, batch.query_QD.shape[1])),
            query_QD=torch.cat([query_QD, batch.query_QD], 1),
        )
    return np.stack(divergences(batch, tau=tau, chunk=CHUNK)[batch.first_residual :], 1)


def target_errors(trained: Trained, task: Task) -> np.ndarray:
    """Return the squared error of every query's targets, their mean (Q,)."""
    error_N = (trained.item_ND - trained.reconstructions()).square().sum(-1).cpu().numpy()
    return np.array([error_N[rows].mean() for rows in task.positives])


def k_measures(value_QL: np.ndarray, teacher: str = "") -> dict[str, list[float]]:
    """Return K as measures: of the first levels and the mean of all, one number a query.

    >>> list(k_measures(np.ones((2, 6)), ORIGINAL))
    ['K1_original', 'K2_original', 'K3_original', 'K4_original', 'K_original']
    """
    levels = {f"K{level + 1}{teacher}": value_QL[:, level] for level in range(min(SHOWN, value_QL.shape[1]))}
    return {measure: rounded(values) for measure, values in {**levels, f"K{teacher}": value_QL.mean(1)}.items()}


def rounded(values: np.ndarray) -> list[float]:
    """Return numbers as a part keeps them."""
    return [round(float(value), 5) for value in values]


def checks_of(trained: Trained, searches: Mapping[str, SearchConfig], tau: float | None = None) -> dict[str, Any]:
    """Return `checks` of a part: system -> task -> measure -> one number a query, for searches of the same codes."""
    tasks = trained.vectors.of_split("test")
    loss = losses_by_task(trained)
    codes = {
        task.name: {
            LOSS: rounded(loss[task.name]),
            **k_measures(divergence(trained, task, tau=tau)),
            "error": rounded(target_errors(trained, task)),
        }
        for task in tasks
    }
    beams = {name: trained.beam(replace(search, beam=BEAM)) for name, search in searches.items()}
    found = {
        name: {task.name: {**codes[task.name], "survival": rounded(kept_share(beam, task))} for task in tasks}
        for name, beam in beams.items()
    }
    return {"checks": found}


def losses_by_task(trained: Trained) -> dict[str, np.ndarray]:
    """Return held-out L_rank of every test query, in batches that are the same for any system."""
    tasks = trained.vectors.of_split("test")
    loss = held_out_rank_losses(trained.tokenizer, trained.vectors, "test", device=trained.device)
    ends = np.cumsum([len(task.query_rows) for task in tasks])
    return {task.name: part for task, part in zip(tasks, np.split(loss, ends[:-1]), strict=True)}


def read_samples(parts: Sequence[Part], key: str = "checks") -> Samples:
    """Join what parts hold as system -> task -> measure -> one number a query; they must have one origin."""
    one_origin(parts)
    found = Samples()
    for part in parts:
        found.groups |= part.get("groups", {})
        for system, tasks in part.get(key, {}).items():
            for task, measures in tasks.items():
                found.add(system, task, int(part["seed"]), measures)
    return found
