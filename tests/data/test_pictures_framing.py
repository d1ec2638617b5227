"""Framing of pictures, and the stream that decodes them ahead."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from siglum.data.pictures import PictureError, load_picture, stream_pictures
from siglum.types import SiglumError


def bands(height: int, width: int) -> np.ndarray:
    """Return red, green and blue thirds from left to right."""
    pixels = np.zeros((height, width, 3), np.uint8)
    for third in range(3):
        pixels[:, third * width // 3 : (third + 1) * width // 3, third] = 255
    return pixels


def test_centre_keeps_the_middle_square_and_whole_keeps_all(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.fromarray(bands(30, 90)).save(path)
    centre, whole = load_picture(path, 20, "centre"), load_picture(path, 20, "whole")
    assert (centre[:, 1:-1].argmax(2) == 1).all()
    assert whole[10, [1, 10, 18]].argmax(1).tolist() == [0, 1, 2]
    assert np.array_equal(load_picture(bands(30, 90), 20, "centre"), centre)
    turned = load_picture(np.ascontiguousarray(bands(30, 90).transpose(1, 0, 2)), 20, "centre")
    assert np.array_equal(turned, centre.transpose(1, 0, 2))


def test_centre_is_a_bicubic_resize_of_the_shorter_side_and_a_crop() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (75, 100, 3), np.uint8)
    resized = Image.fromarray(pixels).resize((53, 40), Image.Resampling.BICUBIC)
    left = round(13 / 2)
    expected = np.asarray(resized)[:, left : left + 40]
    assert np.array_equal(load_picture(pixels, 40, "centre"), expected)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 24))
def test_every_shape_becomes_the_square(height: int, width: int, size: int) -> None:
    for framing in ("whole", "centre"):
        assert load_picture(np.zeros((height, width, 3), np.uint8), size, framing).shape == (size, size, 3)


def test_a_long_strip_is_cut_before_it_is_enlarged(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    resize = Image.Image.resize
    monkeypatch.setattr(
        Image.Image, "resize", lambda self, size, *rest: sizes.append(size) or resize(self, size, *rest)
    )
    strip = np.zeros((2, 3000, 3), np.uint8)
    strip[:, 1400:1600] = 200
    assert (load_picture(strip, 64, "centre") == 200).all()
    assert sizes == [(8 * 64, 64)]


def test_an_unknown_framing_is_refused() -> None:
    with pytest.raises(SiglumError, match="framing is 'left', but must be one of: whole, centre"):
        load_picture(bands(4, 4), 4, "left")


@pytest.mark.parametrize("workers", [1, 3])
def test_a_stream_keeps_order_gaps_and_errors(tmp_path: Path, workers: int) -> None:
    pictures = [np.full((4, 4, 3), value, np.uint8) for value in range(40)]
    mixed = [*pictures, None, tmp_path / "gone.png", pictures[7]]
    found = list(stream_pictures(mixed, 4, workers=workers, ahead=5))
    assert [int(pixels[0, 0, 0]) for pixels in found[:40]] == list(range(40))
    assert found[40] is None
    assert isinstance(found[41], PictureError) and "gone.png" in str(found[41])
    assert np.array_equal(found[42], pictures[7])
    with pytest.raises(SiglumError, match="a picture must be"):
        list(stream_pictures([3], 4, workers=workers))  # type: ignore[list-item]


def test_a_stream_decodes_ahead_but_not_far() -> None:
    drawn, ready = [], threading.Semaphore(0)

    class Noted:
        """A drawing that counts."""

        def pixels(self, size: int) -> np.ndarray:
            drawn.append(threading.current_thread() is threading.main_thread())
            ready.release()
            return np.zeros((size, size, 3), np.uint8)

    stream = stream_pictures([Noted() for _ in range(100)], 4, workers=2, ahead=6)
    next(stream)
    for _ in range(7):
        assert ready.acquire(timeout=60)
    assert len(drawn) == 7 and not any(drawn)
    stream.close()
    assert len(drawn) == 7
