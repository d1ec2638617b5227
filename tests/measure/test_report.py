"""The report shows the numbers it was given, tells the truth about them, and needs nothing beside itself."""

from __future__ import annotations

import base64
import copy
import io
import json
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from PIL import Image

from siglum.data.world import TASK_LABELS, TASKS
from siglum.measure.page import encode_png
from siglum.measure.report import Example, Shown, render_report
from siglum.types import SiglumError

VOID = {"meta", "link", "img", "br", "hr"}
SYSTEMS = ("dense", "scan", "geometry", "genius", "pro")


class Page(HTMLParser):
    """Checks that tags nest, and keeps the words of every element by its tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[list[str]] = []
        self.words: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag == "tr":
            self.cells.append([])
        if tag in ("th", "td"):
            self.cells[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "th" in self.open or "td" in self.open:
            self.cells[-1][-1] += data
        for tag in set(self.open):
            self.words.setdefault(tag, []).append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.seen)

    def said(self, tag: str) -> str:
        return " ".join(self.words.get(tag, []))


def row(first: float) -> dict[str, float]:
    keys = ("success@1", "success@5", "success@10", "mrr@10", "ndcg@10", "recall@10")
    return {key: round(first + 0.0121 * i, 4) for i, key in enumerate(keys)}


def sample() -> dict[str, Any]:
    first = {"dense": 0.80, "scan": 0.70, "geometry": 0.65, "genius": 0.40, "pro": 0.60}
    tasks = {task: {s: row(v + 0.0117 * i) for s, v in first.items()} for i, task in enumerate(TASKS)}
    union = {task: {s: row(v - 0.1 + 0.0133 * i) for s, v in first.items()} for i, task in enumerate(TASKS)}
    levels = [{"size": n, "usage": 0.973, "entropy": 5.21, "dead": 7, "error": 0.3123} for n in (3, 64, 64, 128, 256)]
    health = {"collision_rate": 0.0123, "reconstruction": 0.1234, "items": 2400, "distinct": 2385}
    return {
        "tasks": tasks,
        "union": union,
        "survival": {"genius": [0.71, 0.52, 0.33, 0.217], "pro": [0.97, 0.9, 0.8, 0.613], "pro_without_pd": [0.9] * 4},
        "beam_survival": {"genius": [1.0, 0.83, 0.62, 0.6, 0.581], "pro": [1.0, 0.97, 0.95, 0.94, 0.937]},
        "chance": {"genius": [0.0391] * 4, "pro": [0.1563, 0.1563, 0.0781, 0.0391]},
        "health": {s: {**health, "largest_collision": 3, "levels": levels} for s in ("genius", "pro")},
        "gap": {"closed": 0.5, "tasks_won": 8, "tasks": 8},
        "settings": {
            "recipe": "pro",
            "scale": "demo",
            "seed": 3,
            "beam": 10,
            "omega": 20.0,
            "items": 12000,
            "vocab": {"genius": [256] * 4, "pro": [64, 64, 128, 256]},
            "queries": dict.fromkeys(TASKS, 800),
        },
    }


def picture(seed: int, size: int = 24) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (size, size, 3), np.uint8)


def example(task: str = "t2i") -> Example:
    target = Shown("s1-i", None, picture(1), True)
    other = Shown("s2-t", "a <red> & blue box", None, False)
    return Example(task, "two boxes", picture(0), target, {"genius": [other], "pro": [target, other], "dense": []})


def finding(report: dict[str, Any]) -> str:
    match = re.search(r'<p class="finding">(.*?)</p>', render_report(report, [], "t"))
    assert match is not None
    return match[1]


def test_the_page_is_well_formed_and_accessible() -> None:
    text = render_report(sample(), [example(), example("it2it")], "Title")
    page = Page(text)
    assert text.startswith("<!DOCTYPE html>")
    assert page.count("h1") == 1
    assert page.count("table") == page.count("caption") > 5
    assert all(attrs.get("alt") for tag, attrs in page.seen if tag == "img")
    assert all(attrs.get("role") == "img" and attrs.get("aria-label") for tag, attrs in page.seen if tag == "svg")
    assert ("html", {"lang": "en"}) in page.seen
    assert "prefers-color-scheme:dark" in text
    assert "width=device-width" in text


def test_the_page_refers_to_nothing_outside_itself() -> None:
    text = render_report(sample(), [example()], "Title")
    for tag, attrs in Page(text).seen:
        assert tag not in ("script", "iframe", "object")
        assert all(str(attrs[key]).startswith("data:") for key in ("src", "href") if key in attrs)
    assert not re.search(r"https?:|url\(|@import|//[a-z]", re.sub(r"base64,[^\"]*", "", text))


def test_tables_hold_the_numbers_given() -> None:
    report = sample()
    cells = Page(render_report(report, [], "Title")).cells
    for results, measures in (
        (report["tasks"], ("success@1", "success@5", "success@10")),
        (report["tasks"], ("mrr@10", "ndcg@10", "recall@10")),
        (report["union"], ("success@1", "success@5", "success@10")),
    ):
        for task in TASKS:
            numbers = [f"{100 * results[task][s][m]:.1f}" for s in SYSTEMS for m in measures]
            assert [TASK_LABELS[task], *numbers] in cells
        mean = [f"{100 * sum(results[t][s][m] for t in TASKS) / 8:.1f}" for s in SYSTEMS for m in measures]
        assert ["mean", *mean] in cells
    assert ["GENIUS", "71.0", "52.0", "33.0", "21.7"] in cells
    assert ["PRO", "100.0", "97.0", "95.0", "94.0", "93.7"] in cells
    assert ["chance, PRO", "15.6", "15.6", "7.8", "3.9"] in cells
    assert ["PRO", "2,400", "2,385", "1.2", "3", "0.1234"] in cells
    assert ["M", "3", "97.3", "7", "5.21", "0.3123"] in cells
    assert ["4", "256", "97.3", "7", "5.21", "0.3123"] in cells
    assert ["Items", "12,000"] in cells
    assert ["Vocabulary, levels × codewords", "GENIUS: 4 × 256; PRO: 2 × 64, 1 × 128, 1 × 256"] in cells


def test_bold_is_the_best_generative_system_and_ties_share_it() -> None:
    report = {"tasks": {"t2i": {"dense": {"success@1": 0.9}, "genius": {"success@1": 0.5}, "pro": {"success@1": 0.4}}}}
    assert re.findall(r"<td[^>]*><b>(.*?)</b>", render_report(report, [], "t")) == ["50.0"]
    report["tasks"]["t2i"]["pro"]["success@1"] = 0.50001
    assert re.findall(r"<td[^>]*><b>(.*?)</b>", render_report(report, [], "t")) == ["50.0", "50.0"]
    report["tasks"]["t2i"]["dense"]["success@1"] = 0.5
    assert render_report(report, [], "t").count("<b>50.0</b>") == 2
    del report["tasks"]["t2i"]["genius"]
    assert "<b>50.0</b>" not in render_report(report, [], "t")


def test_the_finding_tells_who_wins() -> None:
    report = sample()
    assert (
        finding(report)
        == "PRO beats GENIUS on 8 of 8 tasks in Success@1 and closes 50 % of GENIUS’s gap to dense search."
    )
    report["gap"] = {"closed": 0.08, "tasks_won": 3, "tasks": 8}
    assert finding(report).startswith("PRO beats GENIUS on 3 of 8 tasks in Success@1 but closes 8 %")
    report["gap"] = {"closed": -0.21, "tasks_won": 0, "tasks": 8}
    assert "none of 8 tasks in Success@1 and leaves a gap to dense search 21 % wider than GENIUS’s" in finding(report)
    report["gap"] = {"closed": -0.04, "tasks_won": 5, "tasks": 8}
    assert "5 of 8 tasks in Success@1 but leaves a gap to dense search 4 % wider" in finding(report)
    report["gap"] = {"closed": 1.2, "tasks_won": 8, "tasks": 8}
    assert "overtakes dense search" in finding(report)


def test_a_gap_that_is_not_there_is_not_closed() -> None:
    report = sample()
    report["gap"]["closed"] = 1.0
    for systems in report["tasks"].values():
        systems["dense"]["success@1"] = 0.1
    text = render_report(report, [], "t")
    assert "GENIUS leaves no gap" in text
    assert "of the gap between" not in text


def test_wins_are_counted_where_no_gap_is_given() -> None:
    report = {"tasks": sample()["tasks"]}
    report["tasks"]["i2i"]["pro"]["success@1"] = 0.0
    assert finding(report) == "PRO beats GENIUS on 7 of 8 tasks in Success@1."
    means = {s: np.mean([report["tasks"][t][s]["success@1"] for t in TASKS]) for s in ("pro", "genius", "dense")}
    said = "{:.1f} % with PRO, {:.1f} % with GENIUS and {:.1f} % with dense search".format(
        *(100 * m for m in means.values())
    )
    assert said in render_report(report, [], "t")


def test_key_figures_and_drops_are_those_of_the_beam() -> None:
    text = render_report(sample(), [], "t")
    assert re.findall(r'<p class="big">(.*?)</p>', text) == ["50 %", "8 of 8", "93.7 %", "58.1 %"]
    assert "GENIUS loses most at level 2: 21.0 points. PRO loses most at level 1: 3.0 points." in text


def test_codes_without_a_modality_token_are_numbered_from_one() -> None:
    report = sample()
    report["beam_survival"] = {s: values[1:] for s, values in report["beam_survival"].items()}
    del report["health"]
    text = render_report(report, [], "t")
    assert ">M<" not in text
    assert "modality token" not in text
    assert "GENIUS loses most at level 2: 21.0 points." in text


@pytest.mark.parametrize(
    ("key", "sign"),
    [
        ("union", "union pool"),
        ("survival", "Token survival"),
        ("beam_survival", "fall out of the beam"),
        ("chance", "guessing"),
        ("health", "Health of"),
        ("gap", "of the gap between"),
        ("settings", "<h2>Settings"),
    ],
)
def test_a_missing_part_is_left_out_alone(key: str, sign: str) -> None:
    report = sample()
    signs = ("union pool", "Token survival", "fall out of the beam", "Health of", "of the gap between", "<h2>Settings")
    assert sign in render_report(report, [], "t")
    del report[key]
    text = render_report(report, [], "t")
    Page(text)
    assert sign not in text
    assert all(other in text for other in signs if other != sign)


def test_tasks_alone_make_a_page_and_no_tasks_none() -> None:
    page = Page(render_report({"tasks": {"mine": {"my model": row(0.4)}}}, [], "t"))
    assert "40.0 % with my model" in page.said("p")
    assert "on mine" in page.said("p")
    with pytest.raises(SiglumError, match="no tasks"):
        render_report({"tasks": {}}, [], "t")


def test_a_system_that_missed_a_task_shows_a_dash() -> None:
    report = sample()
    del report["tasks"]["t2i"]["scan"]
    cells = Page(render_report(report, [], "t")).cells
    found = next(cells for cells in cells if cells[0] == "t→i")
    assert found[4:7] == ["–", "–", "–"]
    assert next(cells for cells in cells if cells[0] == "mean")[4:7] == ["–", "–", "–"]


def test_everything_is_escaped() -> None:
    evil = "<script>alert('x')</script>&\""
    shown = Shown(evil, evil, picture(0), False)
    report = sample()
    report["tasks"][evil] = {evil: row(0.3), "pro": row(0.2)}
    for key in ("survival", "beam_survival", "chance"):
        report[key][evil] = [0.5] * 4
    report["health"][evil] = report["health"]["pro"]
    report["settings"][evil] = {evil: evil}
    page = Page(render_report(report, [Example(evil, evil, None, shown, {evil: [shown]})], evil))
    assert page.count("script") == 0
    assert page.said("title").startswith(evil)
    assert page.said("article").count(evil) >= 6
    assert page.said("h1") == evil


def test_examples_mark_right_and_wrong_and_show_pictures() -> None:
    text = render_report(sample(), [example()], "t")
    page = Page(text)
    said = page.said("article")
    assert said.index("dense") < said.index("GENIUS") < said.index("PRO")
    assert "no results" in said
    assert (text.count('class="thing right"'), text.count('class="thing wrong"')) == (1, 2)
    assert (said.count("✓"), said.count("✗")) == (1, 2)
    assert said.count("a <red> & blue box") == 2
    assert "two boxes" in said
    assert page.count("img") == 3


def test_pictures_come_back_as_small_png() -> None:
    flat = np.zeros((300, 600, 3), np.uint8)
    flat[:, 300:] = (10, 200, 30)
    with Image.open(io.BytesIO(base64.b64decode(encode_png(flat)))) as image:
        assert (image.format, image.size) == ("PNG", (192, 96))
        assert np.asarray(image.convert("RGB"))[50, 150].tolist() == [10, 200, 30]
    with pytest.raises(SiglumError, match="uint8"):
        encode_png(flat.astype(float))
    with pytest.raises(SiglumError, match="uint8"):
        encode_png(flat[..., 0])


def test_equal_input_gives_equal_bytes_whatever_the_order_of_keys() -> None:
    report = sample()
    others = ["aa", "bb", "cc", "dd", "ee", "ff"]
    report["tasks"] |= {task: {"other": row(0.1), "another": row(0.2)} for task in reversed(others)}
    kept = copy.deepcopy(report)
    text = render_report(report, [example()], "t")
    assert report == kept
    assert render_report(json.loads(json.dumps(report, sort_keys=True)), [example()], "t") == text
    order = [text.index(f'<th scope="row">{TASK_LABELS.get(t, t)}</th>') for t in (*TASKS, *others)]
    assert order == sorted(order)
