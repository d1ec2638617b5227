"""TREC files keep ranks whatever the scores, and TREC tools agree with the written order."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from siglum.data.trec import Qrels, Run, decreasing_scores, read_qrels, read_run, write_qrels, write_run
from siglum.types import SiglumError

SCORES = st.lists(st.floats(-1e30, 1e30), min_size=1, max_size=30).map(lambda values: sorted(values, reverse=True))

GOLDEN_RUN = """\
q1 Q0 b 1 2.5 demo
q1 Q0 a 2 0.5 demo
q1 Q0 c 3 0.49999997 demo
q2 Q0 a 1 0.0 demo
q2 Q0 b 2 -1e-45 demo
q2 Q0 c 3 -7.25 demo
"""


def test_run_golden_file(tmp_path: Path) -> None:
    run: Run = {
        "q1": [("b", 2.5), ("a", 0.5), ("c", 0.5)],
        "none": [],
        "q2": [("a", 0.0), ("b", 0.0), ("c", -7.25)],
    }
    write_run(tmp_path / "run.txt", run, "demo")
    assert (tmp_path / "run.txt").read_text() == GOLDEN_RUN


def test_qrels_golden_file(tmp_path: Path) -> None:
    qrels: Qrels = {"q1": {"b": 1, "a": 0}, "q2": {"c": 3}}
    write_qrels(tmp_path / "qrels.txt", qrels)
    assert (tmp_path / "qrels.txt").read_text() == "q1 0 b 1\nq1 0 a 0\nq2 0 c 3\n"
    assert read_qrels(tmp_path / "qrels.txt") == qrels


def test_qrels_with_a_task_column_and_repeated_lines(tmp_path: Path) -> None:
    path = tmp_path / "qrels.txt"
    path.write_text("1:1 0 4:2 1 0\n1:1\t0\t4:3\t1\t0\n\n1:1 0 4:2 1 0\n1:2 0 4:9 1 2\n")
    assert read_qrels(path) == {"1:1": {"4:2": 1, "4:3": 1}, "1:2": {"4:9": 1}}


@given(SCORES)
@example([0.0] * 1000)
@example([1.0, 1.0 - 1e-12, 1.0 - 2e-12, 0.9999999])
def test_written_scores_strictly_decrease_even_in_single_precision(scores: list[float]) -> None:
    parsed = [float(str(score)) for score in decreasing_scores(scores)]
    assert all(np.diff(np.array(parsed, np.float32)) < 0)
    assert all(a > b for a, b in pairwise(parsed))


@given(SCORES)
def test_written_scores_are_the_nearest_float32_unless_that_would_tie(scores: list[float]) -> None:
    written = decreasing_scores(scores)
    for place, score in enumerate(scores):
        nearest = np.float32(score)
        if place and nearest >= written[place - 1]:
            nearest = np.nextafter(written[place - 1], np.float32(-np.inf))
        assert written[place] == nearest


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.sampled_from([0.0, 0.1, 0.10000000001, -3.7, 1e-9]), max_size=8), min_size=1, max_size=4))
def test_runs_survive_the_round_trip_in_order(tmp_path_factory: pytest.TempPathFactory, lists: list) -> None:
    run: Run = {
        f"q{number}": [(f"d{place}", score) for place, score in enumerate(sorted(scores, reverse=True))]
        for number, scores in enumerate(lists)
    }
    run["last"] = [("a", 1.0)]
    path = tmp_path_factory.mktemp("run") / "run.txt"
    write_run(path, run)
    found = read_run(path)
    assert {query: [item for item, _ in results] for query, results in found.items()} == {
        query: [item for item, _ in results] for query, results in run.items() if results
    }
    for query, results in found.items():
        assert np.allclose([score for _, score in results], [score for _, score in run[query]], atol=1e-6)
    again = path.with_name("again.txt")
    write_run(again, found)
    assert again.read_bytes() == path.read_bytes()


def test_trec_eval_sees_the_written_order_of_ties(tmp_path: Path) -> None:
    import pytrec_eval

    # trec_eval puts the greater id first among ties, so the right answer would come last.
    run: Run = {"q": [(f"d{place}", 0.7 + 1e-13 * (9 - place)) for place in range(10)]}
    write_run(tmp_path / "run.txt", run)
    evaluator = pytrec_eval.RelevanceEvaluator({"q": {"d0": 1}}, {"recip_rank"})
    assert evaluator.evaluate({"q": dict(run["q"])})["q"]["recip_rank"] == pytest.approx(0.1)
    assert evaluator.evaluate({"q": dict(read_run(tmp_path / "run.txt")["q"])})["q"]["recip_rank"] == 1.0


def test_a_foreign_run_is_ordered_by_score_then_rank(tmp_path: Path) -> None:
    path = tmp_path / "run.txt"
    path.write_text("q Q0 c 2 1.0 x\nq Q0 a 3 2.0 x\nq Q0 b 1 1.0 x\n")
    assert read_run(path) == {"q": [("a", 2.0), ("b", 1.0), ("c", 1.0)]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "run.txt is empty"),
        ("q Q0 a 1 1.0 x\nq Q0 b 2", "line 2: found 4 columns instead of 6 .* may be truncated"),
        ("q Q0 a one 1.0 x", "line 1: rank 'one' and score '1.0'"),
        ("q Q0 a 1 high x", "line 1: rank '1' and score 'high'"),
        ("q Q0 a 1 nan x", "line 1: the score 'nan' is not a finite number"),
        ("q Q0 a 1 2.0 x\nq Q0 a 2 1.0 x", "line 2: query 'q' lists item 'a' twice"),
    ],
)
def test_faulty_runs_are_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "run.txt"
    path.write_text(content)
    with pytest.raises(SiglumError, match=message):
        read_run(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\n", "qrels.txt is empty"),
        (b"q 0 a", "line 1: found 3 columns instead of 4 or 5"),
        (b"q 0 a 1 7\nq 0 b 1", "line 2: found 4 columns instead of 5"),
        (b"q 0 a yes", "line 1: the grade 'yes'"),
        (b"q 0 a 1\nq 0 a 2", "line 2: item 'a' of query 'q' has grade 2 here and 1 before"),
        (b"q 0 \xff 1", "line 1: this is not UTF-8"),
    ],
)
def test_faulty_qrels_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "qrels.txt"
    path.write_bytes(content)
    with pytest.raises(SiglumError, match=message):
        read_qrels(path)


def test_missing_files_are_refused(tmp_path: Path) -> None:
    for read in (read_run, read_qrels):
        with pytest.raises(SiglumError, match=r"gone.txt cannot be read: No such file"):
            read(tmp_path / "gone.txt")


@pytest.mark.parametrize("name", ["a b", "", "a\tb", "a\u00a0b", "a\n"])
def test_ids_that_are_not_one_column_are_refused_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    path = tmp_path / "out.txt"
    for run in ({name: [("a", 1.0)]}, {"q": [(name, 1.0)]}):
        with pytest.raises(SiglumError, match="whitespace"):
            write_run(path, run)
    with pytest.raises(SiglumError, match="tag"):
        write_run(path, {"q": [("a", 1.0)]}, name)
    for qrels in ({name: {"a": 1}}, {"q": {name: 1}}):
        with pytest.raises(SiglumError, match="whitespace"):
            write_qrels(path, qrels)
    assert list(tmp_path.iterdir()) == []


def test_runs_that_cannot_be_ranked_are_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    cases = [
        ([("a", 1.0), ("b", 2.0)], "rank 2 has score 2.0, above the 1.0"),
        ([("a", float("nan"))], "rank 1 has score nan"),
        ([("a", 1e300)], "no finite float32"),
        ([("a", 1.0), ("a", 0.5)], "lists an item twice"),
    ]
    for results, message in cases:
        with subtests.test(message), pytest.raises(SiglumError, match=message):
            write_run(tmp_path / "run.txt", {"q": results})
