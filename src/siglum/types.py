"""The nouns every stage shares: modalities, items, queries, features, hits and the one error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np


class SiglumError(ValueError):
    """Something the user can mend; the message is one sentence that says what and how."""


def one_of(name: str, value: str, choices: Iterable[str]) -> str:
    """Return `value` if it is one of `choices`, else raise and name them.

    >>> one_of("fusion", "sum", ["combiner", "sum"])
    'sum'
    """
    known = list(choices)
    if value not in known:
        raise SiglumError(f"{name} is {value!r}, but must be one of: {', '.join(known)}.")
    return value


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
        ...


Picture = str | Path | np.ndarray | Drawing
"""A file, uint8 pixels (height, width, 3), or something that draws itself."""


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
    codes: tuple[int, ...]
    rank: int


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

    def spread(self, number: int | None) -> Task:
        """Return the task with at most `number` of its queries, evenly spread over them."""
        if number is None or number >= len(self.query_rows):
            return self
        pick = np.linspace(0, len(self.query_rows) - 1, number).astype(np.int64)
        return Task(self.name, self.split, self.query_rows[pick], self.pool_rows, [self.positives[i] for i in pick])


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

    def of_split(self, split: str) -> list[Task]:
        """Return the tasks of one split."""
        return [task for task in self.tasks if task.split == split]

    def first_pairs(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Return (query rows, item rows) of one split's tasks: every query with its first positive."""
        tasks = self.of_split(split)
        queries = [int(row) for task in tasks for row in task.query_rows]
        items = [int(rows[0]) for task in tasks for rows in task.positives]
        return np.array(queries, np.int64), np.array(items, np.int64)
