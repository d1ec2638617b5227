"""One run as it is served: its retriever, the writer that makes changes last, and where items have their pictures.

Shapes: N items, M new ones.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch

from siglum.data.fields import read_fields
from siglum.data.source import find_items, read_source
from siglum.files import atomic, make_folder, sync_folder
from siglum.run.folder import RunFolder
from siglum.run.lock import lock_run
from siglum.run.snapshots import list_snapshots
from siglum.search.retriever import Retriever
from siglum.search.state import checked_items
from siglum.search.writer import Writer
from siglum.serve.dense import DenseSpace
from siglum.serve.errors import ServiceError
from siglum.types import Features, Hit, Item, Modality, shown

PICTURES = "pictures"
"""The folder of a run that holds the pictures of items which were added by requests."""
AT_HAND = ("world", "folder")
"""Kinds of sources that know an item by its id, without reading a file of all."""


class Served:
    """A run, loaded and warm; open for writing unless it is only to be read."""

    def __init__(self, root: Path, *, device: str = "cpu", read_only: bool = False, wait: float | None = 0.0) -> None:
        """Load a run, search once so that the first request does not pay for it, and take the lock."""
        self.root = root.resolve()
        self.run = RunFolder(self.root)
        self.retriever = Retriever.load(root, device=device)
        self.source = read_source(root)
        self.read_only, self._wait = read_only, wait
        self.writer: Writer | None = None
        self._open = ExitStack()
        self.dense = DenseSpace(self.run, self.retriever)
        self.picturing = threading.Lock()
        """Held by writes that may keep a picture or let one go."""
        self._pictured = lru_cache(100_000)(self._is_pictured)
        self.warm()

    @property
    def name(self) -> str:
        """What people call the run: its folder's name."""
        return self.root.name

    def warm(self) -> None:
        """Search once."""
        retriever = self.retriever
        encoder = retriever.encoder
        if encoder is not None and encoder.text_dim:
            encoder.encode_texts(["a first question"])
        dim = retriever.tokenizer.quantizer.dim
        if len(retriever):
            retriever.rank(torch.nn.functional.normalize(torch.ones(1, dim), dim=1), k=1)

    def open(self) -> None:
        """Take the run's lock and open its index for changes; the same thread must close it."""
        if self.read_only:
            return
        with ExitStack() as stack:
            stack.enter_context(lock_run(self.root, "siglum serve", self._wait))
            self.writer = stack.enter_context(self.retriever.writing(self.root, background=True))
            self._open = stack.pop_all()

    def close(self) -> None:
        """Close the log and free the lock."""
        self.writer = None
        self._open.close()

    def image_of(self, hit: Hit) -> bool:
        """Return whether a hit has a picture."""
        if hit.image is not None:
            return hit.image.exists()
        if self.source.get("kind") not in AT_HAND:
            return False
        told = self.retriever.tokenizer.quantizer.first_residual == 1
        return (not told or hit.codes[0] != Modality.TEXT) and self._pictured(hit.item_id)

    def address_of(self, hit: Hit) -> str | None:
        """Return where a client finds the picture of a hit, None where there is none."""
        if not self.image_of(hit):
            return None
        # A picture that takes the place of another has another name, and so has its address.
        version = f"?v={hit.image.stem[:8]}" if hit.image is not None and hit.image.parent.name == PICTURES else ""
        return f"/items/{quote(hit.item_id, safe='')}/image{version}"

    def _is_pictured(self, name: str) -> bool:
        """Return whether the source has a picture of an item."""
        known = find_items(self.source, [name]).get(name)
        image = None if known is None else known.image
        return image.exists() if isinstance(image, Path) else image is not None

    def item(self, name: str) -> Item:
        """Return an item of the index with its text and picture, as far as they are kept or can be made again."""
        hit = self.hit(name)
        if hit.image is None and self.source.get("kind") in AT_HAND:
            known = find_items(self.source, [name]).get(name)
            if known is not None:
                return Item(id=name, text=hit.text or known.text, image=known.image)
        return Item(id=name, text=hit.text, image=hit.image)

    def hit(self, name: str) -> Hit:
        """Return an item of the index as a hit of no search."""
        return self.hits([name])[0]

    def hits(self, names: Sequence[str]) -> list[Hit]:
        """Return items of the index as hits of no search, refusing an id that is not there."""
        index = self.retriever.index
        known = set(index.ids.known(names))
        for name in names:
            if name not in known:
                raise ServiceError("not_found", f"there is no item {shown(name)} in this index.")
        codes, kept = index.codes_of(names).tolist(), index.fields_of(names)
        return [
            Hit(name, 0.0, tuple(path), 0, None, *read_fields(fields))
            for name, path, fields in zip(names, codes, kept, strict=True)
        ]

    def keep_picture(self, name: str, jpeg: bytes) -> Path:
        """Write the picture of a new item so that it is on the disk; its place is told by a hash alone."""
        folder = self.root / PICTURES
        digest = hashlib.sha256(b"\0".join((name.encode(), jpeg))).hexdigest()
        place = folder / f"{digest[:40]}.jpg"
        make_folder(folder)
        if not place.exists():
            with atomic(place) as file:
                file.write(jpeg)
            sync_folder(folder)
        return place

    def drop_pictures(self, places: Iterable[Path | None]) -> None:
        """Delete pictures that no item has any more, unless a snapshot may still speak of them."""
        own = [place for place in places if place is not None and place.parent == self.root / PICTURES]
        if own and not list_snapshots(self.run):
            for place in own:
                with suppress(OSError):
                    os.unlink(place)


def write_items(
    served: Served, items: Sequence[Item], features: Features | None, jpegs: Mapping[str, bytes], upsert: bool
) -> tuple[int, int]:
    """Add items, all or none; return how many came and how many went.

    Without features they are encoded; `jpegs` are the pictures to keep of them, by id.
    """
    assert served.writer is not None
    features = _encoded(served, items) if features is None else features
    names = [item.id for item in items]
    with served.picturing if upsert or jpegs else nullcontext():
        known = served.retriever.index.ids.known(names)
        if known and not upsert:
            raise ServiceError("conflict", f"{shown(known[0])} is in the index already; send upsert to replace it.")
        before = [hit.image for hit in served.hits(known)]
        kept = {name: served.keep_picture(name, jpeg) for name, jpeg in jpegs.items()}
        about = [Item(id=one.id, text=one.text, image=kept.get(one.id)) for one in items if one.text or one.id in kept]
        served.writer.replace(known, features, about=about)
        served.drop_pictures(place for place in before if place not in kept.values())
    return len(items), len(known)


def _encoded(served: Served, items: Sequence[Item]) -> Features:
    """Return the features of all items, refusing one that gives none."""
    features, omitted = served.retriever.encode_each(checked_items(items))
    if omitted:
        raise ServiceError("bad_request", f"the item {shown(omitted[0].id)}: {omitted[0].why}")
    return features


def remove_items(served: Served, names: Sequence[str]) -> int:
    """Take items out, all or none; return how many."""
    assert served.writer is not None
    with served.picturing:
        before = [hit.image for hit in served.hits(names)]
        served.writer.remove(names)
        served.drop_pictures(before)
    return len(names)


def facts_of(served: Served) -> dict[str, Any]:
    """Return what a page needs to know of a run."""
    retriever, encoder = served.retriever, served.retriever.encoder
    words = bool(served.source.get("supervised", True) or served.source.get("joint", True))
    config = retriever.config
    return {
        "run": served.name,
        "items": len(retriever),
        "levels": retriever.index.levels,
        "decoder": retriever.decoder is not None,
        "encoder": None if encoder is None else encoder.name,
        "takes": {
            "text": encoder is not None and encoder.text_dim > 0 and words,
            "image": encoder is not None and encoder.image_dim > 0,
        },
        "search": {"beam": config.beam, "omega": config.omega, "mode": config.mode, "scorer": config.scorer},
        "kinds": retriever.tokenizer.quantizer.first_residual == 1,
        "writes": served.writer is not None,
        "dense": served.dense.is_there,
    }
