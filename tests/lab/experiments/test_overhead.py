"""The experiment on training overhead: sides in turn, medians, and the paper's two figures beside ours."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from small_setting import small_setting

from siglum.config import RunConfig
from siglum.lab.experiments import overhead
from siglum.lab.experiments.base import Part, open_experiment
from siglum.lab.experiments.overhead import Stopwatch
from siglum.lab.experiments.setting import Setting


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return small_setting(tmp_path_factory.mktemp("overhead"))


def test_a_stopwatch_counts_epochs_and_not_what_comes_before(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([100.0, 101.0, 103.5])
    monkeypatch.setattr(overhead, "perf_counter", lambda: next(times))
    watch = Stopwatch()
    watch.begin("tokenizer", 0)
    watch.write("tokenizer", 0, {})
    watch.write("tokenizer", 1, {})
    assert watch.seconds == [1.0, 2.5]


def test_units_have_the_fusion_module_fixed_and_learning(setting: Setting, tmp_path: Path) -> None:
    units = open_experiment("overhead").units(setting)
    assert [(unit.name, unit.config.tokenizer.train_fusion) for unit in units] == [("fixed", False), ("learning", True)]
    assert all(unit.alone and unit.options == {"repeats": 1, "epochs": 1} for unit in units)
    full = open_experiment("overhead").units(Setting("world", tmp_path, scale="demo"))
    assert full[0].options == {"repeats": 5, "epochs": 3}


def test_sides_take_turns_and_the_first_pair_does_not_count(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[float, int]] = []

    def timed(setting: Setting, config: RunConfig) -> float:
        asked.append((config.tokenizer.rank_weight, config.tokenizer.epochs))
        return float(len(asked))

    monkeypatch.setattr(overhead, "_epoch_seconds", timed)
    experiment = open_experiment("overhead")
    unit = replace(experiment.units(setting)[1], options={"repeats": 3, "epochs": 2})
    found = experiment.measure(setting, unit)
    weight = setting.config().tokenizer.rank_weight
    first, *counted = [asked[i : i + 2] for i in range(0, len(asked), 2)]
    assert sorted(first) == [(0.0, 2), (weight, 2)]
    assert [pair[0][0] for pair in counted] == [0.0, weight, 0.0]
    assert found["epoch_seconds"] == {"without": [3.0, 6.0, 7.0], "with": [4.0, 5.0, 8.0]}
    assert found["training_seconds"] is None  # the recipe's own way is the other unit


def test_real_epochs_are_timed_and_all_training_is_told(setting: Setting) -> None:
    experiment = open_experiment("overhead")
    parts = [{"unit": unit.name, "seed": 0, **experiment.measure(setting, unit)} for unit in experiment.units(setting)]
    for part in parts:
        assert all(len(values) == 1 and values[0] > 0 for values in part["epoch_seconds"].values())
    assert set(parts[0]["training_seconds"]) == {"space", "tokenizer", "decoder"}
    outcome = experiment.assemble(setting, parts)
    assert len(outcome.tables[0].rows) == 4 and outcome.results["units"]["fixed"]["overhead_of_all"] is not None


def _part(name: str, without: list[float], with_it: list[float], whole: dict[str, float] | None) -> Part:
    seconds = {"without": without, "with": with_it}
    return {"unit": name, "seed": 0, "epoch_seconds": seconds, "tokenizer_epochs": 10, "training_seconds": whole}


def test_the_table_sets_our_ratio_beside_the_papers_two(setting: Setting) -> None:
    whole = {"space": 30.0, "tokenizer": 60.0, "decoder": 15.0}
    parts = [_part("fixed", [4.0, 4.0, 9.0], [4.5, 5.0, 4.5], whole), _part("learning", [2.0], [2.0], None)]
    outcome = open_experiment("overhead").assemble(setting, parts)
    rows = {row[0]: row[1:] for row in outcome.tables[0].rows}
    assert rows["fusion fixed"] == ["4", "4.5", "+12.5", "-50.0 to +25.0", "+5.00"]
    assert rows["fusion learning"] == ["2", "2", "+0.0", "+0.0 to +0.0", "–"]
    assert rows["paper, as said"][2] == "+8.0" and rows["paper, from its minutes"][2] == "+5.3"
    assert outcome.results["paper"] == {"said": 0.08, "from_minutes": pytest.approx(1 / 19)}
    figure = outcome.figures[0]
    assert figure.title.endswith("by +12 % (fusion fixed), +0 % (fusion learning)")
    assert [list(row.y) for row in figure.panels[0].series] == [[4.0, 2.0], [4.5, 2.0]]


def test_a_recipe_without_distillation_is_timed_with_the_papers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = []

    def timed(setting: Setting, config: RunConfig) -> float:
        weights.append(config.tokenizer.rank_weight)
        return 1.0

    monkeypatch.setattr(overhead, "_epoch_seconds", timed)
    setting = small_setting(tmp_path, recipe="genius")
    experiment = open_experiment("overhead")
    found = experiment.measure(setting, experiment.units(setting)[0])
    assert set(weights) == {0.0, 100.0} and found["training_seconds"] is None
