"""One retriever that threads and processes share: whole states, nothing lost, changes that last."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from siglum import Item
from siglum.api import features as as_features
from siglum.encode.builtin import BuiltinEncoder
from siglum.encode.run import encode_rows
from siglum.index import Index
from siglum.lab.world.collection import World
from siglum.measure.explain import explain
from siglum.run.folder import RunFolder
from siglum.run.stages import make_index
from siglum.search import published
from siglum.search.beam import Ranking
from siglum.search.retriever import Retriever
from siglum.types import Features, SiglumError


@pytest.fixture
def retriever(world_run: Path) -> Retriever:
    return Retriever.load(world_run)


@pytest.fixture
def run_copy(world_run: Path, tmp_path: Path) -> Path:
    shutil.copytree(world_run, tmp_path / "run", symlinks=True)
    return tmp_path / "run"


def some_features(world: World, number: int) -> Features:
    """Features of items that are in no index."""
    known = world.items("train")
    items = [
        Item(id=f"new {place}", text=f"{known[place % len(known)].text or 'a star'} {place}") for place in range(number)
    ]
    return encode_rows(items, BuiltinEncoder(), strict=True)


def run_all(*works: Callable[[], None]) -> None:
    """Run functions in threads; the first error of any is raised."""
    faults: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]


@pytest.mark.parametrize("mode", ["exact", "scan"])
def test_a_search_sees_the_items_of_one_moment(retriever: Retriever, world: World, mode: str) -> None:
    queries = encode_rows(world.queries("test", "t2i")[:4], BuiltinEncoder(), strict=True)
    codes = dict(
        zip(retriever.index.ids, map(tuple, retriever.index.codes_of(retriever.index.ids).tolist()), strict=True)
    )
    names, done = list(retriever.index.ids), threading.Event()

    def search() -> None:
        while not done.is_set():
            for hits in retriever.search_features(queries, k=30, mode=mode):
                assert all(codes[hit.item_id] == hit.codes for hit in hits), "an id with the codes of another item"
                assert len({hit.item_id for hit in hits}) == len(hits)

    def remove() -> None:
        try:
            for name in names[:60]:
                retriever.remove([name])
        finally:
            done.set()

    run_all(remove, search, search, search)
    assert list(retriever.index.ids) == names[60:]


def test_an_explanation_sees_the_items_of_one_moment(retriever: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may remove an item at any time."""
    ids, words, real = list(retriever.index.ids), "a big red star", Retriever.rank
    before = explain(retriever, words, ids[40])

    def disturbed(self: Retriever, *given: Any, **how: Any) -> list[Ranking]:
        retriever.remove([ids[0]])
        return real(self, *given, **how)

    monkeypatch.setattr(Retriever, "rank", disturbed)
    assert explain(retriever, words, ids[40]) == before
    assert len(retriever) == len(ids) - 1


def test_what_is_published_is_of_one_moment(run_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_index(RunFolder(run_copy), keep_vectors=True)
    retriever, real = Retriever.load(run_copy), published._shown
    whole, vectors = list(retriever.index.ids), retriever.item_ND

    def disturbed(index: Index, texts: bool) -> Index:
        retriever.remove([retriever.index.ids[0]])
        return real(index, texts)

    monkeypatch.setattr(published, "_shown", disturbed)
    retriever.save_pretrained(tmp_path / "published")
    found = Retriever.load(tmp_path / "published")
    assert list(found.index.ids) == whole
    assert vectors is not None and found.item_ND is not None and torch.equal(found.item_ND, vectors)


def test_threads_that_add_lose_nothing(retriever: Retriever, world: World) -> None:
    fresh, before = some_features(world, 80), len(retriever.index)
    parts = [fresh.rows(np.arange(start, 80, 4)) for start in range(4)]

    def add(part: Features) -> Callable[[], None]:
        return lambda: [retriever.add(part.rows(np.array([row]))) for row in range(len(part))] and None

    run_all(*(add(part) for part in parts))
    assert len(retriever.index) == before + 80
    assert set(fresh.ids) <= set(retriever.index.ids)


def test_saving_keeps_what_others_have_changed_meanwhile(run_copy: Path, world: World) -> None:
    fresh = some_features(world, 4)
    one, two = Retriever.load(run_copy), Retriever.load(run_copy)
    gone = one.index.ids[3]
    one.add(fresh.rows(np.array([0, 1])))
    two.add(fresh.rows(np.array([2, 3])))
    two.remove([gone])
    before = set(one.index.ids)
    one.save(run_copy)
    two.save(run_copy)
    wanted = (before | set(fresh.ids)) - {gone}
    assert set(Retriever.load(run_copy).index.ids) == set(two.index.ids) == wanted
    again = Retriever.load(run_copy)
    again.add(as_features(fresh.text[:1], ids=["other"]))
    two.remove(["new 0"])
    two.save(run_copy)
    again.save(run_copy)
    assert set(Retriever.load(run_copy).index.ids) == (wanted | {"other"}) - {"new 0"}
    late = Retriever.load(run_copy)
    two.remove(["new 1"])
    two.save(run_copy)
    late.remove(["new 1"])
    with pytest.raises(SiglumError, match="'new 1'"):
        late.save(run_copy)


def test_a_copy_with_other_items_is_not_written_over(run_copy: Path, world: World, tmp_path: Path) -> None:
    shutil.copytree(run_copy, tmp_path / "copy", symlinks=True)
    copy = Retriever.load(tmp_path / "copy")
    copy.add(some_features(world, 2))
    copy.save(tmp_path / "copy")
    retriever = Retriever.load(run_copy)
    with pytest.raises(SiglumError, match=r"2 items of the index .* would drop them"):
        retriever.save(tmp_path / "copy")
    assert len(Retriever.load(tmp_path / "copy").index) == len(retriever.index) + 2
    retriever.save(tmp_path / "copy", overwrite=True)
    assert len(Retriever.load(tmp_path / "copy").index) == len(retriever.index)


@pytest.mark.parametrize("compacted", [False, True])
def test_what_was_replaced_is_not_set_back_in_silence(
    run_copy: Path, world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture, compacted: bool
) -> None:
    older = Retriever.load(run_copy)
    older.save(tmp_path / "copy")
    ids, fresh = older.index.ids, some_features(world, 1)
    with Retriever.load(run_copy).writing(run_copy) as live:
        live.replace([ids[3]], replace(fresh, ids=[ids[3]]))
        live.remove([ids[7]])
        live.live.compact(whole=compacted)
    index = Retriever.load(run_copy).index
    for again in (lambda: older.save(run_copy), lambda: make_index(RunFolder(run_copy), pools="test")):
        with pytest.raises(SiglumError, match="1 item was replaced in the index"):
            again()
        assert np.array_equal(Retriever.load(run_copy).index.codes(), index.codes())
    make_index(RunFolder(run_copy), pools="test", drop_added=True)
    Retriever.load(run_copy).save(tmp_path / "copy")
    with Retriever.load(run_copy).writing(run_copy) as live:
        live.remove([ids[7]])
    make_index(RunFolder(run_copy), pools="test")
    assert "1 item that is not in the index in" in caplog.text
    assert ids[7] in Retriever.load(run_copy).index.ids


def test_writing_lasts_and_is_seen(run_copy: Path, world: World) -> None:
    fresh, retriever = some_features(world, 3), Retriever.load(run_copy)
    before = len(retriever.index)
    with retriever.writing(run_copy) as live:
        live.add(fresh)
        assert len(retriever.index) == before + 3 == len(Retriever.load(run_copy).index)
        live.remove(["new 1"])
        assert "new 1" not in Retriever.load(run_copy).index.ids
        other = Retriever.load(run_copy)
        with pytest.raises(SiglumError, match="open for writing already"), other.writing(run_copy, wait=0):
            pass
        with pytest.raises(SiglumError, match="in the index already"):
            live.replace(["new 0"], fresh.rows(np.array([2])))
        assert "new 0" in retriever.index.ids
    assert retriever.search_features(fresh.rows(np.array([0])), k=3)


def test_writing_loses_no_changes_in_memory(run_copy: Path, world: World) -> None:
    fresh, retriever = some_features(world, 3), Retriever.load(run_copy)
    retriever.add(fresh.rows(np.array([0])))
    with pytest.raises(SiglumError, match="save it before"), retriever.writing(run_copy):
        pass
    retriever.save(run_copy)
    with retriever.writing(run_copy) as live:
        live.add(fresh.rows(np.array([1])))
        for change in (lambda: retriever.add(fresh.rows(np.array([2]))), lambda: retriever.remove(["new 0"])):
            with pytest.raises(SiglumError, match="open for writing"):
                change()
    retriever.add(fresh.rows(np.array([2])))
    retriever.save(run_copy)
    assert set(fresh.ids) <= set(Retriever.load(run_copy).index.ids)


def test_what_is_no_question_is_refused_in_a_sentence(
    retriever: Retriever, world: World, subtests: pytest.Subtests
) -> None:
    queries = encode_rows(world.queries("test", "t2i")[:1], BuiltinEncoder(), strict=True)
    for call, said in (
        (lambda: retriever.search_features(queries.text), "takes features"),
        (lambda: retriever.search("a star", k=2.5), "whole number"),
        (lambda: retriever.search("a star", k="3"), "whole number"),
        (lambda: retriever.search("a star", k=True), "whole number"),
        (lambda: retriever.search("a star", k=10**79), "at most"),
        (lambda: retriever.search("a star", instruction=5), "instruction of a search is a string"),
        (lambda: retriever.rank([1.0]), "tensor of shape"),
        (lambda: retriever.rank(torch.zeros(3)), "tensor of shape"),
        (lambda: retriever.remove("123"), "one string"),
        (lambda: retriever.remove(5), "collection of strings"),
        (lambda: retriever.search("a star", within="123"), "one string"),
        (lambda: retriever.add("123"), "list of siglum.Item"),
        (lambda: retriever.add(None), "list of siglum.Item"),
    ):
        with subtests.test(said), pytest.raises(SiglumError, match=said):
            call()
    assert retriever.search("a star", k=np.int64(2))
    assert retriever.search("a star", k=10**12) == retriever.search("a star", k=len(retriever.index))
