"""The reference search is what the fast one is held against, so it is checked against plain arithmetic."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slow_search import decoder_score, fused_score, geometry_score, oracle_score, reference_search


def test_a_narrow_beam_loses_what_a_wide_one_finds() -> None:
    """The best leaf lies under the worse first token."""
    scores = {(0,): 1.0, (1,): 2.0, (0, 0): 9.0, (1, 0): 3.0}
    codes = [(0, 0), (1, 0)]
    assert reference_search(codes, lambda prefix, siblings: scores[prefix], beam=1) == [((1, 0), 3.0)]
    assert reference_search(codes, lambda prefix, siblings: scores[prefix], beam=2) == [((0, 0), 9.0), ((1, 0), 3.0)]


def test_only_legal_prefixes_are_scored_with_their_siblings() -> None:
    codes = [(0, 1), (0, 3), (2, 2)]
    seen = {}
    reference_search(codes, lambda prefix, siblings: seen.setdefault(prefix, 0.0) or len(siblings), beam=9)
    assert set(seen) == {(0,), (2,), (0, 1), (0, 3), (2, 2)}
    found = reference_search(codes, lambda prefix, siblings: len(siblings), beam=9)
    assert found == [((0, 1), 2.0), ((0, 3), 2.0), ((2, 2), 1.0)]


@settings(max_examples=10)
@given(seed=st.integers(0, 1000))
def test_scores_of_whole_codes(make_system, seed: int) -> None:
    system = make_system(seed, items=6, queries=1)
    query, rebuilt, log_prob = system.query[0], system.reconstructions(), system.log_probability()[0]
    for place, row in enumerate(system.codes.tolist()):
        code, distance = tuple(row), float((query - rebuilt[place]).square().sum())
        assert oracle_score(query, system.codebooks)(code, []) == pytest.approx(float(query @ rebuilt[place]), abs=1e-5)
        gain = geometry_score(query, system.codebooks)(code, [])
        assert gain == pytest.approx(float(query @ query) - distance, abs=1e-5)
        assert decoder_score(query, system.decoder)(code, [code]) == pytest.approx(float(log_prob[place]), abs=1e-4)
        both = fused_score(query, system.decoder, system.codebooks, 7.0)(code, [code])
        assert both == pytest.approx(float(log_prob[place]) + 7.0 * gain, abs=1e-4)


@pytest.mark.parametrize("normalisation", ["level", "joint", "children"])
def test_probabilities_of_all_codes(make_system, normalisation: str) -> None:
    """Over every possible code `level` sums to 1; over the trie `children` does, and `joint` stays below."""
    system = make_system(0, items=9, sizes=(2, 3, 2), queries=1)
    every = list(itertools.product(range(2), range(3), range(2)))
    codes = every if normalisation == "level" else [tuple(row) for row in system.codes.tolist()]
    score = decoder_score(system.query[0], system.decoder, normalisation)
    total = math.fsum(math.exp(value) for _, value in reference_search(codes, score, beam=99))
    if normalisation == "joint":
        assert 0 < total < 0.9
    else:
        assert total == pytest.approx(1.0, abs=1e-5)


def test_ties_stand_in_code_order() -> None:
    codes = [(1, 1), (0, 1), (1, 0)]
    assert [leaf for leaf, _ in reference_search(codes, lambda p, s: 0.0, beam=2)] == [(0, 1), (1, 0)]


def test_the_geometric_score_is_a_drop_in_squared_distance() -> None:
    books = [torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([[0.0, 1.0]])]
    query = torch.tensor([1.0, 1.0])
    assert geometry_score(query, books)((0,), []) == 1.0
    assert geometry_score(query, books)((0, 0), []) == 2.0
    assert geometry_score(query, books)((1, 0), []) == -3.0
