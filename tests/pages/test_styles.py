"""Styles on phones: cards stay in their columns, and rows as high as what they show."""

from __future__ import annotations

import re
from importlib.resources import files

RULE = re.compile(r"([^{};]+)\{([^{}]*)\}")


def rules(name: str) -> list[tuple[str, dict[str, str]]]:
    """Return the selectors of a style sheet with what they declare, those of a phone after the others."""
    text = re.sub(
        r"/\*.*?\*/|@media print \{.*", "", (files("siglum.pages") / "templates" / name).read_text(), flags=re.S
    )
    found = []
    for selectors, body in RULE.findall(text.replace("@media (max-width: 720px) {", "")):
        pairs = (one.partition(":") for one in body.split(";") if one.strip())
        declared = {key.strip(): value.strip() for key, _, value in pairs}
        found += [(selector.strip(), declared) for selector in selectors.split(",")]
    return found


def weight(selector: str) -> tuple[int, int]:
    """Return how many classes and tags a selector names; the greater wins, and of equals the later."""
    return len(re.findall(r"\.[\w-]+", selector)), len(re.findall(r"(?:^|[\s>])[a-z]+", selector))


def winning(name: str, key: str, *selectors: str) -> str:
    """Return what a style sheet says in the end about what all these selectors match, on a phone."""
    told = [(weight(one), place, body.get(key)) for place, (one, body) in enumerate(rules(name)) if one in selectors]
    return max((heavy, place, value) for heavy, place, value in told if value is not None)[2]


def test_cards_of_one_shape_are_no_wider_than_their_columns_on_a_phone() -> None:
    assert winning("hits.css", "min-width", ".hit", ".hits > .hit", ".even .hit") == "0"
    assert winning("hits.css", "min-width", ".hit", ".hits > .hit") == "130px"
    assert "110px" in winning("hits.css", "grid-template-columns", ".even")


def test_pictures_beside_a_prefix_stand_in_one_row_on_a_phone() -> None:
    assert winning("explain.css", "white-space", ".under .ids") == "nowrap"
    assert winning("explain.css", "white-space", ".under .ids span") == "normal"
