"""The stages of a run: each is made from the one before, taken where it is there, refused where it does not fit."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from records import reseal
from siglum.data.trec import read_qrels, read_run
from siglum.data.vectors import load_vectors
from siglum.files import read_json, read_tensors, write_tensors
from siglum.index import Index
from siglum.log import BothLogs, read_log
from siglum.measure.survival import token_survival
from siglum.measure.systems import (
    beam_survival_of,
    evaluate_run,
    health_of,
    open_systems,
    survival_of,
)
from siglum.recipes import recipe
from siglum.run import folder, stages
from siglum.run.folder import RunFolder
from siglum.run.generations import open_index
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
    stages.take_vectors(run, vectors)
    stages.make_tokenizer(run)
    stages.make_decoder(run)
    stages.make_index(run)
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
    stages.take_vectors(other, vectors)
    stages.make_tokenizer(other)
    stages.make_decoder(other)
    stages.make_index(other)
    for stage in ("1-vectors", "2-tokenizer", "3-decoder", "4-index"):
        one, two = (read_json(run.root / stage / "stage.json") for run in (quick, other))
        assert one == two


def test_the_index_holds_everything_or_the_pools_of_a_split(quick: RunFolder, vectors: Vectors) -> None:
    val, test = vectors.of_split("val"), vectors.of_split("test")
    answers = [replace(task, pool_rows=np.unique(np.concatenate(task.positives))) for task in test]
    rows = np.unique(np.concatenate([task.pool_rows for task in answers]))
    assert len(rows) < len(vectors.items)
    stages.take_vectors(quick, replace(vectors, tasks=[*val, *answers]))
    stages.make_tokenizer(quick)
    for pools, wanted in (("test", rows), ("", np.arange(len(vectors.items)))):
        index = stages.make_index(quick, pools=pools, drop_added=True)
        assert list(index.ids) == list(open_index(quick.index).index.ids) == [vectors.items.ids[row] for row in wanted]
    refused(lambda: stages.make_index(quick, pools="train"), "no tasks in split train", "test, val")


def watch(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that grows by every stage that is made."""
    made: list[str] = []
    for name in ("dense", "tokenizer", "decoder", "index"):
        work = getattr(stages, f"make_{name}")

        def watched(*args: object, name: str = name, work: Callable[..., object] = work, **options: object) -> object:
            made.append(name)
            return work(*args, **options)

        monkeypatch.setattr(stages, f"make_{name}", watched)
    return made


LATER = ("tokenizer", "decoder", "index")


def test_what_is_there_is_taken_and_what_is_not_is_made(quick: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    made, told = watch(monkeypatch), list[str]()
    assert stages.ensure(quick, "vectors", "dense", *LATER, resume=True, tell=told.append) == {}
    assert made == told == []
    (quick.decoder / "stage.json").unlink()
    assert list(stages.ensure(quick, "vectors", *LATER, resume=True, tell=told.append)) == told == made == ["decoder"]
    assert list(stages.ensure(quick, *LATER)) == list(LATER)
    assert made == ["decoder", *LATER]  # the dense space, of the same inputs, is taken all the same
    assert Retriever.load(quick.root)


def test_what_was_made_from_something_else_is_made_again(
    quick: RunFolder, make_vectors: Callable[..., Vectors], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = watch(monkeypatch)
    stages.take_vectors(quick, make_vectors(seed=1))
    stages.ensure(quick, *LATER, resume=True)
    assert made == ["tokenizer", "dense", "decoder", "index"]
    assert Retriever.load(quick.root)


def test_a_damaged_stage_is_refused_not_made_again(quick: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    made = watch(monkeypatch)
    (quick.tokenizer / "quantizer.safetensors").write_bytes(b"nothing")
    shutil.rmtree(quick.decoder)
    refused(lambda: stages.ensure(quick, *LATER, resume=True), "quantizer.safetensors")
    assert made == ["decoder"]


def test_stages_without_which_nothing_can_be_made_are_asked_for(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    refused(lambda: stages.ensure(run, "vectors"), "1-vectors", "no finished vectors stage")
    run.write_config(QUICK)
    refused(lambda: stages.ensure(run, *LATER, resume=True), "1-vectors", "no finished vectors stage")


@pytest.mark.parametrize("links", [True, False])
def test_runs_of_one_collection_share_vectors_and_dense_space(
    quick: RunFolder, tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*args: object, **options: object) -> None:
        raise OSError("no links here")

    if not links:
        monkeypatch.setattr(Path, "symlink_to", unknown)
    made, other = watch(monkeypatch), RunFolder(tmp_path / "deep" / "other")
    other.write_config(replace(QUICK, decoder=replace(QUICK.decoder, epochs=2)))
    for _ in range(2):
        stages.ensure(other, *stages.SHARED, *LATER, share=quick, resume=True)
    assert made == list(LATER)
    assert other.vectors.is_symlink() == links and not other.dense.is_symlink()
    for name in ("1-vectors", "2-tokenizer", "2-tokenizer/dense"):
        assert read_json(other.root / name / "stage.json") == read_json(quick.root / name / "stage.json")
    # A space of other settings is not that of the other run.
    other.write_config(replace(QUICK, fusion=replace(QUICK.fusion, epochs=0)))
    stages.ensure(other, *stages.SHARED, share=quick, resume=True)
    assert made == [*LATER, "dense"]
    assert load_vectors(quick.vectors)[1] == load_vectors(other.vectors)[1]


def test_a_run_keeps_the_settings_it_was_begun_with(quick: RunFolder) -> None:
    wider = replace(QUICK, search=replace(QUICK.search, beam=7))
    refused(lambda: stages.settle(quick, wider, remedy="begin anew"), "search.beam", "not 7; begin anew")
    assert quick.config() == QUICK
    stages.settle(quick, wider, free=("search.",), remedy="begin anew")
    assert quick.config() == wider


@pytest.fixture
def whole(run_copy: Path) -> RunFolder:
    """A copy of the world's run whose index holds all items."""
    stages.make_index(RunFolder(run_copy))
    return RunFolder(run_copy)


def test_evaluation_of_both_splits(whole: RunFolder, tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for split, items in (("test", 96), ("val", 108)):
        systems = open_systems(whole, split)
        assert len(systems.rows) == items < len(systems.retriever.index) == len(systems.vectors.items)
        assert systems.missing == 0
        rankers = {"dense": systems.dense, "scan": systems.scan, "geometry": systems.geometry, "own": systems.own}
        found = evaluate_run(run, systems, rankers, k=5)
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


def test_a_filtered_index_finds_what_an_index_of_the_pools_does(whole: RunFolder, world_run: Path) -> None:
    all_items, pools = open_systems(whole), open_systems(RunFolder(world_run))
    assert len(pools.retriever.index) == len(pools.rows) < len(all_items.retriever.index)
    for task in all_items.vectors.of_split("test"):
        for name in ("geometry", "own"):
            one, two = (getattr(s, name).rank(task.query_rows, task.pool_rows, 10) for s in (all_items, pools))
            for a, b in zip(one, two, strict=True):
                assert np.array_equal(a.position, b.position)
                np.testing.assert_allclose(a.score, b.score, atol=1e-5)
    assert beam_survival_of(all_items, all_items.own) == beam_survival_of(pools, pools.own)
    assert survival_of(all_items) == survival_of(pools)


def test_items_that_are_not_in_the_index_are_not_found(run_copy: Path) -> None:
    """Such are those of another split in a run whose index holds the test pools only."""
    systems = open_systems(RunFolder(run_copy), "val")
    assert systems.missing == len(set(systems.rows) - set(systems.vectors.pool_rows("test"))) > 0
    found = evaluate_run(RunFolder(run_copy), systems, systems.rankers(), k=5)
    assert all(row["dense"]["success@5"] > row["pro"]["success@5"] == 0 for row in found.tasks.values())
    assert beam_survival_of(systems, systems.own) == [0.0] * systems.retriever.index.levels


def test_survival_and_health_of_a_run(world_run: Path) -> None:
    systems = open_systems(RunFolder(world_run))
    books = systems.retriever.tokenizer.codebooks()
    tasks = systems.vectors.of_split("test")
    queries = np.concatenate([task.query_rows for task in tasks])
    targets = np.array([rows[0] for task in tasks for rows in task.positives])
    wanted = token_survival(systems.coded.query_MD[queries], systems.coded.codes_NT[targets], books, 10, 1)
    assert survival_of(systems) == wanted
    assert len(wanted) == 4
    assert survival_of(systems, beam=64) == [1.0] * 4
    for ranker in (systems.geometry, systems.own):
        shares = beam_survival_of(systems, ranker)
        assert len(shares) == 5
        assert all(a >= b for a, b in zip(shares, shares[1:], strict=False))
        assert 0.3 < shares[-1] < 1.0
        few = beam_survival_of(systems, ranker, queries_per_task=2)
        assert all(round(16 * share, 6).is_integer() for share in few)
    health = health_of(systems)
    assert health.items == 96
    assert health.distinct == len(np.unique(systems.coded.codes_NT[systems.rows].numpy(), axis=0))


def test_the_own_system_of_a_run_without_a_decoder_is_the_geometry_it_is_served_by(run_copy: Path) -> None:
    shutil.rmtree(run_copy / "3-decoder")
    systems = open_systems(RunFolder(run_copy))
    assert systems.own is not None and systems.own.config == systems.retriever.config
    assert systems.retriever.config.scorer == "geometry"


def test_a_split_without_tasks_is_refused(world_run: Path) -> None:
    refused(lambda: open_systems(RunFolder(world_run), "train"), "no tasks in split train", "test, val")


def test_an_index_of_another_tokenizer_is_refused(world_run: Path) -> None:
    refused(lambda: Index.load(world_run / "4-index", "f00d"), "made with another tokenizer", "f00d")


def test_a_new_tokenizer_makes_decoder_and_index_refused(quick: RunFolder) -> None:
    assert Retriever.load(quick.root)
    quick.write_config(replace(QUICK, seed=1))
    stages.make_tokenizer(quick)
    refused(lambda: Retriever.load(quick.root), "3-decoder", "another tokenizer")
    stages.make_decoder(quick)
    refused(lambda: Retriever.load(quick.root), "4-index", "another tokenizer")
    stages.make_index(quick)
    assert Retriever.load(quick.root)


def test_new_vectors_make_the_tokenizer_refused(quick: RunFolder, make_vectors) -> None:
    stages.take_vectors(quick, make_vectors(seed=1))
    for act in (stages.make_decoder, stages.make_index, open_systems):
        refused(lambda act=act: act(quick), "2-tokenizer", "another vectors")


@pytest.mark.parametrize("stage", ["1-vectors", "2-tokenizer", "3-decoder", "4-index"])
def test_an_unfinished_stage_is_refused(run_copy: Path, stage: str) -> None:
    (run_copy / stage / "stage.json").unlink()
    refused(lambda: open_systems(RunFolder(run_copy)), stage, "no finished")


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
    refused(lambda: open_systems(RunFolder(run_copy)), name.split("/")[-1], "truncated")


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_refused(run_copy: Path, name: str) -> None:
    (run_copy / name).unlink()
    refused(lambda: open_systems(RunFolder(run_copy)), *name.split("/"), "lacks its file")


def test_weights_that_are_not_the_recorded_ones_are_refused(run_copy: Path) -> None:
    path = run_copy / "2-tokenizer" / "quantizer.safetensors"
    tensors = {name: value + 1 for name, value in read_tensors(path).items()}
    write_tensors(path, tensors)
    refused(lambda: Retriever.load(run_copy), "quantizer.safetensors is not the file that was written")
    cut = {name: value[:1] for name, value in tensors.items()}
    for wrong, words in ((tensors, "not those its record speaks of"), (cut, "does not fit the configuration")):
        write_tensors(path, wrong)
        reseal(run_copy / "2-tokenizer")
        refused(lambda: Retriever.load(run_copy), words)


def test_a_folder_without_a_configuration_is_no_run(tmp_path: Path) -> None:
    refused(RunFolder(tmp_path).config, "no config.json", "siglum encode")


def test_a_killed_tokenizer_resumes_to_the_same_bytes(
    quick: RunFolder, tmp_path: Path, vectors: Vectors, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = RunFolder(tmp_path / "cut")
    cut.write_config(QUICK)
    stages.take_vectors(cut, vectors)

    def killed(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(stages, "save_tokenizer", killed)
        with pytest.raises(KeyboardInterrupt):
            stages.make_tokenizer(cut)
    refused(lambda: stages.make_decoder(cut), "no finished tokenizer stage")
    torch.rand(5)
    stages.make_tokenizer(cut, resume=True)
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


def test_only_the_run_package_spells_the_folders_of_stages() -> None:
    """Docstrings may name them; what opens them has the name from `siglum.run.folder`."""
    root = Path(folder.__file__).parents[1]
    spelt = []
    for path in sorted(root.rglob("*.py")):
        if path.parent == root / "run":
            continue
        tree = ast.parse(path.read_text())
        told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        words = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in told)
        spelt += [
            f"{path.relative_to(root)}:{node.lineno}"
            for node in words
            if isinstance(node.value, str) and any(stage in node.value for stage in folder.STAGES)
        ]
    assert spelt == []
