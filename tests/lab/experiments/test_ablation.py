"""The ablation: what is trained once, which contrasts follow, and the released code's choices."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_setting import small_setting

from siglum.config import SearchConfig, diff
from siglum.files import read_json
from siglum.lab.experiments.ablation import (
    CODES,
    LABELS,
    VARIANTS,
    Ablation,
    added_contrasts,
    contrasts,
    name_of,
    released_contrasts,
    with_sf,
)
from siglum.lab.experiments.base import Part
from siglum.lab.experiments.checks_view import COLUMNS, acted
from siglum.lab.experiments.ranks import MEAN, Ranks, rank_systems
from siglum.lab.experiments.run import run_experiments
from siglum.lab.experiments.samples import Samples
from siglum.lab.experiments.setting import Setting
from siglum.lab.experiments.trained import open_trained


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return small_setting(tmp_path_factory.mktemp("ablation"))


@pytest.fixture(scope="module")
def results(setting: Setting) -> dict[str, Any]:
    told = run_experiments(setting, ["ablation"], command="x", say=lambda line: None)
    assert told["ablation"]["missing"] == {}
    found: dict[str, Any] = read_json(setting.out / "ablation" / "results.json")
    return found


def test_four_trainings_give_eight_combinations(setting: Setting, results: dict[str, Any]) -> None:
    geometry = {f"{name}_geometry" for name in CODES}
    assert set(results["systems"]) == {*LABELS, *VARIANTS, "items", "released", *geometry}
    for stage in ("tokenizer", "decoder"):
        assert len([path for path in (setting.out / "trained" / stage).iterdir() if path.is_dir()]) == 6


def test_units_differ_in_what_they_are_named_for(setting: Setting) -> None:
    units = {unit.name: unit.config for unit in Ablation().units(setting)}
    full = setting.config()
    assert diff(units["pd_vs"], full) == {}
    assert set(diff(units["base"], setting.config("genius"))) == {"recipe", "search.scorer"}
    assert set(diff(units["vs"], full)) == {"tokenizer.rank_weight"}
    assert set(diff(units["pd"], full)) == {"tokenizer.vocab"}
    assert diff(units["items"], full) == {"tokenizer.rank_form": ("items", "prefixes")}
    released, paper = units["released"].tokenizer, setting.config("pro_released").tokenizer
    for name in ("form", "cosine", "scale_tau2", "keep_positive", "student_gradient"):
        assert (
            getattr(released, f"rank_{name}")
            == getattr(paper, f"rank_{name}")
            != getattr(full.tokenizer, f"rank_{name}")
        )


def test_contrasts_of_measured_systems(results: dict[str, Any]) -> None:
    told = results["contrasts"] | results["released"] | results["added_to_geometry"]
    for label, weights in (contrasts() | released_contrasts() | added_contrasts()).items():
        found = told[label][MEAN]["mrr@10"]
        wanted = sum(weight * results["systems"][name][MEAN]["mrr@10"]["mean"] for name, weight in weights.items())
        assert found["mean"] == pytest.approx(wanted, abs=1e-9)
        assert found["low"] <= found["mean"] <= found["high"]


def _parts(gains: dict[str, float], interaction: float, queries: int = 1000) -> list[Part]:
    """Eight systems whose Success@1 is a sum of gains, and more where PD and VS meet."""
    systems = {}
    for pd, vs, sf in product((False, True), repeat=3):
        share = 0.1 + gains["pd"] * pd + gains["vs"] * vs + gains["sf"] * sf + interaction * (pd and vs)
        systems[name_of(pd, vs, sf)] = {"t2i": [1 if place < round(share * queries) else 2 for place in range(queries)]}
    return [{"seed": 0, "systems": systems}]


def test_contrasts_find_what_was_put_in() -> None:
    gains = {"pd": 0.1, "vs": 0.05, "sf": 0.2}
    for interaction in (0.0, 0.12):
        ranks = Ranks.read(_parts(gains, interaction))
        found = {label: ranks.contrast(weights, "t2i", "success@1") for label, weights in contrasts().items()}
        means = {label: one["mean"] for label, one in found.items() if one is not None}
        assert means["SF"] == pytest.approx(0.2) and means["PD"] == pytest.approx(0.1 + interaction / 2)
        assert means["PD×VS"] == pytest.approx(interaction, abs=1e-9)
        assert means["PD×VS, SF off"] == pytest.approx(interaction, abs=1e-9)
        for label in ("PD×SF", "VS×SF", "PD×SF, VS off", "VS×SF, PD off"):
            assert means[label] == pytest.approx(0, abs=1e-9)


def test_weights_of_contrasts_cancel() -> None:
    for label, weights in contrasts().items():
        assert sum(weights.values()) == 0, label
        assert sum(abs(weight) for weight in weights.values()) == (4 if "×" in label else 2)
    assert set(contrasts()["PD"]) == set(LABELS) and with_sf("base") == "sf"


def test_fusion_weights_are_told(setting: Setting, results: dict[str, Any]) -> None:
    assert set(results["omega"]["pd_vs-0"]) == {"pd_vs_sf", "pd_vs_sf_z"}
    assert set(results["omega"]["vs-0"]) == {"vs_sf"}
    assert all(np.isfinite(list(one.values())).all() for one in results["omega"].values())
    assert set(results["omega"]) == {f"{name}-0" for name in CODES}
    text = (setting.out / "ablation" / "table.md").read_text()
    assert f"- ω chosen on validation: + SF = {results['omega']['base-0']['sf']:g}; + PD + SF" in text


def test_geometry_searches_the_codes_of_each_training(setting: Setting, results: dict[str, Any]) -> None:
    units = {unit.name: unit.config for unit in Ablation().units(setting)}
    for name in CODES:
        assert units[f"{name}_geometry"] == units[name]
        trained = open_trained(setting, units[name], decoder=False)
        ranker = trained.beam(SearchConfig(scorer="geometry", beam=units[name].search.beam))
        wanted = rank_systems(trained.vectors, {"x": ranker})["systems"]["x"]
        assert read_json(setting.out / "ablation" / "parts" / f"{name}_geometry-0.json")["systems"] == {
            f"{name}_geometry": wanted
        }
    table = (setting.out / "ablation" / "table.md").read_text().split("## ")[1]
    rows = [line for line in table.splitlines() if line.startswith("| geometry alone, ")]
    assert len(rows) == 4 and not any("**" in row for row in rows)


def test_tables_and_figures(setting: Setting, results: dict[str, Any]) -> None:
    folder = setting.out / "ablation"
    text = (folder / "table.md").read_text()
    for words in ("PRO: + PD + VS + SF", "PD×VS, SF off", "z-scored less raw bias"):
        assert words in text
    drawn: list[dict[str, Any]] = read_json(folder / "ablation.json")["panels"]
    assert drawn[0]["series"][1]["y"][0] == results["systems"]["sf"][MEAN]["success@1"]["mean"]
    assert [panel["ticks"] for panel in read_json(folder / "interactions.json")["panels"]] == [
        ["PD", "VS", "SF"],
        ["PD×VS", "PD×SF", "VS×SF"],
    ]


def test_codes_and_beams_stand_beside_success(setting: Setting, results: dict[str, Any]) -> None:
    checks = results["checks"]
    assert set(checks) == set(results["systems"])
    for name in ("K1", "error", "L_rank"):  # score fusion leaves the codes as they are
        assert checks["pd_vs"][MEAN][name] == checks["pd_vs_sf"][MEAN][name] == checks["pd_vs_geometry"][MEAN][name]
        assert checks["base"][MEAN][name] != checks["vs"][MEAN][name]
    table = (setting.out / "ablation" / "table.md").read_text().split("## ")[1]
    assert "| kept at B = 20 |" in table
    row = next(line for line in table.splitlines() if line.startswith("| PRO: + PD + VS + SF"))
    assert row.split("|")[-2].strip() == f"{100 * checks['pd_vs_sf'][MEAN]['survival']['mean']:.1f}"
    for part, one in results["acted"].items():
        low, high = (one["changes"]["survival"][end] for end in ("low", "high"))
        assert low <= high and (part != "SF" or set(one["changes"]) == {"survival"})


def test_a_part_acts_only_where_its_treatment_does() -> None:
    for change, acts in ((0.0, False), (-0.3, True), (0.3, False)):
        samples = Samples()
        for name in LABELS:
            moved = change if "pd" in name else 0.0
            rows = {measure: [1.0 + moved] * 8 for measure in (*COLUMNS, "survival")}
            samples.add(name, "t2i", 0, rows)
        assert acted(samples, contrasts()["PD"], "PD")["acted"] is acts  # L_rank must fall
        assert acted(samples, contrasts()["VS"], "VS")["acted"] is False


def test_a_missing_training_leaves_gaps(setting: Setting, results: dict[str, Any], tmp_path: Path) -> None:
    parts: list[Part] = [read_json(setting.out / "ablation" / "parts" / f"{name}-0.json") for name in ("base", "vs")]
    outcome = Ablation().assemble(setting, parts)
    found = outcome.results["contrasts"]
    assert found["PD"][MEAN]["mrr@10"] is None and found["VS×SF, PD off"][MEAN]["mrr@10"] is not None
    assert outcome.tables[-2].rows == []
