"""The main comparison: its systems, what they are trained with, and its intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scipy import stats
from small_setting import small_setting

from siglum.config import SearchConfig
from siglum.files import read_json
from siglum.lab.experiments import trained as training
from siglum.lab.experiments.base import Part, Unit
from siglum.lab.experiments.fusion_weights import first_ranks
from siglum.lab.experiments.main import Main
from siglum.lab.experiments.ranks import MEAN, MEASURES
from siglum.lab.experiments.run import run_experiments
from siglum.lab.experiments.setting import Setting


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return small_setting(tmp_path_factory.mktemp("main"), seeds=2)


@pytest.fixture(scope="module")
def results(setting: Setting) -> dict[str, Any]:
    told = run_experiments(setting, ["main"], command="x", say=lambda line: None)
    assert told["main"]["missing"] == {}
    found: dict[str, Any] = read_json(setting.out / "main" / "results.json")
    return found


def test_systems_and_tasks(setting: Setting, results: dict[str, Any]) -> None:
    assert set(results["systems"]) == {"dense", "geometry", "genius", "pro", "best"}
    tasks = {task.name for task in setting.vectors().of_split("test")}
    for found in results["systems"].values():
        assert set(found) == {*tasks, MEAN}
        one = found[MEAN]
        assert len(one["mrr@10"]["seeds"]) == 2
        assert one["success@1"]["mean"] <= one["mrr@10"]["mean"] <= one["success@10"]["mean"]
    assert results["systems"]["dense"][MEAN]["success@5"]["mean"] > 0.5
    assert results["bytes_per_item"]["dense"] == 256 and results["bytes_per_item"]["pro"] == 20 / 8


def test_the_interval_is_that_of_the_difference(results: dict[str, Any]) -> None:
    for other in ("genius", "geometry"):
        for task, measures in results[f"against_{other}"].items():
            for measure, found in measures.items():
                pro, less = (results["systems"][name][task][measure]["mean"] for name in ("pro", other))
                assert found["mean"] == pytest.approx(pro - less)
                assert found["low"] <= found["mean"] <= found["high"]


@pytest.mark.filterwarnings("ignore:Precision loss:RuntimeWarning")
def test_the_t_test_is_the_papers_over_seeds(setting: Setting, results: dict[str, Any]) -> None:
    found = results["t_test_against_genius"]
    for task, measures in found.items():
        for measure, p in measures.items():
            pro, genius = (results["systems"][name][task][measure]["seeds"] for name in ("pro", "genius"))
            assert p is None or p == pytest.approx(stats.ttest_ind(pro, genius).pvalue)
    table = (setting.out / "main" / "table.md").read_text().partition("PRO less GENIUS")[2].partition("##")[0]
    row = next(line for line in table.splitlines() if line.startswith(f"| {MEAN} "))
    told = ["–" if p is None else f"{p:.2g}" for p in (found[MEAN][measure] for measure in MEASURES)]
    assert [cell.strip() for cell in row.split("|")[3::2]][:4] == told  # each beside its interval


def test_geometry_ranks_the_codes_under_study_and_trains_nothing(
    setting: Setting, results: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("fit_fusion", "fit_tokenizer", "fit_decoder"):
        monkeypatch.delattr(training, name)
    unit = next(unit for unit in Main().units(setting) if unit.name == "geometry")
    found = Main().measure(setting, unit)
    trained = training.open_trained(setting, setting.config("pro"), decoder=False)
    search = SearchConfig(scorer="geometry", beam=trained.config.search.beam)
    for task in trained.vectors.of_split("test"):
        wanted = first_ranks(task, trained.beam(search), 10).tolist()
        assert found["systems"]["geometry"][task.name] == wanted
    assert found["systems"] == read_json(setting.out / "main" / "parts" / "geometry-0.json")["systems"]
    assert results["bytes_per_item"]["geometry"] == results["bytes_per_item"]["pro"]


def test_a_part_holds_the_ranks_of_its_own_search(setting: Setting, results: dict[str, Any]) -> None:
    part = read_json(setting.out / "main" / "parts" / "genius-1.json")
    trained = training.open_trained(setting, setting.config("genius", 1))
    assert trained.config.search.scorer == "decoder"
    for task in trained.vectors.of_split("test"):
        wanted = first_ranks(task, trained.beam(trained.config.search), 10).tolist()
        assert part["systems"]["genius"][task.name] == wanted
    chosen = read_json(setting.out / "main" / "parts" / "pro-0.json")
    best = max(chosen["tried"], key=lambda row: row["mrr@10"])
    assert chosen["chosen"]["omega"] == best["omega"] and chosen["chosen"]["scorer"] == "fused"


def test_the_table_shows_the_best_generative_system_in_bold(setting: Setting, results: dict[str, Any]) -> None:
    table = (setting.out / "main" / "table.md").read_text().split("## ")[1]
    dense = next(line for line in table.splitlines() if line.startswith("| dense"))
    geometry = next(
        line for line in table.splitlines() if line.startswith("| PRO's codes, geometry alone (no decoder)")
    )
    assert "**" not in geometry
    omegas = {name: [results["chosen"][f"{name}-{seed}"]["omega"] for seed in (0, 1)] for name in ("pro", "best")}
    words = "; ".join(
        f"{label} = {one[0]:g}, {one[1]:g}" for label, one in zip(("PRO", "best"), omegas.values(), strict=True)
    )
    assert f"- ω chosen on validation, seed by seed: {words}." in table
    assert "**" not in dense and table.count("**") == 2 * (len(results["against_genius"]))
    assert "PRO less GENIUS" in (setting.out / "main" / "table.tex").read_text()


def test_another_recipe_takes_the_place_of_pro(tmp_path: Path) -> None:
    other = small_setting(tmp_path, recipe="vs_sf")
    units = {unit.name: unit.config for unit in Main().units(other)}
    assert list(units) == ["dense", "genius", "vs_sf", "best", "geometry"]
    assert units["vs_sf"].tokenizer.rank_weight == 0 and units["dense"].recipe == "vs_sf"
    assert units["geometry"] == units["vs_sf"]
    names = [unit.name for unit in Main().units(small_setting(tmp_path, recipe="genius"))]
    assert names == ["dense", "genius", "best", "geometry"]


def test_missing_systems_leave_gaps(setting: Setting, results: dict[str, Any]) -> None:
    parts: list[Part] = [read_json(setting.out / "main" / "parts" / f"{name}-0.json") for name in ("dense", "pro")]
    outcome = Main().assemble(setting, parts)
    assert outcome.results["against_genius"][MEAN]["mrr@10"] is None
    assert outcome.tables[-1].rows[0][1:] == ["–"] * 4
    assert outcome.figures[0].panels[0].ticks == ["dense", "PRO"]


def test_features_of_one_size_are_searched_as_they_are(tmp_path: Path, make_vectors: Any, monkeypatch: Any) -> None:
    vectors = make_vectors(image_dim=12, text_dim=12)
    monkeypatch.setattr(Setting, "vectors", lambda self: vectors)
    own = Setting(str(tmp_path), tmp_path, scale="tiny")
    monkeypatch.setattr(Setting, "identity", lambda self: "x")
    found = Main().measure(own, Unit("dense", 0, own.config()))
    assert list(found["systems"]) == ["raw", "dense"] and found["bytes"] == {"raw": 48, "dense": 256}
