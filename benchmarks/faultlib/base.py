"""Tiny runs that every trial copies: made once, in a process of their own, from nothing but a seed.

`mine` is a run of texts with two pictures, evaluated and reported, with items added and removed since; `other` is the
same with another seed and other words, for files to be swapped with; `plain` is `mine` before anything was added;
`kept` is `mine` with a snapshot and more items added since; `published` is `mine` as the hub gets it; `fresh` is
`plain` with tokenizer and decoder made again and a stale index; `photos` is a folder of pictures and `album` the run
built from it; the pictures in `live` have changed since `album-live` was built.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from random import Random
from typing import Any

from faultlib.told import copy, tell

ITEMS, TRAIN, VAL, TEST, NEW = 150, 180, 12, 16, 12
WORDS = [
    "red",
    "green",
    "blue",
    "star",
    "ring",
    "heart",
    "cat",
    "dog",
    "snow",
    "tree",
    "house",
    "car",
    "boat",
    "lake",
    "hill",
    "road",
    "bird",
    "fish",
    "moon",
    "sun",
]
SMALL = (
    ("fusion.dim", 12), ("fusion.projection", 12), ("fusion.hidden", 12), ("fusion.epochs", 1),
    ("fusion.batch_size", 64), ("tokenizer.vocab", "[4,8,8]"), ("tokenizer.batch_size", 64),
    ("tokenizer.epochs", 1), ("tokenizer.kmeans_iters", 2), ("decoder.epochs", 1), ("decoder.d_model", 16),
    ("decoder.d_ff", 16), ("decoder.d_kv", 8), ("decoder.heads", 2), ("decoder.batch_size", 64),
)  # fmt: skip
"""Settings that make every training a moment."""
SETTINGS = [arg for name, value in SMALL for arg in ("--set", f"{name}={value}")]
LATER = [arg for name, value in SMALL if not name.startswith("fusion") for arg in ("--set", f"{name}={value}")]


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def sentence(rng: Random, words: int = 6) -> str:
    """Return some words."""
    return " ".join(rng.choice(WORDS) for _ in range(words))


def picture(path: Path, rng: Random, size: int = 24) -> None:
    """Draw a small picture of blocks."""
    import numpy as np
    from PIL import Image

    blocks = np.array([[[rng.randrange(256) for _ in range(3)] for _ in range(4)] for _ in range(4)], np.uint8)
    Image.fromarray(np.kron(blocks, np.ones((size // 4, size // 4, 1), np.uint8))).save(path)


def write_inputs(folder: Path, seed: int) -> None:
    """Write items, queries, and items to add."""
    rng = Random(f"inputs {seed}")
    folder.mkdir(parents=True)
    for name in ("a.png", "b.png"):
        picture(folder / name, rng)
    items = [{"id": f"item{n}", "text": sentence(rng)} for n in range(ITEMS)]
    items[0]["image"], items[1] = "a.png", {"id": "item1", "image": "b.png"}
    write_lines(folder / "items.jsonl", items)
    asked = [item for item in items if "text" in item]
    for split, number in (("train", TRAIN), ("val", VAL), ("test", TEST)):
        rows = []
        for n in range(number):
            item = asked[n % len(asked)] if split == "train" else rng.choice(asked)
            words = item["text"].split()
            rng.shuffle(words)
            rows.append({"id": f"{split}{n}", "text": " ".join(words[:4]), "task": "t2t", "positives": [item["id"]]})
        write_lines(folder / f"{split}.jsonl", rows)
    for name in ("new", "more", "last"):
        write_lines(folder / f"{name}.jsonl", [{"id": f"{name}{n}", "text": sentence(rng)} for n in range(NEW)])


def write_genius(folder: Path, seed: int) -> None:
    """Write a checkpoint as GENIUS writes that of its quantiser, and features of items to import with it."""
    import numpy as np
    import torch

    draw, dim, hidden, sizes = torch.Generator().manual_seed(seed), 6, 5, (3, 4, 4)
    shapes = {
        "image_projection_layer": (dim, dim), "text_projection_layer": (dim, dim), "combiner_layer": (hidden, 2 * dim),
        "output_layer": (dim, hidden), "dynamic_scalar.0": (hidden, 2 * dim), "dynamic_scalar.3": (1, hidden),
    }  # fmt: skip
    weights = {f"encoder.{name}.weight": torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    weights |= {f"encoder.{name}.bias": torch.randn(shape[0], generator=draw) for name, shape in shapes.items()}
    for level, size in enumerate(sizes):
        words, book = torch.randn(1, size, dim, generator=draw), f"residual_rq.layers.{level}._codebook"
        weights |= {f"{book}.embed": words, f"{book}.embed_avg": words, f"{book}.cluster_size": torch.ones(1, size)}
    torch.save({"model": weights}, folder / "genius.pth")
    rows = np.random.default_rng(seed).normal(size=(2, 40, dim)).astype(np.float32)
    np.savez(folder / "pool.npz", image=rows[0], text=rows[1])


def encode_command(inputs: Path, out: Path, seed: int) -> list[Any]:
    """Return the command that begins a run of these inputs."""
    files = [arg for name in ("items", "train", "val", "test") for arg in (f"--{name}", inputs / f"{name}.jsonl")]
    return ["encode", "--out", out, *files, "--scale", "tiny", "--seed", seed, *SETTINGS]


def build_command(photos: Path, out: Path) -> list[Any]:
    """Return the command that builds a run of a folder of pictures."""
    return ["build", photos, "--out", out, "--encoder", "builtin", "--scale", "tiny", *SETTINGS]


def must(argv: list[Any]) -> None:
    """Run a command that has to work."""
    told = tell(argv)
    if told.code:
        raise RuntimeError(f"siglum {' '.join(map(str, argv))} failed: {told.err}{told.trace}")


def make_run(root: Path, name: str, inputs: Path, seed: int) -> None:
    """Make a whole run, evaluated and reported."""
    run = root / name
    must(encode_command(inputs, run, seed))
    for verb in ("tokenize", "train", "index", "eval"):
        must([verb, run])
    must(["report", run, "--out", run / "6-report" / "report.html"])


def make_photos(root: Path, seed: int) -> None:
    """Draw a folder of captioned pictures and build runs of it; of one of them the folder then changes."""
    rng = Random(f"photos {seed}")
    photos = root / "photos"
    photos.mkdir()
    numbers = iter(range(100))

    def draw(folder: Path, number: int) -> None:
        for n in itertools.islice(numbers, number):
            picture(folder / f"p{n}.png", rng)
            (folder / f"p{n}.txt").write_text(sentence(rng) + "\n")

    draw(photos, 14)
    live = copy(photos, root / "live")
    must(build_command(photos, root / "album"))
    must(build_command(live, root / "album-live"))
    for n in (3, 4):
        (live / f"p{n}.png").unlink()
        (live / f"p{n}.txt").unlink()
    draw(live, 3)


def make_bases(root: Path, seed: int) -> None:
    """Make everything trials start from, and say which modules it took."""
    import torch

    import siglum

    torch.set_num_threads(1)
    for name, own in (("inputs", seed), ("inputs-other", seed + 1)):
        write_inputs(root / name, own)
        write_genius(root / name, own)
    make_run(root, "plain", root / "inputs", seed)
    make_run(root, "other", root / "inputs-other", seed + 1)
    mine = copy(root / "plain", root / "mine")
    for run, inputs in ((mine, "inputs"), (root / "other", "inputs-other")):
        must(["index", run, "--add", root / inputs / "new.jsonl"])
        must(["index", run, "--remove", "new3", "--remove", "item5"])
        must(["eval", run])  # what was measured before is not compared with what is there now
    kept = copy(mine, root / "kept")
    must(["index", kept, "--snapshot", "before"])
    must(["index", kept, "--add", root / "inputs" / "last.jsonl"])
    siglum.Retriever.load(mine).save_pretrained(root / "published")
    fresh = copy(root / "plain", root / "fresh")
    for verb in ("tokenize", "train"):
        must([verb, fresh, "--seed", seed + 7])
    make_photos(root, seed)
    # What reads is imported here, once, and not in every trial.
    must(["search", mine, "red star", "--json"])
    must(["explain", mine, "--query-id", "test0", "--json"])
    must(["diagnose", mine])
    must(["info", mine, "--check"])
    modules = [name for name in sys.modules if name != "__main__" and not name.startswith(("_pytest", "faultlib"))]
    (root / "made.json").write_text(json.dumps({"seed": seed, "modules": modules}))
