"""Captioned images as features: tasks and pools are exact, splits stay apart, and broken folders are told as such."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caption_files import make_captions, write_lines
from siglum.lab.captions.reader import FILES, read_captions
from siglum.types import SiglumError

SPLITS = ["train", "val", "test", "test", "train", "val", "test"]
CAPTIONS = [2, 1, 3, 1, 1, 2, 0]
"""The last image has no captions."""
OWNER = [0, 0, 1, 2, 2, 2, 3, 4, 5, 5]
NUM_I, NUM_C = len(SPLITS), len(OWNER)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_captions(tmp_path / "data", SPLITS, CAPTIONS, dims=(5, 3))


def test_items_and_queries_are_the_rows_of_the_files(folder: Path) -> None:
    vectors = read_captions(folder)
    image, text = (np.load(folder / name) for name in FILES[2:])
    assert len(vectors.items) == len(vectors.queries) == NUM_I + NUM_C
    np.testing.assert_array_equal(vectors.items.image[:NUM_I], image)
    np.testing.assert_array_equal(vectors.items.text[NUM_I:], text)
    np.testing.assert_array_equal(vectors.queries.text[:NUM_C], text)
    np.testing.assert_array_equal(vectors.queries.image[NUM_C:], image)
    assert not vectors.items.text[:NUM_I].any() and not vectors.items.image[NUM_I:].any()
    assert vectors.items.modality.tolist() == [0] * NUM_I + [1] * NUM_C
    assert vectors.queries.modality.tolist() == [1] * NUM_C + [0] * NUM_I
    assert vectors.items.ids[2] == "i:2.jpg" and vectors.items.ids[NUM_I + 4].endswith(":c4")


def test_tasks_pools_and_positives_are_exact(folder: Path) -> None:
    tasks = {(task.name, task.split): task for task in read_captions(folder).tasks}
    assert set(tasks) == {(name, split) for name in ("t2i", "i2t") for split in ("val", "test")}
    words, pictures = tasks["t2i", "test"], tasks["i2t", "test"]
    assert words.query_rows.tolist() == [3, 4, 5, 6]
    assert words.pool_rows.tolist() == [2, 3, 6]  # the image without captions can still be found
    assert [rows.tolist() for rows in words.positives] == [[2], [2], [2], [3]]
    assert pictures.query_rows.tolist() == [NUM_C + 2, NUM_C + 3]  # but it is no query
    assert pictures.pool_rows.tolist() == [NUM_I + row for row in (3, 4, 5, 6)]
    assert [rows.tolist() for rows in pictures.positives] == [[NUM_I + 3, NUM_I + 4, NUM_I + 5], [NUM_I + 6]]


def test_training_pairs_go_both_ways(folder: Path) -> None:
    vectors = read_captions(folder)
    pairs = set(zip(vectors.pair_query.tolist(), vectors.pair_item.tolist(), strict=True))
    learnt = [(0, 0), (1, 0), (7, 4)]  # caption, its image
    assert pairs == {*learnt, *((NUM_C + image, NUM_I + caption) for caption, image in learnt)}
    assert len(vectors.pair_query) == len(pairs)


@given(
    splits=st.lists(st.sampled_from(["train", "val", "test"]), min_size=3, max_size=12),
    captions=st.lists(st.integers(0, 4), min_size=12, max_size=12),
    seed=st.integers(0, 100),
)
def test_no_split_sees_another(tmp_path_factory, splits: list[str], captions: list[int], seed: int) -> None:
    """Captions in any order, any number an image: what is learnt, chosen on and measured on never meet."""
    splits = ["train", "val", "test", *splits]
    captions = [1, 1, 1, *captions[: len(splits) - 3]]
    path = make_captions(tmp_path_factory.mktemp("splits"), splits, captions)
    owner = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(splits)), captions))
    write_lines(path / FILES[1], [{"id": "same", "image_row": int(image)} for image in owner])
    vectors = read_captions(path)
    num_i, num_c = len(splits), len(owner)

    def split_of(query: int, item: int) -> tuple[str, str]:
        asked = owner[query] if query < num_c else query - num_c
        found = item if item < num_i else owner[item - num_i]
        return splits[asked], splits[found]

    pairs = zip(vectors.pair_query.tolist(), vectors.pair_item.tolist(), strict=True)
    assert {split_of(*pair) for pair in pairs} == {("train", "train")}
    for task in vectors.tasks:
        for query, positives in zip(task.query_rows, task.positives, strict=True):
            assert {split_of(query, item) for item in task.pool_rows} == {(task.split, task.split)}
            asked = owner[query] if query < num_c else query - num_c
            right = [asked] if query < num_c else num_i + np.flatnonzero(owner == asked)
            assert sorted(positives) == sorted(right)
            assert set(positives) <= set(task.pool_rows)


@pytest.mark.parametrize(
    ("given", "kept"), [(np.float16, np.float16), (np.float32, np.float32), (np.float64, np.float32)]
)
def test_floats_are_kept_unless_they_are_double(tmp_path: Path, given: type, kept: type) -> None:
    vectors = read_captions(make_captions(tmp_path, SPLITS, CAPTIONS, dtype=given))
    assert vectors.items.image.dtype == vectors.queries.text.dtype == kept


def test_the_row_numbers_may_be_left_out(folder: Path) -> None:
    write_lines(folder / FILES[0], [{"id": str(row), "split": name} for row, name in enumerate(SPLITS)])
    assert read_captions(folder).items.ids[3] == "i:3"


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(SiglumError, match=f"has no {name}; a captioned collection needs"):
        read_captions(folder)


def change(folder: Path, file: int, place: int, values: dict[str, object]) -> None:
    path = folder / FILES[file]
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    write_lines(path, [{**old, **values} if number == place else old for number, old in enumerate(rows)])


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        (0, {"row": 5}, "images.jsonl, line 3: this says it is row 5"),
        (1, {"row": 1}, "captions.jsonl, line 3: this says it is row 1"),
        (0, {"split": "restval"}, "the split 'restval' in .* is not one of train, val, test"),
        (0, {"split": None}, "split is None"),
        (0, {"id": "1.jpg"}, "'i:1.jpg' stands twice"),
        (1, {"image_row": 7}, "image rows 0 to 6"),
        (1, {"image_row": -1}, "image rows 0 to 6"),
        (1, {"image_row": "2"}, "image_row is '2'"),
        (1, {"image_row": 2.5}, "image_row is 2.5"),
    ],
)
def test_a_wrong_row_is_told(folder: Path, file: int, values: dict[str, object], message: str) -> None:
    change(folder, file, 2, values)
    with pytest.raises(SiglumError, match=message):
        read_captions(folder)


def test_a_broken_line_is_told(folder: Path) -> None:
    with (folder / FILES[1]).open("a") as file:
        file.write('{"row": 10, "id": "c')
    with pytest.raises(SiglumError, match="line 11: this is not valid JSON"):
        read_captions(folder)


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_every_split_needs_captions(tmp_path: Path, split: str) -> None:
    captions = [0 if name == split else 1 for name in SPLITS]
    with pytest.raises(SiglumError, match=f"no captions of split {split}"):
        read_captions(make_captions(tmp_path, SPLITS, captions))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ones((6, 5), np.float32), "has 6 rows, but 7 are listed"),
        (np.ones(7, np.float32), "must be floats with one row a feature"),
        (np.ones((7, 5), np.int64), "must be floats with one row a feature"),
        (np.full((7, 5), np.nan, np.float32), "'i:0.jpg' is NaN or infinite"),
        (np.zeros((7, 5), np.float32), "'i:0.jpg' is zero"),
        (np.array([[{"row": 1}]] * 7), "not a whole numpy file of numbers"),
    ],
)
def test_wrong_features_are_told(folder: Path, array: np.ndarray, message: str) -> None:
    np.save(folder / FILES[2], array, allow_pickle=True)
    with pytest.raises(SiglumError, match=message):
        read_captions(folder)


@pytest.mark.parametrize("content", [b"", b"not numpy", b"\x93NUMPY\x01\x00"])
def test_files_that_are_no_arrays_are_told(folder: Path, content: bytes) -> None:
    (folder / FILES[3]).write_bytes(content)
    with pytest.raises(SiglumError, match=r"text_features.npy is not a whole numpy file"):
        read_captions(folder)
