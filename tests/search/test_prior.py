"""The prior: minus what the decoder believes without a query, worked out once for each distinct prefix."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from siglum.config import SearchConfig, from_dict
from siglum.search.beam import Beams, beam_search, search_items
from siglum.search.prior import PriorTable
from siglum.search.query import EncodedQuery
from siglum.search.scorers import DecoderScorer, GeometryScorer, PriorScorer, Scorer, SumScorer, build_scorer
from siglum.types import SiglumError

SEEDS = st.integers(0, 10_000)
TOLERANCE = 1e-4


def believed(system) -> torch.Tensor:
    """Return log P(codes | zero query) of every item by teacher forcing (N,)."""
    codes = torch.as_tensor(system.codes)
    with torch.no_grad():
        logits = system.decoder(torch.zeros(len(codes), system.query.shape[1]), codes)
    return sum(x.log_softmax(-1).gather(1, codes[:, [level]])[:, 0] for level, x in enumerate(logits))


def with_null_queries(system):
    system.decoder.config = replace(system.decoder.config, null_queries=0.1)
    return system


@settings(max_examples=10)
@given(seed=SEEDS, weight=st.sampled_from([0.25, 1.0, 3.0]))
def test_scores_along_a_path_add_up_to_minus_the_weighted_log_probability(
    make_system, seed: int, weight: float
) -> None:
    system = make_system(seed, queries=24)
    codes, rows, scorer = torch.as_tensor(system.codes), torch.arange(24), PriorScorer(system.decoder, weight)
    state, total = scorer.begin(EncodedQuery.of(system.query)), torch.zeros(24)
    for level in range(codes.shape[1]):
        total += scorer.score(state, level, rows, codes[:, level])
        if level + 1 < codes.shape[1]:
            state = scorer.advance(state, level, rows, codes[:, level])
    torch.testing.assert_close(total, -weight * believed(system), atol=TOLERANCE, rtol=0)
    assert float(total.min()) > 0


@pytest.mark.parametrize("beam", [2, 99])
def test_a_prefix_that_several_queries_share_is_worked_out_once(
    make_system, monkeypatch: pytest.MonkeyPatch, beam: int
) -> None:
    system = make_system(0, items=40, queries=6)
    step, rows = system.decoder.step, []

    def counted(state, token_R, level):
        rows.append(len(state.query_R))
        return step(state, token_R, level)

    monkeypatch.setattr(system.decoder, "step", counted)
    trace: list[Beams] = []
    # Geometry makes the queries' beams differ, so that they share some prefixes and not others.
    scorer = SumScorer([PriorScorer(system.decoder, 1.0), GeometryScorer(system.codebooks, 20.0)])
    beam_search(scorer, system.index, system.query, beam, trace=trace)
    distinct = [len(set(zip(live.lo.tolist(), live.hi.tolist(), strict=True))) for live in trace[:-1]]
    assert rows == [1, *distinct]
    assert rows[-1] < len(trace[-2].query), "several queries kept the same prefix"


@settings(max_examples=10)
@given(seed=SEEDS, prior=st.sampled_from([0.5, 1.0, 2.0]), scorer=st.sampled_from(["fused", "decoder"]))
def test_a_beam_as_wide_as_the_corpus_scores_every_item(make_system, seed: int, prior: float, scorer: str) -> None:
    system = with_null_queries(make_system(seed))
    config = SearchConfig(scorer=scorer, omega=5.0, prior=prior)
    wanted = system.log_probability() - prior * believed(system)
    if scorer == "fused":
        rebuilt = system.reconstructions()
        wanted = wanted + 5.0 * (2 * system.query @ rebuilt.T - rebuilt.square().sum(1))
    num, built = len(system.index), build_scorer(config, system.codebooks, system.decoder)
    rankings = search_items(built, system.index, system.query, beam=num, k=num)
    for ranking, scores in zip(rankings, wanted.numpy(), strict=True):
        assert sorted(ranking.position.tolist()) == list(range(num))
        np.testing.assert_allclose(ranking.score, scores[ranking.position], atol=TOLERANCE)
        np.testing.assert_allclose(ranking.score, np.sort(scores)[::-1], atol=TOLERANCE)


@settings(max_examples=10)
@given(seed=SEEDS, beam=st.integers(1, 12), size=st.integers(1, 6))
def test_results_do_not_depend_on_the_batch_size(make_system, seed: int, beam: int, size: int) -> None:
    system = with_null_queries(make_system(seed, items=40, queries=7))
    scorer = build_scorer(SearchConfig(omega=5.0, prior=1.0), system.codebooks, system.decoder)
    one, two = (
        search_items(scorer, system.index, system.query, beam=beam, k=20, batch_size=batch) for batch in (7, size)
    )
    for left, right in zip(one, two, strict=True):
        np.testing.assert_allclose(left.score, right.score, atol=TOLERANCE)
        assert set(left.position.tolist()) == set(right.position.tolist())


def test_no_queries_and_a_filter_that_leaves_nothing_give_nothing(make_system) -> None:
    system, scorer = make_system(0), PriorScorer(make_system(0).decoder, 1.0)
    assert search_items(scorer, system.index, system.query[:0], beam=3, k=3) == []
    nothing = system.index.allow(np.zeros(len(system.index), bool))
    found = search_items(scorer, system.index, system.query, beam=3, k=3, allowed=nothing)
    assert [len(ranking) for ranking in found] == [0, 0, 0]


def test_build_scorer_adds_the_prior_where_the_decoder_speaks(make_system) -> None:
    system = with_null_queries(make_system(0))

    def build(**fields: object) -> Scorer:
        return build_scorer(SearchConfig(**fields), system.codebooks, system.decoder)

    decoder, prior = DecoderScorer(system.decoder), PriorScorer(system.decoder, 0.5)
    assert build(prior=0.5, omega=4.0).parts == [decoder, prior, GeometryScorer(system.codebooks, 4.0)]
    assert build(scorer="decoder", prior=0.5).parts == [decoder, prior]
    assert build(scorer="decoder", prior=0.0) == decoder
    assert isinstance(build(scorer="geometry", prior=0.5), GeometryScorer)


def test_a_decoder_that_never_saw_an_empty_query_has_no_prior(make_system) -> None:
    system = make_system(0)
    with pytest.raises(SiglumError) as caught:
        build_scorer(SearchConfig(prior=1.0), system.codebooks, system.decoder)
    assert str(caught.value) == "search.prior needs a decoder trained with decoder.null_queries above 0."
    assert build_scorer(SearchConfig(scorer="geometry", prior=1.0), system.codebooks, system.decoder)
    with pytest.raises(SiglumError, match=r"SearchConfig\.prior is -1\.0, but must be at least 0"):
        from_dict(SearchConfig, {"prior": -1.0})


@settings(max_examples=10)
@given(seed=SEEDS, level=st.integers(0, 3))
def test_a_table_keeps_what_it_was_told_and_fills_in_the_rest(make_system, seed: int, level: int) -> None:
    system = make_system(seed)
    wanted = believed(system).numpy()[system.index.order]
    table = PriorTable(system.index)
    assert not table.known(np.arange(len(system.index)), 3).any()
    told = np.array([2, 5])
    table.put(told, level, np.full((2, 4 - level), -7.0))
    assert table.known(told, level).all()
    assert not table.known(told, level - 1).any()
    assert not table.complete
    table.fill(system.decoder)
    assert table.complete
    codes = system.index.codes()
    taken = (codes[:, None] == codes[told]).all(2).any(1) if level == 0 else np.zeros(len(codes), bool)
    np.testing.assert_allclose(table.log_p_NL[~taken].sum(1), wanted[~taken], atol=TOLERANCE)
    assert (table.log_p_NL[told[taken[told] & (system.index.shared[told] < 4)]] == -7.0).all()
