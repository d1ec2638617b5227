"""Karpathy's layout: splits, tasks, pools, and where the pictures lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from siglum.data.corpus import check_positives
from siglum.data.karpathy import read_karpathy
from siglum.types import SiglumError

SPLITS = ("train", "restval", "val", "test", "test")


def entries(filepath: str | None = "val2014") -> list[dict[str, Any]]:
    place = {} if filepath is None else {"filepath": filepath}
    return [
        {
            "filename": f"p{number}.jpg",
            "split": split,
            "imgid": number,
            "sentids": [2 * number, 2 * number + 1],
            "sentences": [
                {"raw": f"picture {number}.", "sentid": 2 * number},
                {"raw": f"number {number}", "tokens": []},
            ],
            **place,
        }
        for number, split in enumerate(SPLITS)
    ]


def write(path: Path, images: Any) -> Path:
    path.write_text(json.dumps({"dataset": "coco", "images": images}))
    return path


def test_captions_and_pictures_find_each_other(tmp_path: Path) -> None:
    found = read_karpathy(write(tmp_path / "dataset_coco.json", entries()), None)
    pictures = [item.id for item in found.items if item.image is not None]
    texts = {item.id: item.text for item in found.items if item.text is not None}
    assert pictures == [f"p{number}.jpg" for number in range(5)]
    assert (len(texts), texts["p3.jpg#1"]) == (10, "number 3")
    assert {split: len(queries) for split, queries in found.queries.items()} == {"train": 6, "val": 3, "test": 6}
    ask = {(query.task, query.id): query for query in found.queries["test"]}
    assert ask["t2i", "p3.jpg#0"].positives == ("p3.jpg",)
    assert (ask["t2i", "p3.jpg#0"].text, ask["t2i", "p3.jpg#0"].image) == ("picture 3.", None)
    assert ask["i2t", "p4.jpg"].positives == ("p4.jpg#0", "p4.jpg#1")
    assert ask["i2t", "p4.jpg"].image == Path("val2014/p4.jpg")
    assert found.pools == {
        ("val", "t2i"): ["p2.jpg"],
        ("val", "i2t"): ["p2.jpg#0", "p2.jpg#1"],
        ("test", "t2i"): ["p3.jpg", "p4.jpg"],
        ("test", "i2t"): ["p3.jpg#0", "p3.jpg#1", "p4.jpg#0", "p4.jpg#1"],
    }
    for queries in found.queries.values():
        check_positives(queries, {item.id for item in found.items})


def test_a_blank_caption_is_no_item_and_leaves_the_numbers_alone(tmp_path: Path) -> None:
    images = entries()
    images[2]["sentences"][0]["raw"] = "  "
    images[0]["sentences"] = []
    found = read_karpathy(write(tmp_path / "data.json", images), None)
    assert [query.id for query in found.queries["val"]] == ["p2.jpg#1", "p2.jpg"]
    assert "p0.jpg" in [item.id for item in found.items]
    assert "p0.jpg" not in [query.id for query in found.queries["train"]]


@pytest.mark.parametrize(("filepath", "folder"), [("val2014", "val2014"), ("val2014", "."), (None, ".")])
def test_pictures_lie_in_their_folders_or_in_one(tmp_path: Path, filepath: str | None, folder: str) -> None:
    path = write(tmp_path / "data.json", entries(filepath))
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / "p0.jpg").write_bytes(b"")
    assert read_karpathy(path, tmp_path).items[0].image == tmp_path / folder / "p0.jpg"


BAD: dict[str, tuple[Any, str]] = {
    "no list": ({}, "lists no pictures under images"),
    "no pictures": ([], "lists no pictures under images"),
    "no sentences": ([{"filename": "a.jpg", "split": "train"}], "picture 0 is .* needs filename, split and sentences"),
    "no raw": ([{"filename": "a.jpg", "split": "val", "sentences": [{"tokens": []}]}], "sentences with raw"),
    "a list": ([["a.jpg"]], "needs filename, split and sentences"),
    "no such split": (
        [{"filename": "a.jpg", "split": "dev", "sentences": []}],
        "'dev', but must be one of: train, rest",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_other_layouts_are_refused(tmp_path: Path, name: str) -> None:
    images, words = BAD[name]
    with pytest.raises(SiglumError, match=words):
        read_karpathy(write(tmp_path / "data.json", images), None)


def test_missing_pictures_and_files_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "data.json", entries())
    with pytest.raises(SiglumError, match=r"looked for val2014/p0\.jpg and p0\.jpg"):
        read_karpathy(path, tmp_path)
    with pytest.raises(SiglumError, match="does not exist"):
        read_karpathy(tmp_path / "gone.json", None)
    path.write_text("[]")
    with pytest.raises(SiglumError, match="a JSON object with images"):
        read_karpathy(path, None)
