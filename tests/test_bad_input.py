"""What the world does to files and data: full disks in the middle of a save, and collections that do not hold."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from siglum.cli.main import main
from siglum.data.collection import Chain, Collection, assemble, read_collection
from siglum.data.vectors import check_features, features_of, save_vectors, with_widths
from siglum.encode.builtin import BuiltinEncoder
from siglum.encode.parts import text_of
from siglum.encode.registry import build_encoder
from siglum.encode.run import encode_collection, encode_rows
from siglum.run import stages
from siglum.run.folder import RunFolder
from siglum.types import Features, Item, Query, SiglumError, Vectors


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every write fails when it is to reach the disk."""

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    yield
    monkeypatch.undo()


@pytest.mark.usefixtures("full_disk")
@pytest.mark.parametrize("verb", ["tokenize", "train", "index", "eval"])
def test_a_full_disk_is_told_in_one_sentence(run_copy: Path, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    """Old files stay byte for byte, nothing half-written is left."""
    before = contents(run_copy)
    assert main([verb, str(run_copy)]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert "No space left on device; " in told.err
    after = contents(run_copy)
    for name, content in before.items():
        if not name.endswith("stage.json") and name != "log.jsonl":
            assert after[name] == content, name
    assert not [name for name in after if name.endswith(".tmp")]


def test_a_disk_that_fills_up_while_saving_leaves_an_unfinished_stage(
    run_copy: Path, vectors: Vectors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first file is written, the second is not: the stage is refused until it is made again."""
    run, count, fsync = RunFolder(run_copy), iter(range(99)), os.fsync

    def full(handle: int) -> None:
        if next(count) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(SiglumError, match="No space left"):
            stages.take_vectors(run, vectors)
    with pytest.raises(SiglumError, match="no finished vectors stage"):
        stages.make_index(run)
    stages.take_vectors(run, vectors)
    with pytest.raises(SiglumError, match="another vectors"):
        stages.make_index(run)


def items(*ids: str) -> list[Item]:
    return [Item(id=name, text=f"a thing called {name}") for name in ids]


def ask(name: str, *positives: str, task: str = "t") -> Query:
    return Query(id=name, text="which thing", task=task, positives=positives)


def encode(collection: Collection, folder: Path) -> Vectors:
    return encode_collection(collection, BuiltinEncoder(), folder / "1-vectors", identity="own").vectors


def test_a_collection_becomes_pairs_and_tasks(tmp_path: Path) -> None:
    collection = Collection(
        items("a", "b", "c"),
        {"train": [ask("q0", "a", "c"), ask("q1")], "test": [ask("q2", "b"), ask("q3", "b", task="u"), ask("q4")]},
        {("test", "t"): ["c", "b"]},
    )
    found = encode(collection, tmp_path)
    assert list(zip(found.pair_query.tolist(), found.pair_item.tolist(), strict=True)) == [(0, 0), (0, 2)]
    assert [(task.name, task.split, task.query_rows.tolist(), task.pool_rows.tolist()) for task in found.tasks] == [
        ("t", "test", [2], [2, 1]),
        ("u", "test", [3], [0, 1, 2]),
    ]


def test_a_skipped_item_leaves_pools_and_positives(tmp_path: Path) -> None:
    gone = Item(id="b", text="b", image=tmp_path / "none.png")
    lost = Query(id="q9", image=tmp_path / "none.png", positives=("a",))
    queries = {"train": [ask("q0", "a", "b"), lost], "test": [ask("q1", "b"), ask("q2", "c", "b")]}
    collection = Collection([*items("a"), gone, *items("c")], queries, {("test", "t"): ["a", "b", "c"]})
    done = encode_collection(collection, BuiltinEncoder(), tmp_path / "v", identity="own")
    assert done.skipped == 2
    assert done.vectors.items.ids == ["a", "c"]
    assert done.vectors.pair_item.tolist() == [0]
    assert [task.query_rows.tolist() for task in done.vectors.tasks] == [[2]]
    assert done.vectors.tasks[0].pool_rows.tolist() == [0, 1]
    with pytest.raises(SiglumError, match=r"none\.png"):
        encode_collection(collection, BuiltinEncoder(), tmp_path / "w", identity="own", strict=True)


def test_nothing_to_encode(tmp_path: Path) -> None:
    with pytest.raises(SiglumError, match="no items"):
        encode(Collection([], {"train": [ask("q", "a")]}), tmp_path)
    unreadable = Item(id="a", image=tmp_path / "none.png")
    with pytest.raises(SiglumError, match="no items: the collection is empty"):
        encode(Collection([unreadable], {"train": [ask("q", "a")]}), tmp_path)


def test_an_unknown_positive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SiglumError, match="'q' names the positive 'z'"):
        encode(Collection(items("a"), {"train": [ask("q", "z")]}), tmp_path)
    found = features_of(["a"], text=np.ones((1, 2)))
    with pytest.raises(SiglumError, match="'a' names the positive 'b'"):
        assemble(found, found, [("train", "", ["b"])], {})


def test_a_collection_without_queries_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    path.write_text('{"id": "a", "text": "x"}\n')
    with pytest.raises(SiglumError, match="needs queries"):
        read_collection(path)


def test_an_instruction_comes_before_the_words() -> None:
    assert text_of(Query(id="q", text="red", instruction="Find it.")) == "Find it. red"
    assert text_of(Query(id="q", image="x.png")) is None


def test_rows_are_encoded_alone_as_in_company(world) -> None:
    rows = [world.items("test")[i] for i in range(9)]
    together = encode_rows(rows, BuiltinEncoder(), strict=True)
    for place, row in enumerate(rows):
        alone = encode_rows([row], BuiltinEncoder(), strict=True)
        for part in ("image", "text", "has_image", "has_text"):
            assert np.array_equal(getattr(alone, part)[0], getattr(together, part)[place])


def test_encoders_by_name() -> None:
    assert isinstance(build_encoder("builtin"), BuiltinEncoder)
    assert build_encoder("none") is None
    with pytest.raises(SiglumError, match="'clip', but must be one of: builtin, none"):
        build_encoder("clip")


def test_a_chain_reads_as_one() -> None:
    chain = Chain([[1, 2], [], [3]])
    assert list(chain) == [1, 2, 3]
    assert len(chain) == 3
    assert len(Chain([])) == 0
    with pytest.raises(IndexError):
        chain[3]


def plain(ids: list[str]) -> Features:
    return features_of(ids, text=np.ones((len(ids), 3)))


def test_features_are_checked_by_name(tmp_path: Path) -> None:
    with pytest.raises(SiglumError, match="'a' stands twice among the items"):
        check_features(plain(["a", "b", "a"]), "items")
    with pytest.raises(SiglumError, match="no items: the collection is empty"):
        check_features(plain([]), "items")
    broken = plain(["a", "b", "c"])
    broken.text[1:, 2] = np.inf
    with pytest.raises(SiglumError, match=r"items 'b' is NaN or infinite \(2 "):
        check_features(broken, "items")
    empty = plain(["a", "b"])
    empty.has_text[1] = False
    with pytest.raises(SiglumError, match="neither"):
        check_features(empty, "items")
    one = np.zeros(0, np.int64)
    with pytest.raises(SiglumError, match="among the queries"):
        save_vectors(tmp_path / "v", Vectors(plain(["a"]), plain(["q", "q"]), one, one, []), {})
    assert not (tmp_path / "v").exists()


def test_widths_are_given_to_missing_parts_only() -> None:
    wide = with_widths(plain(["a", "b"]), 4, 3, "items")
    assert (wide.image.shape, wide.text.shape, wide.has_image.any()) == ((2, 4), (2, 3), np.False_)
    with pytest.raises(SiglumError, match="text features of the items have 3 numbers, but those of this run have 5"):
        with_widths(plain(["a"]), 0, 5, "items")


def test_kinds_of_numbers() -> None:
    assert features_of(["a"], text=np.ones((1, 2), np.float16)).text.dtype == np.float16
    assert features_of(["a"], text=np.ones((1, 2), np.int64)).text.dtype == np.float32
    given = np.array([[np.nan, np.nan], [1.0, 2.0]], np.float32)
    found = features_of(["a", "b"], text=given, image=np.ones((2, 1)))
    assert found.has_text.tolist() == [False, True]
    assert np.isnan(given[0]).all()
    with pytest.raises(SiglumError, match="must be numbers"):
        features_of(["a"], text=np.array([["x"]]))
