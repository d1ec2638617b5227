"""Where generative search wins: what is searched, judged and timed, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_setting import small_setting

from siglum.files import read_json
from siglum.lab.experiments import region_faiss
from siglum.lab.experiments.efficiency import Efficiency
from siglum.lab.experiments.region import BATCHES, judge, text_task
from siglum.lab.experiments.region_faiss import K, faiss_candidates
from siglum.lab.experiments.region_view import front, milliseconds, winners
from siglum.lab.experiments.run import run_experiments
from siglum.lab.experiments.setting import Setting
from siglum.types import Task

FAMILIES = {"flat", "IVF-PQ", "OPQ", "residual", "HNSW-SQ"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Setting, dict[str, Any]]:
    pytest.importorskip("faiss")
    setting = small_setting(tmp_path_factory.mktemp("region"), pools=(300,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(region_faiss, "PARTS", (8,))
        patch.setattr(region_faiss, "STAGES", (2,))
        units = Efficiency.units
        patch.setattr(Efficiency, "units", lambda self, s: [u for u in units(self, s) if u.name.startswith("region")])
        told = run_experiments(setting, ["efficiency"], command="x", say=lambda line: None)["efficiency"]
    assert told["missing"] == {}
    return setting, told


def test_every_system_is_judged_and_timed_on_every_pool(run: tuple[Setting, dict[str, Any]]) -> None:
    setting, told = run
    results = read_json(setting.out / "efficiency" / "results.json")["region"]
    assert set(results) == {"300"}
    for size, one in results.items():
        region = one["region"]
        assert {system["family"] for system in region.values()} >= {*FAMILIES, "pro, beam", "pro, scan", "best, scan"}
        for name, system in region.items():
            assert 0 <= system["success@1"] <= system["mrr@10"] <= system["success@10"] <= 1
            assert set(system["speed"]) == {str(batch) for batch in BATCHES} and milliseconds(system) is not None
            assert system["bytes"] * int(size) > system["fixed"] >= 0, name
        assert region["flat"]["recall"] == 1.0 and region["HNSW-SQ8, effort 128"]["recall"] > 0.9
        assert region["flat"]["bytes"] == pytest.approx(4 * one["size"]["dim"], rel=0.01)
        assert set(one["front"]) <= set(region) and f"{int(size):,} items" in one["winners"][0]
    assert "Where generative search wins" in told["tables"]
    panels = read_json(setting.out / "efficiency" / "region.json")["panels"]
    assert len(panels) == 2 and {row["label"] for row in panels[0]["series"]} >= FAMILIES


def test_units_are_timed_alone_and_follow_the_pools(tmp_path: Path) -> None:
    units = [unit for unit in Efficiency().units(small_setting(tmp_path)) if unit.name.startswith("region")]
    assert [unit.name for unit in units] == ["region-300"] and all(unit.alone and unit.data for unit in units)
    units = Efficiency().units(small_setting(tmp_path, pools=(700, 400)))
    assert [unit.name for unit in units] == ["pool-400", "pool-700", "region-400", "region-700"]


def test_the_task_asks_for_texts(tmp_path: Path) -> None:
    vectors = small_setting(tmp_path).vectors()
    assert text_task(vectors).name == "any2t"
    named = [replace(task, name="i2t") if task.name == "any2t" else task for task in vectors.tasks]
    assert text_task(replace(vectors, tasks=named)).name == "i2t"


def test_answers_are_judged_by_targets_and_by_the_exact_search() -> None:
    task = Task("t", "test", np.arange(2), np.arange(9), [np.array([3]), np.array([4, 5])])
    exact = [np.array([3, 1]), np.array([5, 4])]
    assert judge([np.array([1, 3]), np.array([0, 2])], task, exact) == {
        "success@1": 0.0,
        "success@10": 0.5,
        "mrr@10": 0.25,
        "recall": 0.5,
    }


def test_the_front_is_what_nothing_beats() -> None:
    def one(success: float, nbytes: float, rate: float) -> dict[str, Any]:
        return {"success@10": success, "bytes": nbytes, "speed": {"1": {"rate": rate}}, "family": "x, beam"}

    region = {"flat": one(1.0, 100, 1), "small": one(0.96, 5, 1), "worse": one(0.96, 6, 1), "fast": one(0.9, 50, 9)}
    assert front(region) == ["flat", "small", "fast"]
    (told,) = winners({"region": region, "items": 1000})
    assert "fastest flat" in told and "smallest small (5 bytes" in told  # fast finds too little


def test_without_faiss_exhaustive_search_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_faiss, "find_spec", lambda name: None)
    query, item = torch.randn(3, 8), torch.randn(20, 8)
    found, notes = faiss_candidates(query, item)
    assert list(found) == ["flat"] and "faiss was left out" in notes[0]
    rows = found["flat"].search(torch.tensor([2, 0]))
    wanted = (query[[2, 0]] @ item.T).argsort(1, descending=True)[:, :K]
    assert [row.tolist() for row in rows] == wanted.tolist()


def test_few_items_are_no_quantiser_s(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("faiss")
    found, notes = faiss_candidates(torch.randn(3, 16), torch.randn(100, 16))
    assert {one.family for one in found.values()} == {"flat", "HNSW-SQ"}
    assert any("left out: it learns 256 codewords" in note for note in notes)
