"""The page of examples of a catalogue: which queries it shows, and what it says of those that were not found."""

from __future__ import annotations

from pathlib import Path

import pytest

from catalogue_files import make_catalogue
from markup import parse, said
from siglum.data.catalogue import read_catalogue
from siglum.lab.catalogue import report
from siglum.lab.catalogue.report import choose, write_report
from siglum.lab.catalogue.systems import DEPTH
from siglum.types import Query


def test_examples_speak_for_each_system_in_turn() -> None:
    queries = {name: Query(id=name, text="x", positives=("a",)) for name in "pqrstu"}
    right, wrong = ["a", "b"], ["b", "a"]
    found = {
        "p": {"pro": right, "genius": right},
        "q": {"pro": right, "genius": wrong},
        "r": {"pro": right, "genius": []},
        "s": {"pro": wrong, "genius": wrong},
        "t": {"pro": wrong, "genius": right},
        "u": {"pro": wrong, "genius": right},
    }
    assert choose(queries, found) == ["q", "t", "p"]
    assert choose(queries, {name: found[name] for name in "rsu"}) == ["r", "u", "s"]
    assert choose(queries, {name: found[name] for name in "qr"}) == ["q"]
    assert choose(queries, {"q": {"pro": right, "best": wrong}, "t": found["t"]}) == ["t", "q"]
    assert choose(queries, {}) == []


@pytest.mark.parametrize(("kept", "told"), [(DEPTH, "not among the first ten"), (6, "not among the first 6")])
def test_the_page_says_how_far_was_looked(tmp_path: Path, kept: int, told: str) -> None:
    catalogue = read_catalogue(make_catalogue(tmp_path / "data"))
    examples: dict[str, dict[str, dict[str, list[str]]]] = {"pro": {}, "genius": {}}
    for query in catalogue.collection.queries["test"]:
        wrong = [name for name in catalogue.collection.pools["test", query.task] if name not in query.positives]
        late = [*wrong[: kept - 1], query.positives[0]]
        examples["pro"].setdefault(query.task, {})[query.id] = late
        examples["genius"].setdefault(query.task, {})[query.id] = wrong[:kept]
    write_report(tmp_path / "page.html", tmp_path / "data", [{"seed": 0, "examples": examples}])
    words = said(parse((tmp_path / "page.html").read_text()))
    assert f"right at rank {kept}" in words and told in words
    assert report.RULE in words
