"""Beam search: exhaustive where the beam is wide, equal to the reference where it is not, exact in its ties."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import slow_search as reference
from siglum.index import Index
from siglum.search.beam import Ranking, beam_search, best_per_query, search_items
from siglum.search.hits import as_hits
from siglum.search.scorers import DecoderScorer, GeometryScorer, OracleScorer, Scorer, SumScorer
from siglum.types import SiglumError

TOLERANCE = 1e-4
SEEDS = st.integers(0, 10_000)
OMEGAS = st.sampled_from([0.0, 0.5, 10.0, 50.0])
NORMALISATIONS = st.sampled_from(["level", "joint", "children"])


def fused(system, omega: float, normalisation: str = "level") -> Scorer:
    return SumScorer([DecoderScorer(system.decoder, normalisation), GeometryScorer(system.codebooks, omega)])


def by_position(ranking: Ranking) -> dict[int, float]:
    return dict(zip(ranking.position.tolist(), ranking.score.tolist(), strict=True))


def assert_same(found: Ranking, wanted: Ranking) -> None:
    """Equal to the tolerance, in score and order: items may change places only if their scores are that close."""
    assert len(found) == len(wanted)
    np.testing.assert_allclose(found.score, wanted.score, atol=TOLERANCE)
    scores = by_position(wanted)
    assert set(scores) == set(found.position.tolist())
    np.testing.assert_allclose([scores[p] for p in found.position.tolist()], wanted.score, atol=TOLERANCE)


@settings(max_examples=20)
@given(seed=SEEDS, omega=OMEGAS, kind=st.sampled_from(["decoder", "fused", "geometry", "oracle"]))
def test_a_beam_as_wide_as_the_corpus_scores_every_item(make_system, seed: int, omega: float, kind: str) -> None:
    system = make_system(seed)
    rebuilt = system.reconstructions()
    gain, inner = 2 * system.query @ rebuilt.T - rebuilt.square().sum(1), system.query @ rebuilt.T
    if kind == "oracle":
        scorer, wanted = OracleScorer(system.codebooks), inner
    elif kind == "geometry":
        scorer, wanted = GeometryScorer(system.codebooks), gain
    elif kind == "decoder":
        scorer, wanted = DecoderScorer(system.decoder), system.log_probability()
    else:
        scorer, wanted = fused(system, omega), system.log_probability() + omega * gain
    num = len(system.index)
    for ranking, scores in zip(
        search_items(scorer, system.index, system.query, beam=num, k=num), wanted.numpy(), strict=True
    ):
        assert sorted(ranking.position.tolist()) == list(range(num))
        np.testing.assert_allclose(ranking.score, scores[ranking.position], atol=TOLERANCE)
        np.testing.assert_allclose(ranking.score, np.sort(scores)[::-1], atol=TOLERANCE)


@given(seed=SEEDS, omega=OMEGAS, beam=st.integers(1, 8))
def test_fused_scores_telescope(make_system, seed: int, omega: float, beam: int) -> None:
    system = make_system(seed)
    rebuilt, log_prob = system.reconstructions(), system.log_probability()
    gain = 2 * system.query @ rebuilt.T - rebuilt.square().sum(1)
    wanted = (log_prob + omega * gain).numpy()
    rankings = search_items(fused(system, omega), system.index, system.query, beam=beam, k=99)
    for ranking, scores in zip(rankings, wanted, strict=True):
        assert len(ranking) >= 1
        np.testing.assert_allclose(ranking.score, scores[ranking.position], atol=TOLERANCE)


def reference_ranking(system, score: reference.PrefixScore, beam: int, positions: list[int]) -> Ranking:
    """Search the codes at these positions by the reference; assume away examples that a rounding error decides."""
    seen: dict[int, dict[tuple[int, ...], float]] = defaultdict(dict)

    def noted(prefix: tuple[int, ...], siblings: list[tuple[int, ...]]) -> float:
        seen[len(prefix)][prefix] = score(prefix, siblings)
        return seen[len(prefix)][prefix]

    codes = [tuple(row) for row in system.codes[positions].tolist()]
    leaves = reference.reference_search(codes, noted, beam)
    for scores in seen.values():
        ordered = sorted(scores.values(), reverse=True)
        assume(len(ordered) <= beam or ordered[beam - 1] - ordered[beam] > 1e-3)
    owners = [(p, value) for leaf, value in leaves for p, code in zip(positions, codes, strict=True) if code == leaf]
    position, value = (np.array(column) for column in zip(*owners, strict=True))
    return Ranking(position, np.full(len(position), -1), value)


@settings(max_examples=25)
@given(
    seed=SEEDS,
    beam=st.integers(1, 9),
    omega=OMEGAS,
    normalisation=NORMALISATIONS,
    share=st.sampled_from([0.3, 0.6, 1.0]),
)
def test_batched_beam_equals_the_reference(
    make_system, seed: int, beam: int, omega: float, normalisation: str, share: float
) -> None:
    system = make_system(seed, items=16, queries=2)
    mask = np.random.default_rng(seed).random(len(system.index)) < share
    mask[seed % len(mask)] = True
    found = search_items(
        fused(system, omega, normalisation),
        system.index,
        system.query,
        beam=beam,
        k=99,
        allowed=None if share == 1.0 else system.index.allow(mask),
    )
    positions = np.flatnonzero(mask).tolist() if share < 1.0 else list(range(len(mask)))
    for query, ranking in zip(system.query, found, strict=True):
        score = reference.fused_score(query, system.decoder, system.codebooks, omega, normalisation)
        assert_same(ranking, reference_ranking(system, score, beam, positions))


@given(seed=SEEDS, beam=st.integers(1, 12), sizes=st.tuples(st.integers(1, 8), st.integers(1, 8)), omega=OMEGAS)
def test_batch_sizes_agree(make_system, seed: int, beam: int, sizes: tuple[int, int], omega: float) -> None:
    system = make_system(seed, items=40, queries=7)
    one, two = (
        search_items(fused(system, omega), system.index, system.query, beam=beam, k=20, batch_size=size)
        for size in sizes
    )
    for left, right in zip(one, two, strict=True):
        assert_same(left, right)


def whole_numbers(system, seed: int) -> None:
    """Give the system queries and codewords of small whole numbers: sums are exact, and many are equal."""
    generator = torch.Generator().manual_seed(seed)
    system.codebooks = [torch.randint(-1, 2, book.shape, generator=generator).float() for book in system.codebooks]
    system.query = torch.randint(-1, 2, system.query.shape, generator=generator).float()


@given(seed=SEEDS, beam=st.integers(1, 12), oracle=st.booleans())
def test_ties_are_broken_by_code_order(make_system, seed: int, beam: int, oracle: bool) -> None:
    system = make_system(seed, items=40, dim=2)
    whole_numbers(system, seed)
    scorer = OracleScorer(system.codebooks) if oracle else GeometryScorer(system.codebooks)
    codes = [tuple(row) for row in system.codes.tolist()]
    for query, ranking in zip(
        system.query, search_items(scorer, system.index, system.query, beam=beam, k=99), strict=True
    ):
        score = (reference.oracle_score if oracle else reference.geometry_score)(query, system.codebooks)
        leaves = reference.reference_search(codes, score, beam)
        wanted = [(p, value) for leaf, value in leaves for p, code in enumerate(codes) if code == leaf]
        assert [*zip(ranking.position.tolist(), ranking.score.tolist(), strict=True)] == wanted


def test_equal_codewords_give_the_smaller_code_first() -> None:
    book = torch.tensor([[1.0, 0.0]]).repeat(5, 1)
    index = Index.build(list("edcba"), np.array([[4], [3], [2], [1], [0]]), (5,), "tok")
    for beam, wanted in ((1, "a"), (3, "abc"), (5, "abcde")):
        ranking = search_items(OracleScorer([book]), index, torch.tensor([[1.0, 0.0]]), beam=beam, k=9)[0]
        assert "".join(hit.item_id for hit in as_hits(index, ranking)) == wanted


def test_items_of_one_leaf_stand_in_pool_order_or_by_similarity() -> None:
    codes = np.array([[1, 0], [0, 1], [1, 0], [1, 0]])
    index = Index.build(["a", "b", "c", "d"], codes, (2, 2), "tok")
    books = [torch.tensor([[-1.0, 0.0], [1.0, 0.0]]), torch.zeros(2, 2)]
    query = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    plain = search_items(OracleScorer(books), index, query[:1], beam=4, k=9)[0]
    assert plain.position.tolist() == [0, 2, 3, 1]
    item = torch.tensor([[0.1, 0.3], [9.0, 9.0], [0.3, 0.2], [0.2, 0.3]])
    found = search_items(OracleScorer(books), index, query, beam=4, k=9, item_ND=item)
    assert found[0].position.tolist() == [2, 3, 0, 1]
    # The second query is at right angles to all codewords: leaves in code order, then similarity, then pool order.
    assert found[1].position.tolist() == [1, 0, 3, 2]
    for ranking in found:
        assert index.order[ranking.row].tolist() == ranking.position.tolist()
    cut = search_items(OracleScorer(books), index, query[:1], beam=4, k=2, item_ND=item)[0]
    assert cut.position.tolist() == [2, 3]


@given(seed=SEEDS, beam=st.integers(1, 30), k=st.integers(1, 60))
def test_hits_are_real_distinct_and_ranked(make_system, seed: int, beam: int, k: int) -> None:
    system = make_system(seed, items=20)
    leaves = len(np.unique(system.codes, axis=0))
    for ranking in search_items(fused(system, 10.0), system.index, system.query, beam=beam, k=k):
        hits = as_hits(system.index, ranking)
        names = [hit.item_id for hit in hits]
        assert len(set(names)) == len(names) <= k
        assert len({hit.codes for hit in hits}) <= min(beam, leaves)
        assert beam < leaves or len(hits) == min(k, 20)
        assert [hit.rank for hit in hits] == list(range(1, len(hits) + 1))
        assert all(a.score >= b.score for a, b in zip(hits, hits[1:], strict=False))
        for hit in hits:
            assert list(hit.codes) == system.codes[int(hit.item_id[1:])].tolist()


def test_k_beyond_the_beam_gives_fewer_hits(make_system) -> None:
    system = make_system(1, items=24)
    ranking = search_items(GeometryScorer(system.codebooks), system.index, system.query, beam=2, k=24)[0]
    codes = {tuple(system.codes[p]) for p in ranking.position.tolist()}
    assert len(codes) == 2
    assert len(ranking) == sum(tuple(row) in codes for row in system.codes)


@given(seed=SEEDS, beam=st.integers(1, 9), share=st.sampled_from([0.1, 0.5, 0.9]))
def test_a_filter_equals_an_index_of_only_those_items(make_system, seed: int, beam: int, share: float) -> None:
    system = make_system(seed, items=30)
    mask = np.random.default_rng(seed).random(30) < share
    mask[seed % 30] = True
    kept = np.flatnonzero(mask)
    small = Index.build([f"x{i}" for i in kept], system.codes[kept], system.index.sizes, "tok")
    scorer = fused(system, 10.0, "children")
    for within in (mask, [f"x{i}" for i in kept]):
        allowed = system.index.allow(within)
        found = search_items(scorer, system.index, system.query, beam=beam, k=99, allowed=allowed)
        alone = search_items(scorer, small, system.query, beam=beam, k=99)
        for left, right in zip(found, alone, strict=True):
            assert_same(left, Ranking(kept[right.position], right.row, right.score))


@pytest.mark.parametrize("kind", ["decoder", "geometry", "oracle", "fused"])
def test_a_filter_that_leaves_nothing_gives_nothing(make_system, kind: str) -> None:
    system = make_system(0)
    scorer = {
        "decoder": DecoderScorer(system.decoder),
        "geometry": GeometryScorer(system.codebooks),
        "oracle": OracleScorer(system.codebooks),
        "fused": fused(system, 1.0),
    }[kind]
    allowed = system.index.allow(np.zeros(len(system.index), bool))
    found = search_items(scorer, system.index, system.query, beam=3, k=5, allowed=allowed)
    assert [len(ranking) for ranking in found] == [0, 0, 0]
    assert [as_hits(system.index, ranking) for ranking in found] == [[], [], []]


def test_fewer_items_than_the_beam(make_system) -> None:
    system = make_system(0, items=1)
    for ranking in search_items(fused(system, 10.0), system.index, system.query, beam=50, k=50):
        assert ranking.position.tolist() == [0]


def test_no_queries_give_no_rankings(make_system) -> None:
    system = make_system(0)
    assert search_items(fused(system, 1.0), system.index, system.query[:0], beam=3, k=3) == []


@pytest.mark.parametrize("kind", ["decoder", "geometry", "oracle"])
def test_a_query_that_is_not_a_number_is_refused(make_system, kind: str) -> None:
    system = make_system(0)
    system.query[1, 2] = torch.nan
    scorer = {
        "decoder": DecoderScorer(system.decoder),
        "geometry": GeometryScorer(system.codebooks),
        "oracle": OracleScorer(system.codebooks),
    }[kind]
    with pytest.raises(SiglumError, match="NaN"):
        search_items(scorer, system.index, system.query, beam=3, k=3)


@pytest.mark.parametrize(
    ("changed", "word"), [({"beam": 0}, "beam"), ({"k": 0}, "k must"), ({"batch_size": 0}, "batch")]
)
def test_a_beam_a_depth_and_a_batch_of_nothing_are_refused(make_system, changed: dict[str, int], word: str) -> None:
    system = make_system(0)
    with pytest.raises(SiglumError, match=word):
        search_items(OracleScorer(system.codebooks), system.index, system.query, **{"beam": 3, "k": 3, **changed})


@given(seed=SEEDS, beam=st.integers(1, 6), queries=st.integers(1, 5))
def test_best_per_query_equals_sorting(seed: int, beam: int, queries: int) -> None:
    rng = np.random.default_rng(seed)
    query = np.sort(rng.integers(0, queries, rng.integers(1, 40)))
    score = rng.integers(0, 5, len(query)).astype(float)
    wanted = []
    for one in range(queries):
        places = np.flatnonzero(query == one)
        wanted += sorted(sorted(places.tolist(), key=lambda place: (-score[place], place))[:beam])
    assert best_per_query(query, score, beam, queries).tolist() == wanted


def test_the_trace_holds_the_live_prefixes_of_every_level(make_system) -> None:
    system = make_system(3)
    trace = []
    last = beam_search(OracleScorer(system.codebooks), system.index, system.query, 2, trace=trace)
    assert len(trace) == system.index.levels
    assert all(np.array_equal(a, b) for a, b in zip(trace[-1], last, strict=True))
    for depth, live in enumerate(trace, start=1):
        assert np.bincount(live.query).max() <= 2
        for lo, hi in zip(live.lo, live.hi, strict=True):
            assert len({tuple(row[:depth]) for row in system.index.codes(np.arange(lo, hi)).tolist()}) == 1
