"""Bit packing: round trips, order, shared prefixes, sorting and merging."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from siglum.index.pack import CHUNK, Layout, insertion_points, narrow, sort_rows, widen
from siglum.index.ragged import spread
from siglum.types import SiglumError

PAPER = (3,) + (512,) * 4 + (1024,) * 8 + (2048,) * 4
SIZES = st.lists(st.sampled_from([1, 2, 3, 8, 9, 512, 1000, 2048, 65537, 1 << 31]), min_size=1, max_size=20).map(tuple)


@st.composite
def coded(draw: st.DrawFn) -> tuple[tuple[int, ...], np.ndarray]:
    """Draw sizes and codes; few distinct codes a level, so that prefixes are shared, and both ends of the range."""
    sizes = draw(SIZES)
    count = draw(st.integers(1, 30))
    picks = draw(hnp.arrays(np.int64, (count, len(sizes)), elements=st.integers(0, 3)))
    ends = np.array([[0, 1 % size, size // 2, size - 1] for size in sizes])
    return sizes, ends[np.arange(len(sizes)), picks]


def test_paper_row_takes_21_bytes_with_its_shared_length() -> None:
    layout = Layout(PAPER)
    assert layout.starts[-1] == 162
    assert layout.tail == 31
    assert layout.row_bytes == 21


def test_known_bits() -> None:
    # 10 | 000000011 | 1 spread over two bytes, most significant bit first, zeros at the end.
    packed = Layout((3, 512, 2)).pack(np.array([[2, 3, 1]]))
    assert [f"{byte:08b}" for byte in packed[0]] == ["10000000", "01110000"]


@given(coded())
def test_round_trip(case: tuple[tuple[int, ...], np.ndarray]) -> None:
    sizes, codes = case
    layout = Layout(sizes)
    packed = layout.pack(codes)
    bits = sum((size - 1).bit_length() for size in sizes) + len(sizes).bit_length()
    assert packed.shape == (len(codes), -(-bits // 8))
    assert not (packed[:, -1] & layout.tail).any()
    assert np.array_equal(layout.unpack(packed), codes)
    rows = np.arange(len(codes))[::-2]
    for level in range(len(sizes)):
        assert np.array_equal(layout.column(packed, level, rows), codes[rows, level])


@given(coded())
def test_byte_order_is_code_order(case: tuple[tuple[int, ...], np.ndarray]) -> None:
    sizes, codes = case
    packed = [row.tobytes() for row in Layout(sizes).pack(codes)]
    rows = [tuple(row) for row in codes.tolist()]
    for i in range(len(rows)):
        for j in range(i):
            assert (packed[i] < packed[j]) == (rows[i] < rows[j])


@given(coded())
def test_sort_is_stable_and_lexicographic(case: tuple[tuple[int, ...], np.ndarray]) -> None:
    sizes, codes = case
    expected = sorted(range(len(codes)), key=lambda i: (codes[i].tolist(), i))
    assert sort_rows(Layout(sizes).pack(codes)).tolist() == expected


@given(coded())
def test_shared_counts_leading_codes(case: tuple[tuple[int, ...], np.ndarray]) -> None:
    sizes, codes = case
    layout = Layout(sizes)
    before, after = codes, codes[::-1]
    differs = np.concatenate([before != after, np.ones((len(codes), 1), bool)], 1)
    one, two = layout.pack(before), layout.pack(after)
    two[:, -1] |= layout.tail  # what a row shared before does not count
    assert np.array_equal(layout.shared(one, two), differs.argmax(1))


@given(coded(), st.data())
def test_link_writes_beside_the_codes(case: tuple[tuple[int, ...], np.ndarray], data: st.DataObject) -> None:
    sizes, codes = case
    layout = Layout(sizes)
    packed = layout.pack(codes)
    layout.link(packed)
    differs = np.concatenate([codes[1:] != codes[:-1], np.ones((len(codes) - 1, 1), bool)], 1)
    assert np.array_equal(packed[:, -1] & layout.tail, [0, *differs.argmax(1)])
    assert np.array_equal(layout.unpack(packed), codes)
    spoilt = data.draw(hnp.arrays(bool, len(codes)))
    spoilt[0] = False
    again = packed.copy()
    again[spoilt, -1] ^= layout.tail
    layout.link(again, np.flatnonzero(spoilt))
    assert np.array_equal(again, packed)


@given(st.integers(1, 300), st.randoms(use_true_random=False))
def test_positions_come_back_from_few_bytes(count: int, random: random.Random) -> None:
    order = np.array(random.sample(range(count), count))
    packed = narrow(order)
    assert packed.shape[1] == (0 if (order == np.arange(count)).all() else 1 if count <= 256 else 2)
    assert np.array_equal(widen(packed), order)
    assert np.array_equal(widen(packed, np.array([count - 1, 0])), order[[-1, 0]])


@pytest.mark.parametrize(("count", "width"), [(256, 1), (257, 2), (1 << 16, 2), ((1 << 16) + 1, 3)])
def test_bytes_of_a_position_follow_the_pool(count: int, width: int) -> None:
    order = np.arange(count)[::-1]
    assert narrow(order).shape == (count, width)
    assert np.array_equal(widen(narrow(order)), order)


@given(coded(), st.data())
def test_insertion_points_follow_equal_rows(case: tuple[tuple[int, ...], np.ndarray], data: st.DataObject) -> None:
    sizes, codes = case
    cut = data.draw(st.integers(0, len(codes)))
    old, new = sorted(codes[:cut].tolist()), codes[cut:].tolist()
    layout = Layout(sizes)
    packed_old = layout.pack(np.array(old, np.int64).reshape(-1, len(sizes)))
    layout.link(packed_old)
    points = insertion_points(packed_old, layout.pack(codes[cut:]), layout.tail)
    assert points.tolist() == [sum(row <= key for row in old) for key in new]


def test_rows_beyond_one_chunk() -> None:
    codes = np.random.default_rng(0).integers(0, 512, (CHUNK + 5, 3))
    layout = Layout((512,) * 3)
    packed = layout.pack(codes)
    assert np.array_equal(layout.unpack(packed), codes)
    layout.link(packed)
    expected = (np.cumprod(codes[1:] == codes[:-1], 1)).sum(1)
    assert np.array_equal(packed[1:, -1] & layout.tail, expected)
    assert np.array_equal(layout.column(packed, 1, np.arange(len(codes))[::-1]), codes[::-1, 1])


@pytest.mark.parametrize("sizes", [(), (4, 0), (1 << 32,), (2,) * 256])
def test_impossible_sizes_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(SiglumError):
        Layout(sizes)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 4)), max_size=10))
def test_spread(runs: list[tuple[int, int]]) -> None:
    first, counts = (np.array([run[part] for run in runs], np.int64) for part in (0, 1))
    assert spread(first, counts).tolist() == [value for start, count in runs for value in range(start, start + count)]
