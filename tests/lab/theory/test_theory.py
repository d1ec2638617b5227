"""Theorem 1: no usual objective sees what decides over survival; L_rank does."""

from __future__ import annotations

import doctest
import re
from itertools import product
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from siglum.config import TokenizerConfig
from siglum.lab.theory import instances as theory
from siglum.tokenize.losses import prefix_ranking_loss
from siglum.tokenize.rq import ResidualQuantizer
from siglum.types import SiglumError

PAGE = Path(__file__).parents[3] / "docs" / "theory.md"


@given(beam=st.integers(1, 60), levels=st.integers(2, 17), modality=st.booleans())
@settings(max_examples=40, deadline=None)
def test_theorem_1_equal_objectives_to_the_last_bit_and_opposite_fates(beam: int, levels: int, modality: bool) -> None:
    pair = theory.construct(beam, levels, modality=modality)
    assert pair.item_KD.shape == (beam + 1, 2 * (beam + 1) + levels + 1 + modality)
    assert theory.objectives(pair, pair.kept) == theory.objectives(pair, pair.lost)
    assert theory.objectives(pair, pair.lost)["reconstruction"] == 0.25
    before = [True] * modality
    assert theory.oracle_survival(pair, pair.kept) == before + [True] * levels
    assert theory.oracle_survival(pair, pair.lost) == before + [False] * levels


@given(
    beam=st.integers(1, 20),
    levels=st.integers(2, 6),
    m=st.floats(2.001, 30),
    height=st.floats(0.1, 30),
    leftover=st.floats(-3, 3),
    modality=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_theorem_1_holds_for_other_lengths_to_rounding(beam, levels, m, height, leftover, modality) -> None:
    pair = theory.construct(beam, levels, m=m, height=height, leftover=leftover, modality=modality)
    kept, lost = theory.objectives(pair, pair.kept), theory.objectives(pair, pair.lost)
    assert lost == pytest.approx(kept, rel=1e-12, abs=1e-12)
    assert all(theory.oracle_survival(pair, pair.kept))
    assert not any(theory.oracle_survival(pair, pair.lost)[pair.first_residual :])


@pytest.mark.parametrize("modality", [False, True])
def test_theorem_1_codes_and_reconstructions_are_the_same(modality: bool) -> None:
    """Lemma A.1 and claims 1 and 2, for query and items, level by level."""
    pair, length, levels = theory.construct(3, 4, modality=modality), 6.25, 4
    vector = torch.cat([pair.query_D[None], pair.item_KD])
    wanted = torch.tensor([[0, 0, 0, 0]] + [[j, j, 1, 1] for j in range(1, 5)])
    fits, missed = [], torch.zeros_like(vector)
    missed[1:, -1 - modality] = 0.5
    for books in (pair.kept, pair.lost):
        codes, residuals = theory.assign(vector, books)
        assert torch.equal(codes[:, pair.first_residual :], wanted)
        assert not codes[:, : pair.first_residual].any()
        word = theory.codewords(codes, books)
        fits.append((torch.stack(residuals, 1) - word).square().sum(-1)[:, pair.first_residual :])
        assert torch.equal(vector - word.sum(1), missed)
    assert torch.equal(fits[0], fits[1])
    assert fits[0][1].tolist() == [(levels - level) * length + 0.25 for level in range(1, levels + 1)]
    assert not fits[0][0].any()


@pytest.mark.parametrize("which", ["kept", "lost"])
def test_theorem_1_no_codes_reconstruct_better(which: str) -> None:
    pair = theory.construct(2, 3)
    books = getattr(pair, which)
    sums = torch.stack([sum(words) for words in product(*books)])
    assert (pair.item_KD[:, None] - sums).square().sum(-1).min(1).values.tolist() == [0.25] * 3


@pytest.mark.parametrize("modality", ["none", "metadata", "learned"])
def test_theorem_1_codes_are_those_of_the_tokenizer(modality: str) -> None:
    pair = theory.construct(5, 4, modality=modality != "none")
    for books in (pair.kept, pair.lost):
        vocab = tuple(len(book) for book in books[pair.first_residual :])
        quantizer = ResidualQuantizer(TokenizerConfig(vocab=vocab, modality=modality), len(pair.query_D))
        for own, book in zip(quantizer.codebooks, books, strict=True):
            own.data.copy_(book)
        kinds = torch.zeros(len(pair.item_KD))
        assert torch.equal(quantizer.encode(pair.item_KD, kinds), theory.assign(pair.item_KD, books)[0])


@pytest.mark.parametrize("modality", [False, True])
@pytest.mark.parametrize("tau", [0.05, 1.0])
@pytest.mark.parametrize(("beam", "levels"), [(1, 2), (4, 3), (20, 16)])
def test_theorem_1_pair_is_told_apart_by_l_rank(beam: int, levels: int, tau: float, modality: bool) -> None:
    pair = theory.construct(beam, levels, modality=modality)
    assert theory.rank_loss(pair, pair.kept, tau) == 0.0
    lost = theory.rank_loss(pair, pair.lost, tau)
    assert lost > 0.1 / levels
    assert lost == pytest.approx(theory.separation(beam, tau) / levels, rel=1e-5)


def test_theorem_1_gradient_of_l_rank_points_from_the_lost_to_the_kept_quantiser() -> None:
    """A step against the gradient raises the target's first codeword along the query: towards Q+."""
    pair = theory.construct(3, 2)
    codes = theory.assign(pair.item_KD, pair.lost)[0]
    books = [book.clone().requires_grad_() for book in pair.lost]
    partial, target = theory.codewords(codes, books).cumsum(1), torch.zeros(1, dtype=torch.long)
    config, none = TokenizerConfig(temperature=1.0), torch.zeros(len(codes), dtype=torch.bool)
    prefix_ranking_loss(pair.query_D[None], pair.item_KD, partial, codes, target, none, config, 0).backward()
    assert -books[0].grad[1] @ (pair.kept[0][1] - pair.lost[0][1]) > 0


@pytest.mark.parametrize(
    ("settings", "text"), [((0, 2, 2.5), "beam"), ((1, 1, 2.5), "levels"), ((1, 2, 2.0), "m above 2")]
)
def test_theorem_1_refuses_what_the_proof_does_not_cover(settings: tuple[int, int, float], text: str) -> None:
    with pytest.raises(SiglumError, match=text):
        theory.construct(settings[0], settings[1], m=settings[2])


def test_theorem_page_shows_what_its_examples_print() -> None:
    source = "\n".join(re.findall(r"```pycon\n(.*?)```", PAGE.read_text(), re.S))
    examples = doctest.DocTestParser().get_doctest(source, {}, "theory.md", "theory.md", 0)
    assert len(examples.examples) > 15
    assert doctest.DocTestRunner().run(examples).failed == 0
