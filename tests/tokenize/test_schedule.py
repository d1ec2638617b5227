"""Vocabulary schedules have the sizes, order and bits they promise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siglum.config import TokenizerConfig
from siglum.tokenize.schedule import (
    PAPER_SIZES,
    ascending,
    custom,
    descending,
    equal_bits,
    scaled_sizes,
    tiers,
    uniform,
)
from siglum.types import SiglumError


def test_sixteen_levels_are_the_schedule_of_the_paper() -> None:
    assert ascending(16) == (512,) * 4 + (1024,) * 8 + (2048,) * 4 == TokenizerConfig().vocab
    assert descending(16) == ascending(16)[::-1]


@pytest.mark.parametrize(
    ("levels", "wanted"),
    [
        (1, (4,)),
        (2, (4, 16)),
        (3, (4, 8, 16)),
        (4, (4, 8, 8, 16)),
        (7, (4, 8, 8, 8, 8, 8, 16)),
        (8, (4, 4, 8, 8, 8, 8, 16, 16)),
    ],
)
def test_few_levels(levels: int, wanted: tuple[int, ...]) -> None:
    assert tiers(levels, (4, 8, 16)) == wanted


@given(st.integers(1, 40))
def test_tiers_fill_the_levels_with_equal_edges(levels: int) -> None:
    found = ascending(levels, (4, 8, 16))
    assert len(found) == levels
    assert list(found) == sorted(found)
    if levels > 1:
        assert found.count(4) == found.count(16) == max(1, levels // 4)
    assert descending(levels, (16, 8, 4)) == found[::-1] or levels == 1


def test_a_schedule_in_the_wrong_order_or_number_is_refused() -> None:
    with pytest.raises(SiglumError, match="ascending"):
        ascending(8, (16, 8, 4))
    with pytest.raises(SiglumError, match="descending"):
        descending(8, (4, 8, 16))
    with pytest.raises(SiglumError, match="three sizes"):
        tiers(8, (4, 8))
    with pytest.raises(SiglumError, match="at least one level, not 0"):
        tiers(0, (4, 8, 16))


def test_every_level_has_at_least_two_codewords() -> None:
    assert custom([2, 9, 3]) == (2, 9, 3)
    assert uniform(3, 5) == (5, 5, 5)


@pytest.mark.parametrize(
    ("build", "args"),
    [(custom, [[4, 1]]), (custom, [[]]), (uniform, [2, 1]), (uniform, [0, 8]), (ascending, [8, (1, 2, 4)])],
)
def test_a_level_of_fewer_than_two_codewords_is_refused(build: Callable[..., object], args: list[Any]) -> None:
    with pytest.raises(SiglumError, match="at least 2 codewords"):
        build(*args)


@given(st.lists(st.integers(2, 4096), min_size=1, max_size=20))
def test_equal_bits_is_the_nearest_uniform_schedule(sizes: list[int]) -> None:
    found = equal_bits(sizes)
    assert len(found) == len(sizes)
    assert len(set(found)) == 1
    wanted = math.exp(sum(math.log(size) for size in sizes) / len(sizes))
    assert abs(found[0] - wanted) <= 0.5 + 1e-6


def test_equal_bits_of_the_paper_is_1024_a_level() -> None:
    assert equal_bits(ascending(16)) == (1024,) * 16


@given(st.integers(1, 5_000_000))
def test_scaled_sizes_leave_128_items_a_codeword_within_bounds(num_items: int) -> None:
    first, second, third = scaled_sizes(num_items)
    assert (second, third) == (2 * first, 4 * first)
    assert 2 <= first <= PAPER_SIZES[0]
    assert third <= max(8, num_items)
    assert first >= 16 or 8 * first > num_items
    assert first & (first - 1) == 0
    assert first <= 16 or num_items >= 128 * first
    assert first == 512 or num_items < 128 * 2 * first
