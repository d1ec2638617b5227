"""Stream a collection through an encoder into `1-vectors`: in shards, resumable, what gives no feature is named."""

# Shapes: N rows, Di and Dt sizes of an image's and a text's feature.

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import islice, tee
from pathlib import Path

import numpy as np

from siglum.data.collection import SPLITS, Collection, assemble
from siglum.data.fields import fields_in_order
from siglum.data.omitted import Omission, Part
from siglum.data.pictures import PictureError, stream_pictures
from siglum.data.vectors import load_vectors, save_vectors
from siglum.encode.base import Encoder, PairEncoder
from siglum.encode.parts import Parts, Row, distinct, kind_of, rows_of, text_of
from siglum.files import (
    STAGE_FILE,
    fingerprint,
    ids_from_arrays,
    ids_to_arrays,
    map_tensors,
    read_json,
    read_record,
    read_stage,
    write_json,
    write_tensors,
)
from siglum.log import progress
from siglum.types import Features, Item, SiglumError, Vectors

SHARD = 512
"""Rows of a shard file: what is encoded at once, what is decoded ahead, and what a kill can cost."""
STEP = 128
"""Rows between two words on how far the work is."""
PARTS = ("image", "text", "has_image", "has_text")
IDENTITY = "identity.json"


@dataclass(slots=True)
class Encoded:
    """What encoding gave: the vectors, the stage's fingerprint, and what was left out."""

    vectors: Vectors
    fingerprint: str
    skipped: int
    """Number of rows without a feature: their pictures cannot be read, or no word of theirs is known."""
    omitted: list[Omission] = field(default_factory=list)
    """Those rows by name, and rows that lost one of two parts."""


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


def encode_rows(rows: Sequence[Row], encoder: Encoder, strict: bool, workers: int = 1) -> Features:
    """Encode some items or queries; rows that give no feature are left out (or refused, if strict)."""
    return encode_some(rows, encoder, strict, workers)[0]


def encode_some(
    rows: Sequence[Row], encoder: Encoder, strict: bool, workers: int = 1
) -> tuple[Features, list[Omission]]:
    """Encode some items or queries and return what was left out beside them."""
    pictures = stream_pictures(
        (row.image for row in rows), encoder.picture_size, encoder.framing, workers=workers, ahead=SHARD
    )
    left, omitted = iter(rows), list[Omission]()
    with closing(pictures):
        starts = range(0, max(len(rows), 1), SHARD)
        shards = [_encode(list(islice(left, SHARD)), pictures, encoder, strict, omitted) for _ in starts]
    ids = [name for shard in shards for name in shard.ids]
    return Features(ids, *(np.concatenate([getattr(shard, part) for shard in shards]) for part in PARTS)), omitted


def _encode(
    rows: Sequence[Row],
    pictures: Iterator[np.ndarray | PictureError | None],
    encoder: Encoder,
    strict: bool,
    omitted: list[Omission],
) -> Features:
    """Encode rows whose pictures come from a stream; what gives no feature goes to `omitted`."""
    kept: list[Row] = []
    pixels: list[np.ndarray | None] = []
    for row, picture in zip(rows, pictures, strict=False):
        if isinstance(picture, PictureError):
            if strict:
                raise picture
            omitted.append(Omission(kind_of(row), row.id, "row", str(picture)))
            continue
        kept.append(row)
        pixels.append(picture)
    texts = [text_of(row) for row in kept]
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
    features = Features([row.id for row in kept], image, text, has_image, has_text)
    return _without_zeros(features, kept, encoder.name, strict, omitted)


def _without_zeros(
    features: Features, rows: Sequence[Row], encoder: str, strict: bool, omitted: list[Omission]
) -> Features:
    """Return features without parts that are all zero, from which nothing could be told, and rows without a part."""
    text, image = features.has_text & features.text.any(1), features.has_image & features.image.any(1)
    there = text | image
    lost: dict[Part, np.ndarray] = {"text": features.has_text & ~text, "image": features.has_image & ~image}
    for part, where in lost.items():
        for place in np.flatnonzero(where).tolist():
            row = rows[place]
            why = (
                f"the text {text_of(row)!r:.60} has no words this encoder knows ({encoder}); put it in other words."
                if part == "text"
                else f"the picture of {row.id!r} shows nothing this encoder can tell ({encoder}); leave it out."
            )
            if strict:
                raise SiglumError(why)
            omitted.append(Omission(kind_of(row), row.id, part if there[place] else "row", why))
    found = replace(features, has_text=text, has_image=image)
    return found if there.all() else found.rows(np.flatnonzero(there))


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
    encoding, shards = encoding_fingerprint(identity, encoder), folder / "checkpoint"
    if resume and _is_finished(folder, encoding):
        vectors, own = load_vectors(folder)
        return Encoded(vectors, own, read_record(folder / STAGE_FILE, "skipped")["skipped"], read_omitted(folder))
    plan = _plan(collection, shards, encoder)
    _claim(shards, encoding, keep=resume)
    for name, pieces in plan.items():
        _encode_missing(pieces, encoder, strict, workers, f"encode {name}")
    omitted: list[Omission] = []
    if _shares(collection, encoder):
        joined, omitted = _regather(collection, _join(_all(plan), encoder, omitted), omitted)
    else:
        joined = [_join(pieces, encoder, omitted) for pieces in plan.values()]
    vectors = _assemble(collection, *joined)
    rows = len(collection.items) + sum(map(len, collection.queries.values()))
    skipped = rows - len(vectors.items) - len(vectors.queries)
    if strict and skipped:
        raise SiglumError(f"{skipped} rows of {folder} were skipped before; encode without --resume to see which.")
    facts = {"encoder": encoder.name, "encoder_fingerprint": encoder.fingerprint(), "joint": encoder.joint}
    named = [asdict(entry) for entry in omitted]
    fields = fields_in_order(collection.items, vectors.items.ids)
    own = save_vectors(folder, vectors, {"collection": encoding}, fields, skipped=skipped, omitted=named, **facts)
    _clear(shards)
    return Encoded(vectors, own, skipped, omitted)


def read_omitted(folder: Path) -> list[Omission]:
    """Return what encoding left out of a finished `1-vectors` stage; nothing where that was not recorded yet."""
    return [Omission(**entry) for entry in read_record(folder / STAGE_FILE).get("omitted", [])]


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
    encoding, shards = encoding_fingerprint(identity, encoder), folder / "checkpoint"
    if _is_finished(folder, encoding):
        return 0
    plan = _plan(collection, shards, encoder)
    _claim(shards, encoding, keep=True)
    return _encode_missing(_all(plan)[number - 1 :: count], encoder, strict, workers)


def encoding_fingerprint(identity: str, encoder: Encoder) -> str:
    """Return what the stage records of its collection: which one it is, and what encodes it."""
    return fingerprint(identity, encoder.fingerprint())


def _is_finished(folder: Path, encoding: str) -> bool:
    path = folder / STAGE_FILE
    return path.exists() and read_stage(folder)["inputs"].get("collection") == encoding


def _claim(shards: Path, encoding: str, *, keep: bool) -> None:
    """Say whose shards the folder holds; what is kept must be of the same collection and encoder."""
    path = shards / IDENTITY
    if not keep:
        _clear(shards)
    if not path.exists():
        write_json(path, {"identity": encoding})
    elif read_json(path) != {"identity": encoding}:
        raise SiglumError(
            f"{shards.parent} holds shards of another collection or encoder; start without --resume and --shard."
        )


def _clear(shards: Path) -> None:
    # The identity goes last: shards must never lie there without it.
    for path in sorted(shards.glob("*"), key=lambda path: path.name == IDENTITY):
        path.unlink(missing_ok=True)
    with suppress(OSError):
        shards.rmdir()


def _plan(collection: Collection, shards: Path, encoder: Encoder) -> dict[str, list[Piece]]:
    """Return the pieces of items and of queries, or of the pictures and texts they share."""
    if _shares(collection, encoder):
        return _plan_parts(shards, distinct(rows_of(collection)))
    queries = [
        piece for split in SPLITS for piece in _cut(shards, f"queries-{split}", collection.queries.get(split, []))
    ]
    plan = {"items": _cut(shards, "items", collection.items), "queries": queries}
    for name, pieces in plan.items():
        if not pieces:
            raise SiglumError(f"there are no {name} to encode.")
    return plan


def _shares(collection: Collection, encoder: Encoder) -> bool:
    """Whether rows are put together from pictures and texts that are each encoded once."""
    return collection.shared and not isinstance(encoder, PairEncoder)


def _plan_parts(shards: Path, parts: Sequence[Item]) -> dict[str, list[Piece]]:
    """Return the pieces of pictures, then those of texts, which take another time each."""
    kinds = {"pictures": [part for part in parts if part.image is not None]}
    kinds["texts"] = [part for part in parts if part.image is None]
    return {name: _cut(shards, name, some) for name, some in kinds.items()}


def _all(plan: Mapping[str, Sequence[Piece]]) -> list[Piece]:
    return [piece for pieces in plan.values() for piece in pieces]


def _cut(shards: Path, name: str, rows: Sequence[Row]) -> list[Piece]:
    return [
        Piece(shards / f"{name}-{number:06d}.safetensors", rows, start, min(start + SHARD, len(rows)))
        for number, start in enumerate(range(0, len(rows), SHARD))
    ]


def _regather(
    collection: Collection, features: Features, lost: list[Omission]
) -> tuple[list[Features], list[Omission]]:
    """Put items and queries together from the features of their parts; return what they lack beside them."""
    parts = Parts.of(distinct(rows_of(collection)), features, lost)
    queries = [query for split in SPLITS for query in collection.queries.get(split, ())]
    omitted: list[Omission] = []
    return [parts.gather(collection.items, omitted), parts.gather(queries, omitted)], omitted


def encode_parts(
    parts: Sequence[Item], encoder: Encoder, folder: Path, *, identity: str, workers: int = 1
) -> tuple[Features, list[Omission]]:
    """Encode pictures and texts into shards of a folder, going on where a kill left them, and return all features.

    The shards stay; the caller removes the folder once the features are kept.
    """
    _claim(folder, encoding_fingerprint(identity, encoder), keep=True)
    plan, omitted = _plan_parts(folder, parts), list[Omission]()
    for name, pieces in plan.items():
        _encode_missing(pieces, encoder, False, workers, f"encode {name}")
    return _join(_all(plan), encoder, omitted), omitted


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
        omitted: list[Omission] = []
        for piece, start in progress(steps, label, total=total, unit="row", size=STEP):
            done.append(_encode(list(islice(rows, min(STEP, len(piece) - start))), pictures, encoder, strict, omitted))
            if start + STEP >= len(piece):
                arrays = {part: np.concatenate([getattr(some, part) for some in done]) for part in PARTS}
                arrays["omitted"] = np.frombuffer(json.dumps([asdict(entry) for entry in omitted]).encode(), np.uint8)
                write_tensors(piece.path, arrays | ids_to_arrays([name for some in done for name in some.ids]))
                done, omitted = [], []
    return total


def _join(pieces: Sequence[Piece], encoder: Encoder, omitted: list[Omission]) -> Features:
    """Read shards into arrays made once, so that memory holds every feature once; `omitted` gets what they lack."""
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
        if "omitted" in shard:  # shards written by an older version have none
            omitted += [Omission(**entry) for entry in json.loads(bytes(shard["omitted"]))]
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
