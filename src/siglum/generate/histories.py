"""Histories of items as a decoder reads them: a first token, then the codes of every item, oldest first.

Shapes: Q histories, H items at most, T tokens an item, S = 1 + H T tokens read, M d_model, N items.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class HistoryBatch(NamedTuple):
    """Histories as codes; where the mask is false stands nothing, and that comes last."""

    codes_QHT: Tensor
    mask_QH: Tensor
    """Which items are there."""
    user_Q: Tensor | None = None
    """Token of each user, where the decoder has some; -1 is nobody in particular."""

    @classmethod
    def of(cls, codes_NT: Tensor, row_QH: Tensor, user_Q: Tensor | None = None) -> HistoryBatch:
        """Return histories given as rows of items, -1 for none."""
        return cls(codes_NT[row_QH.clamp(min=0)], row_QH >= 0, user_Q)


class ReadHistory(NamedTuple):
    """What the encoder made of histories."""

    states_QSM: Tensor
    mask_QS: Tensor
    """Which of the tokens are there."""

    def pooled(self, tokens: int) -> Tensor:
        """Return the mean state of the last item, of so many tokens, beside that of all tokens (Q, 2 M)."""
        states, there = self.states_QSM, self.mask_QS.to(self.states_QSM.dtype)[..., None]
        last = self.mask_QS.sum(1, keepdim=True) - 1 - torch.arange(tokens, device=states.device)
        last_QTM = states.gather(1, last.clamp(min=0)[..., None].expand(-1, -1, states.shape[2]))
        return torch.cat([last_QTM.mean(1), (states * there).sum(1) / there.sum(1)], -1)


def shortened(row_QH: Tensor) -> Tensor:
    """Return histories without the columns that none of them has, one at least.

    >>> shortened(torch.tensor([[4, -1, -1], [2, 7, -1]])).tolist()
    [[4, -1], [2, 7]]
    """
    return row_QH[:, : max(1, int((row_QH >= 0).sum(1).max()) if len(row_QH) else 0)]


def user_tokens(user_M: Tensor, users: int) -> Tensor:
    """Return which of so many tokens stands for each user; -1 for nobody, and where there are no tokens."""
    if not users:
        return torch.full_like(user_M, -1)
    return torch.where(user_M >= 0, user_M % users, -1)


def last_items(row_MH: Tensor, length: int) -> Tensor:
    """Return the last items of histories, at most so many (M, length)."""
    many_M = (row_MH >= 0).sum(1, keepdim=True)
    step = torch.arange(length)
    place = (many_M - length).clamp(min=0) + step
    return torch.where(step < many_M, row_MH.gather(1, place.clamp(max=row_MH.shape[1] - 1)), -1)
