"""The page of the demo shows the numbers it was given, tells the truth about them, and needs nothing beside itself."""

from __future__ import annotations

import base64
import copy
import io
import json
import re
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np
import pytest
from PIL import Image

from markup import all_said, links, one_named, parse, rows, said
from siglum.data.tasks import TASK_LABELS, TASKS
from siglum.pages.contact_sheet import make_thumbnail
from siglum.pages.examples import Listed, RunExample, Shown
from siglum.pages.report import render_report


def row(first: float) -> dict[str, float]:
    keys = ("success@1", "success@5", "success@10", "mrr@10", "ndcg@10", "recall@10")
    return {key: round(first + 0.0121 * i, 4) for i, key in enumerate(keys)}


def diagnosis(own: str, alive: list[float], modality: bool = True) -> dict[str, Any]:
    levels = [
        {
            "level": level, "size": 64, "usage": 0.973, "dead": 7, "entropy": 5.21, "error": 0.3123, "prefixes": 50.0,
            "survival": 0.9, "chance": 0.2, "leaves": 0.5, "K": 1.0, "m": 0.1, "eps": 0.5, "eps_fused": None,
            "prefix_chance": 0.3,
        }
        for level in range(1 - modality, 1 - modality + len(alive))
    ]  # fmt: skip
    rung = {"rung": own, "survival": alive, "leaves": alive, "share": alive, "chance": [0.3] * len(alive)}
    health = {"collision_rate": 0.0123, "reconstruction": 0.1234, "items": 2400, "distinct": 2385}
    return {
        "queries": 800, "beam": 10, "margin": 0.03, "own": own, "decoder": own != "geometry", "verdict": "so it is.",
        "notes": [], "levels": levels, "ladder": [rung], "health": {**health, "largest_collision": 3},
    }  # fmt: skip


def summary(system: str, name: str, firsts: dict[str, float], alive: list[float], **more: Any) -> dict[str, Any]:
    results = [
        {task: {s: row(v - less + 0.0117 * i) for s, v in firsts.items()} for i, task in enumerate(TASKS)}
        for less in (0.0, 0.1)
    ]
    own = "decoder" if firsts else "geometry"
    return {
        "name": name, "system": system, "own": system if firsts else None, "systems": list(firsts), "notes": [],
        "folder": ".", "recipe": system, "scale": "demo", "seed": 3, "stages": {"vectors": "finished"}, "items": 2400,
        "queries": dict.fromkeys(TASKS, 800) if firsts else {}, "pools": {}, "tasks": results[0] if firsts else {},
        "union": results[1] if firsts else {}, "diagnosis": diagnosis(own, alive), "changed": {},
        "token_survival": {"beam": 20, "survival": [0.71, 0.52, 0.33, 0.217], "chance": [0.0391] * 4},
        "config": {"search": {"beam": 10}, "tokenizer": {"vocab": [64, 64, 128, 256]}}, "changed_known": True,
        "trained": None, **more,
    }  # fmt: skip


def sample() -> dict[str, Any]:
    """Return a document as the demo makes it."""
    pro = {"dense": 0.80, "scan": 0.70, "geometry": 0.65, "pro": 0.60}
    chance = {"beam": 20, "survival": [0.97, 0.9, 0.8, 0.613], "chance": [0.1563, 0.1563, 0.0781, 0.0391]}
    gap = {m: {"difference": -0.2, "low": -0.3, "high": -0.1} for m in ("success@1", "mrr@10")}
    return {
        "title": "Title",
        "command": "siglum demo --scale demo --seed 3",
        "split": "test",
        "runs": [
            summary("pro", "PRO", pro, [1.0, 0.97, 0.95, 0.94, 0.937], token_survival=chance),
            summary("genius", "GENIUS", {"genius": 0.40}, [1.0, 0.83, 0.62, 0.6, 0.581]),
            summary("pro_without_pd", "PRO without PD", {}, [1.0, 0.88, 0.8, 0.7, 0.6], token_survival=chance),
        ],
        "reference": "PRO",
        "differences": {"GENIUS": dict.fromkeys((*TASKS, "mean"), gap), "PRO without PD": {}},
        "gap": {"closed": 0.5, "tasks_won": 8, "tasks": 8, "ahead": "PRO", "behind": "GENIUS"},
        "examples_show": "of every task one that tells",
    }


def picture(seed: int, size: int = 24) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (size, size, 3), np.uint8)


def example(task: str = "t2i") -> RunExample:
    target = Shown("s1-i", picture=make_thumbnail(picture(1)))
    other = Shown("s2-t", "a <red> & blue box")
    lists = (
        Listed("dense", "var(--dense)", (), None),
        Listed("PRO", "red", ((target, True), (other, False)), 1),
        Listed("GENIUS", "blue", ((other, False),), None),
    )
    return RunExample(task, Shown("q1", "two boxes", picture=make_thumbnail(picture(0))), target, lists)


def page_of(*given: Any) -> Element:
    return parse(render_report(*given))


def finding(document: dict[str, Any]) -> str:
    (words,) = all_said(page_of(document), "p", "finding")
    return words


def test_the_page_is_accessible_and_made_for_all_screens() -> None:
    text = render_report(sample(), [example(), example("it2it")])
    page = parse(text)
    assert text.startswith("<!DOCTYPE html>") and page.get("lang") == "en"
    assert all_said(page, "h1") == ["Title"]
    assert len(list(page.iter("table"))) == len(all_said(page, "caption")) > 5
    scrolled = [one for one in page.iter("div") if one.get("class") == "scroll"]
    assert len(scrolled) == len(list(page.iter("table"))) and all(one.get("tabindex") == "0" for one in scrolled)
    assert [one.get("aria-label") for one in scrolled] == all_said(page, "caption")
    assert all(one.get("alt") for one in page.iter("img"))
    assert all(one.get("role") == "img" and one.get("aria-label") for one in page.iter("svg"))
    assert "width=device-width" in [one.get("content", "").split(",")[0] for one in page.iter("meta")]
    style = said(page.find("head/style"))
    assert "prefers-color-scheme: dark" in style
    assert re.search(r"tbody th, thead \.corner \{ position: sticky; left: 0;", style)


def test_the_page_refers_to_nothing_outside_itself() -> None:
    text = render_report(sample(), [example()])
    page = parse(text)
    assert not {"script", "iframe", "object"} & {one.tag for one in page.iter()}
    assert links(page) and all(link.startswith("data:") for link in links(page))
    assert not re.search(r"https?:|url\(|@import|//[a-z]", re.sub(r"base64,[^\"]*", "", text))


def test_tables_hold_the_numbers_given() -> None:
    document = sample()
    cells = rows(page_of(document))
    pro, genius, _ = document["runs"]
    columns = ((pro, "dense"), (pro, "pro"), (genius, "genius"))
    usual = ("success@1", "success@5", "success@10", "mrr@10")
    for key, measures in (("tasks", usual), ("tasks", ("ndcg@10", "recall@10")), ("union", usual)):
        for task in TASKS:
            numbers = [f"{100 * run[key][task][s][m]:.1f}" for run, s in columns for m in measures]
            assert [TASK_LABELS[task], *numbers] in cells
        mean = [f"{100 * sum(run[key][t][s][m] for t in TASKS) / 8:.1f}" for run, s in columns for m in measures]
        assert ["mean", *mean] in cells
    for task in TASKS:
        numbers = [f"{100 * pro['tasks'][task][s][m]:.1f}" for s in pro["systems"] for m in usual]
        assert [TASK_LABELS[task], *numbers] in cells
    assert ["PRO", "2,400", "2,385", "1.2", "3", "0.1234"] in cells
    assert next(row for row in cells if row[0] == "M")[:6] == ["M", "64", "97.3", "7", "5.2", "0.3123"]
    assert ["tokenizer.vocab", *["2 × 64, 128, 256"] * 3] in cells


def test_bold_is_the_best_run_and_ties_share_it() -> None:
    document = sample()
    for run in document["runs"]:
        run["union"], run["tasks"] = {}, {task: own for task, own in run["tasks"].items() if task == "t2i"}
    pro, genius = (run["tasks"]["t2i"] for run in document["runs"][:2])
    for system, first in (("dense", 0.9), ("pro", 0.4)):
        pro[system]["success@1"] = first
    genius["genius"]["success@1"] = 0.5
    bold = {said(one) for cell in page_of(document).iter("td") for one in cell.iter("b")}
    assert "50.0" in bold and not {"40.0", "90.0"} & bold
    pro["pro"]["success@1"], pro["dense"]["success@1"] = 0.50001, 0.5
    assert "50.0" not in [said(one) for cell in page_of(document).iter("td") for one in cell.iter("b")]  # all are alike


def test_the_finding_tells_who_wins() -> None:
    document = sample()
    assert (
        finding(document)
        == "PRO beats GENIUS on 8 of 8 tasks in Success@1 and closes 50 % of GENIUS’s gap to dense search."
    )
    document["gap"] |= {"closed": 0.08, "tasks_won": 3, "tasks": 8}
    assert finding(document).startswith("PRO beats GENIUS on 3 of 8 tasks in Success@1 but closes 8 %")
    document["gap"] |= {"closed": -0.21, "tasks_won": 0, "tasks": 8}
    assert "none of 8 tasks in Success@1 and leaves a gap to dense search 21 % wider than GENIUS’s" in finding(document)
    document["gap"] |= {"closed": -0.04, "tasks_won": 5, "tasks": 8}
    assert "5 of 8 tasks in Success@1 but leaves a gap to dense search 4 % wider" in finding(document)
    document["gap"] |= {"closed": 1.2, "tasks_won": 8, "tasks": 8}
    assert "overtakes dense search" in finding(document)


def test_a_gap_that_is_not_there_is_not_closed() -> None:
    document = sample()
    document["gap"]["closed"] = 1.0
    for systems in document["runs"][0]["tasks"].values():
        systems["dense"]["success@1"] = 0.1
    words = said(page_of(document))
    assert "GENIUS leaves no gap" in words
    assert "of the gap between" not in words


def test_the_means_are_told_beside_the_gap_and_without_it() -> None:
    document = sample()
    means = [
        100 * np.mean([run["tasks"][t][s]["success@1"] for t in TASKS])
        for run, s in zip((*document["runs"][:2], document["runs"][0]), ("pro", "genius", "dense"), strict=True)
    ]
    told = "{:.1f} % of queries with PRO, {:.1f} % with GENIUS and {:.1f} % with dense search".format(*means)
    assert told in said(page_of(document))
    del document["gap"]
    assert "{:.1f} % of queries with PRO and {:.1f} % with GENIUS".format(*means) in finding(document)


def test_key_figures_and_drops_are_those_of_the_beam() -> None:
    page = page_of(sample())
    assert all_said(page, "p", "big") == ["50 %", "8 of 8", "64.1 %", "44.1 %"]
    ends = re.findall(r"([\d.]+) % of targets still in the beam after the last level", said(page))
    assert ends == ["93.7", "58.1"]
    caption = said(one_named(page, "figure", "Targets in the beam"))
    assert "PRO loses most at level 1: 3.0 points. GENIUS loses most at level 2: 21.0 points." in caption
    assert "PRO without PD by distance alone, without a decoder, loses most at level 1: 12.0 points." in caption


def test_survival_is_drawn_with_chance_and_its_own_beam() -> None:
    figure = one_named(page_of(sample()), "figure", "Token survival")
    chart = figure.find("svg")
    assert chart is not None
    label = chart.attrib["aria-label"]
    assert "GENIUS 71.0 to 21.7 %" in label and "PRO 97.0 to 61.3 %" in label
    assert "chance PRO +1 15.6 to 3.9 %" in label and "chance GENIUS 3.9 to 3.9 %" in label
    assert "M" not in all_said(chart, "text") and "among the 20 best" in said(figure)


def test_codes_without_a_modality_token_are_numbered_from_one() -> None:
    document = sample()
    for run in document["runs"]:
        rung = run["diagnosis"]["ladder"][0]
        run["diagnosis"] = diagnosis(rung["rung"], rung["survival"][1:], modality=False)
    page = page_of(document)
    assert "M" not in [*all_said(page, "text"), *all_said(page, "th")]
    assert "modality token" not in said(page)
    assert "GENIUS loses most at level 2: 21.0 points." in said(page)


SIGNS = {
    "union": "The union pool", "diagnosis": "Where targets are lost", "gap": "of the gap between",
    "machine": "Processor", "examples": "of every task one that tells",
}  # fmt: skip


@pytest.mark.parametrize("key", ["union", "diagnosis", "gap", "machine"])
def test_a_missing_part_is_left_out_alone(key: str) -> None:
    machine = {"versions": {}, "commit": "abc", "cpu": "chip", "cores": 2, "gpu": None, "system": "OS"}
    document = sample() | {"machine": machine}
    assert all(sign in said(page_of(document, [example()])) for sign in SIGNS.values())
    document.pop(key, None)
    for run in document["runs"]:
        run |= {key: None if key == "diagnosis" else {}} if key in run else {}
    words = said(page_of(document, [example()]))
    assert [name for name, sign in SIGNS.items() if sign not in words] == [key]


def test_a_run_for_survival_alone_is_not_called_unfinished() -> None:
    page = page_of(sample())
    assert "cannot be searched yet" not in said(page) and "What is missing" not in all_said(page, "h2")
    assert "measured for" in said(page) and all_said(page, "p", "name") == ["PRO", "GENIUS"]


def test_a_system_that_missed_a_task_shows_a_dash() -> None:
    document = sample()
    del document["runs"][0]["tasks"]["t2i"]["pro"]
    cells = rows(page_of(document))
    assert next(row for row in cells if row[0] == "t→i")[5:9] == ["–"] * 4
    assert next(row for row in cells if row[0] == "mean")[5:9] == ["–"] * 4


def test_everything_is_escaped() -> None:
    evil = "<script>alert('x')</script>&\""
    shown = Shown(evil, evil, evil, make_thumbnail(picture(0)))
    document = sample() | {"title": evil, "command": evil, "examples_show": evil}
    document["gap"]["behind"] = document["runs"][1]["name"] = evil
    document["differences"] = {evil: document["differences"]["GENIUS"]}
    document["runs"][0]["tasks"][evil] = {evil: row(0.3), "pro": row(0.2)}
    document["runs"][0]["systems"].append(evil)
    document["runs"][0]["config"][evil] = {evil: evil}
    document["runs"][0]["diagnosis"]["verdict"] = evil
    lists = (Listed(evil, "red", ((shown, False),), None),)
    page = page_of(document, [RunExample(evil, shown, shown, lists)])
    assert list(page.iter("script")) == []
    assert said(page.find("head/title")).startswith(evil)
    assert said(page.find(".//article")).count(evil) >= 6
    assert all_said(page, "h1") == [evil]


def test_examples_mark_right_and_wrong_and_show_pictures() -> None:
    page = page_of(sample(), [example()])
    article = page.find(".//article")
    assert article is not None
    words = said(article)
    assert words.index("dense") < words.index("PRO") < words.index("GENIUS")
    assert "no results" in words
    assert (len(all_said(article, "div", "right")), len(all_said(article, "div", "wrong"))) == (1, 2)
    assert (words.count("✓"), words.count("✗")) == (1, 2)
    assert words.count("a <red> & blue box") == 2
    assert "two boxes" in words and "of every task one that tells" in said(page)
    assert len(list(article.iter("img"))) == 3


def test_pictures_come_back_small() -> None:
    flat = np.zeros((300, 600, 3), np.uint8)
    flat[:, 300:] = (10, 200, 30)
    small = make_thumbnail(flat, 192)
    assert small is not None
    with Image.open(io.BytesIO(base64.b64decode(small.jpeg))) as image:
        assert (image.format, image.size) == ("JPEG", (192, 96))
        assert np.abs(np.asarray(image.convert("RGB"))[50, 150].astype(int) - (10, 200, 30)).max() < 8


def test_equal_input_gives_equal_bytes_whatever_the_order_of_keys() -> None:
    document = sample()
    others = ["aa", "bb", "cc", "dd", "ee", "ff"]
    document["runs"][0]["tasks"] |= {task: {"pro": row(0.1)} for task in reversed(others)}
    kept = copy.deepcopy(document)
    text = render_report(document, [example()])
    assert document == kept
    tasks = document["runs"][0]["tasks"]
    document["runs"][0]["tasks"] = {task: tasks[task] for task in sorted(tasks)}
    again = json.loads(json.dumps(document))
    assert render_report(again, [example()]) == text
    heads = [cells[0] for cells in rows(parse(text))]
    order = [heads.index(TASK_LABELS.get(task, task)) for task in (*TASKS, *others)]
    assert order == sorted(order)
