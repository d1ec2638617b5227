"""One's own data survives the way to disk and back, and every fault is named in one sentence."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siglum.bridges import read_codes
from siglum.data.corpus import check_positives, read_items, read_queries, write_items, write_queries
from siglum.data.precomputed import read_features
from siglum.types import Item, Query, SiglumError

SUFFIXES = [".jsonl", ".parquet"]
LETTERS = st.characters(exclude_categories=["Cs"])
IDS = st.text(LETTERS, min_size=1, max_size=6).filter(lambda text: text.split() == [text])
TEXTS = st.text(LETTERS, max_size=12).filter(lambda text: bool(text.strip()))


def jsonl(folder: Path, *records: object, name: str = "items.jsonl") -> Path:
    """Write one JSON value a line."""
    path = folder / name
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_items_are_read_with_int_ids_and_paths_beside_the_file(tmp_path: Path) -> None:
    path = jsonl(
        tmp_path,
        {"id": 7, "text": "a red square"},
        {"id": "b", "image": "pictures/b.png", "text": None},
        {"id": "c", "text": "  ", "image": "/far/c.png"},
    )
    assert read_items(path) == [
        Item(id="7", text="a red square"),
        Item(id="b", image=tmp_path / "pictures/b.png"),
        Item(id="c", image=Path("/far/c.png")),
    ]


def test_queries_have_defaults_and_distinct_positives(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {"id": 1, "text": "red"}, {"id": 2, "text": "x", "task": "t2i", "positives": [5, "a", "5"]})
    assert read_queries(path) == [
        Query(id="1", text="red"),
        Query(id="2", text="x", task="t2i", positives=("5", "a")),
    ]


def test_positives_come_from_qrels_with_grades_above_zero(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {"id": "p", "text": "red"}, {"id": "q", "text": "blue"})
    qrels = tmp_path / "qrels.txt"
    qrels.write_text("q 0 a 1 3\nq 0 b 0 3\nq 0 c 2 3\n")
    assert [query.positives for query in read_queries(path, qrels)] == [(), ("a", "c")]


def test_qrels_beside_positives_or_for_unknown_queries_are_refused(tmp_path: Path) -> None:
    qrels = tmp_path / "qrels.txt"
    qrels.write_text("q 0 a 1\nz 0 a 1\ny 0 a 1\n")
    both = jsonl(tmp_path, {"id": "q", "text": "red", "positives": ["a"]}, name="both.jsonl")
    with pytest.raises(SiglumError, match=r"both.jsonl, line 1: the query has positives"):
        read_queries(both, qrels)
    with pytest.raises(SiglumError, match=r"judges 2 queries that are not in .*, such as 'y'"):
        read_queries(jsonl(tmp_path, {"id": "q", "text": "red"}), qrels)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "items.jsonl is empty"),
        ("\n\n", "items.jsonl is empty"),
        ('{"id": "a", "text": "x"}\n{"id": "b", "te', "line 2: this is not valid JSON .* may be truncated"),
        ('{"id": "a", "text": "\\xff"}', "line 1: this is not valid JSON"),
        ("[" * 100_000, "line 1: this is not valid JSON"),
        ("[1]", "line 1: a record must be a JSON object"),
        ('\n{"text": "x"}', "line 2: the field id is missing"),
        ('{"id": null, "text": "x"}', "line 1: the field id is missing"),
        ('{"id": true, "text": "x"}', "the field id is True, but must be a string or a whole number"),
        ('{"id": 1.5, "text": "x"}', "the field id is 1.5"),
        ('{"id": "a b", "text": "x"}', "the id 'a b' in id is empty or holds whitespace"),
        ('{"id": "", "text": "x"}', "the id '' in id is empty"),
        ('{"id": "a", "text": "x"}\n{"id": "a", "text": "y"}', "line 2: the id 'a' was used before, in line 1"),
        ('{"id": 1, "text": "x"}\n{"id": "1", "text": "y"}', "line 2: the id '1' was used before"),
        ('{"id": "a"}', "line 1: 'a' has neither a text nor an image"),
        ('{"id": "a", "text": " ", "image": ""}', "line 1: 'a' has neither"),
        ('{"id": "a", "text": 3}', "the field text is 3, but must be a string"),
        ('{"id": "a", "text": "\\ud800"}', "the field text is .*, but must be a string"),
        ('{"id": "a", "image": ["b"]}', "the field image is"),
        ('{"id": "a", "txet": "x"}', "unknown field 'txet'; the fields are id, text, image"),
    ],
)
def test_faulty_items_are_named_with_file_and_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "items.jsonl"
    path.write_bytes(content.encode())
    with pytest.raises(SiglumError, match=message) as caught:
        read_items(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    path.write_bytes(b'{"id": "a", "text": "\xff"}\n')
    with pytest.raises(SiglumError, match="line 1: this is not valid JSON"):
        read_items(path)


@pytest.mark.parametrize("value", ["a", {"a": 1}, [["a"]], [1.5], ["a b"]])
def test_positives_of_the_wrong_kind_are_refused(tmp_path: Path, value: object) -> None:
    with pytest.raises(SiglumError, match=r"line 1: .*positives"):
        read_queries(jsonl(tmp_path, {"id": "q", "text": "x", "positives": value}))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_missing_and_damaged_files_are_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"items{suffix}"
    with pytest.raises(SiglumError, match="cannot be read"):
        read_items(path)
    write_items(path, [Item(id=str(i), text="red " * i) for i in range(1, 50)])
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(SiglumError, match="may be truncated"):
        read_items(path)


def test_an_unknown_suffix_names_the_choices(tmp_path: Path) -> None:
    for act in (read_items, read_queries, lambda path: write_items(path, [Item(id="a", text="x")])):
        with pytest.raises(SiglumError, match=r"must be one of: \.jsonl, \.parquet"):
            act(tmp_path / "items.csv")


def test_parquet_rows_are_named(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "items.parquet"
    pq.write_table(pa.table({"id": [4, 4], "text": ["x", "y"]}), path)
    with pytest.raises(SiglumError, match=r"items.parquet, row 2: the id '4' was used before, in row 1"):
        read_items(path)
    pq.write_table(pa.table({"id": pa.array([], pa.string())}), path)
    with pytest.raises(SiglumError, match="is empty"):
        read_items(path)


def test_parquet_without_its_package_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "items.parquet"
    write_items(path, [Item(id="a", text="x")])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for act in (read_items, read_features, read_codes, lambda path: write_items(path, [Item(id="a", text="x")])):
        with pytest.raises(SiglumError, match=r"need the package pyarrow; `pip install 'siglum\[parquet\]'` brings it"):
            act(path)


def test_check_positives_names_the_first_and_the_count() -> None:
    queries = [Query(id="p", text="x", positives=("a", "u")), Query(id="q", text="x", positives=("v",))]
    with pytest.raises(SiglumError, match="2 positives are not among the 1 items, the first being 'u' of query 'p'"):
        check_positives(queries, ["a"])
    check_positives(queries, ["a", "u", "v", "w"])


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_pictures_below_the_folder_are_written_relative(tmp_path: Path, suffix: str) -> None:
    items = [Item(id="a", image=tmp_path / "near" / "a.png"), Item(id="b", image=Path("/far/b.png"))]
    path = tmp_path / f"items{suffix}"
    write_items(path, items)
    assert read_items(path) == items
    moved = tmp_path / "moved"
    moved.mkdir()
    assert read_items(path.rename(moved / path.name))[0].image == moved / "near" / "a.png"


def test_a_write_that_could_not_be_read_back_leaves_the_old_file(tmp_path: Path, subtests: pytest.Subtests) -> None:
    path = tmp_path / "items.jsonl"
    write_items(path, [Item(id="a", text="x")])
    before = path.read_bytes()
    wrong = [
        [Item(id="a", text="x"), Item(id="a", text="y")],
        [Item(id="a b", text="x")],
        [Item(id="a")],
        [Item(id="a", image=np.zeros((2, 2, 3), np.uint8))],
        [],
    ]
    for items in wrong:
        with subtests.test(str(items)), pytest.raises(SiglumError):
            write_items(path, items)
    with pytest.raises(SiglumError, match="positives"):
        write_queries(path, [Query(id="q", text="x", positives=("a b",))])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.builds(
            Query,
            id=IDS,
            text=TEXTS,
            image=st.none() | st.just(Path("/pictures/a.png")),
            instruction=st.none() | TEXTS,
            task=st.just("") | TEXTS,
            positives=st.lists(IDS, max_size=3, unique=True).map(tuple),
        ),
        min_size=1,
        max_size=5,
        unique_by=lambda query: query.id,
    ),
    st.sampled_from(SUFFIXES),
)
def test_queries_survive_the_round_trip(tmp_path_factory: pytest.TempPathFactory, queries: list, suffix: str) -> None:
    path = tmp_path_factory.mktemp("round") / f"queries{suffix}"
    write_queries(path, queries)
    assert read_queries(path) == queries
