"""A file that is not the one that was written is noticed: in full when opened, or by block when touched."""

from __future__ import annotations

import json
import logging
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from siglum import checks, files
from siglum.files import BLOCK, BlockChecks, checks_of, verify
from siglum.types import SiglumError

NOT_THE_FILE = "is not the file that was written"


@pytest.fixture
def big(tmp_path: Path) -> Path:
    """A file of two whole blocks and a bit."""
    path = tmp_path / "big"
    path.write_bytes(np.random.default_rng(0).bytes(2 * BLOCK + 100))
    return path


def flip(path: Path, place: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


def test_a_check_a_block(big: Path, tmp_path: Path) -> None:
    found = checks_of(big)
    assert (found["bytes"], len(found["crc32"])) == (2 * BLOCK + 100, 3)
    verify(big, json.loads(json.dumps(found)))
    (tmp_path / "empty").touch()
    assert checks_of(tmp_path / "empty") == {"bytes": 0, "crc32": []}
    verify(tmp_path / "empty", {"bytes": 0, "crc32": []})


@pytest.mark.parametrize("place", [0, BLOCK - 1, BLOCK, 2 * BLOCK + 99])
def test_one_flipped_bit_anywhere_is_noticed(big: Path, place: int) -> None:
    found = checks_of(big)
    verify(big, found)
    flip(big, place)
    with pytest.raises(SiglumError, match=NOT_THE_FILE):
        verify(big, found)


def test_a_missing_short_or_long_file_is_noticed(big: Path, subtests: pytest.Subtests) -> None:
    found = checks_of(big)
    for size in (0, BLOCK, 2 * BLOCK + 99, 2 * BLOCK + 101):
        with subtests.test(size=size):
            os.truncate(big, size)
            with pytest.raises(SiglumError, match=NOT_THE_FILE):
                verify(big, found)
            with pytest.raises(SiglumError, match=NOT_THE_FILE):
                BlockChecks(big, found)
    big.unlink()
    for look in (verify, BlockChecks):
        with pytest.raises(SiglumError, match="cannot be read"):
            look(big, found)


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        "x",
        {},
        {"bytes": "1", "crc32": [1]},
        {"bytes": 1},
        {"bytes": 1, "crc32": [1, 2]},
        {"bytes": 1, "crc32": ["a"]},
    ],
)
def test_checks_that_are_damaged_themselves_are_refused(tmp_path: Path, wrong: Any) -> None:
    (tmp_path / "a").write_bytes(b"x")
    for look in (verify, BlockChecks):
        with pytest.raises(SiglumError, match="no checks of it as they should be"):
            look(tmp_path / "a", wrong)


def test_a_file_is_read_once_a_process_while_it_stays_as_it_is(big: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, reads = checks_of(big), []
    monkeypatch.setattr(checks, "SETTLED", 0)
    monkeypatch.setattr(checks, "checks_of", lambda path: reads.append(path) or checks_of(path))
    for _ in range(3):
        verify(big, found)
    assert len(reads) == 1
    stat = big.stat()
    flip(big, 5)
    os.utime(big, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(SiglumError, match=NOT_THE_FILE):
        verify(big, found)


def test_a_file_that_is_young_is_read_again(big: Path) -> None:
    """Two changes within a tick of the file system's clock leave equal time stamps."""
    found = checks_of(big)
    for _ in range(20):
        verify(big, found)
        flip(big, 7)
        with pytest.raises(SiglumError, match=NOT_THE_FILE):
            verify(big, found)
        flip(big, 7)


def test_blocks_are_checked_when_touched_and_only_those(big: Path) -> None:
    found = checks_of(big)
    flip(big, BLOCK + 5)
    blocks = BlockChecks(big, found)
    blocks.touch(0, BLOCK)
    blocks.touch(2 * BLOCK, 2 * BLOCK + 100)
    blocks.touch(BLOCK, BLOCK)
    blocks.touch_at(np.array([3, 2 * BLOCK + 7]))
    blocks.touch_at(np.zeros(0, np.int64))
    assert not blocks.whole
    for touch in (lambda: blocks.touch(BLOCK - 1, BLOCK + 1), lambda: blocks.touch_at(np.array([BLOCK + 9]))):
        with pytest.raises(SiglumError, match=NOT_THE_FILE):
            touch()
    shifted = BlockChecks(big, found, start=BLOCK)
    with pytest.raises(SiglumError, match=NOT_THE_FILE):
        shifted.touch(0, 1)
    with pytest.raises(SiglumError, match=NOT_THE_FILE):
        shifted.touch_at(np.array([0]))


def test_blocks_stay_those_of_the_file_that_was_opened(big: Path) -> None:
    blocks = BlockChecks(big, checks_of(big))
    files.write_text(big, "another file of the same name")
    blocks.touch(0, 2 * BLOCK + 100)
    assert blocks.whole
    big.unlink()
    blocks.touch_at(np.array([1]))


def test_no_thread_passes_a_damaged_block(big: Path) -> None:
    found, missed = checks_of(big), []
    flip(big, BLOCK + 5)
    blocks = BlockChecks(big, found)

    def touch() -> None:
        for _ in range(20):
            try:
                blocks.touch(0, 2 * BLOCK)
                missed.append(1)
            except SiglumError:
                pass

    threads = [threading.Thread(target=touch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not missed


def test_files_are_read_where_there_is_no_preadv(big: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = checks_of(big)
    monkeypatch.delattr(os, "preadv")
    assert checks_of(big) == found
    flip(big, BLOCK + 5)
    blocks, damaged = BlockChecks(big, found), []
    with pytest.raises(SiglumError, match=NOT_THE_FILE):
        verify(big, found)

    def touch(block: int) -> None:
        for _ in range(20):
            try:
                blocks._sound[block] = False
                blocks.touch(block * BLOCK, block * BLOCK + 1)
            except SiglumError:
                damaged.append(block)

    threads = [threading.Thread(target=touch, args=(block,)) for block in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert damaged == [1] * 20


def stage(folder: Path) -> Path:
    files.begin_stage(folder)
    files.write_text(folder / "a.txt", "content")
    files.write_text(folder / "b.txt", "more content")
    files.finish_stage(folder, stage="demo", inputs={"vectors": "abc"}, number=12, name="ü")
    return folder


def test_a_record_that_was_changed_is_refused(tmp_path: Path) -> None:
    path = stage(tmp_path) / files.STAGE_FILE
    whole = path.read_bytes()
    same = files.open_stage(tmp_path, "demo")
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with suppress(SiglumError):
            assert files.open_stage(tmp_path, "demo") == same  # white space


def test_files_that_are_opened_lazily_are_not_read(tmp_path: Path) -> None:
    flip(stage(tmp_path) / "b.txt", 3)
    assert files.open_stage(tmp_path, "demo", lazily=["b.txt"])["number"] == 12
    with pytest.raises(SiglumError, match=rf"b\.txt {NOT_THE_FILE}"):
        files.open_stage(tmp_path, "demo", lazily=["a.txt"])


def test_a_stage_inside_another_has_checks_of_its_own(tmp_path: Path) -> None:
    inner = stage(tmp_path / "outer" / "inner")
    outer = stage(tmp_path / "outer")
    flip(inner / "a.txt", 0)
    assert set(files.open_stage(outer, "demo")["checks"]) == {"a.txt", "b.txt"}
    with pytest.raises(SiglumError, match=NOT_THE_FILE):
        files.open_stage(inner, "demo")


def old_stage(folder: Path) -> Path:
    record = files.read_json(stage(folder) / files.STAGE_FILE)
    files.write_json(
        folder / files.STAGE_FILE, {name: value for name, value in record.items() if name not in ("checks", "record")}
    )
    return folder


def test_a_stage_of_an_earlier_version_opens_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    old_stage(tmp_path)
    with caplog.at_level(logging.WARNING, "siglum"):
        for _ in range(3):
            assert files.open_stage(tmp_path, "demo")["number"] == 12
    assert [record.getMessage().count("--check --record") for record in caplog.records] == [1]
    flip(tmp_path / "a.txt", 0)
    with pytest.raises(SiglumError, match=NOT_THE_FILE):
        files.open_stage(tmp_path, "demo")
    monkeypatch.setattr(files, "SMALL", 3)
    assert files.open_stage(tmp_path, "demo")


@pytest.mark.parametrize("wrong", [None, 5, "x", [], {}, {"a": 1}, [1]], ids=repr)
@pytest.mark.parametrize("name", ["stage", "format", "inputs", "files", "fingerprint"])
def test_facts_of_other_kinds_are_refused_even_without_checks(tmp_path: Path, name: str, wrong: Any) -> None:
    record = files.read_json(old_stage(tmp_path) / files.STAGE_FILE)
    files.write_json(tmp_path / files.STAGE_FILE, record | {name: wrong})
    try:
        files.open_stage(tmp_path, "demo", vectors="abc")
    except SiglumError:
        return
    assert wrong == {} or isinstance(wrong, str)


def test_a_fact_of_another_kind_is_named(tmp_path: Path) -> None:
    assert files.facts_of(tmp_path, {"a": 1, "b": "x"}, b=str, a=int) == ["x", 1]
    for record in ({}, {"a": "1"}, {"a": True}):
        with pytest.raises(SiglumError, match="as a, not a int"):
            files.facts_of(tmp_path, record, a=int)


def header(value: Any, tail: bytes = b"\0" * 8, length: int | None = None) -> bytes:
    text = json.dumps(value).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + tail


GOOD = {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}
BAD = [
    b"",
    b"\0" * 8,
    header({"a": GOOD}, length=2**63),
    b"\x04\0\0\0\0\0\0\0[[[[",
    (100_000).to_bytes(8, "little") + b"[" * 100_000,
    header({"a": None}),
    header({"a": {}}),
    *(header({"a": {k: v for k, v in GOOD.items() if k != name}}) for name in GOOD),
    *(
        header({"a": GOOD | {"shape": shape}})
        for shape in (8, "8", [-8], [8.0], ["8"], [7], [2**62, 2**62], [0, -1], None)
    ),
    *(
        header({"a": GOOD | {"data_offsets": at}})
        for at in ([0], [-8, 0], [8, 0], [0, 99], ["0", "8"], 8, None, [0, 2**70])
    ),
    *(header({"a": GOOD | {"dtype": kind}}) for kind in ("BF16", 5, None, [], "F8_E4M3")),
    header({"a": GOOD | {"shape": [0, 2**62, 2**62], "data_offsets": [0, 0]}}),
]


@pytest.mark.parametrize("read", [files.read_tensors, files.map_tensors])
@pytest.mark.parametrize("content", BAD)
def test_damaged_headers_of_tensors_are_one_sentence(tmp_path: Path, read: Any, content: bytes) -> None:
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(SiglumError) as caught:
        read(tmp_path / "a.safetensors")
    assert "\n" not in str(caught.value)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10_000), byte=st.integers(0, 255), cut=st.integers(0, 400))
def test_no_damage_of_a_tensor_file_is_a_traceback(tmp_path: Path, place: int, byte: int, cut: int) -> None:
    path = tmp_path / "a.safetensors"
    if not path.exists():
        files.write_tensors(path, {"a": np.arange(5), "b": np.ones((2, 3), np.float32), "c": np.zeros(0)})
        (tmp_path / "whole").write_bytes(path.read_bytes())
    content = bytearray((tmp_path / "whole").read_bytes())
    content[place % len(content)] = byte
    path.write_bytes(bytes(content[: len(content) - cut // 8]))
    for read in (files.read_tensors, files.map_tensors):
        with suppress(SiglumError):
            read(path)


@pytest.mark.parametrize(
    ("blob", "offsets"),
    [
        (b"abcd", []),
        (b"abcd", [0, 2, 5]),
        (b"abcd", [0, 3, 2, 4]),
        (b"abcd", [1, 4]),
        (b"abcd", [-1, 4]),
        (b"abcd", [0, 2]),
        (b"ab\xff", [0, 3]),
        ("ü".encode(), [0, 1, 2]),
        (b"abcd", [[0, 4]]),
        (b"abcd", [0.0, 4.0]),
        (b"abcd", [0, -(2**60), 4]),
    ],
)
def test_damaged_ids_are_one_sentence(blob: bytes, offsets: Any) -> None:
    with pytest.raises(SiglumError, match="the ids are damaged"):
        files.ids_from_arrays(np.frombuffer(blob, np.uint8), np.array(offsets))


def test_names_reach_the_disk_with_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, fsync = [], os.fsync

    def note(handle: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{handle}")))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", note)
    files.write_text(tmp_path / "a.txt", "text")
    assert synced[-1] == tmp_path and len(synced) == 2
    with pytest.raises(SiglumError, match="could not have"):
        files.sync_folder(tmp_path / "none")
