"""The distinct pictures and texts of a collection whose rows share them, and rows put together from their features."""

# Shapes: N rows, P parts, Di and Dt sizes of an image's and a text's feature.

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from siglum.data.collection import SPLITS, Collection
from siglum.data.omitted import Omission
from siglum.types import Features, Item, Query, SiglumError

Row = Item | Query


def text_of(row: Row) -> str | None:
    """Return the text an encoder sees: of a query the instruction, then its own words."""
    if isinstance(row, Item):
        return row.text
    return " ".join(part for part in (row.instruction, row.text) if part) or None


def kind_of(row: Row) -> Literal["item", "query"]:
    """Return what a row is called where it is left out."""
    return "item" if isinstance(row, Item) else "query"


def rows_of(collection: Collection) -> Iterable[Row]:
    """Yield all items, then all queries."""
    yield from collection.items
    for split in SPLITS:
        yield from collection.queries.get(split, ())


def distinct(rows: Iterable[Row]) -> list[Item]:
    """Return every distinct picture and every distinct text as an item of its own, named by what it is."""
    pictures: dict[str, None] = {}
    texts: dict[str, None] = {}
    for row in rows:
        if row.image is not None:
            pictures.setdefault(_name(row))
        if (text := text_of(row)) is not None:
            texts.setdefault(text)
    found = [Item(id=f"picture {place}", image=Path(name)) for place, name in enumerate(pictures)]
    return found + [Item(id=f"text {place}", text=text) for place, text in enumerate(texts)]


def _name(row: Row) -> str:
    if not isinstance(row.image, str | Path):
        raise SiglumError(f"the picture of {row.id!r} is no file; only files can be shared by rows.")
    return str(row.image)


@dataclass(frozen=True, slots=True)
class Parts:
    """The features of distinct pictures and texts, and where each of them stands."""

    features: Features
    """One part a row; a part that gave no feature is not there."""
    pictures: dict[str, int]
    texts: dict[str, int]
    lost: dict[str, str]
    """Pictures and texts without a feature, with the reason."""

    @classmethod
    def of(cls, parts: Sequence[Item], features: Features, omitted: Iterable[Omission] = ()) -> Parts:
        """Say which part each row of features is."""
        row_of = {name: row for row, name in enumerate(features.ids)}
        why = {entry.id: entry.why for entry in omitted}
        pictures, texts, lost = dict[str, int](), dict[str, int](), dict[str, str]()
        for part in parts:
            name, known = (part.text, texts) if part.text is not None else (str(part.image), pictures)
            if part.id in row_of:
                known[name] = row_of[part.id]
            else:
                lost[name] = why.get(part.id, "it gave no feature.")
        return cls(features, pictures, texts, lost)

    def gather(self, rows: Sequence[Row], omitted: list[Omission]) -> Features:
        """Return the features of rows; one whose picture gave none is left out, as is one that has nothing else."""
        kept: list[tuple[str, int, int]] = []
        for row in rows:
            kind, text = kind_of(row), text_of(row)
            seen = -1 if row.image is None else self.pictures.get(_name(row), -1)
            read = -1 if text is None else self.texts.get(text, -1)
            if row.image is not None and seen < 0:
                omitted.append(Omission(kind, row.id, "row", self.lost[_name(row)]))
                continue
            if text is not None and read < 0:
                omitted.append(Omission(kind, row.id, "row" if seen < 0 else "text", self.lost[text]))
            if seen >= 0 or read >= 0:
                kept.append((row.id, seen, read))
        seen_N, read_N = (np.array([entry[part] for entry in kept], np.int64) for part in (1, 2))
        return Features(
            [entry[0] for entry in kept],
            _taken(self.features.image, seen_N),
            _taken(self.features.text, read_N),
            seen_N >= 0,
            read_N >= 0,
        )


def _taken(part_PD: np.ndarray, row_N: np.ndarray) -> np.ndarray:
    """Return rows of an array, and zeros where the row is -1."""
    found: np.ndarray = part_PD[row_N]
    found[row_N < 0] = 0
    return found
