"""Parts by name: carried ones, registered ones and those of entry points; an unknown name is told what there is."""

from __future__ import annotations

from fractions import Fraction
from importlib.metadata import EntryPoint

import pytest

import siglum.registry
from siglum.registry import ENCODERS, QUANTISERS, SCORERS, Registry
from siglum.types import SiglumError


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Registry[type]:
    """Tools: one carried, one of an entry point."""
    point = EntryPoint("decimal", "decimal:Decimal", "siglum.tools")
    monkeypatch.setattr(siglum.registry, "entry_points", lambda group: [point] if group == point.group else [])
    return Registry("tool", {"fraction": "fractions:Fraction"})


def test_parts_are_had_by_name_wherever_they_come_from(tools: Registry[type]) -> None:
    @tools.register("own")
    class Own:
        pass

    assert tools.names() == ["fraction", "own", "decimal"]
    assert (tools["fraction"], tools["own"], tools["decimal"].__name__) == (Fraction, Own, "Decimal")
    assert "own" in tools and "decimal" in tools and "other" not in tools
    tools.forget("own")
    assert "own" not in tools


def test_an_unknown_or_a_taken_name_is_refused(tools: Registry[type]) -> None:
    with pytest.raises(SiglumError, match="there is no tool 'other'; there are fraction, decimal"):
        tools["other"]
    with pytest.raises(SiglumError, match=r"a.b is 'other', but must be one of: fraction, decimal\."):
        tools.checked("a.b", "other")
    assert tools.checked("a.b", "decimal") == "decimal"
    with pytest.raises(SiglumError, match="there is a tool 'fraction' already"):
        tools.register("fraction")(int)
    tools.register("own")(int)
    tools.register("own")(int)  # a script that is run twice
    with pytest.raises(SiglumError, match="there is a tool 'own' already"):
        tools.register("own")(float)


@pytest.mark.parametrize("parts", [ENCODERS, QUANTISERS, SCORERS], ids=lambda parts: parts.kind)
def test_every_carried_part_can_be_imported(parts: Registry[object]) -> None:
    for name in parts.names():
        assert callable(parts[name])
