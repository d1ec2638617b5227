"""The built-in encoder: hashed words and plain picture statistics, without a download.

It stands in for a pretrained encoder where none can be fetched; it is no competitor to one. Texts become signed
hashed word n-grams, pictures become patch means, contrasts, edge directions and colours. Shapes: N inputs, S pixels
a side.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from math import cos, sin

import numpy as np

from siglum.files import fingerprint
from siglum.types import SiglumError

VERSION = 1
"""Rises whenever the features change."""
PATCHES, CONTRAST_CELLS, EDGE_CELLS, DIRECTIONS, COLOUR_CELLS, HUES = 4, 12, 6, 6, 3, 8
"""Cells a side of each grid, and the number of directions and hues told apart."""
TUNING, GRAIN = 0.8, 0.015
"""An edge counts for a direction by what exceeds this share of its strength, and this much of grain."""
FLOOR = 0.10
"""Differences of colour below this are taken for shading."""
CHUNK = 64
"""Pictures worked on at once; bounds memory and does not change results."""


class BuiltinEncoder:
    """Hashed n-grams for texts, patch, colour and edge statistics for pictures; deterministic and training-free.

    >>> encoder = BuiltinEncoder()
    >>> encoder.encode_texts(["a red circle", "a blue star"]).shape
    (2, 512)
    """

    name = "builtin"
    joint = False
    picture_size = 48
    framing = "whole"
    text_dim = 512
    image_dim = 3 + 3 * PATCHES**2 + CONTRAST_CELLS**2 + DIRECTIONS * EDGE_CELLS**2 + (HUES + 2) * COLOUR_CELLS**2

    def __init__(self) -> None:
        """Start with an empty cache of word hashes."""
        self._words: dict[str, int] = {}

    def fingerprint(self) -> str:
        """Return 16 hex digits that change when the features would."""
        return fingerprint(self.name, VERSION, self.picture_size, self.text_dim, self.image_dim)

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        """Return unit rows of signed hashed word n-grams, n = 1 to 3, float32 (N, Dt); an empty text is a zero row."""
        sentences = [self._hash_words(text) for text in texts]
        rows = np.repeat(np.arange(len(texts)), [len(sentence) for sentence in sentences])
        words = np.array([word for sentence in sentences for word in sentence], np.uint64)
        counts = np.zeros(len(texts) * self.text_dim)
        grams = np.zeros_like(words)
        for order, weight in enumerate((1.0, 0.7, 0.5)):
            # A gram's hash is its words' hashes mixed in order; it exists where all its words are of one text.
            grams = _mix(grams[: len(words) - order]) + words[order:]
            whole = rows[: len(rows) - order] == rows[order:]
            hashes, owners = _mix(grams[whole]), rows[order:][whole]
            signs = np.where(hashes >> np.uint64(63), weight, -weight)
            places = owners * self.text_dim + (hashes % np.uint64(self.text_dim)).astype(np.int64)
            counts += np.bincount(places, signs, len(counts))
        return _unit_rows(counts.reshape(len(texts), self.text_dim))

    def _hash_words(self, text: str) -> list[int]:
        found = []
        for word in re.findall(r"\w+", text.lower()):
            if word not in self._words:
                self._words[word] = int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "little")
            found.append(self._words[word])
        return found

    def encode_images(self, pictures: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        """Return statistics of uint8 pictures (height, width, 3), float32 (N, Di); other sizes are resampled first."""
        features = np.zeros((len(pictures), self.image_dim), np.float32)
        for start in range(0, len(pictures), CHUNK):
            chunk = [resample(picture, self.picture_size) for picture in pictures[start : start + CHUNK]]
            features[start : start + CHUNK] = _describe(np.stack(chunk))
        return features


def _mix(hashes: np.ndarray) -> np.ndarray:
    """Scramble 64-bit hashes so that neighbours part (multiply and fold)."""
    mixed = (hashes ^ (hashes >> np.uint64(31))) * np.uint64(0x9E3779B97F4A7C15)
    folded: np.ndarray = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xD6E8FEB86659FD93)
    return folded


def _unit_rows(rows: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    unit: np.ndarray = (rows / np.maximum(norms, 1e-12)).astype(np.float32)
    return unit


def resample(picture: np.ndarray, size: int) -> np.ndarray:
    """Return the picture at size by size: a copy of itself, or the mean over each target pixel's box."""
    if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8 or 0 in picture.shape:
        raise SiglumError(f"a picture must be uint8 (height, width, 3), but one is {picture.dtype} {picture.shape}.")
    if picture.shape[:2] == (size, size):
        return picture
    shrunk = picture.astype(np.float32)
    for axis in (0, 1):
        shrunk = np.moveaxis(np.tensordot(_box_weights(picture.shape[axis], size), shrunk, (1, axis)), 0, axis)
    return np.rint(shrunk).astype(np.uint8)


def _box_weights(old: int, new: int) -> np.ndarray:
    """Return how much of every old pixel lies in every new one, rows summing to 1, float32 (new, old)."""
    edges_new, edges_old = np.arange(new + 1) * (old / new), np.arange(old + 1)
    ends = np.minimum(edges_new[1:, None], edges_old[None, 1:])
    starts = np.maximum(edges_new[:-1, None], edges_old[None, :-1])
    weights: np.ndarray = (np.clip(ends - starts, 0.0, None) * (new / old)).astype(np.float32)
    return weights


def _describe(pictures: np.ndarray) -> np.ndarray:
    """Return background, patch, contrast, edge and colour statistics of uint8 (N, S, S, 3), float32 (N, Di)."""
    planes_N3SS = np.ascontiguousarray(pictures.transpose(0, 3, 1, 2), np.float32) / np.float32(255.0)
    ground_N3 = np.median(planes_N3SS[:, :, ::3, ::3].reshape(len(pictures), 3, -1), axis=2)
    shifted = planes_N3SS - ground_N3[:, :, None, None]
    contrast = np.sqrt((shifted * shifted).sum(axis=1))
    # Fixed weights that give every part a like say and a row about the length of a text's.
    parts = [1.5 * (ground_N3 - 0.8), 1.3 * _pool(shifted, PATCHES), 0.3 * _pool(contrast, CONTRAST_CELLS)]
    parts += [1.2 * _edges(planes_N3SS.mean(axis=1)), 0.75 * _colours(shifted)]
    return np.concatenate([part.reshape(len(pictures), -1) for part in parts], axis=1)


def _pool(planes: np.ndarray, cells: int) -> np.ndarray:
    """Return means over a grid of cells, (..., S, S) to (..., cells, cells)."""
    *lead, side, _ = planes.shape
    step = side // cells
    rows = planes.reshape(*lead, cells, step, side).sum(axis=-2)
    pooled: np.ndarray = rows.reshape(*lead, cells, cells, step).sum(axis=-1) / np.float32(step * step)
    return pooled


def _edges(grey_NSS: np.ndarray) -> np.ndarray:
    """Return the strength of edges by direction and cell, square-rooted, (N, DIRECTIONS, cells, cells)."""
    padded = np.pad(grey_NSS, ((0, 0), (1, 1), (1, 1)), mode="edge")
    across, down = padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2], padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1]
    floor = np.float32(TUNING) * np.hypot(across, down) + np.float32(GRAIN)
    steered = (np.abs(plane) for plane in _steer(across, down, DIRECTIONS, np.pi))
    return np.stack([np.sqrt(_pool(np.maximum(plane - floor, 0.0), EDGE_CELLS)) for plane in steered], axis=1)


def _colours(shifted: np.ndarray) -> np.ndarray:
    """Return how far each cell leaves the background, by hue and to light and dark, (N, HUES + 2, cells, cells)."""
    red, green, blue = shifted[:, 0], shifted[:, 1], shifted[:, 2]
    hues = _steer(red - 0.5 * (green + blue), 0.866 * (green - blue), HUES, 2.0 * np.pi)
    tone = (red + green + blue) / np.float32(3.0)
    strengths = (np.maximum(plane - np.float32(FLOOR), 0.0) for plane in (*hues, tone, -tone))
    return np.stack([np.sqrt(_pool(plane, COLOUR_CELLS)) for plane in strengths], axis=1)


def _steer(x: np.ndarray, y: np.ndarray, count: int, span: float) -> Iterator[np.ndarray]:
    """Yield the field (x, y) along `count` directions that share `span` radians evenly."""
    for i in range(count):
        yield x * np.float32(cos(i * span / count)) + y * np.float32(sin(i * span / count))


def build(model: str, **settings: object) -> BuiltinEncoder:
    """Return the encoder; it has one model and runs on the CPU, whatever the settings."""
    return BuiltinEncoder()
