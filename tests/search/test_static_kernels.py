"""Kernels equal the plain operations they stand for: compiled on a GPU, elsewhere interpreted by Triton on the CPU.

The interpreter runs a kernel's programs one after another in numpy. So it tells whether indices, masks and sums are
right; it tells nothing of what only a compiler or a GPU refuses (sides of `tl.dot` below 16, registers, num_warps), of
programs that write to one place at once, nor of speed.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_static_engine import DECODER, POOLS, SEEDS, SIZES, Case, assert_same
from torch import Tensor

from siglum.config import SearchConfig
from siglum.generate.decoder import CodeDecoder
from siglum.search.static import GraphSearch, Plan, triton_steps
from siglum.search.static import beam_steps as steps
from siglum.search.static.beam_ops import BeamLeaves, Candidates, GeometryTables, LiveNodes
from siglum.search.static.beam_steps import Steps
from siglum.search.static.fused import FusedSteps
from siglum.search.static.layout import CacheLayout
from siglum.search.static.passes import KERNELS, Passes
from siglum.search.static.plan import Shape
from siglum.search.static.trie import DeviceTrie
from siglum.search.static.weights import Weights, norm
from siglum.types import SiglumError

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton, which is for Linux only")
FIRST = [1 + sum(SIZES[:level]) for level in range(len(SIZES))]


def in_order(found: Candidates, path_QC: Tensor, width: int) -> tuple[Candidates, Tensor, Tensor | None]:
    """Choose the best as `step.narrow` does, best first and of equals the first: the order of counting."""
    if path_QC.shape[1] <= width:
        return found, path_QC, None
    place = path_QC.argsort(dim=1, descending=True, stable=True)[:, :width]
    columns = (found.owner_QC, found.token_QC, found.lo_QC, found.hi_QC)
    return Candidates(*(column.gather(1, place) for column in columns)), path_QC.gather(1, place), place


class Walk:
    """A trie and random scores; the plain steps and the kernels walk it side by side."""

    def __init__(self, seed: int, kind: str, beam: int, queries: int, first: int, *, filtered: bool, weighs: bool):
        case = Case(seed, kind, items=70)
        self.trie = DeviceTrie(case.index, DEVICE, case.index.allow(case.mask) if filtered else None)
        books = [book.to(DEVICE) for book in case.books]
        geometry = GeometryTables(self.trie, books, 3.0, first) if weighs else None
        self.shape, self.queries = Shape.of(self.trie, beam), queries
        parts = (self.trie, geometry, self.shape, beam, FIRST)
        self.plain, self.fused = Steps(*parts), FusedSteps(*parts)
        self.draw = torch.Generator().manual_seed(seed)
        self.dot_QV = self.random(queries, sum(SIZES[first:])) if weighs else None

    def random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.draw).to(DEVICE)

    def go(self, plan: Plan) -> tuple[LiveNodes, LiveNodes]:
        """Walk to the plan's depth and compare the live nodes at every level."""
        layout = CacheLayout.of(self.trie, self.shape, FIRST, plan, self.queries)
        plain = fused = layout.root
        for level in range(plan.depth):
            log_QWV = self.random(self.queries, plain.lo_QW.shape[1], SIZES[level]).log_softmax(-1)
            plain = self.plain.grow(level, plain, log_QWV, self.dot_QV, layout, plan)
            fused = self.fused.grow(level, fused, log_QWV, self.dot_QV, layout, plan)
            same(plain.path_QW, fused.path_QW)
            lives = plain.path_QW != -torch.inf
            for left, right in zip(plain[:2] + plain[3:5], fused[:2] + fused[3:5], strict=True):
                assert torch.equal(left[lives].long(), right[lives].long())
            assert (fused.lo_QW >= 0).all() and (fused.lo_QW < len(self.trie.rows)).all()
        return plain, fused


def same(left: Tensor, right: Tensor) -> None:
    """Equal to rounding, infinities included."""
    torch.testing.assert_close(right, left, atol=1e-4, rtol=0, equal_nan=True)


WALKS = st.builds(
    Walk,
    SEEDS,
    POOLS,
    beam=st.sampled_from([1, 3, 9, 100]),
    queries=st.integers(1, 3),
    first=st.integers(0, 3),
    filtered=st.booleans(),
    weighs=st.booleans(),
)


@pytest.mark.long
@needs_triton
@settings(max_examples=50)
@given(walk=WALKS, depth=st.integers(1, len(SIZES)), merged=st.integers(0, 2), listed=st.booleans())
def test_beams_grow_and_unfold_like_the_plain_steps(walk: Walk, depth: int, merged: int, listed: bool) -> None:
    plan = walk.shape.fit(Plan(depth, 24, merged))
    with pytest.MonkeyPatch.context() as patch:
        if listed:
            patch.setattr(triton_steps, "COUNTED", 0)
        else:
            patch.setattr(steps, "narrow", in_order)
        plain, fused = walk.go(plan)
    if plan.depth == walk.shape.levels:
        same(walk.plain.finish(plain, 9), walk.fused.finish(fused, 9))
        return
    left, right = walk.plain.unfold(plain, walk.dot_QV, plan), walk.fused.unfold(fused, walk.dot_QV, plan)
    same(left.leaves.path_QC, right.leaves.path_QC)
    used = left.leaves.path_QC != -torch.inf
    assert torch.equal(left.leaves.over_Q, right.leaves.over_Q)
    for a, b in zip((*left.leaves[1:4], *left[1:4]), (*right.leaves[1:4], *right[1:4]), strict=True):
        assert torch.equal(a[used].long(), b[used].long())
    assert (right.past_QCd >= 0).all() and (right.token_QCT >= 0).all() and (right.token_QCT <= sum(SIZES)).all()
    if left.gain_QCT is not None:
        same(left.gain_QCT[used], right.gain_QCT[used])


@needs_triton
@settings(max_examples=25)
@given(walk=WALKS, depth=st.integers(1, len(SIZES) - 1), k=st.integers(1, 40), coarse=st.booleans(), cap=st.booleans())
def test_leaves_are_settled_like_the_plain_steps(walk: Walk, depth: int, k: int, coarse: bool, cap: bool) -> None:
    """Coarse scores have ties, which pruning and ranking must break alike."""
    plan = walk.shape.fit(Plan(depth, 16 if cap else 70, 0))
    every = walk.trie.generation(depth)
    place_QW = walk.random(walk.queries, len(every.lo_C)).argsort(1)[:, : walk.shape.live[depth]]
    path_QW = walk.random(*place_QW.shape).double()
    path_QW[:, 3::4] = -torch.inf
    line_QWS = torch.zeros(*path_QW.shape, depth + 1, dtype=torch.int32, device=DEVICE)
    beams = LiveNodes(
        every.lo_C[place_QW], every.hi_C[place_QW], path_QW.round() if coarse else path_QW, place_QW, line_QWS
    )
    tail = walk.plain.unfold(beams, walk.dot_QV, plan)
    step_QCT = walk.random(*tail.code_QCT.shape)
    step_QCT = step_QCT.round() if coarse else step_QCT
    same(walk.plain.settle(tail.leaves, step_QCT, plan, k), walk.fused.settle(tail.leaves, step_QCT, plan, k))


@needs_triton
def test_more_leaves_than_one_program_holds_are_settled_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    walk = Walk(3, "near", 5, 2, 1, filtered=False, weighs=True)
    plan = walk.shape.fit(Plan(2, 40, 0))
    monkeypatch.setattr(steps, "narrow", in_order)
    _, beams = walk.go(plan)
    tail = walk.fused.unfold(beams, walk.dot_QV, plan)
    step_QCT = walk.random(*tail.code_QCT.shape)
    small = walk.fused.settle(tail.leaves, step_QCT, plan, 8)
    monkeypatch.setattr("siglum.search.static.fused.LEAVES", 8)
    monkeypatch.setattr("siglum.search.static.triton_leaves.settle", None)
    same(small, walk.fused.settle(tail.leaves, step_QCT, plan, 8))


@needs_triton
def test_what_is_not_a_number_is_kept_and_comes_first() -> None:
    """A place that nobody writes would hold any number; and the caller is to hear of the fault."""
    walk = Walk(5, "uniform", 4, 2, 1, filtered=False, weighs=False)
    layout = CacheLayout.of(walk.trie, walk.shape, FIRST, Plan(2, 8, 0), 2)
    beams = layout.root
    for level in range(2):
        log_QWV = torch.full((2, beams.lo_QW.shape[1], SIZES[level]), torch.nan, device=DEVICE)
        beams = walk.fused.grow(level, beams, log_QWV, None, layout, Plan(2, 8, 0))
    assert beams.path_QW.isnan().all()
    assert (beams.lo_QW < beams.hi_QW).all()
    assert all(len(set(row)) == len(row) for row in beams.lo_QW.tolist())
    path = torch.tensor([[-1.0, torch.nan, -torch.inf, 0.5]], dtype=torch.float64, device=DEVICE)
    row = torch.tensor([[0, 1, 2, 3]], dtype=torch.int32, device=DEVICE)
    found = walk.fused.finish(LiveNodes(row, row + 1, path, row, row[..., None]), 3)
    assert found[0, :3].tolist() == [1, 3, 0]


@needs_triton
@settings(max_examples=25)
@example(seed=1, queries=1, tokens=1, inner=48, outer=600, normed=True, relu=False, adds=True, onto=True)
@example(seed=2, queries=1, tokens=1, inner=300, outer=300, normed=True, relu=True, adds=False, onto=False)
@given(
    seed=SEEDS,
    queries=st.integers(1, 3),
    tokens=st.integers(1, 30),
    inner=st.sampled_from([16, 48, 300]),
    outer=st.sampled_from([16, 40, 600]),
    normed=st.booleans(),
    relu=st.booleans(),
    adds=st.booleans(),
    onto=st.booleans(),
)
def test_products_of_few_rows(
    seed: int, queries: int, tokens: int, inner: int, outer: int, normed: bool, relu: bool, adds: bool, onto: bool
) -> None:
    from siglum.search.static.triton_kernels import product

    draw = torch.Generator().manual_seed(seed)
    x, weight, add, stream = (
        torch.randn(*shape, generator=draw).to(DEVICE)
        for shape in ((queries * tokens, inner), (outer, inner), (queries, 2, 1, outer), (queries, tokens, outer))
    )
    add = add[:, 1]  # a slice, as those of the layers are
    wanted = (norm(x) if normed else x) @ weight.t()
    wanted = (wanted.relu() if relu else wanted).view(stream.shape)
    wanted = wanted + (add if adds else 0) + (stream if onto else 0)
    options = {"add_Q1N": add if adds else None, "onto_QTN": stream if onto else None}
    found = product(x, weight, norm=normed, relu=relu, **options)
    same(wanted, found.view(wanted.shape))
    assert found.data_ptr() == stream.data_ptr() or not onto


@needs_triton
@given(seed=SEEDS, rows=st.integers(1, 9), gains=st.booleans(), kind=st.sampled_from([torch.int32, torch.int64]))
def test_picked_codes(seed: int, rows: int, gains: bool, kind: torch.dtype) -> None:
    from siglum.search.static.triton_kernels import pick

    draw = torch.Generator().manual_seed(seed)
    logits, gain = (torch.randn(*shape, generator=draw).to(DEVICE) for shape in ((3, rows, 11), (rows, 5)))
    code = torch.randint(11, (rows, 5), generator=draw).to(DEVICE, kind)
    out = torch.zeros(rows, 5, device=DEVICE)
    pick(logits, code[:, 1:4], gain[:, 1:4] if gains else None, out[:, 1:4])
    wanted = logits.log_softmax(-1).gather(2, code[:, 1:4].t().long()[..., None])[..., 0].t()
    same(wanted + gain[:, 1:4] if gains else wanted, out[:, 1:4])
    assert not out[:, [0, 4]].any()


@needs_triton
@pytest.mark.parametrize(
    ("kernels", "kind", "plan"),
    [("attention", "near", Plan(3, 24, 1)), ("steps", "equal", Plan(2, 32, 2)), ("all", "clustered", Plan(3, 24, 1))],
)
@pytest.mark.parametrize("best", [False, True])
def test_a_search_in_kernels_equals_the_reference(kernels: str, kind: str, plan: Plan, best: bool) -> None:
    case, config = Case(11, kind, items=40, queries=2), SearchConfig(beam=4, lookahead=best, prior=float(best))
    case.decoder = CodeDecoder(replace(DECODER, d_kv=16), SIZES, 6, torch.Generator().manual_seed(1)).eval()
    wanted = case.reference(config, 20)
    assert case.clear
    args = (case.decoder, case.books, case.index, config, 1, DEVICE)
    engine = GraphSearch(*args, dtype=torch.float32, plan=plan, graphs=False, fused=True, kernels=kernels)
    assert isinstance(engine.engine.steps, FusedSteps) == (kernels != "attention")
    assert_same(engine.search(case.query, k=20), wanted, cut=True)


def test_each_choice_of_kernels_contains_those_before_it() -> None:
    weights = Weights(Case(0).decoder, torch.device("cpu"), torch.float32)
    fused = [[Passes(weights, kernels=chosen).fuses(part) for part in KERNELS[1:]] for chosen in KERNELS]
    assert fused == [[False] * 3, [True, False, False], [True, True, False], [True] * 3]
    with pytest.raises(SiglumError, match="kernels is 'some', but must be one of: none, attention, steps, all"):
        Passes(weights, kernels="some")


def test_plain_operations_are_the_default_without_a_gpu() -> None:
    engine = Case(0).engine(SearchConfig(beam=4)).engine
    assert type(engine.steps) is Steps and not engine.passes.fused


def test_results_are_packed_with_what_was_over() -> None:
    leaves = BeamLeaves(*(torch.zeros(1, 1) for _ in range(4)), torch.tensor([True]))
    packed = steps.pack(torch.tensor([[3, -1]]), torch.tensor([[0.5, -torch.inf]]).double(), leaves.over_Q)
    assert packed.tolist() == [[3.0, -1.0, 0.5, -torch.inf, 1.0]]
    assert steps.pack(torch.tensor([[3]]), torch.tensor([[0.5]]).double(), None).tolist() == [[3.0, 0.5, 0.0]]
