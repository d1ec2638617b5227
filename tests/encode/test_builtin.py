"""The built-in encoder."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from siglum.encode.base import Encoder
from siglum.encode.builtin import BuiltinEncoder, resample
from siglum.lab.world.collection import World
from siglum.types import SiglumError

ENCODER = BuiltinEncoder()
SENTENCES = ["A big red star.", "", "two small blue rings above the star", "a"]


def test_it_keeps_the_protocol() -> None:
    encoder: Encoder = BuiltinEncoder()
    assert isinstance(encoder, Encoder)
    assert encoder.text_dim <= 1024 and encoder.image_dim <= 512


@given(st.lists(st.text(max_size=40), max_size=6))
def test_texts_give_unit_rows_whatever_the_batch(texts: list[str]) -> None:
    rows = ENCODER.encode_texts(texts)
    assert rows.shape == (len(texts), ENCODER.text_dim) and rows.dtype == np.float32
    for text, row in zip(texts, rows, strict=True):
        assert np.array_equal(row, BuiltinEncoder().encode_texts([text])[0])
        assert np.linalg.norm(row) == pytest.approx(1.0, abs=1e-5) or not row.any()


def test_an_empty_text_is_zero_and_case_and_points_do_not_matter() -> None:
    rows = ENCODER.encode_texts(["", "A RED star!", "a red star", "..."])
    assert not rows[0].any() and not rows[3].any()
    assert np.array_equal(rows[1], rows[2])


def test_word_order_matters_a_little_and_words_matter_most() -> None:
    rows = ENCODER.encode_texts(
        ["a red star over a blue ring", "a blue star over a red ring", "nothing of the kind here"]
    )
    near, far = rows[0] @ rows[1], rows[0] @ rows[2]
    assert far + 0.2 < near < 0.98


def test_texts_are_hashed_the_same_in_another_process() -> None:
    code = (
        "from siglum.encode.builtin import BuiltinEncoder as B; import sys; "
        f"sys.stdout.write(B().encode_texts({SENTENCES!r}).tobytes().hex())"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert other == ENCODER.encode_texts(SENTENCES).tobytes().hex()


@settings(max_examples=20)
@given(hnp.arrays(np.uint8, st.tuples(st.integers(1, 70), st.integers(1, 70), st.just(3))))
def test_pictures_of_any_size_give_finite_rows(picture: np.ndarray) -> None:
    rows = ENCODER.encode_images([picture])
    assert rows.shape == (1, ENCODER.image_dim) and rows.dtype == np.float32 and np.isfinite(rows).all()


def test_pictures_do_not_depend_on_the_batch() -> None:
    world = World(300, seed=2)
    pictures = [world.items("train")[3 * i].image.pixels(48) for i in range(50)]  # type: ignore[union-attr]
    rows = ENCODER.encode_images(pictures)
    assert np.array_equal(rows[[0, 49]], ENCODER.encode_images([pictures[0], pictures[49]]))
    assert ENCODER.encode_images([]).shape == (0, ENCODER.image_dim)


def test_another_view_is_nearer_than_another_scene() -> None:
    world = World(600, seed=0)
    items, queries = world.items("train"), world.queries("train", "i2i")
    stored = ENCODER.encode_images([items[3 * i].image.pixels(48) for i in range(0, 96, 4)])  # type: ignore[union-attr]
    asked = ENCODER.encode_images([queries[i].image.pixels(48) for i in range(0, 96, 4)])  # type: ignore[union-attr]
    gaps = np.linalg.norm(asked[:, None] - stored[None], axis=2)
    assert (gaps.argmin(axis=1) == np.arange(24)).mean() > 0.8


def test_resampling_keeps_means_and_enlarges() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (96, 144, 3), np.uint8)
    small = resample(picture, 48)
    expected = picture.reshape(48, 2, 48, 3, 3).mean(axis=(1, 3))
    assert np.abs(small - expected).max() <= 0.51
    assert np.array_equal(resample(picture[:1, :1], 48), np.broadcast_to(picture[:1, :1], (48, 48, 3)))


@pytest.mark.parametrize("bad", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 4), np.uint8), np.zeros((4, 4, 3))])
def test_other_arrays_are_refused(bad: np.ndarray) -> None:
    with pytest.raises(SiglumError, match=r"uint8 \(height, width, 3\)"):
        ENCODER.encode_images([bad])


def test_fingerprints_repeat_and_follow_the_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    first = ENCODER.fingerprint()
    assert first == BuiltinEncoder().fingerprint() and len(first) == 16
    monkeypatch.setattr(BuiltinEncoder, "text_dim", 64)
    assert BuiltinEncoder().fingerprint() != first
