"""The query head: towers that read a query's frozen features and aim at the codes as they are.

The fused space is trained before any code exists. Once codes are fixed, the query side may still learn what they
kept: each tower is trained with L_cl against the items' reconstructions x̂, apart from the others, and a query
becomes the normalised sum of its fused vector and all towers' answers. Items and their codes stay untouched.
Shapes: P pairs in a batch, Q queries, D fused size.
"""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from siglum.config import FusionConfig, QueryConfig, config_fingerprint
from siglum.fuse.contrastive import DeviceFeatures, contrastive_loss, dense_mrr, embed, init_module, kinds_of
from siglum.fuse.modules import Fusion, build_fusion
from siglum.log import Log
from siglum.loop import Keeping, Metrics, PairTraining, adam, cosine_lr, seed_of, set_lr, train
from siglum.tokenize.train import Tokenizer
from siglum.types import Features, Modality, Task, Vectors

BLENDS = (0.0, 0.25, 0.5, 1.0)
"""Weights of the towers tried on validation."""


class QueryHead(nn.Module):
    """Towers of the query side; `adapt` blends their answers with the fused vector."""

    def __init__(self, config: QueryConfig, dim: int, image_dim: int, text_dim: int) -> None:
        """Build for features of these sizes."""
        super().__init__()
        self.config, self.dim, self.image_dim, self.text_dim = config, dim, image_dim, text_dim
        shape = FusionConfig(
            kind="towers", dim=dim, hidden=config.hidden, dropout=config.dropout, input_dropout=config.input_dropout
        )
        self.towers = nn.ModuleList(build_fusion(shape, image_dim, text_dim) for _ in range(config.members))
        self.register_buffer("blend_M", torch.ones(len(Modality)))
        self.blend_M: Tensor
        """How much the towers count beside the fused vector, by the query's modality."""

    def adapt(self, query_QD: Tensor, features: Features, device: str) -> Tensor:
        """Return the unit vectors (Q, D) that decoder and geometry search with."""
        kinds = kinds_of(features, device)
        return F.normalize(query_QD + self.blend_M[kinds, None] * self.answers(features, device), dim=-1)

    def answers(self, features: Features, device: str) -> Tensor:
        """Return the sum of what the towers answer (Q, D)."""
        rows = DeviceFeatures(features, device)
        found = [embed(tower, rows, device) for tower in self.towers if isinstance(tower, Fusion)]
        return torch.stack(found).sum(0)


def query_vectors(tokenizer: Tokenizer, head: QueryHead | None, queries: Features, device: str) -> Tensor:
    """Return what a query is searched with: its fused vector, or what the head makes of it (Q, D)."""
    fused = embed(tokenizer.fusion, queries, device)
    return fused if head is None else head.adapt(fused, queries, device)


def fit_query_head(
    vectors: Vectors,
    tokenizer: Tokenizer,
    config: QueryConfig,
    *,
    seed: int = 0,
    device: str = "cpu",
    **keeping: Unpack[Keeping],
) -> QueryHead | None:
    """Train the towers against the items' reconstructions; None where the config asks for none."""
    if config.members == 0:
        return None
    tokenizer.quantizer.check_geometry("a query head (query.members above 0)")
    item_ND = embed(tokenizer.fusion, vectors.items, device)
    with torch.no_grad():
        hat_ND = tokenizer.quantizer.decode(tokenizer.quantizer.encode(item_ND, kinds_of(vectors.items, device)))
    tokenizer_fingerprint = tokenizer.fingerprint()
    return _fit(vectors, tokenizer.fusion, hat_ND, tokenizer_fingerprint, config, seed=seed, device=device, **keeping)


def fit_dense_head(
    vectors: Vectors, fusion: Fusion, config: QueryConfig, *, seed: int = 0, device: str = "cpu"
) -> QueryHead:
    """Train the towers against the items' fused vectors: what the head gives dense search."""
    item_ND = embed(fusion, vectors.items, device)
    return _fit(vectors, fusion, item_ND, "", config, seed=seed, device=device)


def _fit(
    vectors: Vectors,
    fusion: Fusion,
    aim_ND: Tensor,
    tokenizer_fingerprint: str,
    config: QueryConfig,
    *,
    seed: int,
    device: str,
    folder: Path | None = None,
    resume: bool = False,
    log: Log | None = None,
) -> QueryHead:
    """Train the towers one after the other against vectors of the items, and choose how much they count."""
    head = QueryHead(config, fusion.config.dim, vectors.items.image.shape[1], vectors.items.text.shape[1])
    run = TowerTraining(vectors, fusion, aim_ND, config, device)
    for number, tower in enumerate(head.to(device).towers):
        init_module(tower, seed_of(seed, "query", number))
        run.begin(tower, seed_of(seed, "query", number))
        train(
            f"query{number + 1}",
            config.epochs,
            run.epoch,
            modules={"tower": tower},
            optimiser=run.optimiser,
            seed=run.seed,
            folder=None if folder is None else folder / f"query{number + 1}",
            resume=resume,
            identity=f"{config_fingerprint(config)}-{tokenizer_fingerprint}-{run.seed}",
            log=log,
        )
    _choose_blend(head.eval(), vectors, fusion, run.aim, device)
    return head


def _choose_blend(head: QueryHead, vectors: Vectors, fusion: Fusion, aim_NE: Tensor, device: str) -> None:
    """Set the weight of the towers for each modality of queries, by a scan of what they aim at on validation."""
    fused, answers = embed(fusion, vectors.queries, device), head.answers(vectors.queries, device)
    kinds = vectors.queries.modality
    for kind in Modality:
        asked = [_only(task, kinds, int(kind)) for task in vectors.of_split("val")]
        tasks = [task for task in asked if len(task.query_rows)]
        if not tasks:
            continue
        values = []
        for blend in BLENDS:
            mixed = F.normalize(fused + blend * answers, dim=-1)
            query = torch.cat([mixed, torch.ones_like(mixed[:, :1])], -1)
            values.append(dense_mrr(query, aim_NE, tasks))
        head.blend_M[int(kind)] = BLENDS[values.index(max(values))]


def _only(task: Task, kinds: np.ndarray, kind: int) -> Task:
    """Return the task with its queries of one modality."""
    keep = np.flatnonzero(kinds[task.query_rows] == kind)
    return Task(task.name, task.split, task.query_rows[keep], task.pool_rows, [task.positives[i] for i in keep])


class TowerTraining(PairTraining):
    """The state of one tower's training; `epoch` is what the loop calls."""

    def __init__(self, vectors: Vectors, fusion: Fusion, aim_ND: Tensor, config: QueryConfig, device: str) -> None:
        super().__init__(vectors, config, device)
        self.config, self.modality = config, kinds_of(vectors.items, device)
        # <(u, 1), (x̂, -|x̂|^2 / 2)> ranks as the distance to x̂ does, which is what geometry ranks by.
        self.aim = torch.cat([aim_ND, -aim_ND.square().sum(-1, keepdim=True) / 2], -1)
        self.queries = DeviceFeatures(vectors.queries, device)
        self.apart = fusion.config.negatives == "modality"

    def begin(self, tower: nn.Module, seed: int) -> None:
        """Turn to another tower."""
        self.tower, self.seed = tower, seed
        self.optimiser = adam([(tower, 1.0, self.config.weight_decay)])

    def epoch(self, epoch: int) -> Metrics:
        """Run one pass over the pairs and return the mean loss."""
        self.tower.train()
        generator = torch.Generator().manual_seed(seed_of(self.seed, "query", epoch))
        total = torch.zeros((), device=self.device)
        for step, rows in self.batches("query", epoch, generator):
            set_lr(self.optimiser, cosine_lr(self.config.lr, 0.05, 0.05, step, self.config.epochs * self.steps))
            total += self.step(rows)
        return {"loss_cl": float(total) / self.steps}

    def step(self, rows: Tensor) -> Tensor:
        """Make a step on these rows of the pairs, at the learning rate that is set, and return the loss."""
        own = self.pair_x[rows]
        answer = self.tower(*self.queries[self.pair_q[rows]])
        loss = contrastive_loss(
            torch.cat([answer, torch.ones_like(answer[:, :1])], -1),
            self.aim[own],
            own,
            self.config.temperature,
            kind_P=self.modality[own] if self.apart else None,
            smoothing=self.config.smoothing,
        )
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        self.optimiser.step()
        return loss.detach()
