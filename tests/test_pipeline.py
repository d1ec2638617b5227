"""The run folder: every stage is made from the one before, and a stage that does not fit is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from siglum import pipeline
from siglum.data.trec import read_qrels, read_run
from siglum.data.vectors import load_vectors
from siglum.files import read_json, read_tensors, write_tensors
from siglum.index import Index
from siglum.log import BothLogs, read_log
from siglum.measure.survival import token_survival
from siglum.pipeline import RunFolder
from siglum.recipes import recipe
from siglum.search.retriever import Retriever
from siglum.types import SiglumError, Vectors

TINY = recipe("pro", "tiny")
QUICK = replace(
    TINY,
    fusion=replace(TINY.fusion, epochs=1),
    tokenizer=replace(TINY.tokenizer, epochs=1, vocab=(8, 16)),
    decoder=replace(TINY.decoder, epochs=1),
)


def refused(act: Callable[[], object], *words: str) -> None:
    """The act must fail with one sentence that holds these words."""
    with pytest.raises(SiglumError) as caught:
        act()
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.fixture
def quick(tmp_path: Path, vectors: Vectors) -> RunFolder:
    """A whole run on random vectors."""
    run = RunFolder(tmp_path / "quick")
    run.write_config(QUICK)
    pipeline.take_vectors(run, vectors)
    pipeline.make_tokenizer(run)
    pipeline.make_decoder(run)
    pipeline.make_index(run)
    return run


def test_vectors_outlive_the_disk(quick: RunFolder, vectors: Vectors) -> None:
    again, fingerprint = load_vectors(quick.vectors)
    assert fingerprint == read_json(quick.vectors / "stage.json")["fingerprint"]
    for part in ("items", "queries"):
        one, two = getattr(vectors, part), getattr(again, part)
        assert list(one.ids) == list(two.ids)
        for name in ("image", "text", "has_image", "has_text"):
            assert np.array_equal(getattr(one, name), getattr(two, name))
    assert np.array_equal(vectors.pair_query, again.pair_query)
    assert np.array_equal(vectors.pair_item, again.pair_item)
    for one, two in zip(vectors.tasks, again.tasks, strict=True):
        assert (one.name, one.split) == (two.name, two.split)
        assert np.array_equal(one.pool_rows, two.pool_rows)
        assert [rows.tolist() for rows in one.positives] == [rows.tolist() for rows in two.positives]


def test_equal_inputs_give_equal_stages(quick: RunFolder, tmp_path: Path, vectors: Vectors) -> None:
    other = RunFolder(tmp_path / "other")
    other.write_config(QUICK)
    pipeline.take_vectors(other, vectors)
    pipeline.make_tokenizer(other)
    pipeline.make_decoder(other)
    pipeline.make_index(other)
    for stage in ("1-vectors", "2-tokenizer", "3-decoder", "4-index"):
        one, two = (read_json(run.root / stage / "stage.json") for run in (quick, other))
        assert one == two


def test_the_index_holds_the_test_pools_or_everything(quick: RunFolder, vectors: Vectors) -> None:
    val, test = vectors.of_split("val"), vectors.of_split("test")
    answers = [replace(task, pool_rows=np.unique(np.concatenate(task.positives))) for task in test]
    rows = np.unique(np.concatenate([task.pool_rows for task in answers]))
    assert len(rows) < len(vectors.items)
    for tasks, wanted in (([*val, *answers], rows), (val, np.arange(len(vectors.items)))):
        pipeline.take_vectors(quick, replace(vectors, tasks=tasks))
        pipeline.make_tokenizer(quick)
        index = pipeline.make_index(quick)
        assert list(index.ids) == list(Index.load(quick.index).ids) == [vectors.items.ids[row] for row in wanted]


def test_evaluation_of_both_splits(world_run: Path, tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for split, items in (("test", 96), ("val", 108)):
        systems = pipeline.open_systems(RunFolder(world_run), split)
        assert len(systems.rows) == len(systems.retriever.index) == items
        rankers = {"dense": systems.dense, "scan": systems.scan, "geometry": systems.geometry, "own": systems.own}
        found = pipeline.evaluate_run(run, systems, rankers, k=5)
        assert len(found.tasks) == len(found.union) == 8
        task = systems.vectors.of_split(split)[0]
        written = read_run(run.runs / f"{task.name}.{split}.own.trec")
        assert written.keys() == read_qrels(run.runs / f"{task.name}.{split}.qrels").keys()
        assert {q: [i for i, _ in r] for q, r in written.items()} == {
            q: [i for i, _ in r] for q, r in found.runs[task.name, "own"].items()
        }
        mean = {name: np.mean([row[name]["success@5"] for row in found.tasks.values()]) for name in rankers}
        assert mean["dense"] > 0.4
        assert mean["own"] > 0.35


def test_survival_and_health_of_a_run(world_run: Path) -> None:
    systems = pipeline.open_systems(RunFolder(world_run))
    books = systems.retriever.tokenizer.codebooks()
    tasks = systems.vectors.of_split("test")
    queries = np.concatenate([task.query_rows for task in tasks])
    targets = np.array([rows[0] for task in tasks for rows in task.positives])
    wanted = token_survival(systems.query_MD[queries], systems.codes_NT[targets], books, 10, 1)
    assert pipeline.survival_of(systems) == wanted
    assert len(wanted) == 4
    assert pipeline.survival_of(systems, beam=64) == [1.0] * 4
    for ranker in (systems.geometry, systems.own):
        shares = pipeline.beam_survival_of(systems, ranker)
        assert len(shares) == 5
        assert all(a >= b for a, b in zip(shares, shares[1:], strict=False))
        assert 0.3 < shares[-1] < 1.0
        few = pipeline.beam_survival_of(systems, ranker, queries_a_task=2)
        assert all(round(16 * share, 6).is_integer() for share in few)
    health = pipeline.health_of(systems)
    assert health.items == 96
    assert health.distinct == len(np.unique(systems.codes_NT[systems.rows].numpy(), axis=0))


def test_a_run_without_a_decoder_has_no_system_of_its_own(run_copy: Path) -> None:
    shutil.rmtree(run_copy / "3-decoder")
    systems = pipeline.open_systems(RunFolder(run_copy))
    assert systems.own is None
    assert systems.retriever.config.scorer == "geometry"


def test_a_split_without_tasks_is_refused(world_run: Path) -> None:
    refused(lambda: pipeline.open_systems(RunFolder(world_run), "train"), "no tasks in split train", "test, val")


def test_an_index_of_another_tokenizer_is_refused(world_run: Path) -> None:
    refused(lambda: Index.load(world_run / "4-index", "f00d"), "made with another tokenizer", "f00d")


def test_a_new_tokenizer_makes_decoder_and_index_refused(quick: RunFolder) -> None:
    assert Retriever.load(quick.root)
    quick.write_config(replace(QUICK, seed=1))
    pipeline.make_tokenizer(quick)
    refused(lambda: Retriever.load(quick.root), "3-decoder", "another tokenizer")
    pipeline.make_decoder(quick)
    refused(lambda: Retriever.load(quick.root), "4-index", "another tokenizer")
    pipeline.make_index(quick)
    assert Retriever.load(quick.root)


def test_new_vectors_make_the_tokenizer_refused(quick: RunFolder, make_vectors) -> None:
    pipeline.take_vectors(quick, make_vectors(seed=1))
    for act in (pipeline.make_decoder, pipeline.make_index, pipeline.open_systems):
        refused(lambda act=act: act(quick), "2-tokenizer", "another vectors")


@pytest.mark.parametrize("stage", ["1-vectors", "2-tokenizer", "3-decoder", "4-index"])
def test_an_unfinished_stage_is_refused(run_copy: Path, stage: str) -> None:
    (run_copy / stage / "stage.json").unlink()
    refused(lambda: pipeline.open_systems(RunFolder(run_copy)), stage, "no finished")


FILES = [
    "1-vectors/items.safetensors",
    "1-vectors/queries.safetensors",
    "1-vectors/tasks.safetensors",
    "1-vectors/tasks.json",
    "2-tokenizer/fusion.safetensors",
    "2-tokenizer/quantizer.safetensors",
    "3-decoder/decoder.safetensors",
    "4-index/index.safetensors",
    "4-index/ids.safetensors",
]


@pytest.mark.parametrize("name", [*FILES, "config.json", "4-index/stage.json"])
def test_a_truncated_file_is_refused(run_copy: Path, name: str) -> None:
    whole = (run_copy / name).read_bytes()
    (run_copy / name).write_bytes(whole[: len(whole) // 2])
    refused(lambda: pipeline.open_systems(RunFolder(run_copy)), name.split("/")[-1], "truncated")


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_refused(run_copy: Path, name: str) -> None:
    (run_copy / name).unlink()
    refused(lambda: pipeline.open_systems(RunFolder(run_copy)), *name.split("/"), "lacks its file")


def test_weights_that_are_not_the_recorded_ones_are_refused(run_copy: Path) -> None:
    path = run_copy / "2-tokenizer" / "quantizer.safetensors"
    tensors = {name: value + 1 for name, value in read_tensors(path).items()}
    write_tensors(path, tensors)
    refused(lambda: Retriever.load(run_copy), "not those its record speaks of")
    write_tensors(path, {name: value[:1] for name, value in tensors.items()})
    refused(lambda: Retriever.load(run_copy), "does not fit the configuration")


def test_a_folder_without_a_configuration_is_no_run(tmp_path: Path) -> None:
    refused(RunFolder(tmp_path).config, "no config.json", "siglum encode")


def test_a_killed_tokenizer_resumes_to_the_same_bytes(
    quick: RunFolder, tmp_path: Path, vectors: Vectors, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = RunFolder(tmp_path / "cut")
    cut.write_config(QUICK)
    pipeline.take_vectors(cut, vectors)

    def killed(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "save_tokenizer", killed)
        with pytest.raises(KeyboardInterrupt):
            pipeline.make_tokenizer(cut)
    refused(lambda: pipeline.make_decoder(cut), "no finished tokenizer stage")
    torch.rand(5)
    pipeline.make_tokenizer(cut, resume=True)
    for name in ("fusion.safetensors", "quantizer.safetensors"):
        assert (cut.tokenizer / name).read_bytes() == (quick.tokenizer / name).read_bytes()
    # Nothing was trained twice.
    lines = (cut.root / "log.jsonl").read_text().splitlines()
    assert len(lines) == len(read_log(cut.root / "log.jsonl")) == 2


def test_the_log_may_go_to_tensorboard_too(quick: RunFolder) -> None:
    pytest.importorskip("tensorboard")
    log = quick.log(tensorboard=True)
    assert isinstance(log, BothLogs)
    log.write("work", 3, {"loss": 0.5})
    assert read_log(quick.root / "log.jsonl")[-1]["loss"] == 0.5
    assert list((quick.root / "tensorboard").iterdir())
