"""A layered index: the rows, nodes, filters and searches of one that is built anew."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from index_pools import SIZES, Pool, assert_same
from siglum.index import Index
from siglum.index import index as index_module
from siglum.search.beam import search_items
from siglum.search.hits import as_hits
from siglum.search.scorers import GeometryScorer
from siglum.types import SiglumError


def change(index: Index, pool: Pool, rng: np.random.Generator, kind: str) -> Index:
    """Change index and pool alike."""
    if kind == "add":
        names, codes = pool.fresh(rng, int(rng.integers(0, 6)))
        return index.add(names, codes, pool.shown(names))
    if kind == "remove" and len(pool.codes) > 1:
        gone = rng.choice(list(pool.codes), int(rng.integers(0, len(pool.codes))), replace=False).tolist()
        for name in gone:
            del pool.codes[name]
        return index.remove(gone)
    if kind == "again" and pool.codes:  # an id that was there comes back at the end of the pool
        name = next(iter(pool.codes))
        codes = pool.codes.pop(name)
        if pool.codes:
            index = index.remove([name])
            pool.codes[name] = codes
            return index.add([name], np.array([codes]), pool.shown([name]))
        pool.codes[name] = codes
    return index


KINDS = st.lists(st.sampled_from(["add", "remove", "again", "layer", "rebase"]), max_size=12)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 20), KINDS, st.integers(0, 2**31), st.booleans())
def test_any_sequence_of_changes_equals_an_index_built_anew(
    count: int, kinds: list[str], seed: int, shows: bool
) -> None:
    rng, pool = np.random.default_rng(seed), Pool(shows=shows)
    pool.fresh(rng, count)
    index: Index = pool.index().layer()
    for kind in kinds:
        if kind == "layer":
            index = index.layer()
        elif kind == "rebase":
            index = index.rebased(index.below.flat)  # type: ignore[attr-defined]
        else:
            index = change(index, pool, rng, kind)
    assert_same(index, pool.index())
    assert_same(index.flat, pool.index())


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(["add", "remove", "layer"]), min_size=1, max_size=6), st.integers(0, 2**31))
def test_a_search_gives_the_same_ids_and_scores(kinds: list[str], seed: int) -> None:
    rng, pool = np.random.default_rng(seed), Pool()
    index: Index = Index.build(*pool.fresh(rng, 30), SIZES, "tok").layer()
    for kind in kinds:
        index = index.layer() if kind == "layer" else change(index, pool, rng, kind)
    books = [torch.from_numpy(rng.normal(size=(size, 4))).float() for size in SIZES]
    queries = torch.from_numpy(rng.normal(size=(5, 4))).float()
    hits = [
        [as_hits(one, ranking) for ranking in search_items(GeometryScorer(books), one, queries, beam=3, k=9)]
        for one in (index, pool.index())
    ]
    assert hits[0] == hits[1]


def test_a_large_index_is_not_sorted_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rng, pool = np.random.default_rng(0), Pool()
    index = Index.build(*pool.fresh(rng, 50), SIZES, "tok")
    monkeypatch.setattr(index_module, "LAYERED", 50)
    grown = index.add(*pool.fresh(rng, 3)).remove(["item 7", "item 51"])
    for name in ("item 7", "item 51"):
        del pool.codes[name]
    assert grown.below is index  # type: ignore[attr-defined]
    assert_same(grown, pool.index())
    grown.save(tmp_path)
    assert_same(Index.load(tmp_path), pool.index())


def test_a_layer_refuses_what_an_index_refuses() -> None:
    pool = Pool()
    index = Index.build(*pool.fresh(np.random.default_rng(0), 4), SIZES, "tok").layer()
    codes = np.zeros((1, 3), int)
    grown = index.add(["new"], codes)
    for name in ("new", "item 0"):
        with pytest.raises(SiglumError, match="in the index already"):
            grown.add([name], codes)
    with pytest.raises(SiglumError, match="'nobody'"):
        grown.remove(["nobody"])
    with pytest.raises(SiglumError, match="empty"):
        grown.remove([*pool.codes, "new"])
    left = grown.remove(["item 0"])
    with pytest.raises(SiglumError, match="'item 0'"):
        left.remove(["item 0"])
    assert "item 0" not in left.ids
    with pytest.raises(SiglumError, match="one string"):
        left.remove("new")
