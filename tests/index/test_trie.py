"""The implicit trie against a dictionary of prefixes."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from siglum.index import Allowed, Children, Index, trie
from siglum.types import SiglumError


@st.composite
def pools(draw: st.DrawFn) -> tuple[Index, np.ndarray]:
    """Draw an index with many shared prefixes and equal codes, and its codes in pool order."""
    levels, count = draw(st.integers(1, 5)), draw(st.integers(1, 40))
    sizes = draw(st.lists(st.sampled_from([1, 2, 3, 600]), min_size=levels, max_size=levels))
    codes = draw(hnp.arrays(np.int64, (count, levels), elements=st.integers(0, 2))) % np.array(sizes)
    return Index.build([f"item {i}" for i in range(count)], codes, sizes, "tok"), codes


def ranges(codes: np.ndarray, depth: int) -> dict[tuple[int, ...], tuple[int, int]]:
    """Return every prefix of this length with its range of sorted rows, the slow and obvious way."""
    rows = sorted(codes.tolist())
    found: dict[tuple[int, ...], tuple[int, int]] = {}
    for row, code in enumerate(rows):
        lo, _ = found.get(tuple(code[:depth]), (row, row))
        found[tuple(code[:depth])] = (lo, row + 1)
    return found


def listed(children: Children) -> list[tuple[int, int, int, int]]:
    return list(zip(*(part.tolist() for part in children), strict=True))


def bounds(nodes: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    array = np.array(nodes, np.int64).reshape(-1, 2)
    return array[:, 0], array[:, 1]


@given(pools(), st.sampled_from([0, 2, 64]), st.data())
def test_children_equal_a_dictionary_trie(pool: tuple[Index, np.ndarray], scan: int, data: st.DataObject) -> None:
    # Nodes of all sizes are looked up, read, or some of both.
    with mock.patch.object(trie, "SCAN", scan):
        check_children(*pool, data)


def check_children(index: Index, codes: np.ndarray, data: st.DataObject) -> None:
    depth = data.draw(st.integers(0, index.levels - 1))
    nodes = ranges(codes, depth)
    # Any order, the same node twice, and empty ranges too.
    chosen = data.draw(st.lists(st.sampled_from([*nodes, None]), max_size=8))
    lo, hi = bounds([(1, 1) if prefix is None else nodes[prefix] for prefix in chosen])
    below = ranges(codes, depth + 1)
    expected = [
        (number, child[-1], *below[child])
        for number, prefix in enumerate(chosen)
        for child in sorted(below)
        if child[:-1] == prefix
    ]
    assert listed(index.children(lo, hi, depth)) == expected


@given(pools(), st.data())
def test_filter_leaves_out_children_without_an_allowed_item(
    pool: tuple[Index, np.ndarray], data: st.DataObject
) -> None:
    index, codes = pool
    mask = data.draw(hnp.arrays(bool, len(codes)))
    depth = data.draw(st.integers(0, index.levels - 1))
    lo, hi = bounds(list(ranges(codes, depth).values()))
    wanted = {tuple(code[: depth + 1]) for code in codes[mask].tolist()}
    prefixes = list(ranges(codes, depth))
    expected = [c for c in listed(index.children(lo, hi, depth)) if (*prefixes[c[0]], c[1]) in wanted]
    assert listed(index.children(lo, hi, depth, index.allow(mask))) == expected


@settings(max_examples=50)
@given(pools())
def test_walking_down_reaches_every_item_in_pool_order(pool: tuple[Index, np.ndarray]) -> None:
    index, codes = pool
    lo, hi = index.root
    paths = np.zeros((1, 0), np.int64)
    for depth in range(index.levels):
        found = index.children(lo, hi, depth)
        paths = np.concatenate([paths[found.parent], found.token[:, None]], 1)
        lo, hi = found.lo, found.hi
    leaves = index.leaves(lo, hi)
    assert np.array_equal(paths, np.unique(codes, axis=0))
    assert np.array_equal(paths[leaves.parent], codes[leaves.position])
    assert sorted(leaves.position.tolist()) == list(range(len(codes)))
    same_node = leaves.parent[1:] == leaves.parent[:-1]
    assert (np.diff(leaves.position)[same_node] > 0).all()


@given(pools(), st.data())
def test_leaves_under_inner_nodes(pool: tuple[Index, np.ndarray], data: st.DataObject) -> None:
    index, codes = pool
    mask = data.draw(hnp.arrays(bool, len(codes)))
    depth = data.draw(st.integers(0, index.levels))
    nodes = ranges(codes, depth)
    lo, hi = bounds([*nodes.values(), (0, 0)])
    leaves = index.leaves(lo, hi, index.allow(mask))
    for number, prefix in enumerate(nodes):
        expected = [i for i, code in enumerate(codes.tolist()) if tuple(code[:depth]) == prefix and mask[i]]
        assert sorted(leaves.position[leaves.parent == number].tolist()) == expected
    assert np.array_equal(index.order[leaves.row], leaves.position)
    assert len(leaves.parent) == mask.sum()


def test_no_nodes_have_no_children() -> None:
    index = Index.build(["a"], np.array([[1, 2]]), (3, 4), "tok")
    none = np.zeros(0, np.int64)
    assert listed(index.children(none, none, 1)) == []
    assert len(index.leaves(none, none).row) == 0


@pytest.mark.parametrize("depth", [-1, 2])
def test_depth_outside_the_trie_is_refused(depth: int) -> None:
    index = Index.build(["a"], np.array([[1, 2]]), (3, 4), "tok")
    with pytest.raises(SiglumError, match="depth"):
        index.children(*index.root, depth)


def test_allowed_counts_ranges() -> None:
    mask = np.random.default_rng(0).random(50) < 0.4
    lo, hi = np.array([0, 10, 20, 7]), np.array([50, 10, 31, 8])
    assert Allowed.of(mask).count(lo, hi).tolist() == [mask[a:b].sum() for a, b in zip(lo, hi, strict=True)]


def test_branches_are_listed_in_pieces_and_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever lists them beside searches can give way to those again and again."""
    codes = np.random.default_rng(1).integers(0, (2, 3, 4), (100, 3))
    names = [f"item {row}" for row in range(100)]
    asked, index = (Index.build(names, codes, (2, 3, 4), "tok") for _ in range(2))
    monkeypatch.setattr(trie, "SCAN", 1)
    for depth in range(3):
        asked.children(*asked.root, depth)
    monkeypatch.setattr("siglum.index.pack.CHUNK", 30)
    rests: list[int] = []
    index.warm(asked, lambda: rests.append(1))
    assert len(rests) == 8, "branches of all depths in one go of four pieces, and rows in another"
    index.warm(asked, lambda: rests.append(1))
    assert len(rests) == 8 and sorted(index.listed()) == [0, 1, 2]
    for depth in range(3):
        assert listed(index.children(*index.root, depth)) == listed(asked.children(*asked.root, depth))
    assert np.array_equal(index.rows(names), asked.rows(names))
