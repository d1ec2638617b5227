"""Survival against explicit loops and against the reference search."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import slow_search as reference
from siglum.measure.survival import beam_survival, token_survival
from siglum.search.scorers import GeometryScorer, OracleScorer

SEEDS = st.integers(0, 10_000)


@given(seed=SEEDS, beam=st.integers(1, 6), first=st.integers(0, 2))
def test_token_survival_equals_a_loop(make_system, seed: int, beam: int, first: int) -> None:
    system = make_system(seed, queries=12)
    codes = torch.as_tensor(system.codes[:12])
    wanted = []
    for level in range(first, 4):
        alive = 0
        for query, code in zip(system.query, codes, strict=True):
            ranked = sorted((float(query @ word) for word in system.codebooks[level]), reverse=True)
            own = float(query @ system.codebooks[level][code[level]])
            alive += sum(score > own + 1e-6 for score in ranked) < beam
        wanted.append(alive / 12)
    assert token_survival(system.query, codes, system.codebooks, beam, first) == pytest.approx(wanted)


def test_a_beam_as_wide_as_the_vocabulary_keeps_every_token(make_system) -> None:
    system = make_system(0, queries=12)
    codes = torch.as_tensor(system.codes[:12])
    assert token_survival(system.query, codes, system.codebooks, 5) == [1.0, 1.0, 1.0, 1.0]
    assert min(token_survival(system.query, codes, system.codebooks, 1)) < 1.0


@settings(max_examples=15)
@given(seed=SEEDS, beam=st.integers(1, 6), batch_size=st.integers(1, 9))
def test_beam_survival_is_membership_in_the_reference_beam(make_system, seed: int, beam: int, batch_size: int) -> None:
    """Small whole numbers make ties exact, so both searches keep the very same prefixes."""
    system = make_system(seed, items=30, queries=8, dim=3)
    generator = torch.Generator().manual_seed(seed)
    books = [torch.randint(-2, 3, book.shape, generator=generator).float() for book in system.codebooks]
    query = torch.randint(-2, 3, system.query.shape, generator=generator).float()
    target = np.random.default_rng(seed).integers(0, 30, 8)
    wanted = np.zeros(4)
    for one, item in zip(query, target, strict=True):
        for depth in range(1, 5):
            codes = [tuple(row[:depth]) for row in system.codes.tolist()]
            live = reference.reference_search(codes, reference.oracle_score(one, books), beam)
            wanted[depth - 1] += codes[item] in [prefix for prefix, _ in live]
    rows = system.index.rows([f"x{i}" for i in target])
    found = beam_survival(OracleScorer(books), system.index, query, rows, beam, batch_size=batch_size)
    assert found == (wanted / 8).tolist()
    assert all(a >= b for a, b in zip(found, found[1:], strict=False))


def test_beam_survival_within_a_filter(make_system) -> None:
    system = make_system(5, items=30, queries=8)
    scorer, targets = GeometryScorer(system.codebooks), np.arange(8)
    rows = system.index.rows([f"x{i}" for i in targets])
    assert beam_survival(scorer, system.index, system.query, rows, 30) == [1.0] * 4
    narrow = beam_survival(scorer, system.index, system.query, rows, 1)
    assert narrow[-1] < 1.0
    mask = np.zeros(30, bool)
    mask[targets] = True
    helped = beam_survival(scorer, system.index, system.query, rows, 1, system.index.allow(mask))
    assert all(a >= b for a, b in zip(helped, narrow, strict=True))
    assert sum(helped) > sum(narrow)
    gone = system.index.allow(~mask)
    codes = {tuple(row) for row in system.codes[~mask].tolist()}
    left = sum(tuple(system.codes[t].tolist()) in codes for t in targets) / 8
    assert beam_survival(scorer, system.index, system.query, rows, 30, gone)[-1] == left


def test_no_queries(make_system) -> None:
    system = make_system(0)
    none = np.zeros(0, np.int64)
    assert beam_survival(OracleScorer(system.codebooks), system.index, system.query[:0], none, 3) == [0.0] * 4
