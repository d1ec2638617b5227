"""Vocabulary schedules: how many codewords each residual level has (paper: vocabulary scheduling)."""

from __future__ import annotations

from collections.abc import Sequence

from siglum.types import SiglumError

PAPER_SIZES = (512, 1024, 2048)


def tiers(levels: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """Spread three sizes over the levels as the paper does: a quarter, a half, a quarter.

    >>> tiers(8, (64, 128, 256))
    (64, 64, 128, 128, 128, 128, 256, 256)
    """
    if levels < 1:
        raise SiglumError(f"a schedule needs at least one level, not {levels}.")
    if len(sizes) != 3:
        raise SiglumError(f"a schedule takes three sizes, not {list(sizes)}.")
    edge = max(1, levels // 4)
    first, last = min(edge, levels), min(edge, max(0, levels - edge))
    middle = levels - first - last
    return custom((sizes[0],) * first + (sizes[1],) * middle + (sizes[2],) * last)


def ascending(levels: int, sizes: Sequence[int] = PAPER_SIZES) -> tuple[int, ...]:
    """Small vocabularies first: little competition where pruning is irreversible (the paper's schedule)."""
    if list(sizes) != sorted(sizes):
        raise SiglumError(f"ascending() needs sizes in ascending order, not {list(sizes)}; use custom() for any order.")
    return tiers(levels, sizes)


def descending(levels: int, sizes: Sequence[int] = PAPER_SIZES[::-1]) -> tuple[int, ...]:
    """Large vocabularies first: the paper's counter-example."""
    if list(sizes) != sorted(sizes, reverse=True):
        raise SiglumError(
            f"descending() needs sizes in descending order, not {list(sizes)}; use custom() for any order."
        )
    return tiers(levels, sizes)


def uniform(levels: int, size: int) -> tuple[int, ...]:
    """Return the same vocabulary at every level (GENIUS).

    >>> uniform(3, 256)
    (256, 256, 256)
    """
    return custom((size,) * levels)


def custom(sizes: Sequence[int]) -> tuple[int, ...]:
    """Any sizes, checked to be at least 2."""
    if not sizes or min(sizes) < 2:
        raise SiglumError(f"every level needs at least 2 codewords, got {list(sizes)}.")
    return tuple(sizes)


def equal_bits(schedule: Sequence[int]) -> tuple[int, ...]:
    """Return the uniform schedule that spends as many bits per item as `schedule` (rounded to a whole codeword).

    >>> equal_bits((64, 64, 128, 128, 128, 128, 256, 256))
    (128, 128, 128, 128, 128, 128, 128, 128)
    """
    product = 1.0
    for size in schedule:
        product *= size ** (1 / len(schedule))
    return uniform(len(schedule), round(product))


def scaled_sizes(num_items: int) -> tuple[int, int, int]:
    """Scale the paper's 512/1024/2048 to a collection.

    The first size is the largest power of two that leaves 128 training items a codeword, within 16 and 512, or less
    where a collection has fewer items than its largest vocabulary would need; the others are twice and four times that.

    >>> scaled_sizes(9_000), scaled_sizes(1_300_000), scaled_sizes(50)
    ((64, 128, 256), (512, 1024, 2048), (8, 16, 32))
    """
    first = 16
    while first < 512 and num_items >= 128 * first * 2:
        first *= 2
    while first > 2 and 4 * first > num_items:
        first //= 2
    return first, 2 * first, 4 * first
