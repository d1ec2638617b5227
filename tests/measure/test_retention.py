"""The bound's quantities against loops over every prefix, and against the searches they speak of."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import slow_search as reference
from siglum.measure import retention as module
from siglum.measure.prefixes import Prefixes, walk
from siglum.measure.retention import LevelQuantities, QueryBatch, retention, survey
from siglum.measure.survival import beam_survival, token_survival
from siglum.search.lookahead import LookAhead
from siglum.search.scorers import DecoderScorer, GeometryScorer, OracleScorer
from siglum.types import SiglumError

SEEDS = st.integers(0, 10_000)
TAU, QUERIES = 0.3, 7
Prefix = tuple[int, ...]


def whole(system, seed: int) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
    """Return codebooks, items, queries and targets of small whole numbers, so that ties are exact."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randint(-2, 3, shape, generator=generator).double()

    books = [draw(*book.shape) for book in system.codebooks]
    target = torch.randint(0, len(system.codes), (QUERIES,), generator=generator)
    return books, draw(len(system.codes), 6), draw(QUERIES, 6), target


def softmax(score: dict[Prefix, float], tau: float) -> dict[Prefix, float]:
    top = max(score.values())
    weight = {p: np.exp((s - top) / tau) for p, s in score.items()}
    return {p: w / sum(weight.values()) for p, w in weight.items()}


def scores(codes: list[Prefix], level: int, query: Tensor, item: Tensor, books: list[Tensor]):
    """Score every distinct prefix by loops: teacher and oracle."""
    teacher: dict[Prefix, float] = {}
    for code, vector in zip(codes, item, strict=True):
        prefix = code[: level + 1]
        teacher[prefix] = max(teacher.get(prefix, -np.inf), float(query @ vector))
    oracle = {p: sum(float(query @ books[t][v]) for t, v in enumerate(p)) for p in teacher}
    return teacher, oracle


@given(seed=SEEDS, beam=st.integers(1, 9), chunk=st.integers(1, 9))
def test_quantities_equal_loops_over_prefixes(make_system, seed: int, beam: int, chunk: int) -> None:
    system = make_system(seed)
    books, item, query, target = whole(system, seed)
    codes = [tuple(row) for row in system.codes.tolist()]
    asked = QueryBatch(books, 1, torch.as_tensor(system.codes), item, query, target)
    found = retention(asked, beam=beam, tau=TAU, chunk=chunk)
    assert [(one.level, one.size) for one in found] == [(0, 3), (1, 4), (2, 5), (3, 4)]
    for level, one in enumerate(found):
        assert one.prefixes == len({code[: level + 1] for code in codes})
        assert one.eps_Q is None and one.eps_scope is None and one.uncovered_Q is None
        for q in range(QUERIES):
            own = codes[int(target[q])]
            teacher, oracle = scores(codes, level, query[q], item, books)
            star, bar = softmax(teacher, TAU), softmax(oracle, TAU)
            wanted = sum(p * np.log(p / bar[prefix]) for prefix, p in star.items() if p > 0)
            assert one.K_Q[q] == pytest.approx(wanted, abs=1e-9)
            rival = sorted(star.values(), reverse=True)[beam] if len(star) > beam else 0.0
            assert one.m_Q[q] == pytest.approx(star[own[: level + 1]] - rival, abs=1e-12)
            short = [code[: level + 1] for code in codes]
            live = reference.reference_search(short, reference.oracle_score(query[q], books), beam)
            assert one.survived_Q[q] == (own[: level + 1] in [prefix for prefix, _ in live])


@given(seed=SEEDS, beam=st.integers(1, 6))
def test_token_survival_is_that_of_the_tokenizer(make_system, seed: int, beam: int) -> None:
    system = make_system(seed)
    books, item, query, target = whole(system, seed)
    codes = torch.as_tensor(system.codes)
    found = retention(QueryBatch(books, 1, codes, item, query, target), beam=beam, tau=TAU)
    assert [one.token_survived_Q.mean() for one in found] == pytest.approx(
        token_survival(query, codes[target], books, beam)
    )


@settings(max_examples=10)
@given(seed=SEEDS, beam=st.integers(1, 6))
def test_rungs_are_real_beam_searches(make_system, seed: int, beam: int) -> None:
    system = make_system(seed, items=40)
    books, item, query, target = whole(system, seed)
    books, item, query = [book.float() for book in books], item.float(), query.float()
    rows = system.index.rows([f"x{int(t)}" for t in target])
    ahead = {"look-ahead": (GeometryScorer(books, 0.0), LookAhead(books, 1.0))}
    asked = QueryBatch(books, 1, torch.as_tensor(system.codes), item, query, target)
    rungs = survey(asked, beam=beam, tau=TAU, beams=ahead, chunk=3).rungs
    assert [rung.name for rung in rungs] == ["teacher", "oracle", "geometry", "look-ahead"]
    for rung, scorer in ((rungs[1], OracleScorer(books)), (rungs[2], GeometryScorer(books))):
        assert rung.survival == beam_survival(scorer, system.index, query, rows, beam)
    scorer, potential = ahead["look-ahead"]
    assert rungs[3].survival == beam_survival(scorer, system.index, query, rows, beam, ahead=potential)
    codes = [tuple(row) for row in system.codes.tolist()]
    for level in range(4):
        alive, share = 0, 0.0
        for q in range(QUERIES):
            teacher = {p: s for k in range(level + 1) for p, s in scores(codes, k, query[q], item, books)[0].items()}
            short = [code[: level + 1] for code in codes]
            live = [p for p, _ in reference.reference_search(short, lambda p, s, t=teacher: t[p], beam)]
            alive += short[int(target[q])] in live
            share += sum(code in live for code in short) / len(codes)
        assert rungs[0].survival[level] == pytest.approx(alive / QUERIES)
        assert rungs[0].leaves[level] == pytest.approx(share / QUERIES)


def apart(one: dict[Prefix, float], other: dict[Prefix, float]) -> float:
    return sum(abs(one[p] - other[p]) for p in one) / 2


@settings(max_examples=8)
@given(seed=SEEDS, chunk=st.integers(1, 9), normalisation=st.sampled_from(["level", "children", "joint"]))
def test_eps_over_all_prefixes_equals_a_loop(make_system, seed: int, chunk: int, normalisation: str) -> None:
    system = make_system(seed, items=12, queries=3)
    item, target, omega = torch.randn(12, 6, generator=torch.Generator().manual_seed(seed)), torch.arange(3), 3.0
    decoder, bias = DecoderScorer(system.decoder, normalisation), GeometryScorer(system.codebooks, omega)
    asked = QueryBatch(system.codebooks, 1, torch.as_tensor(system.codes), item, system.query, target)
    found = survey(asked, beam=2, tau=TAU, decoder=decoder, bias=bias, chunk=chunk).levels
    codes = [tuple(row) for row in system.codes.tolist()]
    for q, query in enumerate(system.query):
        log_p = reference.decoder_score(query, system.decoder, normalisation)
        near = reference.geometry_score(query, system.codebooks)
        for level, one in enumerate(found):
            assert one.eps_scope == "full"
            _, oracle = scores(codes, level, query, item, system.codebooks)
            bar, said, fused = softmax(oracle, TAU), {}, {}
            for p in sorted(oracle):
                siblings = sorted(other for other in oracle if other[:-1] == p[:-1])
                said[p] = log_p(p, siblings)
                fused[p] = said[p] + omega * near(p, siblings)
            assert one.eps_Q[q] == pytest.approx(apart(bar, softmax(said, TAU)), abs=1e-4)
            assert one.eps_plain_Q[q] == pytest.approx(apart(bar, softmax(said, 1.0)), abs=1e-4)
            assert one.eps_fused_Q[q] == pytest.approx(apart(bar, softmax(fused, TAU)), abs=1e-4)
            assert one.eps_fused_plain_Q[q] == pytest.approx(apart(bar, softmax(fused, 1.0)), abs=1e-4)
            assert one.uncovered_Q[q] == pytest.approx(0, abs=1e-5)


@settings(max_examples=6)
@given(seed=SEEDS)
def test_eps_over_followed_prefixes_says_what_it_leaves_out(make_system, seed: int) -> None:
    """With room for one prefix a list, eps is over beam, best of teacher and oracle, and target."""
    system = make_system(seed, items=60, sizes=(3, 5, 5, 5), queries=3)
    item = torch.randn(60, 6, generator=torch.Generator().manual_seed(seed))
    codes, target = [tuple(row) for row in system.codes.tolist()], torch.arange(3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "FULL", 3)
        patch.setattr(module, "TOP", 1)
        asked = QueryBatch(system.codebooks, 0, torch.as_tensor(system.codes), item, system.query, target)
        found = retention(asked, beam=2, tau=TAU, decoder=system.decoder)
    assert [one.eps_scope for one in found] == ["full", "full", module.SCOPE, module.SCOPE]
    for q, query in enumerate(system.query):
        log_p = reference.decoder_score(query, system.decoder)
        for level, one in enumerate(found[2:], start=2):
            teacher, oracle = scores(codes, level, query, item, system.codebooks)
            live = reference.reference_search([code[: level + 1] for code in codes], log_p, 2)
            inside = {p for p, _ in live} | {codes[q][: level + 1]}
            inside |= {max(sorted(score), key=lambda p, s=score: s[p]) for score in (teacher, oracle)}
            bar = softmax({p: oracle[p] for p in inside}, TAU)
            said = softmax({p: log_p(p, []) for p in inside}, TAU)
            assert one.eps_Q[q] == pytest.approx(apart(bar, said), abs=1e-4)
            whole_bar = softmax(oracle, TAU)
            assert one.uncovered_Q[q] == pytest.approx(1 - sum(whole_bar[p] for p in inside), abs=1e-5)
            assert one.eps_fused_Q is None


def test_results_do_not_depend_on_the_chunk(make_system) -> None:
    system = make_system(3, items=80, sizes=(3, 6, 6, 6), queries=11)
    item = torch.randn(80, 6, generator=torch.Generator().manual_seed(3))
    asked = QueryBatch(system.codebooks, 1, torch.as_tensor(system.codes), item, system.query, torch.arange(11))
    runs = [retention(asked, beam=3, tau=0.05, decoder=system.decoder, omega=2.0, chunk=chunk) for chunk in (1, 4, 64)]
    for levels in zip(*runs, strict=True):
        for name in (field.name for field in fields(LevelQuantities) if field.name.endswith("_Q")):
            first, *others = (getattr(one, name) for one in levels)
            assert first.shape == (11,)
            for other in others:
                np.testing.assert_allclose(first.astype(float), other.astype(float), atol=2e-4, err_msg=name)


def test_a_walk_gives_the_log_probability_of_every_leaf(make_system) -> None:
    system = make_system(1, items=30, queries=2)
    prefixes = Prefixes(system.index)
    *_, leaves = walk(prefixes, [DecoderScorer(system.decoder)], system.query, [None] * 4)
    wanted = system.log_probability()[:, torch.as_tensor(system.index.order[prefixes.first[-1]].astype(np.int64))]
    assert leaves.prefix_C.tolist() == 2 * list(range(prefixes.count[-1]))
    np.testing.assert_allclose(leaves.score_SC[0], wanted.numpy().ravel(), atol=1e-4)


def test_a_decoder_may_be_asked_with_other_vectors(make_system) -> None:
    system = make_system(2, queries=3)
    item = torch.randn(24, 6, generator=torch.Generator().manual_seed(2))
    asked = QueryBatch(system.codebooks, 1, torch.as_tensor(system.codes), item, system.query, torch.arange(3))
    plain = retention(asked, beam=2, tau=TAU, decoder=system.decoder)
    other = retention(replace(asked, asked=-system.query), beam=2, tau=TAU, decoder=system.decoder)
    assert not np.allclose(plain[-1].eps_Q, other[-1].eps_Q)
    np.testing.assert_array_equal(plain[-1].K_Q, other[-1].K_Q)


def test_where_the_beam_holds_all_prefixes_the_margin_is_the_target_s_mass(make_system) -> None:
    system = make_system(0)
    item = torch.randn(24, 6, generator=torch.Generator().manual_seed(0))
    asked = QueryBatch(system.codebooks, 1, torch.as_tensor(system.codes), item, system.query, torch.arange(3))
    for one in retention(asked, beam=24, tau=TAU):
        assert one.survived_Q.all() and (one.m_Q > 0).all()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"beam": 0}, "beam must be at least 1, not 0"),
        ({"chunk": 0}, "chunk must be at least 1"),
        ({"tau": 0.0}, "temperature must be a number above 0"),
        ({"target": 2}, "3 queries with 2 targets"),
        ({"target": 0, "queries": 0}, "0 queries"),
    ],
)
def test_bad_input_is_refused(make_system, change: dict[str, float], said: str) -> None:
    system = make_system(0)
    options = {"beam": 2, "tau": TAU, **{k: v for k, v in change.items() if k in ("beam", "chunk", "tau")}}
    target, queries = torch.arange(int(change.get("target", 3))), int(change.get("queries", 3))
    item = torch.zeros(24, 6)
    vectors = (system.codebooks, 1, torch.as_tensor(system.codes), item, system.query[:queries], target)
    with pytest.raises(SiglumError, match=said):
        retention(QueryBatch(*vectors), **options)
