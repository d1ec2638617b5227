"""Which search of static shapes answers: engines are kept while models and index stay, and share what they can."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from test_cuda_engine import Case, assert_same

from siglum.config import SearchConfig
from siglum.search.cuda import Graphs
from siglum.types import SiglumError


def test_an_engine_is_kept_until_something_changes() -> None:
    case, graphs, config = Case(3), Graphs(), SearchConfig(beam=5)
    parts = (case.decoder, case.books, case.index, 1, "cpu")
    first = graphs.choose(config, *parts)
    assert first is not None and first is graphs.choose(config, *parts)
    assert_same(first.search(case.query, k=9), case.reference(config, 9), cut=True)
    other = graphs.choose(replace(config, omega=1.0), *parts)
    assert other is not first and other.engine.trie is first.engine.trie
    assert_same(other.search(case.query, k=9), case.reference(replace(config, omega=1.0), 9), cut=True)
    kept = graphs.choose(config, *parts)
    assert kept is first
    with torch.no_grad():
        case.decoder.table.mul_(0.5)
    assert graphs.choose(config, *parts) is not kept
    smaller = case.index.remove(["x0"])
    assert graphs.choose(config, case.decoder, case.books, smaller, 1, "cpu").index is smaller


def test_options_of_a_call_share_the_weights_and_push_out_the_oldest_engine() -> None:
    case, graphs = Case(3, "near"), Graphs()
    parts = (case.decoder, case.books, case.index, 1, "cpu")
    configs = [
        SearchConfig(beam=beam, omega=omega) for beam, omega in ((5, 2.0), (5, 0.0), (8, 2.0), (3, 7.0), (4, 1.0))
    ]
    engines = [graphs.choose(config, *parts) for config in configs]
    assert len({id(engine._passes) for engine in engines}) == 1
    for config, engine in zip(configs, engines, strict=True):
        assert_same(engine.search(case.query, k=9), case.reference(config, 9), cut=True)
    assert graphs.choose(configs[-1], *parts) is engines[-1]
    assert graphs.choose(configs[0], *parts) is not engines[0]
    half = graphs.choose(replace(configs[0], precision="bf16"), *parts)
    assert half._passes is not engines[0]._passes


def test_what_has_no_static_shapes_is_left_to_others() -> None:
    case, graphs = Case(3), Graphs()
    parts = (case.decoder, case.books, case.index, 1, "cpu")
    for options in ({"engine": "reference"}, {"mode": "scan"}, {"lookahead": True}, {"leaf_order": "dense"}):
        assert graphs.choose(SearchConfig(**options), *parts) is None
    assert graphs.choose(SearchConfig(), None, *parts[1:]) is None
    with pytest.raises(SiglumError, match="int8 is arithmetic of the CPU"):
        graphs.choose(SearchConfig(precision="int8"), *parts)
