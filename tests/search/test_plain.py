"""Beam search over plain arrays with a function for a scorer: the same as the slow search, with refusals in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import siglum
from siglum.search.query import EncodedQuery
from siglum.search.scorers import GeometryScorer, OracleScorer
from siglum.types import SiglumError
from slow_search import reference_search

SIZES, DIM = (3, 5, 4), 6


def case(seed: int, items: int = 30, queries: int = 3) -> tuple[Tensor, list[Tensor], Tensor]:
    draw = torch.Generator().manual_seed(seed)
    codes = torch.stack([torch.randint(size, (items,), generator=draw) for size in SIZES], 1)
    books = [torch.randn(size, DIM, generator=draw) for size in SIZES]
    return codes, books, torch.randn(queries, DIM, generator=draw)


def log_probs(query_RD: Tensor, prefix_RL: Tensor) -> Tensor:
    """A model that looks at the query and at every code so far."""
    level = prefix_RL.shape[1]
    seen = query_RD[:, :1] * torch.arange(SIZES[level]) + (1 + prefix_RL).prod(1, keepdim=True) % 7
    return torch.sin(3 * seen).log_softmax(-1)


def slow_score(query: Tensor, books: list[Tensor], omega: float) -> Any:
    def score(prefix: tuple[int, ...], _: list[tuple[int, ...]]) -> float:
        path = torch.tensor(prefix)
        log_prob = sum(float(log_probs(query[None], path[None, :at])[0, path[at]]) for at in range(len(path)))
        left = query - torch.stack([books[at][code] for at, code in enumerate(path)]).sum(0)
        return log_prob + omega * float(query.square().sum() - left.square().sum())

    return score


@given(st.integers(0, 10_000), st.integers(1, 12), st.sampled_from([0.0, 0.5, 10.0]))
def test_the_search_is_the_slow_one(seed: int, beam: int, omega: float) -> None:
    codes, books, queries = case(seed)
    found = siglum.fused_beam_search(
        siglum.build_trie(codes), log_probs, queries, codebooks=books, omega=omega, beam=beam, k=100, batch_size=2
    )
    for query, ranking in zip(queries, found, strict=True):
        wanted = reference_search([tuple(row) for row in codes.tolist()], slow_score(query, books, omega), beam)
        leaves = [tuple(codes[row].tolist()) for row in ranking.position]
        assert list(dict.fromkeys(leaves)) == [leaf for leaf, _ in wanted]
        score = dict(wanted)
        assert ranking.score == pytest.approx([score[leaf] for leaf in leaves], abs=1e-4)


def test_positions_are_rows_of_the_codes_and_ids_their_names() -> None:
    codes, books, queries = case(3)
    trie = siglum.build_trie(codes.numpy(), SIZES, [f"item{row}" for row in range(len(codes))])
    best = siglum.fused_beam_search(trie, None, queries, codebooks=books, beam=100, k=1)[0].position[0]
    rebuilt = torch.stack([books[level][codes[:, level]] for level in range(3)]).sum(0)
    assert best == int((rebuilt - queries[0]).square().sum(1).argmin())
    assert trie.ids[int(best)] == f"item{best}"


def test_a_search_within_some_items_finds_no_others() -> None:
    codes, books, queries = case(7)
    trie, mask = siglum.build_trie(codes), np.arange(len(codes)) % 3 == 0
    for within in (mask, [str(row) for row in np.flatnonzero(mask)]):
        for one in siglum.fused_beam_search(trie, log_probs, queries, codebooks=books, beam=99, k=99, within=within):
            assert sorted(one.position.tolist()) == np.flatnonzero(mask).tolist()


def test_scorers_codebooks_and_encoded_queries_go_together() -> None:
    codes, books, queries = case(5)
    trie = siglum.build_trie(codes)
    alone = siglum.fused_beam_search(trie, None, queries, codebooks=books, beam=9)
    same = siglum.fused_beam_search(trie, GeometryScorer(books), queries, beam=9)
    oracle = siglum.fused_beam_search(trie, OracleScorer(books), queries, beam=9)
    assert [list(one.position) for one in alone] == [list(one.position) for one in same]
    assert [list(one.position) for one in alone] != [list(one.position) for one in oracle]
    states = torch.arange(6).view(3, 2)  # token ids, say, beside vectors for geometry

    def reads(query_RS: Tensor, prefix_RL: Tensor) -> Tensor:
        assert query_RS.dtype == torch.long
        return torch.zeros(len(query_RS), SIZES[prefix_RL.shape[1]])

    encoded = siglum.fused_beam_search(trie, reads, EncodedQuery(states, queries), codebooks=books, beam=9)
    assert [list(one.position) for one in encoded] == [list(one.position) for one in alone]
    parameters = [torch.nn.Parameter(book) for book in books]
    trained = siglum.fused_beam_search(trie, None, queries.requires_grad_(), codebooks=parameters, beam=9)
    assert [list(one.position) for one in trained] == [list(one.position) for one in alone]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions_are_searched_too_and_the_scorer_reads_its_own(dtype: torch.dtype) -> None:
    codes, books, queries = case(7)
    queries, books = queries.bfloat16().float(), [book.bfloat16().float() for book in books]
    seen = set()

    def model(query_RD: Tensor, prefix_RL: Tensor) -> Tensor:
        seen.add(query_RD.dtype)
        return log_probs(query_RD.float(), prefix_RL)

    trie = siglum.build_trie(codes)
    wanted = siglum.fused_beam_search(trie, model, queries, codebooks=books, beam=9)
    seen.clear()
    found = siglum.fused_beam_search(
        trie, model, queries.to(dtype), codebooks=[book.to(dtype) for book in books], beam=9
    )
    assert seen == {dtype}
    assert [list(one.position) for one in found] == [list(one.position) for one in wanted]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scorer": None}, "a scorer, codebooks or both"),
        ({"scorer": 3}, "a scorer is a function of queries and prefixes"),
        ({"scorer": lambda query, prefix: torch.zeros(len(query), 2)}, r"at level 0 the scorer was given 3 prefixes"),
        ({"scorer": lambda query, prefix: None}, r"must return log-probabilities of shape \(3, 3 or more\)"),
        ({"omega": -1.0}, "omega is a weight of 0 or more, not -1.0"),
        ({"beam": 0}, "the beam must be a whole number of at least 1, not 0"),
        ({"k": 0}, "k must be a whole number of at least 1, not 0"),
        ({"trie": [[0, 1]]}, "the trie is what siglum.build_trie gives"),
        ({"query": [[0.0] * DIM]}, r"queries must be a tensor \(Q, D\) of numbers"),
        ({"query": torch.zeros(DIM)}, r"queries must be a tensor \(Q, D\) of numbers, not \(\d,\)"),
        ({"omega": "1"}, "omega is a weight of 0 or more, not '1'"),
        ({"first_geometric": -1}, "first_geometric must be a whole number of at least 0"),
        ({"batch_size": 0}, "the batch size must be a whole number"),
        ({"codebooks": torch.zeros(3, 3, DIM)}, "codebooks are a list of tensors"),
        ({"codebooks": [3]}, r"the codebook of level 0 must be a tensor \(V, D\) of numbers, not 3"),
        (
            {"query": torch.zeros(3, DIM + 1), "codebooks": case(0)[1]},
            f"the codewords have {DIM} numbers, but the queries {DIM + 1}",
        ),
        ({"codebooks": [torch.zeros(3, DIM)]}, r"need codebooks of at least \(3, 5, 4\) codewords"),
    ],
)
def test_what_cannot_be_searched_is_refused(change: dict[str, Any], words: str) -> None:
    codes, _, queries = case(0)
    options: dict[str, Any] = {"trie": siglum.build_trie(codes), "scorer": log_probs, "query": queries, **change}
    with pytest.raises(SiglumError, match=words):
        siglum.fused_beam_search(**options)


@pytest.mark.parametrize("codes", [np.zeros((0, 2), int), np.zeros(3, int), np.zeros((2, 2))])
def test_what_are_no_codes_is_refused(codes: np.ndarray) -> None:
    with pytest.raises(SiglumError, match=r"codes are whole numbers, one row an item \(N, L\)"):
        siglum.build_trie(codes)
