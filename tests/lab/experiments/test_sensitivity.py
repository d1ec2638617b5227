"""Sensitivity: the paper's grids, omega fixed while the others vary, and no training for omega."""

from __future__ import annotations

from typing import Any

import pytest
from small_setting import small_setting

from siglum.config import diff
from siglum.files import read_json
from siglum.lab.experiments import sensitivity
from siglum.lab.experiments.ranks import MEAN
from siglum.lab.experiments.run import run_experiments
from siglum.lab.experiments.sensitivity import LAMBDAS, MORE_OMEGAS, OMEGAS, PAPER_OMEGA, TAUS, Sensitivity
from siglum.lab.experiments.setting import Setting


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return small_setting(tmp_path_factory.mktemp("sensitivity"), seeds=3)


@pytest.fixture(scope="module")
def results(setting: Setting) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sensitivity, "LAMBDAS", (0.0, 100.0))
        patch.setattr(sensitivity, "TAUS", (0.05, 1.0))
        told = run_experiments(setting, ["sensitivity"], command="x", say=lambda line: None)
    assert told["sensitivity"]["missing"] == {}
    found: dict[str, Any] = read_json(setting.out / "sensitivity" / "results.json")
    return found


def test_units_follow_the_grids_of_the_paper(setting: Setting) -> None:
    units = {unit.name: unit for unit in Sensitivity().units(setting)}
    own = setting.config()
    assert len(units) == len(LAMBDAS) + len(TAUS) + 1 and {unit.seed for unit in units.values()} == {0}
    assert diff(units["lambda-50"].config, own) == {"tokenizer.rank_weight": (50.0, 100.0)}
    assert diff(units["tau-0.5"].config, own) == {"tokenizer.temperature": (0.5, 0.05)}
    assert units["lambda-100"].config == units["tau-0.05"].config == units["omega"].config == own
    assert units["tau-1"].options["omegas"] == sorted({PAPER_OMEGA, own.search.omega})
    assert set(units["omega"].options["omegas"]) == {*OMEGAS, *MORE_OMEGAS, own.search.omega}


def test_what_varies_in_search_alone_is_trained_once(setting: Setting, results: dict[str, Any]) -> None:
    trained = [path for path in (setting.out / "trained" / "decoder").iterdir() if path.is_dir()]
    assert len(trained) == 3  # the recipe itself, lambda 0, tau 1
    assert results["seeds"] == [0]


def test_curves_meet_at_the_recipe(results: dict[str, Any]) -> None:
    own = f"ω = {results['defaults']['omega']:g}"
    points = [
        {point["value"]: point[MEAN] for point in results["curves"][name][label]}
        for name, label in (("lambda", own), ("tau", own), ("omega", "ω as on the axis"))
    ]
    at = [one[results["defaults"][name]] for one, name in zip(points, ("lambda", "tau", "omega"), strict=True)]
    assert at[0] == at[1] == at[2]
    paper = {point["value"]: point[MEAN] for point in results["curves"]["tau"]["ω = 10"]}
    assert paper[0.05] == points[2][10.0]
    assert points[0][0.0] != points[0][100.0] or points[1][1.0] != points[1][0.05]


def test_omega_0_is_the_decoder_alone(setting: Setting, results: dict[str, Any]) -> None:
    from siglum.lab.experiments.ranks import rank_systems
    from siglum.lab.experiments.trained import open_trained

    trained = open_trained(setting, setting.config("pd_vs"))
    found = rank_systems(trained.vectors, {"x": trained.beam(trained.config.search)})
    part = read_json(setting.out / "sensitivity" / "parts" / "omega-0.json")
    assert part["systems"]["omega@0"] == found["systems"]["x"]


def test_tables_and_figure(setting: Setting, results: dict[str, Any]) -> None:
    text = (setting.out / "sensitivity" / "table.md").read_text()
    assert "| **0.05** |" in text and "| **50** |" in text and "one seed" in text
    panels = read_json(setting.out / "sensitivity" / "sensitivity.json")["panels"]
    assert [panel["x_label"] for panel in panels] == ["λ", "τ", "ω"]
    assert panels[2]["ticks"] == ["0", "1", "3", "5", "10", "20", "50", "100", "200", "500"]
