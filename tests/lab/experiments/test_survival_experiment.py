"""The experiment on survival: targets followed through beams, what error says of them, tables and figures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from small_setting import small_setting

from siglum.lab.experiments.base import Part, open_experiment
from siglum.lab.experiments.plots import draw
from siglum.lab.experiments.setting import Setting
from siglum.lab.experiments.survival_beams import follow, followed_tasks, searches, targets_of
from siglum.lab.experiments.survival_statistics import QUINTILES, associate, average, quantiles, quintile_of
from siglum.lab.experiments.trained import Trained, open_trained
from siglum.measure.survival import beam_survival, token_survival

BEAM = 6


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return small_setting(tmp_path_factory.mktemp("survival"), seeds=2)


@pytest.fixture(scope="module")
def trained(setting: Setting) -> Trained:
    return open_trained(setting, setting.config("pro"))


@pytest.fixture(scope="module")
def parts(setting: Setting) -> list[Part]:
    """What the units leave; GENIUS at both seeds, PRO at the first."""
    experiment = open_experiment("survival")
    units = experiment.units(setting)
    assert [(unit.name, unit.seed) for unit in units] == [("genius", 0), ("genius", 1), ("pro", 0), ("pro", 1)]
    found = []
    for unit in units[:3]:
        own = experiment.measure(setting, replace(unit, options={"beams": [BEAM, 400]}))
        found.append({"unit": unit.name, "seed": unit.seed, **json.loads(json.dumps(own, sort_keys=True))})
    return found


def test_following_agrees_with_the_share_that_survives(trained: Trained) -> None:
    for task in followed_tasks(trained):
        for search in searches(trained, BEAM).values():
            ranker = trained.beam(search)
            found = follow(trained, ranker, task)
            allowed = ranker.index.allow(np.isin(ranker.index_rows, task.pool_rows))
            rows = ranker.index.rows([trained.vectors.items.ids[row] for row in targets_of(task)])
            query = ranker.query_MD[torch.as_tensor(task.query_rows)]
            expected = beam_survival(ranker.scorer, ranker.index, query, rows, BEAM, allowed)
            assert found.alive_QT.mean(0).tolist() == pytest.approx(expected)
            assert (np.diff(found.alive_QT.astype(int), axis=1) <= 0).all()
            assert (np.diff(found.leaves_T) <= 1e-12).all() and found.leaves_T[-1] >= BEAM / len(task.pool_rows) - 1e-9


def test_a_beam_as_wide_as_the_pool_loses_nothing(trained: Trained) -> None:
    task = followed_tasks(trained)[0]
    found = follow(trained, trained.beam(searches(trained, len(task.pool_rows))["own"]), task)
    assert found.alive_QT.all() and found.leaves_T == pytest.approx(1)


def test_queries_are_spread_over_tasks(trained: Trained) -> None:
    assert sum(len(task.query_rows) for task in followed_tasks(trained)) == 50
    assert [len(task.query_rows) for task in followed_tasks(trained, 6)] == [2, 2, 2]


def test_levels_hold_token_survival_chance_and_both_beams(
    setting: Setting, trained: Trained, parts: list[Part]
) -> None:
    levels = parts[2]["beams"][str(BEAM)]["levels"]
    query, item = (torch.as_tensor(rows) for rows in trained.vectors.first_pairs("test"))
    expected = token_survival(
        trained.query_MD[query], trained.codes_NT[item], trained.tokenizer.codebooks(), BEAM, first_residual=1
    )
    assert [row["token"] for row in levels] == pytest.approx(expected)
    assert [row["level"] for row in levels] == [1, 2, 3, 4]
    assert [row["chance"] for row in levels] == [
        min(1.0, BEAM / size) for size in setting.config("pro").tokenizer.vocab
    ]
    for kind in ("oracle", "own"):
        kept = [row[kind] for row in levels]
        assert kept == sorted(kept, reverse=True) and 0 < kept[-1] < 1
        assert all(row[kind] > row[f"{kind}_leaves"] for row in levels)
    for row in parts[2]["beams"]["400"]["levels"]:
        assert row["chance"] == row["token"] == row["oracle"] == row["own"] == row["own_leaves"] == 1


def test_error_is_compared_between_kept_and_pruned(parts: list[Part]) -> None:
    one = parts[0]["beams"][str(BEAM)]["mse"]["own"]
    assert one["survived"] + one["pruned"] == parts[0]["queries"] == 50
    assert sum(part["queries"] for part in one["quintiles"]) == 50
    assert sum(task["survived"] for task in one["tasks"].values()) == one["survived"]
    for name in ("survived", "pruned"):
        assert len(one["distribution"][name]) == 101 and one["distribution"][name] == sorted(one["distribution"][name])
    everything = parts[0]["beams"]["400"]["mse"]["own"]
    assert everything["pruned"] == 0 and everything["distribution"]["pruned"] is None
    assert everything["auc"]["value"] is None and everything["auc_within"] is None


def test_the_outcome_averages_seeds_and_is_drawn(setting: Setting, parts: list[Part], tmp_path: Path) -> None:
    outcome = open_experiment("survival").assemble(setting, parts)
    own = [part["beams"][str(BEAM)]["levels"][1]["own"] for part in parts[:2]]
    assert outcome.results["systems"]["genius"][str(BEAM)]["levels"][1]["own"] == pytest.approx(np.mean(own))
    assert outcome.results["seeds"] == {"genius": [0, 1], "pro": [0]}
    alone = open_experiment("survival").assemble(setting, parts[1:])
    for told, several in ((outcome, True), (alone, False)):
        words = [told.results["intervals"], told.tables[-1].notes[0], told.figures[-1].title]
        assert all(("mean of the seeds' intervals" in one) == several for one in words)
    names = [table.name for table in outcome.tables]
    assert names == [f"survival-{BEAM}", "survival-400", "survival-mse"]
    first = outcome.tables[0]
    assert len(first.rows) == 4 and first.rows[0][1] == "32" and "±" in first.rows[0][3] and "±" not in first.rows[0][9]
    assert len(outcome.tables[-1].rows) == 2 * 2 * 2 and "–" in outcome.tables[-1].rows[2]
    assert [figure.name for figure in outcome.figures] == ["decay", "mse-ecdf", "mse-quintile"]
    assert len(outcome.figures[0].panels) == 6
    assert [path.stat().st_size > 10_000 for path in draw(outcome.figures, tmp_path)] == [True] * 3


def test_without_pruned_targets_their_curve_is_left_out(setting: Setting, parts: list[Part]) -> None:
    only = [{**part, "beams": {"400": part["beams"]["400"]}} for part in parts]
    _, distributions, by_quintile = open_experiment("survival").assemble(setting, only).figures
    assert [[row.label for row in panel.series] for panel in distributions.panels] == [["survived"]] * 2
    assert all(value in (1.0, None) for row in by_quintile.panels[0].series for value in row.y)


Rows = list[tuple[int, bool]]


@given(rows=st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=2, max_size=40))
def test_associations_are_those_of_scipy(rows: Rows) -> None:
    x, kept = np.array([value for value, _ in rows], float), np.array([flag for _, flag in rows])
    found = associate(x, kept, np.arange(len(x)), rounds=0)
    if kept.all() or not kept.any():
        assert found["rho"]["value"] is None and found["auc"]["value"] is None and found["ks"] is None
        return
    assert found["ks"] == pytest.approx(stats.ks_2samp(x[kept], x[~kept]).statistic, abs=1e-6)
    pairs = stats.mannwhitneyu(x[~kept], x[kept]).statistic / (kept.sum() * (~kept).sum())
    assert found["auc"]["value"] == pytest.approx(pairs, abs=1e-6)
    if len(set(x)) > 1:
        assert found["rho"]["value"] == pytest.approx(stats.spearmanr(x, kept).statistic, abs=1e-6)
    else:
        assert found["rho"]["value"] is None


def test_weights_count_as_repeated_queries() -> None:
    rng = np.random.default_rng(0)
    x, kept = rng.normal(size=30).round(1), rng.random(30) < 0.5
    twice = associate(np.repeat(x, 2), np.repeat(kept, 2), np.repeat(np.arange(30), 2), rounds=50)
    once = associate(x, kept, np.arange(30), rounds=50)
    # The same clusters are drawn, so the intervals agree as well, but for the ranks' finite size.
    for end in ("value", "low", "high"):
        assert twice["rho"][end] == pytest.approx(once["rho"][end], abs=1e-5)
    alone = associate(np.repeat(x, 2), np.repeat(kept, 2), np.arange(60), rounds=50)["rho"]
    assert alone["high"] - alone["low"] < once["rho"]["high"] - once["rho"]["low"]


def test_intervals_cover_what_they_should() -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(60):
        x = rng.normal(size=80)
        ends = associate(x, rng.random(80) < 0.5, np.arange(80), rounds=200)["auc"]
        hits += ends["low"] <= 0.5 <= ends["high"]
    assert 51 <= hits <= 60


@given(values=st.lists(st.integers(-3, 3), min_size=1, max_size=50))
def test_quintiles_keep_equals_together_and_order(values: list[int]) -> None:
    x = np.array(values, float)
    place = quintile_of(x)
    assert ((place >= 0) & (place < QUINTILES)).all()
    for a, b in zip(np.argsort(x, kind="stable")[:-1], np.argsort(x, kind="stable")[1:], strict=True):
        assert place[a] == place[b] if x[a] == x[b] else place[a] <= place[b]


def test_distinct_numbers_fill_quintiles_evenly() -> None:
    assert np.bincount(quintile_of(np.random.default_rng(0).permutation(100.0 * np.arange(45)))).tolist() == [9] * 5


def test_average_keeps_shape_and_gaps() -> None:
    parts: list[Any] = [{"a": [1, 2.0], "b": None, "c": "x"}, {"a": [3, 2.0], "b": 1.0, "c": "x"}]
    assert average(parts) == {"a": [2.0, 2.0], "b": None, "c": "x"}
    assert average(parts[:1]) == parts[0]
    assert quantiles(np.zeros(0)) is None
