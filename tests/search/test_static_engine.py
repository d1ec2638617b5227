"""Static-shape search equals the reference beam search: any plan, batch, omega, filter and kind of pool."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from operations import Operations, tensors
from siglum.config import DecoderConfig, SearchConfig
from siglum.generate.decoder import CodeDecoder
from siglum.index import Index
from siglum.index.trie import Allowed
from siglum.search.beam import Ranking, search_items
from siglum.search.lookahead import build_lookahead
from siglum.search.scorers import Scorer, build_scorer
from siglum.search.static import GraphSearch, Plan
from siglum.search.static.engine import PackedFound
from siglum.search.static.search import BUCKETS
from siglum.types import SiglumError

TOLERANCE = 1e-4
SIZES = (3, 8, 6, 6, 5, 4, 7)
SEEDS = st.integers(0, 10_000)
OMEGAS = st.sampled_from([0.0, 0.5, 10.0, 50.0])
POOLS = st.sampled_from(["uniform", "clustered", "near", "equal"])
DECODER = DecoderConfig(
    d_model=16, d_ff=32, d_kv=4, heads=2, encoder_layers=2, decoder_layers=2, soft_tokens=1, null_queries=0.1
)


def make_codes(kind: str, items: int, rng: np.random.Generator) -> np.ndarray:
    """Return codes: uniform, around few prefixes, with 30 % near-duplicates, or with 30 % equal rows."""
    codes = np.stack([rng.integers(0, size, items) for size in SIZES], 1)
    if kind == "clustered":
        centre = codes[: max(1, items // 12)]
        own, deep = rng.integers(0, len(centre), items), rng.integers(1, len(SIZES), items)
        codes = np.where(np.arange(len(SIZES)) < deep[:, None], centre[own], codes)
    if kind in ("near", "equal"):
        copies, sources = rng.permutation(items)[: items // 3], rng.integers(0, items, items // 3)
        deep = len(SIZES) if kind == "equal" else rng.integers(3, len(SIZES), len(copies))[:, None]
        codes[copies] = np.where(np.arange(len(SIZES)) < deep, codes[sources], codes[copies])
    return codes


class Case:
    """A pool with codebooks, a random decoder and queries, and what the reference finds in it."""

    clear = True

    def __init__(self, seed: int, kind: str = "near", items: int = 90, queries: int = 3, soft_tokens: int = 1) -> None:
        rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
        self.index = Index.build([f"x{i}" for i in range(items)], make_codes(kind, items, rng), SIZES, "tok")
        self.books = [0.6**level * torch.randn(size, 6, generator=generator) / 3 for level, size in enumerate(SIZES)]
        self.decoder = CodeDecoder(replace(DECODER, soft_tokens=soft_tokens), SIZES, 6, generator).eval()
        with torch.no_grad():  # gains of 1 would hide a norm that is folded into the wrong matrix
            for name, parameter in self.decoder.named_parameters():
                if name.endswith("scale"):
                    parameter.uniform_(0.5, 1.5, generator=generator)
        self.query = torch.nn.functional.normalize(torch.randn(queries, 6, generator=generator), dim=1)
        self.mask = rng.random(items) < 0.4
        self.mask[seed % items] = True

    def engine(self, config: SearchConfig, plan: Plan | None = None, first: int = 1, tokens: int = 64) -> GraphSearch:
        return GraphSearch(self.decoder, self.books, self.index, config, first, "cpu", plan=plan, tokens=tokens)

    def reference(self, config: SearchConfig, k: int, allowed: Allowed | None = None, first: int = 1) -> list[Ranking]:
        """Search by the reference and note whether a rounding error may have decided who is pruned."""
        scorer = build_scorer(config, self.books, self.decoder, first)
        options = {"beam": config.beam, "k": k, "allowed": allowed, "ahead": build_lookahead(config, self.books, first)}
        if config.lookahead:  # what is compared is not known to the scorer: shake it instead
            found, *shaken = (search_items(s, self.index, self.query, **options) for s in (scorer, Shaken(scorer)))
            self.clear = all(set(a.position) == set(b.position) for a, b in zip(found, shaken[0], strict=True))
            return found
        noted = Noted(scorer, config.beam)
        found = search_items(noted, self.index, self.query, **options)
        self.clear = noted.margin > 2 * TOLERANCE
        return found


class Shaken:
    """A scorer with a little noise: where that changes the items found, a rounding error may do so too."""

    def __init__(self, scorer: Scorer) -> None:
        self.begin, self.advance, self.inner = scorer.begin, scorer.advance, scorer
        self.generator = torch.Generator().manual_seed(0)

    def score(self, *parts) -> Tensor:
        score = self.inner.score(*parts)
        return score + 4 * TOLERANCE * (torch.rand(score.shape, generator=self.generator) - 0.5)


class Noted:
    """A scorer that notes by how much the last survivor of a level beats the first that is pruned."""

    def __init__(self, scorer: Scorer, beam: int) -> None:
        self.scorer, self.beam, self.margin = scorer, beam, np.inf

    def begin(self, query_QD: Tensor):
        self.query, self.path = torch.arange(len(query_QD)), torch.zeros(len(query_QD)).double()
        return self.scorer.begin(query_QD)

    def score(self, state, level: int, parent_C: Tensor, token_C: Tensor) -> Tensor:
        step = self.scorer.score(state, level, parent_C, token_C)
        path, owner = self.path[parent_C] + step, self.query[parent_C]
        self.last = {(int(p), int(t)): x for p, t, x in zip(parent_C, token_C, path, strict=True)}
        for query in owner.unique():
            ordered = path[owner == query].sort(descending=True).values
            if len(ordered) > self.beam:
                self.margin = min(self.margin, float(ordered[self.beam - 1] - ordered[self.beam]))
        return step

    def advance(self, state, level: int, parent_R: Tensor, token_R: Tensor):
        self.path = torch.stack([self.last[int(p), int(t)] for p, t in zip(parent_R, token_R, strict=True)])
        self.query = self.query[parent_R]
        return self.scorer.advance(state, level, parent_R, token_R)


def assert_same(found: list[Ranking], wanted: list[Ranking], *, cut: bool = False) -> None:
    """Equal scores, and items in another order only where their scores are equal to the tolerance.

    With `cut` the rankings end at k: items whose scores equal the last one's may be others.
    """
    assert len(found) == len(wanted)
    for left, right in zip(found, wanted, strict=True):
        assert len(left) == len(right)
        np.testing.assert_allclose(left.score, right.score, atol=TOLERANCE, rtol=0)
        scores = dict(zip(right.position.tolist(), right.score.tolist(), strict=True))
        if not cut:
            assert set(scores) == set(left.position.tolist())
        for position, score in zip(left.position.tolist(), left.score.tolist(), strict=True):
            np.testing.assert_allclose(scores.get(position, right.score[-1]), score, atol=TOLERANCE, rtol=0)


@settings(max_examples=40)
@given(
    seed=SEEDS,
    kind=POOLS,
    omega=OMEGAS,
    beam=st.integers(1, 14),
    depth=st.integers(1, len(SIZES)),
    cap=st.sampled_from([8, 16, 32, 96]),
    merged=st.integers(0, 2),
)
def test_any_plan_equals_the_reference(
    seed: int, kind: str, omega: float, beam: int, depth: int, cap: int, merged: int
) -> None:
    """Small rooms overflow, so this also walks the queries that a plan has no room for."""
    case, config = Case(seed, kind), SearchConfig(beam=beam, omega=omega)
    wanted = case.reference(config, k=99)
    assume(case.clear)
    assert_same(case.engine(config, Plan(depth, cap, merged)).search(case.query, k=99), wanted)


@settings(max_examples=25)
@given(seed=SEEDS, kind=POOLS, omega=OMEGAS, beam=st.integers(1, 14), queries=st.integers(1, 9), k=st.integers(1, 30))
def test_the_plan_of_choice_equals_the_reference(
    seed: int, kind: str, omega: float, beam: int, queries: int, k: int
) -> None:
    case, config = Case(seed, kind, queries=queries), SearchConfig(beam=beam, omega=omega)
    wanted = case.reference(config, k)
    assume(case.clear)
    assert_same(case.engine(config).search(case.query, k=k), wanted, cut=True)


@settings(max_examples=25)
@given(seed=SEEDS, kind=POOLS, omega=OMEGAS, beam=st.integers(1, 10), depth=st.integers(1, len(SIZES)))
def test_filters_equal_the_reference(seed: int, kind: str, omega: float, beam: int, depth: int) -> None:
    case, config = Case(seed, kind), SearchConfig(beam=beam, omega=omega)
    allowed = case.index.allow(case.mask)
    engine, wanted = case.engine(config, Plan(depth, 16, 1)), case.reference(config, 99, allowed)
    assume(case.clear)
    assert_same(engine.search(case.query, k=99, allowed=allowed), wanted)
    assert_same(engine.search(case.query, k=99, allowed=allowed), wanted)  # once more from what was kept


@settings(max_examples=10)
@given(seed=SEEDS, soft_tokens=st.integers(1, 3), first=st.integers(0, 3), depth=st.integers(1, len(SIZES)))
def test_soft_tokens_and_first_levels_equal_the_reference(seed: int, soft_tokens: int, first: int, depth: int) -> None:
    case, config = Case(seed, soft_tokens=soft_tokens), SearchConfig(beam=6)
    wanted = case.reference(config, 99, first=first)
    assume(case.clear)
    assert_same(case.engine(config, Plan(depth, 32, 2), first).search(case.query, k=99), wanted)


@settings(max_examples=10)
@given(seed=SEEDS)
def test_the_decoder_alone_equals_the_reference(seed: int) -> None:
    case, config = Case(seed), SearchConfig(beam=5, scorer="decoder")
    wanted = case.reference(config, 99)
    assume(case.clear)
    assert_same(case.engine(config).search(case.query, k=99), wanted)


def test_a_plan_without_room_is_noticed_and_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    case, config, plans = Case(3, "near", queries=5), SearchConfig(beam=12), []
    engine = case.engine(config, Plan(1, 8))
    assert not engine.plan(1).sure
    found = engine.engine.find(case.query, engine.plan(1), 9)
    assert found.over_Q.all()
    whole = engine.engine.find
    monkeypatch.setattr(engine.engine, "find", lambda query, plan, k: (plans.append(plan), whole(query, plan, k))[1])
    assert_same(engine.search(case.query, k=99), case.reference(config, 99))
    assert [plan.depth for plan in plans] == [1, len(SIZES)]


def test_graphs_are_captured_before_a_query_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for graphs: what was captured at the first call serves every later one, late queries too."""
    made: list[int] = []

    class Stand:
        def __init__(self, run, batch, width, device, memory) -> None:
            made.append(batch)
            self.run, self.batch = run, batch

        def __call__(self, query: Tensor) -> PackedFound:
            assert len(query) <= self.batch
            return self.run(query)

        def fetch(self, query: Tensor) -> np.ndarray:
            return self(query).packed_QF.numpy()

    monkeypatch.setattr("siglum.search.static.search.Captured", Stand)
    case, config = Case(3, "near", queries=20), SearchConfig(beam=12)
    engine = case.engine(config, Plan(1, 8))
    engine._graphs = True
    wanted = case.reference(config, 99)
    assert_same(engine.search(case.query, k=99), wanted)
    assert sorted(made) == [1, 8, 32]
    assert_same(engine.search(case.query, k=99), wanted)
    assert_same(engine.search(case.query[:1], k=99), wanted[:1])
    assert sorted(made) == [1, 1, 8, 32]
    sure = case.engine(config, Plan(len(SIZES)))
    sure._graphs = True
    sure.search(case.query, k=99)
    assert sorted(made) == [1, 1, 8, 32, 32]


def test_a_sure_plan_never_overflows() -> None:
    for seed in range(8):
        case = Case(seed, ["uniform", "clustered", "near", "equal"][seed % 4], queries=12)
        shape = case.engine(SearchConfig(beam=7)).engine.shape
        for batch in (1, 64):
            plan = shape.best(batch, sure=True)
            assert plan.sure
            assert not case.engine(SearchConfig(beam=7), plan).engine.find(case.query, plan, 5).over_Q.any()


@pytest.mark.parametrize("kind", ["uniform", "clustered", "near"])
def test_learnt_plans_hold_the_queries_they_were_learnt_from(kind: str) -> None:
    case, config = Case(9, kind, items=200, queries=70), SearchConfig(beam=8)
    engine = case.engine(config)
    wanted = engine.search(case.query, k=10)
    engine.learn(case.query)
    shape = engine.engine.shape
    for depth in range(1, len(SIZES)):
        assert shape.usual[depth] <= shape.most[depth]
        assert not engine.engine.find(case.query, shape.plan(depth), 3).over_Q.any()
        if shape.usual[depth] > 9:
            assert engine.engine.find(case.query, shape.plan(depth, shape.usual[depth] - 8), 3).over_Q.any()
    assert_same(engine.search(case.query, k=10), wanted, cut=True)


def test_tensors_are_rows_of_the_index_and_scores() -> None:
    case, config = Case(1, "equal"), SearchConfig(beam=6)
    engine = case.engine(config)
    rows, scores = engine.search_tensors(case.query, 40)
    rankings = engine.search(case.query, k=40)
    assert rows.shape == scores.shape == (3, 40)
    for row, score, ranking in zip(rows.numpy(), scores.numpy(), rankings, strict=True):
        assert row[: len(ranking)].tolist() == ranking.row.tolist()
        assert score[: len(ranking)].tolist() == ranking.score.tolist()
        assert (row[len(ranking) :] == -1).all() and np.isneginf(score[len(ranking) :]).all()
        assert ranking.position.tolist() == case.index.order[ranking.row].tolist()


def test_many_queries_are_cut_into_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("siglum.search.static.search.BUCKETS", (1, 4))
    case, config = Case(2, queries=11), SearchConfig(beam=5)
    assert_same(case.engine(config, Plan(3, 8)).search(case.query, k=20), case.reference(config, 20), cut=True)
    assert BUCKETS[-1] == 1024


def test_no_queries_and_filters_without_rows_find_nothing() -> None:
    case = Case(0)
    engine = case.engine(SearchConfig(beam=4))
    assert engine.search(case.query[:0], k=3) == []
    assert [found.shape for found in engine.search_tensors(case.query[:0], 3)] == [(0, 3), (0, 3)]
    found = engine.search(case.query, k=3, allowed=Allowed.of(np.zeros(len(case.index), bool)))
    assert [len(ranking) for ranking in found] == [0, 0, 0]


def test_bf16_ranks_nearly_the_same() -> None:
    case, config = Case(4, items=300, queries=8), SearchConfig(beam=20)
    full = case.engine(config).search(case.query, k=20)
    args = (case.decoder, case.books, case.index, config, 1, "cpu")
    half = GraphSearch(*args, dtype=torch.bfloat16).search(case.query, k=20)
    shared = [len(set(a.position) & set(b.position)) / len(b) for a, b in zip(half, full, strict=True)]
    assert np.mean(shared) > 0.9
    assert max(abs(a.score[0] - b.score[0]) for a, b in zip(half, full, strict=True)) < 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scorer": "oracle"}, "search.scorer oracle has no static-shape search"),
        ({"normalisation": "joint"}, "search.normalisation joint has no static-shape search"),
        ({"mode": "scan"}, "search.mode scan has no static-shape search"),
        ({"zscore": True}, "search.zscore has no static-shape search"),
        ({"lookahead": True, "scorer": "decoder"}, "search.lookahead with search.scorer decoder has no static-shape"),
        ({"prior": 0.5, "normalisation": "children"}, "search.normalisation children has no static-shape search"),
        ({"leaf_order": "dense"}, "search.leaf_order dense has no static-shape search"),
        ({"beam": 0}, "the beam must be at least 1, not 0."),
    ],
)
def test_what_it_does_not_do_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(SiglumError, match=message):
        Case(0).engine(SearchConfig(**options))  # type: ignore[arg-type]


def test_bad_queries_are_refused() -> None:
    case = Case(0)
    engine = case.engine(SearchConfig(beam=4))
    with pytest.raises(SiglumError, match=r"must have shape \(Q, 6\), but have \(3, 5\)"):
        engine.search(case.query[:, :5], k=3)
    with pytest.raises(SiglumError, match="k must be at least 1, not 0"):
        engine.search(case.query, k=0)
    with pytest.raises(SiglumError, match="contain NaN"):
        engine.search(case.query * torch.nan, k=3)
    case.decoder.config = replace(case.decoder.config, null_queries=0.0)
    with pytest.raises(SiglumError, match=r"a decoder trained with decoder\.null_queries"):
        case.engine(SearchConfig(prior=1.0))


class Spoken(Operations):
    """Collects the operations that run, with the shapes of what they return."""

    def __init__(self) -> None:
        super().__init__()
        self.names, self.shapes = set(), []

    def hear(self, func, args, kwargs, out):
        self.names.add(func.overloadpacket.__name__)
        self.shapes.append([tuple(x.shape) for x in tensors(out)])
        if func.overloadpacket.__name__ == "index":
            assert all(i is None or i.dtype != torch.bool for i in args[1]), "a boolean index asks the host for a size"


@pytest.mark.parametrize("changed", [{}, {"lookahead": True, "prior": 1.0}])
@pytest.mark.parametrize("plan", [Plan(3, 16, 2), Plan(2, 64, 0), Plan(7, 0, 1)])
def test_a_search_can_be_captured(plan: Plan, changed: dict) -> None:
    """Once warm, no operation reads a number back, makes a tensor from host data or has a shape that data decide."""
    case = Case(8, "near", queries=4)
    engine = case.engine(SearchConfig(beam=9, **changed)).engine
    plan, heard = engine.shape.fit(plan), []
    engine.find(case.query, plan, 7)
    for query in (case.query, torch.roll(case.query, 1, 1)):
        with Spoken() as spoken:
            engine.find(query, plan, 7)
        heard.append(spoken.shapes)
        waits = {"_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique2", "bincount", "lift_fresh"}
        assert not spoken.names & waits
    assert heard[0] == heard[1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("plan", [None, Plan(3, 32, 2), Plan(2, 8), Plan(7, 0, 1)])
def test_graphs_on_a_gpu_equal_the_reference(plan: Plan | None, fused: bool) -> None:
    case, config = Case(7, queries=10), SearchConfig(beam=9)
    case.decoder = CodeDecoder(replace(DECODER, d_kv=16), SIZES, 6, torch.Generator().manual_seed(1)).eval()
    wanted = case.reference(config, 99)
    assert case.clear
    args = (case.decoder, case.books, case.index, config, 1, "cuda")
    engine = GraphSearch(*args, dtype=torch.float32, plan=plan, fused=fused)
    changes = ({"omega": 0.0}, {"beam": 4}, {"scorer": "decoder"}, {"lookahead": True, "prior": 1.0})
    twins = [engine.with_(case.index, replace(config, **changed)) for changed in changes]
    for _ in range(2):  # captured, then replayed, with other graphs of the same memory in between
        assert_same(engine.search(case.query, k=99), wanted)
        assert_same([engine.search(part, k=99)[0] for part in case.query.split(1)], wanted)
        for twin in twins:
            assert_same(twin.search(case.query, k=99), case.reference(twin.config, 99))
    allowed = case.index.allow(case.mask)
    assert_same(engine.search(case.query, k=99, allowed=allowed), case.reference(config, 99, allowed))


@pytest.mark.parametrize(("triton", "message"), [(None, "needs Triton"), (True, "needs d_kv 16, 32, 64 or 128, not 4")])
def test_what_fused_kernels_cannot_do_is_refused(monkeypatch: pytest.MonkeyPatch, triton: object, message: str) -> None:
    monkeypatch.setattr("siglum.search.static.search.find_spec", lambda name: triton)
    case = Case(0)
    with pytest.raises(SiglumError, match=message):
        GraphSearch(case.decoder, case.books, case.index, SearchConfig(), 1, "cpu", fused=True)
