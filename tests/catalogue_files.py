"""A small catalogue of drawn products in the layout `siglum.data.catalogue` reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

COLOURS = {"Red": (210, 30, 30), "Green": (30, 150, 40), "Blue": (30, 60, 200), "Yellow": (240, 210, 40)}
TYPES = ("Tshirts", "Handbags", "Watches", "Casual Shoes")
PEOPLE = ("Men", "Women")
SPLITS = ["train"] * 8 + ["val"] * 4 + ["test"] * 4


def make_catalogue(folder: Path, splits: Sequence[str] = SPLITS, seed: int = 0, side: int = 32) -> Path:
    """Write one group a split named, of four colours, the first two photographed twice; each fourth group has Multi."""
    rng = np.random.default_rng(seed)
    (folder / "pictures").mkdir(parents=True)
    rows = []
    for group, split in enumerate(splits):
        kind, gender = TYPES[group % 4], PEOPLE[group // 4 % 2]
        shape = rng.integers(3, 8, 2)
        for place, colour in enumerate([*COLOURS, *list(COLOURS)[:2], *(["Multi"] if group % 4 == 3 else [])]):
            number = f"{group}{place}"
            draw_product(folder / f"pictures/{number}.png", group, colour, shape, rng, side)
            rows.append(
                {
                    "id": number,
                    "picture": f"pictures/{number}.png",
                    "name": f"Maker{group} {gender} {'Many' if colour == 'Multi' else colour} Model{group} {kind}",
                    "group": f"g{group}",
                    "gender": gender,
                    "category": "Any",
                    "type": kind,
                    "colour": colour,
                    "usage": "Sports" if group % 2 else "Casual",
                    "split": split,
                }
            )
    (folder / "products.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def draw_product(path: Path, group: int, colour: str, shape: np.ndarray, rng: np.random.Generator, side: int) -> None:
    """Draw the form of a group in a colour, a little moved, with its dots."""
    image = Image.new("RGB", (side, side), "white")
    pen, fill = ImageDraw.Draw(image), COLOURS.get(colour, (120, 120, 120))
    left, top = rng.integers(1, 4, 2)
    pen.rectangle((left, top, left + 3 * shape[0], top + 3 * shape[1]), fill=fill)
    for dot in range(group % 4 + 1):
        pen.ellipse((left + 5 * dot, top + 2 + group, left + 5 * dot + 4, top + 6 + group), fill="black")
    image.save(path)
