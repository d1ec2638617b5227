"""The endpoints: each reads a request, hands it to the service, and writes what it gets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute

from siglum.serve.answers import FollowAsk, follow_target, search_with_parts
from siglum.serve.bodies import read_body
from siglum.serve.errors import ServiceError
from siglum.serve.intake import how_of, search_ask
from siglum.serve.schema import DenseBody, ErrorReply, ExplainBody, SearchBody, SearchReply, StateReply
from siglum.serve.served import Served, facts_of
from siglum.serve.service import Service
from siglum.types import Hit

WITH_PARTS = 100
"""Hits of one query, and of all queries together, of which the parts of the score are told."""
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorReply} for status in (400, 401, 403, 404, 405, 408, 409, 413, 415, 422, 503, 504)
}


class DirectRoute(APIRoute):
    """A route whose endpoint reads the request itself, with nothing to be worked out between the two."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the endpoint."""
        return self.endpoint


def as_json(document: Any, status: int = 200) -> Response:
    """Return a document as it is, unchecked: what is checked is what comes in."""
    return Response(json.dumps(document), status, media_type="application/json")


def body_of(model: str, **form: dict[str, Any]) -> dict[str, Any]:
    """Return how the OpenAPI document tells of a body that is JSON, or a form with the same document in a part."""
    document = {"$ref": f"#/components/schemas/{model}"}
    binary = {"type": "string", "format": "binary"}
    parts = {"request": document, "image": binary, "image_features": binary, "text_features": binary, **form}
    content: dict[str, Any] = {
        "application/json": {"schema": document},
        "multipart/form-data": {"schema": {"type": "object", "properties": parts}},
    }
    return {"requestBody": {"required": True, "content": content}}


TEXT = {"type": "string"}


def search_routes(service: Service) -> APIRouter:
    """Return the endpoints that search."""
    router = APIRouter(responses=ERRORS, route_class=DirectRoute)

    @router.post("/search", response_model=SearchReply, openapi_extra=body_of("SearchBody", text=TEXT, k=TEXT))
    async def search(request: Request) -> Response:
        """Search by words, pictures, both, items of the index or features; many queries at once."""
        deadline = service.deadline()
        body, parts = await read_body(request, SearchBody, "queries")
        how = how_of(service, body, body.k)
        ask = await search_ask(service, how, body.queries, parts, deadline)
        if not body.parts:
            hits, items = await service.search(ask, deadline)
            return as_json(_reply(service.served, hits, items))
        if len(ask) * how.k > WITH_PARTS:
            raise ServiceError("invalid", f"parts of scores are told of at most {WITH_PARTS} hits; ask for fewer.")
        (hits, items), found = await service.on_engine(lambda served: search_with_parts(served, ask), deadline)
        return as_json(_reply(service.served, hits, items, found))

    @router.post("/dense", response_model=SearchReply, openapi_extra=body_of("DenseBody", text=TEXT, k=TEXT))
    async def dense(request: Request) -> Response:
        """Search all vectors of the run, where it keeps them: what codes lose can be seen beside it."""
        deadline = service.deadline()
        body, parts = await read_body(request, DenseBody, "queries")
        ask = await search_ask(service, how_of(service, body, body.k), body.queries, parts, deadline)
        hits, items = await service.search(ask, deadline)
        return as_json(_reply(service.served, hits, items))

    @router.post(
        "/explain", response_model=dict[str, Any], openapi_extra=body_of("ExplainBody", text=TEXT, target=TEXT)
    )
    async def explain(request: Request) -> Response:
        """Follow one item through the beam of a query, level by level: where it lives, and where it dies."""
        deadline = service.deadline()
        body, parts = await read_body(request, ExplainBody, "query")
        ask = await search_ask(service, how_of(service, body, 1), [body.query], parts, deadline)
        if len(ask) != 1:
            raise ServiceError("invalid", f"one query is explained at a time, not {len(ask)}.")
        service.served.hit(body.target)  # not found, rather than a bad request
        asked = FollowAsk(ask, body.target, body.best, body.pruned)
        return as_json(await service.on_engine(lambda served: follow_target(served, asked), deadline))

    return router


def state_routes(service: Service) -> APIRouter:
    """Return the endpoints that tell of the service itself."""
    router = APIRouter()

    @router.get("/health", response_model=StateReply)
    async def health() -> Response:
        """Tell that the process answers."""
        return as_json({"status": "ok"})

    @router.get("/ready", response_model=StateReply, responses={503: {"model": ErrorReply}})
    async def ready() -> Response:
        """Tell whether requests should be sent here."""
        if not service.is_ready:
            raise ServiceError("not_ready", "the service is shutting down.")
        return as_json({"status": "ready"})

    @router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}, 401: ERRORS[401]})
    async def metrics() -> Response:
        """Tell all figures in the format of Prometheus."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @router.get("/about", response_model=dict[str, Any], responses={401: ERRORS[401]})
    async def about() -> Response:
        """Tell what is served: the run, what it takes, and the limits of requests."""
        config = service.config
        limits = {name: getattr(config, name) for name in ("max_k", "max_beam", "max_queries", "max_items", "max_body")}
        facts = await asyncio.to_thread(facts_of, service.served)
        return as_json({**facts, "limits": limits, "version": service.version})

    return router


def _reply(
    served: Served, results: Sequence[Sequence[Hit]], items: int, parts: Sequence[Sequence[dict[str, float]]] = ()
) -> dict[str, Any]:
    found = [[hit_body(served, hit) for hit in hits] for hits in results]
    for hits, told, own in zip(results, found, parts, strict=False):
        for hit, body, values in zip(hits, told, own, strict=True):
            body |= {"parts": values, "codes": hit.codes}
    return {"results": found, "items": items}


def hit_body(served: Served, hit: Hit) -> dict[str, Any]:
    """Return a hit as JSON values."""
    return {
        "rank": hit.rank,
        "id": hit.item_id,
        "score": hit.score,
        "similarity": hit.similarity,
        "text": hit.text,
        "image": served.address_of(hit),
    }


Router = Callable[[Service], APIRouter]
PictureSide = Annotated[int, Query(ge=32, le=1024, description="Pixels a side, at most.")]
