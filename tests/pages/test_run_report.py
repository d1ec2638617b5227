"""The page about runs shows the numbers it was given, compares only what can be compared, and stands alone."""

from __future__ import annotations

import base64
import copy
import io
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from markup import all_said, links, one_named, parse, rows, said
from siglum.data.corpus import write_queries
from siglum.files import write_json, write_text
from siglum.lab.world.collection import World
from siglum.pages.document import COLUMNS, Answers, RunResults, compare, is_comparable, name_runs, resample
from siglum.pages.examples import SIDE, choose_favourable, choose_queries, find_examples, find_queries
from siglum.pages.experiments import read_experiments
from siglum.pages.measurement import token_survival_of
from siglum.pages.report import render_report
from siglum.types import Query, SiglumError

RUNGS = ("teacher", "oracle", "geometry", "decoder", "fused")


def diagnosis(levels: tuple[int, ...] = (0, 1, 2), drop: float = 0.1, decoder: bool = True) -> dict[str, Any]:
    names = RUNGS if decoder else RUNGS[:3]
    one = {"size": 16, "prefixes": 40.0, "survival": 0.8125, "K": 1.5, "m": 0.25, "chance": 0.625, "leaves": 0.5}
    one |= {"prefix_chance": 0.375, "usage": 0.9, "dead": 2, "entropy": 3.5, "error": 0.1, "eps_fused": 0.5}
    one |= {"eps": 0.75 if decoder else None}
    ladder = []
    for place, name in enumerate(names):
        kept = [1 - drop * (place + 1) * step / len(levels) for step in range(len(levels))]
        leaves = [0.5**step for step in range(len(levels))]
        lost = {"share": [0.0] * len(levels), "lost": [0.0] * len(levels), "chance": [0.375] * len(levels)}
        ladder.append({"rung": name, "survival": kept, "leaves": leaves, **lost})
    return {
        "split": "test", "queries": 100, "pools": 1, "beam": 10, "tau": 0.05, "own": names[-1], "decoder": decoder,
        "margin": 0.098, "health": {"items": 90, "distinct": 80, "collision_rate": 0.2, "largest_collision": 3,
                                    "reconstruction": 0.125},
        "levels": [{**one, "level": level} for level in levels], "ladder": ladder,
        "verdict": "the beam loses 41 % of targets at level 2: smaller vocabulary there.", "notes": ["a <note>."],
    }  # fmt: skip


def summary(name: str, own: str | None = "pro", first: float = 0.5, **more: Any) -> dict[str, Any]:
    systems = {"dense": 0.8, "scan": 0.7, "geometry": 0.6} | ({own: first} if own else {})

    def row(value: float) -> dict[str, float]:
        return {measure: round(value + 0.0123 * place, 4) for place, measure in enumerate(COLUMNS)}

    whole = {
        "name": name, "folder": f"runs/{name}", "recipe": "pro", "scale": "tiny", "seed": 0, "notes": [],
        "stages": {"vectors": "finished"}, "items": 90, "queries": {"t2i": 10, "own task": 5},
        "pools": {"t2i": 90, "own task": 90}, "systems": list(systems), "own": own, "diagnosis": diagnosis(),
        "tasks": {t: {s: row(v + high) for s, v in systems.items()} for t, high in (("t2i", 0), ("own task", 0.1))},
        "config": {"seed": 0, "search": {"beam": 10, "omega": first}}, "changed": {}, "changed_known": True,
        "union": {}, "trained": None, **more,
    }  # fmt: skip
    return {"token_survival": token_survival_of(whole["diagnosis"]) if whole["diagnosis"] else None, **whole}


def document(*runs: dict[str, Any], **more: Any) -> dict[str, Any]:
    gap = {m: {"difference": -0.1, "low": -0.2, "high": -0.05} for m in COLUMNS}
    versions = {"versions": {"python": "3.11"}, "commit": "abc", "cpu": "chip", "cores": 2, "gpu": None, "system": "OS"}
    return {
        "runs": list(runs), "reference": runs[0]["name"], "command": "siglum report runs/a", "made": "2026-01-01",
        "seconds": 3.2, "split": "test", "machine": versions,
        "differences": {run["name"]: {"t2i": gap, "own task": gap, "mean": gap} for run in runs[1:]}, **more,
    }  # fmt: skip


def asked(
    found: dict[str, dict[str, list[str]]], right: dict[str, str], own: str | None = "pro", **more: Any
) -> RunResults:
    """Return the answers of a run to one task: system -> query -> items."""
    runs = {s: {q: [(item, 1.0) for item in items] for q, items in row.items()} for s, row in found.items()}
    qrels = {query: {item: 1} for query, item in right.items()}
    return RunResults({"t2i": Answers(qrels, more.get("pool", 9), runs)}, own, more.get("source", {}), "test")


values = st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 1.0])), min_size=2, max_size=30)


@given(values, st.integers(1, 5))
def test_differences_are_means_of_pairs_and_change_sign_with_the_runs(pairs: list[Any], targets: int) -> None:
    a, b = ({f"q{i}": float(pair[side]) for i, pair in enumerate(pairs)} for side in (0, 1))
    target = {query: str(place % targets) for place, query in enumerate(a)}
    there, back = (resample({"m": x}, {"m": y}, target, 0)[:, 0] for x, y in ((a, b), (b, a)))
    assert there[0] == pytest.approx(np.mean(list(a.values())) - np.mean(list(b.values())))
    assert back[0] == pytest.approx(-there[0])
    sums = [[a[q] - b[q] for q in a if target[q] == name] for name in set(target.values())]
    means = [np.mean(own) for own in sums]
    assert min(means) - 1e-9 <= there[1:].min() and there[1:].max() <= max(means) + 1e-9


def test_the_spread_is_that_of_a_plain_bootstrap_over_targets() -> None:
    rng = np.random.default_rng(3)
    a = {f"q{i}": float(rng.random() < 0.7) for i in range(120)}
    b = {query: float(rng.random() < 0.5) for query in a}
    target = {query: f"x{i // 3}" for i, query in enumerate(a)}
    gap_GK = np.array([a[q] - b[q] for q in a]).reshape(40, 3)
    plain = [gap_GK[rng.integers(0, 40, 40)].mean() for _ in range(4000)]
    drawn = resample({"m": a}, {"m": b}, target, 0, rounds=4000)[1:, 0]
    assert drawn.std() == pytest.approx(np.std(plain), rel=0.06)
    together = resample({"m": a}, {"m": b}, dict.fromkeys(a, "x0") | {"q0": "x1"}, 0, rounds=4000)[1:]
    assert len(np.unique(together.round(12))) <= 3  # two targets can be drawn in three ways


def test_runs_are_compared_only_where_they_were_asked_the_same() -> None:
    right = {"p": "a", "q": "b", "r": "c"}
    first = asked({"pro": {"p": ["a"], "q": ["x"], "r": ["x", "c"]}}, right)
    other = asked({"pro": {"p": ["a"], "q": ["b"], "r": ["c"]}}, right)
    found = compare(first, other)
    assert found["t2i"]["success@1"]["difference"] == pytest.approx(2 / 3)
    assert found["mean"] == found["t2i"] and found["t2i"]["mrr@10"]["difference"] == pytest.approx(0.5)
    assert 0 <= found["t2i"]["success@1"]["low"] <= 2 / 3 <= found["t2i"]["success@1"]["high"] <= 1
    assert compare(first, asked({"pro": {}}, right, pool=8)) == {}
    assert compare(first, asked({"pro": {}}, {**right, "r": "d"})) == {}
    assert compare(first, asked({"dense": {}}, right, own=None)) == {}
    worlds = [asked({"pro": {}}, right, source={"kind": "world", "items": 240, "seed": seed}) for seed in (0, 1)]
    assert not is_comparable(*worlds, "t2i") and is_comparable(worlds[0], worlds[0], "t2i")


def test_a_run_given_twice_is_refused() -> None:
    with pytest.raises(SiglumError, match="given twice"):
        name_runs([Path("a/b"), Path("a/../a/b")])


def page_of(*runs: dict[str, Any], **more: Any) -> Element:
    return parse(render_report(document(*runs, **more)))


def test_several_runs_stand_side_by_side() -> None:
    page = page_of(summary("first", first=0.5), summary("second <b>", first=0.4))
    cells = rows(page)
    differences = [row for row in cells if row[1:] == ["▼ −10.0 [−20.0, −5.0]"] * 2]
    assert [row[0] for row in differences] == ["t→i", "own task", "mean"]
    by_task = next(row for row in cells if row[0] == "t→i" and len(row) == 13)
    assert by_task[1:5] == ["80.0", "81.2", "82.5", "83.7"]  # dense search, which both share
    assert by_task[5:] == ["50.0", "51.2", "52.5", "53.7", "40.0", "41.2", "42.5", "43.7"]
    bold = [said(one) for cell in page.iter("td") for one in cell.iter("b")]
    assert "50.0" in bold and "55.0" in bold and "40.0" not in bold
    assert "55.0 % of queries with first and 45.0 % with second <b>" in said(page.find(".//header"))
    assert ["search.omega", "0.5", "0.4"] in cells
    assert len(all_said(page, "tr", "changed")) == 1
    for name in ("Token survival", "Targets in the beam", "The pool under the beam"):
        assert {"first", "second <b>"} <= set(all_said(one_named(page, "figure", name), "text"))
    ladder = {words.split()[0] for words in all_said(one_named(page, "figure", "The ladder of first"), "text")}
    assert {"teacher", "fused", "chance"} <= ladder  # one beyond the axis has its value beside its name
    words = said(page)
    facts = ["The beam loses 41 % of targets", "A <note>.", "siglum report runs/a", "abc", "python 3.11", "chip"]
    assert [fact for fact in facts if fact not in words] == []


def test_nothing_is_fetched_and_nothing_runs() -> None:
    text = render_report(document(summary("a"), summary("b")))
    assert "<script" not in text and "http" not in text and "@import" not in text and "url(" not in text
    assert all(link.startswith("data:") for link in links(parse(text)))
    assert text == render_report(document(summary("a"), summary("b")))


def test_one_run_is_shown_in_full() -> None:
    page = page_of(summary("only", first=0.4, changed={"search.omega": [1.0, 3.0]}))
    finding = "The right item comes first for 45.0 % of queries; dense search does for 85.0 %."
    assert all_said(page, "p", "finding") == [finding]
    row = next(cells for cells in rows(page) if cells[0] == "t→i")
    assert (len(row), row[1], row[13]) == (17, "80.0", "40.0")
    assert next(cells for cells in rows(page) if cells[0] == "search.omega") == ["search.omega", "1", "3"]
    one_named(page, "figure", "The ladder of only")
    assert "Differences" not in said(page) and not [one for cell in page.iter("td") for one in cell.iter("b")]


def test_runs_asked_other_queries_have_no_best() -> None:
    page = page_of(summary("a"), summary("b", first=0.3), differences={"b": {}})
    assert "Success@1; asked other queries than the first" in all_said(page, "p", "note")
    assert "the runs were asked other queries, or searched other pools." in said(page)
    assert not [one for cell in page.iter("td") for one in cell.iter("b")] and "▼" not in said(page)


def test_what_is_missing_is_said_and_left_out() -> None:
    bare = summary("bare", own=None, tasks={}, systems=[], diagnosis=None, notes=["there is `nothing` yet."])
    page = page_of(bare)
    assert "There is nothing yet." in all_said(page, "p") and all_said(page, "code") == ["nothing"]
    assert all_said(page, "h2") == ["What is missing", "Configuration", "How this page was made"]
    young = summary("young", own="geometry", diagnosis=diagnosis(decoder=False))
    words = said(page_of(bare, young, reference="young", differences={"bare": {}}))
    assert "cannot be searched yet" in words and "only one can be searched" in words
    assert "None of these runs" in said(page_of(bare, copy.deepcopy(bare) | {"name": "too"}))
    with pytest.raises(SiglumError, match="no runs"):
        render_report({"runs": []})


def test_codes_of_other_depths_share_a_chart() -> None:
    page = page_of(summary("deep"), summary("flat", diagnosis=diagnosis(levels=(1, 2, 3, 4))))
    chart = one_named(page, "svg", "Targets in the beam")
    assert [tick for tick in all_said(chart, "text") if tick in ("M", "1", "2", "3", "4")] == ["M", "1", "2", "3", "4"]
    assert len(all_said(chart, "path", "mark")) == 3 + 4


def test_a_scorer_of_ones_own_is_a_rung_too() -> None:
    told = diagnosis()
    told["ladder"].append({**told["ladder"][-1], "rung": "mine"})
    for name, runs in (
        ("The ladder of a", [summary("a", diagnosis=told)]),
        ("Targets that reach", [summary("a", diagnosis=told), summary("b")]),
    ):
        assert "mine" in all_said(one_named(page_of(*runs), "svg", name), "text")


def test_examples_alternate_between_the_runs() -> None:
    right = {f"q{i}": f"x{i}" for i in range(12)}
    good, bad = (
        {q: [item if number % 2 == side else "no"] for number, (q, item) in enumerate(right.items())} for side in (0, 1)
    )
    runs = [asked({"pro": found, "dense": good}, right) for found in (good, bad)]
    chosen = [query for _, query in choose_queries(runs)]
    assert len(set(chosen)) == 6 and sum(int(query[1:]) % 2 for query in chosen) == 3
    alone = [
        query for _, query in choose_queries([asked({"pro": good, "dense": {q: [right[q]] for q in right}}, right)])
    ]
    assert sum(int(query[1:]) % 2 for query in alone) == 3
    examples = find_examples(runs, ["one", "two"])
    page = parse(render_report(document(summary("one"), summary("two")), examples))
    assert len(all_said(page, "div", "right")) == len(all_said(page, "div", "wrong")) == 6
    words = " ".join(all_said(page, "article"))
    assert "right at rank 1" in words and "not among the first ten" in words and "not kept" in words
    assert "in turn one that another run finds first and one does not" in said(page)
    assert find_examples([RunResults({}, None, {}, "test")], ["one"]) == []


def test_examples_for_the_first_run_are_those_it_and_dense_search_find_alone() -> None:
    right = {f"q{i}": f"x{i}" for i in range(8)}
    own, other, dense = (
        {q: [item if i in found else "no"] for i, (q, item) in enumerate(right.items())}
        for found in ({0, 1, 3, 5, 6}, {0, 1, 5}, {0, 2, 3, 4, 6})
    )
    runs = [asked({"pro": own, "dense": dense}, right), asked({"genius": other}, right, own="genius")]
    assert choose_favourable(runs) == [("t2i", "q3")]
    (example,) = find_examples(runs, ["PRO", "GENIUS"], for_the_first=True)
    assert [(one.name, one.rank) for one in example.lists] == [("dense", 1), ("PRO", 1), ("GENIUS", None)]
    runs = [asked({"pro": own, "dense": dense}, right), asked({"genius": own}, right, own="genius")]
    assert choose_favourable(runs) == [("t2i", "q0")]  # none is such, and the first comes close


def test_pictures_and_words_come_from_the_source(tmp_path: Path) -> None:
    world = World(240, 0)
    query = world.queries("test", "it2i")[0]
    source = {"kind": "world", "items": 240, "seed": 0}
    task = Answers({query.id: dict.fromkeys(query.positives, 1)}, 9, {"dense": {query.id: [(query.positives[0], 1.0)]}})
    run = RunResults({"it2i": task}, None, source, "test")
    (example,) = find_examples([run], ["w"])
    assert (example.query.text, example.query.instruction) == (query.text, query.instruction)
    hit, correct = example.lists[0].hits[0]
    assert correct and hit.picture is not None
    with Image.open(io.BytesIO(base64.b64decode(hit.picture.jpeg))) as image:
        assert image.format == "JPEG" and image.size == (SIDE, SIDE)
    page = parse(render_report(document(summary("w")), [example]))
    assert len(list(page.iter("img"))) == 3 and query.text in all_said(page, "article")[0]

    write_queries(tmp_path / "test.jsonl", [Query(id="q", text="a dog", positives=("x",))])
    kept = RunResults({}, None, {"kind": "items", "path": "gone.jsonl", "test": str(tmp_path / "test.jsonl")}, "test")
    assert find_queries(kept.source, kept.split, "", ["q"])["q"].text == "a dog"
    gone = RunResults({}, None, {"kind": "items", "path": "gone.jsonl", "test": "gone.jsonl"}, "test")
    assert find_queries(gone.source, gone.split, "", ["q"]) == {}
    folder = RunResults({}, None, {"kind": "folder", "path": str(tmp_path), "supervised": False}, "test")
    assert find_queries(folder.source, folder.split, "i2i", ["a%20b.jpg"])["a%20b.jpg"].image == tmp_path / "a b.jpg"


def test_experiments_are_shown_as_they_were_written(tmp_path: Path) -> None:
    with pytest.raises(SiglumError, match="no finished experiment"):
        read_experiments(tmp_path)
    write_json(tmp_path / "main" / "results.json", {"title": "Systems & tasks", "command": "siglum experiment main"})
    write_text(
        tmp_path / "main" / "table.md",
        "# T\n\n## By <task>\n\n| a | b |\n|---|--:|\n| x | **1** |\n\n- A note.\n\nNot.\n",
    )
    write_text(tmp_path / "main" / "bars.svg", '<svg xmlns="http://www.w3.org/2000/svg"/>')
    write_json(tmp_path / "main" / "bars.json", {"title": "Bars"})
    write_text(tmp_path / "half" / "results.json", "{}")
    (found,) = read_experiments(tmp_path)
    whole = parse(render_report(document(summary("a")), (), [found]))
    (page,) = (one for one in whole.iter("details") if one.get("class") == "experiment")
    assert rows(page) == [["a", "b"], ["x", "1"]] and all_said(page, "b")[-1] == "1"
    assert all_said(page, "caption") == ["By <task>"] and all_said(page, "li") == ["A note."]
    assert all_said(page, "p") == ["Not.", "siglum experiment main"]
    assert all_said(page, "summary") == ["Systems & tasks"]
    (image,) = page.iter("img")
    assert image.get("alt") == "Bars"
    assert base64.b64decode(image.attrib["src"].split(",")[1]).startswith(b"<svg")
