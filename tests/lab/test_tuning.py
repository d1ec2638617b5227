"""A plan of trials is run on validation alone, each once, and every number is what its name says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caption_files import make_captions
from siglum.lab.experiments.fusion_weights import first_ranks
from siglum.lab.experiments.ranks import DEPTH, geometry_alone
from siglum.lab.experiments.run import measure
from siglum.lab.experiments.setting import Setting
from siglum.lab.experiments.survival_beams import follow
from siglum.lab.experiments.trained import open_trained
from siglum.lab.tuning import Trial, Tuning, read_plan, summary, survival
from siglum.types import SiglumError

SPLITS = ["train"] * 36 + ["val"] * 12 + ["test"] * 2
SMALL = (
    *("fusion.dim=8", "fusion.hidden=16", "fusion.epochs=4", "fusion.dropout=0.1", "fusion.input_dropout=0.1"),
    *("tokenizer.vocab=[4,4,4]", "tokenizer.epochs=2", "tokenizer.kmeans_iters=2", "query.hidden=8", "query.epochs=1"),
    *("decoder.d_model=16", "decoder.d_ff=16", "decoder.d_kv=8", "decoder.heads=2", "decoder.decoder_layers=1"),
    *("decoder.epochs=1", "decoder.batch_size=64", "search.beam=6"),
)
TRIALS = (
    Trial(name="pro", set=SMALL, space="joint"),
    Trial(name="pro-2", set=(*SMALL, "tokenizer.rank_weight=2"), space="joint", decoder=False),
    Trial(name="best", recipe="best", set=SMALL, decoder=False),
    Trial(name="genius", recipe="genius", set=SMALL),
)


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    folder = tmp_path_factory.mktemp("tuning")
    data = make_captions(folder / "data", SPLITS, [3] * len(SPLITS), noise=0.4)
    return Setting(str(data), folder / "out", scale="captions_small")


@pytest.fixture(scope="module")
def parts(setting: Setting) -> dict[str, dict[str, Any]]:
    (found,) = measure(setting, [Tuning(TRIALS)], say=lambda _: None)
    assert not found.missing
    return {part["unit"]: part for part in found.parts}


def test_trials_give_what_they_train(parts: dict[str, dict[str, Any]]) -> None:
    bare = {"dense", "scan", "geometry"}
    assert set(parts["pro-2"]["systems"]) == bare
    assert set(parts["pro"]["systems"]) == set(parts["genius"]["systems"]) == bare | {"decoder", "fused"}
    assert set(parts["best"]["systems"]) == bare | {"dense_head", "scan_head"}
    assert parts["pro-2"]["config"]["tokenizer"]["rank_weight"] == 2
    assert parts["pro"]["config"]["tokenizer"]["train_fusion"]
    assert parts["pro"]["systems"]["dense"] != parts["best"]["systems"]["dense"]
    assert {len(ranks) for part in parts.values() for ranks in part["systems"]["dense"].values()} == {36, 12}


def test_the_numbers_are_those_of_the_systems(setting: Setting, parts: dict[str, dict[str, Any]]) -> None:
    (unit, *_) = Tuning(TRIALS[1:]).units(setting)
    trained = open_trained(setting, unit.config, decoder=False)
    for task in trained.vectors.of_split("val"):
        ranker = trained.beam(geometry_alone(unit.config.search))
        assert parts["pro-2"]["systems"]["geometry"][task.name] == first_ranks(task, ranker, DEPTH).tolist()
        error = (trained.item_ND - trained.reconstructions())[task.pool_rows].square().sum(-1).mean()
        assert parts["pro-2"]["error"][task.name] == pytest.approx(float(error), abs=1e-4)
        assert len(parts["pro-2"]["divergence"][task.name]) == 3


def test_survival_is_that_of_the_beam(setting: Setting, parts: dict[str, dict[str, Any]]) -> None:
    (unit, *_) = Tuning(TRIALS[1:]).units(setting)
    trained = open_trained(setting, unit.config, decoder=False)
    (task,) = (task for task in trained.vectors.of_split("val") if task.name == "t2i")  # one positive a query
    found = []
    for beam in (1, 3, 20):
        search = geometry_alone(unit.config.search)
        wanted = follow(trained, trained.beam(type(search)(scorer="geometry", beam=beam)), task).alive_QT[:, -1].mean()
        found.append(survival(trained, search, task, beam))
        assert found[-1] == pytest.approx(float(wanted), abs=1e-4)
    assert found[0] < found[1] <= found[2]


def test_the_summary_has_a_row_a_trial(parts: dict[str, dict[str, Any]]) -> None:
    table = summary(list(parts.values()))
    assert [row[0] for row in table.rows] == ["pro-0", "pro-2-0", "best-0", "genius-0"]
    ranks = [np.array(rows) for rows in parts["pro"]["systems"]["dense"].values()]
    value = np.mean([np.where(rows > 0, 1 / np.maximum(rows, 1), 0).mean() for rows in ranks])
    assert table.rows[0][1] == f"{100 * value:.2f}"


def test_a_plan_is_a_list_of_trials_with_names_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps([{"name": "a", "set": ["tokenizer.lr=1"]}, {"name": "a", "seed": 1}]))
    assert read_plan(path) == [Trial(name="a", set=("tokenizer.lr=1",)), Trial(name="a", seed=1)]
    path.write_text(json.dumps([{"name": "a"}, {"name": "a"}]))
    with pytest.raises(SiglumError, match="two trials named 'a' with seed 0"):
        read_plan(path)
    path.write_text(json.dumps([{"name": "a", "sets": []}]))
    with pytest.raises(SiglumError, match="Trial has no field 'sets'"):
        read_plan(path)
    path.write_text("{}")
    with pytest.raises(SiglumError, match="must be a list"):
        read_plan(path)
