"""The index: building, changing, saving, filters and look-ups."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load_file

from siglum.files import read_json, sealed, write_json
from siglum.index import Collisions, Index
from siglum.index import ids as ids_module
from siglum.index.ids import Ids
from siglum.types import SiglumError

SIZES = (3, 4, 1, 600)
CODES = np.array([[0, 3, 0, 599], [2, 0, 0, 1], [0, 3, 0, 7], [2, 0, 0, 1], [1, 1, 0, 0]])
NAMES = ["ünï", "b", "c", "d d", ""]


@pytest.fixture
def index() -> Index:
    return Index.build(NAMES, CODES, SIZES, "tok")


def assert_equal(one: Index, two: Index) -> None:
    for name in ("packed_NB", "order_NW", "shared", "order"):
        a, b = getattr(one, name), getattr(two, name)
        assert a.dtype == b.dtype
        assert np.array_equal(a, b), name
    assert (one.sizes, one.tokenizer, list(one.ids)) == (two.sizes, two.tokenizer, list(two.ids))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_state_is_sorted_with_shared_prefixes(index: Index) -> None:
    assert index.order.tolist() == [2, 0, 4, 1, 3]
    assert index.codes().tolist() == CODES[[2, 0, 4, 1, 3]].tolist()
    assert index.shared.tolist() == [0, 3, 0, 0, 4]
    assert (index.packed_NB.dtype, index.shared.dtype, index.order.dtype) == (np.uint8, np.uint8, np.uint32)


def test_look_ups(index: Index) -> None:
    assert len(index) == 5
    assert (index.ids[0], index.ids[-1], index.ids[1:4:2], list(index.ids)) == ("ünï", "", ["b", "d d"], NAMES)
    assert "c" in index.ids
    assert "C" not in index.ids
    assert index.positions(["d d", "ünï"]).tolist() == [3, 0]
    assert index.codes_of(["c", "", "c"]).tolist() == CODES[[2, 4, 2]].tolist()
    assert index.column(3, np.array([1, 0])).tolist() == [599, 7]
    assert index.codes(index.rows(NAMES)).tolist() == CODES.tolist()


def test_collisions(index: Index) -> None:
    assert index.collisions() == Collisions(groups=1, items=2, largest=2)
    assert index.remove(["b"]).collisions() == Collisions(groups=0, items=0, largest=0)
    crowd = index.add(["x", "y", "z"], CODES[[1, 0, 1]])
    assert crowd.collisions() == Collisions(groups=2, items=6, largest=4)


def test_filters(index: Index) -> None:
    mask = np.array([True, False, False, True, False])
    assert index.rows_mask(["d d", "ünï"]).tolist() == [False, True, False, False, True]
    assert np.array_equal(index.rows_mask(mask), index.rows_mask(["d d", "ünï"]))
    assert not index.rows_mask([]).any()
    with pytest.raises(SiglumError, match="'nobody'"):
        index.rows_mask(["b", "nobody"])
    with pytest.raises(SiglumError, match="4"):
        index.rows_mask(mask[:4])
    with pytest.raises(SiglumError, match="one string"):
        index.rows_mask("b")


@pytest.mark.parametrize(
    ("ids", "codes", "message"),
    [
        ([], np.zeros((0, 4), int), "empty"),
        (["a", "b", "a"], np.zeros((3, 4), int), "'a' occurs again at position 2"),
        (["a", 7], np.zeros((2, 4), int), "position 1 is 7"),
        (["\ud800"], np.zeros((1, 4), int), "UTF-8"),
        ("ab", np.zeros((2, 4), int), "one string"),
        (["a"], np.zeros((1, 3), int), r"\(1, 4\)"),
        (["a"], np.zeros((2, 4), int), r"\(2, 4\)"),
        (["a"], np.zeros((1, 4)), "float64"),
        (["a", "b"], np.array([[0, 0, 0, 0], [0, 4, 0, 0]]), "'b' has code 4 at level 1"),
        (["a", "b"], np.array([[0, 0, 0, -1], [0, 4, 0, 0]]), "'a' has code -1 at level 3"),
    ],
)
def test_unfit_pools_are_refused(ids: list[str], codes: np.ndarray, message: str) -> None:
    with pytest.raises(SiglumError, match=message):
        Index.build(ids, codes, SIZES, "tok")


@settings(max_examples=60)
@given(st.integers(1, 30), st.integers(0, 30), st.sampled_from([(2, 3, 2), (1, 1), (300, 2, 70000)]), st.data())
def test_add_and_remove_equal_a_rebuild(count: int, extra: int, sizes: tuple[int, ...], data: st.DataObject) -> None:
    drawn = data.draw(hnp.arrays(np.int64, (count + extra, len(sizes)), elements=st.integers(0, 2)))
    codes = drawn % np.array(sizes)
    ids = [f"item {i}" for i in range(count + extra)]
    old = Index.build(ids[:count], codes[:count], sizes, "tok")
    grown = old.add(ids[count:], codes[count:])
    assert_equal(grown, Index.build(ids, codes, sizes, "tok"))
    assert_equal(grown.remove(ids[count:]), old)
    gone = data.draw(st.sets(st.integers(0, count + extra - 1), max_size=count + extra - 1))
    stay = [i for i in range(count + extra) if i not in gone]
    shrunk = grown.remove([ids[i] for i in gone])
    assert_equal(shrunk, Index.build([ids[i] for i in stay], codes[stay], sizes, "tok"))
    assert shrunk.positions([ids[i] for i in stay]).tolist() == list(range(len(stay)))


def test_add_and_remove_refuse(index: Index) -> None:
    with pytest.raises(SiglumError, match="'c' is in the index already"):
        index.add(["new", "c"], CODES[:2])
    with pytest.raises(SiglumError, match="occurs again"):
        index.add(["new", "new"], CODES[:2])
    with pytest.raises(SiglumError, match="'new' has code 9 at level 0"):
        index.add(["new"], np.array([[9, 0, 0, 0]]))
    with pytest.raises(SiglumError, match="'nobody'"):
        index.remove(["c", "nobody"])
    with pytest.raises(SiglumError, match="empty"):
        index.remove(NAMES)
    assert_equal(index, Index.build(NAMES, CODES, SIZES, "tok"))


def test_save_and_load_are_bit_equal(index: Index, tmp_path: Path) -> None:
    own = index.save(tmp_path / "one")
    loaded = Index.load(tmp_path / "one", "tok")
    assert_equal(loaded, index)
    assert isinstance(loaded.packed_NB.base, np.memmap)
    assert loaded.codes_of(["b"]).tolist() == [[2, 0, 0, 1]]
    assert loaded.save(tmp_path / "two") == own
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_files_are_plain_safetensors(index: Index, tmp_path: Path) -> None:
    index.save(tmp_path)
    rows, names = load_file(tmp_path / "index.safetensors"), load_file(tmp_path / "ids.safetensors")
    assert np.array_equal(rows["packed"], index.packed_NB)
    assert rows["order"].tolist() == [[2], [0], [4], [1], [3]]
    assert bytes(names["id_bytes"]).decode() == "".join(NAMES)


def test_adding_then_removing_gives_the_same_files(index: Index, tmp_path: Path) -> None:
    index.save(tmp_path / "before")
    Index.load(tmp_path / "before").add(["x", "y"], CODES[[1, 4]]).remove(["y", "x"]).save(tmp_path / "after")
    assert contents(tmp_path / "before") == contents(tmp_path / "after")


def test_a_loaded_index_can_be_saved_over_itself(index: Index, tmp_path: Path) -> None:
    index.save(tmp_path)
    loaded = Index.load(tmp_path)
    grown = loaded.add(["x"], CODES[:1])
    grown.save(tmp_path)
    assert_equal(Index.load(tmp_path), grown)
    assert_equal(loaded, index)


def test_rows_without_bits_survive_the_disk(tmp_path: Path) -> None:
    index = Index.build(["a", "b"], np.zeros((2, 2), int), (1, 1), "tok")
    index.save(tmp_path)
    assert_equal(Index.load(tmp_path), index)


def test_wrong_tokenizer_is_refused(index: Index, tmp_path: Path) -> None:
    index.save(tmp_path)
    with pytest.raises(SiglumError, match="another tokenizer"):
        Index.load(tmp_path, "other")


@pytest.mark.parametrize("name", ["index.safetensors", "ids.safetensors"])
@pytest.mark.parametrize("left", [0.0, 0.3, 0.99])
def test_truncated_file_is_refused(index: Index, tmp_path: Path, name: str, left: float) -> None:
    index.save(tmp_path)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: int(len(whole) * left)])
    with pytest.raises(SiglumError, match="truncated"):
        Index.load(tmp_path)


def test_file_of_another_index_is_refused(index: Index, tmp_path: Path) -> None:
    index.save(tmp_path / "one")
    index.remove(["b"]).save(tmp_path / "two")
    (tmp_path / "two" / "index.safetensors").replace(tmp_path / "one" / "index.safetensors")
    with pytest.raises(SiglumError, match="make the index again"):
        Index.load(tmp_path / "one")


def test_flipped_bits_are_found_on_first_use(tmp_path: Path) -> None:
    index = Index.build([f"item {i}" for i in range(60)], np.arange(60)[:, None] % 7, (7,), "tok")
    index.save(tmp_path)
    for name, use in (
        ("index.safetensors", lambda found: found.children(*found.root, 0)),
        ("index.safetensors", lambda found: found.codes_of(["item 3"])),
        ("ids.safetensors", lambda found: found.ids[3]),
        ("ids.safetensors", lambda found: found.positions(["item 3"])),
        ("ids.safetensors", lambda found: list(found.ids)),
    ):
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[:-9] + bytes([whole[-9] ^ 4]) + whole[-8:])
        found = Index.load(tmp_path)
        for _ in range(2):
            with pytest.raises(SiglumError, match="not the file that was written"):
                use(found)
        (tmp_path / name).write_bytes(whole)
        use(Index.load(tmp_path))


def test_interrupted_save_is_refused(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index.save(tmp_path)
    monkeypatch.setattr("siglum.index.store.IDS_FILE", "no/such\0name")
    with pytest.raises(ValueError, match="null"):
        index.save(tmp_path)
    monkeypatch.undo()
    with pytest.raises(SiglumError, match="no finished index"):
        Index.load(tmp_path)


def test_ids_with_equal_hashes_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def same(blob: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        return (np.diff(offsets) % 2).astype(np.uint64)

    monkeypatch.setattr(ids_module, "hash_ids", same)
    names = ["a", "bb", "c", "dd", "eee"]
    ids = Ids.of(names[:3]).joined(Ids.of(names[3:]))
    assert ids.positions(names[::-1]).tolist() == [4, 3, 2, 1, 0]
    assert ids.locate(["z", "c", "zz"]).tolist() == [-1, 2, -1]
    assert ids.kept(np.array([False, True, False, True, True])).positions(["eee", "bb"]).tolist() == [2, 0]
    with pytest.raises(SiglumError, match="'c' occurs again"):
        Ids.of(["a", "c", "c"])


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=20), unique=True, max_size=30), st.data())
def test_ids_are_found_whatever_they_are(names: list[str], data: st.DataObject) -> None:
    ids = Ids.of(names)
    assert list(ids) == names
    assert ids.positions(names[::-1]).tolist() == list(range(len(names)))[::-1]
    other = data.draw(st.text(st.characters(codec="utf-8"), max_size=20))
    assert (other in ids) == (other in names)


def test_hashes_do_not_depend_on_neighbours_and_rarely_meet() -> None:
    names = [f"item {i}" for i in range(30_000)]
    ids = Ids.of(names)
    hashes = ids_module.hash_ids(ids.blob, ids.offsets)
    assert len(np.unique(hashes)) == len(names)
    alone = Ids.of(names[20_000:20_001])
    assert ids_module.hash_ids(alone.blob, alone.offsets)[0] == hashes[20_000]


def test_items_in_code_order_store_no_positions(tmp_path: Path) -> None:
    index = Index.build(["a", "b", "c"], np.array([[0, 1], [1, 0], [1, 0]]), (2, 600), "tok")
    assert index.order_NW.shape == (3, 0)
    assert index.nbytes == 3 * 2
    index.save(tmp_path)
    loaded = Index.load(tmp_path)
    assert_equal(loaded, index)
    assert loaded.order.tolist() == [0, 1, 2]
    assert loaded.leaves(*loaded.root).position.tolist() == [0, 1, 2]
    assert loaded.remove(["a"]).positions(["c"]).tolist() == [1]
    grown = loaded.add(["d"], np.array([[0, 0]]))
    assert grown.order.tolist() == [3, 0, 1, 2]
    assert_equal(grown.remove(["d"]), index)


@pytest.mark.parametrize("layout", [1, 3])
def test_files_of_another_layout_are_refused(index: Index, tmp_path: Path, layout: int) -> None:
    index.save(tmp_path)
    write_json(tmp_path / "stage.json", sealed(read_json(tmp_path / "stage.json") | {"layout": layout}))
    with pytest.raises(SiglumError, match=f"has layout {layout}, but this version reads layout 2; make the index"):
        Index.load(tmp_path)


def test_a_hundred_thousand_items(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sizes = (3,) + (512,) * 4 + (1024,) * 8 + (2048,) * 4
    codes = np.stack([rng.integers(0, size, 100_000) for size in sizes], 1)
    codes[50_000:60_000] = codes[:10_000]
    codes[50_000:55_000, 12:] = 0
    ids = [f"item {i}" for i in range(len(codes))]
    Index.build(ids, codes, sizes, "tok").save(tmp_path)
    index = Index.load(tmp_path)
    assert (tmp_path / "index.safetensors").stat().st_size < 24.01 * len(index)
    assert index.order.tolist() == np.lexsort([codes[:, level] for level in range(16, -1, -1)]).tolist()
    assert np.array_equal(index.codes(), codes[index.order])
    lo, hi = index.root
    for depth, size in enumerate(sizes):
        found = index.children(lo, hi, depth)
        keys = np.unique(found.lo)
        assert len(keys) == len(found.lo) == len(np.unique(codes[:, : depth + 1], axis=0))
        assert found.token.max() < size
        lo, hi = found.lo, found.hi
    assert index.collisions() == Collisions(groups=5_000, items=10_000, largest=2)
