"""A product catalogue as a folder to search in: every product is a picture with its name, found by words, by a picture
or by both, as people ask: without instructions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from siglum.data.catalogue import PRODUCTS, Catalogue, read_catalogue
from siglum.data.collection import Collection
from siglum.data.folder import FolderCollection, id_of, stamp_of
from siglum.files import fingerprint
from siglum.types import Item, Query

ASKED = {"t2i": "name2it", "t2it": "t2it", "i2i": "i2it", "it2it": "it2it"}
"""Names, descriptions, photographs and changes, by the task of a catalogue that asks them, and what they are called
where products answer; what other tasks ask differs in the kind of answer alone."""


def read_shop(folder: Path, seed: int = 0) -> FolderCollection:
    """Read a folder of products; a product's id is its picture's."""
    catalogue = read_catalogue(folder, seed)
    items = [
        Item(id=id_of(product.picture), text=product.name, image=folder / product.picture)
        for product in catalogue.products
    ]
    stamps = {id_of(product.picture): stamp_of(folder / product.picture) for product in catalogue.products}
    queries = {split: list(_queries(catalogue, split)) for split in catalogue.asked}
    asked = sum(map(len, queries.values()))
    return FolderCollection(
        collection=Collection(items, {split: found for split, found in queries.items() if found}, shared=True),
        supervised=True,
        about=f"{asked:,} names, descriptions, photographs and changes asked of {len(items):,} products in {PRODUCTS}",
        identity=fingerprint(
            catalogue.queries_fingerprint(), [(name, *(stamp or (None, None))) for name, stamp in stamps.items()]
        ),
        stamps=stamps,
        captioned=frozenset(stamps),
        unread={},
        queries="queries",
        scale="catalogue_small",
    )


def _queries(catalogue: Catalogue, split: str) -> Iterator[Query]:
    """Yield the queries of a split, answered by products."""
    name_of = {product.id: id_of(product.picture) for product in catalogue.products}
    for one in catalogue.asked[split]:
        # A photograph that asks is a product too, so that likenesses can be learnt from, but not measured.
        if one.task in ASKED and not (one.task == "i2i" and split != "train"):
            answers = tuple(name_of[item.partition(":")[2]] for item in one.positives)
            asks = one.query(catalogue.folder)
            yield replace(asks, task=ASKED[one.task], instruction=None, positives=answers)
