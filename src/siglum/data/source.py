"""Where a run's items come from, kept beside the run (source.json), so that hits can be shown as what they are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from siglum.data.corpus import read_items, read_queries
from siglum.data.folder import path_of, read_folder
from siglum.registry import Registry
from siglum.rootfiles import read_kept_json, write_root_json
from siglum.types import Item, Query, SiglumError

SOURCE_FILE = "source.json"
Facts = dict[str, Any]
"""What source.json holds: the kind, and the facts that kind needs."""


class Source(Protocol):
    """One kind of place that items come from."""

    needs: Mapping[str, type]
    """The facts it needs, and of which type."""

    @staticmethod
    def items(facts: Facts, ids: Collection[str]) -> dict[str, Item]:
        """Return the items of these ids as they were before encoding; one that cannot be found is left out."""

    @staticmethod
    def queries(facts: Facts, split: str, task: str, ids: Sequence[str]) -> Iterable[Query]:
        """Return queries of a task as they were before encoding, at least those of `ids` that are known."""


class FolderSource:
    """A folder of pictures."""

    needs: Mapping[str, type] = {"path": str}

    @staticmethod
    def items(facts: Facts, ids: Collection[str]) -> dict[str, Item]:
        """Return pictures by their ids, which are their places in the folder."""
        return {name: Item(id=name, image=Path(facts["path"]) / path_of(name)) for name in ids}

    @staticmethod
    def queries(facts: Facts, split: str, task: str, ids: Sequence[str]) -> Iterable[Query]:
        """Return captions, or the pictures that stand for themselves where there are none."""
        if not facts.get("supervised", True):
            return [Query(id=name, image=Path(facts["path"]) / path_of(name)) for name in ids]
        if "identity" not in facts:
            return ()
        found = read_folder(Path(facts["path"]), facts.get("captions", "auto"), facts.get("seed", 0))
        return found.collection.queries.get(split, ()) if found.identity == facts["identity"] else ()


class FileSource:
    """A file of items."""

    needs: Mapping[str, type] = {"path": str}

    @staticmethod
    def items(facts: Facts, ids: Collection[str]) -> dict[str, Item]:
        """Read the file again."""
        path = Path(facts["path"])
        known = {item.id: item for item in read_items(path)} if path.exists() else {}
        return {name: known[name] for name in ids if name in known}

    @staticmethod
    def queries(facts: Facts, split: str, task: str, ids: Sequence[str]) -> Iterable[Query]:
        """Read the file of queries again, if it is known."""
        return read_queries(Path(facts[split])) if split in facts else ()


SOURCES: Registry[type[Source]] = Registry(
    "source",
    {
        "folder": "siglum.data.source:FolderSource",
        "items": "siglum.data.source:FileSource",
        "catalogue": "siglum.data.catalogue:CatalogueSource",
    },
)
"""Kinds of sources by name; the drawn world of the lab is another."""


def write_source(run: Path, kind: str, **facts: Any) -> None:
    """Keep where the items of a run folder come from, with the facts that this kind needs."""
    SOURCES[kind]
    write_root_json(run, SOURCE_FILE, {"kind": kind, **facts})


def read_source(run: Path) -> Facts:
    """Return what `write_source` kept, or nothing where nothing was kept."""
    facts = read_kept_json(run, SOURCE_FILE, "kind")
    if facts is None:
        return {}
    try:
        needs = SOURCES[facts["kind"]].needs
    except (SiglumError, TypeError) as error:
        raise SiglumError(f"the kind in {run / SOURCE_FILE}: {error}") from error
    for name, needed in needs.items():
        if type(facts.get(name)) is not needed:
            raise SiglumError(f"{run / SOURCE_FILE} holds {facts.get(name)!r} as {name}; make the run again.")
    return facts


def answers_words(run: Path) -> bool:
    """Return whether words can find items of a run: it learnt from captions, or its encoder is a joint one."""
    facts = read_kept_json(run, SOURCE_FILE, "kind") or {}
    return bool(facts.get("supervised", True) or facts.get("joint", True))


def find_items(facts: Facts, ids: Iterable[str]) -> dict[str, Item]:
    """Return the items of these ids as they were before encoding; one that cannot be found is left out."""
    return SOURCES[facts["kind"]].items(facts, list(ids)) if facts else {}


def find_queries(facts: Facts, split: str, task: str, ids: Sequence[str]) -> dict[str, Query]:
    """Return queries with their words and pictures; one that its source does not keep is left out."""
    wanted = set(ids)
    with suppress(SiglumError, OSError):  # a file that has gone since; ids are shown instead
        known = SOURCES[facts["kind"]].queries(facts, split, task, ids) if facts else ()
        return {query.id: query for query in known if query.id in wanted}
    return {}
