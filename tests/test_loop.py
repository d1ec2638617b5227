"""A run that is killed and resumed ends in the same bits as one that was not."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from siglum import loop
from siglum.files import read_json
from siglum.log import JsonlLog, read_log
from siglum.types import SiglumError

EPOCHS = 6


class Killed(Exception):
    """Stands for the end of the process."""


class Work:
    """A small regression with dropout and Adam; `kill_at` raises in the middle of that epoch."""

    def __init__(self, select: list[float] | None = None, kill_at: int | None = None) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 1))
        self.optimiser = loop.adam([(self.model, 1.0, 0.01)])
        self.select, self.kill_at = select, kill_at
        self.epochs_run: list[int] = []

    def epoch(self, epoch: int) -> loop.Metrics:
        self.epochs_run.append(epoch)
        total = 0.0
        for step in range(3):
            if epoch == self.kill_at and step == 2:
                raise Killed
            loop.set_lr(self.optimiser, loop.cosine_lr(1e-2, 0.1, 0.2, 3 * epoch + step, 3 * EPOCHS))
            rows = torch.rand(16, 4)
            loss = (self.model(rows) - rows.sum(1, keepdim=True)).square().mean()
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()
            total += float(loss.detach())
        metrics: loop.Metrics = {"loss": total / 3, "numbers": [epoch, 0.5]}
        return metrics if self.select is None else metrics | {"select": self.select[epoch]}

    def run(self, folder: Path | None, **options: Any) -> list[loop.Metrics]:
        return loop.train(
            "work",
            EPOCHS,
            self.epoch,
            modules={"model": self.model},
            optimiser=self.optimiser,
            seed=3,
            folder=folder,
            **options,
        )

    def bits(self) -> dict[str, torch.Tensor]:
        return {name: value.clone() for name, value in self.model.state_dict().items()}


def assert_same_bits(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert torch.equal(value, right[name]), name


def killed_and_resumed(
    folder: Path, kills: list[int], select: list[float] | None = None
) -> tuple[Work, list[loop.Metrics]]:
    for number, kill_at in enumerate(kills):
        with pytest.raises(Killed):
            Work(select, kill_at).run(folder, resume=number > 0)
    work = Work(select)
    return work, work.run(folder, resume=True)


@pytest.mark.parametrize("kills", [[1], [5], [2, 4], [3, 3, 3], [0]])
def test_resumed_weights_moments_and_history_are_bit_equal(tmp_path: Path, kills: list[int]) -> None:
    straight = Work()
    history = straight.run(None)
    work, resumed = killed_and_resumed(tmp_path, kills)
    assert resumed == history
    assert len(history) == EPOCHS
    assert work.epochs_run == list(range(kills[-1], EPOCHS)), "finished epochs are not run again"
    assert_same_bits(work.bits(), straight.bits())
    for left, right in zip(work.optimiser.state.values(), straight.optimiser.state.values(), strict=True):
        assert_same_bits(dict(left), dict(right))


def test_without_resume_a_checkpoint_is_not_continued(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        Work(kill_at=4).run(tmp_path)
    again = Work()
    again.run(tmp_path)
    assert again.epochs_run == list(range(EPOCHS))


def test_a_finished_run_that_is_resumed_runs_nothing(tmp_path: Path) -> None:
    first = Work()
    history = first.run(tmp_path)
    again = Work()
    assert again.run(tmp_path, resume=True) == history
    assert again.epochs_run == []
    assert_same_bits(again.bits(), first.bits())


SELECT = [0.1, 0.3, 0.9, 0.2, 0.9, 0.4]


def test_the_best_epoch_is_left_in_the_modules(tmp_path: Path) -> None:
    seen: list[dict[str, torch.Tensor]] = []

    class Watched(Work):
        def epoch(self, epoch: int) -> loop.Metrics:
            metrics = super().epoch(epoch)
            seen.append(self.bits())
            return metrics

    for folder in (None, tmp_path):
        work = Watched(SELECT)
        work.run(folder)
        assert_same_bits(work.bits(), seen[2])  # the first of the two best epochs
    with pytest.raises(AssertionError):
        assert_same_bits(seen[2], seen[5])


@pytest.mark.parametrize("kills", [[1], [2], [3], [5], [3, 5]])
def test_the_best_epoch_is_kept_over_a_resume(tmp_path: Path, kills: list[int]) -> None:
    straight = Work(SELECT)
    straight.run(None)
    work, _ = killed_and_resumed(tmp_path, kills, SELECT)
    assert_same_bits(work.bits(), straight.bits())


def test_a_checkpoint_of_another_identity_is_refused(tmp_path: Path) -> None:
    Work().run(tmp_path, identity="a")
    with pytest.raises(SiglumError, match="another configuration or other data"):
        Work().run(tmp_path, identity="b", resume=True)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_divergence_is_refused_and_the_last_good_state_stays(tmp_path: Path, value: float) -> None:
    work = Work()

    def run_epoch(epoch: int) -> loop.Metrics:
        return work.epoch(epoch) | ({"loss": value} if epoch == 2 else {})

    with pytest.raises(SiglumError, match="work diverged in epoch 3"):
        loop.train(
            "work", EPOCHS, run_epoch, modules={"model": work.model}, optimiser=work.optimiser, seed=3, folder=tmp_path
        )
    assert len(read_json(tmp_path / "checkpoint.json")["history"]) == 2


@pytest.mark.parametrize("moment", ["write_json", "write_tensors"])
def test_a_kill_between_state_and_pointer_leaves_a_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    straight = Work(SELECT)
    history = straight.run(None)
    calls = 0
    real: Callable[..., None] = getattr(loop, moment)

    def kill_third(*args: Any, **options: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise Killed
        real(*args, **options)

    monkeypatch.setattr(loop, moment, kill_third)
    with pytest.raises(Killed):
        Work(SELECT).run(tmp_path)
    monkeypatch.undo()
    work = Work(SELECT)
    assert work.run(tmp_path, resume=True) == history
    assert 0 < len(work.epochs_run) < EPOCHS
    assert_same_bits(work.bits(), straight.bits())
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "best-00003.safetensors",
        "checkpoint.json",
        "state-00006.safetensors",
    ]


@pytest.mark.parametrize("name", ["best-00003.safetensors", "checkpoint.json", "state-00004.safetensors"])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Killed):
        Work(SELECT, kill_at=4).run(tmp_path)
    whole = (tmp_path / name).read_bytes()
    for place in range(0, len(whole), 5):
        (tmp_path / name).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with suppress(SiglumError):
            if name == "checkpoint.json" and read_json(tmp_path / name) == json.loads(whole):
                continue  # white space, or a digit beyond what a number holds
        with pytest.raises(SiglumError):
            Work(SELECT).run(tmp_path, resume=True)
    (tmp_path / name).write_bytes(whole)
    Work(SELECT).run(tmp_path, resume=True)


def test_every_epoch_is_logged_once_also_over_a_resume(tmp_path: Path) -> None:
    log = JsonlLog(tmp_path / "log.jsonl")
    with pytest.raises(Killed):
        Work(kill_at=2).run(tmp_path / "checkpoint", log=log)
    history = Work().run(tmp_path / "checkpoint", resume=True, log=log)
    assert [record["step"] for record in read_log(log.path)] == list(range(EPOCHS))
    assert [record["loss"] for record in read_log(log.path)] == [metrics["loss"] for metrics in history]


def test_another_seed_gives_other_weights() -> None:
    runs = []
    for seed in (0, 0, 1):
        work = Work()
        loop.train("work", 1, work.epoch, modules={"model": work.model}, optimiser=work.optimiser, seed=seed)
        runs.append(work.bits()["0.weight"])
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


@given(st.integers(1, 50), st.integers(1, 60), st.integers(0, 5))
def test_batches_hold_every_row_once_at_most_and_have_one_size(num_rows: int, size: int, seed: int) -> None:
    found = list(loop.batches(num_rows, size, torch.Generator().manual_seed(seed)))
    assert len(found) == loop.num_batches(num_rows, size)
    assert {len(rows) for rows in found} == {min(size, num_rows)}
    everything = torch.cat(found).tolist()
    assert len(set(everything)) == len(everything) > num_rows - min(size, num_rows)
    assert set(everything) <= set(range(num_rows))


def test_the_learning_rate_rises_then_falls_to_its_end() -> None:
    rates = [loop.cosine_lr(2.0, 0.1, 0.25, step, 40) for step in range(41)]
    assert rates[0] == pytest.approx(0.2)
    assert rates[9] == rates[10] == 2.0
    assert all(a > b for a, b in itertools.pairwise(rates[10:]))
    assert rates[40] == pytest.approx(0.2)
    assert rates[25] == pytest.approx(1.1)
    assert loop.cosine_lr(2.0, 0.1, 0.0, 0, 40) == 2.0


def test_adam_decays_matrices_only_and_scales_each_group() -> None:
    left, right = nn.Linear(2, 3), nn.Linear(3, 2)
    right.bias.requires_grad_(False)
    optimiser = loop.adam([(left, 1.0, 0.5), (list(right.parameters()), 0.1, 0.2)])
    loop.set_lr(optimiser, 0.3)
    found = [
        (tuple(group["params"][0].shape), group["weight_decay"], round(group["lr"], 6))
        for group in optimiser.param_groups
    ]
    assert found == [((3, 2), 0.5, 0.3), ((3,), 0.0, 0.3), ((2, 3), 0.2, 0.03)]


def test_seeds_depend_on_every_part() -> None:
    seeds = {loop.seed_of(*parts) for parts in [(0, "a"), (0, "b"), (1, "a"), ("a", 0), (0, "a", 0)]}
    assert len(seeds) == 5
    assert all(0 <= seed < 2**63 for seed in seeds)
