"""What is neither True nor False is taken for neither: "no" would count as true, and a run would be gone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import siglum
from siglum.hub.remote import find_folder
from siglum.run.live import LiveIndex
from siglum.search.retriever import Retriever
from siglum.types import SiglumError, truth_value

NEITHER: tuple[Any, ...] = ("no", "", "False", 1, 0, 0.0, [], np.array([True]), object())


def test_truth_values() -> None:
    assert truth_value("a", True) is truth_value("a", np.bool_(True)) is True
    assert truth_value("a", False) is truth_value("a", np.bool_(False)) is False


@pytest.fixture(scope="module")
def retriever(world_run: Path) -> Retriever:
    return Retriever.load(world_run)


def arrays() -> tuple[np.ndarray, np.ndarray, list[int]]:
    rows = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    return rows, rows, list(range(40))


def flags(retriever: Retriever, run: Path, other: Path) -> dict[str, Callable[[Any], object]]:
    """Every switch of the public Python API, each with a call that would do something if it were on."""
    index, image = LiveIndex, other / "photos"
    query, item = torch.eye(4), torch.eye(4)[:, None]
    return {
        "save overwrite": lambda on: retriever.save(other, overwrite=on),
        "fit overwrite": lambda on: siglum.fit(*arrays(), folder=other, overwrite=on),
        "fit resume": lambda on: siglum.fit(*arrays(), folder=other, resume=on),
        "fit progress": lambda on: siglum.fit(*arrays(), progress=on),
        "build_folder strict": lambda on: siglum.build_folder(image, other, strict=on),
        "build_folder resume": lambda on: siglum.build_folder(image, other, resume=on),
        "build_folder update": lambda on: siglum.build_folder(image, other, update=on),
        "build_folder progress": lambda on: siglum.build_folder(image, other, progress=on),
        "search exclude_self": lambda on: retriever.search("a red star", exclude_self=on),
        "search progress": lambda on: retriever.search("a red star", progress=on),
        "encode_queries progress": lambda on: retriever.encode_queries("a red star", progress=on),
        "encode_items progress": lambda on: retriever.encode_items("a red star", progress=on),
        "writing background": lambda on: retriever.writing(run, background=on).__enter__(),
        "save_pretrained texts": lambda on: retriever.save_pretrained(other / "public", texts=on),
        "push_to_hub texts": lambda on: retriever.push_to_hub("a/b", texts=on),
        "push_to_hub private": lambda on: retriever.push_to_hub("a/b", private=on),
        "push_to_hub progress": lambda on: retriever.push_to_hub("a/b", progress=on),
        "from_pretrained progress": lambda on: Retriever.from_pretrained(run, progress=on),
        "find_folder progress": lambda on: find_folder("a/b", revision=None, token=None, progress=on),
        "LiveIndex background": lambda on: index(run / "4-index", background=on),
        "prefix_ranking_loss by_query": lambda on: siglum.prefix_ranking_loss(
            query, torch.eye(4), item, torch.arange(4)[:, None], by_query=on
        ),
    }


@pytest.fixture
def other(tmp_path: Path, world_run: Path) -> Path:
    """Somebody else's run."""
    folder = tmp_path / "other"
    siglum.fit(*arrays(), folder=folder, config=small(), device="cpu")
    return folder


def small() -> siglum.RunConfig:
    from conftest import QUICK

    return QUICK


def test_no_switch_takes_what_is_neither(
    retriever: Retriever, run_copy: Path, other: Path, subtests: pytest.Subtests
) -> None:
    before = {path: path.read_bytes() for path in sorted(other.rglob("*")) if path.is_file()}
    for name, call in flags(retriever, run_copy, other).items():
        for value in NEITHER:
            with subtests.test(f"{name}={value!r}"[:60]):
                with pytest.raises(SiglumError, match=f"^{name.split()[1]} is True or False, not ") as caught:
                    call(value)
                assert len(str(caught.value).splitlines()) == 1
    after = {path: path.read_bytes() for path in sorted(other.rglob("*")) if path.is_file() and path.name != ".lock"}
    assert after == {path: content for path, content in before.items() if path.name != ".lock"}


def test_switches_of_an_open_index(run_copy: Path) -> None:
    with LiveIndex(run_copy / "4-index") as live:
        name = live.index.ids[0]
        for value in NEITHER:
            with pytest.raises(SiglumError, match="upsert is True or False"):
                live.change((), [name], live.index.codes_of([name]), upsert=value)
            with pytest.raises(SiglumError, match="whole is True or False"):
                live.compact(whole=value)


@pytest.mark.parametrize(
    "split", [np.array(["val", "test"]), ["test"], 5, None, b"test"], ids=lambda s: type(s).__name__
)
def test_a_split_is_named_by_a_string(run_copy: Path, split: Any) -> None:
    with pytest.raises(SiglumError, match="a split is named by a string, such as val or test, not ") as caught:
        siglum.diagnose(run_copy, split=split)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("wrong", [5, None, "index", [], np.zeros((2, 3))], ids=lambda s: type(s).__name__)
def test_the_items_of_a_retriever_are_an_index(world_run: Path, wrong: Any) -> None:
    retriever = Retriever.load(world_run)
    index = retriever.index
    with pytest.raises(SiglumError, match="the items of a retriever are a siglum Index, not "):
        retriever.index = wrong
    assert retriever.index is index
    retriever.index = index
    assert retriever.search("a red star", k=1)
