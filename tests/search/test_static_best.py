"""Static-shape search with look-ahead and prior equals the reference beam search."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_static_engine import OMEGAS, POOLS, SEEDS, SIZES, Case, assert_same

from siglum.config import SearchConfig
from siglum.search.prior import log_prior
from siglum.search.static import Plan


@settings(max_examples=60)
@given(
    seed=SEEDS,
    kind=POOLS,
    search=st.fixed_dictionaries(
        {
            "omega": OMEGAS,
            "beam": st.integers(1, 14),
            "lookahead": st.booleans(),
            "prior": st.sampled_from([0.0, 0.5, 1.0]),
        }
    ),
    plan=st.builds(Plan, st.integers(1, len(SIZES)), st.sampled_from([8, 16, 32, 96]), st.integers(0, 2)),
    soft_tokens=st.sampled_from([1, 1, 2]),
    first=st.integers(0, 2),
    layered=st.booleans(),
    filtered=st.booleans(),
)
def test_look_ahead_and_prior_equal_the_reference(
    seed: int, kind: str, search: dict, plan: Plan, soft_tokens: int, first: int, layered: bool, filtered: bool
) -> None:
    case, config = Case(seed, kind, soft_tokens=soft_tokens), SearchConfig(**search)
    if layered:
        case.index = case.index.layer().remove(["x3", "x40"]).add(["y", "z"], case.index.codes(np.array([5, 50])))
    allowed = case.index.allow(case.mask) if filtered else None
    wanted = case.reference(config, 99, allowed, first)
    assume(case.clear)
    assert_same(case.engine(config, plan, first).search(case.query, k=99, allowed=allowed), wanted)


def test_twins_share_the_prior(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr("siglum.search.prior.log_prior", lambda *parts: calls.append(1) or log_prior(*parts))
    case = Case(3)
    plain = case.engine(SearchConfig(beam=6))
    for changed in ({"prior": 0.5}, {"prior": 1.0, "lookahead": True}, {"lookahead": True}):
        config = SearchConfig(beam=6, **changed)
        wanted = case.reference(config, 99)
        assert case.clear
        assert_same(plain.with_(case.index, config).search(case.query, k=99), wanted)
    assert calls == [1]
