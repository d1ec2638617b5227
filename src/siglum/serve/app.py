"""The application: endpoints, errors as sentences, the OpenAPI document, and the page."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, Response
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException

from siglum import __version__
from siglum.serve.errors import STATUS, as_service_error, error_body
from siglum.serve.gate import Gate, more_headers
from siglum.serve.items import item_routes
from siglum.serve.routes import Router, search_routes, state_routes
from siglum.serve.schema import AddBody, DenseBody, ExplainBody, RemoveBody, SearchBody
from siglum.serve.service import Service
from siglum.serve.settings import ApiKey
from siglum.types import SiglumError

ROUTERS: tuple[Router, ...] = (search_routes, item_routes, state_routes)
"""What gives the endpoints of a service; those of another kind of run go here."""
BODIES = (SearchBody, DenseBody, ExplainBody, AddBody, RemoveBody)
PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
}


def build_app(service: Service, routers: Sequence[Router] = ROUTERS) -> FastAPI:
    """Return the application of a service; while it runs, its decoders do."""
    config = service.config
    key = None if config.api_key_file is None else ApiKey.read(config.api_key_file)

    @asynccontextmanager
    async def alive(app: FastAPI) -> AsyncIterator[None]:
        await service.decoders.start()
        yield
        await service.decoders.close()

    app = FastAPI(
        title="Siglum",
        description="Search a collection by words, pictures or both, and see why an item was found or lost.",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=alive,
        redirect_slashes=False,
    )
    for router in routers:
        app.include_router(router(service))
    _add_page(app)
    _tell_errors(app)
    _tell_bodies(app, is_locked=key is not None)
    if config.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(config.cors_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["authorization", "content-type", "x-api-key"],
        )
    app.add_middleware(Gate, config=config, metrics=service.metrics, key=key)
    return app


def _add_page(app: FastAPI) -> None:
    """Serve the page, whose files are read once: no request names a file."""
    folder = files("siglum.serve") / "static"

    def give(path: str, content: bytes, kind: str) -> None:
        @app.get(path, include_in_schema=False)
        async def page() -> Response:
            return Response(content, media_type=kind, headers={"cache-control": "no-cache"})

    for path, (name, kind) in PAGE.items():
        give(path, (folder / name).read_bytes(), kind)

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon() -> Response:
        return Response(status_code=204)


def _tell_errors(app: FastAPI) -> None:
    """Answer every error with one sentence and a code."""

    @app.exception_handler(SiglumError)
    async def mendable(request: Request, error: SiglumError) -> JSONResponse:
        told = as_service_error(error)
        return _refusal(told.status, told.code, str(told))

    @app.exception_handler(HTTPException)
    async def known(request: Request, error: HTTPException) -> JSONResponse:
        code = next((code for code, status in STATUS.items() if status == error.status_code), "bad_request")
        said = {404: "there is no such place here.", 405: "this place is not asked that way."}
        answer = _refusal(error.status_code, code, said.get(error.status_code, str(error.detail)))
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        return _refusal(422, "invalid", f"{'.'.join(map(str, first['loc'][1:]))}: {first['msg']}.")


def _refusal(status: int, code: str, message: str) -> JSONResponse:
    headers = {name.decode(): value.decode() for name, value in more_headers(status)}
    return JSONResponse(error_body(code, " ".join(message.splitlines())), status, headers=headers)


def _tell_bodies(app: FastAPI, is_locked: bool) -> None:
    """Put the types of the bodies, and the key, into the OpenAPI document."""
    plain = app.openapi

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = plain()
            _, schemas = models_json_schema(
                [(body, "validation") for body in BODIES], ref_template="#/components/schemas/{model}"
            )
            components = made.setdefault("components", {})
            components["schemas"] = {**schemas["$defs"], **components.get("schemas", {})}
            if is_locked:
                components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
                made["security"] = [{"key": []}]
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]
