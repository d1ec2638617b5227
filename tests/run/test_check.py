"""`siglum info --check` names all of a run that cannot be relied on, and whom it concerns is stopped."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from siglum.data.source import write_source
from siglum.data.stamps import write_stamps
from siglum.files import STAGE_FILE
from siglum.rootfiles import write_root_json
from siglum.run.claim import Owner, claim_run
from siglum.run.live import LiveIndex
from siglum.types import SiglumError

Call = Callable[..., str]
SHORTER = struct.pack("<Q", 9)
DAMAGES: list[Callable[[bytes], bytes]] = [
    lambda own: bytes([own[0] ^ 4]) + own[1:],
    lambda own: own[:9] + bytes([own[9] ^ 4]) + own[10:],
    lambda own: own[:-1] + bytes([own[-1] ^ 4]),
    lambda own: bytes(len(own)),
    lambda own: own[: len(own) // 2],
    lambda own: b"",
    lambda own: own + b"\0",
    lambda own: 2 * (SHORTER + struct.pack("<I", zlib.crc32(b"siglum log 1, but of another index\n" + SHORTER))),
]


@pytest.mark.parametrize("stage", ["1-vectors", "2-tokenizer", "2-tokenizer/dense", "3-decoder", "4-index"])
def test_a_stage_without_its_record_is_no_sound_one(run_copy: Path, fail: Call, stage: str) -> None:
    (run_copy / stage / STAGE_FILE).unlink()
    told = fail("info", run_copy, "--check")
    assert f"1 file of {run_copy} cannot be relied on: {stage} (not finished" in told


def test_snapshots_are_checked_too(run_copy: Path, call: Call, fail: Call) -> None:
    call("index", run_copy, "--snapshot", "before")
    call("info", run_copy, "--check")
    ids = run_copy / "snapshots" / "before" / "ids.safetensors"
    whole = ids.read_bytes()
    ids.unlink()  # a link: what is written to it would be written to the index
    ids.write_bytes(whole[:-1] + bytes([whole[-1] ^ 4]))
    told = fail("info", run_copy, "--check")
    assert f"1 file of {run_copy} cannot be relied on: snapshots/before/ids.safetensors (damaged" in told
    (ids.parent / STAGE_FILE).unlink()
    assert "cannot be relied on: snapshots/before (not finished" in fail("info", run_copy, "--check")


def test_a_decoder_without_its_record_is_not_taken_for_none(run_copy: Path, fail: Call) -> None:
    (run_copy / "3-decoder" / STAGE_FILE).unlink()
    assert "holds no finished decoder stage" in fail("diagnose", run_copy)


@pytest.mark.parametrize("name", ["config.json", "source.json", "owner.json", "pictures.json"])
def test_a_file_of_the_run_itself_is_missed_and_compared(run_copy: Path, call: Call, fail: Call, name: str) -> None:
    write_root_json(run_copy, "owner.json", {"collection": "mine"})
    write_source(run_copy, "folder", path="/photos")
    write_stamps(run_copy, {"a": (1, 2)})
    call("info", run_copy, "--check")
    whole = (run_copy / name).read_bytes()
    (run_copy / name).write_bytes(whole.replace(b'"', b"'", 1))
    assert f"{name} (changed by hand or damaged)" in fail("info", run_copy, "--check")
    (run_copy / name).write_bytes(whole)
    (run_copy / name).unlink()
    assert ("no config.json" if name == "config.json" else f"{name} (missing)") in fail("info", run_copy, "--check")


def test_a_damaged_owner_stops_whom_it_concerns(run_copy: Path) -> None:
    write_root_json(run_copy, "owner.json", {"collection": "mine"})
    claim_run(run_copy, Owner("mine"))
    (run_copy / "owner.json").write_text((run_copy / "owner.json").read_text().replace("mine", "hers"))
    with pytest.raises(SiglumError, match=r"owner\.json was changed by hand or damaged"):
        claim_run(run_copy, Owner("hers"))


@pytest.mark.parametrize("damage", [None, *DAMAGES])
def test_a_damaged_acknowledgement_is_told_and_mended(
    run_copy: Path, call: Call, fail: Call, damage: Callable[[bytes], bytes] | None
) -> None:
    index = run_copy / "4-index"
    with LiveIndex(index) as live:
        before = len(live.index)
        live.remove([live.index.ids[0]])
    call("info", run_copy, "--check")
    ack = index / "log-000000.ack"
    if damage is None:
        ack.unlink()
    else:
        ack.write_bytes(damage(ack.read_bytes()))
    assert "4-index/log-000000.ack (missing or damaged" in fail("info", run_copy, "--check")
    with (index / "log-000000").open("ab") as log:
        log.write(b"torn")
    assert "4-index/log-000000 (ends in 4 bytes of an unfinished change" in fail("info", run_copy, "--check")
    with LiveIndex(index) as live:
        assert len(live.index) == before - 1
    call("info", run_copy, "--check")
