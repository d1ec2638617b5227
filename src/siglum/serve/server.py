"""The process: uvicorn around the application, signals, and logs that machines read."""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from types import FrameType

import uvicorn

from siglum.serve.app import build_app
from siglum.serve.service import Service
from siglum.serve.settings import ServeConfig
from siglum.types import SiglumError

LOGGER = "siglum"
ARENA_MAX = -8
"""The name of that setting in glibc's malloc.h."""
SWITCH = 0.001
"""Seconds after which the engine's thread lets the one of the network go on, where both want the interpreter."""


class JsonFormatter(logging.Formatter):
    """A log record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        told = {"time": moment, "level": record.levelname.lower(), "message": record.getMessage()}
        told |= getattr(record, "facts", {})
        if record.exc_info:
            told["trace"] = self.formatException(record.exc_info)
        return json.dumps(told, default=str)


class TextFormatter(logging.Formatter):
    """A log record as people read it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        facts = " ".join(f"{name}={value}" for name, value in getattr(record, "facts", {}).items())
        trace = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"{time.strftime('%H:%M:%S')} {record.getMessage()} {facts}".rstrip() + trace


def log_to_stderr(kind: str) -> None:
    """Send what the service and its server tell to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if kind == "json" else TextFormatter())
    for name in (LOGGER, "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO if name == LOGGER else logging.WARNING)


class SiglumServer(uvicorn.Server):
    """Uvicorn that drains before it ends, and reloads the run on SIGHUP."""

    def __init__(self, config: uvicorn.Config, service: Service, started: Callable[[int], None]) -> None:
        """Serve a service; `started` is told the port."""
        super().__init__(config)
        self.service, self._told = service, started
        self._ending: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        """Begin to listen."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets=None)
        if not self.started:
            return
        if hasattr(signal, "SIGHUP"):
            with suppress(NotImplementedError, RuntimeError, ValueError):  # not the main thread
                self._loop.add_signal_handler(signal.SIGHUP, self._reload)
        self._told(self.servers[0].sockets[0].getsockname()[1])

    def _reload(self) -> None:
        task = asyncio.ensure_future(self.service.reload())
        self._reloading = task  # a task that nobody holds may go

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Say that no more should be sent here, go on for a while, and then end; at once the second time."""
        if self.service.is_draining or not self.service.config.drain or self._loop is None:
            self.service.is_draining = True
            self.should_exit = True
            return
        self.service.is_draining = True
        self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        async def end() -> None:
            await asyncio.sleep(self.service.config.drain)
            self.should_exit = True

        self._ending = asyncio.ensure_future(end())


def make_server(service: Service, started: Callable[[int], None] = lambda port: None) -> SiglumServer:
    """Return the server of a service, not yet listening; `started` is told its port."""
    config = service.config
    settings = uvicorn.Config(
        build_app(service),
        host=config.host,
        port=config.port,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=int(config.timeout) + 5,
        ws="none",
    )
    return SiglumServer(settings, service, started)


def serve(service: Service, started: Callable[[int], None]) -> None:
    """Serve until a signal ends it; what was taken is finished first."""
    config = service.config
    try:
        make_server(service, started).run()
    except SystemExit as stop:
        raise SiglumError(f"could not listen on {config.host}:{config.port}; see the log above.") from stop
    finally:
        service.close()


def _share_memory() -> None:
    """Have threads share two heaps: with one each, glibc keeps what every thread once needed."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(ARENA_MAX, 2)


def open_and_serve(
    folder: object, config: ServeConfig, *, device: str, wait: float | None, started: Callable[[Service, int], None]
) -> None:
    """Open a run and serve it."""
    from siglum.given import as_folder

    _share_memory()
    service = Service(as_folder(folder), config, device=device, wait=wait)
    log_to_stderr(config.log)
    sys.setswitchinterval(SWITCH)
    serve(service, lambda port: started(service, port))
