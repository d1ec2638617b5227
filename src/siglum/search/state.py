"""What a retriever searches at one moment, and what has changed since it was last on disk.

A state is never changed: whoever adds or removes makes another one. A search holds on to the state it began with.
Shapes: N items, M new ones, L levels, D numbers a vector.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from siglum.given import check_row, listed
from siglum.index import Index, Layered
from siglum.index.index import LAYERED
from siglum.types import Item, SiglumError, shown

FOLD = 8
"""A layer of more changes than this part of the index below is folded into it, as is any over a small index."""


@dataclass(frozen=True, slots=True)
class NewItems:
    """New items on their way into an index."""

    ids: Sequence[str]
    codes_ML: np.ndarray
    vectors_MD: Tensor
    fields: Sequence[str] = ()
    """What is kept to show of each; nothing, or one of each id."""


@dataclass(frozen=True, slots=True)
class State:
    """An index, kept vectors in pool order, and the ids that are gone and new since the index was on disk."""

    index: Index
    item_ND: Tensor | None = None
    gone: Mapping[str, None] = field(default_factory=dict)
    fresh: Mapping[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.index, Index):
            raise SiglumError(f"the items of a retriever are a siglum Index, not {shown(self.index)}.")

    def changed(self, gone: Sequence[str], fresh: NewItems) -> State:
        """Return the state without some items, and then with others at the end of the pool."""
        names, new = dict.fromkeys(gone), listed(fresh.ids)
        if not names and not new:
            return self
        item_ND = self.item_ND
        if item_ND is not None:
            keep = np.ones(len(self.index), bool)
            keep[self.index.positions(names)] = False
            item_ND = torch.cat([item_ND[torch.from_numpy(keep)], fresh.vectors_MD.half().float()])
        layer = self.index if isinstance(self.index, Layered) else self.index.layer()
        return State(
            _folded(layer.changed(list(names), new, fresh.codes_ML, fresh.fields)),
            item_ND,
            {**self.gone, **{name: None for name in names if name not in self.fresh}},
            {**{name: None for name in self.fresh if name not in names}, **dict.fromkeys(new)},
        )


def _folded(layer: Layered) -> Index:
    """Return an index in one piece where it is small, or its layer has become large."""
    below = len(layer.below)
    return layer.flat if below < LAYERED or FOLD * layer.changes > below else layer


def checked_items(items: Iterable[Item]) -> list[Item]:
    """Return items as a list, refusing what is none or has parts that cannot be encoded."""
    refusal = SiglumError(f"add takes items (a list of siglum.Item) or features (siglum.features), not {shown(items)}.")
    try:
        given = list(items)
    except TypeError:
        raise refusal from None
    for item in given:
        if not isinstance(item, Item):
            raise refusal
        check_row(item, f"item {shown(item.id)}")
        item.modality  # noqa: B018  raises where there is neither text nor picture
    return given
