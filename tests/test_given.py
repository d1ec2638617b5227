"""What nobody should give: wrong kinds of arguments, names no file can have, files of another kind. One line each."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import siglum
from siglum import bridges
from siglum.cli.main import main
from siglum.config import RunConfig, SearchConfig, from_dict
from siglum.data.precomputed import read_features
from siglum.device import check_device
from siglum.index import Index
from siglum.search.retriever import Retriever
from siglum.types import Features, Item, SiglumError, one_of, shown, whole_number

NOTHING: tuple[Any, ...] = (None, 3, 2.5, True, b"x", [], {}, object(), int, ..., np.zeros(3), np.array(5), 3j)
LONGEST = 300


def kind(value: Any) -> str:
    """Name a case by the type of its value."""
    return type(value).__name__


def refused(call: Callable[[], object], match: str | None = None) -> None:
    """Check that a call is refused in one short line."""
    with pytest.raises(SiglumError, match=match) as caught:
        call()
    assert len(str(caught.value)) <= LONGEST
    assert len(str(caught.value).splitlines()) == 1


@pytest.fixture(scope="module")
def retriever(world_run: Path) -> Retriever:
    return Retriever.load(world_run)


def asked(retriever: Retriever, rows: int = 2) -> Features:
    fusion = retriever.tokenizer.fusion
    text = np.random.default_rng(0).normal(size=(rows, len(fusion.text_shift))).astype(np.float32)
    return siglum.features({"text": text})


def test_values_are_quoted_on_one_short_line() -> None:
    assert shown("a\nb") == r"'a\nb'"
    assert shown(np.zeros((2, 2))) == "array([[0., 0.],        [0., 0.]])"
    assert len(shown("x" * 5000)) == 80
    assert shown(10**5000) == "a number of too many digits"
    assert str(SiglumError("one\ntwo")) == "one two"


@pytest.mark.parametrize("value", ["x" * 5000, np.array(["a", "b"]), {}, None, -(10**5000)], ids=kind)
def test_choices_and_numbers_quote_little(value: Any) -> None:
    refused(lambda: one_of("scorer", value, ["a", "b"]), "must be one of: a, b")
    refused(lambda: whole_number("k", value), "k must be a whole number")


@pytest.mark.parametrize("folder", [*NOTHING, ""], ids=kind)
def test_folders_are_named_by_strings_or_paths(retriever: Retriever, folder: Any) -> None:
    for call in (Retriever.load, retriever.save, lambda place: retriever.writing(place).__enter__()):
        refused(lambda call=call: call(folder), "named by a string or a path")  # type: ignore[misc]


@pytest.fixture
def nameless(tmp_path: Path) -> list[str]:
    """Names that no folder can have."""
    (tmp_path / "loop").symlink_to("loop")
    return ["\x00", "x" * 5000, "\ud800", str(tmp_path / "loop")]


def test_names_no_file_can_have(retriever: Retriever, nameless: list[str], subtests: pytest.Subtests) -> None:
    for name in nameless:
        with subtests.test(repr(name)[:9]):
            for call in (Retriever.load, retriever.save, lambda place: retriever.writing(place).__enter__()):
                refused(lambda call=call, name=name: call(name), "cannot be the name")  # type: ignore[misc]


@pytest.mark.parametrize("verb", ["info", "index", "tokenize", "report", "search"])
def test_names_no_file_can_have_on_the_command_line(
    verb: str, nameless: list[str], capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    for name in nameless:
        with subtests.test(repr(name)[:9]):
            assert main([verb, name, *(["a cat"] if verb == "search" else [])]) == 1
            told = capsys.readouterr().err
            assert told.startswith(f"siglum {verb}: ")
            assert "cannot be the name of a file or folder" in told
            assert told.count("\n") == 1


@pytest.mark.parametrize("verb", ["search", "explain"])
def test_lists_of_ids_that_are_none(
    world_run: Path, tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    (tmp_path / "ids.txt").write_bytes(b"\xff\xfe")
    query = ["a red star"] if verb == "search" else ["--query", "a red star", "--target", "test0"]
    for path, match in ((tmp_path, "Is a directory"), (tmp_path / "ids.txt", "is not UTF-8 text")):
        with subtests.test(match):
            assert main([verb, str(world_run), *query, "--within", str(path)]) == 1
            told = capsys.readouterr().err
            assert match in told
            assert "[Errno" not in told


@pytest.mark.parametrize("value", ["3", b"x", [], {}, object(), np.zeros(3)], ids=kind)
def test_seconds_to_wait(retriever: Retriever, tmp_path: Path, value: Any) -> None:
    refused(lambda: retriever.save(tmp_path, wait=value), "seconds to wait")


@pytest.mark.parametrize("value", ["3", 2.5, True, -1, math.nan, [], np.zeros(3)], ids=kind)
def test_numbers_about_a_run(world_run: Path, retriever: Retriever, value: Any, subtests: pytest.Subtests) -> None:
    for name, call in {
        "beam": lambda: siglum.diagnose(world_run, beam=value),
        "queries": lambda: siglum.diagnose(world_run, queries=value),
        "best": lambda: siglum.explain(retriever, "a star", retriever.index.ids[0], best=value),
        "seed": lambda: siglum.recipe("pro", "tiny", value),
    }.items():
        with subtests.test(name):
            refused(call, f"{name} must be a whole number")
    with subtests.test("report"):
        refused(lambda: siglum.report(world_run, queries=value), "queries must be a whole number")
    if not isinstance(value, float | int) or value is True:
        refused(lambda: siglum.diagnose(world_run, tau=value), "tau must be a finite number")


@pytest.mark.parametrize("value", [None, 3, 2.5, b"x", {}, object()], ids=kind)
def test_what_bridges_and_reports_take(value: Any, tmp_path: Path, subtests: pytest.Subtests) -> None:
    for name, call in {
        "report": lambda: siglum.report(value),
        "read_codes": lambda: bridges.read_codes(value),
        "read_genius": lambda: bridges.read_genius(value),
        "read_grid": lambda: bridges.read_grid(value),
        "write_codes": lambda: bridges.write_codes(tmp_path / "codes", value),
        "to_faiss": lambda: bridges.to_faiss(value),
    }.items():
        with subtests.test(name):
            refused(call)


@pytest.mark.parametrize(
    "device", [None, 3, math.nan, 10**30, "gpu", "", "cuda:99", "x" * 5000], ids=lambda d: str(d)[:9]
)
def test_devices(device: Any) -> None:
    refused(lambda: check_device(device), "device")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("omega", math.nan),
        ("omega", math.inf),
        ("omega", 10**400),
        ("omega", True),
        ("prior", "x"),
        ("beam", True),
        ("beam", 10**30),
        ("beam", -1),
        ("beam", 2.5),
        ("scorer", np.array(["fused", "x"])),
        ("scorer", ["fused"]),
        ("scorer", "x" * 5000),
        ("x" * 5000, 1),
    ],
    ids=lambda value: str(value)[:12],
)
def test_settings(name: str, value: Any) -> None:
    refused(lambda: from_dict(SearchConfig, {name: value}))


def test_settings_take_numbers_of_numpy() -> None:
    found = from_dict(SearchConfig, {"beam": np.int64(3), "omega": np.float32(0.5)})
    assert (type(found.beam), type(found.omega)) == (int, float)
    assert json.dumps([found.beam, found.omega]) == "[3, 0.5]"


def test_a_negative_seed() -> None:
    refused(lambda: from_dict(RunConfig, {"seed": -1}), "seed")


WRONG_WORDS = [3, b"x", ["\ud800"], object(), np.zeros((2, 3)), "\ud800"]


@pytest.mark.parametrize("value", WRONG_WORDS, ids=kind)
def test_words_of_a_search(retriever: Retriever, value: Any) -> None:
    refused(lambda: retriever.search(text=value), "the text of a search")
    refused(lambda: retriever.search("red star", instruction=value), "the instruction of a search")


@pytest.mark.parametrize(
    ("value", "match"),
    [
        *((value, "is no text, no picture") for value in (3, 2.5, {}, {"a": 1}, object(), int, ..., [[]], [3])),
        (np.zeros((2, 3)), r"\(`rank` takes vectors\) is no text"),
        (b"x", "picture given as bytes cannot be read"),
        (Path("nowhere.jpg"), "nowhere.jpg does not exist"),
        (np.zeros((4, 4), np.uint8), "must be uint8"),
        ("", "needs a text, an image or both"),
        ([None], "needs a text, an image or both"),
        (["a", ""], "needs a text, an image or both"),
        (siglum.Query(id="q"), "needs a text, an image or both"),
        (siglum.Query(id="q", text=3), "the text of a search is a string"),  # type: ignore[arg-type]
    ],
    ids=lambda value: shown(value)[:12],
)
def test_queries(retriever: Retriever, value: Any, match: str) -> None:
    for call in (retriever.search, retriever.encode_queries):
        refused(lambda call=call: call(value), match)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({"query": "a", "text": "a"}, "as query or as text, not as both"),
        ({"query": ["a", "b"], "image": [None]}, "2 queries were given with 1 images"),
        ({"query": ["a", "b"], "image": Path("a.jpg")}, "2 queries were given with one image"),
        ({"query": "a", "image": [None]}, "one query was given with several images"),
        ({"query": Path("a.jpg"), "image": Path("b.jpg")}, "one picture, but two were given"),
        ({"image": 3}, "a picture must be a path"),
        ({"query": "a", "without": "abc"}, "ids must be a collection"),
        ({"query": "a", "without": [3]}, "ids must be strings"),
        ({"query": "a", "min_score": math.nan}, "min_score is a number"),
        ({"query": "a", "min_score": "3"}, "min_score is a number"),
        ({"query": [], "k": 0}, "k must be a whole number"),
        ({"query": [], "width": 3}, "no field 'width'"),
    ],
    ids=lambda value: shown(value)[:24],
)
def test_ways_to_search(retriever: Retriever, how: dict[str, Any], match: str) -> None:
    refused(lambda: retriever.search(**how), match)


@pytest.mark.parametrize("value", [3, {}, [None], [siglum.Item(id="a")], np.zeros((2, 3)), ""], ids=kind)
def test_items_to_encode(retriever: Retriever, value: Any) -> None:
    refused(lambda: retriever.encode_items(value))


@pytest.mark.parametrize("value", [3, "abc", ["nobody"], [None]], ids=kind)
def test_ids_to_reconstruct(retriever: Retriever, value: Any) -> None:
    refused(lambda: retriever.reconstruct(value), "ids")


@pytest.mark.parametrize("value", [*NOTHING, "abc", np.ones((2, 12), np.float32)], ids=kind)
def test_features_of_a_search(retriever: Retriever, value: Any) -> None:
    refused(lambda: retriever.search_features(value), "takes features")


@pytest.mark.parametrize("part", ["ids", "image", "text", "has_image", "has_text"])
@pytest.mark.parametrize("value", [*NOTHING, "abc", np.ones(5, bool), np.zeros((2, 3), "U4")], ids=kind)
def test_parts_of_features_of_a_search(retriever: Retriever, part: str, value: Any) -> None:
    features = asked(retriever)
    setattr(features, part, value)
    refused(lambda: retriever.search_features(features))


@pytest.mark.parametrize("dtype", ["U4", "O", "complex64", "bool"])
def test_features_of_a_search_are_numbers(retriever: Retriever, dtype: str) -> None:
    features = asked(retriever)
    features.text = features.text.astype(dtype)
    refused(lambda: retriever.search_features(features), "must be numbers")


def test_vectors_to_rank_by(retriever: Retriever, subtests: pytest.Subtests) -> None:
    dim = retriever.tokenizer.quantizer.dim
    good = torch.nn.functional.normalize(torch.ones(2, dim), dim=1)
    wrong = (good[0], good[:, 1:], good[0].numpy(), good.long(), good.long().numpy(), good * math.nan, good.tolist())
    for value in (*NOTHING, *wrong):
        with subtests.test(kind(value)):
            refused(lambda value=value: retriever.rank(value), "query vectors must be")  # type: ignore[misc]
    alike = (good, good.double(), good.numpy(), good.flip(0).numpy()[::-1])
    same = [[ranking.position.tolist() for ranking in retriever.rank(rows)] for rows in alike]
    assert all(found == same[0] for found in same)


@pytest.mark.parametrize("value", [*NOTHING, "abc", ["a"], [None], {"a": 1}], ids=kind)
def test_what_is_added_and_removed(retriever: Retriever, value: Any) -> None:
    before = retriever.index
    for call in (retriever.add, retriever.upsert):
        refused(lambda call=call: call(value))  # type: ignore[misc]
    if not (isinstance(value, list | dict) and not value):
        refused(lambda: retriever.remove(value), "ids")
    assert retriever.index is before


@pytest.mark.parametrize("name", ["id", "text", "image"])
@pytest.mark.parametrize("value", [None, 3, 2.5, b"x", [], object(), np.zeros(3), "\ud800"], ids=kind)
def test_parts_of_items(retriever: Retriever, name: str, value: Any) -> None:
    if value is not None or name == "id":
        refused(lambda: retriever.add([Item(**{"id": "new", "text": "a cat", name: value})]))


def test_items_may_come_one_by_one(run_copy: Path) -> None:
    one = Retriever.load(run_copy)
    one.add(item for item in [Item(id="new", text="a red star")])  # type: ignore[arg-type]
    assert "new" in one.index.ids


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("config", value) for value in NOTHING if value is not None),
        *(("positives", value) for value in (*NOTHING, "x" * 40, [[1, [2]]] * 40, [[[1]]] * 40, [None] * 40)),
        *(("seed", value) for value in (0.5, -1, "x", True, [], math.nan)),
        *(("validation", value) for value in (1.5, "x", None, [], math.nan, 3j)),
        *(("folder", value) for value in ("", 3, b"x", [], "\x00")),
        *(("items", value) for value in (*NOTHING, [[1, 2], [3]], {"text": 5}, {3: 4}, {"text": [[1, 2], [3]]})),
        *(("item_ids", value) for value in (3, True, "abc", object(), [1] * 40)),
        ("device", None),
    ],
    ids=lambda value: str(value)[:12],
)
def test_arguments_of_fit(name: str, value: Any) -> None:
    rows = np.random.default_rng(0).normal(size=(40, 4))
    given: dict[str, Any] = {"items": rows, "queries": rows, "positives": list(range(40)), name: value}
    refused(lambda: siglum.fit(**given))


@pytest.mark.parametrize("value", [3, True, "abc", object(), ..., np.array(3)], ids=kind)
def test_ids_of_features(value: Any) -> None:
    refused(lambda: siglum.features(np.zeros((2, 3)), ids=value), "ids must be")


@pytest.mark.parametrize(
    "value", [*NOTHING, [[1, 2], [3]], {"image": [[1], []]}, {3: 4}, torch.ones(2, 2, requires_grad=True)], ids=kind
)
def test_arrays_of_features(value: Any) -> None:
    refused(lambda: siglum.features(value))


CODES = np.array([[0, 1], [0, 2], [1, 3]])


@pytest.mark.parametrize(
    "value",
    [*(value for value in NOTHING if not isinstance(value, list | dict)), "abc", [1], [None], "x" * 5000],
    ids=kind,
)
def test_arguments_of_an_index(value: Any) -> None:
    index = Index.build(["a", "b", "c"], CODES, (2, 4), tokenizer="f00d")
    for call in (index.remove, index.allow, index.positions, index.codes_of, index.rows):
        refused(lambda call=call: call(value), "ids|mask")  # type: ignore[misc]
    refused(lambda: index.add(value, CODES), "ids")
    refused(lambda: index.add(["x", "y", "z"], value), "codes")
    refused(lambda: Index.build(["x", "y", "z"], CODES, value, "f00d"), "size|levels")


def test_arrays_and_sizes_of_an_index() -> None:
    index = Index.build(["a", "b", "c"], CODES, (2, 4), tokenizer="f00d")
    refused(lambda: index.add(["x", "y"], [[1, 2], [1]]), "codes must be an array")  # type: ignore[arg-type]
    refused(lambda: Index.build(["x", "y", "z"], CODES, (2.5, 4), "f00d"), "level 0")  # type: ignore[arg-type]
    refused(lambda: Index.build(["x", "y", "z"], CODES, (2, 4), 3), "fingerprint")  # type: ignore[arg-type]


def test_a_damaged_archive_of_features(tmp_path: Path) -> None:
    path = tmp_path / "features.npz"
    np.savez(path, text=np.ones((3, 2)))
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
        with suppress(SiglumError):  # anything else would be a fault; a flipped bit of a time stamp is none
            read_features(path)
    path.write_bytes(whole[:40])
    refused(lambda: read_features(path), "is not a whole numpy file")


@pytest.mark.parametrize("field", ["filename", "split", "sentences", "filepath"])
@pytest.mark.parametrize("value", [-1, None, {"a": 1}, [], "\ud800", "a\x00b", 10**400], ids=lambda v: str(v)[:9])
def test_records_in_karpathys_layout(
    tmp_path: Path, field: str, value: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    image = {"filename": "p1.png", "split": "train", "sentences": [{"raw": "a cat"}], "filepath": "", field: value}
    (tmp_path / "k.json").write_text(json.dumps({"images": [image]}))
    out = str(tmp_path / "new")
    assert main(["encode", "--out", out, "--karpathy", str(tmp_path / "k.json"), "--images", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert len(told) < LONGEST + len(str(tmp_path)) * 3
    assert told.count("\n") == 1
