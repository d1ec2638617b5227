"""The contact sheet: what a search found, as one page of pictures and texts that can be mailed.

Equal input gives equal bytes; pictures are embedded, and nothing is fetched.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from io import BytesIO
from pathlib import Path

import numpy as np

from siglum.data.pictures import PictureError, load_picture
from siglum.measure.page import render_page
from siglum.types import Picture

SIDE = 560
"""Most pixels a side of an embedded picture; twice what a page usually shows, for fine screens."""
NARROWEST, WIDEST = 0.6, 2.2
"""Width over height of a card; pictures beyond lose their ends on the sheet."""
CSS = """
main{max-width:1480px;padding:44px 28px 64px}
.query{display:flex;gap:26px;align-items:center;margin:0 0 34px}
.query img{display:block;height:148px;width:auto;max-width:45vw;object-fit:cover;border-radius:12px;
box-shadow:0 0 0 1px var(--line)}
.query h1{margin:0 0 8px;letter-spacing:.02em}
.hits{display:flex;flex-wrap:wrap;gap:26px 18px;list-style:none;margin:0;padding:0}
.hits::after{content:"";flex:1000 1 0}
.hit{flex:var(--r) 1 calc(var(--r)*236px);min-width:150px;max-width:calc(var(--r)*420px);display:flex;
flex-direction:column}
.frame{position:relative;background:var(--card);border-radius:12px;overflow:hidden;box-shadow:0 0 0 1px var(--line),
0 1px 2px #0000000f,0 6px 18px #0000000f}
.frame img,.frame .words{display:block;width:100%;aspect-ratio:var(--r)}
.frame img{height:auto;object-fit:cover}
.frame .words{margin:0;padding:46px 18px 18px;overflow:auto;font-size:1.02rem;line-height:1.45;text-wrap:pretty}
.frame .words.gone{color:var(--muted);font-size:.9rem}
.frame img+.words{aspect-ratio:auto;padding:12px 14px;font-size:.9rem}
.rank{position:absolute;top:10px;left:10px;min-width:1.9em;padding:.12em .5em;border-radius:99px;text-align:center;
font-size:.82rem;font-weight:650;font-variant-numeric:tabular-nums;color:#fff;background:#12161bbd}
.hit:first-child .rank{background:var(--pro)}
.foot{display:flex;gap:10px;align-items:baseline;justify-content:space-between;padding:8px 3px 0;font-size:.84rem}
.name{overflow:hidden;text-overflow:ellipsis;white-space:nowrap;min-width:0}
.name span{color:var(--muted);margin-left:.5em}
.score{flex:none;color:var(--muted);font-size:.78rem;font-variant-numeric:tabular-nums}
.even{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,calc(var(--r)*236px)),1fr))}
.even::after{content:none}
.even .hit{max-width:none;min-width:0}
@media(max-width:720px){main{padding:24px 14px 40px}.query{flex-direction:column;align-items:flex-start;gap:16px}
.query img{max-width:100%}.hits{gap:18px 12px}.hit{flex-basis:calc(var(--r)*150px);min-width:130px}
.even{grid-template-columns:repeat(auto-fill,minmax(min(100%,calc(var(--r)*150px)),1fr))}
.frame .words:first-child{aspect-ratio:auto;min-height:130px}}
@media print{.frame{box-shadow:0 0 0 1px #ccc}.hit{break-inside:avoid}}
"""


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
    if isinstance(picture, np.ndarray):
        return picture.shape[1], picture.shape[0]
    if not isinstance(picture, str | Path):
        return 1, 1  # a drawing is square
    from PIL import ExifTags, Image

    with Image.open(picture) as image:
        width, height = image.size
        # Orientations from 5 on turn the picture by a quarter.
        turned = image.getexif().get(ExifTags.Base.Orientation, 1) >= 5
    return (height, width) if turned else (width, height)


def render_sheet(
    title: str, text: str | None, picture: Thumbnail | None, cards: Sequence[Card], *, note: str = ""
) -> str:
    """Return the page: the query (text, picture or both), then the cards in order."""
    asked = f"“{escape(text)}”" if text else "More like this picture"
    shown = _image(picture, "the query’s picture") if picture else ""
    number = f"{len(cards)} hit{'' if len(cards) == 1 else 's'}, best first"
    lead = escape(f"{number} · {note}" if note else number)
    head = f'<div><h1>{escape(title)}</h1><p class="finding">{asked}</p><p class="lead">{lead}</p></div>'
    ratios = {_ratio(card) for card in cards}
    # Cards of one shape stand in columns; others fill their rows.
    shape = f'class="hits even" style="--r:{ratios.pop()}"' if len(ratios) == 1 else 'class="hits"'
    body = f'<header class="query">{shown}{head}</header><ol {shape}>{"".join(map(_card, cards))}</ol>'
    page = render_page(f"{text or 'picture search'} · {title}", body)
    return page.replace("</style>", f"{CSS}</style>", 1)


def _image(picture: Thumbnail, words: str) -> str:
    size = f'width="{picture.width}" height="{picture.height}"'
    return f'<img src="data:image/jpeg;base64,{picture.jpeg}" {size} alt="{escape(words)}">'


def _ratio(card: Card) -> str:
    """Return width over height, within bounds."""
    ratio = card.picture.width / card.picture.height if card.picture else 1.25
    return f"{min(max(ratio, NARROWEST), WIDEST):.3f}"


def _card(card: Card) -> str:
    content = _image(card.picture, card.name) if card.picture else ""
    if card.text:
        content += f'<p class="words">{escape(card.text)}</p>'
    elif not content:
        content = '<p class="words gone">Nothing to show: the picture cannot be read, or its source is not known.</p>'
    folder, _, file = card.name.rpartition("/")
    name = escape(file) + (f"<span>{escape(folder)}</span>" if folder else "")
    foot = f'<div class="foot"><span class="name" title="{escape(card.name)}">{name}</span>'
    foot += f'<span class="score" title="score, to be compared within one search only">{card.score:.2f}</span></div>'
    frame = f'<div class="frame">{content}<span class="rank">{card.rank}</span></div>'
    return f'<li class="hit" style="--r:{_ratio(card)}">{frame}{foot}</li>'
