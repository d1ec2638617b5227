"""The experiment on distillation: its systems, what it measures, what follows from the numbers, and the verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_setting import small_setting

from siglum.config import SearchConfig, diff
from siglum.files import read_json
from siglum.fuse.contrastive import embed
from siglum.lab.experiments.checks import divergence, kept_share, target_errors
from siglum.lab.experiments.distillation import SYSTEMS, Distillation
from siglum.lab.experiments.prediction import predictions
from siglum.lab.experiments.run import run_experiments
from siglum.lab.experiments.samples import MEAN, Samples, detectable
from siglum.lab.experiments.setting import Setting
from siglum.lab.experiments.trained import Trained, open_space, open_trained
from siglum.lab.experiments.verdict import LOSS, PRIMARY, judge, verdict
from siglum.search.beam import Beams, beam_search
from siglum.tokenize.heldout import held_out_rank_loss, held_out_rank_losses
from siglum.types import SiglumError, Task


def test_systems_differ_in_what_they_are_named_for(tmp_path: Path) -> None:
    units = {unit.name: unit for unit in Distillation().units(small_setting(tmp_path))}
    off = units["off"].config
    assert set(units) == set(SYSTEMS) and off.tokenizer.train_fusion and off.tokenizer.rank_weight == 0
    weight, epochs = units["on"].config.tokenizer.rank_weight, off.tokenizer.epochs
    assert {name: diff(off, unit.config) for name, unit in units.items()} == {
        "off": {},
        "on": {"tokenizer.rank_weight": (0.0, weight)},
        "extra": {"tokenizer.train_fusion": (True, False), "tokenizer.space_epochs": (0, epochs)},
        "slow_ema": {"tokenizer.decay": (0.9, 0.99)},
        "one_hot": {"tokenizer.rank_weight": (0.0, weight), "tokenizer.rank_teacher": ("fused", "positive")},
        "shuffled": {"tokenizer.rank_weight": (0.0, weight), "tokenizer.rank_teacher": ("fused", "shuffled")},
    }
    with pytest.raises(SiglumError, match="genius distils nothing"):
        Distillation().units(small_setting(tmp_path, recipe="genius"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Setting, Trained]:
    setting = small_setting(tmp_path_factory.mktemp("trained"))
    unit = Distillation().units(setting)[1]
    return setting, open_trained(setting, unit.config)


def test_kept_targets_are_those_of_the_beam_search(trained: tuple[Setting, Trained]) -> None:
    _, one = trained
    for task in one.vectors.of_split("test"):
        # Every query gets a second target, so that all positives must count.
        second = [np.array([*rows, task.pool_rows[place]]) for place, rows in enumerate(task.positives)]
        task = Task(task.name, task.split, task.query_rows, task.pool_rows, second)
        for search in (SearchConfig(scorer="oracle", beam=3), replace(one.config.search, beam=4, lookahead=True)):
            ranker, trace = one.beam(search), list[Beams]()
            allowed = ranker.index.allow(np.isin(np.arange(len(one.vectors.items)), task.pool_rows))
            query = ranker.query_MD[torch.as_tensor(task.query_rows)]
            beam_search(ranker.scorer, ranker.index, query, search.beam, allowed, trace, ranker.ahead)
            live, ids = trace[-1], one.vectors.items.ids
            wanted = []
            for place, targets in enumerate(task.positives):
                rows = ranker.index.rows([ids[target] for target in targets])
                mine = live.query == place
                alive = [((live.lo <= row) & (row < live.hi) & mine).any() for row in rows]
                wanted.append(np.mean(alive))
            assert kept_share(ranker, task).tolist() == pytest.approx(wanted)
            assert 0 < np.mean(wanted) < 1


def test_divergence_is_against_the_teacher_it_is_given(trained: tuple[Setting, Trained]) -> None:
    setting, one = trained
    task, tau = one.vectors.of_split("test")[0], one.config.tokenizer.temperature
    wanted = [level.K_Q for level in one.quantities(task, beam=5, tau=tau)]
    np.testing.assert_allclose(divergence(one, task), np.stack(wanted, 1), atol=1e-6)
    np.testing.assert_allclose(divergence(one, task, (one.query_MD, one.item_ND)), np.stack(wanted, 1), atol=1e-4)
    space, _ = open_space(setting, one.config)
    original = tuple(embed(space, part, "cpu") for part in (one.vectors.queries, one.vectors.items))
    other = divergence(one, task, (original[0], original[1]))
    teacher = original[0][task.query_rows] @ original[1][task.pool_rows].T / tau
    partial = one.tokenizer.quantizer.partial_sums(one.codes_NT[task.pool_rows])
    level = one.tokenizer.quantizer.first_residual
    codes = [tuple(row[: level + 1].tolist()) for row in one.codes_NT[task.pool_rows]]
    for place, row in enumerate(task.query_rows[:5]):
        best: dict[tuple[int, ...], list[float]] = {}
        for item, code in enumerate(codes):
            score = float(one.query_MD[row] @ partial[item, level]) / tau
            best[code] = [max(best.get(code, [-np.inf])[0], float(teacher[place, item])), score]
        star, bar = (torch.tensor(side).log_softmax(0) for side in zip(*best.values(), strict=True))
        assert other[place, 0] == pytest.approx(float((star.exp() * (star - bar)).sum()), abs=1e-4)


def test_errors_and_losses_are_those_of_the_queries(trained: tuple[Setting, Trained]) -> None:
    _, one = trained
    task = one.vectors.of_split("test")[0]
    gap = one.item_ND - one.reconstructions()
    wanted = [float(gap[int(rows[0])].square().sum()) for rows in task.positives]
    assert target_errors(one, task).tolist() == pytest.approx(wanted)
    losses = held_out_rank_losses(one.tokenizer, one.vectors, "test")
    assert len(losses) == sum(len(task.query_rows) for task in one.vectors.of_split("test"))
    assert losses.mean() == pytest.approx(held_out_rank_loss(one.tokenizer, one.vectors, "test"))


def test_the_experiment_writes_its_endpoint_tables_and_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    units = Distillation.units
    kept = ("off", "on", "shuffled")
    monkeypatch.setattr(Distillation, "units", lambda self, s: [u for u in units(self, s) if u.name in kept])
    setting = small_setting(tmp_path, seeds=2)
    told = run_experiments(setting, ["distillation"], command="x", say=lambda line: None)["distillation"]
    assert told["missing"] == {} and told["measured"] == 6
    folder = tmp_path / "distillation"
    results = read_json(folder / "results.json")
    assert "There is no verdict yet" in results["verdict"]  # without the one-hot teacher
    for kind in ("beam_survival_at", "oracle_survival_at"):
        assert set(results[kind]) == {"10", "20", "50"} and set(results[kind]["20"]) == set(kept)
        assert all(0 <= value <= 1 for row in results[kind].values() for value in row.values())
    part = read_json(folder / "parts" / "on-1.json")
    means = [np.mean(part["numbers"]["on"][task]["beam@20"]) for task in part["numbers"]["on"]]
    assert results["numbers"]["on"][MEAN]["beam@20"]["seeds"][1] == pytest.approx(np.mean(means))
    effect = results["primary"]["effect"]
    gap = results["beam_survival_at"]["20"]["on"] - results["beam_survival_at"]["20"]["off"]
    assert effect["mean"] == pytest.approx(gap) and effect["low"] <= effect["mean"] <= effect["high"]
    assert results["primary"]["smallest_detectable"] > 0 and results["primary"]["above"]["one_hot"] is None
    assert {"success@1", "mrr@10"} <= set(results["ranks"]["on_geometry"][MEAN])
    assert "Primary endpoint" in told["tables"] and "Q5" in told["tables"]
    assert {path.name for path in folder.glob("*.png")} == {
        f"distillation-{n}.png" for n in ("survival", "success", "K")
    }


def samples(by_system: dict[str, float], spread: float = 0.1, change: float = 0.0) -> Samples:
    """Three seeds of 200 queries whose survival and loss lie around a system's mean."""
    rng, found = np.random.default_rng(0), Samples()
    for system, mean in by_system.items():
        for seed in range(3):
            values = {
                PRIMARY: mean + spread * rng.normal(size=200),
                LOSS: 1.0 - change * (system != "off") * np.ones(200),
            }
            found.add(system, "t2i", seed, values)
    return found


@pytest.mark.parametrize(
    ("survival", "fell", "words"),
    [
        ({"on": 0.6}, 0.0, "not seen to act"),
        ({"on": 0.6}, 0.1, "Ranking distillation helps"),
        ({"on": 0.6, "shuffled": 0.6}, 0.1, "may not be called ranking distillation"),
        ({"on": 0.6, "one_hot": 0.6}, 0.1, "may not be called ranking distillation"),
        ({"on": 0.4}, 0.1, "acts and harms"),
        ({}, 0.1, "No effect of distillation was found"),
        ({"one_hot": 0.4, "shuffled": 0.4}, 0.1, "above both controls only because these do harm"),
    ],
)
def test_the_verdict_follows_from_the_numbers(survival: dict[str, float], fell: float, words: str) -> None:
    numbers = samples({**dict.fromkeys(("off", "on", "one_hot", "shuffled"), 0.5), **survival}, change=fell)
    assert words in judge(numbers)["verdict"]


def test_the_smallest_effect_is_one_that_is_found_four_times_in_five() -> None:
    def found(effect: float, seed: int) -> tuple[float, float]:
        rng, numbers = np.random.default_rng(seed), Samples()
        own = rng.normal(size=100)  # queries differ in what the treatment does to them, at all seeds alike
        for place in range(5):
            numbers.add("off", "t2i", place, {PRIMARY: np.zeros(100)})
            numbers.add("on", "t2i", place, {PRIMARY: effect + own})
        rounds = numbers.rounds({"on": 1.0, "off": -1.0}, MEAN, PRIMARY)
        assert rounds is not None
        return detectable(rounds), float(np.quantile(rounds[1:], 0.025))

    smallest = float(np.mean([found(0.0, seed)[0] for seed in range(20)]))
    assert smallest == pytest.approx(2.8 * 0.1, rel=0.1)
    power = np.mean([found(smallest, 100 + seed)[1] > 0 for seed in range(60)])
    assert 0.65 <= power <= 0.95


def test_what_is_missing_gives_no_verdict() -> None:
    one = {"mean": 0.0, "low": -1.0, "high": 1.0}
    assert "no verdict yet" in verdict(None, one, 0.1, {"one_hot": one, "shuffled": one})
    assert judge(samples({"on": 0.5}))["primary"]["effect"] is None


def test_a_change_in_k_predicts_survival_only_where_it_does() -> None:
    rng, numbers = np.random.default_rng(0), Samples()
    for seed in range(3):
        base: dict[str, Any] = {"K": rng.normal(size=300), "K1": rng.normal(size=300), PRIMARY: rng.normal(size=300)}
        numbers.add("off", "t2i", seed, base)
        change = rng.normal(size=300)
        after = {"K": base["K"] + change, "K1": base["K1"] + rng.normal(size=300)}
        numbers.add("on", "t2i", seed, {**after, PRIMARY: base[PRIMARY] - change + 0.5 * rng.normal(size=300)})
    found = predictions(numbers)["on"]
    assert found["K"]["rho"]["high"] < -0.7 and abs(found["K1"]["rho"]["mean"]) < 0.1
    first, last = found["K"]["quintiles"][0]["mean"], found["K"]["quintiles"][-1]["mean"]
    assert first > 1 and last < -1
