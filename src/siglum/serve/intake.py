"""From checked documents to what the engine is asked: limits, pictures decoded elsewhere, and features as arrays.

Shapes: Q queries or items, Di and Dt numbers of an image's and a text's feature.
"""

from __future__ import annotations

import asyncio
import binascii
from base64 import b64decode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from siglum.given import encodable
from siglum.serve.asks import How, SearchAsk, SentFeatures, as_features
from siglum.serve.bodies import Attachments
from siglum.serve.errors import ServiceError
from siglum.serve.schema import AddBody, DenseBody, ExplainBody, FeaturesBody, NewItem, QueryBody, SearchBody
from siglum.serve.service import Service
from siglum.types import Drawing, Features, Item, Picture, Query, shown

OPTIONS = ("beam", "omega", "mode")
KEPT_SIDE = 1024
"""Pixels a side of the picture that is kept of an item, at most."""


def how_of(service: Service, body: SearchBody | DenseBody | ExplainBody, k: int) -> How:
    """Return how a request wants to be searched for, within the limits of this service."""
    config = service.config
    _limit("k", k, config.max_k)
    given = {name: getattr(body, name, None) for name in OPTIONS}
    _limit("beam", given["beam"] or 1, config.max_beam)
    for name in (*(body.within or ()), *body.without):
        _text(config.max_text, "id", name)
    return How(
        k,
        tuple((name, value) for name, value in given.items() if value is not None),
        None if body.within is None else tuple(body.within),
        tuple(body.without),
        None if body.kinds is None else tuple(sorted(set(body.kinds))),
        getattr(body, "min_score", None),
        isinstance(body, DenseBody),
    )


async def search_ask(
    service: Service, how: How, queries: Sequence[QueryBody], parts: Attachments, deadline: float
) -> SearchAsk:
    """Return the queries of a request, their pictures decoded."""
    _limit("the number of queries", len(queries), service.config.max_queries)
    if parts.features:
        if any(query.model_fields_set for query in queries):
            raise ServiceError("invalid", "a form of features says nothing else of its queries; send queries as [{}].")
        sent = binary_features(service, parts.features)
        _limit("the number of queries", len(sent), service.config.max_queries)
        return SearchAsk(how, features=sent)
    if any(query.features is not None for query in queries):
        for query in queries:
            if query.model_fields_set - {"features"}:
                raise ServiceError("invalid", "a query has features, or words and pictures, but not both.")
        return SearchAsk(how, features=json_features(service, [query.features for query in queries]))
    _refuse_more(parts.pictures, len(queries))
    rows = [
        await _query(service, place, query, parts.pictures.get(place), deadline) for place, query in enumerate(queries)
    ]
    return SearchAsk(how, rows)


async def _query(service: Service, place: int, query: QueryBody, content: bytes | None, deadline: float) -> Query:
    most, takes = service.config.max_text, f"query {place + 1}"
    for name in ("text", "instruction", "item"):
        _text(most, f"{name} of {takes}", getattr(query, name))
    picture: Picture | None = await _picture(service, takes, query.image, content, deadline)
    text = query.text or None
    if query.item is not None:
        if picture is not None:
            raise ServiceError("invalid", f"{takes} begins from an item, or from a picture, but not from both.")
        known = await asyncio.to_thread(service.served.item, query.item)
        picture = await _known_picture(service, known, deadline)
        if text is None or picture is None:
            text = " ".join(filter(None, (known.text, text))) or None
    if text is None and picture is None:
        raise ServiceError("invalid", f"{takes} needs a text, an image, an item or features.")
    refuse_words(service, text)
    return Query(id="", text=text, image=picture, instruction=query.instruction or None)


def refuse_words(service: Service, text: str | None) -> None:
    """Refuse words in a run that could only answer them with noise."""
    if text and not service.served.retriever.knows_words:
        raise ServiceError("bad_request", "this run was built without captions, so words find nothing; send a picture.")


async def _picture(
    service: Service, what: str, encoded: str | None, content: bytes | None, deadline: float
) -> np.ndarray | None:
    """Return the pixels of a picture of a request as the run's encoder takes them."""
    content = _bytes_of(what, encoded, content)
    return None if content is None else await _pixels(service, content, deadline)


def _bytes_of(what: str, encoded: str | None, content: bytes | None) -> bytes | None:
    if encoded is None:
        return content
    if content is not None:
        raise ServiceError("invalid", f"{what} has two pictures; send one.")
    try:
        return b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise ServiceError("invalid", f"the image of {what} is not in base64.") from None


async def _pixels(service: Service, content: bytes, deadline: float) -> np.ndarray:
    encoder = service.served.retriever.encoder
    if encoder is None or not encoder.image_dim:
        raise ServiceError("bad_request", "this run takes no pictures: its encoder knows none.")
    return await service.decoders.pixels(content, encoder.picture_size, encoder.framing, deadline)


async def _known_picture(service: Service, item: Item, deadline: float) -> np.ndarray | None:
    """Return the pixels of an item's own picture; None where it has none, or it has gone."""
    encoder, image = service.served.retriever.encoder, item.image
    if encoder is None or not encoder.image_dim or image is None:
        return None
    if isinstance(image, Drawing):
        return await asyncio.to_thread(image.pixels, encoder.picture_size)
    assert isinstance(image, Path)
    content = await asyncio.to_thread(read_if_there, image)
    return None if content is None else await _pixels(service, content, deadline)


def read_if_there(place: Path) -> bytes | None:
    """Return the bytes of a plain file; None where there is none."""
    try:
        return place.read_bytes() if place.is_file() else None
    except OSError:
        return None


async def new_items(
    service: Service, body: AddBody, parts: Attachments, deadline: float
) -> tuple[list[Item], Features | None, dict[str, bytes]]:
    """Return the items of a request, their features if those were sent, and the pictures to be kept of them."""
    most, rows = service.config.max_text, body.items
    _limit("the number of items", len(rows), service.config.max_items)
    _refuse_more(parts.pictures, len(rows))
    for row in rows:
        for name in ("id", "text"):
            _text(most, name, getattr(row, name))
    if len({row.id for row in rows}) < len(rows):
        raise ServiceError("invalid", "an id stands twice among the items; send each once.")
    features = _item_features(service, rows, parts)
    items, jpegs = [], {}
    for place, row in enumerate(rows):
        content = _bytes_of(f"item {place + 1}", row.image, parts.pictures.get(place))
        pixels: np.ndarray | None = None
        if content is not None:
            jpegs[row.id] = await service.decoders.jpeg(content, KEPT_SIDE, deadline)
            pixels = await _pixels(service, content, deadline) if features is None else None
        if features is None and content is None and not row.text:
            raise ServiceError("invalid", f"the item {shown(row.id)} needs a text, an image or features.")
        items.append(Item(id=row.id, text=row.text or None, image=pixels))
    return items, features, jpegs


def _item_features(service: Service, rows: Sequence[NewItem], parts: Attachments) -> Features | None:
    if parts.features:
        sent = binary_features(service, parts.features)
        if len(sent) != len(rows):
            raise ServiceError("invalid", f"{len(rows)} items came with {len(sent)} rows of features.")
        features = sent.read()
    elif any(row.features is not None for row in rows):
        features = json_features(service, [row.features for row in rows])
    else:
        return None
    features.ids = [row.id for row in rows]
    return features


def binary_features(service: Service, parts: Mapping[str, bytes]) -> SentFeatures:
    """Return features sent as float16 in little-endian order, a row each, after looking at their sizes."""
    widths, sizes = _widths(service), set()
    for name, content in parts.items():
        width = widths[name]
        if not width or not content or len(content) % (2 * width):
            raise ServiceError("invalid", f"{name}_features are rows of {width} float16, not {len(content)} bytes.")
        sizes.add(len(content) // (2 * width))
    if len(sizes) > 1:
        raise ServiceError(
            "invalid", f"there are {min(sizes)} rows of one part of the features and {max(sizes)} of the other."
        )
    return SentFeatures(sizes.pop(), widths, parts)


def json_features(service: Service, rows: Sequence[FeaturesBody | None]) -> Features:
    """Return features sent as numbers."""
    widths, found = _widths(service), dict[str, np.ndarray]()
    for name, width in widths.items():
        own = [None if row is None else getattr(row, name) for row in rows]
        for values in own:
            if values is not None and len(values) != width:
                raise ServiceError("invalid", f"{name} features have {width} numbers in this run, not {len(values)}.")
        if any(values is not None for values in own):
            found[name] = np.array([[np.nan] * width if values is None else values for values in own], np.float32)
    if not found:
        raise ServiceError("invalid", "features are given as image, text or both.")
    return as_features(len(rows), widths, found)


def _widths(service: Service) -> dict[str, int]:
    fusion = service.served.retriever.tokenizer.fusion
    return {"image": len(fusion.image_shift), "text": len(fusion.text_shift)}


def _refuse_more(pictures: Mapping[int, Any], rows: int) -> None:
    if any(place >= rows for place in pictures):
        raise ServiceError("invalid", f"there is a picture {max(pictures)}, but places go from 0 to {rows - 1}.")


def _limit(what: str, value: int, most: int) -> None:
    if value > most:
        raise ServiceError("invalid", f"{what} is {value}, but this service takes at most {most}.")


def _text(most: int, what: str, value: str | None) -> None:
    if value is None:
        return
    if len(value) > most:
        raise ServiceError("invalid", f"the {what} has {len(value)} characters, but this service takes at most {most}.")
    if not encodable(value):
        raise ServiceError("invalid", f"the {what} holds half of a surrogate pair, which UTF-8 cannot write.")


def check_names(service: Service, names: Sequence[str]) -> list[str]:
    """Return ids as they may be looked for, each once."""
    _limit("the number of ids", len(names), service.config.max_items)
    for name in names:
        _text(service.config.max_text, "id", name)
    return list(dict.fromkeys(names))
