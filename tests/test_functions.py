"""`siglum.diagnose`, `explain` and `report` are what the commands of the same name call."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch

import siglum
from siglum.lab.world.collection import World
from siglum.measure.diagnose import CauseFacts, HealthFacts, LevelFacts, RunDiagnosis, RungFacts
from siglum.pages.report import Report
from siglum.search.retriever import Retriever

Call = Callable[..., str]


def test_a_diagnosis_is_what_the_command_prints(world_run: Path, call: Call) -> None:
    found = siglum.diagnose(str(world_run), split="val", queries=20)
    told = json.loads(call("diagnose", world_run, "--split", "val", "--queries", 20, "--json"))
    assert told.pop("run") == str(world_run)
    assert told == found
    for kind, values in (
        (RunDiagnosis, found),
        (HealthFacts, found["health"]),
        (CauseFacts, found["cause"]),
        *((LevelFacts, level) for level in found["levels"]),
        *((RungFacts, rung) for rung in found["ladder"]),
    ):
        assert set(get_type_hints(kind)) == set(values)


def test_an_explanation_of_any_query(world_run: Path, world: World) -> None:
    retriever = Retriever.load(world_run)
    query = next(iter(world.queries("test", "it2i")))
    target = query.positives[0]
    whole = siglum.explain(retriever, query, target)
    vector_1D = torch.from_numpy(retriever.encode_queries([query]))
    assert siglum.explain(retriever, vector_1D, target) == whole
    parts = {"image": query.image, "instruction": query.instruction}
    assert siglum.explain(str(world_run), query.text or "", target, **parts) == whole  # type: ignore[arg-type]
    hits = retriever.search(query, k=len(retriever))
    places = [hit.rank for hit in hits if hit.item_id == target]
    assert whole.rank == (places[0] if places else None)
    assert siglum.explain(retriever, query, target, beam=None, within=[target]).rank == 1


def test_a_report_of_one_run_and_of_two(world_run: Path, run_copy: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    found = siglum.report(world_run, out=str(page), split="val", queries=8)
    assert set(found) == set(get_type_hints(Report))
    assert page.read_text().lower().startswith("<!doctype html>")
    assert [run["name"] for run in found["runs"]] == [found["reference"]]
    both = siglum.report([world_run, str(run_copy)], split="val", queries=8)
    assert len(both["runs"]) == 2 and list(both["differences"]) == [both["runs"][1]["name"]]


def test_every_public_name_is_there_with_a_docstring() -> None:
    for name in siglum.__all__:
        assert getattr(siglum, name).__doc__, name
    assert set(siglum.__all__) == set(siglum._HOME)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        siglum.nothing  # noqa: B018


@pytest.mark.parametrize(
    ("options", "wrong"),
    [({"beam": 2.5}, "beam"), ({"queries": "3"}, "queries"), ({"queries": -1}, "queries"), ({"tau": "0.1"}, "tau")],
)
def test_diagnose_refuses_numbers_of_another_kind(world_run: Path, options: dict[str, Any], wrong: str) -> None:
    with pytest.raises(siglum.SiglumError, match=rf"^{wrong} must be"):
        siglum.diagnose(world_run, split="val", **options)


def test_a_report_of_a_saved_retriever_makes_up_no_settings(world_run: Path, tmp_path: Path) -> None:
    siglum.Retriever.load(world_run).save(tmp_path / "saved")
    (one,) = siglum.report(str(tmp_path / "saved"), out=tmp_path / "page.html")["runs"]
    assert (one["recipe"], one["scale"], list(one["config"])) == ("saved retriever", "", ["search"])
    assert "there are no features yet" in " ".join(one["notes"])


def test_experiments_are_named_by_a_string_too(world_run: Path, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    for folder in (tmp_path / "none", str(tmp_path / "none")):
        with pytest.raises(siglum.SiglumError, match="holds no finished experiment"):
            siglum.report(world_run, queries=4, split="val", experiments=folder)
