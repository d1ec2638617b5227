"""Pages as trees: they are written so that a strict parser of XML reads them, which also checks that tags nest."""

from __future__ import annotations

from xml.etree.ElementTree import Element, fromstring


def parse(page: str) -> Element:
    """Return a whole page, or a part of one, as a tree."""
    return fromstring(page if page.startswith("<!DOCTYPE html>") else f"<body>{page}</body>")


def said(element: Element | None) -> str:
    """Return all words of an element, with single spaces."""
    assert element is not None
    return " ".join("".join(element.itertext()).split())


def all_said(page: Element, tag: str, kind: str | None = None) -> list[str]:
    """Return the words of every element of a tag, of one class if it is named."""
    return [said(one) for one in page.iter(tag) if kind is None or kind in one.get("class", "").split()]


def rows(page: Element) -> list[list[str]]:
    """Return the cells of every row of every table."""
    return [[said(cell) for cell in row if cell.tag in ("th", "td")] for row in page.iter("tr")]


def links(page: Element) -> list[str]:
    """Return all a page refers to, outside its styles."""
    return [one.attrib[name] for one in page.iter() for name in ("src", "href") if name in one.attrib]


def one_named(page: Element, tag: str, name: str) -> Element:
    """Return the element of a tag whose label or words begin with a name."""
    found = [one for one in page.iter(tag) if (one.get("aria-label") or said(one)).startswith(name)]
    assert len(found) == 1, [said(one)[:40] for one in found]
    return found[0]
