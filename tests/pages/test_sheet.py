"""The contact sheet: pictures in their proportions, everything embedded, nothing taken for markup."""

from __future__ import annotations

import re
from base64 import b64decode
from io import BytesIO
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from PIL import Image

from markup import all_said, links, parse, said
from siglum.lab.world.collection import World
from siglum.pages.contact_sheet import SIDE, Card, Thumbnail, make_cards, make_thumbnail, render_sheet
from siglum.types import Hit


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


def test_bytes_and_pil_images_keep_their_proportions_too() -> None:
    file = BytesIO()
    image = Image.fromarray(picture(60, 30))
    image.save(file, "PNG")
    for given in (file.getvalue(), image):
        small = make_thumbnail(given)
        assert small is not None and (small.width, small.height) == (SIDE, SIDE // 2)


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
    page = parse(text)
    assert text == render_sheet("runs/photos", 'dogs "in" <snow>', None, cards(), note="4 items searched")
    assert all_said(page, "p", "finding") == ['“dogs "in" <snow>”']
    assert all_said(page, "p", "lead") == ["4 hits, best first · 4 items searched"]
    assert not {"b", "dogs", "snow", "script"} & {one.tag for one in page.iter()}
    names = ["<b>dogs.jpg trip", "note", "both words below", "gone.jpg"]
    feet = zip(all_said(page, "span", "score"), names, strict=True)
    assert all_said(page, "div", "foot") == [" ".join(parts) for parts in feet]
    assert all_said(page, "span", "rank") == ["1", "2", "3", "4"]
    assert all_said(page, "p", "words") == [
        "two <dogs> & a cat",
        "Nothing to show: the picture cannot be read, or its source is not known.",
    ]
    assert [image.get("alt") for image in page.iter("img")] == ["trip/<b>dogs.jpg", "words below"]
    assert next(one.get("title") for one in page.iter("div") if one.get("class") == "name") == "trip/<b>dogs.jpg"


def test_a_score_is_one_a_person_can_read() -> None:
    page = parse(render_sheet("run", "x", None, [Card(1, -597.2, "a", similarity=0.874), Card(2, -3.0, "b")]))
    scores = [one for one in page.iter("span") if one.get("class") == "score"]
    assert [said(one) for one in scores] == ["87 %", "−3.00"]
    assert scores[0].get("title") == "similarity; score −597.20"
    assert "within one search only" in scores[1].attrib["title"]


def test_the_sheet_needs_nothing_beside_itself() -> None:
    text = render_sheet("run", None, make_thumbnail(picture(30, 60)), cards()[:1])
    page = parse(text)
    assert len(links(page)) == 3 and all(link.startswith("data:") for link in links(page))
    assert not re.search(r"url\(|@import|https?:|file:", text)
    assert "More like this picture" in said(page) and "1 hit, best first" in said(page)
    assert "prefers-color-scheme: dark" in text


def test_extreme_proportions_are_bounded() -> None:
    shapes = [make_thumbnail(picture(900, 10)), make_thumbnail(picture(10, 900)), make_thumbnail(picture(60, 40))]
    page = parse(render_sheet("run", "x", None, [Card(1, 0.0, "a", None, shape) for shape in shapes]))
    assert [one.get("style") for one in page.iter("li")] == ["--r:2.200", "--r:0.600", "--r:1.501"]


def test_cards_of_one_shape_stand_in_columns() -> None:
    wide, square = make_thumbnail(picture(60, 30)), make_thumbnail(picture(40, 40))
    for shapes, even in (([square, square], True), ([square, wide], False), ([], False)):
        page = parse(render_sheet("run", "x", None, [Card(1, 0.0, "a", None, shape) for shape in shapes]))
        (row,) = page.iter("ol")
        assert (row.get("class"), row.get("style")) == (("hits even", "--r:1.000") if even else ("hits", None))


def test_hits_of_a_folder_have_captions_and_links_to_their_files(tmp_path: Path) -> None:
    photos, page = tmp_path / "my photos", tmp_path / "runs" / "hits.html"
    photos.mkdir()
    for name in ("a b", "plain"):
        Image.fromarray(picture(60, 30)).save(photos / f"{name}.png")
    (photos / "a b.txt").write_text("two dogs\nsome animals\n")
    hits = [
        Hit("a%20b.png", -5.0, (1,), 1, similarity=0.5, image=photos / "a b.png"),
        Hit("plain.png", -6.0, (2,), 2),
        Hit("gone.png", -7.0, (3,), 3, image=photos / "gone.png"),
    ]
    first, second, third = make_cards(hits, {"kind": "folder", "path": str(photos), "captions": "auto"}, page)
    assert (first.name, first.text, first.similarity) == ("a b.png", "two dogs", 0.5)
    assert (page.parent / unquote(first.link)).resolve() == photos / "a b.png" and " " not in first.link
    assert (second.text, second.link) == (None, "../my%20photos/plain.png") and second.picture is not None
    assert (third.name, third.link, third.picture) == ("gone.png", "", None)
    shown = parse(render_sheet("run", "x", None, [first]))
    assert [one.get("href") for one in shown.iter("a")] == [first.link] * 2
    assert all_said(shown, "p", "caption") == ["two dogs"]
    (named,) = make_cards(hits[:1], {"kind": "folder", "path": str(photos), "captions": "names"}, page)
    assert named.text is None  # it would be the file's name over again


def test_hits_that_carry_their_text_need_no_source(tmp_path: Path) -> None:
    (card,) = make_cards([Hit("x", 1.0, (1,), 1, text="a cat")], {}, tmp_path / "hits.html")
    assert (card.name, card.text, card.picture, card.link) == ("x", "a cat", None, "")
