"""Records of a run outlive kills and resumes, and progress tells rate and time left."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from siglum.log import BothLogs, JsonlLog, Log, NoLog, TensorBoardLog, Tick, progress, read_log, reporting
from siglum.types import SiglumError


def without_time(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in record.items() if name != "time"} for record in records]


def test_records_are_appended_one_line_each(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "log.jsonl"
    JsonlLog(path).write("fusion", 0, {"loss": 0.5})
    JsonlLog(path).write("fusion", 1, {"loss": 0.25, "usage": [1.0, 0.5]})
    lines = path.read_text().splitlines()
    assert [json.loads(line)["loss"] for line in lines] == [0.5, 0.25]
    assert without_time(read_log(path)) == [
        {"stage": "fusion", "step": 0, "loss": 0.5},
        {"stage": "fusion", "step": 1, "loss": 0.25, "usage": [1.0, 0.5]},
    ]


def test_the_later_record_of_a_step_wins(tmp_path: Path) -> None:
    log = JsonlLog(tmp_path / "log.jsonl")
    log.write("a", 0, {"loss": 1.0})
    log.write("b", 0, {"loss": 2.0})
    log.write("a", 0, {"loss": 3.0})
    assert without_time(read_log(log.path)) == [
        {"stage": "a", "step": 0, "loss": 3.0},
        {"stage": "b", "step": 0, "loss": 2.0},
    ]


def test_a_torn_last_line_is_left_out_and_spoils_no_later_record(tmp_path: Path) -> None:
    log = JsonlLog(tmp_path / "log.jsonl")
    for step in range(2):
        log.write("a", step, {"loss": float(step)})
    whole = log.path.read_bytes()
    second = whole.index(b"\n") + 1
    for size in range(second, len(whole) + 1):
        log.path.write_bytes(whole[:size])
        done = 2 if size >= len(whole) - 1 else 1
        assert [record["step"] for record in read_log(log.path)] == list(range(done))
        log.write("a", 1, {"loss": 9.0})
        log.write("a", 2, {"loss": 8.0})
        assert [record["loss"] for record in read_log(log.path)] == [0.0, 9.0, 8.0]


def test_a_log_that_cannot_be_written_is_one_sentence(tmp_path: Path, subtests: pytest.Subtests) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "log.jsonl", Path("/dev/full")):
        with subtests.test(str(path)), pytest.raises(SiglumError, match="could not write to"):
            JsonlLog(path).write("a", 0, {"loss": 1.0})


def test_no_log_is_an_empty_log(tmp_path: Path) -> None:
    assert read_log(tmp_path / "none.jsonl") == []
    NoLog().write("a", 0, {"loss": 1.0})


def test_both_logs_get_every_record(tmp_path: Path) -> None:
    left, right = JsonlLog(tmp_path / "l.jsonl"), JsonlLog(tmp_path / "r.jsonl")
    BothLogs(left, right).write("a", 4, {"loss": 1.0})
    assert (
        without_time(read_log(left.path))
        == without_time(read_log(right.path))
        == [{"stage": "a", "step": 4, "loss": 1.0}]
    )


def test_tensorboard_takes_the_same_records(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    log: Log = TensorBoardLog(tmp_path)
    log.write("tokenizer", 0, {"loss": 0.5, "usage": [1.0, 0.25], "note": "words are no scalar"})
    log.write("tokenizer", 1, {"loss": 0.25, "usage": [1.0, 0.5]})
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == ["tokenizer/loss", "tokenizer/usage/0", "tokenizer/usage/1"]
    assert [(event.step, event.value) for event in events.Scalars("tokenizer/loss")] == [(0, 0.5), (1, 0.25)]
    assert [event.value for event in events.Scalars("tokenizer/usage/1")] == [0.25, 0.5]


def test_tensorboard_without_its_package_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(SiglumError, match="tensorboard"):
        TensorBoardLog(tmp_path)


def test_progress_ticks_after_every_element() -> None:
    ticks: list[Tick] = []
    with reporting(ticks.append):
        assert list(progress([7, 8, 9], "work", unit="query", size=4)) == [7, 8, 9]
    assert [(tick.label, tick.done, tick.total, tick.unit) for tick in ticks] == [
        ("work", 4, 12, "query"),
        ("work", 8, 12, "query"),
        ("work", 12, 12, "query"),
    ]
    assert all(earlier.seconds <= later.seconds for earlier, later in itertools.pairwise(ticks))


def test_progress_never_passes_a_known_total_and_counts_on_without_one() -> None:
    def stream() -> Iterator[int]:
        yield from range(3)

    ticks: list[Tick] = []
    with reporting(ticks.append):
        list(progress(stream(), "known", total=5, size=2))
        list(progress(stream(), "unknown"))
    assert [tick.done for tick in ticks] == [2, 4, 5, 1, 2, 3]
    assert [tick.left for tick in ticks[3:]] == [float("inf")] * 3


def test_progress_is_silent_without_a_reporter_and_after_the_block() -> None:
    ticks: list[Tick] = []
    with reporting(ticks.append):
        pass
    assert list(progress(range(3), "quiet")) == [0, 1, 2]
    assert ticks == []


def test_a_reporter_is_restored_after_an_inner_one_even_on_error() -> None:
    outer: list[Tick] = []
    inner: list[Tick] = []
    with reporting(outer.append):
        with pytest.raises(ZeroDivisionError), reporting(inner.append):
            list(progress((1 // number for number in (1, 0)), "inner"))
        list(progress([1], "outer"))
    assert [tick.label for tick in inner] == ["inner"]
    assert [tick.label for tick in outer] == ["outer"]


def test_rate_and_time_left() -> None:
    tick = Tick("work", done=20, total=50, seconds=4.0, unit="item")
    assert tick.rate == 5.0
    assert tick.left == 6.0
    assert Tick("work", 50, 50, 4.0, "item").left == 0.0
    assert Tick("work", 0, 50, 0.0, "item").rate == 0.0
    assert Tick("work", 0, 50, 0.0, "item").left == float("inf")


def test_a_stage_begun_anew_forgets_its_old_records(tmp_path: Path) -> None:
    log = JsonlLog(tmp_path / "log.jsonl")
    for stage in ("tokenizer", "decoder"):
        for step in range(3):
            log.write(stage, step, {"loss": float(step)})
    log.begin("decoder", 1)
    left = [(record["stage"], record["step"]) for record in read_log(tmp_path / "log.jsonl")]
    assert left == [("tokenizer", 0), ("tokenizer", 1), ("tokenizer", 2), ("decoder", 0)]
    BothLogs(log, NoLog()).begin("tokenizer", 0)
    assert [record["stage"] for record in read_log(tmp_path / "log.jsonl")] == ["decoder"]
