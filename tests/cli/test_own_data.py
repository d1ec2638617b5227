"""One's own items and queries through the command line, good and bad."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from siglum.cli.main import main
from siglum.files import read_json
from siglum.lab.world.collection import World
from siglum.tokenize.schedule import scaled_sizes

Call = Callable[..., str]
SMALL = ["--set", "fusion.epochs=1", "--set", "tokenizer.epochs=1", "--set", "decoder.epochs=1"]


def own_data(folder: Path, items: int = 60) -> list[object]:
    """Write items (every third a picture, every third a text, every third both) and queries; return the options."""
    from PIL import Image

    world, rng = World(480, 0), np.random.default_rng(0)
    names = [f"thing{i}" for i in range(items)]
    with (folder / "items.jsonl").open("w") as file:
        for place, name in enumerate(names):
            record: dict[str, Any] = {"id": name}
            item = world.items("train")[3 * place + 2]
            if place % 3 != 1:
                Image.fromarray(item.image.pixels(32)).save(folder / f"{name}.png")
                record["image"] = f"{name}.png"
            if place % 3 != 0:
                record["text"] = item.text
            file.write(json.dumps(record) + "\n")
    for split, number in (("train", 90), ("val", 20), ("test", 20)):
        with (folder / f"{split}.jsonl").open("w") as file:
            for place in range(number):
                target = int(rng.integers(items)) if split != "train" else place % items
                text = f"thing number {target} please"
                record = {"id": f"{split}{place}", "text": text, "positives": [names[target]]}
                file.write(json.dumps(record) + "\n")
    files = [arg for name in ("items", "train", "val", "test") for arg in (f"--{name}", folder / f"{name}.jsonl")]
    return [*files, "--scale", "tiny", *SMALL, "--set", "tokenizer.vocab=[4,8]"]


def test_own_data_with_an_unreadable_picture(call: Call, fail: Call, tmp_path: Path) -> None:
    options, run = own_data(tmp_path), tmp_path / "run"
    (tmp_path / "thing3.png").write_bytes(b"no picture")
    assert "thing3.png" in fail("encode", "--out", run, *options, "--strict")
    assert not (run / "1-vectors" / "stage.json").exists()
    found = json.loads(call("encode", "--out", run, *options, "--json"))
    (left,) = found.pop("omitted")
    assert (left["kind"], left["id"], left["part"]) == ("item", "thing3", "row") and "thing3.png" in left["why"]
    assert found == {"items": 59, "queries": 130, "run": str(run), "skipped": 1}
    for verb in ("tokenize", "train", "index"):
        call(verb, run)
    assert "thing3" not in [
        hit["item_id"] for hit in json.loads(call("search", run, "thing", "-k", 99, "--json"))["hits"]
    ]
    found = json.loads(call("eval", run, "--json"))
    assert list(found["tasks"]) == [""]
    assert (run / "5-runs" / "all.test.dense.trec").exists()
    assert "all" in call("eval", run, "--split", "val")


def test_encoding_resumes_without_encoding_twice(
    call: Call, fail: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from siglum.encode.builtin import BuiltinEncoder

    options, run, seen = own_data(tmp_path), tmp_path / "run", []
    encode = BuiltinEncoder.encode_texts

    def counted(self: BuiltinEncoder, texts: Sequence[str]) -> np.ndarray:
        seen.append(len(texts))
        if len(seen) == 2:
            raise KeyboardInterrupt
        return encode(self, texts)

    monkeypatch.setattr(BuiltinEncoder, "encode_texts", counted)
    assert main([str(arg) for arg in ("encode", "--out", run, *options)]) == 130
    assert "another collection" in fail("encode", "--out", run, "--world", 240, "--resume")
    call("encode", "--out", run, *options, "--resume")
    assert seen == [40, 90, 90, 20, 20]
    assert not (run / "1-vectors" / "checkpoint").exists()
    call("encode", "--out", tmp_path / "whole", *options)
    for name in ("items.safetensors", "queries.safetensors", "stage.json"):
        assert (run / "1-vectors" / name).read_bytes() == (tmp_path / "whole" / "1-vectors" / name).read_bytes()


def test_auto_scale_follows_the_collection(call: Call, tmp_path: Path) -> None:
    options = [arg for arg in own_data(tmp_path) if arg not in ("--scale", "tiny")][:8]
    call("encode", "--out", tmp_path / "run", *options)
    config = read_json(tmp_path / "run" / "config.json")
    train = sum(1 for line in (tmp_path / "train.jsonl").read_text().splitlines() if line)
    assert (config["scale"], config["tokenizer"]["vocab"][0]) == ("auto", scaled_sizes(min(60, train))[0])
    assert config["decoder"]["batch_size"] == 64


def line(**fields: Any) -> str:
    return json.dumps(fields) + "\n"


BAD = {
    "no such file": ("train", None, "cannot be read"),
    "empty items": ("items", "", "is empty"),
    "blank items": ("items", "\n\n", "is empty"),
    "empty queries": ("test", "", "is empty"),
    "an id twice": ("items", line(id="a", text="x") * 2, "'a' was used before, in line 1"),
    "a query twice": ("train", line(id="a", text="x", positives=["thing1"]) * 2, "'a' was used before"),
    "a query in two splits": ("val", line(id="test1", text="x", positives=["thing1"]), "'test1' stands twice"),
    "an unknown positive": ("train", line(id="q", text="x", positives=["thing1", "nobody"]), "'nobody' of query 'q'"),
    "neither text nor picture": ("items", line(id="a"), "neither a text nor an image"),
    "half a line": ("items", '{"id": "a", "te', "not valid JSON"),
    "a list": ("items", "[1]\n", "must be a JSON object"),
    "an unknown field": ("items", line(id="a", text="x", colour="red"), "unknown field 'colour'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused_in_one_sentence(fail: Call, tmp_path: Path, name: str) -> None:
    options = own_data(tmp_path)
    file, content, words = BAD[name]
    path = tmp_path / f"{file}.jsonl"
    path.unlink()
    if content is not None:
        path.write_text(content)
    message = fail("encode", "--out", tmp_path / "run", *options)
    assert words in message
    assert not (tmp_path / "run" / "config.json").exists()


def test_a_collection_needs_queries_and_pairs(call: Call, fail: Call, tmp_path: Path) -> None:
    options, run = own_data(tmp_path), tmp_path / "run"
    assert "needs queries" in fail("encode", "--out", run, *options[:2], *options[8:])
    call("encode", "--out", run, *options[:2], *options[6:])
    assert "no training pairs" in fail("tokenize", run)


def test_too_many_codewords_for_the_items(call: Call, fail: Call, tmp_path: Path) -> None:
    options, run = own_data(tmp_path), tmp_path / "run"
    call("encode", "--out", run, *options, "--set", "tokenizer.vocab=[4,4000]")
    assert "4000 codewords need at least 4000 training vectors" in fail("tokenize", run)
