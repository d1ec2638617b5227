"""`siglum bench sequences` end to end on a small world: parts, document, table, stops and refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sequence_files import quick_config, write_world
from siglum.cli.main import main
from siglum.data.sequence_files import read_sequences
from siglum.data.sequences import split_events
from siglum.lab.sequences import systems
from siglum.lab.sequences.sasrec import SasRecConfig, fit_sasrec, windows
from siglum.lab.sequences.systems import HELD_OUT, UNITS, reciprocal, without_held_out
from siglum.lab.sequences.table import gap

NAMES = [name for names in UNITS.values() for name in names]


def small(name: str, scale: str, seed: int) -> Any:
    assert scale == "tiny"
    config = quick_config(name)
    fusion = replace(config.fusion, dim=16 if config.fusion.kind != "none" else config.fusion.dim)
    return replace(config, fusion=fusion, recipe=name, seed=seed, scale=scale)


def shrink(patch: pytest.MonkeyPatch) -> None:
    """Have units train next to nothing."""
    patch.setattr(systems, "recommender", small)
    patch.setattr(systems, "fit_to_items", lambda config, features, targets: config)
    patch.setattr(systems, "HELD_OUT", 0.2)
    patch.setattr(systems, "TIMED", 5)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    write_world(folder / "world", users=80)
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        assert bench(folder, "--seeds", "2") == 0
    return folder


def bench(folder: Path, *more: str) -> int:
    out = ["--out", str(folder / "found.json"), "--scale", "tiny"]
    return main(["bench", "sequences", "--data", str(folder / "world"), *out, *more])


def document(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found


@pytest.mark.long
def test_one_command_measures_all_systems(finished: Path) -> None:
    found = document(finished)
    assert set(found["systems"]) | {f"held_out.{name}" for name in found["held_out"]} == set(NAMES)
    assert not found["missing"] and found["users"] == 80 and found["seeds"] == 2
    for one in found["systems"].values():
        assert 0 <= one["ndcg@10"]["mean"] <= one["recall@10"]["mean"] <= 1
    assert set(found["cold"]) == set(found["unseen"]) == set(found["bias"]) == set(found["systems"])
    assert set(found["by_codes"]) >= {"tiger", "pro"} and "sasrec" not in found["by_codes"]
    assert found["comparisons"]["pro - tiger"]["recall@10"].keys() == {"mean", "low", "high"}
    assert set(found["parts_of_pro"]) == {"distillation", "schedule", "fusion", "levels"}
    assert len(found["parts_of_pro"]["levels"]["pro"]["K"]) == 3
    assert found["latency_ms"]["tiger"]["0"]["median"] > 0
    assert len(found["validation"]["pro"]["0"]["pro"]) > 8 and found["validation"]["sasrec"]["1"]
    assert found["disambiguation"]["tiger"]["0"]["left"] >= 0


@pytest.mark.long
def test_the_table_says_what_the_document_does(finished: Path) -> None:
    text, found = (finished / "found.md").read_text(), document(finished)
    for words in ("| SASRec ", "TIGER, 6 + 6 layers", "| Δ ", "left out", "held out", "PRO is "):
        assert words in text
    assert f"{found['systems']['tiger']['recall@10']['mean']:.4f}" in text


@pytest.mark.long
def test_what_is_there_is_not_measured_again(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = document(finished)

    def never(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(systems, "measure_unit", never)
    shrink(monkeypatch)
    assert bench(finished, "--seeds", "2") == 0
    assert document(finished) == before


@pytest.mark.long
def test_a_unit_goes_on_inside_itself(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its run is there, so that a part that is gone comes back without training."""
    before = document(finished)["systems"]["tiger"]
    (finished / "found.parts" / "parts" / "tiger-0.json").unlink()
    shrink(monkeypatch)
    from siglum.generate.history_train import HistoryTraining

    monkeypatch.setattr(HistoryTraining, "epoch", None)
    assert bench(finished, "--seeds", "2", "--units", "tiger,pro") == 0
    assert document(finished)["systems"]["tiger"] == before


def test_some_units_of_one_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_world(tmp_path / "world", users=40)
    shrink(monkeypatch)
    assert bench(tmp_path, "--units", "plain,tiger") == 0
    found = document(tmp_path)
    assert set(found["systems"]) == {"popularity", "last_item", "tiger"} and found["comparisons"] == {}
    assert found["systems"]["tiger"]["recall@5"]["std"] == 0.0 and "TIGER" in (tmp_path / "found.md").read_text()


def test_bad_options_are_refused(tmp_path: Path, fail) -> None:
    write_world(tmp_path / "world")
    base = ["bench", "sequences", "--data", tmp_path / "world", "--out"]
    for more, words in (
        ([tmp_path / "a.txt"], "must be a .json file"),
        ([tmp_path / "a.json", "--scale", "huge"], "must be one of: paper, small, tiny"),
        ([tmp_path / "a.json", "--units", "tigre"], "must be one of: plain, sasrec"),
        ([tmp_path / "a.json", "--seeds", "0"], "--seeds must be at least 1"),
        ([tmp_path / "a.json", "--split", "random"], "must be one of: leave_one_out, time"),
    ):
        assert words in main_says(fail, [*base, *more])


def main_says(fail: Any, args: list[Any]) -> str:
    from _pytest.outcomes import Failed

    try:
        return str(fail(*args))
    except (AssertionError, Failed) as error:  # the prefix names both words of the verb
        return str(error)


def test_sasrec_learns_a_rule_and_goes_on_after_a_stop(tmp_path: Path) -> None:
    sequences = read_sequences(write_world(tmp_path / "world", users=120))
    split = split_events(sequences)
    config = SasRecConfig(dim=32, dropout=0.0, epochs=6, batch_size=32, lr=3e-3, every=3, length=5)
    whole, history = fit_sasrec(sequences, split, config, folder=tmp_path / "one")
    assert history[-1]["loss"] < history[0]["loss"] and "select" in history[-1]
    again, told = fit_sasrec(sequences, split, config, folder=tmp_path / "one")
    assert told == history
    for name, value in whole.state_dict().items():
        assert (value == again.state_dict()[name]).all()


def test_windows_have_every_training_target_once() -> None:
    from siglum.data.sequences import Sequences
    from siglum.types import Item

    rows, offsets = np.arange(14), np.array([0, 9, 14])
    sequences = Sequences(["a", "b"], [Item(id=str(row)) for row in rows], rows, offsets)
    split = split_events(sequences)
    found = windows(sequences, split, 3)
    targets = sorted(int(item) for row in found for item in row[1:] if item >= 0)
    assert targets == split.train.tolist()


def test_items_kept_from_training_leave_no_trace() -> None:
    from siglum.data.sequences import Sequences
    from siglum.types import Item

    rng = np.random.default_rng(0)
    rows, offsets = rng.integers(0, 30, 200), np.arange(0, 201, 10)
    sequences = Sequences([str(user) for user in range(20)], [Item(id=str(row)) for row in range(30)], rows, offsets)
    split, gone = split_events(sequences), rng.random(30) < HELD_OUT + 0.2
    kept, inner = without_held_out(sequences, split, gone)
    assert not gone[kept.row_E].any() and inner.learnt_E.shape == kept.row_E.shape
    for name in ("train", "val", "test"):
        old, new = getattr(split, name), getattr(inner, name)
        assert set(kept.row_E[new].tolist()) <= set(sequences.row_E[old].tolist())
        assert len(new) <= (~gone[sequences.row_E[old]]).sum()
    assert (kept.histories(inner.train, 5)[:, 0] >= 0).all()


def test_intervals_are_paired_over_users_and_seeds() -> None:
    rng = np.random.default_rng(0)
    base = [{"seed": seed, "ranks": rng.integers(0, 30, 300)} for seed in range(3)]
    better = [{**one, "ranks": np.where(one["ranks"] > 10, 1, one["ranks"])} for one in base]
    found = gap(better, base, "recall@10")
    assert 0 < found["low"] < found["mean"] < found["high"]
    assert gap(base, base, "ndcg@10") == {"mean": 0, "low": 0, "high": 0}


def test_two_lists_become_one() -> None:
    assert reciprocal(np.array([5, 6, -1]), np.array([7, 5, 6])).tolist() == [5, 6, 7]
