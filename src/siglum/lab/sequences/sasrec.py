"""SASRec, compact: self-attention over item embeddings, cross-entropy over all items at every position.

Shapes: U users, H positions, N items, D numbers an item, P users in a batch, Q users asked, K items of a list.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from siglum.config import config_fingerprint
from siglum.cuda_graph_step import GraphedStep
from siglum.data.sequences import Sequences, SplitEvents
from siglum.files import fingerprint
from siglum.log import Log
from siglum.loop import Metrics, adam, batches, cosine_lr, num_batches, seed_of, set_lr, train
from siglum.recommend.measures import LONGEST, means, ranks_of

ROWS = 512
"""Users asked at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SasRecConfig:
    """The model and how it is trained."""

    dim: int = 128
    """Width, and numbers an item."""
    heads: int = 2
    """Attention heads."""
    layers: int = 2
    """Blocks."""
    dropout: float = 0.4
    """Dropout of embeddings, attention and feed-forward."""
    length: int = 20
    """Most recent items read."""
    epochs: int = 200
    """Passes over the users."""
    batch_size: int = 512
    """Users a step."""
    lr: float = 1e-3
    """Peak learning rate, cosine to a hundredth."""
    weight_decay: float = 0.0
    """Decoupled weight decay on matrices."""
    every: int = 5
    """Epochs from one validation to the next."""
    patience: int = 6
    """Validations in a row that may be no better."""
    asked: int = 5000
    """Most users a validation asks."""


class SasRecBlock(nn.Module):
    """Causal self-attention and feed-forward, each a pre-norm residual."""

    def __init__(self, config: SasRecConfig) -> None:
        super().__init__()
        self.heads, self.share = config.heads, config.dropout
        self.norm, self.feed_norm = nn.LayerNorm(config.dim), nn.LayerNorm(config.dim)
        self.qkv, self.out = nn.Linear(config.dim, 3 * config.dim), nn.Linear(config.dim, config.dim)
        self.wide, self.narrow = nn.Linear(config.dim, 4 * config.dim), nn.Linear(4 * config.dim, config.dim)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x_PHD: Tensor) -> Tensor:
        """Return the same shape; padding comes last, so that nothing before it sees any."""
        users, length, dim = x_PHD.shape
        q, k, v = self.qkv(self.norm(x_PHD)).view(users, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=self.share if self.training else 0.0, is_causal=True)
        x_PHD = x_PHD + self.drop(self.out(mixed.transpose(1, 2).reshape(users, length, dim)))
        y_PHD: Tensor = x_PHD + self.drop(self.narrow(self.drop(F.gelu(self.wide(self.feed_norm(x_PHD))))))
        return y_PHD


class SasRec(nn.Module):
    """Reads the last items and scores all of them."""

    def __init__(self, config: SasRecConfig, items: int) -> None:
        super().__init__()
        self.config = config
        self.items, self.places = nn.Embedding(items + 1, config.dim), nn.Embedding(config.length, config.dim)
        self.blocks = nn.ModuleList(SasRecBlock(config) for _ in range(config.layers))
        self.norm, self.drop = nn.LayerNorm(config.dim), nn.Dropout(config.dropout)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, row_PH: Tensor) -> Tensor:
        """Return states (P, H, D) of histories, -1 where there is nothing."""
        # Row 0 stands for nothing; items follow.
        place_H = torch.arange(row_PH.shape[1], device=row_PH.device)
        x_PHD = self.drop(self.items(row_PH + 1) + self.places(place_H))
        for block in self.blocks:
            x_PHD = block(x_PHD)
        states: Tensor = self.norm(x_PHD)
        return states

    def scores(self, state_RD: Tensor) -> Tensor:
        """Return the logits of all items (R, N)."""
        return state_RD @ self.items.weight[1:].T

    @torch.no_grad()
    def top(self, row_QH: Tensor, k: int) -> np.ndarray:
        """Return the k best items after each history (Q, K)."""
        self.eval()
        found = []
        for rows in row_QH.split(ROWS):
            last = (rows >= 0).sum(1) - 1
            state_QD = self(rows)[torch.arange(len(rows), device=rows.device), last.clamp(min=0)]
            found.append(self.scores(state_QD).topk(k, dim=1).indices.cpu().numpy())
        return np.concatenate(found)


def windows(sequences: Sequences, split: SplitEvents, length: int) -> np.ndarray:
    """Return training in windows of `length` + 1 items, each a target once, filled up with -1 (W, H + 1)."""
    rows = []
    for user in range(len(sequences)):
        span = slice(int(sequences.offset_U[user]), int(sequences.offset_U[user + 1]))
        own = sequences.row_E[span][split.learnt_E[span]]
        for end in range(len(own), 1, -length):
            part = own[max(0, end - length - 1) : end]
            rows.append(np.pad(part, (0, length + 1 - len(part)), constant_values=-1))
    return np.stack(rows)


class SasRecTraining:
    """The state of one training."""

    def __init__(self, sequences: Sequences, split: SplitEvents, config: SasRecConfig, seed: int, device: str) -> None:
        torch.manual_seed(seed_of(seed, "sasrec init"))
        self.config, self.seed, self.device = config, seed, device
        self.row_WH = torch.from_numpy(windows(sequences, split, config.length)).long().to(device)
        self.model = SasRec(config, len(sequences.items)).to(device)
        self.optimiser = adam([(self.model, 1.0, config.weight_decay)], betas=(0.9, 0.98))
        self.steps = num_batches(len(self.row_WH), config.batch_size)
        self.graphed: GraphedStep[Tensor] = GraphedStep(device)
        pick = np.unique(np.linspace(0, len(split.val) - 1, min(len(split.val), config.asked)).astype(int))
        self.val_QH = torch.from_numpy(sequences.histories(split.val[pick], config.length)).long().to(device)
        self.target_Q = sequences.row_E[split.val[pick]]

    def epoch(self, epoch: int) -> Metrics:
        """Run one pass over the windows."""
        self.model.train()
        generator = torch.Generator().manual_seed(seed_of(self.seed, "sasrec", epoch))
        total = torch.zeros((), device=self.device)
        config, steps = self.config, self.steps
        work = batches(len(self.row_WH), config.batch_size, generator, self.device)
        for step, rows in enumerate(work, epoch * steps):
            set_lr(self.optimiser, cosine_lr(config.lr, 0.01, 0.02, step, config.epochs * steps))
            total += self.graphed(self._learn, rows, self.optimiser)
        metrics: Metrics = {"loss": float(total) / steps}
        if (epoch + 1) % config.every == 0 or epoch + 1 == config.epochs:
            metrics["select"] = means(ranks_of(self.model.top(self.val_QH, LONGEST), self.target_Q))["ndcg@10"]
        return metrics

    def _learn(self, rows: Tensor) -> Tensor:
        row_PH = self.row_WH[rows]
        if self.device == "cpu":  # a graph needs one shape
            row_PH = row_PH[:, : int((row_PH >= 0).sum(1).max())]
        target = row_PH[:, 1:].flatten()
        with torch.autocast(torch.device(self.device).type, torch.bfloat16, enabled=self.device.startswith("cuda")):
            state = self.model(row_PH[:, :-1]).flatten(0, 1)
            if self.device == "cpu":
                state, target = state[target >= 0], target[target >= 0]
            loss = F.cross_entropy(self.model.scores(state), target, ignore_index=-1)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.optimiser.step()
        return loss.detach()


def fit_sasrec(
    sequences: Sequences,
    split: SplitEvents,
    config: SasRecConfig,
    *,
    seed: int = 0,
    device: str = "cpu",
    folder: Path | None = None,
    log: Log | None = None,
) -> tuple[SasRec, list[Metrics]]:
    """Train and return the model of the epoch that validates best; a checkpoint in the folder is gone on with."""
    run = SasRecTraining(sequences, split, config, seed, device)
    history = train(
        "sasrec",
        config.epochs,
        run.epoch,
        modules={"sasrec": run.model},
        optimiser=run.optimiser,
        seed=seed,
        folder=folder,
        resume=True,
        identity=f"{config_fingerprint(config)}-{seed}-{fingerprint(run.row_WH)}",
        log=log,
        patience=config.patience,
    )
    run.optimiser.zero_grad(set_to_none=True)
    return run.model.eval(), history


TRIALS = (SasRecConfig(), SasRecConfig(dim=64, dropout=0.5), SasRecConfig(dropout=0.2))
"""What is tried, as many as there are recipes of TIGER; the best on validation is measured."""


def trials(scale: str) -> tuple[SasRecConfig, ...]:
    """Return what is tried at a scale."""
    if scale == "paper":
        return TRIALS
    small = {"epochs": 20, "every": 2, "patience": 3, "asked": 1000, "dim": 64, "batch_size": 256}
    tiny = {**small, "epochs": 2, "dim": 16, "every": 1, "patience": 0}
    return (replace(TRIALS[0], **(tiny if scale == "tiny" else small)),)  # type: ignore[arg-type]
