"""Stream a collection through an encoder into `1-vectors`: in shards, resumable, unreadable pictures counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from siglum.data.collection import SPLITS, Collection, assemble
from siglum.data.pictures import load_pictures
from siglum.data.vectors import save_vectors
from siglum.encode.base import Encoder
from siglum.files import fingerprint, ids_from_arrays, ids_to_arrays, read_json, read_tensors, write_json, write_tensors
from siglum.log import progress
from siglum.types import Features, Item, Query, SiglumError, Vectors

SHARD = 2048


@dataclass(slots=True)
class Encoded:
    """What encoding gave: the vectors, the stage's fingerprint, and how many pictures could not be read."""

    vectors: Vectors
    fingerprint: str
    skipped: int


def query_text(query: Query) -> str | None:
    """Return the text an encoder sees: the instruction, then the query's own words."""
    parts = [part for part in (query.instruction, query.text) if part]
    return " ".join(parts) if parts else None


def encode_rows(rows: Sequence[Item | Query], encoder: Encoder, strict: bool) -> Features:
    """Encode some items or queries; rows whose picture cannot be read are left out (or refused, if strict)."""
    texts = [query_text(row) if isinstance(row, Query) else row.text for row in rows]
    with_picture = [place for place, row in enumerate(rows) if row.image is not None]
    pictures, readable = load_pictures([rows[place].image for place in with_picture], encoder.picture_size, strict)  # type: ignore[misc]
    keep = np.ones(len(rows), bool)
    keep[[place for place, ok in zip(with_picture, readable, strict=True) if not ok]] = False
    image = np.zeros((len(rows), encoder.image_dim), np.float16)
    text = np.zeros((len(rows), encoder.text_dim), np.float16)
    has_image, has_text = np.zeros(len(rows), bool), np.array([t is not None for t in texts])
    good = [place for place, ok in zip(with_picture, readable, strict=True) if ok]
    if good:
        image[good] = encoder.encode_images(pictures)
        has_image[good] = True
    if has_text.any():
        text[has_text] = encoder.encode_texts([t for t in texts if t is not None])
    places = np.flatnonzero(keep)
    return Features([row.id for row in rows], image, text, has_image, has_text).rows(places)


def _encode_sharded(
    name: str, rows: Sequence[Item | Query], encoder: Encoder, folder: Path, strict: bool
) -> tuple[Features, int]:
    """Encode shard by shard; a shard that is already there is not encoded again."""
    parts = []
    starts = range(0, len(rows), SHARD)
    for number, start in enumerate(progress(starts, f"encode {name}", total=len(rows), unit="row", size=SHARD)):
        path = folder / f"{name}-{number:06d}.safetensors"
        if not path.exists():
            stop = min(start + SHARD, len(rows))
            shard = encode_rows([rows[i] for i in range(start, stop)], encoder, strict)
            arrays = {part: getattr(shard, part) for part in ("image", "text", "has_image", "has_text")}
            write_tensors(path, arrays | ids_to_arrays(shard.ids))
        parts.append(read_tensors(path))
    if not parts:
        raise SiglumError(f"there are no {name} to encode.")
    joined = {
        part: np.concatenate([shard[part] for shard in parts]) for part in ("image", "text", "has_image", "has_text")
    }
    ids = [i for shard in parts for i in ids_from_arrays(shard["id_bytes"], shard["id_offsets"])]
    features = Features(
        ids, joined["image"], joined["text"], joined["has_image"].astype(bool), joined["has_text"].astype(bool)
    )
    return features, len(rows) - len(ids)


def encode_collection(
    collection: Collection, encoder: Encoder, folder: Path, *, identity: str, strict: bool = False, resume: bool = False
) -> Encoded:
    """Encode items and queries into `folder` (the `1-vectors` stage) and return what came of it."""
    shards = folder / "checkpoint"
    mark = {"identity": fingerprint(identity, encoder.fingerprint())}
    if not resume or not (shards / "identity.json").exists():
        _clear(shards)
        write_json(shards / "identity.json", mark)
    elif read_json(shards / "identity.json") != mark:
        raise SiglumError(f"{folder} holds shards of another collection or encoder; start without --resume.")
    items, lost_items = _encode_sharded("items", collection.items, encoder, shards, strict)
    here = set(items.ids)
    parts, about, lost = [], [], lost_items
    for split in SPLITS:
        queries = collection.queries.get(split, [])
        if not len(queries):
            continue
        features, gone = _encode_sharded(f"queries-{split}", queries, encoder, shards, strict)
        lost += gone
        parts.append(features)
        known = {query.id: query for query in queries}
        about += [
            (split, known[i].task, [p for p in known[i].positives if not lost_items or p in here]) for i in features.ids
        ]
    pools = {key: [i for i in ids if i in here] for key, ids in collection.pools.items()}
    vectors = assemble(items, _join(parts), about, pools)
    mark_of = save_vectors(
        folder, vectors, {"collection": mark["identity"]}, encoder=encoder.name, joint=encoder.joint, skipped=lost
    )
    _clear(shards)
    return Encoded(vectors, mark_of, lost)


def _join(parts: list[Features]) -> Features:
    arrays = [
        np.concatenate([getattr(part, name) for part in parts]) for name in ("image", "text", "has_image", "has_text")
    ]
    return Features([i for part in parts for i in part.ids], *arrays)


def _clear(folder: Path) -> None:
    for path in folder.glob("*") if folder.exists() else []:
        path.unlink()
    if folder.exists():
        folder.rmdir()
