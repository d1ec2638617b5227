"""What the README shows is run: its Python, its verbs, on a small world in the places it names."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from siglum.cli.main import main
from siglum.data.corpus import write_items, write_queries
from siglum.data.pictures import load_picture
from siglum.data.world import World
from siglum.types import Item

README = (Path(__file__).parent.parent / "README.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", README, re.S)


def test_python_blocks_run(world_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "demo").symlink_to(world_run, target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    vectors = random.normal(size=(60, 16)).astype(np.float32)
    names = {
        "item_vectors": vectors,
        "query_vectors": vectors + 0.1 * random.normal(size=vectors.shape).astype(np.float32),
        "positives": list(range(60)),
    }
    shown = blocks("python")
    assert len(shown) == 2
    for block in shown:
        exec(compile(block, "README.md", "exec"), names)
    retriever = names["retriever"]
    assert len(retriever.index) == 60  # type: ignore[attr-defined]


def test_verbs_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    world = World(240, 0)
    pictures: list[Item] = []
    for split in ("train", "val", "test"):
        pictures += [item for item in world.items(split) if item.id.endswith("-t")]
        write_queries(Path(f"{split}.jsonl"), list(world.queries(split, "t2t")))
    write_items(Path("items.jsonl"), pictures)
    drawing = next(item.image for item in world.items("test") if item.image is not None)
    Image.fromarray(load_picture(drawing, 64)).save("photo.jpg")
    lines = [part.strip() for block in blocks("bash") for line in block.splitlines() for part in line.split("&&")]
    verbs = [shlex.split(line)[1:] for line in lines if line.startswith("siglum ")]
    assert [verb[0] for verb in verbs] == ["encode", "tokenize", "train", "index", "eval", "search"]
    for verb in verbs:
        quick = ["--set", "decoder.epochs=1"] if verb[0] == "train" else []
        assert main([*verb, *quick]) == 0, capsys.readouterr().err
    assert "s0" in capsys.readouterr().out
