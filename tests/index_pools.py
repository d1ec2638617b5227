"""Pools of items with codes, and what two indexes of one pool must agree on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from siglum.index import Index

SIZES = (2, 3, 3)


@dataclass
class Pool:
    """What an index should hold, item by item."""

    codes: dict[str, list[int]] = field(default_factory=dict)
    made: int = 0
    shows: bool = False
    """Whether something is kept to show most items by."""

    def fresh(self, rng: np.random.Generator, number: int) -> tuple[list[str], np.ndarray]:
        names = [f"item {self.made + i}" for i in range(number)]
        self.made += number
        codes = rng.integers(0, SIZES, (number, len(SIZES)))
        self.codes |= dict(zip(names, codes.tolist(), strict=True))
        return names, codes

    def index(self) -> Index:
        return Index.build(list(self.codes), np.array(list(self.codes.values())), SIZES, "tok", self.shown(self.codes))

    def shown(self, names: Iterable[str]) -> list[str]:
        """What is kept to show items by: every third has nothing."""
        return [f"({name}, ü)" if int(name.split()[1]) % 3 else "" for name in names] if self.shows else []


def assert_same(found: Index, wanted: Index) -> None:
    """Compare everything an engine, a filter or a page may ask of an index."""
    rows = np.arange(len(wanted))
    assert len(found) == len(wanted)
    assert list(found.ids) == list(wanted.ids)
    assert found.ids[-1] == wanted.ids[-1]
    assert found.ids[::2] == wanted.ids[::2]
    assert list(found.fields) == list(wanted.fields)
    assert found.fields[::-2] == wanted.fields[::-2]
    assert np.array_equal(found.codes(), wanted.codes())
    assert np.array_equal(found.codes(rows[::-1]), wanted.codes(rows[::-1]))
    for level in range(len(SIZES)):
        assert np.array_equal(found.column(level, rows), wanted.column(level, rows))
    assert np.array_equal(found.order, wanted.order)
    assert np.array_equal(found.shared, wanted.shared)
    assert np.array_equal(found.packed_NB, wanted.packed_NB)
    names = list(wanted.ids)[::-2]
    assert np.array_equal(found.positions(names), wanted.positions(names))
    assert np.array_equal(found.rows(names), wanted.rows(names))
    assert np.array_equal(found.rows_mask(names), wanted.rows_mask(names))
    assert found.collisions() == wanted.collisions()
    for allowed in (None, wanted.allow(names)):
        nodes = wanted.root
        for depth in range(len(SIZES)):
            kids, right = (index.children(*nodes, depth, allowed) for index in (found, wanted))
            for name in right._fields:
                assert np.array_equal(getattr(kids, name), getattr(right, name)), (name, depth)
            nodes = right.lo, right.hi
            leaves, wished = (index.leaves(*nodes, allowed) for index in (found, wanted))
            for name in wished._fields:
                assert np.array_equal(getattr(leaves, name), getattr(wished, name)), (name, depth)
