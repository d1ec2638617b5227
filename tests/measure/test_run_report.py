"""The page about runs shows the numbers it was given, compares only what can be compared, and stands alone."""

from __future__ import annotations

import base64
import copy
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from test_report import Page

from siglum.data.corpus import write_queries
from siglum.data.world import World
from siglum.files import write_json, write_text
from siglum.measure.run_examples import SIDE, choose_queries, find_examples, find_queries, render_examples
from siglum.measure.run_experiments import read_experiments, render_experiments
from siglum.measure.run_page import render_run_report
from siglum.measure.run_report import MEASURES, Answers, Asked, compare, is_comparable, name_runs, resample
from siglum.types import Query, SiglumError

RUNGS = ("teacher", "oracle", "geometry", "decoder", "fused")


class RunPage(Page):
    """A page in which names may break."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "wbr":
            super().handle_starttag(tag, attrs)


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


def portrait(name: str, own: str | None = "pro", first: float = 0.5, **more: Any) -> dict[str, Any]:
    systems = {"dense": 0.8, "scan": 0.7, "geometry": 0.6} | ({own: first} if own else {})

    def row(value: float) -> dict[str, float]:
        return {measure: round(value + 0.0123 * place, 4) for place, measure in enumerate(MEASURES)}

    return {
        "name": name, "folder": f"runs/{name}", "recipe": "pro", "scale": "tiny", "seed": 0, "notes": [],
        "stages": {"vectors": "finished"}, "trained": None, "items": 90, "queries": {"t2i": 10, "own task": 5},
        "pools": {"t2i": 90, "own task": 90}, "systems": list(systems), "own": own, "diagnosis": diagnosis(),
        "tasks": {t: {s: row(v + high) for s, v in systems.items()} for t, high in (("t2i", 0), ("own task", 0.1))},
        "config": {"seed": 0, "search": {"beam": 10, "omega": first}}, "changed": {}, "changed_known": True, **more,
    }  # fmt: skip


def document(*runs: dict[str, Any], **more: Any) -> dict[str, Any]:
    gap = {m: {"difference": -0.1, "low": -0.2, "high": -0.05} for m in MEASURES}
    versions = {"versions": {"python": "3.11"}, "commit": "abc", "cpu": "chip", "cores": 2, "gpu": None, "system": "OS"}
    return {
        "runs": list(runs), "reference": runs[0]["name"], "command": "siglum report runs/a", "made": "2026-01-01",
        "seconds": 3.2, "split": "test", "machine": versions,
        "differences": {run["name"]: {"t2i": gap, "own task": gap, "mean": gap} for run in runs[1:]}, **more,
    }  # fmt: skip


def asked(found: dict[str, dict[str, list[str]]], right: dict[str, str], own: str | None = "pro", **more: Any) -> Asked:
    """Return the answers of a run to one task: system -> query -> items."""
    runs = {s: {q: [(item, 1.0) for item in items] for q, items in row.items()} for s, row in found.items()}
    qrels = {query: {item: 1} for query, item in right.items()}
    return Asked({"t2i": Answers(qrels, more.get("pool", 9), runs)}, own, more.get("source", {}), "test")


values = st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 1.0])), min_size=2, max_size=30)


@given(values, st.integers(1, 5))
def test_differences_are_means_of_pairs_and_change_sign_with_the_runs(pairs: list[Any], targets: int) -> None:
    a, b = ({f"q{i}": float(pair[side]) for i, pair in enumerate(pairs)} for side in (0, 1))
    target = {query: str(place % targets) for place, query in enumerate(a)}
    there, back = resample(a, b, target, 0), resample(b, a, target, 0)
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
    drawn = resample(a, b, target, 0, rounds=4000)[1:]
    assert drawn.std() == pytest.approx(np.std(plain), rel=0.06)
    together = resample(a, b, dict.fromkeys(a, "x0") | {"q0": "x1"}, 0, rounds=4000)[1:]
    assert len(np.unique(together)) <= 3  # two targets can be drawn in three ways


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


def test_several_runs_stand_side_by_side() -> None:
    runs = portrait("first", first=0.5), portrait("second <b>", first=0.4)
    page = RunPage(text := render_run_report(document(*runs)))
    rows = {cells[0]: cells[1:] for cells in page.cells}
    differences = [cells for cells in page.cells if cells[1:] == ["▼ −10.0 [−20.0, −5.0]"] * 2]
    assert [cells[0] for cells in differences] == ["t→i", "own task", "mean"]
    by_task = next(cells for cells in page.cells if cells[0] == "t→i" and len(cells) == 9)
    assert by_task[1:] == ["50.0", "51.2", "52.5", "53.7", "40.0", "41.2", "42.5", "43.7"]
    bold = re.findall(r"<td[^>]*><b>([\d.]+)</b>", text)
    assert "50.0" in bold and "55.0" in bold and "40.0" not in bold
    assert "55.0 % with first and 45.0 % with second <b>" in page.said("header").replace("\xa0", " ")
    assert "second <b>" not in text and "second &lt;b&gt;" in text
    assert rows["search.omega"] == ["0.5", "0.4"]
    assert text.count('<tr class="changed">') == 1
    for word in ("Token survival", "Targets in the beam", "The pool under the beam", "The ladder", "chance"):
        assert word in text
    facts = [
        "The beam loses 41\xa0% of targets",
        "A &lt;note&gt;.",
        "siglum report runs/a",
        "abc",
        "python 3.11",
        "chip",
    ]
    assert [fact for fact in facts if fact not in text] == []


def test_nothing_is_fetched_and_nothing_runs() -> None:
    text = render_run_report(document(portrait("a"), portrait("b")))
    assert "<script" not in text and "http" not in text and "@import" not in text and "url(" not in text
    for _, attributes in RunPage(text).seen:
        for name in ("src", "href"):
            assert (attributes.get(name) or "data:").startswith("data:")
    assert text == render_run_report(document(portrait("a"), portrait("b")))


def test_one_run_is_a_portrait() -> None:
    run = portrait("only", first=0.4, changed={"search.omega": [1.0, 3.0]})
    page = RunPage(text := render_run_report(document(run)))
    assert "The right item comes first for 45.0\xa0% of queries; dense search does for 85.0\xa0%." in text
    row = next(cells for cells in page.cells if cells[0] == "t→i")
    assert (len(row), row[1], row[13]) == (17, "80.0", "40.0")
    assert next(cells for cells in page.cells if cells[0] == "search.omega") == ["search.omega", "1", "3"]
    assert "The ladder of only" in text and "Differences" not in text and "<td><b>" not in text


def test_runs_asked_other_queries_have_no_best() -> None:
    text = render_run_report(document(portrait("a"), portrait("b", first=0.3), differences={"b": {}}))
    assert "asked other queries" in text and "<td><b>" not in text and "▼" not in text


def test_what_is_missing_is_said_and_left_out() -> None:
    bare = portrait("bare", own=None, tasks={}, systems=[], diagnosis=None, notes=["there is `nothing` yet."])
    page = RunPage(text := render_run_report(document(bare)))
    assert "There is <code>nothing</code> yet." in text
    assert page.words["h2"] == ["What is missing", "Configuration", "How this page was made"]
    young = portrait("young", own="geometry", diagnosis=diagnosis(decoder=False))
    text = render_run_report(document(bare, young, reference="young", differences={"bare": {}}))
    assert "cannot be searched yet" in text and "only one can be searched" in text
    assert "None of these runs" in render_run_report(document(bare, copy.deepcopy(bare) | {"name": "too"}))
    with pytest.raises(SiglumError, match="no runs"):
        render_run_report({"runs": []})


def test_codes_of_other_depths_share_a_chart() -> None:
    flat = portrait("flat", diagnosis=diagnosis(levels=(1, 2, 3, 4)))
    text = render_run_report(document(portrait("deep"), flat))
    chart = next(svg for svg in re.findall(r"<svg.*?</svg>", text) if 'aria-label="Targets in the beam' in svg)
    ticks = [tick for tick in re.findall(r">([M\d]+)</text>", chart) if tick in ("M", "1", "2", "3", "4")]
    assert ticks == ["M", "1", "2", "3", "4"]
    assert chart.count('class="mark"') == 3 + 4


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
    page = render_examples(find_examples(runs, ["one", "two"]), ["one", "two"])
    assert page.count('class="thing right"') == page.count('class="thing wrong"') == 6
    assert "right at rank 1" in page and "not among the first ten" in page and "not kept" in page
    assert find_examples([Asked({}, None, {}, "test")], ["one"]) == []


def test_pictures_and_words_come_from_the_source(tmp_path: Path) -> None:
    world = World(240, 0)
    query = world.queries("test", "it2i")[0]
    source = {"kind": "world", "items": 240, "seed": 0}
    task = Answers({query.id: dict.fromkeys(query.positives, 1)}, 9, {"dense": {query.id: [(query.positives[0], 1.0)]}})
    run = Asked({"it2i": task}, None, source, "test")
    (example,) = find_examples([run], ["w"])
    assert (example.query.text, example.query.wish) == (query.text, query.instruction)
    hit, correct = example.lists[0].hits[0]
    assert correct and hit.picture is not None
    with Image.open(io.BytesIO(base64.b64decode(hit.picture.jpeg))) as image:
        assert image.format == "JPEG" and image.size == (SIDE, SIDE)
    page = RunPage(render_run_report(document(portrait("w")), [example]))
    assert page.count("img") == 3 and query.text in page.said("article")

    write_queries(tmp_path / "test.jsonl", [Query(id="q", text="a dog", positives=("x",))])
    kept = Asked({}, None, {"kind": "items", "path": "gone.jsonl", "test": str(tmp_path / "test.jsonl")}, "test")
    assert find_queries(kept, "", ["q"])["q"].text == "a dog"
    gone = Asked({}, None, {"kind": "items", "path": "gone.jsonl", "test": "gone.jsonl"}, "test")
    assert find_queries(gone, "", ["q"]) == {}
    folder = Asked({}, None, {"kind": "folder", "path": str(tmp_path), "supervised": False}, "test")
    assert find_queries(folder, "i2i", ["a%20b.jpg"])["a%20b.jpg"].image == tmp_path / "a b.jpg"


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
    page = RunPage(text := render_experiments([found]))
    assert page.cells == [["a", "b"], ["x", "1"]] and "<td><b>1</b></td>" in text
    assert page.said("caption") == "By <task>" and page.said("li") == "A note." and "<p>Not.</p>" in text
    assert "Systems &amp; tasks" in text and "siglum experiment main" in text
    image = next(attributes for tag, attributes in page.seen if tag == "img")
    assert image["alt"] == "Bars" and base64.b64decode(str(image["src"]).split(",")[1]).startswith(b"<svg")
