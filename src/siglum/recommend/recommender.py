"""What a fitted recommender is: a search engine whose queries are histories of its own items.

Shapes: Q histories, H items of one, N items, T tokens an item, D numbers a vector, M new items.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from siglum.config import HistoryVector
from siglum.data.histories import user_number
from siglum.given import listed
from siglum.index import Index
from siglum.search.asked import SearchOptions, SearchRequest
from siglum.search.beam import Ranking
from siglum.search.histories import HistoryReader
from siglum.search.hits import as_hits, similarities
from siglum.search.query import EncodedQuery
from siglum.search.retriever import Retriever
from siglum.search.state import State
from siglum.tokenize.disambiguate import Disambiguation, count_equal
from siglum.types import Hit, SiglumError, shown, whole_number

ASKED = 256
"""Histories searched with at once."""


class Recommender(Retriever):
    """Say what comes next in a history of items; items may come and go, the models stay as they are.

    Example: `Recommender.load("runs/beauty").next(["B004756YJA", "B004ZT0SSG"], k=5)`.
    """

    def __init__(self, *parts: Any, **more: Any) -> None:
        """Hold the parts of a search engine whose decoder reads histories."""
        super().__init__(*parts, **more)
        if self.decoder is None or not self.decoder.config.history.items:
            raise SiglumError("this run is no recommender: it has no decoder that reads histories.")
        self._reader: tuple[Index, HistoryReader] | None = None

    def next(
        self,
        history: Sequence[str],
        k: int = 10,
        *,
        unseen: bool = False,
        user: str = "",
        **how: Unpack[SearchOptions],
    ) -> list[Hit]:
        """Return the k items that come next after a history of item ids, oldest first, best first.

        `unseen` leaves out what the history has: among the items under the beam, so that few may stay of a long
        history. `user` says whose history it is, where users have tokens. `how` are fields of `SearchConfig` (beam,
        omega, vector, ...). Example: `recommender.next(["item-3", "item-17"], k=5, unseen=True)`.
        """
        return self.next_many([history], k, unseen=unseen, users=[user], **how)[0]

    def next_many(
        self,
        histories: Sequence[Sequence[str]],
        k: int = 10,
        *,
        unseen: bool = False,
        users: Sequence[str] | None = None,
        **how: Unpack[SearchOptions],
    ) -> list[list[Hit]]:
        """Return what `next` gives for each of several histories.

        Example: `recommender.next_many([["item-3"], ["item-17", "item-4"]], k=5)`.
        """
        given = _histories(histories)
        names = [""] * len(given) if users is None else listed(users)
        if len(names) != len(given):
            raise SiglumError(f"{len(given)} histories were given with {len(names)} users; give as many, or none.")
        state, found = self._state, list[list[Hit]]()
        request = SearchRequest.of(state.index, self.config, how, k=whole_number("k", k))
        user_Q = torch.tensor([user_number(name) if name else -1 for name in names])
        rows = self._rows(state, given)
        for start in range(0, len(given), ASKED):
            part = slice(start, start + ASKED)
            asked = self._reader_of(state).ask(rows[part], user_Q[part], request.config.vector)
            seen = [_places(row) for row in rows[part]] if unseen else None
            rankings = self._ranked(state, asked, request, seen)
            similarity = similarities(rankings, asked, state, self.tokenizer.quantizer)
            found += [as_hits(state.index, *pair) for pair in zip(rankings, similarity, strict=True)]
        return found

    def ask(self, history: Sequence[str], *, user: str = "", vector: HistoryVector | None = None) -> EncodedQuery:
        """Return a history as searches are asked it, for `rank` and `siglum.explain`.

        Example: `siglum.explain(recommender, recommender.ask(["item-3"]), "item-17").rank`.
        """
        state, number = self._state, user_number(user) if user else -1
        rows = self._rows(state, _histories([history]))
        return self._reader_of(state).ask(rows, torch.tensor([number]), vector or self.config.vector)

    def _ranked(
        self, state: State, asked: EncodedQuery, request: SearchRequest, seen: Sequence[np.ndarray] | None
    ) -> list[Ranking]:
        if seen is None:
            return self._rank(state, asked, request)
        most = max((len(places) for places in seen), default=0)
        return without_seen(self._rank(state, asked, replace(request, k=request.k + most)), seen, request.k)

    def _rows(self, state: State, histories: Sequence[Sequence[str]]) -> Tensor:
        """Return histories as positions in the pool, -1 where there are no more."""
        longest = max((len(history) for history in histories), default=0)
        rows = torch.full((len(histories), max(1, longest)), -1)
        for place, history in enumerate(histories):
            positions = state.index.ids.locate(history) if len(history) else np.zeros(0, np.int64)
            if (positions < 0).any():
                lacking = history[int(np.argmax(positions < 0))]
                raise SiglumError(
                    f"the history has the item {shown(lacking)}, which is not in the index; leave it out."
                )
            rows[place, : len(history)] = torch.from_numpy(np.asarray(positions, np.int64))
        return rows

    def _reader_of(self, state: State) -> HistoryReader:
        """Return the reader of one moment's items."""
        kept = self._reader
        if kept is None or kept[0] is not state.index:
            codes_NT = torch.from_numpy(state.index.codes(state.index.rows_of(np.arange(len(state.index))))).long()
            codes_NT, item_ND = codes_NT.to(self.device), state.item_ND
            if item_ND is None:
                quantizer = self.tokenizer.quantizer
                if not len(quantizer.codebooks):
                    item_ND = torch.zeros(len(codes_NT), quantizer.dim, device=self.device)
                else:
                    item_ND = torch.nn.functional.normalize(quantizer.decode(codes_NT).detach(), dim=-1)
            assert self.decoder is not None
            kept = self._reader = state.index, HistoryReader(self.decoder, codes_NT, item_ND)
        return kept[1]

    def disambiguation(self) -> Disambiguation | None:
        """Return what the last code has to tell apart; None where no code does."""
        index = self.index
        if not self.tokenizer.quantizer.config.disambiguation:
            return None
        return count_equal(index.codes(np.arange(len(index))), index.sizes)


def without_seen(rankings: Sequence[Ranking], seen: Sequence[np.ndarray], k: int) -> list[Ranking]:
    """Return the k best of each ranking that are not among the positions seen."""
    found = []
    for ranking, places in zip(rankings, seen, strict=True):
        keep = np.flatnonzero(~np.isin(ranking.position, places))[:k]
        found.append(Ranking(ranking.position[keep], ranking.row[keep], ranking.score[keep]))
    return found


def _places(row_H: Tensor) -> np.ndarray:
    found: np.ndarray = row_H[row_H >= 0].numpy()
    return found


def _histories(given: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return histories as lists of ids, refusing what is none."""
    if isinstance(given, str) or not isinstance(given, Sequence | np.ndarray):
        raise SiglumError(f"histories are lists of item ids, oldest first, not {shown(given)}.")
    return [listed(history) for history in given]
