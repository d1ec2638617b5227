"""What every request passes first: whom it is for, who sends it, how large and slow it is, and what is told of it."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import secrets
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from siglum.serve.errors import ServiceError, error_body
from siglum.serve.metrics import ServiceMetrics
from siglum.serve.settings import ApiKey, ServeConfig
from siglum.types import SiglumError

OPEN = ("/", "/app.js", "/style.css", "/health", "/ready", "/favicon.ico")
"""What needs no key in any case: the page, which asks for one itself, and what tells whether the service is there."""
PROBES = ("/health", "/ready")
"""What is asked by machines, by whatever address they know."""
READS = ("/search", "/dense", "/explain")
"""What is read by POST."""
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SAFE = [
    (b"content-security-policy", CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
]
_log = logging.getLogger("siglum.serve.access")
_PROCESS, _numbers = secrets.token_hex(4), itertools.count(1)
"""What requests are named by in the log."""


class Gate:
    """Wraps the application."""

    def __init__(self, app: ASGIApp, config: ServeConfig, metrics: ServiceMetrics, key: ApiKey | None) -> None:
        """Let through what the settings allow."""
        self.app, self.config, self.metrics, self.key = app, config, metrics, key
        self._open = 0
        self._hosts = config.own_hosts
        self._tracer = _tracer() if config.tracing else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        passage = _Passage(self.config, scope, receive, send)
        self._open += 1
        self.metrics.open.set(self._open)
        try:
            with self._span(scope):
                await self._through(passage)
        finally:
            self._open -= 1
            self.metrics.open.set(self._open)
            self._tell(passage)

    async def _through(self, passage: _Passage) -> None:
        try:
            self._check(passage)
            await self.app(passage.scope, passage.receive, passage.send)
        except SiglumError as error:
            code, status = (error.code, error.status) if isinstance(error, ServiceError) else ("bad_request", 400)
            await passage.refuse(status, error_body(code, str(error)))
        except asyncio.CancelledError:
            raise
        except Exception:
            logging.getLogger("siglum.serve").exception("request %s failed", passage.name)
            await passage.refuse(
                500, error_body("internal", f"something went wrong here; the log knows {passage.name}.")
            )

    def _check(self, passage: _Passage) -> None:
        """Refuse a request that is not for this service, not allowed, or too much."""
        config, scope, headers = self.config, passage.scope, passage.headers
        host = headers.get(b"host", b"").decode("latin-1").lower()
        origin, method, path = headers.get(b"origin"), scope["method"], scope["path"]
        if self._hosts is not None and path not in PROBES and _without_port(host) not in self._hosts:
            raise ServiceError("forbidden", "this service is not known by the name in the Host header.")
        if origin is not None and method not in ("GET", "HEAD", "OPTIONS"):
            own = origin.decode("latin-1").lower()
            if own.partition("://")[2] != host and own not in config.cors_origins:
                raise ServiceError("forbidden", "pages of other origins may not use this service.")
        if self._open > config.connections:
            raise ServiceError("overloaded", f"{config.connections} requests are open already; try again in a moment.")
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > config.max_body:
            raise _too_large(config)
        if self.key is not None and path not in OPEN and method != "OPTIONS":
            is_read = method in ("GET", "HEAD") or path in READS
            if (config.api_key_for == "everything" or not is_read) and not self.key.fits(_key_of(headers)):
                raise ServiceError("unauthorised", "send the API key as `Authorization: Bearer KEY`.")

    def _span(self, scope: Scope) -> AbstractContextManager[Any]:
        if self._tracer is None:
            return nullcontext()
        span: AbstractContextManager[Any] = self._tracer.start_as_current_span(
            f"{scope['method']} /{scope['path'].split('/')[1][:40]}"
        )
        return span

    def _tell(self, passage: _Passage) -> None:
        """Count and log a request; what was asked for is nobody's business."""
        seconds, endpoint, status = time.perf_counter() - passage.begun, passage.endpoint, str(passage.status or 499)
        self.metrics.requests.labels(endpoint, status).inc()
        self.metrics.seconds.labels(endpoint).observe(seconds)
        if _log.isEnabledFor(logging.INFO):
            facts = {
                "request": passage.name,
                "method": passage.scope["method"],
                "endpoint": endpoint,
                "status": int(status),
                "ms": round(1000 * seconds, 2),
                "received": passage.received,
                "sent": passage.sent,
            }
            _log.info("request", extra={"facts": facts})


class _Passage:
    """One request, with what is known and measured of it."""

    def __init__(self, config: ServeConfig, scope: Scope, receive: Receive, send: Send) -> None:
        self.config, self.scope, self._receive, self._send = config, scope, receive, send
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.begun, self.name = time.perf_counter(), f"{_PROCESS}-{next(_numbers):x}"
        self.status, self.received, self.sent = 0, 0, 0
        self.asked = self.headers.get(b"content-type", b"").decode("latin-1")[:80]

    @property
    def endpoint(self) -> str:
        """The route, not the path: that may name items, and there is no end of paths."""
        return getattr(self.scope.get("route"), "path", "other")

    async def receive(self) -> Message:
        """Take more of the body, up to its limits of size and time."""
        left = self.config.timeout - (time.perf_counter() - self.begun)
        try:
            async with asyncio.timeout(max(left, 0.001) if not self.status else None):
                message = await self._receive()
        except TimeoutError:
            raise ServiceError("too_slow", f"the request did not arrive within {self.config.timeout:g} s.") from None
        self.received += len(message.get("body", b""))
        if self.received > self.config.max_body:
            raise _too_large(self.config)
        return message

    async def send(self, message: Message) -> None:
        """Send a part of the answer, with what all answers carry."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = {name for name, _ in message["headers"]}
            more = [*(pair for pair in SAFE if pair[0] not in own), (b"x-request-id", self.name.encode())]
            message = {**message, "headers": [*message["headers"], *more]}
        else:
            self.sent += len(message.get("body", b""))
        await self._send(message)

    async def refuse(self, status: int, document: dict[str, Any]) -> None:
        """Answer with an error, if there is no answer yet."""
        if self.status:
            return
        content = json.dumps(document).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        headers += more_headers(status)
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": content})


def _tracer() -> Any:
    """Return what makes spans of OpenTelemetry."""
    try:
        from opentelemetry import trace
    except ImportError as error:
        raise SiglumError(
            "tracing needs the package opentelemetry-api; install it with `pip install 'siglum[tracing]'`."
        ) from error
    return trace.get_tracer("siglum")


def more_headers(status: int) -> list[tuple[bytes, bytes]]:
    """Return what an error of this status carries beside its body."""
    if status == 401:
        return [(b"www-authenticate", b"Bearer")]
    if status in (408, 413):
        return [(b"connection", b"close")]
    return [(b"retry-after", b"1")] if status == 503 else []


def _too_large(config: ServeConfig) -> ServiceError:
    return ServiceError("too_large", f"a request has at most {config.max_body} bytes; send less at once.")


def _without_port(host: str) -> str:
    """Return the name in a Host header.

    >>> _without_port("localhost:8000"), _without_port("[::1]:8000")
    ('localhost', '[::1]')
    """
    return host if host.endswith("]") else host.rpartition(":")[0] or host


def _key_of(headers: dict[bytes, bytes]) -> bytes:
    """Return the key of a request."""
    kind, _, key = headers.get(b"authorization", b"").partition(b" ")
    return key.strip() if kind.lower() == b"bearer" else headers.get(b"x-api-key", b"")
