"""Changes of an index that last: the log, generations, compaction, torn and damaged ends, threads."""

from __future__ import annotations

import struct
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index_pools import SIZES, Pool, assert_same
from live_pools import add, begin, fill_disk, remove, vectors_of
from siglum.files import read_stage
from siglum.index import Index
from siglum.index import index as index_module
from siglum.run import live as live_module
from siglum.run.generations import index_record, open_index, replace_index
from siglum.run.journal import ack_path, log_path
from siglum.run.live import LiveIndex
from siglum.types import SiglumError

STEPS = st.lists(st.sampled_from(["add", "remove", "compact", "reopen", "again"]), max_size=10)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS, seed=st.integers(0, 2**31), vectors=st.booleans(), shows=st.booleans(), layered=st.booleans())
def test_any_history_equals_an_index_built_anew(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], seed: int, vectors: bool, shows: bool, layered: bool
) -> None:
    folder = tmp_path_factory.mktemp("live") / "4-index"
    before = index_module.LAYERED
    try:
        index_module.LAYERED = live_module.write_compacted.__globals__["LAYERED"] = 4 if layered else before
        pool, _ = begin(folder, vectors=vectors, shows=shows)
        rng = np.random.default_rng(seed)
        live = LiveIndex(folder, "tok")
        for step in steps:
            if step == "add":
                add(live, pool, rng, int(rng.integers(1, 5)), vectors=vectors)
            elif step == "remove" and len(pool.codes) > 2:
                remove(live, pool, rng.choice(list(pool.codes), 2, replace=False).tolist())
            elif step == "again" and len(pool.codes) > 1:
                name, codes = next(iter(pool.codes.items()))
                remove(live, pool, [name])
                pool.codes[name] = codes
                live.add([name], np.array([codes]), vectors_of(pool)[-1:] if vectors else None, pool.shown([name]))
            elif step == "compact":
                live.compact()
            elif step == "reopen":
                live.close()
                live = LiveIndex(folder, "tok")
            assert_same(live.index, pool.index())
        live.close()
        opened = open_index(folder, "tok")
        assert_same(opened.index, pool.index())
        if vectors:
            assert np.array_equal(opened.vectors_ND, vectors_of(pool))
        else:
            assert opened.vectors_ND is None
    finally:
        index_module.LAYERED = live_module.write_compacted.__globals__["LAYERED"] = before


def test_a_built_index_stays_as_it_is_until_it_changes(tmp_path: Path) -> None:
    pool, rng = begin(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"stage.json", "index.safetensors", "ids.safetensors"}
    with LiveIndex(tmp_path) as live:
        add(live, pool, rng, 3)
        assert_same(open_index(tmp_path).index, pool.index())
        live.compact()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"CURRENT", "generation-000001.json", "log-000001", "log-000001.ack", "segment-000002"}
    assert_same(open_index(tmp_path, "tok").index, pool.index())
    with pytest.raises(SiglumError, match="another tokenizer"):
        open_index(tmp_path, "other")


def test_what_is_refused_changes_nothing(tmp_path: Path) -> None:
    pool, rng = begin(tmp_path)
    with LiveIndex(tmp_path) as live:
        before = {path: path.read_bytes() for path in tmp_path.iterdir()}
        for call in (
            lambda: live.add(["item 0"], np.zeros((1, 3), int)),
            lambda: live.add(["new"], np.full((1, 3), 9)),
            lambda: live.remove(["nobody"]),
            lambda: live.remove(list(pool.codes)),
            lambda: live.remove("item 0"),
        ):
            with pytest.raises(SiglumError):
                call()
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
        add(live, pool, rng, 2)
    assert_same(open_index(tmp_path).index, pool.index())


def test_the_log_is_as_described(tmp_path: Path) -> None:
    begin(tmp_path, 2)
    with LiveIndex(tmp_path) as live:
        live.change(["item 1"], ["ü", "b"], np.array([[1, 2, 0], [0, 1, 2]]))
    lineage = read_stage(tmp_path)["fingerprint"]
    line = f'{{"index": "{lineage}", "log": 0}}'.encode()
    body = struct.pack("<BIIIQ", 3, 0, 1, 2, 9) + struct.pack("<III", 6, 2, 1) + "item 1üb".encode()
    body += bytes([0b1_10_00_000, 0b0_01_10_000])  # 1, 2 and 2 bits of codes, zeros for the shared length
    frame = struct.pack("<QI", len(body), zlib.crc32(body))
    whole = b"siglum log 1 " + line + f" {zlib.crc32(line):08x}\n".encode()
    whole += frame + struct.pack("<I", zlib.crc32(frame)) + body
    assert log_path(tmp_path, 0).read_bytes() == whole
    first, length = whole[: whole.index(b"\n") + 1], struct.pack("<Q", len(whole))
    slot = length + struct.pack("<I", zlib.crc32(first + length))
    assert slot in ack_path(log_path(tmp_path, 0)).read_bytes()


def test_the_log_keeps_what_items_are_shown_by_as_described(tmp_path: Path) -> None:
    begin(tmp_path, 2)
    with LiveIndex(tmp_path) as live:
        live.add(["a", "b"], np.zeros((2, 3), int))
        before = log_path(tmp_path, 0).stat().st_size
        live.change([], ["c", "d"], np.zeros((2, 3), int), fields=["ü", ""])
    record = log_path(tmp_path, 0).read_bytes()[before:]
    assert struct.unpack_from("<BIIIQ", record, 16) == (1 + 4, 0, 0, 2, 2)
    assert record[16 + 21 :] == struct.pack("<II", 1, 1) + b"cd" + bytes(2) + struct.pack("<II", 2, 0) + "ü".encode()
    assert open_index(tmp_path).index.fields_of(["a", "c", "d"]) == ["", "ü", ""]


def test_a_torn_end_is_cut_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pool, rng = begin(tmp_path)
    with LiveIndex(tmp_path) as live:
        add(live, pool, rng, 3)
    path = log_path(tmp_path, 0)
    whole, sure = path.read_bytes(), ack_path(path).read_bytes()
    with LiveIndex(tmp_path) as live:
        live.add(["torn"], np.zeros((1, 3), int))
    longer = path.read_bytes()
    for end in range(len(whole) + 1, len(longer)):
        path.write_bytes(longer[:end])
        ack_path(path).write_bytes(sure)
        assert_same(open_index(tmp_path).index, pool.index())
        caplog.clear()
        with LiveIndex(tmp_path):
            assert path.read_bytes() == whole
        assert f"{end - len(whole)} bytes" in caplog.text
    path.write_bytes(longer[:-1] + b"?")
    ack_path(path).write_bytes(sure)
    assert_same(open_index(tmp_path).index, pool.index())
    path.write_bytes(whole + bytes(40))  # a file may have grown before its bytes came
    assert_same(open_index(tmp_path).index, pool.index())


def test_damage_of_what_was_acknowledged_is_refused(tmp_path: Path) -> None:
    pool, rng = begin(tmp_path)
    with LiveIndex(tmp_path) as live:
        for _ in range(3):
            add(live, pool, rng, 2)
    path = log_path(tmp_path, 0)
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        with pytest.raises(SiglumError, match="damaged"):
            open_index(tmp_path)
    for end in range(0, len(whole), 7):
        path.write_bytes(whole[:end])
        with pytest.raises(SiglumError, match="damaged"):
            open_index(tmp_path)
    path.write_bytes(whole)
    assert_same(open_index(tmp_path).index, pool.index())
    sure = ack_path(path)
    for content in (b"", b"x" * 24, sure.read_bytes()[:12]):
        sure.write_bytes(content)
        assert_same(open_index(tmp_path).index, pool.index())


@pytest.mark.parametrize("name", ["CURRENT", "generation-000001.json", "segment-000002/stage.json"])
def test_a_damaged_generation_is_refused(tmp_path: Path, name: str) -> None:
    pool, rng = begin(tmp_path)
    with LiveIndex(tmp_path) as live:
        add(live, pool, rng, 2)
        live.compact()
    whole = (tmp_path / name).read_bytes()
    for place in range(len(whole)):
        (tmp_path / name).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(SiglumError):
            open_index(tmp_path)
    (tmp_path / name).write_bytes(whole)
    assert_same(open_index(tmp_path).index, pool.index())


def test_threads_lose_nothing_and_readers_see_whole_states(tmp_path: Path) -> None:
    pool, _ = begin(tmp_path)
    done = threading.Event()
    wrong: list[int] = []

    def read() -> None:
        while not done.is_set():
            extra = len(open_index(tmp_path).index) - len(pool.codes)
            if extra % 5:
                wrong.append(extra)

    with LiveIndex(tmp_path) as live:

        def write(number: int) -> None:
            for step in range(20):
                names = [f"{number} {step} {place}" for place in range(5)]
                live.add(names, np.zeros((5, 3), int))
                assert set(names) <= set(live.index.ids)
                if step % 10 == 5:
                    live.compact()

        reader = threading.Thread(target=read)
        writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in (reader, *writers):
            thread.start()
        for thread in writers:
            thread.join()
        done.set()
        reader.join()
    assert not wrong
    assert len(open_index(tmp_path).index) == len(pool.codes) + 400


def test_every_change_gives_another_fingerprint(tmp_path: Path) -> None:
    pool, rng = begin(tmp_path)
    seen = [index_record(tmp_path)["fingerprint"]]
    assert seen == [read_stage(tmp_path)["fingerprint"]]
    with LiveIndex(tmp_path) as live:
        for act in (lambda: add(live, pool, rng, 1), live.compact, lambda: remove(live, pool, ["item 3"])):
            act()
            seen.append(index_record(tmp_path)["fingerprint"])
    assert len(set(seen)) == 4


def test_the_same_index_written_again_keeps_its_fingerprint(tmp_path: Path) -> None:
    pool, _ = begin(tmp_path)
    before = index_record(tmp_path)
    replace_index(tmp_path, pool.index())
    after = index_record(tmp_path)
    assert after["generation"] > before["generation"]
    assert after["fingerprint"] == before["fingerprint"]


def test_an_index_in_memory_outlives_its_files(tmp_path: Path) -> None:
    pool, rng = begin(tmp_path)
    with LiveIndex(tmp_path) as live:
        add(live, pool, rng, 2)
        old, wanted = open_index(tmp_path).index, pool.index()  # opened, and not looked at yet
        live.compact()
        with pytest.raises(SiglumError, match="open for writing already"):
            replace_index(tmp_path, wanted)
    assert not (tmp_path / "index.safetensors").exists()
    assert_same(old, wanted)


def test_a_missing_log_is_noticed(tmp_path: Path) -> None:
    pool, rng = begin(tmp_path)
    with LiveIndex(tmp_path) as live:
        add(live, pool, rng, 2)
    log_path(tmp_path, 0).unlink()
    with pytest.raises(SiglumError, match="is gone"):
        open_index(tmp_path)


def test_compaction_beside_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, rng = begin(tmp_path)
    monkeypatch.setattr(live_module, "FLUSH", 4)
    with LiveIndex(tmp_path, background=True) as live:
        for _ in range(4):
            add(live, pool, rng, 3)
    assert (tmp_path / "CURRENT").exists()
    assert_same(open_index(tmp_path).index, pool.index())


def test_compaction_beside_the_work_gives_way_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process does itself at the end of a compaction it does in pieces, resting after each."""
    pool, rng = begin(tmp_path, 40)
    slept: list[float] = []
    with LiveIndex(tmp_path, background=True) as live:
        add(live, pool, rng, 3)
        monkeypatch.setattr("siglum.index.pack.CHUNK", 10)
        monkeypatch.setattr("siglum.run.compaction.time.sleep", slept.append)
        live.compact(whole=True)
        pieces, live.background = len(slept), False
        add(live, pool, rng, 3)
        live.compact(whole=True)
    assert pieces >= 5 and len(slept) == pieces, "alone it need not wait for anybody"
    assert_same(open_index(tmp_path).index, pool.index())


def test_where_items_are_is_listed_when_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first removal must not wait for what takes an eighth of a second with ten million items."""
    pool, _ = begin(tmp_path)
    with LiveIndex(tmp_path) as live:
        with monkeypatch.context() as patch:
            patch.setattr("siglum.index.index.chunks", None)
            remove(live, pool, ["item 3"])
        live.compact(whole=True)
        monkeypatch.setattr("siglum.index.index.chunks", None)
        remove(live, pool, ["item 4"])
    monkeypatch.undo()
    assert_same(open_index(tmp_path).index, pool.index())


def test_a_new_index_takes_the_place_of_any_old_one(tmp_path: Path) -> None:
    pool, rng = begin(tmp_path)
    with LiveIndex(tmp_path) as live:
        add(live, pool, rng, 2)
    for count in (4, 9):
        fresh = Pool()
        index = Index.build(*fresh.fresh(rng, count), SIZES, "other")
        replace_index(tmp_path, index)
        assert_same(open_index(tmp_path, "other").index, index)
        assert len(list(tmp_path.glob("segment-*"))) == 1
        with LiveIndex(tmp_path) as live:
            live.remove(["item 1"])
        assert len(open_index(tmp_path).index) == count - 1


def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool, rng = begin(tmp_path)
    with LiveIndex(tmp_path) as live:
        with monkeypatch.context() as patch:
            fill_disk(patch)
            with pytest.raises(SiglumError, match="No space left"):
                live.add(["new 1", "new 2"], np.zeros((2, 3), int))
        add(live, pool, rng, 2)
        assert_same(live.index, pool.index())
    assert_same(open_index(tmp_path).index, pool.index())
