"""Measures agree with their definitions, count silent queries as 0 and follow the order of the list."""

from __future__ import annotations

import math

import pytest

from siglum.data.trec import Qrels, Run
from siglum.measure.retrieval import evaluate, per_query, summarise
from siglum.types import SiglumError

QRELS: Qrels = {"q1": {"a": 1, "b": 1}, "q2": {"c": 1}, "q3": {"d": 1}, "q4": {"e": 0, "f": -1}}
RUN: Run = {"q1": [("x", 3.0), ("a", 2.0)], "q2": [("c", 1.0)], "q4": [("e", 2.0), ("f", 1.0)], "other": [("a", 1.0)]}


def test_measures_by_hand_over_the_queries_of_the_qrels() -> None:
    found = evaluate(RUN, QRELS)
    assert list(found) == ["success@1", "success@5", "success@10", "recall@10", "ndcg@10", "mrr@10"]
    ideal = 1 + 1 / math.log2(3)
    assert found == pytest.approx(
        {
            "success@1": 1 / 4,
            "success@5": 2 / 4,
            "success@10": 2 / 4,
            "recall@10": (0.5 + 1) / 4,
            "ndcg@10": (1 / math.log2(3) / ideal + 1) / 4,
            "mrr@10": (0.5 + 1) / 4,
        }
    )


def test_per_query_covers_every_query_in_order() -> None:
    found = per_query(RUN, QRELS, ("RR@10", "Success@1"))
    assert list(found) == ["mrr@10", "success@1"]
    assert found["mrr@10"] == {"q1": 0.5, "q2": 1.0, "q3": 0.0, "q4": 0.0}
    assert list(found["mrr@10"]) == list(QRELS)


def test_an_empty_run_counts_zero() -> None:
    for run in ({}, {"q1": []}):
        assert set(evaluate(run, QRELS).values()) == {0.0}


def test_grades_below_zero_count_as_zero() -> None:
    run: Run = {"q": [(item, 0.0) for item in "jkab"]}
    found = [evaluate(run, {"q": {"a": 2, "b": 1, "j": grade, "k": grade}}) for grade in (0, -1, -2)]
    assert found[0] == found[1] == found[2]
    assert found[0]["mrr@10"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("wanted", ["a", "m", "z"])
def test_ties_are_settled_by_the_order_of_the_list(wanted: str) -> None:
    run: Run = {"q": [(item, 0.5) for item in [wanted, *sorted(set("amz") - {wanted})]]}
    assert set(evaluate(run, {"q": {wanted: 1}}).values()) == {1.0}


@pytest.mark.parametrize("measure", ["Recall@5", "success@1", "Success", "R@0", "RR@x", "nDCG@10 "])
def test_an_unknown_measure_is_refused(measure: str) -> None:
    with pytest.raises(SiglumError, match="must be one of: Success@k, R@k, nDCG@k, RR@k"):
        evaluate(RUN, QRELS, (measure,))


def test_wrong_input_is_refused() -> None:
    with pytest.raises(SiglumError, match="qrels are empty"):
        evaluate(RUN, {})
    with pytest.raises(SiglumError, match="query 'q1' lists an item twice"):
        evaluate({"q1": [("a", 1.0), ("a", 0.5)]}, QRELS)


def test_summary_over_seeds() -> None:
    summary = summarise([45.4, 45.9, 46.1])
    assert summary.mean == pytest.approx(45.8)
    assert summary.std == pytest.approx(math.sqrt((0.16 + 0.01 + 0.09) / 2))
    assert summary.half_width == pytest.approx(1.96 * summary.std / math.sqrt(3))
    assert summary.n == 3
    assert str(summary) == "45.8 ± .41"
    assert summarise([0.40, 0.50]).show(100) == "45.0 ± 9.80"
    assert str(summarise([45.8])) == "45.8"
    assert str(summarise([1.0, 1.0])) == "1.0 ± .00"
    with pytest.raises(SiglumError, match="no values"):
        summarise([])
