"""What hits carry of their items: texts and picture files, kept with the index through every way it changes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import siglum
from siglum.data.fields import read_fields, without_images, write_fields
from siglum.index import Index
from siglum.lab.world.collection import World
from siglum.run.folder import RunFolder
from siglum.run.generations import FIELDS_FILE, save_index
from siglum.run.live import LiveIndex
from siglum.run.snapshots import restore_snapshot, take_snapshot
from siglum.run.stages import make_index
from siglum.search.retriever import Retriever
from siglum.types import Item, Query, SiglumError


def shown(retriever: Retriever) -> dict[str, tuple[str | None, Path | None]]:
    """Return text and picture file of every item."""
    names = list(retriever.index.ids)
    return dict(zip(names, map(read_fields, retriever.index.fields_of(names)), strict=True))


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "a picture.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (48, 48, 3), np.uint8)).save(path)
    return path


def test_hits_carry_the_texts_of_the_collection(world_run: Path, world: World) -> None:
    retriever = Retriever.load(world_run)
    items = {item.id: item for split in ("test",) for item in world.items(split)}
    hits = retriever.search("a red star", k=30)
    assert {hit.text is None for hit in hits} == {True, False}
    for hit in hits:
        assert (hit.text, hit.image) == (items[hit.item_id].text, None), "a drawing is no file"


def test_what_is_kept_follows_every_change(run_copy: Path, picture: Path, world: World) -> None:
    retriever = Retriever.load(run_copy)
    wanted = shown(retriever)
    gone = list(wanted)[3]
    retriever.remove([gone])
    del wanted[gone]
    both = Item(id="both", text="ünsere 星", image=picture)
    retriever.add([both, Item(id="alone", image=Image.open(picture)), Item(id="bytes", image=picture.read_bytes())])
    wanted |= {"both": ("ünsere 星", picture), "alone": (None, picture), "bytes": (None, None)}
    assert shown(retriever) == wanted
    retriever.save(run_copy)
    assert shown(Retriever.load(run_copy)) == wanted == shown(retriever)
    with retriever.writing(run_copy) as live:
        live.upsert([Item(id="alone", text="now with words")])
        wanted.pop("alone")
        wanted["alone"] = ("now with words", None)
        assert shown(retriever) == wanted
    for whole in (False, True):
        with LiveIndex(run_copy / "4-index") as index:
            index.compact(whole=whole)
        assert shown(Retriever.load(run_copy)) == wanted
    take_snapshot(RunFolder(run_copy), "now")
    retriever = Retriever.load(run_copy)
    retriever.upsert([Item(id="both", text="other words")])
    retriever.save(run_copy)
    assert shown(Retriever.load(run_copy))["both"] == ("other words", None)
    restore_snapshot(RunFolder(run_copy), "now")
    assert shown(Retriever.load(run_copy)) == wanted
    retriever.save(run_copy.parent / "elsewhere")
    assert shown(Retriever.load(run_copy.parent / "elsewhere"))["both"] == ("other words", None)


def test_a_relative_picture_is_kept_by_its_whole_path(
    run_copy: Path, picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(picture.parent)
    retriever = Retriever.load(run_copy)
    retriever.add([Item(id="new", image=picture.name)])
    assert shown(retriever)["new"] == (None, picture)


def test_the_item_of_the_same_picture_file_is_left_out_on_request(run_copy: Path, picture: Path) -> None:
    retriever = Retriever.load(run_copy)
    retriever.add([Item(id="new", image=picture)])
    (picture.parent / "link.png").symlink_to(picture)
    whole = [hit.item_id for hit in retriever.search(picture, k=9, beam=99, scorer="geometry")]
    assert "new" in whole[:8]
    others = [name for name in whole if name != "new"]
    for asked in (picture, Image.open(picture), picture.parent / "link.png"):
        found = retriever.search(asked, k=8, beam=99, scorer="geometry", exclude_self=True)
        assert [hit.item_id for hit in found] == others
    with Image.open(picture) as opened:
        nameless = (picture.read_bytes(), opened.convert("RGB"), np.asarray(opened.convert("RGB")))
    for asked in nameless:
        with pytest.raises(SiglumError, match="this picture has neither"):
            retriever.search(asked, exclude_self=True)
        by_id = retriever.search(Query(id="new", image=asked), k=8, beam=99, scorer="geometry", exclude_self=True)
        assert [hit.item_id for hit in by_id] == others


def test_all_items_of_the_same_picture_are_left_out_and_as_many_others_found(run_copy: Path, picture: Path) -> None:
    retriever = Retriever.load(run_copy)
    retriever.add([Item(id=f"new-{number}", image=picture) for number in range(4)])
    for k in (7, 9, 20):
        found = retriever.search([picture, "a star"], k=k, beam=99, scorer="geometry", exclude_self=True)
        assert [len(hits) for hits in found] == [k, k], k
        assert not [hit for hit in found[0] if hit.item_id.startswith("new")]


def test_a_published_retriever_says_that_it_knows_no_files(run_copy: Path, picture: Path, tmp_path: Path) -> None:
    retriever = Retriever.load(run_copy)
    retriever.add([Item(id="new", image=picture)])
    retriever.save_pretrained(tmp_path / "published")
    published = Retriever.from_pretrained(tmp_path / "published")
    with pytest.raises(SiglumError, match="keep none"):
        published.search(picture, beam=99, scorer="geometry", exclude_self=True)
    assert len(published.search("a red star", k=3, exclude_self=True)) == 3


def test_a_run_that_keeps_nothing_is_searched_all_the_same(run_copy: Path) -> None:
    """As runs that were made before there were fields."""
    index = Retriever.load(run_copy).index
    names = list(index.ids)
    save_index(run_copy / "4-index", Index.build(names, index.codes_of(names), index.sizes, index.tokenizer))
    assert not list((run_copy / "4-index").rglob(FIELDS_FILE))
    retriever = Retriever.load(run_copy)
    assert {(hit.text, hit.image) for hit in retriever.search("a red star")} == {(None, None)}
    retriever.add([Item(id="new", text="three green hearts")])
    retriever.save(run_copy)
    found = shown(Retriever.load(run_copy))
    assert found.pop("new") == ("three green hearts", None)
    assert set(found.values()) == {(None, None)}


def test_the_index_of_a_pool_keeps_its_own(run_copy: Path) -> None:
    test = shown(Retriever.load(run_copy))
    make_index(RunFolder(run_copy))
    every = shown(Retriever.load(run_copy))
    assert len(every) > len(test) and all(every[name] == kept for name, kept in test.items())


def test_damage_is_refused_where_it_is_looked_at(run_copy: Path) -> None:
    path = next((run_copy / "4-index").rglob(FIELDS_FILE))
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    retriever = Retriever.load(run_copy)
    with pytest.raises(SiglumError, match=rf"{FIELDS_FILE} is not the file that was written"):
        retriever.search("a red star", k=99, beam=99)


@pytest.mark.parametrize("kept", ["[1", "3", "[]", '{"image":3}'])
def test_what_nobody_wrote_is_refused(kept: str) -> None:
    with pytest.raises(SiglumError, match="is damaged"):
        read_fields(kept)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"text": "a cat"}, ("a cat", None)),
        ({"text": 'a "cat"\n\\ ü 星'}, ('a "cat"\n\\ ü 星', None)),
        ({"text": "", "image": ""}, (None, None)),
        ({"image": Path("/a/b c.png")}, (None, Path("/a/b c.png"))),
        ({"image": "/a/\udcff.png", "text": "ü"}, ("ü", Path("/a/\udcff.png"))),
        ({"image": np.zeros((2, 2, 3), np.uint8)}, (None, None)),
    ],
)
def test_items_are_read_as_they_were_written(given: dict[str, Any], wanted: tuple[str | None, Path | None]) -> None:
    kept = write_fields(Item(id="a", **given))
    assert read_fields(kept) == wanted
    assert read_fields(without_images(kept)) == (wanted[0], None)
    kept.encode()


def test_hits_as_json(run_copy: Path, picture: Path) -> None:
    retriever = Retriever.load(run_copy)
    retriever.upsert([Item(id="new", text="a picture", image=picture)])
    (hit,) = retriever.search(picture, k=1, within=["new"])
    assert hit.as_dict() == {
        "item_id": "new",
        "score": hit.score,
        "codes": hit.codes,
        "rank": 1,
        "similarity": hit.similarity,
        "text": "a picture",
        "image": str(picture),
    }


def test_a_folder_of_photographs_gives_its_files(tmp_path: Path, world: World) -> None:
    photos = tmp_path / "two words"
    photos.mkdir()
    drawn = [item for item in world.items("train") if item.image is not None and item.text is None][:20]
    for item in drawn[:16]:
        Image.fromarray(item.image.pixels(48)).save(photos / f"{item.id}.png")  # type: ignore[union-attr]

    def small(config: siglum.RunConfig) -> siglum.RunConfig:
        from siglum.console.commands import override

        return override(config, ("tokenizer.vocab=[2,4,8]", "decoder.epochs=1"))

    def build(**how: Any) -> dict[str, Path | None]:
        siglum.build_folder(photos, tmp_path / "run", encoder="builtin", scale="tiny", **how)
        return {name: image for name, (_, image) in shown(Retriever.load(tmp_path / "run")).items()}

    assert build(change=small) == {f"{item.id}.png": photos / f"{item.id}.png" for item in drawn[:16]}
    Image.fromarray(drawn[17].image.pixels(48)).save(photos / "new one.png")  # type: ignore[union-attr]
    shutil.copy(photos / "new one.png", photos / f"{drawn[0].id}.png")
    found = build(update=True)
    assert found["new%20one.png"] == photos / "new one.png" and len(found) == 17
    assert found[f"{drawn[0].id}.png"] == photos / f"{drawn[0].id}.png"
