"""The contact sheet: pictures in their proportions, everything embedded, nothing taken for markup."""

from __future__ import annotations

import re
from base64 import b64decode
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from siglum.data.world import World
from siglum.measure.sheet import SIDE, Card, Thumbnail, make_thumbnail, render_sheet


def picture(width: int, height: int) -> np.ndarray:
    """Red on the left, blue on the right."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[:, : width // 2, 0] = pixels[:, width // 2 :, 2] = 255
    return pixels


def pixels_of(thumbnail: Thumbnail) -> np.ndarray:
    return np.array(Image.open(BytesIO(b64decode(thumbnail.jpeg))))


@pytest.mark.parametrize(("width", "height"), [(60, 30), (30, 60), (2000, 1500), (900, 1), (40, 40)])
def test_pictures_keep_their_proportions(tmp_path: Path, width: int, height: int) -> None:
    Image.fromarray(picture(width, height)).save(tmp_path / "p.png")
    small = make_thumbnail(tmp_path / "p.png")
    assert small is not None
    longest = SIDE / max(width, height)
    assert (small.width, small.height) == (round(width * longest), max(1, round(height * longest)))
    assert pixels_of(small).shape == (small.height, small.width, 3)
    assert make_thumbnail(picture(width, height)) == small


def test_pictures_stand_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned a quarter: what is left in the file belongs on top
    Image.fromarray(picture(80, 40)).save(tmp_path / "turned.jpg", exif=exif)
    small = make_thumbnail(tmp_path / "turned.jpg")
    assert small is not None
    assert (small.width, small.height) == (SIDE // 2, SIDE)
    top, bottom = pixels_of(small)[20, 20], pixels_of(small)[-20, 20]
    assert top[0] > 200 > 60 > top[2] and bottom[2] > 200 > 60 > bottom[0]


def test_drawings_and_damaged_files(tmp_path: Path) -> None:
    drawn = make_thumbnail(World(480, 0).items("train")[0].image)
    assert drawn is not None and (drawn.width, drawn.height) == (SIDE, SIDE)
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    assert make_thumbnail(tmp_path / "broken.jpg") is None
    assert make_thumbnail(tmp_path / "gone.jpg") is None


class Page(HTMLParser):
    """Collects tags, attributes and words, and checks that what opens is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def cards() -> list[Card]:
    small = make_thumbnail(picture(60, 30))
    return [
        Card(1, 12.345, "trip/<b>dogs.jpg", None, small),
        Card(2, -3.0, "note", "two <dogs> & a cat"),
        Card(3, -9.5, "both", "words below", small),
        Card(4, -10.0, "gone.jpg"),
    ]


def test_the_sheet_shows_query_and_hits_in_order() -> None:
    text = render_sheet("runs/photos", 'dogs "in" <snow>', None, cards(), note="4 items searched")
    page = Page(text)
    assert text == render_sheet("runs/photos", 'dogs "in" <snow>', None, cards(), note="4 items searched")
    assert '“dogs "in" <snow>”' in page.words and "4 hits, best first · 4 items searched" in page.words
    assert not {"b", "dogs", "snow", "script"} & {tag for tag, _ in page.seen}
    places = [page.words.index(words) for words in ("<b>dogs.jpg", "two <dogs> & a cat", "words below", "Nothing to")]
    assert places == sorted(places)
    assert "12.35" in page.words and "-9.50" in page.words
    assert [attrs["alt"] for tag, attrs in page.seen if tag == "img"] == ["trip/<b>dogs.jpg", "both"]
    assert next(attrs["title"] for _, attrs in page.seen if attrs.get("class") == "name") == "trip/<b>dogs.jpg"


def test_the_sheet_needs_nothing_beside_itself() -> None:
    text = render_sheet("run", None, make_thumbnail(picture(30, 60)), cards()[:1])
    page = Page(text)
    sources = [str(attrs[key]) for _, attrs in page.seen for key in ("src", "href") if key in attrs]
    assert all(source.startswith("data:") for source in sources) and len(sources) == 3
    assert not re.search(r"url\(|@import|https?:|file:", text)
    assert "More like this picture" in page.words and "1 hit, best first" in page.words
    assert "prefers-color-scheme:dark" in text


def test_extreme_proportions_are_bounded() -> None:
    shapes = [make_thumbnail(picture(900, 10)), make_thumbnail(picture(10, 900)), make_thumbnail(picture(60, 40))]
    text = render_sheet("run", "x", None, [Card(1, 0.0, "a", None, shape) for shape in shapes])
    assert re.findall(r"--r:([\d.]+)\"", text) == ["2.200", "0.600", "1.501"]


def test_cards_of_one_shape_stand_in_columns() -> None:
    wide, square = make_thumbnail(picture(60, 30)), make_thumbnail(picture(40, 40))
    for shapes, even in (([square, square], True), ([square, wide], False), ([], False)):
        text = render_sheet("run", "x", None, [Card(1, 0.0, "a", None, shape) for shape in shapes])
        assert ('<ol class="hits even" style="--r:1.000">' in text) is even
