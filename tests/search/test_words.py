"""A run that learnt from pictures alone, by an encoder that is not joint: Python refuses words as the commands do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import siglum
from siglum import Retriever, SiglumError
from siglum.config import RunConfig


def small(config: RunConfig) -> RunConfig:
    vocab, decoder = replace(config.tokenizer, vocab=(2, 4, 8)), replace(config.decoder, epochs=1)
    return replace(config, tokenizer=vocab, decoder=decoder)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of pictures without captions, and beside it the run that is made of them."""
    folder = tmp_path_factory.mktemp("plain") / "photos"
    folder.mkdir()
    draw = np.random.default_rng(0)
    for number in range(16):
        pixels = np.full((40, 40, 3), draw.integers(0, 255, 3), np.uint8)
        pixels[10:30, 10:30] = draw.integers(0, 255, 3)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    siglum.build_folder(folder, folder.parent / "run", encoder="builtin", scale="tiny", device="cpu", change=small)
    return folder


def test_a_kind_of_item_that_was_never_learnt_from_is_told(photos: Path, caplog: pytest.LogCaptureFixture) -> None:
    retriever = Retriever.load(photos.parent / "run")
    retriever.add([siglum.Item(id="again", image=photos / "3.png")])
    assert not caplog.messages
    retriever.add([siglum.Item(id="words", text="a star"), siglum.Item(id="both", text="x", image=photos / "4.png")])
    (said,) = caplog.messages
    assert said.startswith("this run learnt from no items of text nor image and text, so that a beam may prune")
    assert retriever.search(photos / "4.png", k=3, mode="scan")


def test_words_are_refused_and_pictures_are_not(photos: Path, tmp_path: Path) -> None:
    loaded = Retriever.load(photos.parent / "run")
    loaded.save_pretrained(tmp_path / "published")
    loaded.save(tmp_path / "saved")
    picture = photos / "3.png"
    for one in (loaded, Retriever.from_pretrained(tmp_path / "published"), Retriever.load(tmp_path / "saved")):
        for ask in (one.search, one.encode_queries):
            with pytest.raises(SiglumError, match="built without captions"):
                ask(["a red star"])
        assert one.search(picture, k=1, scorer="geometry")[0].item_id == picture.name
        assert one.encode_items("a red star").shape == one.encode_queries(picture).shape
    with pytest.raises(SiglumError, match="built without captions"):
        siglum.explain(photos.parent / "run", "a red star", target=picture.name)
