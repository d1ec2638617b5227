"""From ranks to the document and the table: measures are ir-measures' own, intervals hold, gaps are shares."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from siglum.lab.captions.systems import UNITS
from siglum.lab.captions.table import ORDER, build_document, markdown
from siglum.lab.catalogue.systems import ALONE
from siglum.lab.experiments.ranks import MEASURES, Ranks
from siglum.lab.units import Part
from siglum.measure.retrieval import evaluate

SYSTEMS = [name for name, _ in ORDER if name not in ALONE]
FACTS = {"scale": "captions", "seeds": 3, "recipe_of_best": "best", "missing": []}
Table = dict[str, dict[str, np.ndarray]]
"""system -> task -> ranks (S, Q)."""


def parts_of(ranks: Table) -> list[Part]:
    """One part a system and seed."""
    return [
        {
            "unit": system,
            "seed": seed,
            "seconds": 1.5,
            "machine": {"device": "cpu"},
            "bytes": {system: 20.0},
            "systems": {system: {task: rows[seed].tolist() for task, rows in tasks.items()}},
        }
        for system, tasks in ranks.items()
        for seed in range(len(next(iter(tasks.values()))))
    ]


def build(ranks: Table) -> dict[str, Any]:
    return build_document(parts_of(ranks), FACTS)


def document_of(names: list[str], seeds: int = 3, queries: int = 40) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return build({name: {task: rng.integers(0, 11, (seeds, queries)) for task in ("i2t", "t2i")} for name in names})


def measure(ranks_SQ: np.ndarray) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = build({"dense": {"t2i": ranks_SQ}})["tasks"]["t2i"]["dense"]
    return found


def of_share(share: float, queries: int = 100) -> np.ndarray:
    """Ranks (1, Q) with this share at rank 1 and no others found."""
    return (np.arange(queries) < share * queries).astype(int)[None]


@pytest.mark.parametrize("seed", range(5))
def test_measures_are_those_of_ir_measures(seed: int) -> None:
    rng = np.random.default_rng(seed)
    run, qrels, ranks = {}, {}, []
    for query in range(30):
        ranked = rng.permutation(25)[: rng.integers(0, 11)]
        positives = set(rng.permutation(25)[: rng.integers(1, 5)].tolist())
        run[f"q{query}"] = [(f"d{item}", -float(place)) for place, item in enumerate(ranked)]
        qrels[f"q{query}"] = {f"d{item}": 1 for item in positives}
        hits = [place for place, item in enumerate(ranked, 1) if int(item) in positives]
        ranks.append(hits[0] if hits else 0)
    wanted = evaluate(run, qrels, ("Success@1", "Success@5", "Success@10", "RR@10"))
    found = measure(np.array([ranks]))
    assert {name: value["mean"] for name, value in found.items()} == pytest.approx(wanted)
    assert {value["std"] for value in found.values()} == {0.0}


def test_the_deviation_is_over_seeds() -> None:
    found = measure(np.array([[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0]]))["success@1"]
    assert found == pytest.approx({"mean": 0.5, "std": 0.25})


def test_the_interval_is_of_targets_the_same_each_time_and_signed() -> None:
    rng = np.random.default_rng(0)
    parts = parts_of({name: {"t2i": rng.integers(0, 4, (3, 60))} for name in ("pro", "genius")})
    alone = build_document(parts, FACTS)["comparisons"]["t2i"]["pro - genius"]
    assert alone == build_document(parts, FACTS)["comparisons"]["t2i"]["pro - genius"]
    back = Ranks.read(parts).contrast({"genius": 1, "pro": -1}, "t2i", "success@1", draw_seeds=False)
    assert back is not None and back["mean"] == -alone["success@1"]["mean"]
    assert back["low"] == pytest.approx(-alone["success@1"]["high"], abs=0.02)
    # Seeds are not drawn: where queries agree there is nothing left to vary.
    same = parts_of({"pro": {"t2i": np.array([[1] * 9, [2] * 9])}, "genius": {"t2i": np.full((2, 9), 3)}})
    found = build_document(same, FACTS)["comparisons"]["t2i"]["pro - genius"]["success@1"]
    assert found == pytest.approx({"mean": 0.5, "low": 0.5, "high": 0.5})


def test_the_t_test_over_seeds_is_told_where_there_are_seeds() -> None:
    ranks = {"pro": {"t2i": np.array([[1, 1, 1, 2], [1, 1, 2, 2]])}, "genius": {"t2i": np.full((2, 4), 2)}}
    found = build(ranks)
    p = found["comparisons"]["t2i"]["pro and genius, t-test over seeds"]["success@1"]
    assert p == pytest.approx(stats.ttest_ind([0.75, 0.5], [0.0, 0.0]).pvalue)
    assert f"t-test over seeds: success@1 p = {p:.2g}" in markdown(found)
    one = {name: {"t2i": tasks["t2i"][:1]} for name, tasks in ranks.items()}
    assert "t-test" not in markdown(build(one))


def test_the_document_has_every_system_task_and_measure() -> None:
    chosen = {"dense", "dense_head"}  # the better of two spaces, named when the parts are joined
    assert set(SYSTEMS) == {name for names in UNITS.values() for name in names} | chosen
    assert {"dense", "scan", "geometry", "genius", "pro", "best"} <= set(SYSTEMS)
    document = json.loads(json.dumps(document_of(SYSTEMS), allow_nan=False))
    assert list(document["tasks"]) == ["t2i", "i2t"]
    for systems in document["tasks"].values():
        assert set(systems) == set(SYSTEMS)
        for values in systems.values():
            assert set(values) == {"success@1", "success@5", "success@10", "mrr@10"}
            assert all(set(value) == {"mean", "std"} and 0 <= value["mean"] <= 1 for value in values.values())
    assert document["recipe_of_best"] == "best" and document["scale"] == "captions"


@pytest.mark.parametrize(
    "names", [["dense"], ["best"], ["pro", "genius"], ["dense", "pro", "genius_half"], ["best", "scan"], ["faiss_rq"]]
)
def test_missing_systems_do_not_break_it(names: list[str]) -> None:
    document = document_of(names)
    assert json.dumps(document, allow_nan=False)
    text = markdown(document)
    assert text.count("\n| ") == 2 * (2 + len(names))
    for name, row in ORDER:
        assert (f"| {row} " in text or f"| **{row}** " in text) == (name in names)


def test_gaps_are_shares_of_the_way_to_dense() -> None:
    shares = {"dense": 0.8, "pro": 0.6, "genius": 0.4, "genius_half": 0.5, "genius_double": 0.3}
    ranks = {name: {"t2i": of_share(share)} for name, share in shares.items()}
    document = build(ranks)
    found = document["comparisons"]["t2i"]
    assert found["gap_closed"] == {"against": "genius", "share": pytest.approx(0.5)}
    assert found["gap_closed_to_best_genius"] == {"against": "genius_half", "share": pytest.approx(1 / 3)}
    text = markdown(document)
    assert "closes 50 % of the gap from genius to dense" in text
    assert "closes 33 % of the gap from genius_half to dense" in text


def test_one_gap_is_told_once_and_none_where_there_is_none() -> None:
    ranks = {name: {"t2i": of_share(share)} for name, share in (("dense", 0.8), ("pro", 0.7), ("genius", 0.6))}
    assert markdown(build(ranks)).count("% of the gap") == 1
    ranks["dense"] = {"t2i": of_share(0.5)}
    document = build(ranks)
    assert document["comparisons"]["t2i"]["gap_closed"]["share"] is None
    assert "of the gap" not in markdown(document)


def test_nothing_is_divided_by_a_dense_that_finds_nothing() -> None:
    ranks = {"best": {"t2i": of_share(0.5)}, "dense": {"t2i": np.full((1, 100), 7)}}
    document = build(ranks)
    assert document["comparisons"]["t2i"]["best / dense"] == pytest.approx({"success@10": 0.5, "mrr@10": 0.5 * 7})
    assert json.dumps(document, allow_nan=False)


def test_decoder_and_geometry_right_alone() -> None:
    ranks = {
        "best": {"t2i": np.array([[1, 1, 1, 2]])},
        "geometry": {"t2i": np.array([[1, 2, 1, 3]])},
        "best_decoder": {"t2i": np.array([[2, 1, 0, 5]])},
    }
    found = build(ranks)["comparisons"]["t2i"]
    assert found["right at rank 1"] == {"decoder alone": 0.25, "geometry alone": 0.5}
    assert found["best - max(geometry, scan)"] == pytest.approx((0.5 + 0.5 - 1 / 3 + 0.5 - 0.5) / 4)


def test_the_table_is_aligned_and_says_the_deviation_where_there_is_one() -> None:
    many, one = markdown(document_of(SYSTEMS)), markdown(document_of(SYSTEMS, seeds=1))
    assert "±" not in one
    for text in (many, one):
        tables = [block.splitlines() for block in re.findall(r"(?:^\|.*\n)+", text, re.M)]
        assert len(tables) == 2
        for lines in tables:
            assert len(lines) == 2 + len(SYSTEMS) and len({len(line) for line in lines}) == 1
            assert max(map(len, lines)) <= 120
    row = next(line for line in many.splitlines() if line.startswith("| **best** "))
    assert re.fullmatch(r"\| \*\*best\*\* +\| +20 (\| +\d+\.\d ±\d\.\d ){4}\|", row)


def test_what_is_missing_is_named() -> None:
    document = document_of(["dense"]) | {"missing": ["best-0", "best-1"]}
    assert markdown(document).endswith("Not measured: best-0, best-1.\n")


def test_the_documentation_knows_every_unit_and_system() -> None:
    page = (Path(__file__).parents[3] / "docs" / "benchmarks.md").read_text()
    section = page.split("## The rows")[1].split("## ")[0]
    assert {*UNITS, *SYSTEMS} <= set(re.findall(r"`(\w+)`", section))


def test_parts_are_joined_by_seed() -> None:
    parts = [
        {
            "unit": "vs",
            "seed": seed,
            "seconds": 1.5,
            "machine": {"device": "cpu"},
            "bytes": {"vs": 16, "vs_sf": seed},
            "systems": {"vs": {"t2i": [seed, 1]}, "vs_sf": {"t2i": [0, seed]}},
            "validation": {"omega": seed},
        }
        for seed in (10, 2, 0)
    ]
    ranks, found = Ranks.read(parts), build_document(parts, FACTS)
    assert ranks.over_seeds("vs", "t2i", "mrr@10") == pytest.approx([0.5, 0.75, 0.55])
    assert ranks.over_seeds("vs_sf", "t2i", "mrr@10") == pytest.approx([0.0, 0.25, 0.05])
    assert found["bytes_per_item"] == {"vs": 16, "vs_sf": 4}, "the mean over seeds"
    assert found["validation"]["vs"]["10"] == {"omega": 10} and set(found["seconds"]["vs"]) == {"0", "2", "10"}
    assert found["devices"] == {"vs": {"0": "cpu", "2": "cpu", "10": "cpu"}}
    assert set(found["tasks"]["t2i"]["vs"]) == set(MEASURES)
