"""`siglum serve`: a run behind HTTP, and a page to search it with."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Annotated, Any

import tyro

from siglum.console.commands import DeviceVerb, OneRun, say
from siglum.device import check_device
from siglum.serve.settings import ServeConfig, from_environment
from siglum.types import SiglumError

PRODUCT_CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""How many shapes of a product oneDNN keeps ready, read when it makes the first. Batches have ever new shapes: with a
thousand kept, as by default, memory grows by hundreds of megabytes, and searches are no faster."""


def _settings() -> ServeConfig:
    """Return what the environment says."""
    return from_environment(os.environ)


@dataclass(kw_only=True)
class Command(OneRun, DeviceVerb):
    """Serve a run over HTTP, with a page to search it by words and pictures, until it is told to stop.

    Every setting can be given by an environment variable as well: SIGLUM_SERVE_PORT is --port. SIGHUP opens the run
    folder again, which may be another one by then; SIGTERM finishes what was taken and ends.

    Examples:
      siglum serve runs/demo
      siglum serve runs/mine --port 9000 --read-only
      siglum serve runs/mine --host 0.0.0.0 --api-key-file key.txt
    """

    wait: float | None = 0.0
    """Seconds to wait while another process writes the run, then refuse; 0 refuses at once."""
    settings: Annotated[ServeConfig, tyro.conf.arg(name="")] = field(default_factory=_settings)


def run(command: Command) -> dict[str, Any]:
    """Serve until a signal comes."""
    for name in PRODUCT_CACHES:
        os.environ.setdefault(name, "32")
    try:
        from siglum.serve.server import open_and_serve
    except ImportError as error:
        raise SiglumError(
            f"siglum serve needs packages that are not there ({error.name}); install them with"
            " `pip install 'siglum[serve]'`."
        ) from error
    served: dict[str, Any] = {}

    def started(service: Any, port: int) -> None:
        host = command.settings.host
        place = f"http://{'[' + host + ']' if ':' in host else host}:{port}"
        served.update(run=str(command.folder), address=place, items=len(service.served.retriever))
        say(f"serving {command.folder} ({served['items']:,} items): open {place} in a browser")

    open_and_serve(
        command.folder, command.settings, device=check_device(command.device), wait=command.wait, started=started
    )
    return served
