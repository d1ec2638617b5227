"""Where items come from, kept beside a run, so that hits can be shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from siglum.data.corpus import write_items
from siglum.data.source import find_items, read_source, write_source
from siglum.lab.world.collection import World
from siglum.types import Item, SiglumError


def test_items_of_a_folder_are_its_files(tmp_path: Path) -> None:
    assert read_source(tmp_path) == {}
    write_source(tmp_path, "folder", path="/photos", supervised=True)
    source = read_source(tmp_path)
    assert source == {"kind": "folder", "path": "/photos", "supervised": True}
    assert find_items(source, ["a%20b/c.jpg"]) == {
        "a%20b/c.jpg": Item(id="a%20b/c.jpg", image=Path("/photos/a b/c.jpg"))
    }


def test_items_of_a_file_are_read_again(tmp_path: Path) -> None:
    write_items(tmp_path / "items.jsonl", [Item(id="a", text="one"), Item(id="b", text="two")])
    source = {"kind": "items", "path": str(tmp_path / "items.jsonl")}
    assert find_items(source, ["b", "new"]) == {"b": Item(id="b", text="two")}
    assert find_items({**source, "path": str(tmp_path / "gone.jsonl")}, ["b"]) == {}


def test_items_of_the_world_are_made_again() -> None:
    world = World(480, 3)
    wanted = world.items("test")[5]
    found = find_items({"kind": "world", "items": 480, "seed": 3}, [wanted.id, "added", "s0009999-i"])
    assert [(item.id, item.text) for item in found.values()] == [(wanted.id, wanted.text)]


def test_unknown_kinds_are_refused(tmp_path: Path) -> None:
    assert find_items({}, ["a"]) == {}
    with pytest.raises(SiglumError, match=r"there is no source .*; there are folder, items, catalogue, world"):
        write_source(tmp_path, "web")
    with pytest.raises(SiglumError, match=r"there is no source .*; there are folder, items, catalogue, world"):
        find_items({"kind": "web"}, ["a"])
