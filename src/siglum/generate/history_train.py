"""Training of a decoder that reads histories: the items before, the codes of the item that came next.

Shapes: P pairs in a batch, H items of a history, T tokens an item, D numbers a vector, N items, F numbers of a state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from siglum.config import DecoderConfig
from siglum.fuse.contrastive import contrastive_loss
from siglum.generate.decoder import CodeDecoder
from siglum.generate.histories import HistoryBatch, ReadHistory, last_items, shortened, user_tokens
from siglum.generate.query import QueryHead
from siglum.generate.train import DecoderTraining, decoder_loss
from siglum.loop import Keeping, Metrics
from siglum.tokenize.train import Tokenizer
from siglum.types import SiglumError, Vectors

Validate = Callable[[CodeDecoder], Metrics]
"""What validation measures beside the losses, such as the NDCG@10 that training selects by."""
MOST_ITEMS = 1 << 16
"""Items that stand against the next one in the contrastive loss; of more, those of the batch do."""
RIDGE = 1e-3
"""Penalty of the ridge regression, relative to the mean square of a state's numbers."""
SORTED_TOGETHER = 16
"""Batches whose pairs are sorted by length on a CPU, so that short histories are not filled up to long ones."""
ROWS = 1024
"""Histories read at once outside training."""


def fit_history_decoder(
    vectors: Vectors,
    tokenizer: Tokenizer,
    config: DecoderConfig,
    *,
    seed: int = 0,
    device: str = "cpu",
    graphs: bool = True,
    validate: Validate | None = None,
    **keeping: Unpack[Keeping],
) -> tuple[CodeDecoder, list[Metrics]]:
    """Train a decoder of histories on the training pairs; the epoch that validates best stays.

    Without a `validate` of one's own, that is the one of the lowest loss. At the end a ridge regression from encoder
    states to the next item's vector is fitted too, on training pairs alone.
    """
    run = HistoryTraining(vectors, tokenizer, config, seed, device, validate, graphs)
    made_from = [tokenizer.fingerprint(), str(seed), str(len(vectors.pair_query)), str(validate is not None)]
    history = run.run(made_from, config.history.patience, **keeping)
    run.fit_ridge()
    return run.decoder, history


class HistoryTraining(DecoderTraining):
    """The state of one training on histories."""

    def __init__(
        self,
        vectors: Vectors,
        tokenizer: Tokenizer,
        config: DecoderConfig,
        seed: int,
        device: str,
        validate: Validate | None,
        graphs: bool = True,
    ) -> None:
        histories = vectors.histories
        if histories is None:
            raise SiglumError("decoder.history.items is above 0, but the queries of this run are no histories.")
        if config.null_queries > 0:
            raise SiglumError("decoder.null_queries is about vectors; leave it at 0 where histories are read.")
        row_MH = torch.as_tensor(histories.row_MH).long()
        self.row_MH = last_items(row_MH, config.history.items).to(device)
        self.user_M = user_tokens(torch.as_tensor(histories.user_M), config.history.users).to(device)
        super().__init__(vectors, tokenizer, config, seed, device, None, graphs)
        self._measure = validate
        known = torch.unique(self.pair_x)
        self.known = known
        """Items of training, which alone stand against the next one."""
        self.place_N = torch.full((len(self.item),), -1, device=device)
        self.place_N[known] = torch.arange(len(known), device=device)
        spread = torch.linspace(0, max(0, len(self.val_q) - 1), min(len(self.val_q), config.history.asked)).long()
        self.val_q, self.val_x = self.val_q[spread.to(device)], self.val_x[spread.to(device)]

    def _queries(self, vectors: Vectors, tokenizer: Tokenizer, head: QueryHead | None) -> Tensor:
        """Return nothing: histories are read anew at every step."""
        return torch.zeros(0)

    def batches(self, name: str, epoch: int, generator: torch.Generator) -> Iterator[tuple[int, Tensor]]:
        """Return the batches of an epoch; on a CPU, pairs of histories of a like length stand together."""
        if self.device != "cpu":
            yield from super().batches(name, epoch, generator)
            return
        work = [rows for _, rows in super().batches(name, epoch, generator)]
        length = (self.row_MH[self.pair_q] >= 0).sum(1)
        ordered: list[Tensor] = []
        for start in range(0, len(work), SORTED_TOGETHER):
            rows = torch.cat(work[start : start + SORTED_TOGETHER])
            ordered += rows[length[rows].argsort(stable=True)].split(len(work[0]))
        places = torch.randperm(len(ordered), generator=generator).tolist()
        yield from ((epoch * self.steps + step, ordered[place]) for step, place in enumerate(places))

    def asked(self, rows: Tensor) -> ReadHistory:
        """Return the histories of these rows, read; what no row has is cut off where shapes may vary."""
        row_PH = self.row_MH[rows]
        if self.device == "cpu":
            row_PH = shortened(row_PH)
        return self.decoder.read(HistoryBatch.of(self.codes, row_PH, self.user_M[rows]))

    def validate(self, epoch: int) -> Metrics:
        """Return what validation measures, every so many epochs and at the end."""
        if (epoch + 1) % self.config.history.every and epoch + 1 < self.config.epochs:
            return {}
        found = super().validate(epoch)
        self.decoder.eval()
        if self._measure is not None:
            return found | self._measure(self.decoder)
        return found | ({"select": -found["val_loss"]} if found else {})

    def _learn(self, rows: Tensor) -> Tensor:
        """Make a step at the learning rate that is set; a function of the rows, as a graph needs it."""
        config, target = self.config, self.pair_x[rows]
        codes = self.codes[target]
        soft = self._soft(self.item[target], codes) if config.soft_targets > 0 else None
        with torch.autocast(torch.device(self.device).type, torch.bfloat16, enabled=self.use_bf16):
            read = self.asked(self.pair_q[rows])
            loss = decoder_loss(self.decoder, read, codes, soft)
            if config.history.contrast > 0:
                loss = loss + config.history.contrast * self._contrast(self.decoder.aimed(read), target)
        self._descend(loss)
        return loss.detach()

    def _contrast(self, aimed_PD: Tensor, target_P: Tensor) -> Tensor:
        """Return how badly the learned vector tells the next item from other items of training."""
        temperature = self.config.history.temperature
        if len(self.known) > MOST_ITEMS:
            return contrastive_loss(aimed_PD, self.item[target_P], target_P, temperature)
        return F.cross_entropy(aimed_PD @ self.item[self.known].T / temperature, self.place_N[target_P])

    @torch.no_grad()
    def fit_ridge(self) -> None:
        """Fit the closed-form map from encoder states to the vector of the next item."""
        width = 2 * self.config.d_model + 1
        square_FF = torch.zeros(width, width, dtype=torch.float64, device=self.device)
        cross_FD = torch.zeros(width, self.item.shape[1], dtype=torch.float64, device=self.device)
        self.decoder.eval()
        order = (self.row_MH[self.pair_q] >= 0).sum(1).argsort(stable=True)  # short histories need not be filled up
        for q, x in zip(self.pair_q[order].split(ROWS), self.pair_x[order].split(ROWS), strict=True):
            state_PF = F.pad(self.asked(q).pooled(len(self.decoder.sizes)), (0, 1), value=1.0).double()
            square_FF += state_PF.T @ state_PF
            cross_FD += state_PF.T @ self.item[x].double()
        penalty = RIDGE * square_FF.diagonal()[:-1].mean()
        square_FF.diagonal()[:-1] += penalty
        self.decoder.ridge.copy_(torch.linalg.solve(square_FF, cross_FD).T.float())
