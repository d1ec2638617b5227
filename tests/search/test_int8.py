"""Lower precision: int8 rows do not know their batch, and rankings stay close to full precision."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from siglum.config import SearchConfig
from siglum.generate.decoder import CodeDecoder
from siglum.measure.systems import open_systems
from siglum.run.folder import RunFolder
from siglum.search.ragged import FastSearch
from siglum.search.ragged.linear import FeedInt8, Packed, RowInt8, activation_type, build_feed_forward, build_linear
from siglum.types import SiglumError

SEEDS = st.integers(0, 10_000)


def rows_of(seed: int, rows: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    # Rows of very different lengths: one scale for all of them would wipe the short ones out.
    return torch.randn(rows, width, generator=generator) * 10.0 ** torch.linspace(-3, 3, rows)[:, None]


@given(seed=SEEDS, rows=st.integers(1, 40), width=st.sampled_from([16, 64, 100]))
def test_an_int8_product_is_close_row_by_row(seed: int, rows: int, width: int) -> None:
    x, weight = rows_of(seed, rows, width), rows_of(seed + 1, 48, width)
    exact = x @ weight.T
    found = RowInt8(weight)(x)
    size = x.norm(dim=1)[:, None] * weight.norm(dim=1)
    assert ((found - exact).abs() / size).max() < 0.02
    scale = torch.rand(rows, 1) + 0.5
    torch.testing.assert_close(RowInt8(weight)(x, scale), found * scale)


@given(seed=SEEDS, rows=st.integers(2, 60), precision=st.sampled_from(["int8", "bf16", "fp32"]))
def test_a_row_does_not_know_its_batch(seed: int, rows: int, precision: str) -> None:
    x = rows_of(seed, rows, 32)
    linear = build_linear(rows_of(seed + 1, 24, 32), precision)
    feed = build_feed_forward(rows_of(seed, 64, 32), rows_of(seed, 32, 64), precision)
    for product in (linear, feed):
        together, alone = product(x), torch.cat([product(row) for row in x.split(1)])
        assert torch.equal(together, alone)


@given(seed=SEEDS)
def test_a_feed_forward_is_close(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, wide, narrow = (torch.randn(*shape, generator=generator) for shape in ((20, 64), (256, 64), (64, 256)))
    exact = (x @ wide.T).relu() @ narrow.T
    for product, most in ((FeedInt8(wide, narrow), 0.03), (build_feed_forward(wide, narrow, "bf16"), 0.01)):
        assert ((product(x).float() - exact).norm(dim=1) / exact.norm(dim=1)).max() < most


def test_a_product_without_onednn_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x, wide, narrow = rows_of(0, 5, 16), rows_of(1, 24, 16), rows_of(2, 16, 24)
    own = [build_linear(wide, "fp32")(x), build_feed_forward(wide, narrow, "fp32")(x)]
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    plain = [build_linear(wide, "fp32")(x), build_feed_forward(wide, narrow, "fp32")(x)]
    torch.testing.assert_close(plain, own)
    with monkeypatch.context() as other:
        other.setattr(torch.ops, "onednn", object())
        with pytest.raises(SiglumError, match="int8 needs a CPU"):
            build_linear(wide, "int8")


def test_zero_rows_stay_zero() -> None:
    for precision in ("int8", "fp32", "bf16"):
        assert not build_linear(torch.randn(8, 16), precision)(torch.zeros(3, 16)).any()
        assert not build_feed_forward(torch.randn(32, 16), torch.randn(16, 32), precision)(torch.zeros(3, 16)).any()


def test_precisions_are_named() -> None:
    assert activation_type("bf16") == torch.bfloat16
    assert isinstance(build_linear(torch.zeros(2, 2), "fp32"), Packed)
    with pytest.raises(SiglumError, match="must be one of: fp32, bf16, int8"):
        activation_type("fp8")


@given(seed=SEEDS, precision=st.sampled_from(["bf16", "int8"]), beam=st.integers(5, 30))
def test_scores_move_little(make_system, seed: int, precision: str, beam: int) -> None:
    system = make_system(seed, items=60)
    wide, narrow = (
        FastSearch(system.decoder, system.codebooks, system.index, SearchConfig(beam=100, precision=kind)).search(
            system.query, k=60
        )
        for kind in ("fp32", precision)
    )
    for exact, found in zip(wide, narrow, strict=True):
        scores = dict(zip(exact.position.tolist(), exact.score.tolist(), strict=True))
        gaps = np.abs(found.score - [scores[p] for p in found.position.tolist()])
        assert gaps.max() < 0.5
        assert len(exact) == len(found) == 60


def test_int8_results_do_not_depend_on_the_batch(make_system) -> None:
    sizes = (3, 6, 7, 8, 9)
    system = make_system(1, items=200, sizes=sizes, queries=9)
    system.decoder = CodeDecoder(replace(system.decoder.config, soft_tokens=1), sizes, 6).eval()
    found = [
        FastSearch(
            system.decoder, system.codebooks, system.index, SearchConfig(beam=20, precision="int8", batch_size=size)
        ).search(system.query, k=20)
        for size in (1, 4, 9)
    ]
    for one, *others in zip(*found, strict=True):
        for other in others:
            np.testing.assert_allclose(other.score, one.score, atol=1e-5)
            assert np.array_equal(other.position, one.position)


def test_a_trained_model_finds_the_same_items_in_int8_and_bf16(world_run: Path) -> None:
    systems = open_systems(RunFolder(world_run), "val")
    retriever = systems.retriever
    query = systems.dense.query_MD[:100]
    ranked = {kind: retriever.rank(query, k=50, precision=kind) for kind in ("fp32", "bf16", "int8")}
    for kind in ("bf16", "int8"):
        overlap = [
            len(np.intersect1d(a.position, b.position)) / len(b)
            for a, b in zip(ranked[kind], ranked["fp32"], strict=True)
        ]
        assert np.mean(overlap) >= 0.99
        assert any(not np.array_equal(a.score, b.score) for a, b in zip(ranked[kind], ranked["fp32"], strict=True))
