"""What the decoder believes without a query of the codes of every item: log P(code | codes before it).

It depends on the index and the decoder alone, so that engines need work it out only once; `PriorScorer` is the slow,
plain form.
Shapes: N items in the index's sorted order, L levels, I leaves (items with codes of their own), D numbers a query.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor

from siglum.generate.decoder import CodeDecoder
from siglum.index import Index

CHUNK = 64
"""Leaves that a CPU reads at a time."""
DEVICE_CHUNK = 4096
"""Leaves that a GPU reads at a time."""


@torch.no_grad()
def log_prior(decoder: CodeDecoder, codes_IL: np.ndarray) -> Tensor:
    """Return log P of every code given those before it and the empty query, fp32 on the decoder's device (I, L)."""
    device, found = decoder.table.device, torch.empty(codes_IL.shape, device=decoder.table.device)
    chunk = CHUNK if device.type == "cpu" else DEVICE_CHUNK
    for start in range(0, len(codes_IL), chunk):
        code_IL = torch.as_tensor(codes_IL[start : start + chunk], device=device).long()
        logits = decoder(torch.zeros(len(code_IL), decoder.query_dim, device=device), code_IL)
        for level, logits_IV in enumerate(logits):
            own = logits_IV.float().log_softmax(-1).gather(1, code_IL[:, level : level + 1])
            found[start : start + chunk, level] = own[:, 0]
    return found


class PriorTable:
    """The log-probabilities of an index's codes, as far as they have been worked out; threads may share it."""

    def __init__(self, index: Index) -> None:
        """Start with none; 4 bytes an item and level are taken as they are filled."""
        self.index = index
        self.log_p_NL = np.zeros((len(index), index.levels), np.float32)
        self._since_N = np.full(len(index), index.levels, np.uint8)
        self.complete = False
        """Whether the codes of all items are known."""

    def known(self, rows: np.ndarray, level: int) -> np.ndarray:
        """Return of which rows the codes from `level` on are known, bool."""
        known: np.ndarray = self._since_N[rows] <= level
        return known

    def put(self, rows: np.ndarray, level: int, log_p: np.ndarray) -> None:
        """Note the log-probabilities of the codes from `level` on of rows."""
        self.log_p_NL[rows, level:] = log_p
        self._since_N[rows] = np.minimum(self._since_N[rows], level)  # after the numbers, for threads that look

    def fill(self, decoder: CodeDecoder) -> None:
        """Work out all that is not known: one pass of the decoder over the codes of every leaf."""
        if self.complete:
            return
        heads = np.flatnonzero(self.index.shared < self.index.levels)
        count = np.diff(np.append(heads, len(self.index)))
        missing = ~self.known(heads, 0)
        log_p_IL = self.log_p_NL[heads]
        log_p_IL[missing] = log_prior(decoder, self.index.codes(heads[missing])).cpu().numpy()
        self.put(np.arange(len(self.index)), 0, np.repeat(log_p_IL, count, axis=0))
        self.complete = True


class PriorOnce:
    """The whole table of one index on one device, worked out when first asked for."""

    def __init__(self) -> None:
        """Start with none."""
        self._log_p_LN: Tensor | None = None

    def get(self, decoder: CodeDecoder, index: Index, device: torch.device) -> Tensor:
        """Return the log-probabilities of all codes (L, N)."""
        if self._log_p_LN is None:
            table = PriorTable(index)
            table.fill(decoder if decoder.table.device == device else copy.deepcopy(decoder).to(device))
            self._log_p_LN = torch.from_numpy(table.log_p_NL).to(device).t().contiguous()
        return self._log_p_LN
