"""Stream a collection through an encoder into `1-vectors`: in shards, resumable, unreadable pictures counted."""

# Shapes: N rows, Di and Dt sizes of an image's and a text's feature.

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice, tee
from pathlib import Path

import numpy as np

from siglum.data.collection import SPLITS, Collection, assemble
from siglum.data.pictures import PictureError, stream_pictures
from siglum.data.vectors import load_vectors, save_vectors
from siglum.encode.base import Encoder, PairEncoder
from siglum.files import (
    STAGE_FILE,
    fingerprint,
    ids_from_arrays,
    ids_to_arrays,
    map_tensors,
    read_json,
    read_record,
    write_json,
    write_tensors,
)
from siglum.log import progress
from siglum.types import Features, Item, Query, SiglumError, Vectors

SHARD = 512
"""Rows of a shard file: what is encoded at once, what is decoded ahead, and what a kill can cost."""
STEP = 128
"""Rows between two words on how far the work is."""
PARTS = ("image", "text", "has_image", "has_text")
IDENTITY = "identity.json"
Row = Item | Query


@dataclass(slots=True)
class Encoded:
    """What encoding gave: the vectors, the stage's fingerprint, and how many pictures could not be read."""

    vectors: Vectors
    fingerprint: str
    skipped: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows and the shard file their features go to."""

    path: Path
    rows: Sequence[Row]
    start: int
    stop: int

    def __iter__(self) -> Iterator[Row]:
        return (self.rows[place] for place in range(self.start, self.stop))

    def __len__(self) -> int:
        return self.stop - self.start


def query_text(query: Query) -> str | None:
    """Return the text an encoder sees: the instruction, then the query's own words."""
    parts = [part for part in (query.instruction, query.text) if part]
    return " ".join(parts) if parts else None


def encode_rows(rows: Sequence[Row], encoder: Encoder, strict: bool, workers: int = 1) -> Features:
    """Encode some items or queries; rows whose picture cannot be read are left out (or refused, if strict)."""
    pictures = stream_pictures(
        (row.image for row in rows), encoder.picture_size, encoder.framing, workers=workers, ahead=SHARD
    )
    left = iter(rows)
    with closing(pictures):
        starts = range(0, max(len(rows), 1), SHARD)
        shards = [_encode(list(islice(left, SHARD)), pictures, encoder, strict) for _ in starts]
    ids = [name for shard in shards for name in shard.ids]
    return Features(ids, *(np.concatenate([getattr(shard, part) for shard in shards]) for part in PARTS))


def _encode(
    rows: Sequence[Row], pictures: Iterator[np.ndarray | PictureError | None], encoder: Encoder, strict: bool
) -> Features:
    """Encode rows whose pictures come from a stream."""
    kept: list[Row] = []
    pixels: list[np.ndarray | None] = []
    for row, picture in zip(rows, pictures, strict=False):
        if isinstance(picture, PictureError):
            if strict:
                raise picture
            continue
        kept.append(row)
        pixels.append(picture)
    texts = [query_text(row) if isinstance(row, Query) else row.text for row in kept]
    has_image, has_text = (np.array([part is not None for part in parts], bool) for parts in (pixels, texts))
    image = np.zeros((len(kept), encoder.image_dim), np.float16)
    text = np.zeros((len(kept), encoder.text_dim), np.float16)
    if isinstance(encoder, PairEncoder) and kept:
        rows_ND = encoder.encode_pairs(texts, pixels)
        image[has_image], text[has_text] = rows_ND[has_image], rows_ND[has_text]
    else:
        if has_image.any():
            image[has_image] = encoder.encode_images([picture for picture in pixels if picture is not None])
        if has_text.any():
            text[has_text] = encoder.encode_texts([words for words in texts if words is not None])
    return Features([row.id for row in kept], image, text, has_image, has_text)


def encode_collection(
    collection: Collection,
    encoder: Encoder,
    folder: Path,
    *,
    identity: str,
    strict: bool = False,
    resume: bool = False,
    workers: int = 1,
) -> Encoded:
    """Encode items and queries into `folder` (the `1-vectors` stage) and return what came of it.

    With `resume` shards that are there already, by a killed run or by `encode_shard`, are not encoded again; `workers`
    threads decode pictures. Memory holds one shard's pictures, as many decoded ahead, and every feature once.
    """
    mark, shards = _mark(identity, encoder), folder / "checkpoint"
    if resume and _is_finished(folder, mark):
        vectors, own = load_vectors(folder)
        return Encoded(vectors, own, read_record(folder / STAGE_FILE, "skipped")["skipped"])
    items, queries = _plan(collection, shards)
    _claim(shards, mark, keep=resume)
    for name, pieces in (("items", items), ("queries", queries)):
        _encode_missing(pieces, encoder, strict, workers, f"encode {name}")
    vectors = _assemble(collection, _join(items, encoder), _join(queries, encoder))
    skipped = sum(map(len, [*items, *queries])) - len(vectors.items) - len(vectors.queries)
    if strict and skipped:
        raise SiglumError(f"{skipped} rows of {folder} were skipped before; encode without --resume to see which.")
    facts = {"encoder": encoder.name, "encoder_fingerprint": encoder.fingerprint(), "joint": encoder.joint}
    own = save_vectors(folder, vectors, {"collection": mark}, skipped=skipped, **facts)
    _clear(shards)
    return Encoded(vectors, own, skipped)


def encode_shard(
    collection: Collection,
    encoder: Encoder,
    folder: Path,
    *,
    identity: str,
    shard: tuple[int, int],
    strict: bool = False,
    workers: int = 1,
) -> int:
    """Encode part i of n (from 1) of a collection and return how many rows were new; no stage is written.

    Several processes may do their parts in one folder at the same time, and any of them again after a kill; then
    `encode_collection` with `resume` joins what they left.
    """
    number, count = shard
    if not 1 <= number <= count:
        raise SiglumError(f"the shard is {number}/{count}, but must be i/n with i from 1 to n.")
    mark, shards = _mark(identity, encoder), folder / "checkpoint"
    if _is_finished(folder, mark):
        return 0
    items, queries = _plan(collection, shards)
    _claim(shards, mark, keep=True)
    return _encode_missing([*items, *queries][number - 1 :: count], encoder, strict, workers)


def _mark(identity: str, encoder: Encoder) -> str:
    return fingerprint(identity, encoder.fingerprint())


def _is_finished(folder: Path, mark: str) -> bool:
    path = folder / STAGE_FILE
    return path.exists() and read_record(path, "inputs")["inputs"].get("collection") == mark


def _claim(shards: Path, mark: str, *, keep: bool) -> None:
    """Say whose shards the folder holds; what is kept must be of the same collection and encoder."""
    path = shards / IDENTITY
    if not keep:
        _clear(shards)
    if not path.exists():
        write_json(path, {"identity": mark})
    elif read_json(path) != {"identity": mark}:
        raise SiglumError(
            f"{shards.parent} holds shards of another collection or encoder; start without --resume and --shard."
        )


def _clear(shards: Path) -> None:
    # The identity goes last: shards must never lie there without it.
    for path in sorted(shards.glob("*"), key=lambda path: path.name == IDENTITY):
        path.unlink(missing_ok=True)
    with suppress(OSError):
        shards.rmdir()


def _plan(collection: Collection, shards: Path) -> tuple[list[Piece], list[Piece]]:
    """Return the pieces of items and of queries."""

    def cut(name: str, rows: Sequence[Row]) -> list[Piece]:
        return [
            Piece(shards / f"{name}-{number:06d}.safetensors", rows, start, min(start + SHARD, len(rows)))
            for number, start in enumerate(range(0, len(rows), SHARD))
        ]

    items = cut("items", collection.items)
    queries = [piece for split in SPLITS for piece in cut(f"queries-{split}", collection.queries.get(split, []))]
    for name, pieces in (("items", items), ("queries", queries)):
        if not pieces:
            raise SiglumError(f"there are no {name} to encode.")
    return items, queries


def _encode_missing(
    pieces: Iterable[Piece], encoder: Encoder, strict: bool, workers: int, label: str = "encode"
) -> int:
    """Encode the pieces whose file is not there and return their number of rows."""
    missing = [piece for piece in pieces if not piece.path.exists()]
    total = sum(map(len, missing))
    # One stream over all pieces, so that pictures of the next one are decoded while this one is encoded.
    rows, ahead = tee(row for piece in missing for row in piece)
    pictures = stream_pictures(
        (row.image for row in ahead), encoder.picture_size, encoder.framing, workers=workers, ahead=SHARD
    )
    with closing(pictures):
        steps = [(piece, start) for piece in missing for start in range(0, len(piece), STEP)]
        done: list[Features] = []
        for piece, start in progress(steps, label, total=total, unit="row", size=STEP):
            done.append(_encode(list(islice(rows, min(STEP, len(piece) - start))), pictures, encoder, strict))
            if start + STEP >= len(piece):
                arrays = {part: np.concatenate([getattr(some, part) for some in done]) for part in PARTS}
                write_tensors(piece.path, arrays | ids_to_arrays([name for some in done for name in some.ids]))
                done = []
    return total


def _join(pieces: Sequence[Piece], encoder: Encoder) -> Features:
    """Read shards into arrays made once, so that memory holds every feature once."""
    total, ids = sum(map(len, pieces)), list[str]()
    joined: Mapping[str, np.ndarray] = {
        "image": np.empty((total, encoder.image_dim), np.float16),
        "text": np.empty((total, encoder.text_dim), np.float16),
        "has_image": np.empty(total, bool),
        "has_text": np.empty(total, bool),
    }
    for piece in pieces:
        shard = map_tensors(piece.path)
        start = len(ids)
        ids += ids_from_arrays(shard["id_bytes"], shard["id_offsets"])
        for part in PARTS:
            joined[part][start : len(ids)] = shard[part]
    return Features(ids, *(joined[part][: len(ids)] for part in PARTS))


def _assemble(collection: Collection, items: Features, queries: Features) -> Vectors:
    """Join features with positives and pools; items whose picture could not be read are left out of both."""
    here, lost = set(items.ids), len(items) < len(collection.items)
    about: list[tuple[str, str, Sequence[str]]] = []
    asked = ((split, query) for split in SPLITS for query in collection.queries.get(split, ()))
    for split, query in asked:
        # Features keep the order of queries and lack those that were skipped.
        if len(about) < len(queries) and query.id == queries.ids[len(about)]:
            about.append((split, query.task, [p for p in query.positives if not lost or p in here]))
    return assemble(items, queries, about, collection.pools)
