"""Which search of static shapes answers: engines are kept while models and index stay, and share what they can."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from test_static_engine import Case, assert_same

from siglum.config import SearchConfig
from siglum.search.engine import Engine
from siglum.search.ragged import FastSearch
from siglum.search.static import GraphSearch
from siglum.types import SiglumError


def chosen(engine: Engine, config: SearchConfig) -> GraphSearch:
    """Return the engine of static shapes, which only a GPU would be answered by."""
    found = engine.fast_engines.get(engine, config, use_static=True)
    assert isinstance(found, GraphSearch)
    return found


def test_an_engine_is_kept_until_something_changes() -> None:
    case, config = Case(3), SearchConfig(beam=5)
    engine = Engine(case.books, case.decoder, case.index, 1)
    first = chosen(engine, config)
    assert first is chosen(engine, config)
    assert_same(first.search(case.query, k=9), case.reference(config, 9), cut=True)
    other = chosen(engine, replace(config, omega=1.0))
    assert other is not first and other.engine.trie is first.engine.trie
    assert_same(other.search(case.query, k=9), case.reference(replace(config, omega=1.0), 9), cut=True)
    kept = chosen(engine, config)
    assert kept is first
    with torch.no_grad():
        case.decoder.table.mul_(0.5)
    changed = chosen(engine, config)
    assert changed is not kept and changed.passes is not kept.passes
    case.index = case.index.remove(["x0"])
    fewer = chosen(replace(engine, index=case.index), config)
    assert fewer.index is case.index and fewer.passes is changed.passes
    assert_same(fewer.search(case.query, k=9), case.reference(config, 9), cut=True)


def test_options_of_a_call_share_the_weights_and_push_out_the_oldest_engine() -> None:
    case = Case(3, "near")
    engine = Engine(case.books, case.decoder, case.index, 1)
    configs = [
        SearchConfig(beam=beam, omega=omega) for beam, omega in ((5, 2.0), (5, 0.0), (8, 2.0), (3, 7.0), (4, 1.0))
    ]
    engines = [chosen(engine, config) for config in configs]
    assert len({id(one.passes) for one in engines}) == 1
    for config, one in zip(configs, engines, strict=True):
        assert_same(one.search(case.query, k=9), case.reference(config, 9), cut=True)
    assert chosen(engine, configs[-1]) is engines[-1]
    assert chosen(engine, configs[0]) is not engines[0]
    half = chosen(engine, replace(configs[0], precision="bf16"))
    assert half.passes is not engines[0].passes


def test_what_has_no_static_shapes_is_left_to_others() -> None:
    case = Case(3)
    engine = Engine(case.books, case.decoder, case.index, 1, device="cuda")
    for options in ({"engine": "reference"}, {"mode": "scan"}, {"zscore": True}, {"leaf_order": "dense"}):
        assert not engine.fits_static(SearchConfig(**options))
    assert engine.fits_static(SearchConfig())
    assert not replace(engine, decoder=None).fits_static(SearchConfig())
    with pytest.raises(SiglumError, match="int8 is arithmetic of the CPU"):
        engine.fast(SearchConfig(precision="int8"))


def test_a_scan_between_two_searches_costs_no_graph() -> None:
    case, config = Case(3), SearchConfig(beam=5)
    engine = Engine(case.books, case.decoder, case.index, 1)
    first = chosen(engine, config)
    assert isinstance(engine.fast(SearchConfig(mode="scan")), FastSearch)
    assert chosen(engine, config) is first
