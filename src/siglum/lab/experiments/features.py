"""Other features for the same data: what the experiment on encoders compares.

A name says which: for the world an encoder (`builtin`, `offline`, ... as in `siglum encode`), for a folder of captions
`given`, `words` (hashed word n-grams of the captions) or NAME for its file text_features_NAME.npy.
`@64` behind it keeps the first 64 principal components of the texts, fitted on training rows.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from siglum.data.jsonl import scan_lines
from siglum.encode.base import Encoder
from siglum.encode.builtin import BuiltinEncoder
from siglum.encode.registry import build_encoder
from siglum.types import Features, SiglumError, Vectors

GIVEN, WORDS = "given", "words"


def split_name(features: str) -> tuple[str, int]:
    """Return the name and the number of components, 0 for all.

    >>> split_name("builtin@64"), split_name("given")
    (('builtin', 64), ('given', 0))
    """
    name, at, size = features.partition("@")
    if at and not (size.isdigit() and int(size) > 0):
        raise SiglumError(f"features {features!r} must end in a number of components, such as @64.")
    return name, int(size or 0)


def encoder_of(features: str, device: str) -> Encoder:
    """Return the encoder of the world that a name asks for; empty is the built-in one."""
    found = build_encoder(split_name(features)[0] or "builtin", device=device)
    if found is None:
        raise SiglumError(f"features {features!r} name no encoder; the world needs one.")
    return found


def features_file(folder: Path, name: str) -> Path:
    """Return where a folder keeps other features of its texts."""
    return folder / f"text_features_{name}.npy"


def folder_features(vectors: Vectors, folder: Path, features: str) -> Vectors:
    """Return a folder's data with other features of its texts."""
    name, _ = split_name(features)
    if name == WORDS:
        texts = [str(row.get("text") or "") for _, _, row in scan_lines(folder / "captions.jsonl")]
        if not all(text.strip() for text in texts):
            raise SiglumError(f"{folder / 'captions.jsonl'} has rows without text, so that words cannot be hashed.")
        rows = BuiltinEncoder().encode_texts(texts)
    elif name in (GIVEN, ""):
        return reduced(vectors, features)
    else:
        path = features_file(folder, name)
        if not path.exists():
            raise SiglumError(
                f"{folder} has no {path.name}; features are {GIVEN}, {WORDS} or the NAME of text_features_NAME.npy."
            )
        rows = np.load(path, allow_pickle=False)
    return reduced(_with_texts(vectors, rows), features)


def _with_texts(vectors: Vectors, text_CD: np.ndarray) -> Vectors:
    """Put other text features in place; items and queries have the captions in the same order."""

    def swap(part: Features) -> Features:
        if int(part.has_text.sum()) != len(text_CD):
            raise SiglumError(f"there are {len(text_CD)} text features for {int(part.has_text.sum())} captions.")
        text = np.zeros((len(part), text_CD.shape[1]), np.float32)
        text[part.has_text] = text_CD
        return replace(part, text=text)

    return replace(vectors, items=swap(vectors.items), queries=swap(vectors.queries))


def reduced(vectors: Vectors, features: str) -> Vectors:
    """Keep the first principal components of the texts, where the name asks for it."""
    _, size = split_name(features)
    if not size:
        return vectors
    known = vectors.items.rows(np.unique(vectors.pair_item)), vectors.queries.rows(np.unique(vectors.pair_query))
    text_CD = np.concatenate([part.text[part.has_text] for part in known]).astype(np.float32)
    if size >= text_CD.shape[1]:
        raise SiglumError(f"features {features!r} ask for {size} of {text_CD.shape[1]} components; ask for fewer.")
    middle = text_CD.mean(0)
    spread_DD = np.cov(text_CD - middle, rowvar=False)
    axes_DK = np.linalg.eigh(spread_DD)[1][:, ::-1][:, :size].astype(np.float32)

    def shrink(part: Features) -> Features:
        text = (part.text.astype(np.float32) - middle) @ axes_DK
        return replace(part, text=np.where(part.has_text[:, None], text, 0.0).astype(np.float32))

    return replace(vectors, items=shrink(vectors.items), queries=shrink(vectors.queries))
