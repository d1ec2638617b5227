"""Rows that share pictures and texts: each is encoded once, and rows come out as if encoded one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from catalogue_files import make_catalogue
from siglum.data.catalogue import read_catalogue
from siglum.data.collection import Collection
from siglum.encode.builtin import BuiltinEncoder
from siglum.encode.parts import distinct, rows_of, text_of
from siglum.encode.run import encode_collection, encode_shard
from siglum.log import Tick, reporting
from siglum.types import Item, SiglumError


class Counting(BuiltinEncoder):
    """The built-in encoder, counting what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.given: Counter[str] = Counter()

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        self.given["texts"] += len(texts)
        return super().encode_texts(texts)

    def encode_images(self, pictures: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        self.given["pictures"] += len(pictures)
        return super().encode_images(pictures)


@pytest.fixture
def collection(tmp_path: Path) -> Collection:
    return read_catalogue(make_catalogue(tmp_path / "data", ["train", "val", "test"])).collection


def test_every_picture_and_text_is_encoded_once(collection: Collection, tmp_path: Path) -> None:
    encoder = Counting()
    found = encode_collection(collection, encoder, tmp_path / "run", identity="x")
    rows = list(rows_of(collection))
    assert encoder.given["pictures"] == len({row.image for row in rows if row.image}) == 18
    assert encoder.given["texts"] == len({text_of(row) for row in rows} - {None}) < len(rows)
    apart = encode_collection(replace(collection, shared=False), encoder, tmp_path / "apart", identity="x")
    for one, other in ((found.vectors.items, apart.vectors.items), (found.vectors.queries, apart.vectors.queries)):
        assert list(one.ids) == list(other.ids)
        for part in ("image", "text", "has_image", "has_text"):
            assert (getattr(one, part) == getattr(other, part)).all()
    assert [task.name for task in found.vectors.tasks] == [task.name for task in apart.vectors.tasks]
    assert found.skipped == apart.skipped == 0


def test_pictures_and_texts_have_a_rate_each(collection: Collection, tmp_path: Path) -> None:
    told: list[Tick] = []
    with reporting(told.append):
        encode_collection(collection, Counting(), tmp_path / "run", identity="x")
    texts = len({text_of(row) for row in rows_of(collection)} - {None})
    assert [(tick.label, tick.done, tick.total) for tick in told if tick.done == tick.total] == [
        ("encode pictures", 18, 18),
        ("encode texts", texts, texts),
    ]


def test_shards_are_gone_on_with(collection: Collection, tmp_path: Path) -> None:
    whole, encoder = encode_collection(collection, Counting(), tmp_path / "whole", identity="x"), Counting()
    assert encode_shard(collection, encoder, tmp_path / "run", identity="x", shard=(1, 1)) == len(
        distinct(rows_of(collection))
    )
    before = encoder.given.copy()
    found = encode_collection(collection, encoder, tmp_path / "run", identity="x", resume=True)
    assert encoder.given == before
    assert found.fingerprint == whole.fingerprint


def test_a_picture_that_cannot_be_read_takes_its_rows_along(collection: Collection, tmp_path: Path) -> None:
    broken = next(item.image for item in collection.items if item.id == "i:03")
    assert isinstance(broken, Path)
    broken.write_bytes(b"no picture")
    found = encode_collection(collection, BuiltinEncoder(), tmp_path / "run", identity="x")
    lost = {row.id for row in rows_of(collection) if row.image == broken}
    assert {entry.id for entry in found.omitted} == lost and found.skipped == len(lost) > 2
    assert all(entry.part == "row" and str(broken) in entry.why for entry in found.omitted)
    assert not lost & {*found.vectors.items.ids, *found.vectors.queries.ids}
    with pytest.raises(SiglumError, match="cannot be read"):
        encode_collection(collection, BuiltinEncoder(), tmp_path / "strict", identity="x", strict=True)


def test_only_files_are_shared() -> None:
    with pytest.raises(SiglumError, match="is no file"):
        distinct([Item(id="a", image=np.zeros((2, 2, 3), np.uint8))])
