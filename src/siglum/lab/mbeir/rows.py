"""M-BEIR's candidates and queries as sequences: numbers are kept, lines are parsed when they are asked for.

Texts and pictures follow UniIR, whose checkpoints were trained so: every text goes through `format_string`, a query's
text is its instruction and its own words, and a row has the parts its line has.
"""

# Shapes: N candidates of a file, M queries of a file, P positives of all of them.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from siglum.data.jsonl import JsonLines, JsonObject
from siglum.lab.mbeir.layout import QUERIES_PER_DATASET, Instructions, format_string, unhash_id
from siglum.types import Item, Query, SiglumError

KINDS = ("image", "text", "image,text")
"""Modalities as M-BEIR writes them; the place is the code kept of a candidate."""


class Dids(Sequence[str]):
    """Candidate ids kept as hashed numbers, int64 (N,)."""

    def __init__(self, hashed_N: np.ndarray) -> None:
        self.hashed_N = hashed_N

    def __len__(self) -> int:
        return len(self.hashed_N)

    def __getitem__(self, index: int) -> str:  # type: ignore[override]
        return unhash_id(int(self.hashed_N[index]))

    def __iter__(self) -> Iterator[str]:
        return map(unhash_id, self.hashed_N.tolist())


@dataclass(frozen=True, slots=True)
class CandidateFile(Sequence[Item]):
    """Candidates of one file, each id once."""

    root: Path
    lines: JsonLines
    hashed_N: np.ndarray
    kind_N: np.ndarray
    """Modality code, a place in KINDS."""

    def __len__(self) -> int:
        return len(self.hashed_N)

    def __getitem__(self, index: int) -> Item:  # type: ignore[override]
        record, name = self.lines[index], unhash_id(int(self.hashed_N[index]))
        return Item(id=name, text=text_of(record, "txt") or None, image=_image(self.root, record, "img_path"))

    def without(self, hashed: np.ndarray) -> CandidateFile:
        """Return those whose ids are not among `hashed`."""
        keep = ~np.isin(self.hashed_N, hashed)
        lines = JsonLines(self.lines.path, self.lines.offset_N[keep])
        return replace(self, lines=lines, hashed_N=self.hashed_N[keep], kind_N=self.kind_N[keep])

    def kinds_of(self, hashed_P: np.ndarray) -> np.ndarray:
        """Return the modality codes of these ids, -1 where an id is not here."""
        order = np.argsort(self.hashed_N)
        place = np.searchsorted(self.hashed_N, hashed_P, sorter=order)
        row = order[np.minimum(place, len(order) - 1)]
        return np.where(self.hashed_N[row] == hashed_P, self.kind_N[row], -1)


@dataclass(frozen=True, slots=True)
class QueryFile(Sequence[Query]):
    """Queries of one file; `begin_M` has M + 1 bounds that cut `positive_P` into the positives of each."""

    root: Path
    lines: JsonLines
    task: str
    instructions: Instructions
    hashed_M: np.ndarray
    suffix: str
    """What tells the ids of this split from those of the test split."""
    repeat_M: np.ndarray
    """How often the same qid came before."""
    kind_M: np.ndarray
    """Modality code of the candidate that is wanted."""
    begin_M: np.ndarray
    positive_P: np.ndarray

    def __len__(self) -> int:
        return len(self.hashed_M)

    def __getitem__(self, index: int) -> Query:  # type: ignore[override]
        row = range(len(self))[index]
        record, qid = self.lines[row], unhash_id(int(self.hashed_M[row]), QUERIES_PER_DATASET)
        name = query_id(qid, self.suffix, int(self.repeat_M[row]))
        dataset, kind = int(qid.partition(":")[0]), KINDS[int(self.kind_M[row])]
        prompt = self.instructions.of(name, dataset, str(record.get("query_modality")), kind)
        positives = self.positive_P[self.begin_M[row] : self.begin_M[row + 1]]
        return Query(
            id=name,
            text=format_string(f"{prompt} {record.get('query_txt') or ''}"),
            image=_image(self.root, record, "query_img_path"),
            task=self.task,
            positives=tuple(map(unhash_id, positives.tolist())),
        )


def query_id(qid: str, suffix: str, repeat: int) -> str:
    """Return the id of a query in a collection.

    >>> query_id("9:12", "", 0), query_id("9:12", "@train", 1)
    ('9:12', '9:12@train#2')
    """
    return f"{qid}{suffix}" + (f"#{repeat + 1}" if repeat else "")


def text_of(record: JsonObject, field: str, where: str = "") -> str:
    """Return a text of a line in UniIR's form, empty where there is none."""
    value = record.get(field)
    if value is not None and not isinstance(value, str):
        raise SiglumError(
            f"{where}{': ' if where else ''}the field {field} is {value!r:.60}, but must be a string or null."
        )
    return format_string(value)


def lacks_a_part(kind: str, has_text: bool, has_image: bool) -> bool:
    """Whether a row lacks a text or a picture that its modality names.

    >>> lacks_a_part("image,text", True, False), lacks_a_part("text", True, False)
    (True, False)
    """
    return ("text" in kind and not has_text) or ("image" in kind and not has_image)


def _image(root: Path, record: JsonObject, field: str) -> Path | None:
    return root / record[field] if record.get(field) else None
