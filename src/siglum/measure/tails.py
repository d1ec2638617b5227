"""The levels of an explanation on which one item is left, folded to one line."""

from __future__ import annotations

from collections.abc import Sequence

from siglum.measure.explain import Explanation, Level


def fold_tail(explanation: Explanation) -> list[tuple[Level, ...]]:
    """Return the levels in groups, each to be told in one line by its last level.

    A level stands alone until one item is left under the target's prefix. From there on only the target's fate is
    news: the levels that follow are one group, up to its fall, and those below that are another.
    """
    groups: list[tuple[Level, ...]] = []
    tail = False
    for level in explanation.levels:
        if tail and groups[-1][-1] is not explanation.fall:
            groups[-1] += (level,)
        else:
            tail = bool(groups) and groups[-1][-1].target.items == 1
            groups.append((level,))
    return groups


def name_group(levels: Sequence[Level]) -> str:
    """Return the number of a group of levels, M for the modality token."""
    first, last = levels[0].level, levels[-1].level
    return str(first or "M") if first == last else f"{first or 'M'}–{last}"


def spell(codes: Sequence[int], most: int = 6) -> str:
    """Return codes in a row; of more than `most` the first and the last.

    >>> spell([4, 0, 7]), spell(range(9))
    ('4-0-7', '0-1-2-…-7-8')
    """
    words = [*map(str, codes)]
    return "-".join(words if len(words) <= most else [*words[:3], "…", *words[-2:]])
