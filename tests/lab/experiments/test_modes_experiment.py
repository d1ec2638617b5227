"""Modes of search: each is what it says, and the exact search stands beside itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_setting import small_setting

from siglum.files import read_json
from siglum.lab.experiments.modes import LABELS, _knows, _searches
from siglum.lab.experiments.ranks import MEAN
from siglum.lab.experiments.run import run_experiments
from siglum.lab.experiments.setting import Setting


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return small_setting(tmp_path_factory.mktemp("modes"), seeds=1)


@pytest.fixture(scope="module")
def results(setting: Setting) -> dict[str, Any]:
    told = run_experiments(setting, ["modes"], command="x", say=lambda line: None)
    assert told["modes"]["missing"] == {}
    found: dict[str, Any] = read_json(setting.out / "modes" / "results.json")
    return found


def test_all_modes_are_measured(setting: Setting, results: dict[str, Any]) -> None:
    assert set(results["systems"]) == set(LABELS)
    assert results["shared_with_exact"]["exact"] == {"10": 1.0, "50": 1.0}
    assert results["shared_with_exact"]["exact-bf16"]["10"] > 0.9
    assert set(results["against_exact"]) == set(LABELS) - {"exact"}
    table = (Path(setting.out) / "modes" / "table.md").read_text()
    assert "Less the exact search" in table and "ω chosen on validation: exact, fp32 (the paper's) = " in table


def test_a_difference_is_that_of_the_systems(results: dict[str, Any]) -> None:
    for name, found in results["against_exact"].items():
        for measure, one in found.items():
            own, exact = (results["systems"][system][MEAN][measure]["mean"] for system in (name, "exact"))
            assert one["mean"] == pytest.approx(own - exact)


def test_modes_and_precisions_are_those_of_the_search(setting: Setting) -> None:
    search = setting.config().search
    found = _searches(search, search.__class__(mode="renormalised", omega=3.0))
    assert {(one.mode, one.precision) for one in found.values()} >= {("scan-rescore", "int8"), ("renormalised", "bf16")}
    assert found["renormalised-int8"].omega == 3.0 and found["exact"] == search
    assert found["scan"].mode == "scan" and found["geometry"].scorer == "geometry"
    assert [_knows(device, found["exact-int8"]) for device in ("cpu", "cuda")] == [True, False]
