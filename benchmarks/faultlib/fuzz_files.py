"""Files nobody should give: junk for JSON lines, tables, features, judgements and pictures."""

from __future__ import annotations

import io
import json
import os
import struct
import zlib
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from faultlib.base import SETTINGS, sentence
from faultlib.campaign import Base
from faultlib.fuzz_values import Case
from faultlib.state import ids_of, see
from faultlib.told import Fault, fault, faults_of, tell

VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 3, 2.5, float("nan"), 10**400, "", " ", "\t", "a b", "🙂", "🙂🙂🙂", "日本", "\ud800",
    "a\x00b", "x" * 20_000, [], {}, ["a"], [[]], {"a": 1}, "a.png", "nowhere.png", "/", ".", "../inputs/a.png", "http://x/y.png",
    "item3", "new0",
)  # fmt: skip


def row(rng: Random, number: int) -> str:
    """Return one line for a file of items or queries, more often wrong than right."""
    good: dict[str, Any] = {"id": f"f{number}", "text": sentence(rng)}
    turn = rng.randrange(9)
    if turn < 4:
        good[rng.choice(("id", "text", "image", "positives", "task", "instruction", "nothing"))] = rng.choice(VALUES)
    elif turn == 4:
        good.pop(rng.choice(("id", "text")))
    elif turn == 5:
        text = json.dumps(good)
        return text[: rng.randrange(len(text))]
    elif turn == 6:
        depth = rng.choice((5, 500, 200_000))
        return "[" * depth + "]" * rng.choice((depth, 0))
    elif turn == 7:
        return rng.choice(
            ("", "null", "1", "NaN", '"a"', "{}", '{"id": 1, "id": 2}', "\x00", "\ufeff{}", '{"id":"a","text":1e999}')
        )
    return json.dumps(good, ensure_ascii=rng.random() < 0.7)


def lines(path: Path, rng: Random, least: int = 1) -> str:
    """Write a file of such lines and return some words about it."""
    rows = [row(rng, n) if rng.random() < 0.4 else json.dumps({"id": f"g{n}", "text": sentence(rng)}) for n in range(6)]
    rows += rows[:1] if rng.random() < 0.1 else []
    end = rng.choice(("\n", "\n", "\r\n", "\r", "\u2028"))
    data = end.join(rows).encode("utf-8", rng.choice(("surrogatepass", "replace")))
    if rng.random() < 0.15:
        data = bytes(rng.randrange(256) for _ in range(200)) + data
    if rng.random() < 0.05:
        data = data.decode("utf-8", "replace").encode("utf-16")
    path.write_bytes(data)
    return ascii(data[:250])


def picture_bytes(rng: Random) -> bytes:
    """Return what a broken or strange picture file holds."""
    from PIL import Image

    kind = rng.randrange(12)
    if kind == 0:
        return b""
    if kind == 1:
        return bytes(rng.randrange(256) for _ in range(rng.choice((1, 30, 3000))))
    if kind == 2:
        return _giant(rng)
    mode = rng.choice(("RGB", "RGBA", "L", "P", "1", "I;16", "F", "CMYK", "LA", "I"))
    size = rng.choice(((1, 1), (24, 24), (1, 500), (500, 1), (3, 2)))
    picture, held = Image.new(mode, size), io.BytesIO()
    form = rng.choice(("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "ICO"))
    try:
        picture.save(held, form)
    except (OSError, ValueError, KeyError):
        picture.convert("RGB").save(held, "PNG")
    data = bytearray(held.getvalue())
    if kind < 6:
        del data[rng.randrange(len(data)) :]
    elif kind < 9:
        for _ in range(rng.choice((1, 5, 50))):
            data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def _giant(rng: Random) -> bytes:
    """Return a PNG that says it is enormous."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    side = rng.choice((30_000, 2**31 - 1, 65_536))
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\x00" * 100)) + chunk(b"IEND", b"")
    )


def added(base: Base, rng: Random, scratch: Path) -> tuple[str, list[Fault]]:
    """Add items of a bad file: all or nothing."""
    if rng.random() < 0.3:
        (scratch / "a.png").write_bytes(picture_bytes(rng))
        (scratch / "new.jsonl").write_text(json.dumps({"id": "f0", "image": "a.png"}) + "\n")
        way = "a bad picture"
    else:
        way = lines(scratch / "new.jsonl", rng)
    before = ids_of(see(scratch / "run")[0])
    told = tell(["index", "run", "--add", "new.jsonl"])
    faults = faults_of(told, "index --add")
    state, more = see(scratch / "run")
    new = ids_of(state) - before
    if not more and (before - ids_of(state) or (told.code and new)):
        more = [
            fault("phantom" if new else "loss", f"index --add of a bad file ends with {told.code} and changes the run")
        ]
    return way, faults + more


def encoded(base: Base, rng: Random, scratch: Path) -> tuple[str, list[Fault]]:
    """Begin a run with one bad file of four."""
    inputs = base.root / "inputs"
    files = {name: str(inputs / f"{name}.jsonl") for name in ("items", "train", "val", "test")}
    bad = rng.choice(list(files))
    way = f"{bad}: {lines(scratch / 'bad.jsonl', rng)}"
    if rng.random() < 0.3:
        data = (inputs / f"{bad}.jsonl").read_bytes()
        (scratch / "bad.jsonl").write_bytes(data + (scratch / "bad.jsonl").read_bytes())
    files[bad] = "bad.jsonl"
    options = [arg for name, path in files.items() for arg in (f"--{name}", path)]
    strict = ["--strict"] if rng.random() < 0.3 else []
    told = tell(["encode", "--out", "new", *options, "--scale", "tiny", *SETTINGS, *strict])
    return way, faults_of(told, "encode")


def features(base: Base, rng: Random, scratch: Path) -> tuple[str, list[Fault]]:
    """Take features from a bad file."""
    kind = rng.choice((".npy", ".npz", ".safetensors", ".parquet", ".pt", ".txt"))
    path, rows = scratch / f"features{kind}", rng.choice((0, 1, 149, 150, 151))
    array: Any = np.random.default_rng(rng.randrange(99)).normal(size=(rows, 6))
    change = rng.randrange(8)
    if change == 0 and rows:
        array[0, 0] = rng.choice((np.nan, np.inf))
    elif change == 1:
        array = array.astype(rng.choice(("int64", "bool", "complex128", "U8", "float16", "O")))
    elif change == 2:
        array = array[..., None] if rng.random() < 0.5 else array[:, 0]
    elif change == 3:
        array[:] = 0
    _write_features(path, kind, array, rng)
    if change > 5:
        data = bytearray(path.read_bytes())
        for _ in range(rng.choice((1, 20))):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data[: rng.randrange(len(data))] if rng.random() < 0.4 else data)
    inputs = base.root / "inputs"
    options = [arg for name in ("items", "train", "val", "test") for arg in (f"--{name}", inputs / f"{name}.jsonl")]
    given = ["--item-features", path, *(["--query-features", path] if rng.random() < 0.8 else [])]
    told = tell(["encode", "--out", "new", *options, *given, "--scale", "tiny", *SETTINGS])
    return f"{kind} {array.dtype} {array.shape} change {change}", faults_of(told, "encode")


def _write_features(path: Path, kind: str, array: Any, rng: Random) -> None:
    """Write an array in one of the formats, or something that only looks like it."""
    try:
        if kind == ".npy":
            np.save(path, array, allow_pickle=True)
        elif kind == ".npz":
            np.savez(path, **{rng.choice(("text", "image", "nothing", "ids")): array})
        elif kind == ".safetensors":
            from safetensors.numpy import save_file

            save_file({rng.choice(("text", "image", "nothing", "id_bytes")): np.ascontiguousarray(array)}, path)
        elif kind == ".parquet":
            import pyarrow as pa
            import pyarrow.parquet as pq

            pq.write_table(pa.table({rng.choice(("text", "id")): [list(map(float, r)) for r in array]}), path)
        elif kind == ".pt":
            import torch

            torch.save({"img": torch.zeros(3, 4), "text": rng.choice((torch.zeros(3, 4), 5, "x"))}, path)
        else:
            path.write_text("1 2 3\n")
    except Exception:
        path.write_bytes(b"\x93NUMPY junk of an array that cannot be written")


TABLES = (
    b"",
    b"file,text\n",
    b"file,text\np1.png,a cat\nnowhere.png,a dog\n",
    b"\xff\xfe\x00",
    b'file,text\n"p1',
    b"a\n1\n2,3\n",
)
"""Tables of captions, most of them strange."""


def album(base: Base, rng: Random, scratch: Path) -> tuple[str, list[Fault]]:
    """Build from a folder with strange pictures and captions among good ones."""
    from faultlib.told import copy

    photos = copy(base.root / "photos", scratch / "photos")
    for _ in range(rng.choice((1, 2, 4))):
        name = rng.choice(("bad.png", "bad.jpg", "bad.gif", "b a d.webp", "日本.png", "x.tiff", "p1.png", "bad.heic"))
        (photos / name).write_bytes(picture_bytes(rng))
    odd = rng.randrange(6)
    if odd == 0:
        (photos / "link.png").symlink_to("nowhere.png")
    elif odd == 1:
        (photos / "folder.png").mkdir()
    elif odd == 2:
        os.mkfifo(photos / "pipe.png")
    elif odd == 3:
        (photos / "p2.txt").write_bytes(bytes(rng.randrange(256) for _ in range(50)))
    captions = rng.choice(
        ("auto", "names", "none", "sidecar", "captions.csv", "captions.jsonl", "captions.csv:file:text")
    )
    table = photos / captions.partition(":")[0]
    if table.suffix == ".csv":
        table.write_bytes(rng.choice(TABLES))
    elif table.suffix == ".jsonl":
        lines(table, rng)
    given = captions if table.suffix == "" else str(photos / captions)
    strict = ["--strict"] if rng.random() < 0.2 else []
    told = tell(
        [
            "build",
            photos,
            "--out",
            "new",
            "--captions",
            given,
            "--encoder",
            "builtin",
            "--scale",
            "tiny",
            *SETTINGS,
            *strict,
        ]
    )
    return f"oddity {odd}, captions {captions}", faults_of(told, "build")


def asked(base: Base, rng: Random, scratch: Path) -> tuple[str, list[Fault]]:
    """Search by a bad picture, or within a bad list."""
    if rng.random() < 0.6:
        (scratch / "q.png").write_bytes(picture_bytes(rng))
        argv: list[Any] = ["search", "run", "--image", "q.png", "--json"]
    else:
        data = rng.choice(
            (
                b"",
                b"item3\nitem4\n",
                b"item3\nnothing\n",
                b"\xff\xfe",
                b"\x00",
                b"item3 item3",
                b"\n\n",
                "日本".encode(),
            )
        )
        (scratch / "ids.txt").write_bytes(data)
        argv = ["search", "run", "red star", "--within", "ids.txt", "--json"]
    told = tell(argv)
    return " ".join(argv), faults_of(told, "search")


def captioned(base: Base, rng: Random, scratch: Path) -> tuple[str, list[Fault]]:
    """Begin a run with a bad file in Karpathy's layout."""
    image: dict[str, Any] = {"filename": "p1.png", "split": "train", "sentences": [{"raw": "a cat"}], "imgid": 1}
    image[rng.choice(list(image))] = rng.choice(VALUES)
    whole: Any = {"images": [image, {**image, "filename": "p2.png"}], "dataset": "x"}
    whole[rng.choice(("images", "dataset", "nothing"))] = rng.choice((whole["images"], *VALUES))
    text = json.dumps(whole)[: rng.choice((None, None, 40))]
    (scratch / "k.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    told = tell(
        [
            "encode",
            "--out",
            "new",
            "--karpathy",
            "k.json",
            "--images",
            base.root / "photos",
            "--scale",
            "tiny",
            *SETTINGS,
        ]
    )
    return text[:250], faults_of(told, "encode")


def asked_in_file(base: Base, rng: Random, scratch: Path) -> tuple[str, list[Fault]]:
    """Search for all queries of a bad file, or of bad features: all are answered, or there is no file of hits."""
    if rng.random() < 0.6:
        way, option = lines(scratch / "q.jsonl", rng), ("--queries", "q.jsonl")
    else:
        array: Any = np.random.default_rng(1).normal(size=(rng.choice((0, 1, 5)), rng.choice((3, 48, 256))))
        array[: rng.choice((0, 1))] = rng.choice((np.nan, np.inf, 0))
        option = ("--query-features", "q.npy")
        way = f"features {array.shape}"
        np.save(scratch / "q.npy", array)
    form = rng.choice(("jsonl", "trec"))
    told = tell(["search", "run", *option, "--out", "hits", "--format", form, "-k", "3"])
    faults = faults_of(told, "search --queries")
    if not faults and told.code == (scratch / "hits").exists():
        faults = [fault("silent", f"search --queries ends with {told.code} and {'a' if told.code else 'no'} file")]
    return way, faults


CASES: dict[str, Case] = {
    "items added": added,
    "collection": encoded,
    "features": features,
    "pictures": album,
    "queries": asked,
    "file of queries": asked_in_file,
    "captions": captioned,
}
