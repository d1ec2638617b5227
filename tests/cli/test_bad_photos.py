"""Folders as they are: broken files, pipes, phones' formats and captions of emoji stop no build, and are named."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, features

from siglum import build
from siglum.cli.main import main
from siglum.types import SiglumError

PHOTOS = 16
TINY = ["--encoder", "builtin", "--scale", "tiny", "--set", "tokenizer.vocab=[2,4,8]", "--set", "decoder.epochs=1"]
Call = Callable[..., str]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Sixteen pictures, each with a caption."""
    folder, rng = tmp_path / "photos", np.random.default_rng(0)
    folder.mkdir()
    for number in range(PHOTOS):
        Image.fromarray(rng.integers(0, 256, (20, 30, 3), np.uint8)).save(folder / f"p{number}.png")
        (folder / f"p{number}.txt").write_text(f"picture number {number}\n")
    return folder


@pytest.mark.timeout(120)
def test_what_is_no_picture_stops_nothing_and_is_named(
    photos: Path, tmp_path: Path, call: Call, fail: Call, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    (photos / "dangling.jpg").symlink_to("gone.jpg")
    (photos / "empty.jpg").write_bytes(b"")
    (photos / "folder.jpg").mkdir()
    os.mkfifo(photos / "pipe.jpg")
    pytest.importorskip("pillow_heif").from_pillow(Image.new("RGB", (32, 32), "red")).save(photos / "phone.heic")
    (photos / "p3.txt").write_text("a red star\n🦊🦊\n")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pillow_heif", None)
        assert main(["build", str(photos), "--out", str(run), *TINY, "--json"]) == 0
    out, error = capsys.readouterr()
    found = json.loads(out)
    bad = ["dangling.jpg", "empty.jpg", "folder.jpg", "phone.heic", "pipe.jpg"]
    assert (found["skipped"], found["items"]) == (bad, PHOTOS)
    assert set(found["reasons"]) == {*bad, "p3.png#1"}
    assert "5 pictures were skipped:\n" in error and "pip install 'siglum[heic]'" in error
    assert "1 caption was skipped:\n" in error and "'🦊🦊' has no words this encoder knows (builtin)" in error
    with pytest.raises(SiglumError, match=r"dangling\.jpg"):
        build.build_folder(photos, tmp_path / "strict", encoder="builtin", strict=True)
    for name in ("dangling.jpg", "empty.jpg", "pipe.jpg"):
        (photos / name).unlink()
    (photos / "folder.jpg").rmdir()
    with pytest.raises(SiglumError, match="has no words this encoder knows"):
        build.build_folder(photos, tmp_path / "strict", encoder="builtin", strict=True)
    found = json.loads(call("build", photos, "--out", run, "--update", "--json"))
    assert (found["added"], found["skipped"], found["items"]) == (["phone.heic"], [], PHOTOS + 1)
    told = "siglum search: the text '🦊🦊' has no words this encoder knows (builtin); put it in other words."
    assert fail("search", run, "🦊🦊") == told


def test_a_file_that_goes_while_it_is_read_is_skipped(
    photos: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, read = photos / "going.jpg", build.read_folder
    gone.write_bytes((photos / "p1.png").read_bytes())

    def watched(*args: Any) -> Any:
        found = read(*args)
        gone.unlink()
        return found

    monkeypatch.setattr(build, "read_folder", watched)
    found = json.loads(call("build", photos, "--out", tmp_path / "run", *TINY, "--json"))
    assert (found["skipped"], found["items"]) == (["going.jpg"], PHOTOS)


def test_avif_is_no_stranger(photos: Path, tmp_path: Path, call: Call) -> None:
    """It is read where Pillow can, and else named like others that cannot be."""
    (photos / "broken.avif").write_bytes((photos / "p1.png").read_bytes()[:90])
    (photos / "whole.AVIF").write_bytes(b"\0\0\0\x1cftypavif" + bytes(20))
    if features.check("avif"):
        Image.new("RGB", (32, 32), "red").save(photos / "whole.AVIF", format="avif")
    found = json.loads(call("build", photos, "--out", tmp_path / "run", *TINY, "--json"))
    readable = features.check("avif")
    assert found["skipped"] == (["broken.avif"] if readable else ["broken.avif", "whole.AVIF"])
    assert found["items"] == PHOTOS + readable
