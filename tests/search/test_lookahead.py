"""Look-ahead: prefixes are kept for the best leaf below them, and ranked scores stay those of fusion."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from siglum.config import SearchConfig
from siglum.search.beam import beam_search, search_items
from siglum.search.lookahead import LookAhead, Potential, build_lookahead
from siglum.search.scorers import build_scorer
from siglum.types import SiglumError

SEEDS = st.integers(0, 10_000)


def found(system, search: SearchConfig, beam: int, k: int = 10, batch_size: int = 64, allowed=None):
    return search_items(
        build_scorer(search, system.codebooks, system.decoder),
        system.index,
        system.query,
        beam=beam,
        k=k,
        batch_size=batch_size,
        allowed=allowed,
        ahead=build_lookahead(search, system.codebooks),
    )


@settings(max_examples=10)
@given(seed=SEEDS, omega=st.sampled_from([0.5, 10.0, 200.0]))
def test_a_beam_as_wide_as_the_corpus_ranks_as_fusion_does(make_system, seed: int, omega: float) -> None:
    system = make_system(seed)
    plain = found(system, SearchConfig(omega=omega), beam=len(system.codes))
    ahead = found(system, SearchConfig(omega=omega, lookahead=True), beam=len(system.codes))
    for one, other in zip(plain, ahead, strict=True):
        np.testing.assert_allclose(one.score, other.score, atol=1e-4 * max(1.0, omega))


@settings(max_examples=10)
@given(seed=SEEDS, beam=st.integers(1, 6))
def test_geometry_with_look_ahead_is_the_exhaustive_scan(make_system, seed: int, beam: int) -> None:
    system = make_system(seed)
    search = SearchConfig(scorer="geometry", lookahead=True)
    hat = sum(book[torch.as_tensor(system.codes[:, level])] for level, book in enumerate(system.codebooks))
    gain = 2 * system.query @ hat.T - hat.square().sum(-1)
    for ranking, exact in zip(found(system, search, beam, k=1), gain, strict=True):
        assert abs(float(ranking.score[0]) - float(exact.max())) < 1e-4


@settings(max_examples=10)
@given(seed=SEEDS)
def test_every_level_keeps_the_prefix_of_the_best_leaf_of_geometry(make_system, seed: int) -> None:
    system = make_system(seed)
    search, trace = SearchConfig(scorer="geometry", lookahead=True), []
    ahead = LookAhead(system.codebooks, 1.0)
    beam_search(build_scorer(search, system.codebooks, None), system.index, system.query, 1, None, trace, ahead)
    best = ahead.begin(system.query, system.index).gain_QN.argmax(1)
    for live in trace:
        assert ((live.lo <= best[live.query]) & (best[live.query] < live.hi)).all()


@settings(max_examples=10)
@given(seed=SEEDS, batch=st.integers(1, 5))
def test_the_batch_size_does_not_matter(make_system, seed: int, batch: int) -> None:
    system, search = make_system(seed), SearchConfig(lookahead=True)
    for one, other in zip(found(system, search, 3), found(system, search, 3, batch_size=batch), strict=True):
        np.testing.assert_allclose(one.score, other.score, atol=1e-4)


@settings(max_examples=10)
@given(seed=SEEDS)
def test_items_a_filter_leaves_out_do_not_pull_the_beam(make_system, seed: int) -> None:
    system = make_system(seed)
    mask = np.random.default_rng(seed).random(len(system.codes)) < 0.3
    mask[0] = True
    search = SearchConfig(scorer="geometry", lookahead=True)
    hat = sum(book[torch.as_tensor(system.codes[:, level])] for level, book in enumerate(system.codebooks))
    gain = (2 * system.query @ hat.T - hat.square().sum(-1))[:, torch.as_tensor(mask)]
    rankings = found(system, search, beam=1, k=1, allowed=system.index.allow(mask))
    for ranking, exact in zip(rankings, gain, strict=True):
        assert mask[ranking.position[0]]
        assert abs(float(ranking.score[0]) - float(exact.max())) < 1e-4


def test_the_potential_of_no_candidates_is_empty() -> None:
    none = np.zeros(0, np.int64)
    assert len(Potential(np.zeros((1, 3))).best(none, none, none)) == 0


@pytest.mark.parametrize("wrong", [{"scorer": "decoder"}, {"scorer": "oracle"}, {"zscore": True}])
def test_what_look_ahead_cannot_go_with_is_refused(wrong: dict) -> None:
    with pytest.raises(SiglumError, match=r"look-ahead"):
        build_lookahead(SearchConfig(lookahead=True, **wrong), [])
    assert build_lookahead(SearchConfig(**wrong), []) is None


@given(seed=SEEDS, queries=st.integers(1, 3), rows=st.integers(1, 300), ranges=st.integers(1, 6))
def test_the_potential_of_a_range_is_its_highest_score(seed: int, queries: int, rows: int, ranges: int) -> None:
    rng = np.random.default_rng(seed)
    gain = rng.normal(size=(queries, rows)).astype(np.float32)
    ends = [np.unique(rng.integers(0, rows + 1, 2 * ranges)) for _ in range(queries)]
    places = [(query, lo, hi) for query, own in enumerate(ends) for lo, hi in zip(own, own[1:], strict=False)][::2]
    if places:
        best = Potential(gain).best(*np.array(places).T)
        assert best.tolist() == [float(gain[query, lo:hi].max()) for query, lo, hi in places]
