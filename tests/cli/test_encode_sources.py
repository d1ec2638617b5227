"""`siglum encode` with every source, with features made elsewhere, and in parts."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from siglum.cli.encode import Command
from siglum.cli.main import main
from siglum.data.source import answers_words
from siglum.data.vectors import load_vectors
from siglum.encode.builtin import BuiltinEncoder
from siglum.encode.registry import FORMS
from siglum.files import read_json

Call = Callable[..., str]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of 24 pictures with a sidecar caption each."""
    folder, rng = tmp_path / "photos", np.random.default_rng(0)
    folder.mkdir()
    for number in range(24):
        Image.fromarray(rng.integers(0, 256, (20, 30, 3), np.uint8)).save(folder / f"p{number}.png")
        (folder / f"p{number}.txt").write_text(f"picture number {number}\n")
    return folder


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def own(tmp_path: Path) -> list[object]:
    """Ten items and queries for them, as options."""
    items = write_rows(tmp_path / "items.jsonl", [{"id": f"x{i}", "text": f"thing {i}"} for i in range(10)])
    asked = {
        split: write_rows(
            tmp_path / f"{split}.jsonl",
            [{"id": f"{split}{i}", "text": f"find {i}", "positives": [f"x{i}"]} for i in range(number)],
        )
        for split, number in (("train", 10), ("test", 4))
    }
    return ["--items", items, "--train", asked["train"], "--test", asked["test"], "--scale", "tiny"]


def test_help_names_every_encoder() -> None:
    text = str(Command.__doc__)
    for form in FORMS:
        assert f" {form} " in text


def test_a_folder_of_pictures(call: Call, photos: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    found = json.loads(call("encode", "--out", run, "--folder", photos, "--workers", 2, "--json"))
    assert found == {"run": str(run), "items": 24, "queries": 24, "skipped": 0, "omitted": []}
    known = {"kind": "folder", "path": str(photos), "joint": False, "queries": "captions"}
    told = read_json(run / "source.json")
    assert told.pop("identity") and told == {**known, "supervised": True, "captions": "auto", "seed": 0}
    words = json.loads(call("encode", "--out", run, "--folder", photos, "--captions", "none", "--json"))
    assert words["queries"] == 24
    vectors, _ = load_vectors(run / "1-vectors")
    assert vectors.queries.has_image.all() and not vectors.queries.has_text.any()
    told = read_json(run / "source.json")
    assert told.pop("identity") and told == {**known, "supervised": False, "captions": "none", "seed": 0}
    assert not answers_words(run)


def test_karpathys_layout(call: Call, fail: Call, photos: Path, tmp_path: Path) -> None:
    entries = [
        {"filename": f"p{i}.png", "split": split, "sentences": [{"raw": f"picture {i}"}, {"raw": f"number {i}"}]}
        for i, split in enumerate(["train"] * 16 + ["val"] * 4 + ["test"] * 4)
    ]
    path = tmp_path / "dataset.json"
    path.write_text(json.dumps({"images": entries}))
    run = tmp_path / "run"
    call("encode", "--out", run, "--folder", photos)
    other = ["encode", "--out", run, "--karpathy", path, "--images", photos]
    assert f"another collection ({photos})" in fail(*other)
    assert (run / "source.json").exists()
    found = json.loads(call(*other, "--json", "--overwrite"))
    assert not (run / "source.json").exists(), "it told of the pictures encoded before"
    assert (found["items"], found["queries"]) == (72, 72)
    vectors, _ = load_vectors(run / "1-vectors")
    assert {(task.name, task.split, len(task.pool_rows)) for task in vectors.tasks} == {
        ("t2i", "val", 4),
        ("t2i", "test", 4),
        ("i2t", "val", 8),
        ("i2t", "test", 8),
    }
    assert "--images DIR" in fail("encode", "--out", run, "--karpathy", path)


def test_features_made_elsewhere(call: Call, fail: Call, own: list[object], tmp_path: Path) -> None:
    rng, run = np.random.default_rng(0), tmp_path / "run"
    item, query = (rng.normal(size=(number, 6)).astype(np.float32) for number in (10, 14))
    np.save(tmp_path / "item.npy", item)
    np.savez(tmp_path / "query.npz", text=query)
    features = ["--item-features", tmp_path / "item.npy", "--query-features", tmp_path / "query.npz"]
    found = json.loads(call("encode", "--out", run, *own, *features, "--json"))
    assert (found["items"], found["queries"], found["skipped"]) == (10, 14, 0)
    vectors, _ = load_vectors(run / "1-vectors")
    assert np.array_equal(vectors.items.text, item) and np.array_equal(vectors.queries.text, query)
    assert list(vectors.queries.ids)[9:11] == ["train9", "test0"]
    assert read_json(run / "1-vectors" / "stage.json")["encoder"] == "none"
    ids = np.array([*[f"test{i}" for i in range(4)], *[f"train{i}" for i in range(10)]])
    np.savez(tmp_path / "query.npz", text=query, ids=ids)
    call("encode", "--out", run, *own, *features)
    vectors, _ = load_vectors(run / "1-vectors")
    assert np.array_equal(vectors.queries.text, np.concatenate([query[4:], query[:4]]))
    assert "give both" in fail("encode", "--out", run, *own, *features[:2])
    assert "--shard" in fail("encode", "--out", run, *own, *features, "--shard", "1/2")
    np.savez(tmp_path / "query.npz", text=query[:5])
    assert "14 of 14 ids have no features" in fail("encode", "--out", run, *own, *features)


def test_parts_are_encoded_apart_and_joined(
    call: Call, fail: Call, own: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siglum.encode.run.SHARD", 3)
    run, seen = tmp_path / "run", []
    encode = BuiltinEncoder.encode_texts
    monkeypatch.setattr(BuiltinEncoder, "encode_texts", lambda self, texts: seen.extend(texts) or encode(self, texts))
    rows = [json.loads(call("encode", "--out", run, *own, "--shard", f"{i}/2", "--json"))["rows"] for i in (1, 2)]
    assert sum(rows) == 24 and len(seen) == 24
    assert not (run / "config.json").exists()
    found = json.loads(call("encode", "--out", run, *own, "--resume", "--json"))
    assert (found["items"], found["queries"], len(seen)) == (10, 14, 24)
    call("encode", "--out", tmp_path / "whole", *own)
    for name in ("items.safetensors", "queries.safetensors", "stage.json"):
        assert (run / "1-vectors" / name).read_bytes() == (tmp_path / "whole" / "1-vectors" / name).read_bytes()
    for bad in ("2", "a/2", "3/2", "/"):
        assert "shard" in fail("encode", "--out", tmp_path / "other", *own, "--shard", bad)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--folder", "x", "--mbeir", "y"], "exactly one source"),
        (["--folder", "nowhere"], "does not exist"),
        (["--world", 240, "--images", "x"], "--images goes with --karpathy, not with --world"),
        (["--folder", "x", "--train", "y"], "--train goes with --items"),
        (["--world", 240, "--captions", "names"], "--captions goes with --folder"),
        (["--world", 240, "--workers", -1], "must be 0 or more"),
        (["--world", 240, "--batch-size", 0], "batch size is 0"),
        (["--world", 240, "--precision", "half"], "float32, bfloat16, float16"),
        (["--world", 240, "--encoder", "sentence:/nowhere/at/all"], "sentence:/nowhere/at/all"),
        (["--mbeir", "nowhere"], "nowhere"),
    ],
)
def test_what_cannot_work_is_refused(fail: Call, tmp_path: Path, options: list[object], words: str) -> None:
    assert words in fail("encode", "--out", tmp_path / "run", *options)
    assert not (tmp_path / "run" / "config.json").exists()


def test_texts_of_emoji_alone_stop_nothing_and_are_named(
    own: list[object], tmp_path: Path, call: Call, fail: Call
) -> None:
    Image.new("RGB", (20, 20), "red").save(tmp_path / "red.png")
    rows = [{"id": "fox", "text": "🦊"}, {"id": "red", "text": "…", "image": "red.png"}]
    write_rows(tmp_path / "items.jsonl", [*({"id": f"x{i}", "text": f"thing {i}"} for i in range(10)), *rows])
    write_rows(tmp_path / "test.jsonl", [{"id": "q", "text": "🦊🦊", "positives": ["x1"]}])
    found = json.loads(call("encode", "--out", tmp_path / "run", *own, "--json"))
    assert (found["items"], found["queries"], found["skipped"]) == (11, 10, 2)
    named = [(row["kind"], row["id"], row["part"]) for row in found["omitted"]]
    assert named == [("item", "fox", "row"), ("item", "red", "text"), ("query", "q", "row")]
    call("encode", "--out", tmp_path / "run", *own)
    items = load_vectors(tmp_path / "run" / "1-vectors")[0].items
    assert (items.ids[-1], bool(items.has_text[-1]), bool(items.has_image[-1])) == ("red", False, True)
    assert "'🦊' has no words this encoder knows" in fail("encode", "--out", tmp_path / "strict", *own, "--strict")


def test_the_summary_names_rows_and_reasons(own: list[object], tmp_path: Path, capsys: Any) -> None:
    write_rows(tmp_path / "test.jsonl", [{"id": f"q{i}", "text": "🦊🦊", "positives": ["x1"]} for i in range(7)])
    assert main(["encode", "--out", str(tmp_path / "run"), *map(str, own)]) == 0
    said = capsys.readouterr().err
    assert "7 rows were skipped:\n  q0: the text '🦊🦊' has no words this encoder knows (builtin)" in said
    assert "  and 2 more (--json names all)\n" in said
