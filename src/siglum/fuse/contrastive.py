"""The contrastive loss L_cl and contrastive training of the fusion module (the dense space).

Shapes: P pairs in a batch, D fused size.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from siglum import dist
from siglum.config import FusionConfig, config_fingerprint
from siglum.files import fingerprint
from siglum.fuse.modules import Fusion, Joined, build_fusion, member_config
from siglum.loop import Keeping, Metrics, PairTraining, adam, cosine_lr, seed_of, set_lr, train
from siglum.types import Features, SiglumError, Task, Vectors

APART = 1000
"""How far apart the seeds of several spaces are."""
ROWS = 4096
"""Rows that are embedded at once."""


def contrastive_loss(
    query_PD: Tensor,
    target_PD: Tensor,
    target_id_P: Tensor,
    temperature: float,
    *,
    kind_P: Tensor | None = None,
    smoothing: float = 0.0,
) -> Tensor:
    """L_cl: symmetric InfoNCE on pre-quantisation embeddings, mean over the batch and both directions.

    Other pairs of the batch with the same target are left out of the denominator: they are no negatives. With
    `kind_P`, the modality of each target, neither are targets of another kind. Over several processes the
    negatives come from all of them and the mean is over this process's queries.
    """
    all_q, all_x, all_id = dist.gather(query_PD), dist.gather(target_PD), dist.gather(target_id_P)
    own = torch.arange(len(query_PD), device=query_PD.device) + dist.rank() * len(query_PD)
    out = target_id_P[:, None] == all_id[None, :]
    if kind_P is not None:
        out |= kind_P[:, None] != dist.gather(kind_P)[None, :]
    out.scatter_(1, own[:, None], False)
    losses = []
    for ours, theirs in ((query_PD, all_x), (target_PD, all_q)):
        score = (ours @ theirs.T / temperature).masked_fill(out, -torch.inf)
        losses.append(_smoothed_cross_entropy(score, own, out, smoothing))
    return (losses[0] + losses[1]) / 2


def _smoothed_cross_entropy(score_PN: Tensor, own_P: Tensor, out_PN: Tensor, smoothing: float) -> Tensor:
    """Cross-entropy whose target gives `smoothing` evenly to all that take part."""
    if smoothing == 0:
        return F.cross_entropy(score_PN, own_P)
    log_p = score_PN.log_softmax(-1).masked_fill(out_PN, 0.0)
    even = log_p.sum(-1) / (~out_PN).sum(-1)
    return -((1 - smoothing) * log_p.gather(1, own_P[:, None])[:, 0] + smoothing * even).mean()


class DeviceFeatures:
    """Frozen features kept on the training device; indexing gives what a fusion module takes."""

    def __init__(self, features: Features, device: str) -> None:
        self.parts = [
            torch.as_tensor(np.ascontiguousarray(part)).to(device)
            for part in (features.image, features.text, features.has_image.astype(bool), features.has_text.astype(bool))
        ]

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitem__(self, rows: Tensor | slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        image, text, has_image, has_text = (part[rows] for part in self.parts)
        return image, text, has_image, has_text


def kinds_of(features: Features, device: str = "cpu") -> Tensor:
    """Return the modality of every row as a token (N,)."""
    return torch.as_tensor(features.modality.astype(np.int64)).to(device)


@torch.no_grad()
def embed(fusion: Fusion, features: Features | DeviceFeatures, device: str, batch_size: int = ROWS) -> Tensor:
    """Return the fused unit vectors (N, D) of all rows, in fp32 and without dropout."""
    rows = features if isinstance(features, DeviceFeatures) else DeviceFeatures(features, device)
    was_training = fusion.training
    fusion.eval()
    parts = [fusion(*rows[slice(start, start + batch_size)]) for start in range(0, len(rows), batch_size)]
    fusion.train(was_training)
    return torch.cat(parts)


def best_ranks(query_QD: Tensor, pool_MD: Tensor, positives: list[np.ndarray], chunk: int = 256) -> Tensor:
    """Return the rank (from 1) of the best positive of every query under the inner product; ties count against it.

    Vectors that are not numbers give rank 0, hence an infinite reciprocal rank, which training refuses.
    """
    ranks = []
    for start in range(0, len(query_QD), chunk):
        scores = query_QD[start : start + chunk] @ pool_MD.T
        some = positives[start : start + chunk]
        # A query's last positive stands in for those it has fewer than others.
        width = max(len(places) for places in some)
        place = np.stack([np.pad(places, (0, width - len(places)), mode="edge") for places in some])
        best = scores.gather(1, torch.as_tensor(place, device=scores.device)).amax(1, keepdim=True)
        ranks.append((scores >= best).sum(1))
    return torch.cat(ranks).cpu()


def pool_places(task: Task) -> list[np.ndarray]:
    """Return each query's positives as places in the task's pool."""
    place = {int(row): position for position, row in enumerate(task.pool_rows)}
    try:
        return [np.array([place[int(row)] for row in rows]) for rows in task.positives]
    except KeyError as error:
        raise SiglumError(f"a positive of task {task.name} ({task.split}) is not in its pool.") from error


def dense_mrr(query_QD: Tensor, item_ND: Tensor, tasks: list[Task]) -> float:
    """Return the mean reciprocal rank of dense search, averaged over tasks: what validation selects by."""
    values = []
    for task in tasks:
        pool = item_ND[torch.as_tensor(task.pool_rows, device=item_ND.device)]
        queries = query_QD[torch.as_tensor(task.query_rows, device=query_QD.device)]
        values.append(float((1 / best_ranks(queries, pool, pool_places(task)).double()).mean()))
    return sum(values) / len(values)


def init_module(build: nn.Module, seed: int) -> None:
    """Draw all linear layers anew from one seed (Kaiming uniform, as torch does by default)."""
    torch.manual_seed(seed_of(seed, "init"))
    for module in build.modules():
        if isinstance(module, nn.Linear) and module.weight.numel():
            module.reset_parameters()


def new_fusion(vectors: Vectors, config: FusionConfig, seed: int, device: str) -> Fusion:
    """Return a freshly initialised fusion module for these vectors."""
    fusion = build_fusion(config, vectors.items.image.shape[1], vectors.items.text.shape[1])
    init_module(fusion, seed)
    if config.standardise:
        x, q = np.unique(vectors.pair_item), np.unique(vectors.pair_query)
        both = [
            np.concatenate([getattr(vectors.items, part)[x], getattr(vectors.queries, part)[q]])
            for part in ("image", "text", "has_image", "has_text")
        ]
        image, text, has_image, has_text = (torch.as_tensor(part) for part in both)
        fusion.standardise(image, text, has_image.bool(), has_text.bool())
    return fusion.to(device)


def fit_fusion(
    vectors: Vectors,
    config: FusionConfig,
    *,
    seed: int = 0,
    device: str = "cpu",
    **keeping: Unpack[Keeping],
) -> tuple[Fusion, list[Metrics]]:
    """Train the fusion module with L_cl alone and keep the epoch that is best on validation: the dense baseline."""
    if config.members > 1:
        return _fit_joined(vectors, config, seed=seed, device=device, **keeping)
    fusion = new_fusion(vectors, config, seed, device)
    if config.epochs == 0 or not any(True for _ in fusion.parameters()):
        return fusion.eval(), []
    run = FusionTraining(vectors, fusion, config, seed, device)
    history = train(
        "fusion",
        config.epochs,
        run.epoch,
        modules={"fusion": fusion},
        optimiser=run.optimiser,
        seed=seed,
        identity=f"{config_fingerprint(config)}-{seed}-{fingerprint(run.pair_q, run.pair_x)}",
        **keeping,
    )
    return fusion.eval(), history


def _fit_joined(
    vectors: Vectors, config: FusionConfig, *, seed: int, device: str, folder: Path | None = None, **keeping: Any
) -> tuple[Fusion, list[Metrics]]:
    """Train several spaces one after the other and turn them, side by side, to the axes of the training vectors."""
    joined, history = new_fusion(vectors, config, seed, device), []
    assert isinstance(joined, Joined)
    for number in range(config.members):
        place = None if folder is None else folder / f"member{number}"
        own = seed + APART * number
        joined.members[number], metrics = fit_fusion(
            vectors, member_config(config), seed=own, device=device, folder=place, **keeping
        )
        history += metrics
    moments = torch.zeros(len(joined.axes), len(joined.axes), dtype=torch.float64)
    for features, rows in ((vectors.items, vectors.pair_item), (vectors.queries, vectors.pair_query)):
        some = DeviceFeatures(features.rows(np.unique(rows)), device)
        for start in range(0, len(some), ROWS):
            with torch.no_grad():
                part = joined.eval().side_by_side(*some[slice(start, start + ROWS)]).double().cpu()
            moments += part.T @ part / len(some)
    axes_EE = torch.linalg.eigh(moments).eigenvectors.flip(1)  # those that hold most come first
    # An axis has two directions, and the one with the larger positive end is taken, as libraries differ in which.
    turned = axes_EE * torch.where(axes_EE.gather(0, axes_EE.abs().argmax(0)[None]) < 0, -1.0, 1.0)
    joined.axes.copy_(turned[:, : config.dim])
    return joined.eval(), history


class FusionTraining(PairTraining):
    """The state of one contrastive training; `epoch` is what the loop calls."""

    def __init__(self, vectors: Vectors, fusion: Fusion, config: FusionConfig, seed: int, device: str) -> None:
        super().__init__(vectors, config, device)
        self.fusion, self.config, self.seed = fusion, config, seed
        self.items, self.queries = DeviceFeatures(vectors.items, device), DeviceFeatures(vectors.queries, device)
        self.modality = kinds_of(vectors.items, device)
        self.optimiser = adam([(fusion, 1.0, config.weight_decay)])
        self.validation = vectors.of_split("val")

    def epoch(self, epoch: int) -> Metrics:
        """Run one pass over the pairs and return the mean loss and what validation selects by."""
        config, steps = self.config, self.steps
        self.fusion.train()
        generator = torch.Generator().manual_seed(seed_of(self.seed, "fusion", epoch))
        total = torch.zeros((), device=self.device)
        for step, rows in self.batches("fusion", epoch, generator):
            set_lr(self.optimiser, cosine_lr(config.lr, 0.1, config.warmup, step, config.epochs * steps))
            total += self.step(dist.share(rows))
        metrics: Metrics = {"loss_cl": float(dist.sum_over_processes(total)) / steps / dist.world()}
        if self.validation:
            query, item = (embed(self.fusion, part, self.device) for part in (self.queries, self.items))
            metrics["select"] = metrics["val_mrr"] = dense_mrr(query, item, self.validation)
        return metrics

    def step(self, rows: Tensor) -> Tensor:
        """Make a step on these rows of the pairs, at the learning rate that is set, and return the loss."""
        item = self.pair_x[rows]
        query, target = self.fusion(*self.queries[self.pair_q[rows]]), self.fusion(*self.items[item])
        kind = self.modality[item] if self.config.negatives == "modality" else None
        loss = contrastive_loss(
            query, target, item, self.config.temperature, kind_P=kind, smoothing=self.config.smoothing
        )
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        dist.average_gradients(list(self.fusion.parameters()))
        self.optimiser.step()
        return loss.detach()
