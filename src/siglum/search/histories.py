"""Histories of items as queries: what an engine is asked, made from the codes and vectors of the items.

Shapes: Q histories, H items of one, N items, T tokens an item, D numbers a vector.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from siglum.config import HistoryVector
from siglum.generate.decoder import CodeDecoder
from siglum.generate.histories import HistoryBatch, ReadHistory, last_items, shortened, user_tokens
from siglum.search.query import EncodedQuery, Questions
from siglum.types import Histories, SiglumError

ROWS = 512
"""Histories encoded at once."""


@dataclass(frozen=True, slots=True)
class HistoryReader:
    """Reads histories of known items with a decoder; rows are those of its codes and vectors."""

    decoder: CodeDecoder
    codes_NT: Tensor
    item_ND: Tensor
    """Vectors of the items, of length 1."""

    @torch.no_grad()
    def ask(self, row_QH: Tensor, user_Q: Tensor | None = None, vector: HistoryVector = "mean") -> EncodedQuery:
        """Return histories as an engine is asked, oldest item first and -1 where there are no more."""
        config = self.decoder.config.history
        rows = shortened(last_items(row_QH, config.items)).to(self.codes_NT.device)
        tokens = None if user_Q is None else user_tokens(user_Q, config.users).to(rows.device)
        read = self.decoder.read(HistoryBatch.of(self.codes_NT, rows, tokens))
        return EncodedQuery(read.states_QSM, self.vectors(rows, read, vector), read.mask_QS)

    def vectors(self, row_QH: Tensor, read: ReadHistory, vector: HistoryVector) -> Tensor:
        """Return the vectors of histories (Q, D): of length 1, or zeros where a history has no items."""
        if vector in ("learned", "ridge"):
            return self.decoder.aimed(read, ridge=vector == "ridge")
        there = row_QH >= 0
        age = there.sum(1, keepdim=True) - 1 - torch.arange(row_QH.shape[1], device=row_QH.device)
        fade = self.decoder.config.history.fade if vector == "mean" else 0.0
        weight = torch.where(there, torch.as_tensor(fade, device=row_QH.device) ** age.clamp(min=0), 0.0)
        mean = torch.einsum("qh,qhd->qd", weight, self.item_ND[row_QH.clamp(min=0)])
        return F.normalize(mean, dim=-1)


@dataclass(frozen=True, slots=True)
class AskedHistories:
    """Many histories, encoded when they are asked for: a slice or places give what an engine takes."""

    reader: HistoryReader
    histories: Histories
    vector: HistoryVector = "mean"

    def __len__(self) -> int:
        return len(self.histories.row_MH)

    def __getitem__(self, rows: slice | Tensor | np.ndarray) -> EncodedQuery:
        """Return some of them."""
        places = rows if isinstance(rows, slice) else np.asarray(rows)
        row_QH = torch.as_tensor(np.asarray(self.histories.row_MH[places])).long()
        user_Q = torch.as_tensor(np.asarray(self.histories.user_M[places]))
        parts = [
            self.reader.ask(*part, self.vector) for part in zip(row_QH.split(ROWS), user_Q.split(ROWS), strict=True)
        ]
        return parts[0] if len(parts) == 1 else joined(parts)


ManyQuestions = Questions | AskedHistories
"""Queries of a collection, of which some are asked at a time."""


def joined(parts: list[EncodedQuery]) -> EncodedQuery:
    """Return encoded histories of several batches as one."""
    if not parts:
        raise SiglumError("there are no histories to ask with.")
    longest = max(part.states.shape[1] for part in parts)
    states = [F.pad(part.states, (0, 0, 0, longest - part.states.shape[1])) for part in parts]
    masks = [F.pad(part.mask_QS, (0, longest - part.mask_QS.shape[1])) for part in parts if part.mask_QS is not None]
    return EncodedQuery(torch.cat(states), torch.cat([part.vector for part in parts]), torch.cat(masks))
