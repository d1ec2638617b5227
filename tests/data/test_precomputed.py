"""Precomputed features: every file kind gives the same rows, and unknown layouts are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from siglum.data.precomputed import match_features, read_features
from siglum.data.vectors import features_of
from siglum.files import ids_to_arrays, write_tensors
from siglum.types import SiglumError

IDS = ["7", "30", "5", "12"]


def arrays(kind: type = np.float32) -> tuple[np.ndarray, np.ndarray]:
    """Four rows with pictures (N, 3) and texts (N, 2); the second lacks the picture, the third the text."""
    rng = np.random.default_rng(0)
    image, text = rng.normal(size=(4, 3)).astype(kind), rng.normal(size=(4, 2)).astype(kind)
    image[1], text[2] = np.nan, np.nan
    return image, text


def write_npz(path: Path, image: np.ndarray, text: np.ndarray) -> None:
    np.savez(path, image=image, text=text, ids=np.array(IDS))


def write_own(path: Path, image: np.ndarray, text: np.ndarray) -> None:
    features = features_of(IDS, image=image, text=text)
    named = {name: getattr(features, name) for name in ("image", "text", "has_image", "has_text")}
    write_tensors(path, named | ids_to_arrays(IDS))


def write_plain(path: Path, image: np.ndarray, text: np.ndarray) -> None:
    write_tensors(path, {"img": image, "txt": text, "ids": np.array([int(i) for i in IDS])})


def write_parquet(path: Path, image: np.ndarray, text: np.ndarray) -> None:
    lists = {"image": [*map(list, image)], "text": [*map(list, text)]}
    lists["image"][1], lists["text"][2] = None, None
    kinds = {"id": pa.int64(), "image": pa.list_(pa.float32(), 3), "text": pa.list_(pa.float32()), "note": pa.string()}
    table = pa.Table.from_pydict({"id": [int(i) for i in IDS], **lists, "note": IDS}, pa.schema(kinds))
    pq.write_table(table, path, row_group_size=2)


def write_genius(path: Path, image: np.ndarray, text: np.ndarray) -> None:
    """As GENIUS does: a row that lacks a part has the feature of an empty one, and a repeated row has no id."""
    parts = {}
    for name, rows in (("img", image), ("text", text)):
        there = torch.from_numpy(~np.isnan(rows).any(1))
        filled = torch.from_numpy(np.nan_to_num(rows, nan=9.0))
        parts |= {name: torch.cat([filled[:1], filled]), f"{name}_mask": torch.cat([there[:1], there]).long()[:, None]}
    torch.save({**parts, "id_to_index": {int(name): row + 1 for row, name in enumerate(IDS)}}, path)


WRITERS: dict[str, Callable[[Path, np.ndarray, np.ndarray], None]] = {
    "x.npz": write_npz,
    "own.safetensors": write_own,
    "plain.safetensors": write_plain,
    "x.parquet": write_parquet,
    "x.pt": write_genius,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_file_gives_the_same_features(tmp_path: Path, name: str) -> None:
    image, text = arrays()
    WRITERS[name](tmp_path / name, image, text)
    found, wanted = read_features(tmp_path / name), features_of(IDS, image=image, text=text)
    assert list(found.ids) == IDS
    assert found.modality.tolist() == [2, 1, 0, 2]
    for part in ("image", "text", "has_image", "has_text"):
        assert np.array_equal(getattr(found, part), getattr(wanted, part))
    with pytest.raises(SiglumError, match="has ids of its own"):
        read_features(tmp_path / name, IDS)


def test_half_precision_is_kept_and_others_become_single(tmp_path: Path) -> None:
    write_genius(tmp_path / "half.pt", *arrays(np.float16))
    write_npz(tmp_path / "double.npz", *arrays(np.float64))
    assert read_features(tmp_path / "half.pt").image.dtype == np.float16
    assert read_features(tmp_path / "double.npz").image.dtype == np.float32
    brain = {"img": torch.ones(1, 2, dtype=torch.bfloat16), "text": torch.ones(1, 2), "id_to_index": {4: 0}}
    torch.save({**brain, "img_mask": torch.ones(1), "text_mask": torch.zeros(1)}, tmp_path / "brain.pt")
    found = read_features(tmp_path / "brain.pt")
    assert (found.image.dtype, found.image.tolist(), found.has_text.tolist()) == (np.float32, [[1.0, 1.0]], [False])


def test_a_plain_array_is_named_by_its_file_and_its_rows_by_ids(tmp_path: Path) -> None:
    rows = np.arange(6.0).reshape(3, 2)
    for name in ("image-features.npy", "queries.npy"):
        np.save(tmp_path / name, rows)
    pictures, texts = (read_features(tmp_path / name) for name in ("image-features.npy", "queries.npy"))
    assert (list(pictures.ids), pictures.image.tolist()) == (["0", "1", "2"], rows.tolist())
    assert not pictures.has_text.any()
    assert (texts.text.tolist(), texts.has_image.any()) == (rows.tolist(), np.False_)
    assert list(read_features(tmp_path / "queries.npy", ["x", "y", "z"]).ids) == ["x", "y", "z"]
    with pytest.raises(SiglumError, match=r"shape \(3, 2\), but must be \(2, D\)"):
        read_features(tmp_path / "queries.npy", ["x", "y"])


def test_features_are_matched_by_id() -> None:
    features = features_of(["a", "b", "c"], text=np.eye(3))
    found = match_features(features, ["c", "a", "c"])
    assert list(found.ids) == ["c", "a", "c"]
    assert found.text.argmax(1).tolist() == [2, 0, 2]
    with pytest.raises(SiglumError, match=r"2 of 3 ids have no features: 'x', 'y'; those there begin with 'a', 'b'"):
        match_features(features, ["x", "a", "y"])


def refused(path: Path) -> str:
    with pytest.raises(SiglumError) as error:
        read_features(path)
    message = str(error.value)
    assert message.endswith(".") and "\n" not in message
    return message


def test_unknown_layouts_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", embeddings=np.eye(2), labels=np.arange(2))
    assert "holds embeddings, labels, but should hold image and text" in refused(tmp_path / "x.npz")
    np.savez(tmp_path / "o.npz", text=np.eye(2), ids=np.array(["a", None], object))
    assert "arrays of Python objects" in refused(tmp_path / "o.npz")
    np.savez(tmp_path / "e.npz")
    assert "holds nothing" in refused(tmp_path / "e.npz")
    pq.write_table(pa.table({"id": [1], "vector": [[1.0]]}), tmp_path / "v.parquet")
    assert "holds vector, but" in refused(tmp_path / "v.parquet")
    pq.write_table(pa.table({"id": [1, 2], "text": ["a", "b"]}), tmp_path / "t.parquet")
    assert "column text" in refused(tmp_path / "t.parquet") and "lists of numbers" in refused(tmp_path / "t.parquet")
    pq.write_table(pa.table({"text": [[1.0], [1.0, 2.0]]}), tmp_path / "r.parquet")
    assert "[1, 2] numbers, but must agree" in refused(tmp_path / "r.parquet")
    torch.save({"img": torch.eye(2)}, tmp_path / "x.pt")
    assert "holds img, but must be a dictionary with img, text, img_mask" in refused(tmp_path / "x.pt")
    torch.save(torch.eye(2), tmp_path / "t.pt")
    assert "holds Tensor" in refused(tmp_path / "t.pt")
    torch.save({"code": Path}, tmp_path / "code.pt")
    assert "not a whole torch file of plain tensors" in refused(tmp_path / "code.pt")
    assert "is a folder (with code.pt, e.npz," in refused(tmp_path)
    assert "suffix '.pkl'" in refused(tmp_path / "x.pkl")
    assert "does not exist" in refused(tmp_path / "gone.npy")
    for name in ("torn.npy", "torn.npz", "torn.parquet", "torn.pt", "torn.safetensors"):
        (tmp_path / name).write_bytes(b"torn")
        assert name in refused(tmp_path / name)
