"""The modes beyond the paper: renormalised children, scan, and scan with the fused score."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from siglum.config import SearchConfig
from siglum.index import Index
from siglum.lab.world.collection import World
from siglum.measure.rankers import BeamRanker, geometry_alone
from siglum.search.beam import search_items
from siglum.search.engine import Engine
from siglum.search.ragged import FastSearch
from siglum.search.retriever import Retriever
from siglum.search.scorers import build_scorer
from siglum.types import SiglumError

SEEDS = st.integers(0, 10_000)
SHARES = st.sampled_from([0.0, 0.3, 1.0])


def engine_of(system, mode: str, **options) -> FastSearch:
    return FastSearch(system.decoder, system.codebooks, system.index, SearchConfig(mode=mode, **options))


def filtered(system, seed: int, share: float):
    mask = np.random.default_rng(seed).random(len(system.index)) < share
    return (None, np.ones_like(mask)) if share == 1.0 else (system.index.allow(mask), mask)


@given(seed=SEEDS, beam=st.integers(1, 40), share=SHARES)
def test_renormalised_equals_normalisation_children(make_system, seed: int, beam: int, share: float) -> None:
    system = make_system(seed, items=80, sizes=(3, 4, 3, 4, 3))
    allowed, _ = filtered(system, seed, share)
    scorer = build_scorer(SearchConfig(normalisation="children"), system.codebooks, system.decoder)
    wanted = search_items(scorer, system.index, system.query, beam=beam, k=99, allowed=allowed)
    found = engine_of(system, "renormalised", beam=beam).search(system.query, k=99, allowed=allowed)
    for left, right in zip(found, wanted, strict=True):
        np.testing.assert_allclose(left.score, right.score, atol=1e-4)


def test_forced_codes_are_free(make_system, monkeypatch: pytest.MonkeyPatch) -> None:
    system = make_system(0, items=30, sizes=(3, 40, 40, 40, 40))
    engine, rows = engine_of(system, "renormalised", beam=10), []
    run = type(engine.network).run
    monkeypatch.setattr(type(engine.network), "run", lambda self, ids, *rest: rows.append(len(ids)) or run(self, ids, *rest))  # fmt: skip # noqa: E501
    engine.search(system.query, k=5)
    renormalised = sum(rows)
    rows.clear()
    engine_of(system, "exact", beam=10).search(system.query, k=5)
    assert 0 < renormalised < sum(rows) / 3


@settings(max_examples=30)
@given(seed=SEEDS, k=st.integers(1, 300), share=SHARES, batch=st.integers(1, 4), items=st.sampled_from([5, 240, 2000]))
def test_a_scan_equals_brute_force(make_system, seed: int, k: int, share: float, batch: int, items: int) -> None:
    system = make_system(seed, items=items)
    allowed, mask = filtered(system, seed, share)
    rebuilt = system.reconstructions()
    near = (2 * system.query @ rebuilt.T - rebuilt.square().sum(1)).numpy()
    found = engine_of(system, "scan", batch_size=batch).search(system.query, k=k, allowed=allowed)
    for ranking, scores in zip(found, near, strict=True):
        assert len(ranking) == min(k, mask.sum())
        assert mask[ranking.position].all() and len(set(ranking.position.tolist())) == len(ranking)
        np.testing.assert_allclose(ranking.score, scores[ranking.position], atol=1e-4)
        np.testing.assert_allclose(ranking.score, np.sort(scores[mask])[::-1][:k], atol=1e-4)


def test_equal_scores_of_a_scan_stand_in_code_and_pool_order(make_system) -> None:
    system = make_system(0, items=40)
    system.codebooks = [torch.zeros_like(book) for book in system.codebooks]
    found = engine_of(system, "scan").search(system.query, k=7)
    for ranking in found:
        assert ranking.row.tolist() == list(range(7))


@given(seed=SEEDS, beam=st.integers(1, 60), share=SHARES, omega=st.sampled_from([0.0, 10.0]))
def test_scan_rescore_gives_the_fused_score_of_the_shortlist(make_system, seed, beam, share, omega) -> None:
    system = make_system(seed, items=70)
    allowed, mask = filtered(system, seed, share)
    rebuilt = system.reconstructions()
    near = 2 * system.query @ rebuilt.T - rebuilt.square().sum(1)
    fused = (system.log_probability() + omega * near).numpy()
    shortlist = engine_of(system, "scan").search(system.query, k=beam, allowed=allowed)
    found = engine_of(system, "scan-rescore", beam=beam, omega=omega).search(system.query, k=99, allowed=allowed)
    for ranking, short, scores in zip(found, shortlist, fused, strict=True):
        codes = {tuple(system.codes[p]) for p in short.position}
        whole = [p for p in np.flatnonzero(mask) if tuple(system.codes[p]) in codes]
        assert sorted(ranking.position.tolist()) == whole
        np.testing.assert_allclose(ranking.score, scores[ranking.position], atol=1e-4)
        np.testing.assert_allclose(ranking.score, np.sort(scores[whole])[::-1], atol=1e-4)


def test_modes_say_what_they_do_not_go_with(make_system) -> None:
    system = make_system(0)
    with pytest.raises(SiglumError, match="normalisation children in mode scan-rescore"):
        engine_of(system, "scan-rescore", normalisation="children")
    with pytest.raises(SiglumError, match="needs the codebooks"):
        FastSearch(system.decoder, [], system.index, SearchConfig(mode="scan")).search(system.query, k=1)
    with pytest.raises(SiglumError, match="without a decoder"):
        FastSearch(None, system.codebooks, system.index, SearchConfig())
    scan = FastSearch(None, system.codebooks, system.index, SearchConfig(mode="scan"))
    assert len(scan.search(system.query, k=4)[0]) == 4
    with pytest.raises(SiglumError, match="without a decoder"):
        scan.with_(system.index, SearchConfig())
    system.query[0, 0] = torch.nan
    with pytest.raises(SiglumError, match="NaN"):
        scan.search(system.query, k=4)


def test_a_scan_follows_its_index(make_system) -> None:
    system = make_system(0, items=30)
    engine = engine_of(system, "scan")
    best = engine.search(system.query, k=1)[0].position[0]
    smaller: Index = system.index.remove([f"x{best}"])
    assert len(engine.with_(smaller, engine.config).search(system.query, k=99)[0]) == 29


def test_the_retriever_searches_in_every_mode_and_precision(world_run: Path, world: World) -> None:
    retriever = Retriever.load(world_run)
    text = world.queries("test", "t2i")[0].text
    exact, plain = (retriever.search(text, k=9, engine=engine) for engine in ("fast", "reference"))
    assert [hit.item_id for hit in exact] == [hit.item_id for hit in plain]
    np.testing.assert_allclose([hit.score for hit in exact], [hit.score for hit in plain], atol=1e-4)
    children, renormalised, slow = (
        retriever.search(text, k=9, **options)
        for options in (
            {"normalisation": "children"},
            {"mode": "renormalised"},
            {"mode": "renormalised", "engine": "reference"},
        )
    )
    assert children == renormalised != exact
    np.testing.assert_allclose([hit.score for hit in slow], [hit.score for hit in renormalised], atol=1e-4)
    scan = retriever.search(text, k=9, mode="scan")
    near = retriever.search(text, k=9, scorer="geometry", beam=500)
    np.testing.assert_allclose([hit.score for hit in scan], [hit.score for hit in near], atol=1e-4)
    assert len(retriever.search(text, k=9, mode="scan-rescore", precision="bf16")) == 9
    with pytest.raises(SiglumError, match="must be one of: exact, renormalised, scan, scan-rescore"):
        retriever.search(text, mode="fastest")
    removed = exact[0].item_id
    retriever.remove([removed])
    for mode in ("exact", "renormalised", "scan", "scan-rescore"):
        assert removed not in [hit.item_id for hit in retriever.search(text, k=50, mode=mode)]


def test_the_reference_scorer_of_mode_renormalised_normalises_over_children(make_system) -> None:
    system = make_system(0)
    scorer = build_scorer(SearchConfig(scorer="decoder", mode="renormalised"), system.codebooks, system.decoder)
    assert scorer.normalisation == "children"


def test_a_baseline_beside_a_search_in_bf16_is_ranked_all_the_same(make_system) -> None:
    system = make_system(0)
    rows, engine = np.arange(len(system.codes)), Engine(system.codebooks, system.decoder, system.index)
    plain = BeamRanker(engine, rows, system.query, SearchConfig(scorer="geometry", beam=5))
    for config in (
        SearchConfig(beam=5, precision="bf16"),
        SearchConfig(beam=5, engine="fast"),
        SearchConfig(beam=5, mode="scan"),
        SearchConfig(beam=5, leaf_order="dense", lookahead=True, zscore=True),
    ):
        ranker = BeamRanker(engine, rows, system.query, geometry_alone(config))
        for one, other in zip(ranker.rank(rows[:2], rows, 3), plain.rank(rows[:2], rows, 3), strict=True):
            assert one.position.tolist() == other.position.tolist()


@pytest.mark.parametrize("mode", ["exact", "renormalised", "scan", "scan-rescore"])
def test_a_batch_searched_by_several_threads_gives_what_one_gives(make_system, mode: str) -> None:
    system, before = make_system(3, items=60, queries=7), torch.get_num_threads()
    engine = FastSearch(system.decoder, system.codebooks, system.index, SearchConfig(mode=mode, beam=6))
    try:
        torch.set_num_threads(1)
        alone = engine.search(system.query, k=5)
        torch.set_num_threads(3)
        shared = engine.search(system.query, k=5)
        assert torch.get_num_threads() == 3, "the caller's threads are given back"
    finally:
        torch.set_num_threads(before)
    for one, other in zip(alone, shared, strict=True):
        np.testing.assert_allclose(one.score, other.score, atol=1e-4)
