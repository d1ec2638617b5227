"""Where a run's items come from, kept beside the run (source.json), so that hits can be shown as what they are."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from siglum.data.corpus import read_items
from siglum.data.folder import path_of
from siglum.data.world import World
from siglum.files import read_record, write_json
from siglum.types import Item, SiglumError, one_of

SOURCE_FILE = "source.json"
KINDS = ("folder", "items", "world")
"""A folder of pictures (path), a file of items (path), the carried world (items, seed)."""


def write_source(run: Path, kind: str, **facts: Any) -> None:
    """Keep where the items of a run folder come from; `KINDS` names the facts a kind needs."""
    write_json(run / SOURCE_FILE, {"kind": one_of("kind", kind, KINDS), **facts})


def read_source(run: Path) -> dict[str, Any]:
    """Return what `write_source` kept, or nothing where nothing was kept."""
    return read_record(run / SOURCE_FILE, "kind") if (run / SOURCE_FILE).exists() else {}


def find_items(source: dict[str, Any], ids: Iterable[str]) -> dict[str, Item]:
    """Return the items of these ids as they were before encoding; one that cannot be found is left out."""
    wanted: Collection[str] = list(ids)
    if not source:
        return {}
    kind = one_of("the kind of a source", source["kind"], KINDS)
    if kind == "folder":
        return {name: Item(id=name, image=Path(source["path"]) / path_of(name)) for name in wanted}
    if kind == "world":
        world, known = World(source["items"], source["seed"]), {}
        for name in wanted:
            with suppress(SiglumError):  # items added to the index later are not of the world
                known[name] = world.item(name)
        return known
    path = Path(source["path"])
    known = {item.id: item for item in read_items(path)} if path.exists() else {}
    return {name: known[name] for name in wanted if name in known}
