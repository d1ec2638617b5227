"""A product catalogue: photographs with names and attributes, as a collection with all eight kinds of query.

The folder holds `products.jsonl` and the pictures it names; docs/formats.md shows the fields, docs/catalogue.md tells
what each task asks. A product gives an item of its photograph, one of photograph and name, and each name one of text.
"""

from __future__ import annotations

from collections.abc import Collection as Several
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from siglum.data.catalogue_tasks import CatalogueQuery, Product, ask, gallery_of
from siglum.data.collection import SPLITS, Collection
from siglum.data.jsonl import scan_lines
from siglum.data.tasks import TASKS
from siglum.files import fingerprint
from siglum.types import Item, Query, SiglumError, one_of, shown

PRODUCTS = "products.jsonl"
NEEDED = ("id", "picture", "name", "group", "type", "colour", "split")
MORE = ("gender", "usage")
"""Fields that may be missing; all others are passed over."""


@dataclass(frozen=True)
class Catalogue:
    """The products of a folder, in the order of its file."""

    folder: Path
    products: Sequence[Product]
    seed: int = 0
    """Seed of wordings, and of which products ask and which are found."""

    @cached_property
    def asked(self) -> dict[str, list[CatalogueQuery]]:
        """All queries by split, task by task, each with its cluster."""
        return {split: ask(self.of_split(split), split, self.seed) for split in SPLITS}

    def of_split(self, split: str) -> list[Product]:
        """Return the products of a split."""
        return [product for product in self.products if product.split == split]

    def texts(self) -> dict[str, str]:
        """Return every distinct name of every split by the id of its item."""
        return {product.text_id: product.name for product in reversed(self.products)}

    def items(self) -> list[Item]:
        """Return all photographs, all names, and all photographs with their names."""
        pictures = [(product, self.folder / product.picture) for product in self.products]
        names = self.texts()
        texts = {product.text_id: Item(id=product.text_id, text=names[product.text_id]) for product in self.products}
        return [
            *(Item(id=product.image_id, image=path) for product, path in pictures),
            *texts.values(),
            *(Item(id=product.pair_id, text=product.name, image=path) for product, path in pictures),
        ]

    @cached_property
    def collection(self) -> Collection:
        """Items, queries and pools."""
        queries = {split: [one.query(self.folder) for one in asked] for split, asked in self.asked.items()}
        pools: dict[tuple[str, str], Sequence[str]] = {
            (split, task): ids
            for split in SPLITS[1:]
            for target, ids in self._pools(split).items()
            for task in TASKS
            if task.split("2")[1] == target
        }
        return Collection(self.items(), {split: found for split, found in queries.items() if found}, pools, shared=True)

    def _pools(self, split: str) -> dict[str, list[str]]:
        products = self.of_split(split)
        found = gallery_of(products, split, self.seed)
        return {
            "i": [product.image_id for product in found],
            "t": list(dict.fromkeys(product.text_id for product in products)),
            "it": [product.pair_id for product in found],
        }

    def about(self) -> str:
        """Return what it holds, in words."""
        queries = sum(map(len, self.asked.values()))
        names = len({product.text_id for product in self.products})
        return f"{len(self.products):,} products of {names:,} names, {queries:,} queries of eight kinds"

    def queries_fingerprint(self) -> str:
        """Return what changes with any query: its words, its picture, its answers, its cluster or its pool."""
        asked = [[astuple(one) for one in some] for some in self.asked.values()]
        return fingerprint(asked, [self._pools(split) for split in SPLITS[1:]])

    def identity(self) -> str:
        """Return what tells the files of this catalogue from others."""
        sizes = [(self.folder / product.picture).stat().st_size for product in self.products]
        return fingerprint("catalogue", [vars(product) for product in self.products], sizes, self.seed)


def read_catalogue(folder: Path, seed: int = 0) -> Catalogue:
    """Read a folder of products, refusing what is missing and names or groups that stand in two splits."""
    path = folder / PRODUCTS
    if not path.is_file():
        raise SiglumError(f"{folder} has no {PRODUCTS}; a catalogue is a folder with that file and its pictures.")
    return Catalogue(folder, parse_products(scan_lines(path), path), seed)


def parse_products(records: Iterable[tuple[int, str, Mapping[str, Any]]], path: Path) -> list[Product]:
    """Return the products of records, each told with its place, checked one by one and together."""
    products: list[Product] = []
    text_of: dict[tuple[str, str], str] = {}
    home: dict[tuple[str, str], str] = {}
    seen: set[str] = set()
    for _, where, record in records:
        fields = {name: _field(record, name, where) for name in NEEDED}
        fields |= {name: str(record.get(name) or "") for name in MORE}
        one_of(f"{where}: split", fields["split"], SPLITS)
        if fields["id"] in seen or fields["id"].split() != [fields["id"]]:
            fault = "stands there before" if fields["id"] in seen else "holds white space"
            raise SiglumError(f"{where}: the id {shown(fields['id'])} {fault}; give every product one of its own.")
        seen.add(fields["id"])
        for what in ("name", "group"):
            split = home.setdefault((what, fields[what]), fields["split"])
            if split != fields["split"]:
                raise SiglumError(
                    f"{where}: the {what} {shown(fields[what])} stands in split {split} too; keep each in one split."
                )
        fields["name"] = " ".join(fields["name"].split())
        text = text_of.setdefault((fields["split"], fields["name"].casefold()), f"t:{fields['id']}")
        products.append(Product(**fields, text_id=text))
    if not products:
        raise SiglumError(f"{path} lists no products.")
    return products


def _field(record: Mapping[str, Any], name: str, where: str) -> str:
    value = record.get(name)
    if not isinstance(value, str) or not value.strip():
        raise SiglumError(
            f"{where}: {name} is {shown(value)}, but a product needs {', '.join(NEEDED)}, all of them text."
        )
    return value


class CatalogueSource:
    """A catalogue as a source."""

    needs: Mapping[str, type] = {"path": str, "seed": int}

    @staticmethod
    def items(facts: Mapping[str, Any], ids: Several[str]) -> dict[str, Item]:
        """Read the products again."""
        known = {item.id: item for item in read_catalogue(Path(facts["path"]), facts["seed"]).items()}
        return {name: known[name] for name in ids if name in known}

    @staticmethod
    def queries(facts: Mapping[str, Any], split: str, task: str, ids: Sequence[str]) -> Iterable[Query]:
        """Ask the queries of a split again."""
        return read_catalogue(Path(facts["path"]), facts["seed"]).collection.queries.get(split, ())
