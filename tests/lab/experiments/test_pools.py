"""Larger pools: what distractors are, what is asked of them, and what `survival` and `main` tell of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_setting import SmallSetting, small_setting

from siglum.files import read_json
from siglum.lab.experiments import distractors as drawing
from siglum.lab.experiments import pools
from siglum.lab.experiments.checks import kept_share
from siglum.lab.experiments.distractors import block_of, blocks, by_pool, distractors, widened
from siglum.lab.experiments.run import run_experiments
from siglum.lab.experiments.setting import Setting
from siglum.lab.experiments.trained import open_trained
from siglum.types import Modality, SiglumError, Vectors


def test_distractors_come_in_blocks_that_are_drawn_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "BLOCK", 6)
    setting = Setting("world", tmp_path, scale="tiny")
    found = {kind: distractors(setting, kind, 8) for kind in Modality}
    for kind, rows in found.items():
        assert set(rows.modality) == {int(kind)} and len(set(rows.ids)) == 8
    assert not np.array_equal(found[Modality.TEXT].text[:2], found[Modality.TEXT].text[6:])  # blocks differ
    monkeypatch.delattr(drawing, "_draw")
    again = distractors(setting, Modality.TEXT, 3)
    np.testing.assert_array_equal(again.text, found[Modality.TEXT].text[:3])
    assert list(blocks(0)) == [] and len(block_of(setting, Modality.TEXT, 1)) == 6


def test_a_folder_gives_what_is_in_no_pool_of_test(tmp_path: Path) -> None:
    class Folder(SmallSetting):
        def vectors(self) -> Vectors:
            found = super().vectors()
            tasks = [replace(task, pool_rows=task.pool_rows[: len(task.pool_rows) // 2]) for task in found.tasks]
            return replace(found, tasks=tasks)

    setting = Folder(str(tmp_path), tmp_path, scale="tiny")
    vectors = setting.vectors()
    found = distractors(setting, Modality.TEXT, 50)
    assert set(found.modality) == {int(Modality.TEXT)}
    assert not set(found.ids) & {vectors.items.ids[row] for row in vectors.pool_rows("test")}
    with pytest.raises(SiglumError, match="has 50 items of kind t beside those of test, but 51 were"):
        distractors(setting, Modality.TEXT, 51)


def test_a_wide_pool_asks_the_same_queries(tmp_path: Path) -> None:
    setting = small_setting(tmp_path)
    vectors = setting.vectors()
    for tasks in by_pool(vectors):
        own = len(tasks[0].pool_rows)
        wide = widened(setting, tasks, own + 7)
        assert len(wide.items) == own + 7 and len(set(wide.items.ids)) == own + 7
        for before, after in zip(tasks, wide.tasks, strict=True):
            assert [wide.queries.ids[row] for row in after.query_rows] == [
                vectors.queries.ids[row] for row in before.query_rows
            ]
            for old, new in zip(before.positives, after.positives, strict=True):
                assert [wide.items.ids[row] for row in new] == [vectors.items.ids[row] for row in old]
            assert after.pool_rows.tolist() == list(range(own + 7))
        with pytest.raises(SiglumError, match=f"has {own} items of its own"):
            widened(setting, tasks, own - 1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Setting, dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pools, "_systems", _three)
        patch.setattr(pools, "BEAMS", (2, 5))
        patch.setattr(pools, "block_of", lambda setting, kind, block: [kind, block])
        setting = small_setting(tmp_path_factory.mktemp("pools"), pools=(100, 150))
        told = run_experiments(setting, ["survival", "main"], command="x", say=lambda line: None)
    return setting, told


_systems = pools._systems


def _three(setting: Setting, seed: int) -> dict[str, Any]:
    return {name: config for name, config in _systems(setting, seed).items() if name in ("genius", "pro", "pro_off")}


def test_pools_are_told_after_the_experiment_s_own(run: tuple[Setting, dict[str, Any]]) -> None:
    setting, told = run
    assert all(one["missing"] == {} for one in told.values())
    survival, main = (read_json(setting.out / name / "results.json") for name in ("survival", "main"))
    assert set(survival["systems"]) == {"genius", "pro"} and "best" in main["systems"]
    assert set(survival["pools"]["systems"]) == set(main["pools"]["systems"]) == {"100", "150"}
    assert set(survival["pools"]["systems"]["100"]["pro"]) == {"beam@2", "beam@5"}
    assert set(main["pools"]["systems"]["150"]) == {"genius", "pro", "pro_off", "dense"}
    for one in (survival, main):
        for measure, found in one["pools"]["differences"]["100"]["PRO: PD on less off"].items():
            on, off = (one["pools"]["systems"]["100"][name][measure]["mean"] for name in ("pro", "pro_off"))
            assert found["mean"] == pytest.approx(on - off)
    for name in ("survival", "main"):
        assert (setting.out / name / "pools.png").exists()
        assert "by the size of the pool" in (setting.out / name / "table.md").read_text()


def test_models_are_the_trained_ones_and_pools_the_whole(run: tuple[Setting, dict[str, Any]]) -> None:
    setting, _ = run
    part = read_json(setting.out / "survival" / "parts" / "genius@100-0.json")
    trained = open_trained(setting, setting.config("genius"))
    for tasks in by_pool(setting.vectors(), pools.QUERIES):
        wide = trained.moved(widened(setting, tasks, 100))
        for task in wide.vectors.tasks:
            ranker = wide.beam(setting.config("genius").search)
            ranker.config = type(ranker.config)(scorer="decoder", beam=5, batch_size=ranker.config.batch_size)
            assert part["numbers"]["genius"][task.name]["beam@5"] == pytest.approx(kept_share(ranker, task), abs=1e-5)


def test_without_pools_there_is_nothing_more(tmp_path: Path) -> None:
    assert pools.wide_units(small_setting(tmp_path)) == []
    units = pools.wide_units(small_setting(tmp_path, pools=(30_000,), seeds=2))
    assert [unit.stage for unit in units if unit.name.startswith("distractors")] == [0] * 6
    assert sum(unit.name == "pro@30000" for unit in units) == 2 and all(unit.stage for unit in units[6:])
