"""What requests ask of the engine, in the library's own words, and how the engine answers many at once.

Shapes: Q queries, Di and Dt numbers of an image's and a text's feature.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from siglum.data.vectors import check_features, with_widths
from siglum.encode.run import PARTS
from siglum.search.asked import SearchOptions
from siglum.search.retriever import Retriever
from siglum.serve.errors import ServiceError
from siglum.types import Features, Hit, Modality, Query, SiglumError

KINDS = {"image": Modality.IMAGE, "text": Modality.TEXT, "both": Modality.IMAGE_TEXT}


@dataclass(frozen=True, slots=True)
class How:
    """How to search; requests that ask for the same are answered together."""

    k: int
    options: tuple[tuple[str, Any], ...] = ()
    """Settings of the search by name, those alone that were given."""
    within: tuple[str, ...] | None = None
    without: tuple[str, ...] = ()
    kinds: tuple[str, ...] | None = None
    min_score: float | None = None
    dense: bool = False

    @property
    def settings(self) -> SearchOptions:
        """The settings as the library takes them."""
        return cast(SearchOptions, dict(self.options))

    def pool(self, retriever: Retriever) -> np.ndarray | Sequence[str] | None:
        """Return what is searched: ids, or a mask over the pool; None means all."""
        if self.kinds is None:
            return self.within
        index, first_residual = retriever.index, retriever.tokenizer.quantizer.first_residual
        if first_residual != 1:
            raise ServiceError(
                "bad_request", "the codes of this run do not tell kinds of items apart; leave kinds out."
            )
        kind_N = index.column(0, np.arange(len(index)))
        rows = np.isin(kind_N, [int(KINDS[kind]) for kind in self.kinds])
        if self.within is not None:
            rows &= index.rows_mask(self.within)
        mask = np.zeros(len(index), bool)
        mask[index.positions_at(np.flatnonzero(rows))] = True
        return mask

    def mask(self, retriever: Retriever) -> np.ndarray:
        """Return all that is searched as a mask over the pool, bool (N,)."""
        index, within = retriever.index, self.pool(retriever)
        mask = np.full(len(index), within is None)
        if within is not None:
            mask[within if isinstance(within, np.ndarray) else index.positions(within)] = True
        out = index.ids.locate(self.without)
        mask[out[out >= 0]] = False
        return mask


@dataclass(frozen=True, slots=True)
class SentFeatures:
    """Features as they were sent, float16 in little-endian order; a row of NaN is a part that is missing."""

    size: int
    widths: Mapping[str, int]
    parts: Mapping[str, bytes]

    def __len__(self) -> int:
        return self.size

    def read(self) -> Features:
        """Return them as arrays."""
        found = {
            name: np.frombuffer(content, "<f2").reshape(self.size, -1).copy() for name, content in self.parts.items()
        }
        return as_features(self.size, self.widths, found)


def as_features(size: int, widths: Mapping[str, int], found: Mapping[str, np.ndarray]) -> Features:
    """Return arrays of the parts that are there as features of these widths, image and text."""
    arrays, masks = [], []
    for name, width in widths.items():
        rows = found.get(name)
        there = np.zeros(size, bool) if rows is None else ~np.isnan(rows).all(1)
        whole = rows is not None and bool(there.all())
        arrays.append(np.zeros((size, width), np.float32) if rows is None else rows if whole else _zeroed(rows, there))
        masks.append(there)
    return Features([str(number) for number in range(size)], arrays[0], arrays[1], masks[0], masks[1])


def _zeroed(rows: np.ndarray, there: np.ndarray) -> np.ndarray:
    kept = rows.astype(np.float32)
    kept[~there] = 0
    return kept


@dataclass(slots=True)
class SearchAsk:
    """The queries of one request: to be encoded, or features that are."""

    how: How
    rows: list[Query] = field(default_factory=list)
    features: Features | SentFeatures | None = None

    def __len__(self) -> int:
        return len(self.rows) if self.features is None else len(self.features)


@dataclass(slots=True)
class CallAsk:
    """Anything else that needs the engine to itself."""

    call: Callable[[Any], Any]


Ask = SearchAsk | CallAsk
Searched = tuple[list[list[Hit]], int]
"""The hits of every query, and the number of items there were."""
Search = Callable[[Retriever, Features, How], list[list[Hit]]]


def search_by_codes(retriever: Retriever, features: Features, how: How) -> list[list[Hit]]:
    """Search by the run's codes."""
    return retriever.search_features(
        features,
        k=how.k,
        within=how.pool(retriever),
        without=how.without,
        min_score=how.min_score,
        **how.settings,
    )


def answer_all(served: Any, asks: Sequence[Ask], search: Search) -> list[Any]:
    """Return the answer to every ask, or the error that is its own; those of one kind are searched for together."""
    answers: list[Any] = [None] * len(asks)
    retriever = copy(served.retriever)  # of one moment: others may add and remove meanwhile
    features = _encoded(retriever, asks, answers)
    groups: dict[Hashable, list[int]] = {}
    for place, ask in enumerate(asks):
        if isinstance(ask, CallAsk):
            answers[place] = _attempt(lambda ask=ask: ask.call(served))  # type: ignore[misc]
        elif answers[place] is None:
            groups.setdefault(ask.how, []).append(place)
    for places in groups.values():
        _answer_group(retriever, asks, features, places, answers, search)
    return answers


def features_of_ask(retriever: Retriever, ask: SearchAsk) -> Features:
    """Return the features of the queries of one request, or raise what is wrong with them."""
    answers: list[Any] = [None]
    found = _encoded(retriever, [ask], answers)
    if answers[0] is not None:
        raise answers[0]
    return found[0]


def _answer_group(
    retriever: Retriever,
    asks: Sequence[Ask],
    features: dict[int, Features],
    places: Sequence[int],
    answers: list[Any],
    search: Search,
) -> None:
    """Search for the queries of several requests at once; if that is refused, for each request alone."""
    how = asks[places[0]].how  # type: ignore[union-attr]
    parts = [features[place] for place in places]
    found = _attempt(lambda: (search(retriever, _joined(parts), how), len(retriever)))
    if isinstance(found, Exception):
        if len(places) == 1:
            answers[places[0]] = found
        else:
            for place in places:
                _answer_group(retriever, asks, features, [place], answers, search)
        return
    hits, count = found
    start = 0
    for place, part in zip(places, parts, strict=True):
        answers[place] = hits[start : start + len(part)], count
        start += len(part)


def _encoded(retriever: Retriever, asks: Sequence[Ask], answers: list[Any]) -> dict[int, Features]:
    """Return the features of every search, texts and pictures encoded together; errors go to their own answers."""
    found: dict[int, Features] = {}
    rows: list[Query] = []
    owners: list[int] = []
    fusion = retriever.tokenizer.fusion
    for place, ask in enumerate(asks):
        if not isinstance(ask, SearchAsk):
            continue
        if ask.features is None:
            owners += [place] * len(ask.rows)
            rows += ask.rows
            continue
        own = _attempt(lambda ask=ask: _checked(ask.features, len(fusion.image_shift), len(fusion.text_shift)))  # type: ignore[misc]
        if isinstance(own, Exception):
            answers[place] = own
        else:
            found[place] = own
    if rows:
        _encode_rows(retriever, rows, owners, found, answers)
    return found


def _encode_rows(
    retriever: Retriever, rows: list[Query], owners: list[int], found: dict[int, Features], answers: list[Any]
) -> None:
    named = [replace(row, id=str(number)) for number, row in enumerate(rows)]
    encoded = _attempt(lambda: retriever.encode_each(named))
    if isinstance(encoded, Exception):
        for place in owners:
            answers[place] = encoded
        return
    features, omitted = encoded
    for entry in omitted:
        answers[owners[int(entry.id)]] = ServiceError("bad_request", entry.why)
    owner_R = np.array([owners[int(name)] for name in features.ids], np.int64)
    for place in dict.fromkeys(owners):
        if answers[place] is None:
            found[place] = features.rows(np.flatnonzero(owner_R == place))


def _checked(features: Features | SentFeatures, image_dim: int, text_dim: int) -> Features:
    if isinstance(features, SentFeatures):  # read here, where it holds up nobody who only waits
        features = features.read()
    widened = with_widths(features, image_dim, text_dim, "queries")
    check_features(widened, "queries")
    return widened


def _joined(parts: Sequence[Features]) -> Features:
    """Return features of several requests as one, under names of their own."""
    arrays = (np.concatenate([getattr(part, name) for part in parts]) for name in PARTS)
    return Features([str(number) for number in range(sum(map(len, parts)))], *arrays)


def _attempt(work: Callable[[], Any]) -> Any:
    """Return what a piece of work gives, or the error the user can mend."""
    try:
        return work()
    except SiglumError as error:
        return error
