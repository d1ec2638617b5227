"""`siglum.fit` on plain arrays: it learns what is there to learn, and says what is wrong with what it is given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import siglum
from conftest import QUICK, TINY
from siglum import Retriever, SiglumError, features, fit
from siglum.measure.systems import open_systems
from siglum.run import stages
from siglum.run.folder import RunFolder

ITEMS, DIM = 240, 24


def easy(seed: int = 0) -> dict[str, Any]:
    """Items, queries that are their items with little noise, and positives."""
    rng = np.random.default_rng(seed)
    items = rng.normal(size=(ITEMS, DIM)).astype(np.float32)
    target = rng.permutation(np.repeat(np.arange(ITEMS), 2))
    queries = (items[target] + 0.2 * rng.normal(size=(len(target), DIM))).astype(np.float32)
    return {"items": items, "queries": queries, "positives": target}


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Retriever, Path]:
    folder = tmp_path_factory.mktemp("fit") / "run"
    config = replace(TINY, fusion=replace(TINY.fusion, kind="none", dim=DIM))
    return fit(**easy(), config=config, folder=folder), folder


def success(retriever: Retriever, queries: np.ndarray, target: np.ndarray, k: int) -> float:
    hits = retriever.search_features(features(queries), k=k)
    return float(np.mean([f"item{t}" in [hit.item_id for hit in row] for t, row in zip(target, hits, strict=True)]))


def test_easy_data_is_found(fitted: tuple[Retriever, Path]) -> None:
    """Chance at 1 and 10 is 0.004 and 0.04."""
    retriever, data = fitted[0], easy()
    assert len(retriever.index) == ITEMS
    assert success(retriever, data["queries"], data["positives"], 10) > 0.85
    assert success(retriever, data["queries"], data["positives"], 1) > 0.5
    fresh = data["items"] + 0.2 * np.random.default_rng(9).normal(size=(ITEMS, DIM))
    assert success(retriever, fresh, np.arange(ITEMS), 10) > 0.85


def test_the_run_is_kept_in_its_folder(fitted: tuple[Retriever, Path]) -> None:
    retriever, folder = fitted
    assert {path.name for path in folder.iterdir()} >= {"1-vectors", "2-tokenizer", "3-decoder", "4-index"}
    again = Retriever.load(folder)
    query = features(easy()["queries"][:3])
    assert again.search_features(query) == retriever.search_features(query)
    systems = open_systems(RunFolder(folder), "val")
    assert systems.dense_raw is not None
    task = systems.vectors.of_split("val")[0]
    raw = systems.dense_raw.rank(task.query_rows, task.pool_rows, 1)
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (easy()["queries"], easy()["items"])]
    assert [int(ranking.position[0]) for ranking in raw] == (unit[0] @ unit[1].T).argmax(1)[task.query_rows].tolist()
    share = len(systems.vectors.of_split("val")[0].query_rows) / (2 * ITEMS)
    assert 0.05 < share < 0.15


def test_without_a_folder_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("something is written")

    for name in ("siglum.files.atomic", "siglum.files.make_folder", "tempfile.mkdtemp", "tempfile.mkstemp"):
        monkeypatch.setattr(name, refuse)
    retriever = fit(**easy(), config=QUICK)
    retriever.add(features(easy(1)["items"][:2], ["new0", "new1"]))
    assert retriever.search_features(features(easy()["queries"][:1]), k=3)[0][0].rank == 1
    with pytest.raises(SiglumError, match="no encoder"):
        retriever.search("a text")
    with pytest.raises(SiglumError, match="4000 codewords"):
        fit(**easy(), config=replace(QUICK, tokenizer=replace(QUICK.tokenizer, vocab=(8, 4000))))
    for wrong in ({"resume": True}, {"overwrite": True}):
        with pytest.raises(SiglumError, match="are about a folder"):
            fit(**easy(), config=QUICK, **wrong)


@pytest.mark.parametrize("members", [0, 1])
def test_a_folder_changes_nothing(tmp_path: Path, members: int) -> None:
    """Fusion and decoder choose their best epoch on validation, so that more than one is trained."""
    config = replace(
        QUICK, fusion=replace(QUICK.fusion, epochs=3), query=replace(QUICK.query, members=members, epochs=1)
    )
    one, other = (fit(**easy(), config=config, folder=folder) for folder in (None, tmp_path / "run"))
    assert one.tokenizer.fingerprint() == other.tokenizer.fingerprint()
    assert (one.index.codes() == other.index.codes()).all() and list(one.index.ids) == list(other.index.ids)
    query = features(easy()["queries"][:20])
    assert one.search_features(query) == other.search_features(query)
    one.save(tmp_path / "saved")
    assert Retriever.load(tmp_path / "saved").search_features(query) == one.search_features(query)


@pytest.mark.parametrize("folder", [None, "run"])
def test_hits_carry_what_is_told_of_the_items(tmp_path: Path, folder: str | None) -> None:
    about = [siglum.Item(id=f"item{row}", text=f"thing {row}") for row in range(ITEMS - 1, 0, -1)]
    place = None if folder is None else tmp_path / folder
    retriever = fit(**easy(), config=QUICK, about=about, folder=place)
    hits = retriever.search_features(features(easy()["queries"][:1]), k=ITEMS, mode="scan")[0]
    wanted = {f"item{row}": f"thing {row}" if row else None for row in range(ITEMS)}
    assert {hit.item_id: hit.text for hit in hits} == wanted


def test_progress_of_training_is_shown_where_it_is_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siglum.terminal.PAUSE", 0.0)
    fit(**easy(), config=QUICK)
    assert capsys.readouterr() == ("", "")
    fit(**easy(), config=QUICK, progress=True)
    told = capsys.readouterr().err
    assert all(stage in told for stage in ("fusion: epoch", "tokenizer: epoch", "decoder: epoch"))


def test_resuming_takes_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query, folder = features(easy()["queries"][:5]), tmp_path / "run"
    before = fit(**easy(), config=QUICK, folder=folder).search_features(query)
    (folder / "3-decoder" / "stage.json").unlink()
    made = []
    for name in ("make_tokenizer", "make_decoder", "make_index"):
        work = getattr(stages, name)
        monkeypatch.setattr(stages, name, lambda *a, name=name, work=work, **o: (made.append(name), work(*a, **o))[1])
    assert fit(**easy(), config=QUICK, folder=folder, resume=True).search_features(query) == before
    assert made == ["make_decoder"]
    other = replace(QUICK, tokenizer=replace(QUICK.tokenizer, epochs=3))
    with pytest.raises(SiglumError, match=r"was made with tokenizer.epochs .*, not 3; fit without resume"):
        fit(**easy(), config=other, folder=folder, resume=True)


def test_one_seed_gives_one_run() -> None:
    query = features(easy()["queries"][:5])
    one, two, other = (fit(**easy(), config=replace(QUICK, seed=seed)).search_features(query) for seed in (0, 0, 1))
    assert one == two != other


def test_parts_by_name_and_missing_ones() -> None:
    """Items are pictures or have both parts, queries are texts: what one side lacks altogether need not be given."""
    data = easy()
    text = data["items"][:, :10].copy()
    text[::3] = np.nan
    retriever = fit(
        {"image": data["items"], "text": text}, {"text": data["queries"][:, :10]}, data["positives"], config=QUICK
    )
    kinds = retriever.index.codes_of([f"item{i}" for i in range(6)])[:, 0]
    assert kinds.tolist() == [0, 2, 2, 0, 2, 2]
    assert len(retriever.search_features(features({"text": data["queries"][:2, :10]}), k=4)) == 2
    crossed = fit({"image": data["items"]}, {"text": data["queries"]}, data["positives"], config=QUICK)
    assert crossed.search_features(features({"text": data["queries"][:1]}))[0]


def test_several_positives_own_ids_and_plain_lists() -> None:
    data = easy()
    names = np.array([f"n{i}" for i in range(ITEMS)])
    several = [[int(t), int((t + 1) % ITEMS)] for t in data["positives"]]
    retriever = fit(data["items"].tolist(), data["queries"].tolist(), several, item_ids=names, config=QUICK)
    assert list(retriever.index.ids) == names.tolist()


def test_tensors_say_what_arrays_say() -> None:
    from siglum.api import _about

    items, held_out = features(np.ones((ITEMS, 2))), np.zeros(3, bool)
    one, two = np.array([4, 0, 7]), np.array([[4, 1], [0, 2], [7, 3]])
    for rows in (one, two):
        told = _about(rows, held_out, items)
        assert _about(torch.from_numpy(rows), held_out, items) == told
        assert _about([*torch.from_numpy(rows)], held_out, items) == told
    with pytest.raises(SiglumError, match="one entry a query"):
        _about(torch.tensor(3), held_out, items)
    data = easy()
    tensors = {name: torch.from_numpy(rows) for name, rows in data.items()}
    query, whole = features(data["queries"][:1]), fit(**data, config=QUICK)
    assert fit(**tensors, config=QUICK).search_features(query) == whole.search_features(query)


def test_a_recipe_is_sized_to_the_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}

    def stop(vectors: object, config: siglum.RunConfig, *_: object, **options: object) -> None:
        seen["config"] = config
        raise KeyboardInterrupt

    monkeypatch.setattr("siglum.api.train_all", stop)
    with pytest.raises(KeyboardInterrupt):
        fit(**easy(), recipe="genius", seed=5)
    assert (seen["config"].recipe, seen["config"].scale, seen["config"].seed) == ("genius", "auto", 5)


def changed(**changes: Any) -> dict[str, Any]:
    return {**easy(), "config": QUICK, **changes}


def with_value(name: str, row: int, value: float, columns: slice = slice(0, 1)) -> dict[str, Any]:
    array = easy()[name]
    array[row, columns] = value
    return changed(**{name: array})


CASES = {
    "one number": (changed(items=np.float32(1.0)), r"shape \(\)"),
    "one row": (changed(items=np.ones(DIM)), r"shape \(24,\)"),
    "three axes": (changed(queries=np.ones((2, 3, 4))), r"shape \(2, 3, 4\)"),
    "words": (changed(items=np.full((ITEMS, 3), "a")), "must be numbers"),
    "other width": (changed(queries=easy()["queries"][:, :-1]), "have 23 numbers, but those of this run have 24"),
    "unknown part": (changed(items={"sound": easy()["items"]}), "named image and text, not 'sound'"),
    "no part": (changed(items={}), "not nothing"),
    "unequal parts": (changed(items={"image": easy()["items"], "text": easy()["items"][:-1]}), "one row an id"),
    "few positives": (changed(positives=easy()["positives"][:-1]), "480 queries but 479 entries"),
    "positive too high": (changed(positives=easy()["positives"] + 1), "must be rows of the 240 items"),
    "positive below zero": (changed(positives=easy()["positives"] - 1), "must be rows of the 240 items"),
    "no positive": (changed(positives=[[]] * 480), "positives of query 0 are"),
    "half a positive": (changed(positives=easy()["positives"] + 0.5), "must be rows"),
    "NaN in a row": (with_value("items", 7, np.nan), "items 'item7' is NaN"),
    "infinite": (with_value("queries", 3, np.inf), "queries 'query3' is NaN or infinite"),
    "a row of NaN": (with_value("items", 7, np.nan, slice(None)), "neither an image nor a text"),
    "a row of zeros": (with_value("items", 7, 0.0, slice(None)), "items 'item7' is zero"),
    "an id twice": (changed(item_ids=["a"] * ITEMS), "'a' stands twice"),
    "few ids": (changed(item_ids=["a", "b"]), "one row an id"),
    "no ids": (changed(item_ids=[]), "one row an id"),
    "ids that are numbers": (changed(item_ids=list(range(ITEMS))), "must be strings"),
    "no items": (changed(items=np.ones((0, DIM))), "rows of the 0 items"),
    "no queries": (changed(queries=np.ones((0, DIM)), positives=[]), "no queries"),
    "fewer vectors than codewords": (
        changed(config=replace(QUICK, tokenizer=replace(QUICK.tokenizer, vocab=(8, 500)))),
        "500 codewords need at least 500",
    ),
    "validation of all": (changed(validation=1.0), "between 0 and 1, not 1.0"),
    "validation below zero": (changed(validation=-0.1), "between 0 and 1, not -0.1"),
    "nothing left to train on": (changed(validation=0.9999999), "no training pairs"),
    "unknown recipe": (changed(config=None, recipe="finest"), "recipe is 'finest'"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_cannot_be_fitted_is_refused_in_one_sentence(name: str) -> None:
    given, message = CASES[name]
    with pytest.raises(SiglumError, match=message) as caught:
        fit(**given)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


def test_without_validation_everything_is_trained_on(tmp_path: Path) -> None:
    fit(**changed(validation=0.0, folder=tmp_path))
    from siglum.data.vectors import load_vectors

    vectors, _ = load_vectors(tmp_path / "1-vectors")
    assert len(vectors.pair_query) == 2 * ITEMS
    assert vectors.tasks == []


def test_features_pass_through() -> None:
    found = features({"image": np.ones((2, 3))}, ids=["a", "b"])
    assert features(found) is found
    assert (found.image.shape, found.text.shape, found.has_text.any()) == ((2, 3), (2, 0), np.False_)


def test_the_public_names() -> None:
    for name in siglum.__all__:
        assert getattr(siglum, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        siglum.nothing  # noqa: B018


def test_too_few_items_and_wrong_arguments_are_told_in_one_sentence(fitted: tuple[Retriever, Path]) -> None:
    few = np.eye(4, dtype=np.float32)
    with pytest.raises(SiglumError, match="at least 8 items, but they cover"):
        fit(few, few, [0, 1, 2, 3])
    with pytest.raises(SiglumError, match="must be one of: auto, cpu"):
        fit(few, few, [0, 1, 2, 3], device="tpu")
    retriever, _ = fitted
    with pytest.raises(SiglumError, match="is a string, not 3"):
        retriever.search(text=3)  # type: ignore[arg-type]
    with pytest.raises(SiglumError, match="needs a text, an image or both"):
        retriever.search(text="")
    with pytest.raises(SiglumError, match="add takes items"):
        retriever.add(["abc"])  # type: ignore[list-item]
