"""The nouns every stage shares: modalities, items, queries, features, hits and the one error."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image


class SiglumError(ValueError):
    """Something the user can mend; the message is one sentence that says what and how."""

    def __init__(self, message: str) -> None:
        """Take the message, on one line whatever it quotes."""
        super().__init__(" ".join(message.splitlines()))


def shown(value: object, most: int = 80) -> str:
    """Return a value as messages quote it: on one line, and cut where it is long.

    >>> shown("a"), shown([0] * 99, 12)
    ("'a'", '[0, 0, 0,...')
    """
    if isinstance(value, int) and value.bit_length() > 4 * most:  # Python refuses to write very large numbers at all
        return "a number of too many digits"
    text = " ".join(repr(value).splitlines())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def one_of(name: str, value: str, choices: Iterable[str]) -> str:
    """Return `value` if it is one of `choices`, else raise and name them.

    >>> one_of("fusion", "sum", ["combiner", "sum"])
    'sum'
    """
    known = list(choices)
    if not isinstance(value, str) or value not in known:
        raise SiglumError(f"{name} is {shown(value)}, but must be one of: {', '.join(known)}.")
    return value


MOST = (1 << 63) - 1
"""The largest number that arrays count with."""


def whole_number(name: str, value: object, least: int = 1) -> int:
    """Return `value` if it is a whole number of at least `least`, else raise.

    >>> whole_number("k", 3)
    3
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise SiglumError(f"{name} must be a whole number of at least {least}, not {shown(value)}.")
    if int(value) > MOST:
        raise SiglumError(f"{name} must be at most {MOST}, not {shown(value)}.")
    return int(value)


def real_number(name: str, value: object) -> float:
    """Return `value` if it is a finite number, else raise.

    >>> real_number("tau", 0.5)
    0.5
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise SiglumError(f"{name} must be a finite number, not {shown(value)}.")
    return float(value)


def truth_value(name: str, value: object) -> bool:
    """Return `value` if it is true or false, else raise: any string would count as true, "no" among them.

    >>> truth_value("overwrite", False)
    False
    """
    if not isinstance(value, bool | np.bool_):
        raise SiglumError(f"{name} is True or False, not {shown(value)}.")
    return bool(value)


class Modality(IntEnum):
    """What an item is made of; the value is the item's first token (its modality code)."""

    IMAGE = 0
    TEXT = 1
    IMAGE_TEXT = 2

    @classmethod
    def of(cls, *, has_image: bool, has_text: bool) -> Modality:
        """Return the modality of something with these parts.

        >>> Modality.of(has_image=True, has_text=False).short
        'i'
        """
        if has_image and has_text:
            return cls.IMAGE_TEXT
        if has_image:
            return cls.IMAGE
        if has_text:
            return cls.TEXT
        raise SiglumError("an item or query needs a text, an image or both, but this one has neither.")

    @property
    def short(self) -> str:
        """The letters used in task names: i, t or it."""
        return ("i", "t", "it")[int(self)]


@runtime_checkable
class Drawing(Protocol):
    """A picture that is drawn on demand, so that a collection need not store pixels."""

    def pixels(self, size: int) -> np.ndarray:
        """Return the picture as uint8 (size, size, 3)."""


if TYPE_CHECKING:
    Picture = str | Path | bytes | np.ndarray | Image | Drawing
else:  # Pillow is imported when the first picture is read
    Picture = str | Path | bytes | np.ndarray | Drawing
"""A file (its path or its bytes), a PIL image, uint8 pixels (height, width, 3), or something that draws itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One thing that can be found: a text, a picture or both."""

    id: str
    text: str | None = None
    image: Picture | None = None

    @property
    def modality(self) -> Modality:
        """Image, text, or both."""
        return Modality.of(has_image=self.image is not None, has_text=self.text is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One question: a text, a picture or both, with the ids of the items that answer it."""

    id: str
    text: str | None = None
    image: Picture | None = None
    instruction: str | None = None
    """What kind of thing is wanted, in words; joined to the text before encoding."""
    task: str = ""
    """Name of the task, such as `t2i`; also the name of its pool."""
    positives: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Hit:
    """One result of a search; ranks start at 1."""

    item_id: str
    score: float
    """What it was ranked by: comparable among the hits of one query alone."""
    codes: tuple[int, ...]
    rank: int
    similarity: float | None = None
    """How close query and item are, from 0 to 1: 1 - |q - x|^2 / 4, with x the item's kept vector or its
    reconstruction; for unit vectors that is (1 + cosine) / 2. None where neither exists."""
    text: str | None = None
    """The item's text, where the run keeps it."""
    image: Path | None = None
    """The file of the item's picture, where the run keeps it; it may have gone since."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values.

        >>> Hit("a", 1.5, (0, 7), 1, image=Path("a.png")).as_dict()["image"]
        'a.png'
        """
        return {**asdict(self), "image": None if self.image is None else str(self.image)}


@dataclass(slots=True)
class Features:
    """Frozen image and text features with their masks; row i belongs to `ids[i]`.

    Shapes: image (N, Di), text (N, Dt), has_image (N,), has_text (N,). A missing part is a zero row.
    """

    ids: Sequence[str]
    image: np.ndarray
    text: np.ndarray
    has_image: np.ndarray
    has_text: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def modality(self) -> np.ndarray:
        """Modality code of every row, int8 (N,)."""
        if not bool((self.has_image | self.has_text).all()):
            raise SiglumError("some rows have neither an image nor a text feature; drop them before going on.")
        return np.where(self.has_image & self.has_text, 2, np.where(self.has_text, 1, 0)).astype(np.int8)

    def rows(self, index: np.ndarray) -> Features:
        """Return the chosen rows, in the order given."""
        return Features(
            [self.ids[int(i)] for i in index],
            self.image[index],
            self.text[index],
            self.has_image[index],
            self.has_text[index],
        )


@dataclass(slots=True)
class Task:
    """Queries of one task and split, with the pool they are asked against; all are rows of `Vectors`."""

    name: str
    split: str
    query_rows: np.ndarray
    pool_rows: np.ndarray
    positives: list[np.ndarray]
    """Item rows that answer each query, in the order of `query_rows`."""
    clusters: np.ndarray | None = None
    """What each query has in common with others, as names; intervals draw clusters. None is the first positive."""

    def spread(self, number: int | None) -> Task:
        """Return the task with at most `number` of its queries, evenly spread over them."""
        if number is None or number >= len(self.query_rows):
            return self
        pick = np.linspace(0, len(self.query_rows) - 1, number).astype(np.int64)
        clusters = None if self.clusters is None else self.clusters[pick]
        positives = [self.positives[i] for i in pick]
        return Task(self.name, self.split, self.query_rows[pick], self.pool_rows, positives, clusters)


@dataclass(frozen=True, slots=True)
class Histories:
    """What queries are where they are histories: rows of items, oldest first, and whose they are."""

    row_MH: np.ndarray
    """Item rows, -1 where a history has no more."""
    user_M: np.ndarray
    """A number that stands for the user."""
    seen_M: np.ndarray
    """How many items came before in all; a history holds the last of them."""

    def rows(self, index: np.ndarray) -> Histories:
        """Return the chosen ones, in the order given."""
        return Histories(self.row_MH[index], self.user_M[index], self.seen_M[index])


@dataclass(slots=True)
class Vectors:
    """Everything training and evaluation need of a collection, as arrays: the content of `1-vectors`."""

    items: Features
    queries: Features
    pair_query: np.ndarray
    """Training pairs: query row ..."""
    pair_item: np.ndarray
    """... and item row, one entry a pair."""
    tasks: list[Task]
    histories: Histories | None = None
    """What the queries are where they are histories of items; their features are then a mean over those items'."""

    def of_split(self, split: str) -> list[Task]:
        """Return the tasks of one split."""
        if not isinstance(split, str):
            raise SiglumError(f"a split is named by a string, such as val or test, not {shown(split)}.")
        return [task for task in self.tasks if task.split == split]

    def pool_rows(self, split: str) -> np.ndarray:
        """Return the rows of all pools of one split together, in row order, refusing a split without tasks."""
        tasks = self.of_split(split)
        if not tasks:
            there = ", ".join(sorted({task.split for task in self.tasks})) or "none"
            raise SiglumError(f"this collection has no tasks in split {split}; it has {there}.")
        return np.unique(np.concatenate([task.pool_rows for task in tasks]))

    def first_pairs(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Return (query rows, item rows) of one split's tasks: every query with its first positive."""
        tasks = self.of_split(split)
        queries = [int(row) for task in tasks for row in task.query_rows]
        items = [int(rows[0]) for task in tasks for rows in task.positives]
        return np.array(queries, np.int64), np.array(items, np.int64)
