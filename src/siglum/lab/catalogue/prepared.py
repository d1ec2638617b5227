"""A catalogue in one file: its products and the features of its photographs and texts, to be taken anywhere.

The tasks are asked anew when it is read, so that the file holds every photograph and every wording once.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from siglum.data.catalogue import PRODUCTS, Catalogue, read_catalogue
from siglum.data.catalogue_tasks import Product
from siglum.data.collection import SPLITS, assemble
from siglum.data.omitted import Omission
from siglum.encode.parts import Parts, distinct, rows_of
from siglum.encode.registry import build_encoder
from siglum.encode.run import encode_parts
from siglum.files import atomic, fingerprint
from siglum.types import Features, SiglumError, Vectors

FORMAT = 1
SUFFIX = ".npz"
USUAL = "offline"
BROKEN = (OSError, EOFError, KeyError, TypeError, ValueError, zipfile.BadZipFile, zlib.error)


def is_catalogue(path: Path) -> bool:
    """Return whether a path is a folder of products or a file prepared from one."""
    return path.suffix == SUFFIX or (path / PRODUCTS).exists()


def prepared_file(data: Path, folder: Path, encoder_name: str = "", *, device: str = "cpu") -> Path:
    """Return the file of a catalogue: itself where it is one, else one made of it in a folder, unless it is there."""
    if data.suffix == SUFFIX:
        if encoder_name:
            raise SiglumError(f"{data} is encoded already, so that features {encoder_name!r} need the photographs.")
        return data
    name = encoder_name or USUAL
    out = folder / f"catalogue-{fingerprint(read_catalogue(data).identity(), name)}{SUFFIX}"
    prepare(data, out, name, device=device, workers=min(2, os.cpu_count() or 1))
    return out


def prepare(folder: Path, out: Path, encoder_name: str = USUAL, *, device: str = "cpu", workers: int = 1) -> None:
    """Encode the distinct photographs and texts of a folder into a file, unless it is there; a kill loses little."""
    if out.exists():
        return
    encoder = build_encoder(encoder_name, device=device)
    if encoder is None or not (encoder.image_dim and encoder.text_dim):
        raise SiglumError(f"encoder {encoder_name} does not make features of both photographs and texts.")
    catalogue, shards = read_catalogue(folder), out.with_suffix(".shards")
    parts = distinct(rows_of(catalogue.collection))
    features, omitted = encode_parts(parts, encoder, shards, identity=catalogue.identity(), workers=workers)
    found = Parts.of(parts, features, omitted)
    about = {
        "format": FORMAT,
        "encoder": encoder.name,
        "encoder_fingerprint": encoder.fingerprint(),
        "seed": catalogue.seed,
        "products": [asdict(product) for product in catalogue.products],
        "pictures": {str(Path(name).relative_to(folder)): row for name, row in found.pictures.items()},
        "texts": {name: row - int(features.has_image.sum()) for name, row in found.texts.items()},
        "lost": {str(Path(name).relative_to(folder)): why for name, why in found.lost.items()},
    }
    with atomic(out) as file:
        np.savez_compressed(
            file,
            about=np.frombuffer(json.dumps(about, ensure_ascii=False).encode(), np.uint8),
            image=features.image[features.has_image],
            text=features.text[features.has_text],
        )
    for path in shards.glob("*"):
        path.unlink()
    shards.rmdir()


def read_prepared(path: Path) -> tuple[Catalogue, Vectors, list[Omission]]:
    """Return the catalogue of a file, its vectors with the clusters of its queries, and what has no feature."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            about = json.loads(arrays["about"].tobytes())
            image_PD, text_TD = arrays["image"], arrays["text"]
        products = [Product(**record) for record in about["products"]]
        catalogue = Catalogue(Path(), products, about["seed"])
        parts = _parts(about, image_PD, text_TD)
    except BROKEN as error:
        raise SiglumError(f"{path} is no whole file of a prepared catalogue ({error}); prepare it again.") from error
    if about["format"] != FORMAT:
        raise SiglumError(f"{path} has format {about['format']}, but this version reads {FORMAT}; prepare it again.")
    unknown = [row.text for row in distinct(rows_of(catalogue.collection)) if row.text and row.text not in parts.texts]
    unknown = [text for text in unknown if text not in parts.lost]
    if unknown:
        raise SiglumError(f"{path} lacks {len(unknown):,} texts, such as {unknown[0]!r:.60}; prepare it again.")
    return catalogue, *vectors_of(catalogue, parts)


def _parts(about: dict[str, Any], image_PD: np.ndarray, text_TD: np.ndarray) -> Parts:
    pictures, texts = len(image_PD), len(text_TD)
    features = Features(
        [str(row) for row in range(pictures + texts)],
        np.concatenate([image_PD, np.zeros((texts, image_PD.shape[1]), image_PD.dtype)]),
        np.concatenate([np.zeros((pictures, text_TD.shape[1]), text_TD.dtype), text_TD]),
        np.arange(pictures + texts) < pictures,
        np.arange(pictures + texts) >= pictures,
    )
    return Parts(features, about["pictures"], {t: pictures + row for t, row in about["texts"].items()}, about["lost"])


def vectors_of(catalogue: Catalogue, parts: Parts) -> tuple[Vectors, list[Omission]]:
    """Put items and queries together; every query of a task knows its cluster."""
    collection, omitted = catalogue.collection, list[Omission]()
    asked = [(split, one) for split in SPLITS for one in catalogue.asked[split]]
    items = parts.gather(collection.items, omitted)
    queries = parts.gather([query for split in SPLITS for query in collection.queries.get(split, ())], omitted)
    here, encoded = set(items.ids), set(queries.ids)
    about = [
        (split, one.task, [item for item in one.positives if item in here]) for split, one in asked if one.id in encoded
    ]
    vectors = assemble(items, queries, about, collection.pools)
    cluster_of = {one.id: one.cluster for _, one in asked}
    names = np.array([cluster_of[name] for name in queries.ids])
    tasks = [replace(task, clusters=names[task.query_rows]) for task in vectors.tasks]
    return replace(vectors, tasks=tasks), omitted
