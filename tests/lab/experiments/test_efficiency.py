"""The experiment on efficiency: every system finds what it should, bytes add up, curves cross where they do."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from siglum.config import RunConfig, SearchConfig
from siglum.lab.experiments.base import Part, open_experiment
from siglum.lab.experiments.efficiency import POOLS, Efficiency, K, open_systems, slower_from
from siglum.lab.experiments.efficiency_bytes import RIVALS, break_even, bytes_of, sizes_of
from siglum.lab.experiments.setting import Setting
from siglum.lab.speed import clock, systems
from siglum.lab.speed import pool as pools
from siglum.lab.speed.clock import Clock
from siglum.lab.speed.pool import Pool, draw_pool
from siglum.lab.speed.systems import System
from siglum.recipes import recipe
from siglum.search.flat import flat_search
from siglum.search.ragged import FastSearch
from siglum.types import SiglumError


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return Setting("world", tmp_path_factory.mktemp("efficiency"), scale="tiny")


@pytest.fixture(scope="module")
def pool() -> Pool:
    return draw_pool(300, 7, recipe("pro", "tiny"))


@pytest.fixture(scope="module")
def opened(pool: Pool) -> dict[str, System]:
    return open_systems(pool, "cpu", 7)[0]


@pytest.fixture(scope="module")
def parts(setting: Setting) -> list[Part]:
    """What two small pools leave."""
    experiment, found = Efficiency(pools=(400, 100, 400)), []
    units = experiment.units(setting)
    units = [unit for unit in units if unit.name.startswith("pool")]
    assert [unit.name for unit in units] == ["pool-100", "pool-400"] and all(unit.alone for unit in units)
    for unit in units:
        own = experiment.measure(setting, replace(unit, options={**unit.options, "batches": [1, 8, 12]}))
        found.append({"unit": unit.name, "seed": 0, **json.loads(json.dumps(own, sort_keys=True))})
    return found


def _reconstructed(pool: Pool) -> torch.Tensor:
    """Return the sums of the items' codewords (N, D)."""
    codes_NT = torch.as_tensor(pool.index.codes_of([str(place) for place in range(len(pool.index))])).long()
    return sum(book[codes_NT[:, level]] for level, book in enumerate(pool.codebooks))


def test_dense_search_finds_the_best(pool: Pool, opened: dict[str, System], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = flat_search(pool.query_QD, pool.item_ND(), K)
    for cells in (systems.CELLS, 7 * 64):  # in one piece, and in five
        monkeypatch.setattr(systems, "CELLS", cells)
        found = opened["dense_fp32"].search(pool.query_QD)
        assert found.tolist() == [ranking.position.tolist() for ranking in expected]


@pytest.mark.parametrize("items", [300, 20_000])
def test_a_scan_finds_the_nearest_reconstructions(items: int) -> None:
    pool = draw_pool(items, 7, recipe("pro", "tiny"))
    every = flat_search(pool.query_QD, _reconstructed(pool), items, squared_distance=True)
    found = open_systems(pool, "cpu", 7)[0]["scan"].search(pool.query_QD)
    for ranking, right in zip(found, every, strict=True):
        assert ranking.score == pytest.approx(right.score[:K], abs=1e-5)
        own = dict(zip(right.position.tolist(), right.score.tolist(), strict=True))  # items may share their codes
        assert ranking.score == pytest.approx([own[place] for place in ranking.position.tolist()], abs=1e-5)


def test_what_is_timed_is_the_fast_engine(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    search = FastSearch.search

    def noted(self: FastSearch, query_QD: torch.Tensor, **more: Any) -> Any:
        asked.append((self.config.mode, self.config.scorer, self.config.precision, self.config.batch_size))
        return search(self, query_QD, **more)

    monkeypatch.setattr(FastSearch, "search", noted)
    for system in open_systems(pool, "cpu", 7)[0].values():
        system.search(pool.query_QD)
    assert asked == [
        ("exact", "decoder", "fp32", 7),
        ("exact", "fused", "fp32", 7),
        ("scan", "fused", "fp32", 7),
    ]
    with pytest.raises(SiglumError, match="needs the fast engine, which does not go with scorer geometry"):
        systems.open_engine(pool, SearchConfig(scorer="geometry", engine="fast"), "cpu")


def test_graph_search_finds_the_best_of_a_small_pool(pool: Pool, opened: dict[str, System]) -> None:
    pytest.importorskip("faiss")
    graph = opened["hnsw"]
    assert graph.facts["recall"] > 0.95 and graph.search(pool.query_QD).shape == (7, K)
    assert graph.facts["item_bytes"] > 4 * 64
    assert set(graph.facts) == {"build_seconds", "links", "effort", "item_bytes", "recall"}


def test_generative_search_asks_as_the_recipe_does(pool: Pool, opened: dict[str, System]) -> None:
    found = {kind: opened[kind].search(pool.query_QD) for kind in ("generative", "fused")}
    for rankings in found.values():
        assert [len(ranking) for ranking in rankings] == [K] * 7
    # A query is a noisy item: geometry finds the item that a random decoder cannot.
    nearest = opened["dense_fp32"].search(pool.query_QD)[:, 0].tolist()
    hits = {kind: sum(n in r.position for n, r in zip(nearest, rows, strict=True)) for kind, rows in found.items()}
    assert hits["fused"] > hits["generative"]


def test_vectors_lie_near_the_sums_of_their_codewords(pool: Pool) -> None:
    item_ND = pool.item_ND()
    torch.testing.assert_close(item_ND.norm(dim=1), torch.ones(300))
    assert (item_ND - _reconstructed(pool)).norm(dim=1).mean() < 0.7
    assert pool.index.sizes == (3, 16, 32, 32, 64) and not pool.codebooks[0].any()


def test_bytes_of_the_paper_size(monkeypatch: pytest.MonkeyPatch) -> None:
    config = recipe("pro", "paper")
    monkeypatch.setattr(pools, "SAMPLE", 100)  # what codewords say does not matter
    pool = draw_pool(50, 1, config)
    found = bytes_of(pool, sizes_of(pool))
    assert found["codes_paper"]["item"] == 32 and found["dense_fp32"]["item"] / 32 == 96
    # 2 bits of modality and 4 x 9 + 8 x 10 + 4 x 11 bits of codes; a shared length and a place besides.
    assert found["codes"]["item"] == 21 and found["generative"]["item"] == found["fused"]["item"] == 22, "few items"
    assert found["scan"]["item"] == 22 + 16 * 4 + 4, "the index, codes unpacked, squared lengths"
    codewords = 4 * 512 + 8 * 1024 + 4 * 2048
    assert found["fused"]["fixed"] - found["generative"]["fixed"] == 4 * 768 * codewords == found["scan"]["fixed"]
    assert found["generative"]["fixed"] == 4 * pool.decoder().parameter_count() > 4 * 30e6
    even = break_even(found)
    assert even["fused"]["pq20"] is None and even["fused_fp16"]["dense_fp32"] < even["fused"]["dense_fp32"]
    assert 4 * 10**4 < even["generative"]["dense_fp32"] < even["fused"]["dense_fp32"] < even["fused"]["dense_fp16"]


def test_without_a_modality_token_every_level_counts() -> None:
    config = recipe("pro", "tiny")
    bare = replace(config, tokenizer=replace(config.tokenizer, modality="none"))
    pool = draw_pool(30, 2, bare)
    assert pool.index.sizes == (16, 32, 32, 64) and sizes_of(pool)["codewords"] == 144
    assert len(open_systems(pool, "cpu", 2)[0]["fused"].search(pool.query_QD)) == 2


Cost = tuple[int, int]
COST = st.tuples(st.integers(1, 3000), st.integers(0, 10**9))


@given(own=COST, rival=COST)
def test_break_even_is_the_first_pool_that_is_smaller(own: Cost, rival: Cost) -> None:
    cost = {name: {"item": own[0], "fixed": own[1]} for name in ("generative", "fused")}
    cost |= {name: {"item": rival[0], "fixed": rival[1]} for name in RIVALS}
    size = break_even(cost)["generative"]["pq20"]
    if own[0] >= rival[0]:
        assert size is None
        return
    assert own[1] + size * own[0] <= rival[1] + size * rival[0]
    if size > 1:
        assert own[1] + (size - 1) * own[0] > rival[1] + (size - 1) * rival[0]


def _speeds(dense: list[float], fused: list[float | None]) -> list[Part]:
    return [
        {
            "items": items,
            "speed": {"fused": {"1": one and {"rate": one}}, "dense_fp32": {"1": {"rate": rate}}},
        }
        for items, rate, one in zip((1_000, 10_000, 100_000), dense, fused, strict=True)
    ]


@pytest.mark.parametrize(
    ("dense", "fused", "expected"),
    [
        ([1000, 100, 10], [100, 100, 100], {"dense_fp32": 10_000}),
        ([1000, 100, 10], [10, 10, 1], {"dense_fp32": "beyond 100K (about 1M if linear)"}),
        ([1000, 100, 10], [31.6227766, 31.6227766, 31.6227766], {"dense_fp32": 31_623}),
        ([1000, 100, 10], [5000, 5000, 5000], {"dense_fp32": "below 1K"}),
        ([1000, 100, 10], [10, None, None], {"dense_fp32": "beyond 1K (about 100K if linear)"}),
        ([1000, 100, 10], [None, None, None], {}),
    ],
)
def test_crossings_are_read_off_between_pools(dense: list[float], fused: list[Any], expected: dict[str, Any]) -> None:
    assert slower_from(_speeds(dense, fused), "1") == expected


def test_parts_hold_rates_bytes_and_what_was_left_out(parts: list[Part]) -> None:
    for part in parts:
        assert set(part["speed"]) == {"generative", "fused", "dense_fp32", "scan", "hnsw"}
        for rates in part["speed"].values():
            assert set(rates) == {"1", "8", "12"} and all(one["rate"] >= one["slowest"] > 0 for one in rates.values())
        assert part["notes"] == ["dense flat fp16 was not timed: a CPU has no fast arithmetic for it"]
        assert part["size"]["levels"] == 4 and part["hnsw"]["recall"] > 0.9


def test_the_outcome_joins_pools(setting: Setting, parts: list[Part]) -> None:
    outcome = open_experiment("efficiency").assemble(setting, list(reversed(parts)))
    speed, bytes_table, even = outcome.tables
    assert speed.columns == ["system", "100", "400", "slower from"] and len(speed.rows) == 3 * 5
    assert any("scale tiny: 64 numbers a vector, 4 levels" in note for note in speed.notes)
    assert not any("over a minute" in note for note in speed.notes)
    assert "HNSW (CPU)" in [row[0] for row in bytes_table.rows] and len(even.rows) == 4
    assert list(outcome.results["crossings"]) == ["1", "8", "12"] and set(outcome.results["hnsw"]) == {"100", "400"}
    throughput, size = outcome.figures
    assert [list(row.x) for row in throughput.panels[0].series] == [[100, 400]] * 5 and throughput.panels[0].log_x
    assert [panel.title.split()[0] for panel in throughput.panels] == ["1", "8", "12"]
    assert [row.label for row in size.panels[0].series][:2] == ["generative", "generative + fusion"]
    assert "PQ, 20 bytes" in [row.label for row in size.panels[0].series]


def test_a_batch_left_out_is_a_dash_or_no_line(setting: Setting, parts: list[Part]) -> None:
    slow = json.loads(json.dumps(parts))
    for place in (0, 1):
        slow[place]["speed"]["generative"]["12"] = slow[place]["speed"]["fused"]["12"] = None
    slow[1]["speed"]["generative"]["8"] = None
    outcome = open_experiment("efficiency").assemble(setting, slow)
    rows = {row[0]: row[1:] for row in outcome.tables[0].rows}
    assert (
        "generative, batch 12" not in rows and rows["generative, batch 8"][1] == "–" != rows["generative, batch 8"][0]
    )
    assert rows["dense flat fp32, batch 12"][-1] == "" and any("over a minute" in n for n in outcome.tables[0].notes)
    assert "at batch 8:" in outcome.figures[0].title


def test_without_faiss_the_graph_is_left_out_with_a_note(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    experiment = Efficiency(pools=(60,))
    unit = experiment.units(setting)[0]
    part = experiment.measure(setting, replace(unit, options={**unit.options, "batches": [1]}))
    assert "hnsw" not in part["speed"] and part["hnsw"] == {} and "pip install faiss-cpu" in part["notes"][1]
    outcome = experiment.assemble(setting, [{"unit": unit.name, "seed": 0, **part}])
    assert "HNSW (CPU)" not in [row[0] for row in outcome.tables[1].rows]


def test_pools_follow_the_scale_and_are_checked(setting: Setting, tmp_path: Path) -> None:
    def sizes(one: Setting) -> list[int]:
        return [unit.options["items"] for unit in Efficiency().units(one) if unit.name.startswith("pool")]

    assert sizes(setting) == [500, 2_000]
    assert sizes(Setting("world", tmp_path, scale="demo")) == list(POOLS)
    assert (POOLS[0], POOLS[-1]) == (5_000, 1_000_000)
    with pytest.raises(SiglumError, match="a pool of 0 items was asked for, but it needs at least 1"):
        Efficiency(pools=(10, 0)).units(setting)


class _Time:
    """A clock that a search moves on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_clock_counts_medians_after_the_first_round_has_warmed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    time, calls = _Time(), []
    monkeypatch.setattr(clock, "perf_counter", time)

    def search(query_QD: torch.Tensor) -> None:
        calls.append(len(query_QD))
        time.now += len(query_QD) * (10 if len(calls) == 1 else len(calls) % 3 + 1)

    query = torch.zeros(5, 2)
    found = Clock(seconds=1, least=3, longest=100).rates({"one": search}, query, [2], rounds=1)["one"]
    assert calls == [2] * 4 and found == {"2": {"rate": 2 / 4, "repeats": 3, "slowest": 2 / 6}}
    calls.clear()
    again = Clock(seconds=1, least=3, longest=0.5).rates({"one": search}, query, [1], rounds=2)["one"]
    assert again["1"] is not None and again["1"]["repeats"] == 2 and calls == [1] * 3  # warm-up, then one a round


def test_searches_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    searches = {name: lambda query_QD, name=name: asked.append((name, len(query_QD))) for name in ("a", "b")}
    found = Clock(seconds=0, least=1).rates(searches, torch.zeros(5, 2), [2, 1], rounds=2)
    warm = [(name, batch) for name in ("a", "b") for batch in (1, 1, 2, 2)]
    assert asked == warm + [(name, batch) for name in ("a", "b") for batch in (1, 2)]
    assert {name: list(rows) for name, rows in found.items()} == {"a": ["1", "2"], "b": ["1", "2"]}


def test_a_batch_that_would_take_too_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    time, calls = _Time(), []
    monkeypatch.setattr(clock, "perf_counter", time)

    def search(query_QD: torch.Tensor) -> None:
        calls.append(len(query_QD))
        time.now += 3.0 * len(query_QD)

    rates = Clock(seconds=1, least=1, longest=15).rates({"one": search}, torch.zeros(5, 2), [8, 1, 4], 1)["one"]
    assert rates["1"]["rate"] == rates["4"]["rate"] == pytest.approx(1 / 3) and rates["8"] is None
    assert calls == [1, 1, 4]  # what takes long needs no warm-up


def test_a_short_call_is_repeated_until_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    time = _Time()
    monkeypatch.setattr(clock, "perf_counter", time)

    def search(query_QD: torch.Tensor) -> None:
        time.now += 0.25

    found = Clock(seconds=2, least=3).rates({"one": search}, torch.zeros(1, 2), [1], 1)
    assert found["one"]["1"] == {"rate": 4, "repeats": 8, "slowest": 4}


def test_more_queries_than_there_are_go_round(pool: Pool) -> None:
    seen = []
    Clock(seconds=0, least=1).rates({"one": seen.append}, pool.query_QD, [10], 1)
    assert torch.equal(seen[0][7:], pool.query_QD[:3])


def test_configs_of_every_recipe_can_be_timed() -> None:
    config: RunConfig = recipe("best", "tiny")
    pool = draw_pool(40, 2, config)
    assert len(open_systems(pool, "cpu", 2)[0]["fused"].search(pool.query_QD)) == 2
