"""The ladder's arithmetic and words; that its rungs are real beam searches is tested with retention."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siglum.measure.ladder import CAUSES, Rung, Tried, attribute, judge, remedy

RUNGS = tuple(CAUSES)
NOTHING = Tried(beam=50)
FUSED = Tried(beam=50, distilled=True, decoder=True, omega=10)
SHARES = st.lists(st.floats(0, 1), min_size=3, max_size=3).map(lambda shares: sorted(shares, reverse=True))


def rung(name: str, *survival: float, leaves: float = 0.01) -> Rung:
    return Rung(name, list(survival), [leaves] * len(survival))


@given(curves=st.lists(SHARES, min_size=1, max_size=6))
def test_shares_add_up_to_what_the_last_rung_loses(curves: list[list[float]]) -> None:
    rungs = [rung(name, *curve) for name, curve in zip(RUNGS, curves, strict=False)]
    shares = np.stack(attribute(rungs))
    assert shares.shape == (len(rungs), 3)
    np.testing.assert_allclose(shares.sum(0), rungs[-1].lost, atol=1e-12)
    assert shares.sum() == pytest.approx(1 - curves[-1][-1])
    np.testing.assert_allclose(shares[0], rungs[0].lost)


@pytest.mark.parametrize("distilled", [False, True])
@pytest.mark.parametrize("decoder", [False, True])
@pytest.mark.parametrize("omega", [0.0, 7.5])
@pytest.mark.parametrize("lookahead", [False, True, None])
def test_no_remedy_is_what_the_run_does_already(
    distilled: bool, decoder: bool, omega: float, lookahead: bool | None
) -> None:
    assert RUNGS == ("teacher", "oracle", "geometry", "decoder", "fused", "look-ahead")
    tried = Tried(20, distilled, decoder, omega, lookahead)
    told = {(rung, level): remedy(rung, level, tried) for rung in RUNGS for level in (0, 3)}
    for (_, level), words in told.items():
        assert words
        assert not (distilled and "distillation" in words)
        assert "lookahead=true" not in words or lookahead is False
        assert not (decoder and "a decoder fused with it" in words)
        assert level or "vocabulary" not in words
    assert "now 20" in told["teacher", 3] and "smaller vocabulary there" in told["teacher", 3]
    assert ("higher search.omega (now 7.5)" if omega else "search.scorer=fused") in told["decoder", 3]


def test_remedies_in_words() -> None:
    wider = "a wider beam (search.beam, now 50)"
    assert remedy("oracle", 2, FUSED) == f"smaller vocabulary there, {wider}, or look-ahead (search.lookahead=true)"
    assert remedy("oracle", 2, replace(FUSED, lookahead=True)) == f"smaller vocabulary there, or {wider}"
    assert remedy("geometry", 1, NOTHING) == "look-ahead (search.lookahead=true), or a decoder fused with it"
    assert remedy("geometry", 1, replace(FUSED, lookahead=True)) == wider
    assert remedy("fused", 1, replace(FUSED, lookahead=None)) == "a lower search.omega (now 10)"


def test_the_verdict_names_the_level_the_cause_and_the_remedy() -> None:
    rungs = [rung("teacher", 1, 0.99, 0.98), rung("oracle", 1, 0.59, 0.5), rung("geometry", 1, 0.6, 0.52)]
    found = judge(rungs, "oracle", 1, [1.0, 0.1, 0.05], NOTHING)
    assert found.text.startswith("the beam loses 41 % of targets at level 1: smaller vocabulary there, or distillation")
    assert (found.rung, found.level) == ("oracle", 1)
    assert found.lost == pytest.approx(0.41)
    assert "quantisation +40.0" in found.text
    assert "50 % of targets reach the last level (oracle; chance 5.0 %)" in found.text
    assert judge(rungs, "oracle", 0, [1.0, 0.1, 0.05], NOTHING).level == 2
    distilled = judge(rungs, "oracle", 1, [1.0, 0.1, 0.05], FUSED)
    assert "level 1: smaller vocabulary there, a wider beam" in distilled.text and "distill" not in distilled.text


@pytest.mark.parametrize("place", range(1, 5))
def test_the_rung_that_loses_most_is_blamed(place: int) -> None:
    rungs = [rung(name, 0.99, 0.98 if i < place else 0.7) for i, name in enumerate(RUNGS[:5])]
    found = judge(rungs, "fused", 0, [0.1, 0.1], FUSED)
    assert (found.rung, found.level) == (RUNGS[place], 2)
    assert f"at level 2: {remedy(RUNGS[place], 2, FUSED)}." in found.text


def test_rungs_above_the_run_s_own_are_not_blamed_but_told_of_when_better() -> None:
    rungs = [rung("teacher", 0.9), rung("oracle", 0.8), rung("geometry", 0.8), rung("decoder", 0.5), rung("fused", 0.7)]
    found = judge(rungs, "decoder", 0, [0.1], NOTHING)
    assert found.rung == "decoder"
    assert "The rung fused would keep 70 % (search.scorer fused)." in found.text
    assert "would keep" not in judge(rungs, "fused", 0, [0.1], FUSED).text


def test_where_little_is_lost_nothing_is_blamed() -> None:
    found = judge([rung("teacher", 1, 0.995)], "teacher", 0, [0.1, 0.1], NOTHING)
    assert (found.level, found.rung) == (None, "")
    assert "next to nothing" in found.text


def test_where_the_beam_holds_everything_that_is_said() -> None:
    found = judge([rung("teacher", 1, 1, leaves=1.0)], "teacher", 0, [1.0, 1.0], NOTHING)
    assert "holds every prefix" in found.text
    assert "says little" in judge([rung("teacher", 0.9, leaves=0.5)], "teacher", 0, [0.5], NOTHING).text
    assert "says little" not in judge([rung("teacher", 0.9)], "teacher", 0, [0.5], NOTHING).text
