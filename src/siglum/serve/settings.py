"""How a service is set up: one dataclass, filled from flags and from the environment by `siglum serve`."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from siglum.config import from_dict
from siglum.given import read_text
from siglum.types import SiglumError, real_number, shown, whole_number

PREFIX = "SIGLUM_SERVE_"
"""What the names of environment variables begin with: SIGLUM_SERVE_PORT is --port."""
KEY_LENGTH = 16
"""Characters an API key has at least."""
FROM_0 = ("port", "drain", "picture_cache")
"""Settings that may be 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """How a run is served; every setting is a flag, and an environment variable SIGLUM_SERVE_NAME."""

    host: str = "127.0.0.1"
    """Address to listen on; one that is not of this machine alone needs a key or --read-only."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    api_key_file: Path | None = None
    """File that holds the API key, in its first line; without one, no key is asked for."""
    api_key_for: Literal["everything", "writes"] = "everything"
    """What needs the key: everything but the page, /health and /ready, or writes alone."""
    read_only: bool = False
    """Refuse writes, and leave the run's lock to others."""
    hosts: tuple[str, ...] = ()
    """Names this service is called by (the Host header); unset: this machine's on loopback, any elsewhere."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may use this service, such as https://shop.example; none by default."""
    batch: int = 64
    """Queries that the engine takes at once at most."""
    queue: int = 1024
    """Queries that may wait; beyond them a request is told 503 at once."""
    writes: int = 256
    """Writes that may wait; beyond them a request is told 503 at once."""
    connections: int = 2048
    """Requests that may be open at once."""
    timeout: float = 10.0
    """Seconds a request may take; one that has waited longer is not worked on."""
    drain: float = 0.0
    """Seconds to go on serving after SIGTERM, with /ready at 503, before new connections are refused."""
    max_body: int = 16 << 20
    """Bytes a request may have."""
    max_pixels: int = 40_000_000
    """Pixels a picture may have before it is decoded."""
    max_queries: int = 256
    """Queries a request may hold."""
    max_items: int = 1000
    """Items that one request may add, remove or list."""
    max_k: int = 1000
    """Hits that may be asked for."""
    max_beam: int = 1000
    """The widest beam that may be asked for."""
    max_text: int = 10_000
    """Characters of a text, an instruction or an id."""
    decoders: int = 2
    """Processes that decode pictures."""
    picture_cache: int = 64 << 20
    """Bytes of small pictures kept in memory."""
    log: Literal["json", "text"] = "json"
    """How requests are logged on stderr."""
    tracing: bool = False
    """Record a span of OpenTelemetry for each request (needs the package opentelemetry-api)."""

    def check(self) -> None:
        """Refuse what no service can be run with; flags may still mend what the environment says."""
        for field in fields(self):
            value, least = getattr(self, field.name), 0 if field.name in FROM_0 else 1
            if isinstance(value, int) and not isinstance(value, bool):
                whole_number(field.name, value, least)
        if not 0 <= self.port <= 65535:
            raise SiglumError(f"port is {self.port}, but must be from 0 to 65535.")
        for name, low in (("timeout", 1e-3), ("drain", 0.0)):
            if real_number(name, getattr(self, name)) < low:
                raise SiglumError(f"{name} is {getattr(self, name)}, but must be at least {low:g} seconds.")
        for origin in self.cors_origins:
            if "://" not in origin or origin.endswith("/"):
                raise SiglumError(f"an origin is written https://name, without a path or a star, not {shown(origin)}.")
        if not self.is_local and self.api_key_file is None and not self.read_only:
            raise SiglumError(
                f"anyone who reaches {self.host} could change the index; give --api-key-file FILE or --read-only."
            )

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def own_hosts(self) -> frozenset[str] | None:
        """The names this service answers to; None for any."""
        if self.hosts:
            return frozenset(name.lower() for name in self.hosts)
        return frozenset({"localhost", "127.0.0.1", "[::1]", self.host.lower()}) if self.is_local else None


def from_environment(environment: Mapping[str, str]) -> ServeConfig:
    """Return the settings that an environment gives, the others as they are by default; unknown names are refused.

    >>> from_environment({"SIGLUM_SERVE_PORT": "9000", "HOME": "/root"}).port
    9000
    """
    known = {field.name: field for field in fields(ServeConfig)}
    values: dict[str, Any] = {}
    for name, text in environment.items():
        if not name.startswith(PREFIX):
            continue
        own = name.removeprefix(PREFIX).lower()
        if own not in known:
            names = ", ".join(PREFIX + one.upper() for one in known)
            raise SiglumError(f"there is no setting {name}; the settings are {names}.")
        values[own] = _read(own, text)
    config: ServeConfig = from_dict(ServeConfig, values)
    return config


def _read(name: str, text: str) -> Any:
    """Return what the text of a variable says."""
    if name == "api_key_file":
        return Path(text)
    if name in ("hosts", "cors_origins"):
        return [word for word in text.replace(",", " ").split() if word]
    if name in ("host", "api_key_for", "log"):
        return text
    try:
        return json.loads(text.lower())
    except ValueError:
        return text


class ApiKey:
    """A key of which only the hash is kept; comparing takes the same time wherever two differ."""

    def __init__(self, key: str) -> None:
        """Keep the hash of a key."""
        self._digest = hashlib.sha256(key.encode()).digest()

    @classmethod
    def read(cls, path: Path) -> ApiKey:
        """Read the key that stands in the first line of a file."""
        lines = read_text(path).splitlines()
        key = lines[0].strip() if lines else ""
        if len(key) < KEY_LENGTH or not key.isascii():
            raise SiglumError(
                f"{path} must hold a key of at least {KEY_LENGTH} plain characters in its first line; make one with"
                " `openssl rand -hex 32`."
            )
        return cls(key)

    def fits(self, key: bytes) -> bool:
        """Return whether this is the key."""
        return hmac.compare_digest(hashlib.sha256(key).digest(), self._digest)
