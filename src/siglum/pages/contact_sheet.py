"""The contact sheet: what a search found, as one page of pictures and texts that can be mailed.

Equal input gives equal bytes; pictures are embedded, and nothing is fetched.
"""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from siglum.data.folder import find_captions, path_of
from siglum.data.pictures import PictureError, file_of, is_image, load_picture
from siglum.data.source import find_items
from siglum.pages.render import render
from siglum.types import Hit, Item, Picture

SIDE = 560
"""Most pixels a side of an embedded picture; twice what a page usually shows, for fine screens."""
NARROWEST, WIDEST = 0.6, 2.2
"""Width over height of a card; pictures beyond lose their ends on the sheet."""


@dataclass(frozen=True, slots=True)
class Thumbnail:
    """A small picture, ready to be embedded."""

    jpeg: str
    """In base64."""
    width: int
    height: int


@dataclass(frozen=True, slots=True)
class Card:
    """One hit as the sheet shows it."""

    rank: int
    score: float
    name: str
    """The file's path, or the id."""
    text: str | None = None
    picture: Thumbnail | None = None
    link: str = ""
    """From the page to the file."""
    similarity: float | None = None

    @property
    def ratio(self) -> str:
        """Width over height, within bounds."""
        ratio = self.picture.width / self.picture.height if self.picture else 1.25
        return f"{min(max(ratio, NARROWEST), WIDEST):.3f}"


def make_cards(hits: Sequence[Hit], source: Mapping[str, Any], page: Path) -> list[Card]:
    """Return the hits of a run whose items come from `source`, as they are shown on a page that is to stand there."""
    ids, folder = [hit.item_id for hit in hits], source.get("kind") == "folder"
    items, captions = find_items(dict(source), ids), {}
    if folder and source.get("captions", "auto") != "names":  # those are the files' names over again
        captions = find_captions(Path(source["path"]), ids, source.get("captions", "auto"))
    cards = []
    for hit in hits:
        item = items.get(hit.item_id, Item(id=hit.item_id))
        file = hit.image or file_of(item.image)
        picture = item.image if hit.image is None else hit.image
        caption = next(iter(captions.get(hit.item_id, ())), None)
        cards.append(
            Card(
                hit.rank,
                hit.score,
                path_of(hit.item_id) if folder else hit.item_id,
                hit.text or item.text or caption,
                None if picture is None else make_thumbnail(picture),
                link_to(file, page) if file and file.exists() else "",
                hit.similarity,
            )
        )
    return cards


def make_thumbnail(picture: Picture, side: int = SIDE) -> Thumbnail | None:
    """Return a picture in its own proportions, at most `side` pixels a side; None where it cannot be read."""
    from PIL import Image

    try:
        pixels = load_picture(picture, side)
    except PictureError:
        return None
    width, height = _proportions(picture)
    scale = side / max(width, height)
    size = max(1, round(scale * width)), max(1, round(scale * height))
    file = BytesIO()
    Image.fromarray(pixels).resize(size, Image.Resampling.LANCZOS).save(file, "JPEG", quality=82, optimize=True)
    return Thumbnail(b64encode(file.getvalue()).decode(), *size)


def _proportions(picture: Picture) -> tuple[int, int]:
    """Return width and height as the picture is meant to be seen."""
    from PIL import ExifTags, Image

    if isinstance(picture, np.ndarray):
        return picture.shape[1], picture.shape[0]
    if is_image(picture):
        opened = picture
    elif isinstance(picture, str | Path | bytes):
        opened = Image.open(BytesIO(picture) if isinstance(picture, bytes) else picture)
    else:
        return 1, 1  # a drawing is square
    width, height = opened.size
    # Orientations from 5 on turn the picture by a quarter.
    turned = opened.getexif().get(ExifTags.Base.Orientation, 1) >= 5
    return (height, width) if turned else (width, height)


def link_to(file: Path, page: Path) -> str:
    """Return a link from a page to a file, which holds as long as neither moves without the other.

    >>> link_to(Path("photos/a b.jpg"), Path("runs/mine/hits.html"))
    '../../photos/a%20b.jpg'
    """
    try:
        way = os.path.relpath(file.absolute(), page.absolute().parent)
    except ValueError:  # another drive
        return file.absolute().as_uri()
    return quote(Path(way).as_posix())


def render_sheet(
    title: str, text: str | None, picture: Thumbnail | None, cards: Sequence[Card], *, note: str = ""
) -> str:
    """Return the page: the query (text, picture or both), then the cards in order."""
    return render("hits.html.j2", title=title, text=text, picture=picture, cards=cards, note=note)
