"""One service for the tests that only read, and a fresh one for those that write."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from serving import Running, running
from siglum.data.source import write_source
from siglum.lab.world.collection import World
from siglum.search.retriever import Retriever
from siglum.types import Drawing

WORLD_ITEMS = 480
"""As many as the world of the tests has."""


@pytest.fixture(scope="session")
def reading(world_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    run = shutil.copytree(world_run, tmp_path_factory.mktemp("serve") / "run")
    write_source(run, "world", items=WORLD_ITEMS, seed=0)
    with running(run, read_only=True, max_k=500, max_pixels=1_000_000, max_body=4 << 20) as one:
        yield one


@pytest.fixture
def live(run_copy: Path) -> Iterator[Running]:
    with running(run_copy) as one:
        yield one


@pytest.fixture(scope="session")
def retriever(world_run: Path) -> Retriever:
    return Retriever.load(world_run)


def jpeg(drawing: object, side: int = 96, kind: str = "PNG") -> bytes:
    """Return a drawing as a file."""
    assert isinstance(drawing, Drawing)
    file = BytesIO()
    Image.fromarray(drawing.pixels(side)).save(file, kind)
    return file.getvalue()


@pytest.fixture(scope="session")
def picture(world: World) -> bytes:
    """The file of a picture."""
    return jpeg(world.item("s0000000-i").image, 48)
