"""A run follows its folder: new pictures are found, gone ones are not, and a kill leaves work, never faults."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from siglum import build, update
from siglum.cli.main import main
from siglum.data.source import write_source
from siglum.files import read_json, read_tensors
from siglum.lab.world.collection import World
from siglum.rootfiles import accept_root
from siglum.run.generations import open_index
from siglum.search.retriever import Retriever
from siglum.types import Item, SiglumError

PHOTOS = 16
TINY = ["--encoder", "builtin", "--scale", "tiny", "--set", "tokenizer.vocab=[2,4,8]", "--set", "decoder.epochs=1"]
Call = Callable[..., str]


def draw(folder: Path, numbers: range) -> None:
    world = World(480, 0)
    scenes = [item for item in world.items("train") if item.image is not None and item.text is not None]
    for number in numbers:
        path = folder / ("" if number % 2 else "old ones") / f"p{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(scenes[number].image.pixels(48)).save(path)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photographs and the run made of them; copy it, never write."""
    folder = tmp_path_factory.mktemp("built")
    draw(folder / "photos", range(PHOTOS))
    for path in (folder / "photos").rglob("*.png"):
        path.with_suffix(".txt").write_text(f"the scene {path.stem}")
    assert main(["build", str(folder / "photos"), "--out", str(folder / "run"), *TINY]) == 0
    return folder


@pytest.fixture
def place(built: Path, tmp_path: Path) -> Path:
    """A copy of the photographs and their run that a test may change."""
    shutil.copytree(built, tmp_path / "copy")
    run = tmp_path / "copy" / "run"
    write_source(run, **{**read_json(run / "source.json"), "path": str(tmp_path / "copy" / "photos")})
    return tmp_path / "copy"


def change(photos: Path) -> None:
    """Add five pictures, change one and take two away."""
    draw(photos, range(20, 25))
    shutil.copy(photos / "p21.png", photos / "p1.png")
    (photos / "p3.png").unlink()
    (photos / "old ones" / "p4.png").unlink()


def indexed(run: Path) -> set[str]:
    return set(Retriever.load(run).index.ids)


def listed(photos: Path) -> set[str]:
    return {path.relative_to(photos).as_posix().replace(" ", "%20") for path in photos.rglob("*.png")}


def models(run: Path) -> dict[str, bytes]:
    paths = [run / "config.json", *(run / "2-tokenizer").rglob("*"), *(run / "3-decoder").rglob("*")]
    return {str(path.relative_to(run)): path.read_bytes() for path in paths if path.is_file()}


def test_new_pictures_are_found_and_gone_ones_are_not(place: Path, call: Call) -> None:
    photos, run = place / "photos", place / "run"
    change(photos)
    (photos / "p23.txt").write_text("a caption that nobody reads")
    before = models(run)
    found = json.loads(call("build", photos, "--out", run, "--update", "--json"))
    assert sorted(found["added"]) == ["old ones/p20.png", "old ones/p22.png", "old ones/p24.png", "p21.png", "p23.png"]
    assert (found["changed"], found["removed"]) == (["p1.png"], ["p3.png", "old ones/p4.png"])
    assert (found["items"], found["skipped"], found["unlearnt"]) == (PHOTOS + 3, [], 1)
    assert models(run) == before
    assert indexed(run) == listed(photos)
    hits = json.loads(call("search", run, "--image", photos / "p21.png", "-k", 99, "--beam", 99, "--json"))["hits"]
    assert {hit["item_id"] for hit in hits} == listed(photos)
    alike = {hit["item_id"]: hit["codes"] for hit in hits}
    assert alike["p1.png"] == alike["p21.png"]


def test_a_second_update_has_nothing_to_do(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos, run = place / "photos", place / "run"
    change(photos)
    assert main(["build", str(photos), "--out", str(run), "--update"]) == 0
    assert "5 added, 1 changed, 2 removed\n19 pictures, encoded by builtin, are searchable" in capsys.readouterr().err
    assert main(["build", str(photos), "--out", str(run), "--update"]) == 0
    assert capsys.readouterr().err.startswith("nothing to do: the run holds what its folder does\n")
    assert main(["build", str(photos), "--out", str(run), "--resume", *TINY]) == 0
    assert "19 pictures and" in capsys.readouterr().err
    draw(photos, range(30, 31))
    assert main(["build", str(photos), "--out", str(run), "--update"]) == 0
    assert "1 added, 0 changed, 0 removed" in capsys.readouterr().err


def test_what_cannot_be_read_is_named_and_tried_again(place: Path, call: Call) -> None:
    photos, run = place / "photos", place / "run"
    (photos / "p1.png").write_bytes(b"torn")
    (photos / "dangling.jpg").symlink_to("gone.jpg")
    found = json.loads(call("build", photos, "--out", run, "--update", "--json"))
    assert found["skipped"] == ["dangling.jpg", "p1.png"]
    assert "dangling.jpg is a link to a file that does not exist" in found["reasons"]["dangling.jpg"]
    assert (found["removed"], found["items"]) == (["p1.png"], PHOTOS - 1)
    with pytest.raises(SiglumError, match=r"dangling\.jpg"):
        build.build_folder(photos, run, update=True, strict=True)
    draw(photos, range(1, 2))
    shutil.copy(photos / "p5.png", photos / "gone.jpg")
    found = json.loads(call("build", photos, "--out", run, "--update", "--json"))
    assert (found["added"], found["skipped"]) == (["dangling.jpg", "gone.jpg", "p1.png"], [])


def test_all_pictures_may_change(place: Path, call: Call) -> None:
    photos, run = place / "photos", place / "run"
    for path in photos.rglob("*.png"):
        os.utime(path, ns=(1, 1))
    found = json.loads(call("build", photos, "--out", run, "--update", "--json"))
    assert (len(found["changed"]), found["items"]) == (PHOTOS, PHOTOS)
    assert indexed(run) == listed(photos)


class Killed(BaseException):
    """What ends the work in the middle."""


@pytest.mark.parametrize("after", range(6))
def test_a_killed_update_is_given_again(place: Path, call: Call, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Whatever was done before the kill, the index becomes what the folder holds, though that changes once more."""
    photos, run, left = place / "photos", place / "run", [after]
    change(photos)

    def killed(work: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*args: Any, **options: Any) -> Any:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return work(*args, **options)

        return instead

    with monkeypatch.context() as patch:
        patch.setattr(update, "SHARD", 2)
        for name in ("write_stamps", "write_source", "encode_some"):
            patch.setattr(update, name, killed(getattr(update, name)))
        with pytest.raises(Killed):
            build.build_folder(photos, run, update=True)
    (photos / "p21.png").unlink()
    (photos / "old ones" / "p20.png").unlink()
    call("build", photos, "--out", run, "--update")
    assert indexed(run) == listed(photos)
    found = json.loads(call("build", photos, "--out", run, "--update", "--json"))
    assert found["added"] == found["changed"] == found["removed"] == []


def test_an_update_is_one_change_of_the_index(place: Path, call: Call) -> None:
    """A kill, or a full disk, leaves what was there before or what the folder holds now."""
    change(place / "photos")
    call("build", place / "photos", "--out", place / "run", "--update")
    (journal,) = open_index(place / "run" / "4-index").journals
    (record,) = journal.records
    assert (len(record.gone), len(record.ids)) == (3, 6)


def test_a_build_killed_before_its_first_file_may_be_repeated(
    built: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, own = tmp_path / "run", os.replace

    def killed(source: str, target: Path) -> None:
        if target.name == "source.json":
            raise Killed
        own(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(Killed):
            build.build_folder(built / "photos", run)
    assert {path.name for path in run.iterdir()} == {"checks.json"}
    (run / ".source.json.x.tmp").touch()  # as a kill leaves it
    call("build", built / "photos", "--out", run, *TINY)
    assert indexed(run) == listed(built / "photos")


def test_a_build_killed_before_its_weights_are_chosen_answers_nothing(
    built: Path, tmp_path: Path, call: Call, fail: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*args: Any) -> None:
        raise Killed

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(build, "_best_weight", killed)
        with pytest.raises(Killed):
            main(["build", str(built / "photos"), "--out", str(run), *TINY])
    assert "holds no finished index" in fail("search", run, "scene")
    call("build", built / "photos", "--out", run, *TINY, "--resume")
    assert everything(call, run) == everything(call, built / "run")


def test_what_was_added_by_hand_stays(place: Path, call: Call) -> None:
    photos, run = place / "photos", place / "run"
    retriever = Retriever.load(run)
    retriever.add([Item(id="by-hand", text="a red star")])
    retriever.save(run)
    (photos / "p3.png").unlink()
    found = json.loads(call("build", photos, "--out", run, "--update", "--json"))
    assert found["removed"] == ["p3.png"]
    assert indexed(run) == listed(photos) | {"by-hand"}


def test_pictures_of_a_folder_that_cannot_be_read_stay(
    place: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos, run, scan = place / "photos", place / "run", os.scandir

    def closed(path: Any) -> Any:
        if str(path).endswith("old ones"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", closed)
    (photos / "p3.png").unlink()
    found = json.loads(call("build", photos, "--out", run, "--update", "--json"))
    assert (found["removed"], found["items"], found["skipped"]) == (["p3.png"], PHOTOS - 1, ["old ones"])
    with pytest.raises(SiglumError, match=r"old ones cannot be read \(Permission denied\)"):
        build.build_folder(photos, run, update=True, strict=True)


def test_a_run_made_before_times_were_kept(place: Path, fail: Call, capsys: pytest.CaptureFixture[str]) -> None:
    photos, run = place / "photos", place / "run"
    (run / "pictures.json").unlink()
    change(photos)
    assert "pictures.json is gone; put it back" in fail("build", photos, "--out", run, "--update")
    accept_root(run)
    assert main(["build", str(photos), "--out", str(run), "--update"]) == 0
    said = capsys.readouterr().err
    assert "kept no times of its pictures" in said and "5 added, 1 changed, 2 removed" in said
    assert indexed(run) == listed(photos)


def test_an_index_made_anew_catches_up(place: Path, call: Call, fail: Call) -> None:
    """It holds what the folder held when it was encoded, gone pictures and old ones among them."""
    photos, run = place / "photos", place / "run"
    change(photos)
    call("build", photos, "--out", run, "--update")
    after = {hit["item_id"]: hit["codes"] for hit in everything(call, run)}
    assert "--drop-added" in fail("index", run)
    call("index", run, "--drop-added")
    assert len(indexed(run)) == PHOTOS and "p3.png" in indexed(run)
    call("build", photos, "--out", run, "--update")
    assert {hit["item_id"]: hit["codes"] for hit in everything(call, run)} == after


@pytest.mark.parametrize("way", ["restore", "cut", "save"])
def test_an_index_set_back_catches_up(place: Path, call: Call, way: str) -> None:
    """What it holds of a picture that had changed by then is old again."""
    photos, run = place / "photos", place / "run"
    update = ("build", photos, "--out", run, "--update")
    call("index", run, "--snapshot", "before")
    older = Retriever.load(run)
    older.save(place / "copy")
    change(photos)
    call(*update)
    after = {hit["item_id"]: hit["codes"] for hit in everything(call, run)}
    if way == "restore":
        call("index", run, "--restore", "before")
    elif way == "save":
        older.save(run, overwrite=True)
    else:
        (log,) = (run / "4-index").glob("log-??????")
        log.write_bytes(log.read_bytes()[:-1] + b"?")
        call("index", run, "--cut-log")
    call(*update)
    assert {hit["item_id"]: hit["codes"] for hit in everything(call, run)} == after


def everything(call: Call, run: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(call("search", run, "scene", "-k", 99, "--beam", 99, "--json"))["hits"]
    return found


def test_what_cannot_be_updated_is_refused(place: Path, fail: Call, tmp_path: Path) -> None:
    photos, run = place / "photos", place / "run"
    update = ("build", photos, "--out", run, "--update")
    assert "holds no run of" in fail("build", photos, "--out", tmp_path / "none", "--update")
    assert not (tmp_path / "none").exists()
    draw(tmp_path / "other", range(9))
    assert "holds the run of" in fail("build", tmp_path / "other", "--out", run, "--update")
    assert "was built with encoder builtin" in fail(*update, "--encoder", "offline")
    assert "was built with captions auto" in fail(*update, "--captions", "names")
    assert "keeps the settings" in fail(*update, "--set", "decoder.epochs=3")
    assert "choose one of the two" in fail(*update, "--resume")
    (run / "pictures.json").write_text(json.dumps({"pictures": {}}))
    assert "pictures.json was changed by hand or damaged" in fail(*update)
    source = read_json(run / "source.json")
    write_source(run, **{name: value for name, value in source.items() if name not in ("held_out", "learnt")})
    assert "is not finished; finish it with --resume" in fail(*update)
    assert read_tensors(run / "1-vectors" / "items.safetensors")["has_image"].all()
