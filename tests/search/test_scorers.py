"""What scorers add up to: distances, inner products, log-probabilities, and their sum."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from siglum.config import SearchConfig
from siglum.search.beam import search_items
from siglum.search.query import EncodedQuery
from siglum.search.scorers import (
    DecoderScorer,
    GeometryScorer,
    OracleScorer,
    Scorer,
    SumScorer,
    build_scorer,
    geometric_gain,
)
from siglum.types import SiglumError

SEEDS = st.integers(0, 10_000)


def along(scorer: Scorer, query_QD: torch.Tensor, codes_QL: torch.Tensor) -> torch.Tensor:
    """Return the score of every step along one path a query (Q, L)."""
    state, rows, steps = scorer.begin(EncodedQuery.of(query_QD)), torch.arange(len(query_QD)), []
    for level in range(codes_QL.shape[1]):
        steps.append(scorer.score(state, level, rows, codes_QL[:, level]))
        state = scorer.advance(state, level, rows, codes_QL[:, level])
    return torch.stack(steps, 1)


def close(left: torch.Tensor, right: torch.Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(left, right, atol=tolerance, rtol=0)


@given(seed=SEEDS)
def test_the_gain_is_a_drop_in_squared_distance(make_system, seed: int) -> None:
    system = make_system(seed)
    residual, book = system.query, system.codebooks[0]
    distance = (residual[:, None] - book).square().sum(-1)
    close(geometric_gain(residual, book), residual.square().sum(-1, keepdim=True) - distance)


@given(seed=SEEDS)
def test_oracle_and_geometry_differ_by_the_norm_of_the_reconstruction(make_system, seed: int) -> None:
    """2 <q, x̂_l> - geometry = |x̂_l|^2 after every level: what the geometry knows and the oracle does not."""
    system = make_system(seed)
    codes = torch.as_tensor(system.codes[:3])
    partial = torch.stack([book[codes[:, level]] for level, book in enumerate(system.codebooks)], 1).cumsum(1)
    oracle = along(OracleScorer(system.codebooks), system.query, codes).cumsum(1)
    geometry = along(GeometryScorer(system.codebooks), system.query, codes).cumsum(1)
    close(2 * oracle - geometry, partial.square().sum(-1))
    close(oracle, (system.query[:, None] * partial).sum(-1))


@pytest.mark.parametrize("omega", [0.25, 10.0])
def test_omega_weighs_the_geometry(make_system, omega: float) -> None:
    system, codes = make_system(0), torch.as_tensor(make_system(0).codes[:3])
    plain = along(GeometryScorer(system.codebooks), system.query, codes)
    close(along(GeometryScorer(system.codebooks, omega), system.query, codes), omega * plain)


def test_levels_before_the_first_add_nothing(make_system) -> None:
    system, codes = make_system(0), torch.as_tensor(make_system(0).codes[:3])
    late = along(GeometryScorer(system.codebooks, first_geometric=2), system.query, codes)
    assert not late[:, :2].any()
    close(late[:, 2:], along(GeometryScorer(system.codebooks), system.query, codes)[:, 2:])


def test_zscore_standardises_over_the_whole_codebook(make_system) -> None:
    system, codes = make_system(0), torch.as_tensor(make_system(0).codes[:3])
    found = along(GeometryScorer(system.codebooks, 3.0, zscore=True), system.query, codes)
    residual = system.query
    for level, book in enumerate(system.codebooks):
        for row in range(3):
            gain = torch.stack([2 * residual[row] @ word - word @ word for word in book])
            mean = gain.mean()
            spread = (gain - mean).square().mean().sqrt()
            close(found[row, level], 3.0 * (gain[codes[row, level]] - mean) / spread)
        residual = residual - book[codes[:, level]]


def test_zscore_of_equal_codewords_is_zero() -> None:
    book = torch.ones(4, 2)
    scores = GeometryScorer([book], zscore=True).score(torch.ones(1, 2), 0, torch.zeros(4).long(), torch.arange(4))
    assert not scores.any()


@settings(max_examples=10)
@given(seed=SEEDS, normalisation=st.sampled_from(["level", "joint"]))
def test_the_decoder_scorer_equals_teacher_forcing(make_system, seed: int, normalisation: str) -> None:
    system = make_system(seed)
    codes = torch.as_tensor(system.codes[:3])
    with torch.no_grad():
        if normalisation == "joint":
            joint = system.decoder.joint_logits(system.query, codes).log_softmax(-1)
            wanted = joint.gather(2, system.decoder.token_ids(codes)[:, :, None])[:, :, 0]
        else:
            levels = system.decoder(system.query, codes)
            wanted = torch.stack([x.log_softmax(-1)[range(3), codes[:, i]] for i, x in enumerate(levels)], 1)
    close(along(DecoderScorer(system.decoder, normalisation), system.query, codes), wanted, 1e-4)


def test_children_share_their_parents_probability(make_system) -> None:
    system = make_system(0)
    scorer = DecoderScorer(system.decoder, "children")
    parent, token = torch.tensor([0, 0, 1, 2, 2, 2]), torch.tensor([0, 2, 1, 0, 1, 2])
    scores = scorer.score(scorer.begin(EncodedQuery.of(system.query)), 0, parent, token)
    close(torch.zeros(3).index_add_(0, parent, scores.exp()), torch.ones(3))
    assert float(scores[2].detach()) == 0.0
    level = DecoderScorer(system.decoder)
    free = level.score(level.begin(EncodedQuery.of(system.query)), 0, parent, token)
    close(scores[0] - scores[1], free[0] - free[1])


def test_the_sum_scorer_adds(make_system) -> None:
    system, codes = make_system(0), torch.as_tensor(make_system(0).codes[:3])
    parts = [DecoderScorer(system.decoder), GeometryScorer(system.codebooks, 2.0), OracleScorer(system.codebooks)]
    close(along(SumScorer(parts), system.query, codes), sum(along(part, system.query, codes) for part in parts))


def test_build_scorer_gives_what_the_config_names(make_system) -> None:
    system = make_system(0)

    def build(**fields: object) -> Scorer:
        return build_scorer(SearchConfig(**fields), system.codebooks, system.decoder, first_geometric=1)

    assert isinstance(build(scorer="oracle"), OracleScorer)
    assert build(scorer="geometry", omega=9.0) == GeometryScorer(system.codebooks, first_geometric=1)
    assert build(scorer="decoder", normalisation="joint") == DecoderScorer(system.decoder, "joint")
    both = build(omega=4.0, zscore=True, normalisation="children")
    assert both.parts == [DecoderScorer(system.decoder, "children"), GeometryScorer(system.codebooks, 4.0, True, 1)]


def test_omega_zero_is_the_decoder_alone(make_system) -> None:
    system = make_system(0)
    found = [
        search_items(
            build_scorer(SearchConfig(scorer=kind, omega=0.0), system.codebooks, system.decoder),
            system.index,
            system.query,
            beam=4,
            k=9,
        )
        for kind in ("fused", "decoder")
    ]
    for left, right in zip(*found, strict=True):
        assert left.position.tolist() == right.position.tolist()
        assert left.score.tolist() == right.score.tolist()


def test_unknown_names_and_a_missing_decoder_are_refused(make_system) -> None:
    system = make_system(0)
    with pytest.raises(SiglumError, match=r"'dense', but must be one of: fused, decoder, geometry, oracle\."):
        build_scorer(SearchConfig(scorer="dense"), system.codebooks, system.decoder)  # type: ignore[arg-type]
    with pytest.raises(SiglumError, match="needs a trained decoder"):
        build_scorer(SearchConfig(), system.codebooks, None)
    with pytest.raises(SiglumError, match="level, joint, children"):
        DecoderScorer(system.decoder, "global").begin(EncodedQuery.of(system.query))
