"""Snapshots of an index: what a torn log, a new tokenizer and a forgotten name do to them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from siglum.run.generations import index_record
from siglum.run.live import LiveIndex
from siglum.search.retriever import Retriever

Call = Callable[..., str]


def test_a_snapshot_leaves_out_the_torn_end_of_a_log(run_copy: Path, call: Call) -> None:
    index = run_copy / "4-index"
    with LiveIndex(index) as live:
        live.remove([live.index.ids[0]])
        left = list(live.index.ids)
    with (index / "log-000000").open("ab") as log:
        log.write(b"torn")
    call("index", run_copy, "--snapshot", "now")
    call("index", run_copy, "--remove", left[0])
    call("info", run_copy, "--check")
    call("index", run_copy, "--restore", "now")
    assert list(Retriever.load(run_copy).index.ids) == left


def test_a_snapshot_of_another_tokenizer_takes_no_index_away(run_copy: Path, call: Call, fail: Call) -> None:
    call("index", run_copy, "--snapshot", "before")
    call("tokenize", run_copy, "--seed", 5, "--set", "tokenizer.epochs=1")
    call("index", run_copy)
    made = index_record(run_copy / "4-index")
    assert "was made with another tokenizer" in fail("index", run_copy, "--restore", "before")
    assert index_record(run_copy / "4-index") == made


@pytest.mark.parametrize("way", ["--snapshot", "--restore"])
def test_no_name_is_not_taken_for_none(run_copy: Path, fail: Call, way: str) -> None:
    made = index_record(run_copy / "4-index")
    assert "a snapshot is named by" in fail("index", run_copy, way, "")
    assert index_record(run_copy / "4-index") == made
