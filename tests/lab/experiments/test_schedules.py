"""Schedules: the controls, the quantities of their levels, and the end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from small_setting import small_setting

from siglum.files import read_json
from siglum.lab.experiments.ranks import MEAN
from siglum.lab.experiments.run import run_experiments
from siglum.lab.experiments.schedules import BEAM, Schedules, schedules
from siglum.lab.experiments.setting import Setting
from siglum.lab.experiments.trained import open_trained
from siglum.measure.survival import token_survival
from siglum.types import SiglumError


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return small_setting(tmp_path_factory.mktemp("schedules"))


@pytest.fixture(scope="module")
def results(setting: Setting) -> dict[str, Any]:
    told = run_experiments(setting, ["schedules"], command="x", say=lambda line: None)
    assert told["schedules"]["missing"] == {}
    found: dict[str, Any] = read_json(setting.out / "schedules" / "results.json")
    return found


def test_schedules_and_controls(results: dict[str, Any]) -> None:
    sizes = {name: [level["size"] for level in found] for name, found in results["levels"].items()}
    assert sizes == {
        "descending": [64, 32, 32, 16],
        "uniform-large": [64] * 4,
        "uniform-bits": [32] * 4,
        "uniform-first": [16] * 4,
        "ascending": [16, 32, 32, 64],
    }
    bits = results["bits"]
    assert bits["ascending"] == bits["descending"] == bits["uniform-bits"] == 20
    assert bits["uniform-large"] == 24 and bits["uniform-first"] == 16
    with pytest.raises(SiglumError, match="ascending vocabulary"):
        schedules((32, 32))


def test_levels_are_measured_on_all_queries(setting: Setting, results: dict[str, Any]) -> None:
    config = setting.config()
    config = replace(config, tokenizer=replace(config.tokenizer, vocab=(64, 32, 32, 16)))
    trained = open_trained(setting, config)
    query, target = trained.vectors.first_pairs("test")
    wanted = token_survival(
        trained.query_MD[query],
        trained.codes_NT[target],
        trained.tokenizer.codebooks(),
        BEAM,
        trained.tokenizer.quantizer.first_residual,
    )
    levels = results["levels"]["descending"]
    assert [level["token_survival"] for level in levels] == pytest.approx(wanted)
    assert [level["chance"] for level in levels] == [20 / 64, 20 / 32, 20 / 32, 1.0]
    assert [level["level"] for level in levels] == [1, 2, 3, 4]
    kept = [level["beam_survival"] for level in levels]
    assert kept == sorted(kept, reverse=True)
    assert all(level["K"] >= 0 and -1 <= level["m"] <= 1 for level in levels)


def test_the_end(results: dict[str, Any]) -> None:
    assert len(results["systems"]) == 10
    for name, found in results["ascending_less"].items():
        left, right = (results["systems"][one][MEAN]["mrr@10"]["mean"] for one in ("ascending", name))
        assert found["mrr@10"]["mean"] == pytest.approx(left - right)


def test_the_ascending_schedule_is_the_recipe_itself(setting: Setting) -> None:
    units = {unit.name: unit.config for unit in Schedules().units(setting)}
    assert units["ascending"] == setting.config()


def test_tables_and_figure(setting: Setting, results: dict[str, Any]) -> None:
    text = (setting.out / "schedules" / "table.md").read_text()
    assert text.count("level 1:") == 6 and "level 4: chance B / V (%)" in text
    panels = read_json(setting.out / "schedules" / "schedules.json")["panels"]
    drawn = {row["label"]: row["y"] for row in panels[0]["series"]}
    assert drawn["ascending"] == [level["token_survival"] for level in results["levels"]["ascending"]]
