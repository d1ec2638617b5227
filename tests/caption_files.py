"""A captioned collection of frozen features in the layout `siglum bench captions` reads, drawn from a seed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

LATENT = 6


def write_lines(path: Path, rows: Sequence[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_captions(
    folder: Path,
    splits: Sequence[str],
    captions: Sequence[int],
    dims: tuple[int, int] = (20, 12),
    dtype: type = np.float32,
    noise: float = 0.1,
    seed: int = 0,
) -> Path:
    """Write images of these splits with these numbers of captions; a caption is its image seen with noise."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(len(splits)), captions)
    latent = rng.normal(size=(len(splits), LATENT))
    to_image, to_text = (rng.normal(size=(LATENT, dim)) for dim in dims)
    image = latent @ to_image + noise * rng.normal(size=(len(splits), dims[0]))
    text = latent[owner] @ to_text + noise * rng.normal(size=(len(owner), dims[1]))
    folder.mkdir(parents=True, exist_ok=True)
    write_lines(
        folder / "images.jsonl", [{"row": row, "id": f"{row}.jpg", "split": name} for row, name in enumerate(splits)]
    )
    write_lines(
        folder / "captions.jsonl",
        [{"row": row, "id": f"c{row}", "image_row": int(image)} for row, image in enumerate(owner)],
    )
    np.save(folder / "image_features.npy", image.astype(dtype))
    np.save(folder / "text_features.npy", text.astype(dtype))
    return folder
