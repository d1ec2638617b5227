"""The one engine: who answers is told by the configuration and the query, and encoded queries are searched too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from siglum.config import SearchConfig
from siglum.generate.decoder import CodeDecoder
from siglum.search.engine import Engine
from siglum.search.query import EncodedQuery
from siglum.search.ragged import FastSearch
from siglum.types import SiglumError


@pytest.fixture
def system(make_system):
    return make_system(0, items=60, queries=5)


@pytest.fixture
def engine(system) -> Engine:
    return Engine(system.codebooks, system.decoder, system.index)


def assert_same(found, wanted) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.position.tolist() == other.position.tolist()
        np.testing.assert_allclose(one.score, other.score, atol=1e-4)


@pytest.mark.parametrize("scorer", ["fused", "decoder"])
@pytest.mark.parametrize("lookahead", [False, True])
def test_states_of_several_tokens_are_searched_as_the_vectors_they_came_from(system, engine, scorer, lookahead) -> None:
    config = SearchConfig(scorer=scorer, beam=9, lookahead=lookahead and scorer == "fused", omega=3.0)
    wanted = engine.rank(system.query, replace(config, engine="reference"), k=20)
    with torch.no_grad():
        states = system.decoder.encode(system.query)
    assert states.shape[1] == 2
    query = EncodedQuery(states, system.query)
    assert_same(engine.rank(query, config, k=20), wanted)
    padded = torch.cat([torch.randn(5, 3, states.shape[2]), states], 1)
    mask = torch.tensor([False] * 3 + [True] * 2).expand(5, 5)
    assert_same(engine.rank(EncodedQuery(padded, system.query, mask), config, k=20), wanted)
    other = engine.rank(EncodedQuery(padded, system.query), config, k=20)
    assert any(abs(a.score[0] - b.score[0]) > 1e-3 for a, b in zip(other, wanted, strict=True))


def test_histories_of_any_length_stand_in_one_batch(system, engine) -> None:
    states = torch.randn(5, 4, system.decoder.config.d_model, generator=torch.Generator().manual_seed(0))
    config, lengths = SearchConfig(scorer="decoder", beam=60), [1, 4, 2, 3, 4]
    mask = torch.arange(4) < torch.tensor(lengths)[:, None]
    together = engine.rank(EncodedQuery(states, None, mask), replace(config, batch_size=3), k=20)
    alone = [engine.rank(EncodedQuery(states[i : i + 1, :n]), config, k=20)[0] for i, n in enumerate(lengths)]
    assert_same(together, alone)


def test_the_decoder_and_geometry_may_read_different_vectors(system, engine) -> None:
    """The sum of what the decoder says of one vector and geometry of another, where nothing is pruned."""
    config, other = SearchConfig(beam=60, omega=2.0), system.query.flip(0).contiguous()
    both = engine.rank(EncodedQuery(system.query, other), config, k=60)
    said = engine.rank(system.query, replace(config, scorer="decoder"), k=60)
    near = engine.rank(other, replace(config, scorer="geometry"), k=60)
    for one, a, b in zip(both, said, near, strict=True):
        score = dict(zip(a.position.tolist(), a.score, strict=True))
        gain = dict(zip(b.position.tolist(), b.score, strict=True))
        np.testing.assert_allclose(one.score, [score[p] + 2 * gain[p] for p in one.position.tolist()], atol=1e-4)


def test_vectors_and_states_go_to_the_fast_engine_but_one_state_to_the_reference(system, engine) -> None:
    vectors, both = EncodedQuery.of(system.query), EncodedQuery(system.query.clone(), system.query)
    with torch.no_grad():
        states = EncodedQuery(system.decoder.encode(system.query), system.query)
    for asked in (vectors, both, states):
        assert isinstance(engine.fast(SearchConfig(), asked), FastSearch)
        for changed in ({"engine": "fast"}, {"precision": "bf16"}, {"mode": "scan-rescore"}, {"mode": "scan"}):
            wanted = engine.rank(vectors, SearchConfig(**changed), k=3)
            found = engine.rank(asked, SearchConfig(**changed), k=3)
            for one, other in zip(found, wanted, strict=True):
                np.testing.assert_allclose(one.score, other.score, atol=1e-3)
    lone = CodeDecoder(replace(system.decoder.config, soft_tokens=1), system.decoder.sizes, 6).eval()
    one_state, alone = EncodedQuery(states.states[:, :1], system.query), replace(engine, decoder=lone)
    assert alone.fast(SearchConfig(), one_state) is None
    with pytest.raises(SiglumError, match="as its decoder reads one soft token"):
        alone.rank(one_state, SearchConfig(engine="fast"), k=3)
    scan = SearchConfig(mode="scan")
    assert_same(alone.rank(one_state, scan, k=5), engine.rank(system.query, scan, k=5))


def test_what_a_query_lacks_is_told(system, engine) -> None:
    states = torch.randn(5, 3, system.decoder.config.d_model)
    for changed in ({}, {"scorer": "geometry"}, {"scorer": "oracle"}, {"mode": "scan"}, {"lookahead": True}):
        with pytest.raises(SiglumError, match="geometry needs a vector of every query"):
            engine.rank(EncodedQuery(states), SearchConfig(**changed), k=3)
    alone = SearchConfig(scorer="decoder")
    assert len(engine.rank(EncodedQuery(states), alone, k=3)) == 5
    for wrong, words in (
        (EncodedQuery(states * torch.nan), "finite real numbers"),
        (EncodedQuery(states[0, 0]), "finite real numbers"),
        (EncodedQuery(states, system.query[:2]), "5 queries have 2 vectors"),
        (EncodedQuery(states, system.query[:, :2]), r"shape \(Q, 6\)"),
        (EncodedQuery(states, None, torch.ones(5, 2, dtype=torch.bool)), "a truth value for each"),
        (EncodedQuery(states, None, torch.zeros(5, 3, dtype=torch.bool)), "a truth value for each"),
        (EncodedQuery(states[..., :3]), "reads states of 16 numbers"),
    ):
        with pytest.raises(SiglumError, match=words):
            engine.rank(wrong, alone, k=3)
    lone = CodeDecoder(replace(system.decoder.config, soft_tokens=1), system.decoder.sizes, 6).eval()
    with pytest.raises(SiglumError, match="reads one state of 16 numbers"):
        replace(engine, decoder=lone).rank(EncodedQuery(states), alone, k=3)
    assert len(replace(engine, decoder=lone).rank(EncodedQuery(states[:, :1]), alone, k=3)) == 5


def test_the_prior_of_a_sequence_is_that_of_a_vector(system, engine) -> None:
    system.decoder.config = replace(system.decoder.config, null_queries=0.1)
    config = SearchConfig(beam=9, prior=0.5)
    with torch.no_grad():
        query = EncodedQuery(system.decoder.encode(system.query), system.query)
    assert_same(engine.rank(query, config, k=9), engine.rank(system.query, replace(config, engine="reference"), k=9))


def test_codes_without_vectors_are_searched_by_the_decoder_alone(system, engine) -> None:
    config = SearchConfig(scorer="decoder", beam=9)
    bare = replace(engine, codebooks=[])
    assert_same(bare.rank(system.query, config, k=9), engine.rank(system.query, config, k=9))
    with pytest.raises(SiglumError, match=r"shape \(Q, 6\)"):
        bare.rank(system.query[:, :2], config, k=9)
