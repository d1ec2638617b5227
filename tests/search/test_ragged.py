"""The fast engine gives what the reference search gives: the same items, scores to 1e-4, the same order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from siglum.config import SearchConfig
from siglum.generate.decoder import CodeDecoder
from siglum.index import Index
from siglum.search.beam import Ranking, search_items
from siglum.search.engine import Engine
from siglum.search.lookahead import build_lookahead
from siglum.search.ragged import FastSearch
from siglum.search.ragged.tail import PathPlan, Paths, replay
from siglum.search.scorers import Scorer, build_scorer
from siglum.types import SiglumError

TOLERANCE = 1e-4
SEEDS = st.integers(0, 10_000)
OMEGAS = st.sampled_from([0.0, 0.5, 10.0, 50.0])
POOLS = st.sampled_from(["clustered", "uniform", "near-duplicates"])
SIZES = (3, 6, 8, 8, 7, 5)


def pool_codes(kind: str, items: int, sizes: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Return codes that are independent, that share prefixes, or of which 30 % follow another one nearly to the end."""
    codes = np.stack([rng.integers(0, size, items) for size in sizes], 1)
    if kind == "clustered":
        depth = rng.integers(0, len(sizes), items)
        base = codes[rng.integers(0, max(items // 8, 1), items)]
        codes = np.where(np.arange(len(sizes)) < depth[:, None], base, codes)
    if kind == "near-duplicates":
        twins = rng.permutation(items)[: round(0.3 * items)]
        kept = codes[rng.integers(0, items, len(twins))]
        cut = rng.integers(len(sizes) - 2, len(sizes) + 1, len(twins))
        codes[twins] = np.where(np.arange(len(sizes)) < cut[:, None], kept, codes[twins])
    return codes


def pooled(make_system: Any, seed: int, kind: str, *, items: int = 150, soft_tokens: int = 1, queries: int = 5) -> Any:
    """Return a system with such a pool and a decoder that reads so many soft tokens."""
    system = make_system(seed, items=items, sizes=SIZES, queries=queries)
    system.codes = pool_codes(kind, items, SIZES, np.random.default_rng(seed))
    system.index = Index.build([f"x{i}" for i in range(items)], system.codes, SIZES, "tok")
    config = replace(system.decoder.config, soft_tokens=soft_tokens, null_queries=0.1)
    system.decoder = CodeDecoder(config, SIZES, 6, torch.Generator().manual_seed(seed)).eval()
    with torch.no_grad():
        for name, parameter in system.decoder.named_parameters():
            if name.endswith("scale"):  # gains of 1 would hide a gain folded into the wrong weights
                parameter.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(seed))
    return system


@dataclass
class Shaken:
    """A scorer with a little noise: where that changes the items found, a rounding error may do so too."""

    inner: Scorer
    generator: torch.Generator

    def begin(self, query_QD: Tensor) -> Any:
        return self.inner.begin(query_QD)

    def score(self, state: Any, level: int, parent_C: Tensor, token_C: Tensor) -> Tensor:
        score = self.inner.score(state, level, parent_C, token_C)
        return score + TOLERANCE * (torch.rand(score.shape, generator=self.generator) - 0.5)

    def advance(self, state: Any, level: int, parent_R: Tensor, token_R: Tensor) -> Any:
        return self.inner.advance(state, level, parent_R, token_R)


def wanted_of(system: Any, config: SearchConfig, first: int = 0, **options: Any) -> list[Ranking]:
    """Search by the reference, leaving out examples that a rounding error decides."""
    scorer = build_scorer(config, system.codebooks, system.decoder, first)
    ahead = build_lookahead(config, system.codebooks, first)
    wanted, *others = (
        search_items(one, system.index, system.query, beam=config.beam, ahead=ahead, **options)
        for one in (scorer, *(Shaken(scorer, torch.Generator().manual_seed(seed)) for seed in range(2)))
    )
    for other in others:
        assume(all(set(a.position) == set(b.position) for a, b in zip(wanted, other, strict=True)))
    return wanted


def assert_same(found: Ranking, wanted: Ranking) -> None:
    """The same items and scores to the tolerance; items change places only if their scores are that close."""
    assert sorted(found.position.tolist()) == sorted(wanted.position.tolist())
    np.testing.assert_allclose(found.score, wanted.score, atol=TOLERANCE)
    scores = dict(zip(wanted.position.tolist(), wanted.score.tolist(), strict=True))
    np.testing.assert_allclose([scores[p] for p in found.position.tolist()], wanted.score, atol=TOLERANCE)


@settings(max_examples=40)
@given(
    seed=SEEDS,
    kind=POOLS,
    omega=OMEGAS,
    beam=st.sampled_from([1, 3, 8, 20, 400]),
    budget=st.sampled_from([None, None, 1, 10, 30, 500]),
    batch=st.integers(1, 6),
    soft_tokens=st.sampled_from([1, 1, 3]),
    share=st.sampled_from([0.0, 0.1, 0.6, 1.0]),
    normalisation=st.sampled_from(["level", "children"]),
    first=st.integers(0, 1),
)
def test_the_engine_equals_the_reference(
    make_system, seed, kind, omega, beam, budget, batch, soft_tokens, share, normalisation, first
) -> None:
    system = pooled(make_system, seed, kind, soft_tokens=soft_tokens)
    mask = np.random.default_rng(seed).random(len(system.index)) < share
    allowed = None if share == 1.0 else system.index.allow(mask)
    config = SearchConfig(omega=omega, beam=beam, normalisation=normalisation, batch_size=batch)
    engine = FastSearch(system.decoder, system.codebooks, system.index, config, first, budget=budget)
    wanted = wanted_of(system, config, first, k=500, allowed=allowed)
    for found, right in zip(engine.search(system.query, k=500, allowed=allowed), wanted, strict=True):
        assert_same(found, right)
        assert np.array_equal(system.index.order[found.row], found.position)


@settings(max_examples=60)
@given(
    seed=SEEDS,
    kind=POOLS,
    omega=OMEGAS,
    lookahead=st.booleans(),
    prior=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    beam=st.sampled_from([1, 3, 8, 20, 400]),
    budget=st.sampled_from([None, None, 1, 10, 30, 500]),
    batch=st.integers(1, 6),
    soft_tokens=st.sampled_from([1, 1, 3]),
    share=st.sampled_from([0.0, 0.1, 0.6, 1.0]),
    layered=st.booleans(),
    first=st.integers(0, 1),
)
def test_look_ahead_and_prior_equal_the_reference(
    make_system, seed, kind, omega, lookahead, prior, beam, budget, batch, soft_tokens, share, layered, first
) -> None:
    system = pooled(make_system, seed, kind, soft_tokens=soft_tokens)
    if layered:
        system.index = system.index.layer().remove(["x3", "x40"]).add(["y"], system.codes[50:51])
    mask = np.random.default_rng(seed).random(len(system.index)) < share
    allowed = None if share == 1.0 else system.index.allow(mask)
    config = SearchConfig(omega=omega, beam=beam, batch_size=batch, lookahead=lookahead, prior=prior)
    engine = FastSearch(system.decoder, system.codebooks, system.index, config, first, budget=budget)
    wanted = wanted_of(system, config, first, k=500, allowed=allowed)
    for turn in range(3):  # from nothing, from what the first search noted, and from all that can be known before
        if turn == 2:
            engine.prepare()
        for found, right in zip(engine.search(system.query, k=500, allowed=allowed), wanted, strict=True):
            assert_same(found, right)


def test_what_a_prior_says_of_an_item_is_worked_out_once(make_system) -> None:
    system = pooled(make_system, 4, "uniform")
    engine = FastSearch(system.decoder, system.codebooks, system.index, SearchConfig(beam=8, prior=1.0))
    rows, run = [], engine.network.run

    def counted(tokens: Tensor, *rest: Any) -> Tensor:
        rows[-1] += len(tokens)
        return run(tokens, *rest)

    engine.network.run = counted
    plain = engine.with_(system.index, SearchConfig(beam=8))
    for searched in (engine, engine, engine, plain):
        if len(rows) == 2:
            engine.prepare()
        rows.append(0)
        searched.search(system.query, k=9)
    assert rows[0] > rows[1] > rows[2] == rows[3]


@given(seed=SEEDS, kind=POOLS, beam=st.integers(1, 30), scorer=st.sampled_from(["fused", "decoder"]))
def test_results_do_not_depend_on_the_batch(make_system, seed: int, kind: str, beam: int, scorer: str) -> None:
    system = pooled(make_system, seed, kind, queries=7)
    config = SearchConfig(beam=beam, scorer=scorer, batch_size=7)
    wanted_of(system, config, k=30)
    engine = FastSearch(system.decoder, system.codebooks, system.index, config)
    together = engine.search(system.query, k=30)
    alone = engine.with_(system.index, replace(config, batch_size=1)).search(system.query, k=30)
    for left, right in zip(together, alone, strict=True):
        assert_same(left, right)


@given(seed=SEEDS, k=st.integers(1, 40), kind=POOLS)
def test_the_best_k_are_the_first_of_all(make_system, seed: int, k: int, kind: str) -> None:
    system = pooled(make_system, seed, kind)
    engine = FastSearch(system.decoder, system.codebooks, system.index, SearchConfig(beam=12))
    for few, many in zip(engine.search(system.query, k=k), engine.search(system.query, k=999), strict=True):
        assert np.array_equal(few.position, many.position[:k])


def test_items_of_one_leaf_can_stand_by_similarity(make_system) -> None:
    system = pooled(make_system, 3, "near-duplicates")
    item_ND = torch.randn(len(system.index), 6, generator=torch.Generator().manual_seed(0))
    config = SearchConfig(beam=20)
    engine = FastSearch(system.decoder, system.codebooks, system.index, config)
    scorer = build_scorer(config, system.codebooks, system.decoder)
    wanted = search_items(scorer, system.index, system.query, beam=20, k=60, item_ND=item_ND)
    found = engine.search(system.query, k=60, item_ND=item_ND)
    assert [r.position.tolist() for r in found] == [r.position.tolist() for r in wanted]
    assert [r.position.tolist() for r in found] != [r.position.tolist() for r in engine.search(system.query, k=60)]


def test_tiny_pools_and_no_queries(make_system) -> None:
    system = make_system(0, items=1)
    engine = FastSearch(system.decoder, system.codebooks, system.index, SearchConfig())
    assert [r.position.tolist() for r in engine.search(system.query, k=3)] == [[0]] * 3
    assert engine.search(system.query[:0], k=3) == []
    nothing = system.index.allow(np.zeros(1, bool))
    assert [len(r) for r in engine.search(system.query, k=3, allowed=nothing)] == [0, 0, 0]


def test_what_is_not_a_number_is_refused(make_system) -> None:
    system = pooled(make_system, 0, "uniform")
    system.query[1, 2] = torch.nan
    for budget in (None, 1, 500):
        engine = FastSearch(system.decoder, system.codebooks, system.index, SearchConfig(beam=5), budget=budget)
        with pytest.raises(SiglumError, match="NaN"):
            engine.search(system.query, k=3)
    with pytest.raises(SiglumError, match="k must be at least 1, not 0"):
        engine.search(system.query, k=0)
    with pytest.raises(SiglumError, match="evaluation mode"):
        FastSearch(system.decoder.train(), system.codebooks, system.index, SearchConfig())


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"scorer": "oracle"}, "scorer oracle"),
        ({"scorer": "geometry"}, "scorer geometry"),
        ({"normalisation": "joint"}, "normalisation joint"),
        ({"zscore": True}, "zscore"),
        ({"prior": 0.5}, "search.prior and a decoder trained without decoder.null_queries"),
        ({"prior": 0.5, "normalisation": "children"}, "search.prior with normalisation children"),
        ({"prior": 0.5, "mode": "renormalised"}, "search.prior with normalisation children"),
        ({"lookahead": True, "scorer": "decoder"}, "search.lookahead with scorer decoder"),
        ({"engine": "reference"}, "engine reference"),
    ],
)
def test_what_the_engine_cannot_do_goes_to_the_reference_or_is_refused(make_system, changed, word: str) -> None:
    system = make_system(0)
    engine, config = Engine(system.codebooks, system.decoder, system.index), SearchConfig(**changed)
    assert engine.fast(config) is None
    with pytest.raises(SiglumError, match=word):
        engine.fast(replace(config, precision="bf16"))
    if "engine" not in changed:
        for build in (engine.fast, lambda c: FastSearch(system.decoder, system.codebooks, system.index, c)):
            with pytest.raises(SiglumError, match=word):
                build(replace(config, engine="fast"))


def test_weights_are_folded_once_and_again_when_they_change(make_system) -> None:
    system, config = make_system(0), SearchConfig(beam=4)
    engine = Engine(system.codebooks, system.decoder, system.index)
    first = engine.fast(config)
    assert first is engine.fast(config)
    wide = engine.fast(replace(config, beam=9))
    assert wide is not first and wide.network is first.network
    smaller = system.index.remove(["x0"])
    fewer = replace(engine, index=smaller).fast(config)
    assert fewer.index is smaller and fewer.network is first.network
    before = engine.fast(config).search(system.query, k=5)
    with torch.no_grad():
        system.decoder.table.mul_(0.5)
    after = engine.fast(config)
    assert after.network is not first.network
    fresh = FastSearch(system.decoder, system.codebooks, system.index, config).search(system.query, k=5)
    for new, right, old in zip(after.search(system.query, k=5), fresh, before, strict=True):
        assert_same(new, right)
        assert not np.allclose(new.score, old.score, atol=1e-3)
    assert engine.fast(replace(config, precision="bf16")).network.precision == "bf16"


def test_a_plan_runs_every_shared_position_once() -> None:
    codes = np.array([[0, 1, 2], [0, 1, 3], [0, 2, 2], [1, 0, 0]])
    paths = Paths(1, np.zeros(4, int), np.array([0, 0, 0, 1]), codes, np.arange(4), np.arange(1, 5))
    plan = PathPlan.of(paths, branching_only=False)
    assert [*zip(plan.path_U.tolist(), plan.level_U.tolist(), strict=True)] == [(0, 1), (0, 2), (2, 2), (3, 1), (3, 2)]
    assert plan.place_PT.tolist() == [[0, 1], [0, 1], [0, 2], [3, 4]]
    branching = PathPlan.of(paths, branching_only=True)
    assert [*zip(branching.path_U.tolist(), branching.level_U.tolist(), strict=True)] == [(0, 1), (0, 2)]
    assert branching.wanted_PT.tolist() == [[True, True], [True, True], [True, False], [False, False]]


@given(seed=SEEDS, kind=POOLS, level=st.integers(0, 3), branching_only=st.booleans())
def test_the_positions_of_a_plan_are_known_before_it(seed: int, kind: str, level: int, branching_only: bool) -> None:
    codes = np.unique(pool_codes(kind, 40, SIZES, np.random.default_rng(seed)), axis=0)
    parent = np.unique(codes[:, :level], axis=0, return_inverse=True)[1].ravel()
    paths = Paths(level, np.zeros(len(codes), int), parent, codes, np.arange(len(codes)), np.arange(len(codes)) + 1)
    plan = PathPlan.of(paths, branching_only=branching_only)
    counts = paths.positions(branching_only=branching_only)
    assert counts.tolist() == np.bincount(plan.path_U, minlength=len(codes)).tolist()
    nodes = {tuple(code[:depth]) for code in codes for depth in range(level, len(SIZES))}
    if branching_only:
        leaves = {node: sum(tuple(code[: len(node)]) == node for code in codes) for node in nodes}
        nodes = {node for node, number in leaves.items() if number > 1}
    assert counts.sum() == len(nodes)


@pytest.mark.parametrize("mode", ["exact", "renormalised"])
def test_threads_stay_and_a_forked_process_gets_its_own(make_system, monkeypatch: pytest.MonkeyPatch, mode) -> None:
    system = pooled(make_system, 5, "clustered")
    engine = FastSearch(system.decoder, system.codebooks, system.index, SearchConfig(beam=9, mode=mode))
    alone, threads = engine.search(system.query, k=20), torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        for _ in range(2):
            for left, right in zip(engine.search(system.query, k=20), alone, strict=True):
                assert_same(left, right)
            assert torch.get_num_threads() == 2
        kept = engine.workers.pool()
        assert engine.workers.pool() is kept
        assert kept.submit(torch.get_num_threads).result() == 1
        monkeypatch.setattr("os.getpid", lambda: -1)
        assert engine.workers.pool() is not kept
    finally:
        torch.set_num_threads(threads)


def test_a_search_changes_the_threads_of_nobody_else(make_system) -> None:
    system = pooled(make_system, 5, "clustered")
    engine = FastSearch(system.decoder, system.codebooks, system.index, SearchConfig(beam=9))
    threads, seen, done = torch.get_num_threads(), set(), Event()

    def watch() -> None:
        while not done.is_set():
            fresh = Thread(target=lambda: seen.add(torch.get_num_threads()))  # a thread takes the number when it begins
            fresh.start()
            fresh.join()

    try:
        torch.set_num_threads(2)
        watcher = Thread(target=watch)
        watcher.start()
        for _ in range(30):
            FastSearch(system.decoder, system.codebooks, system.index, SearchConfig(beam=9)).search(system.query, k=20)
            engine.search(system.query, k=20)
        done.set()
        watcher.join()
    finally:
        torch.set_num_threads(threads)
    assert seen == {2}


@pytest.mark.parametrize(("beam", "passes"), [(2, 2), (9, 1)])
def test_the_first_two_steps_are_one_pass_unless_the_beam_prunes_between(make_system, beam: int, passes: int) -> None:
    system = pooled(make_system, 2, "uniform")
    engine = FastSearch(system.decoder, system.codebooks, system.index, SearchConfig(beam=beam), budget=1)
    seen, run = [], engine.network.run
    engine.network.run = lambda tokens, *rest: seen.append(len(tokens)) or run(tokens, *rest)
    engine.search(system.query[:1], k=20)
    assert seen[:passes] == ([4] if passes == 1 else [1, 2])


def test_replay_prunes_a_prefix_whose_leaf_would_have_won() -> None:
    codes = np.array([[0, 0], [1, 0], [1, 1]])
    paths = Paths(0, np.zeros(3, int), np.zeros(3, int), codes, np.arange(3), np.arange(1, 4))
    scores = np.array([[2.0, 2.0], [1.0, 9.0], [1.0, 8.0]])
    assert replay(paths, scores, 1, 1).tolist() == [True, False, False]
    assert replay(paths, scores, 2, 1).tolist() == [False, True, True]
    assert replay(paths, scores, 3, 1).tolist() == [True, True, True]
