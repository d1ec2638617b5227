"""What a search is asked: texts, pictures or both, one or many, and how the search is to be done."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np

from siglum.config import HistoryVector, Normalisation, SearchConfig, as_dict, from_dict
from siglum.data.pictures import file_of, is_image
from siglum.given import check_row, listed
from siglum.index import Allowed, Index
from siglum.types import Drawing, Hit, Item, Modality, Picture, Query, SiglumError, shown, whole_number

QueryLike = str | Picture | Query
"""A text, a picture or a query. A string is always a text: name the file of a picture by a `Path`."""
Within = Iterable[str] | np.ndarray | None
"""Ids, or a mask over the pool; None means all."""


class SearchOptions(TypedDict, total=False):
    """The fields of `SearchConfig`, which says what they mean; None is what the run has."""

    scorer: str | None
    beam: int | None
    omega: float | None
    prior: float | None
    normalisation: Normalisation | None
    vector: HistoryVector | None
    zscore: bool | None
    lookahead: bool | None
    leaf_order: Literal["pool", "dense"] | None
    batch_size: int | None
    engine: Literal["auto", "fast", "reference"] | None
    precision: Literal["fp32", "bf16", "int8"] | None
    mode: Literal["exact", "renormalised", "scan", "scan-rescore"] | None


class SearchKeywords(SearchOptions, total=False):
    """All that `Retriever.search` takes by name beside what is searched for."""

    k: int
    instruction: str | None
    within: Within
    without: Iterable[str]
    exclude_self: bool
    min_score: float | None
    progress: bool


@dataclass(frozen=True, slots=True)
class AskedQueries:
    """What is asked, as queries with ids that differ."""

    rows: list[Query]
    names: list[str | None]
    """The ids that were given with them."""
    is_one: bool
    """Whether one was asked, and not a list."""

    @classmethod
    def of(
        cls,
        query: QueryLike | Sequence[QueryLike] | None,
        image: Picture | Sequence[Picture | None] | None = None,
        text: str | Sequence[str] | None = None,
        instruction: str | None = None,
    ) -> AskedQueries:
        """Return what was asked in any of the ways that `Retriever.search` knows, refusing what cannot be asked."""
        if text is not None and query is not None:
            raise SiglumError("a search takes its words as query or as text, not as both; give one of them.")
        asked = query if text is None else text
        many = _is_many(image if asked is None else asked)
        asks = _pairs(asked, image) if many else [(asked, image)]
        for one, _ in asks:
            if text is not None and not isinstance(one, str):
                raise SiglumError(f"the text of a search is a string, not {shown(one)}.")
        rows = [_query_of(one, picture, instruction) for one, picture in asks]
        for row in rows:
            check_row(row, "a search")
            if not row.text and row.image is None:
                raise SiglumError("a search needs a text, an image or both.")
        rows = [replace(row, text=row.text or None) for row in rows]
        names = [one.id if isinstance(one, Query) else None for one, _ in asks]
        told = (
            names if all(names) and len(set(names)) == len(names) else [f"query {n}" for n in range(1, len(rows) + 1)]
        )
        return cls([replace(row, id=str(name)) for row, name in zip(rows, told, strict=True)], names, not many)

    def others(
        self, ask: Callable[[SearchRequest], list[list[Hit]]], how: SearchRequest, first: int, kinds: bool
    ) -> list[list[Hit]]:
        """Return k hits of each query from number `first` on, without the item that the query itself is.

        With `kinds` the first code of an item says whether it has a picture. A picture that nothing tells from others,
        neither an id nor a file that items keep too, is refused.
        """
        self._check_own()
        places = 1  # what the query itself takes, more where several items have its picture
        while True:
            whole = ask(replace(how, k=how.k + places))
            kept = [self._without_own(number, hits, kinds) for number, hits in enumerate(whole, first)]
            most = max((len(hits) - len(rest) for hits, rest in zip(whole, kept, strict=True)), default=0)
            if most <= places:
                return [hits[: how.k] for hits in kept]
            places = most

    def _check_own(self) -> None:
        for name, row in zip(self.names, self.rows, strict=True):
            if name is None and row.image is not None and file_of(row.image) is None:
                raise SiglumError(
                    "exclude_self knows an item by its id or its picture file, but this picture has neither; give the"
                    " file's Path, or a siglum.Query with the id, or leave ids out by `without`."
                )

    def _without_own(self, number: int, hits: Sequence[Hit], kinds: bool) -> list[Hit]:
        """Return hits without the query itself, the item of its id or of the same picture file, ranked from 1."""
        name, file = self.names[number], _place_of(self.rows[number].image)
        others = [hit for hit in hits if hit.item_id != name and (file is None or _place_of(hit.image) != file)]
        files = [hit.image for hit in hits if (hit.codes[0] != Modality.TEXT if kinds else hit.text is None)]
        if name is None and file and files and not any(files):
            raise SiglumError(
                "exclude_self knows the item of a picture by its file, but these items keep none (a published"
                " retriever has no files); give a siglum.Query with the id, or leave ids out by `without`."
            )
        return [replace(hit, rank=rank) for rank, hit in enumerate(others, 1)]


def items_of(given: Item | QueryLike | Iterable[Item | QueryLike]) -> tuple[list[Item], bool]:
    """Return texts, pictures and items as items with ids that differ, and whether one was given and not a list."""
    many = _is_many(given)
    rows: list[Item] = []
    for one in given if many else [given]:  # type: ignore[union-attr]
        query = one if isinstance(one, Item) else _query_of(one, None, None)  # type: ignore[arg-type]
        item = Item(id=f"item {len(rows) + 1}", text=query.text or None, image=query.image)
        check_row(item, "an item")
        item.modality  # noqa: B018  raises where there is neither text nor picture
        rows.append(item)
    return rows, not many


def _is_many(value: object) -> bool:
    """Return whether a value is several things: any collection but a text, a picture and a lone array."""
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "UO" and value.ndim == 1
    lone = isinstance(value, str | bytes | Path | Query | Item | Mapping | Drawing) or is_image(value)
    return not lone and isinstance(value, Iterable)


def _pairs(asked: Any, image: Any) -> list[tuple[Any, Any]]:
    """Return many texts and pictures, each text with its picture."""
    if asked is None:
        return [(None, picture) for picture in image]
    texts = list(asked)
    if image is not None and not _is_many(image):
        raise SiglumError(f"{len(texts)} queries were given with one image; give a list of as many images.")
    pictures = [None] * len(texts) if image is None else list(image)
    if len(pictures) != len(texts):
        raise SiglumError(f"{len(texts)} queries were given with {len(pictures)} images; give one for each, or None.")
    return list(zip(texts, pictures, strict=True))


def _query_of(asked: Any, image: Any, instruction: str | None) -> Query:
    """Return one text, picture or query as a query."""
    if isinstance(asked, Query):
        query = replace(asked, instruction=asked.instruction or instruction)
    elif asked is None or isinstance(asked, str):
        query = Query(id="", text=asked, instruction=instruction)
    elif isinstance(asked, Path | bytes | Drawing) or is_image(asked) or _is_pixels(asked):
        query = Query(id="", image=asked, instruction=instruction)
    else:
        hint = " (`rank` takes vectors)" if isinstance(asked, np.ndarray) else ""
        raise SiglumError(
            f"{shown(asked)}{hint} is no text, no picture (a Path, bytes, a PIL image or uint8 pixels) and no"
            " siglum.Query, nor a list of them."
        )
    if image is None:
        return query
    if _is_many(image):
        raise SiglumError("one query was given with several images; give one image, or as many queries.")
    if query.image is not None:
        raise SiglumError("a query has one picture, but two were given; leave the image out.")
    return replace(query, image=image)


def _place_of(picture: object) -> Path | None:
    file = file_of(picture)
    return None if file is None else file.resolve()


def _is_pixels(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.uint8


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """How to search the items of one moment."""

    config: SearchConfig
    k: int
    allowed: Allowed | None = None
    min_score: float | None = None

    @classmethod
    def of(
        cls,
        index: Index,
        config: SearchConfig,
        options: SearchOptions,
        *,
        k: int = 10,
        within: Within = None,
        without: Iterable[str] = (),
        min_score: float | None = None,
    ) -> SearchRequest:
        """Return a checked request; `options` change the configuration, those that are None leave it."""
        if min_score is not None and (not isinstance(min_score, Real) or math.isnan(min_score)):
            raise SiglumError(f"min_score is a number, not {shown(min_score)}.")
        given = {name: value for name, value in options.items() if value is not None}
        changed: SearchConfig = from_dict(SearchConfig, {**as_dict(config), **given})
        return cls(changed, whole_number("k", k), _allowed(index, within, listed(without)), min_score)


def _allowed(index: Index, within: Within, without: Sequence[str]) -> Allowed | None:
    """Return the filter of a search; an id to be left out that is not there is left out already."""
    if not without:
        return None if within is None else index.allow(within)
    rows = np.ones(len(index), bool) if within is None else index.rows_mask(within)
    places = index.ids.locate(without)
    rows[index.rows_of(places[places >= 0])] = False
    return Allowed.of(rows)
