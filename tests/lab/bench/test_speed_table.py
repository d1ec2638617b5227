"""Rows are medians over rounds with ratios to the best batch of transformers, and notes read curves as they are."""

from __future__ import annotations

from typing import Any

import pytest

from siglum.lab.speed.table import compare, make_notes, make_rows, markdown, spread_of

PAIR = ((1, "siglum", "scan"), (2, "torch-flat", "none"))


def part(system: str, rate: float, *, mode: str = "none", dtype: str = "fp32", **more: Any) -> dict[str, Any]:
    batch = more.pop("batch", 1)
    own = {"system": system, "mode": mode, "dtype": dtype, "pool": 1000, "batch": batch, "round": 0, "facts": {}}
    return {**own, "seconds": [batch / rate] * 2, "overlap": None, "checked": 0, "reference": None, "notes": [], **more}


def test_rows_are_medians_with_ratios_to_the_best_batch_of_transformers() -> None:
    parts = [
        part("hf-generate", 1.0),
        part("hf-generate", 2.0, batch=4),
        part("hf-generate", 9.0, dtype="bf16"),
        part("hf-generate", 8.0, pool=2000),
        *(part("siglum", rate, mode="exact", batch=8, overlap=0.5, checked=1) for rate in (16.0, 40.0, 10.0)),
    ]
    rows = {(row["system"], row["dtype"], row["pool"], row["batch"]): row for row in make_rows(parts, "cpu")}
    assert len(rows) == 5
    own = rows["siglum", "fp32", 1000, 8]
    assert (own["queries_per_s"], own["ratio_to_hf"], own["overlap_at_50"]) == (16.0, 8.0, 0.5)
    assert (own["p50_ms"], own["p95_ms"], own["queries"], own["rounds"]) == (500.0, 800.0, 48, 3)
    assert rows["hf-generate", "bf16", 1000, 1]["ratio_to_hf"] == 4.5  # against fp32
    assert rows["hf-generate", "fp32", 2000, 1]["ratio_to_hf"] == 1.0  # of its own pool


def test_overlap_is_that_of_the_round_with_most_queries_compared() -> None:
    parts = [part("siglum", 1.0, mode="exact", overlap=x, checked=n) for x, n in ((0.0, 1), (0.75, 3))]
    assert make_rows(parts, "cpu")[0]["overlap_at_50"] == 0.75


def test_batches_left_out_have_a_note_and_no_row() -> None:
    parts = [part("hf-generate", 1.0), {**part("hf-generate", 1.0, batch=512), "seconds": []}]
    rows = make_rows(parts, "cuda")
    parts.append({**parts[1], "batch": 1024})
    assert [row["batch"] for row in rows] == [1]
    assert any("not timed at batch 512 and 1,024: smaller" in note for note in make_notes(rows, parts))


def test_what_is_to_know_about_a_pool_is_said_once() -> None:
    parts = [part("siglum", 1.0, mode="exact", notes=["mixtures."]) for _ in range(2)]
    assert make_notes(make_rows(parts, "cpu"), parts).count("mixtures.") == 1


def test_without_transformers_there_is_no_ratio_and_a_note_says_so() -> None:
    rows = make_rows([part("siglum", 1.0, mode="exact")], "cpu")
    assert rows[0]["ratio_to_hf"] is None
    assert any("ratio_to_hf is null" in note for note in make_notes(rows, []))


def test_notes_say_where_dense_wins_and_where_curves_cross() -> None:
    parts = [
        *(part("siglum", 10.0, mode="exact", pool=pool) for pool in (100, 10_000)),
        part("siglum", 5.0, mode="exact", dtype="int8", pool=100),
        *(part("torch-flat", rate, pool=pool) for rate, pool in ((100.0, 100), (1.0, 10_000))),
        part("faiss-flat", 50.0, pool=100),
        *(part("faiss-hnsw", rate, pool=pool) for rate, pool in ((30.0, 100), (20.0, 10_000))),
    ]
    notes = make_notes(make_rows(parts, "cpu"), parts)
    crossing = "dense wins over 100 items, siglum over 10,000; the curves cross near 1,000."
    assert f"siglum exact against exhaustive search at batch 1: {crossing}" in notes
    assert "faiss-hnsw answers 2 to 3 times as many queries as the fastest mode of siglum." in notes


def test_curves_are_not_drawn_on_without_end() -> None:
    assert compare({100: 10.0, 1000: 10.0}, {100: 20.0, 1000: 20.0}) == (
        "dense wins over 100 and 1,000 items; beyond what was measured they cross near 2,000 at the earliest."
    )
    falling = compare({100: 10.0, 1000: 10 / 10**0.5}, {100: 200.0, 1000: 20.0})  # siglum by the root of the pool
    assert falling.endswith("they cross near 40,000 at the earliest.")
    assert compare({100: 10.0, 1000: 1.0}, {100: 20.0, 1000: 19.9}) == (
        "dense wins over 100 and 1,000 items; no crossing is in reach."
    )
    assert compare({100: 10.0}, {100: 1.0}) == "siglum wins over 100 items."


def test_the_table_has_a_line_a_row_and_the_notes() -> None:
    rows = make_rows([part("siglum", 12.0, mode="exact", overlap=1.0, checked=4)], "cpu")
    document = {"rows": rows, "notes": ["be fair."], "machine": {"gpu": None, "cpu": "fast one"}}
    text = markdown({**document, "settings": {"threads": 2}, "load_average": {"before": 0.1, "after": 1.9}})
    assert "fast one, 2 threads; load average 0.10 before and 1.90 after." in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert lines[1].count("-:") == 9 and len({len(line) for line in lines}) == 1  # aligned, numbers to the right
    cells = ["siglum", "exact", "fp32", "cpu", "1,000", "1", "12.0", "–", "83.3", "83.3", "1.000", "–", "2"]
    assert lines[2].replace("|", " ").split() == cells and "- be fair." in text


def test_what_is_said_of_several_batches_is_said_once() -> None:
    parts = [part(name, 10.0 * place, mode=mode, batch=batch) for batch in (1, 8, 32) for place, name, mode in PAIR]
    notes = make_notes(make_rows(parts, "cpu"), parts)
    assert "siglum scan against exhaustive search at batch 1, 8 and 32: dense wins over 1,000 items." in notes


def test_spread_is_between_rounds() -> None:
    parts = [part("siglum", rate, mode="exact") for rate in (9.0, 11.0)] + [part("torch-flat", 5.0)]
    assert spread_of(parts) == pytest.approx(0.1)
