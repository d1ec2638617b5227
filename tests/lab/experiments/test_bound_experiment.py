"""The experiment on the survival bound: quantities per query and level against survival, tables and figures."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from small_setting import small_setting

from siglum.lab.experiments import bound
from siglum.lab.experiments.base import Part, open_experiment
from siglum.lab.experiments.setting import Setting
from siglum.lab.experiments.survival_beams import follow, followed_tasks, searches
from siglum.lab.experiments.trained import open_trained
from siglum.measure.retention import SCOPE, QueryBatch, retention

BEAM = 6


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return small_setting(tmp_path_factory.mktemp("bound"))


@pytest.fixture(scope="module")
def parts(setting: Setting) -> list[Part]:
    experiment, found = open_experiment("bound"), []
    for unit in experiment.units(setting):
        assert unit.options == {"beam": 20, "taus": [0.05, 1.0], "eps_queries": 1000, "eps_scope": SCOPE}
        own = experiment.measure(setting, replace(unit, options={**unit.options, "beam": BEAM, "eps_queries": 12}))
        found.append({"unit": unit.name, "seed": unit.seed, **json.loads(json.dumps(own, sort_keys=True))})
    return found


def test_quantities_and_survival_are_those_of_the_diagnostics(setting: Setting, parts: list[Part]) -> None:
    trained = open_trained(setting, setting.config("pro"))
    expected: dict[str, list[np.ndarray]] = {"K": [], "m": [], "survived": [], "own": []}
    for task in followed_tasks(trained):
        pool, place = torch.as_tensor(task.pool_rows), {int(row): i for i, row in enumerate(task.pool_rows)}
        asked = QueryBatch(
            trained.tokenizer.codebooks(),
            1,
            trained.codes_NT[pool],
            trained.item_ND[pool],
            trained.query_MD[torch.as_tensor(task.query_rows)],
            torch.tensor([place[int(rows[0])] for rows in task.positives]),
        )
        found = retention(asked, beam=BEAM, tau=0.05)[1:]
        for name in ("K", "m", "survived"):
            expected[name].append(np.stack([getattr(level, f"{name}_Q") for level in found]))
        oracle = follow(trained, trained.beam(searches(trained, BEAM)["oracle"]), task)
        assert np.array_equal(oracle.alive_QT[:, 1:].T, expected["survived"][-1])
        own = follow(trained, trained.beam(searches(trained, BEAM)["own"]), task)
        expected["own"].append(own.alive_QT[:, 1:].T)
    joined = {name: np.concatenate(values, 1) for name, values in expected.items()}
    for place, level in enumerate(parts[1]["taus"]["0.05"]["levels"]):
        assert level["level"] == place + 1 and level["size"] == setting.config("pro").tokenizer.vocab[place]
        for name in ("K", "m"):
            assert level[name]["mean"] == pytest.approx(joined[name][place].mean(), rel=1e-4)
        assert level["survival"]["oracle"] == pytest.approx(joined["survived"][place].mean())
        assert level["survival"]["own"] == pytest.approx(joined["own"][place].mean())
        certain = [np.sqrt(joined["K"][up_to] / 2) < joined["m"][up_to] / 2 for up_to in range(place + 1)]
        certain = np.logical_and.reduce(certain)  # at every level so far
        assert level["certain"] == pytest.approx(certain.mean(), abs=0.021)


def test_mismatch_is_measured_on_fewer_queries_and_of_the_fused_score_where_there_is_one(parts: list[Part]) -> None:
    genius, pro = parts
    assert genius["queries"] == pro["queries"] == 50 and genius["tau"] == "0.05"
    assert set(genius["mismatch"]["pooled"]) == {"eps", "eps_plain"}
    assert set(pro["mismatch"]["pooled"]) == set(bound.MISMATCHES)
    for part in parts:
        for level in part["mismatch"]["levels"]:
            assert 0 <= level["eps"]["mean"] <= 1
            assert sum(one["queries"] for one in level["eps"]["own"]["quintiles"]) == 12
        assert sum(one["queries"] for one in part["taus"]["1"]["pooled"]["K"]["own"]["quintiles"]) == 4 * 50
        assert set(part["eps_scope"]) == set(part["uncovered"]) == {"any2i", "any2t", "any2it"}
        assert all(len(scope) == 4 and scope[0] == "full" for scope in part["eps_scope"].values())


def test_scope_and_uncovered_mass_are_kept_by_task_and_level(
    setting: Setting, parts: list[Part], monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment, unit = open_experiment("bound"), open_experiment("bound").units(setting)[0]
    monkeypatch.setattr("siglum.measure.retention.FULL", 40)
    monkeypatch.setattr("siglum.measure.retention.TOP", 1)
    part = experiment.measure(setting, replace(unit, options={**unit.options, "beam": 2, "eps_queries": 12}))
    part |= {"unit": "genius", "seed": 0}
    for task, scopes in part["eps_scope"].items():
        assert scopes == ["full", "full", SCOPE, SCOPE]
        assert part["uncovered"][task][:2] == pytest.approx([0, 0], abs=1e-5)
        assert 0 < part["uncovered"][task][3] < 1
    counts = {task.name: len(task.query_rows) for task in followed_tasks(open_trained(setting, unit.config), 12)}
    by_task, weights = [part["uncovered"][name] for name in counts], list(counts.values())
    assert part["uncovered_mean"] == pytest.approx(np.average(by_task, axis=0, weights=weights).tolist(), abs=2e-6)
    both = experiment.assemble(setting, [{**parts[0], "seed": 1}, part])
    assert both.results["systems"]["genius"]["eps_scope"] == part["eps_scope"]
    text = " ".join(experiment.assemble(setting, [part, parts[1]]).tables[0].notes)
    left = 100 * np.mean(part["uncovered_mean"][2:])
    assert f"GENIUS at levels 1, 2 (elsewhere {left:.2g} % of the oracle's mass is left out on average)" in text
    assert "and for PRO at every level; elsewhere it is over the beams" in text


def _row(name: str, x: np.ndarray, kept: np.ndarray, first: int) -> bound._Measured:
    two = np.stack([kept, kept], 1)
    value = {"K": np.stack([x, x], 1), "m": np.stack([-x, -x], 1)}
    targets = first + np.arange(len(x))
    return bound._Measured(name, targets, value, {"oracle": two, "own": ~two}, [4, 8], [4, 9], [None, None])


def test_an_association_inside_tasks_is_told_from_one_between_them() -> None:
    """Inside each task the larger K survives, but the task with the larger Ks survives less."""
    x, late = np.arange(20.0), np.arange(20) >= 18
    early = np.arange(20) >= 2
    found = bound.describe([_row("a", x, early, 0), _row("b", x + 100, late, 100)], ("K", "m"))
    for level in found["levels"]:
        assert level["K"]["oracle"]["rho"]["value"] < -0.5 < 0.3 < level["K"]["within"]["oracle"]
        assert level["m"]["oracle"]["rho"]["value"] == pytest.approx(-level["K"]["oracle"]["rho"]["value"], abs=1e-6)
        assert level["K"]["own"]["rho"]["value"] == pytest.approx(-level["K"]["oracle"]["rho"]["value"], abs=1e-6)
        assert level["survival"] == {"oracle": 0.5, "own": 0.5}
    first, *_, last = found["levels"][0]["K"]["oracle"]["quintiles"]
    assert (first["queries"], last["queries"]) == (8, 8) and first["mean"] == 3.5
    assert (first["survival"]["value"], last["survival"]["value"]) == (0.75, 0.25)
    assert found["pooled"]["K"]["oracle"]["survived"] == 40


def test_tables_and_figures_show_every_quantity(setting: Setting, parts: list[Part]) -> None:
    outcome = open_experiment("bound").assemble(setting, parts)
    assert outcome.results["beam"] == BEAM and set(outcome.results["systems"]) == {"genius", "pro"}
    rho, quintiles = outcome.tables
    assert len(rho.rows) == 2 * ((4 + 2) + (4 + 4)) and rho.columns[1:5] == [f"level {n}" for n in (1, 2, 3, 4)]
    assert len(quintiles.rows) == (4 + 2) + (4 + 4)
    assert any("GENIUS: K, τ = 0.05, oracle's beam" in row[0] for row in rho.rows)
    figure, levels = outcome.figures
    assert [panel.title.split(":")[0] for panel in figure.panels] == [
        f"{name}, {sign}" for name in ("GENIUS", "PRO") for sign in ("K", "m", "ε")
    ]
    assert [row.label for row in figure.panels[0].series] == ["level 1", "level 2", "level 4"]
    own = parts[0]["taus"]["0.05"]["levels"][0]["K"]["own"]["quintiles"]
    assert list(figure.panels[0].series[0].y) == [part["survival"]["value"] for part in own]
    assert [len(row.y) for row in levels.panels[1].series] == [4] * 4 and levels.panels[1].series[-1].reference


def test_seeds_are_averaged(setting: Setting, parts: list[Part]) -> None:
    other = json.loads(json.dumps(parts[0]))
    other["seed"] = 1
    other["taus"]["1"]["pooled"]["K"]["mean"] += 1.0
    outcome = open_experiment("bound").assemble(setting, [parts[0], other])
    found = outcome.results["systems"]["genius"]
    alone = open_experiment("bound").assemble(setting, parts)
    for told, several in ((outcome, True), (alone, False)):
        words = [told.results["intervals"], *(" ".join(table.notes) for table in told.tables)]
        words += [figure.title for figure in told.figures]
        assert all(("mean of the seeds' intervals" in one) == several for one in words)
    assert found["taus"]["1"]["pooled"]["K"]["mean"] == pytest.approx(
        parts[0]["taus"]["1"]["pooled"]["K"]["mean"] + 0.5
    )
