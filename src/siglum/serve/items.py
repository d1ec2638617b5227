"""The endpoints of items: looked at, added and removed; a write is answered once it is on the disk."""

from __future__ import annotations

import asyncio
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote_to_bytes

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from siglum.serve.bodies import read_body
from siglum.serve.errors import ServiceError
from siglum.serve.intake import check_names, new_items, read_if_there
from siglum.serve.routes import ERRORS, TEXT, PictureSide, as_json, body_of
from siglum.serve.schema import AddBody, ItemBody, ItemsReply, RemoveBody, WriteReply
from siglum.serve.served import Served, remove_items, write_items
from siglum.serve.service import Service
from siglum.types import Drawing, Hit, Item, Picture

IMAGE: dict[int | str, dict[str, Any]] = {200: {"content": {"image/jpeg": {}}, "description": "A JPEG."}}
SIDE = 320


def item_routes(service: Service) -> APIRouter:
    """Return the endpoints of items."""
    router = APIRouter(prefix="/items", responses=ERRORS)

    @router.get("", response_model=ItemsReply)
    async def list_items(
        offset: Annotated[int, Query(ge=0, le=1 << 40)] = 0, limit: Annotated[int, Query(ge=1)] = 24
    ) -> Response:
        """List items in the order in which they were added."""
        if limit > service.config.max_items:
            raise ServiceError("invalid", f"limit is {limit}, but at most {service.config.max_items} items are listed.")
        return as_json(await asyncio.to_thread(_listed, service.served, offset, limit))

    @router.post("", response_model=WriteReply, openapi_extra=body_of("AddBody", id=TEXT, text=TEXT))
    async def add_items(request: Request) -> Response:
        """Add items, all or none; they are on the disk when this is answered, and found by the next search."""
        body, parts = await read_body(request, AddBody, "items")
        items, features, jpegs = await new_items(service, body, parts, service.deadline())
        added, removed = await service.write(lambda served: write_items(served, items, features, jpegs, body.upsert))
        service.metrics.added.inc(added)
        return as_json({"added": added, "removed": removed, "items": len(service.served.retriever)})

    @router.post("/remove", response_model=WriteReply, openapi_extra=body_of("RemoveBody"))
    async def remove_many(request: Request) -> Response:
        """Remove items, all or none."""
        body, _ = await read_body(request, RemoveBody, "items")
        return await _remove(service, body.ids)

    @router.get("/{item_id:path}/image", response_class=Response, responses=IMAGE)
    async def get_image(request: Request, item_id: str, side: PictureSide = SIDE) -> Response:
        """Give the picture of an item as a JPEG of at most so many pixels a side."""
        return await _get(service, request, side)

    @router.get("/{item_id:path}", response_model=ItemBody)
    async def get_item(request: Request, item_id: str) -> Response:
        """Tell of one item; in the path its id is percent-encoded, slashes included."""
        return await _get(service, request, SIDE)

    @router.delete("/{item_id:path}", response_model=WriteReply)
    async def remove_item(request: Request, item_id: str) -> Response:
        """Remove an item; that is on the disk when this is answered."""
        name, _ = _named(request, as_image=False)
        return await _remove(service, [name])

    return router


async def _remove(service: Service, ids: list[str]) -> Response:
    names = check_names(service, ids)
    removed = await service.write(lambda served: remove_items(served, names))
    service.metrics.removed.inc(removed)
    return as_json({"added": 0, "removed": removed, "items": len(service.served.retriever)})


async def _get(service: Service, request: Request, side: int) -> Response:
    name, is_image = _named(request)
    served = service.served
    check_names(service, [name])
    if is_image:
        return await _image(service, served, name, side)
    return as_json(await asyncio.to_thread(lambda: _body(served, served.hit(name))))


def _named(request: Request, *, as_image: bool = True) -> tuple[str, bool]:
    """Return the id that a path names, and whether its picture is meant.

    Of the path as it was sent: an id may hold slashes, and even end in /image, if they are percent-encoded.
    """
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    rest = raw.partition(b"?")[0].partition(b"/items/")[2]
    is_image = as_image and rest.endswith(b"/image")
    try:
        name = unquote_to_bytes(rest.removesuffix(b"/image") if is_image else rest).decode()
    except UnicodeDecodeError:
        raise ServiceError("not_found", "an id is UTF-8, percent-encoded.") from None
    return name, is_image


def _listed(served: Served, offset: int, limit: int) -> dict[str, Any]:
    index = served.retriever.index
    names = index.ids[offset : min(offset + limit, len(index))]
    return {"items": [_body(served, hit) for hit in served.hits(names)], "total": len(index)}


def _body(served: Served, hit: Hit) -> dict[str, Any]:
    return {"id": hit.item_id, "text": hit.text, "image": served.address_of(hit), "codes": hit.codes}


async def _image(service: Service, served: Served, name: str, side: int) -> Response:
    item = await asyncio.to_thread(served.item, name)
    key = (served.root, name, str(item.image) if isinstance(item.image, Path) else None, side)
    jpeg = service.thumbnails.get(key)
    if jpeg is None:
        jpeg = await _jpeg(service, item, side)
        service.thumbnails.put(key, jpeg)
    return Response(jpeg, media_type="image/jpeg", headers={"cache-control": "private, max-age=3600"})


async def _jpeg(service: Service, item: Item, side: int) -> bytes:
    picture: Picture | None = item.image
    if isinstance(picture, Drawing):
        return await asyncio.to_thread(_draw, picture, side)
    content = await asyncio.to_thread(read_if_there, picture) if isinstance(picture, Path) else None
    if content is None:
        raise ServiceError("not_found", "this item has no picture, or its file has gone.")
    return await service.decoders.jpeg(content, side, service.deadline())


def _draw(drawing: Drawing, side: int) -> bytes:
    """Return a drawing of a synthetic collection as a JPEG."""
    from PIL import Image

    file = BytesIO()
    Image.fromarray(drawing.pixels(side)).save(file, "JPEG", quality=88)
    return file.getvalue()
