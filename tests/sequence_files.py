"""A small world of sequences whose next item is determined by the last two, in memory and as a folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from siglum.config import RunConfig
from siglum.recommenders import recommender

SIDE = 8
"""Items stand in a square: their row and their column are what their vectors say."""


def draw_world(users: int = 200, length: int = 10, seed: int = 0) -> tuple[list[list[int]], np.ndarray]:
    """Return sequences and item vectors: the row comes from the item before the last, the column from both."""
    rng, sequences = np.random.default_rng(seed), []
    for _ in range(users):
        own = [tuple(rng.integers(0, SIDE, 2).tolist()) for _ in range(2)]
        while len(own) < length:
            own.append((own[-2][0], (own[-1][1] + own[-2][1]) % SIDE))
        sequences.append([row * SIDE + column for row, column in own])
    place = np.arange(SIDE * SIDE)
    vectors = np.concatenate([8 * np.eye(SIDE)[place // SIDE], np.eye(SIDE)[place % SIDE]], 1)
    return sequences, (vectors + 0.01 * rng.normal(size=vectors.shape)).astype(np.float32)


def tiny_config(recipe: str = "tiger", epochs: int = 20, **decoder: object) -> RunConfig:
    """Return settings that learn the world in seconds."""
    config = recommender(recipe, "tiny")
    sizes = {"d_model": 64, "d_ff": 128, "d_kv": 16, "heads": 4, "dropout": 0.0}
    history = replace(config.decoder.history, items=4, every=5, asked=50, patience=0)
    return replace(
        config,
        fusion=replace(config.fusion, standardise=False),
        tokenizer=replace(config.tokenizer, vocab=(SIDE, SIDE), disambiguation=4),
        decoder=replace(
            config.decoder,
            **{**sizes, "epochs": epochs, "batch_size": 64, "history": history, **decoder},  # type: ignore[arg-type]
        ),
        search=replace(config.search, beam=20),
    )


def quick_config(recipe: str = "tiger") -> RunConfig:
    """Return settings that go through every stage and learn nothing."""
    return tiny_config(recipe, 1, d_model=16, d_ff=16, d_kv=8, heads=2)


def write_world(
    folder: Path, users: int = 60, length: int = 7, shuffle: int | None = None, times: bool = False
) -> Path:
    """Write the world as a folder; `shuffle` gives the items other numbers and lines, and changes nothing else."""
    sequences, vectors = draw_world(users, length)
    number = np.arange(len(vectors)) if shuffle is None else np.random.default_rng(shuffle).permutation(len(vectors))
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"u{user} {' '.join(str(number[item] + 1) for item in own)}" for user, own in enumerate(sequences)]
    (folder / "sequences.txt").write_text("\n".join(lines) + "\n")
    if times:
        clock = [f"u{user} {' '.join(str(10 * user + place) for place in range(length))}" for user in range(users)]
        (folder / "times.txt").write_text("\n".join(clock) + "\n")
    order = np.argsort(number)
    records = [
        {"id": int(number[item]) + 1, "asin": f"A{item:03d}", "title": f"thing {item}", "categories": ["Things"]}
        for item in order.tolist()
    ]
    (folder / "items.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    np.save(folder / "text_features.npy", vectors[order])
    return folder
