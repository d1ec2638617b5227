"""Tiny random models in the file formats of the real ones, and small parts to write reference forwards with."""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import layer_norm, linear

from siglum.encode.base import Encoder

OPENAI_MEAN, OPENAI_STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
TEXTS = ["a red star", "A blue ring over two rings", "", "x"]


def pictures(number: int, size: int, seed: int = 0) -> list[np.ndarray]:
    """Random pictures, uint8 (size, size, 3)."""
    return list(np.random.default_rng(seed).integers(0, 256, (number, size, size, 3), np.uint8))


def normalise(shown: Sequence[np.ndarray], mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Scale and normalise pictures, written with numpy alone."""
    scaled = (np.stack(shown).astype(np.float64) / 255 - np.array(mean)) / np.array(std)
    return torch.tensor(scaled.transpose(0, 3, 1, 2), dtype=torch.float32)


def save_clip_tokenizer(folder: Path) -> Any:
    """Save a CLIP tokenizer that knows single letters; its last token is the end, as in the real one."""
    from transformers import CLIPTokenizer

    letters = [*string.ascii_lowercase, *(f"{letter}</w>" for letter in string.ascii_lowercase)]
    vocab = {token: place for place, token in enumerate([*letters, "<|startoftext|>", "<|endoftext|>"])}
    tokenizer = CLIPTokenizer(vocab=vocab, merges=[])
    tokenizer.save_pretrained(folder)
    return tokenizer


def randoms(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, Tensor]:
    """Random weights; those of norms lie around 1."""
    generator = torch.Generator().manual_seed(seed)
    found = {name: 0.1 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return {name: value + 1 if _is_norm(name) else value for name, value in found.items()}


def _is_norm(name: str) -> bool:
    return name.endswith("weight") and any(part in name.lower() for part in ("ln_", "norm", ".ln."))


def dense(rows: Tensor, state: dict[str, Tensor], name: str) -> Tensor:
    """A linear layer of a state dict."""
    return linear(rows, state[f"{name}.weight"], state.get(f"{name}.bias"))


def norm(rows: Tensor, state: dict[str, Tensor], name: str, eps: float = 1e-5) -> Tensor:
    """A layer norm of a state dict."""
    return layer_norm(rows, rows.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], eps)


def attend(query: Tensor, key: Tensor, value: Tensor, heads: int, mask: Tensor | None = None) -> Tensor:
    """Multi-head attention by its formula: queries (N, T, D), keys and values (N, U, D), an added mask (..., T, U)."""
    parts = [rows.unflatten(-1, (heads, -1)).transpose(1, 2) for rows in (query, key, value)]
    scores = parts[0] @ parts[1].transpose(-1, -2) / parts[0].shape[-1] ** 0.5
    return ((scores if mask is None else scores + mask).softmax(-1) @ parts[2]).transpose(1, 2).flatten(2)


def assert_half_precisions_are_near(build: Callable[..., Encoder], model: str) -> None:
    """Encode in all precisions; the halves differ from float32, but little."""
    full, shown = build(model, precision="float32"), pictures(3, build(model).picture_size)
    for precision in ("bfloat16", "float16"):
        half = build(model, precision=precision)
        assert half.fingerprint() == full.fingerprint()
        for rows, near in (
            (full.encode_texts(TEXTS), half.encode_texts(TEXTS)),
            (full.encode_images(shown), half.encode_images(shown)),
        ):
            assert near.dtype == np.float32
            assert 0 < np.abs(rows - near).max() < 0.05 * np.linalg.norm(rows, axis=1).min()


def assert_rows_do_not_depend_on_the_batch(encoder: Encoder, one_by_one: Encoder) -> None:
    """Encode together and apart; `one_by_one` has another batch size."""
    shown = pictures(3, encoder.picture_size)
    for rows, singles in (
        (encoder.encode_texts(TEXTS), one_by_one.encode_texts(TEXTS)),
        (encoder.encode_images(shown), one_by_one.encode_images(np.stack(shown))),
    ):
        assert rows.dtype == np.float32 and np.isfinite(rows).all()
        np.testing.assert_allclose(rows, singles, atol=1e-5)
        assert np.linalg.norm(rows[0] - rows[1]) > 1e-3
    assert encoder.encode_texts([]).shape == (0, encoder.text_dim)
    assert encoder.encode_images([]).shape == (0, encoder.image_dim)
