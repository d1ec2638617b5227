"""Files are written whole or not at all; a stage opens only if finished and made from the right inputs."""

from __future__ import annotations

import errno
import json
import os
import stat
import tempfile
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from siglum import files
from siglum.types import SiglumError

DTYPES = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "?")


def no_space(*_: Any) -> NoReturn:
    raise OSError(errno.ENOSPC, "No space left on device")


def write_half(path: Path, fault: BaseException) -> None:
    with files.atomic(path) as file:
        file.write(b"half of the new")
        file.flush()
        raise fault


def test_a_pipe_or_device_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SiglumError, match="is a device or a pipe"):
        files.write_text(tmp_path / "pipe", "a")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode) and len(list(tmp_path.iterdir())) == 1


def test_an_atomic_write_replaces_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "a.txt"
    files.write_text(path, "a much longer first text")
    files.write_text(path, "zweite Fassung, grün")
    assert path.read_text() == "zweite Fassung, grün"
    assert [entry.name for entry in path.parent.iterdir()] == ["a.txt"]
    assert path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("fault", [KeyboardInterrupt, RuntimeError, SiglumError])
def test_a_failure_in_the_middle_leaves_the_old_file_and_no_other(tmp_path: Path, fault: type[BaseException]) -> None:
    path = tmp_path / "a.txt"
    files.write_text(path, "old")
    with pytest.raises(fault):
        write_half(path, fault("stop"))
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("call", ["fsync", "replace", "chmod"])
def test_a_full_disk_is_one_sentence_and_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    path = tmp_path / "a.json"
    files.write_json(path, {"old": 1})
    monkeypatch.setattr(os, call, no_space)
    with pytest.raises(SiglumError, match=r"could not write .*a\.json: No space left on device"):
        files.write_json(path, {"new": 2})
    monkeypatch.undo()
    assert files.read_json(path) == {"old": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_an_error_of_the_disk_while_writing_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SiglumError, match="No space left"):
        write_half(tmp_path / "a.bin", OSError(errno.ENOSPC, "No space left on device"))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for name in ("file/a.txt", "file/deeper/a.txt"):
        with pytest.raises(SiglumError, match="could not write"):
            files.write_text(tmp_path / name, "text")
    with pytest.raises(SiglumError, match="could not"):
        files.begin_stage(tmp_path / "file" / "stage")


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    with pytest.raises(SiglumError, match=r"could not write .*: Permission denied"):
        files.write_text(tmp_path / "a.txt", "text")


def test_json_keeps_values_and_equal_values_give_equal_bytes(tmp_path: Path) -> None:
    files.write_json(tmp_path / "a.json", {"b": [1, None, True], "a": "ü", "c": 0.1})
    files.write_json(tmp_path / "b.json", {"c": 0.1, "a": "ü", "b": [1, None, True]})
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert files.read_json(tmp_path / "a.json") == {"a": "ü", "b": [1, None, True], "c": 0.1}


def test_missing_and_torn_json_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SiglumError, match=r"a\.json does not exist"):
        files.read_json(tmp_path / "a.json")
    (tmp_path / "a.json").write_text('{"a": [1, 2')
    with pytest.raises(SiglumError, match=r"a\.json is not valid JSON .* truncated"):
        files.read_json(tmp_path / "a.json")
    (tmp_path / "a.json").write_bytes(b'"\xff\xfe"')
    with pytest.raises(SiglumError, match="not valid JSON"):
        files.read_json(tmp_path / "a.json")


def arrays_of_all_kinds() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {kind: rng.integers(0, 100, (3, 5)).astype(kind) for kind in DTYPES}
    return arrays | {"scalar": np.array(2.5), "empty": np.zeros((0, 4), np.int16), "odd": np.arange(7, dtype=np.uint8)}


@pytest.mark.parametrize("read", [files.read_tensors, files.map_tensors])
def test_tensors_of_every_kind_come_back_equal(tmp_path: Path, read: Any) -> None:
    wanted = arrays_of_all_kinds()
    files.write_tensors(tmp_path / "a.safetensors", wanted)
    found = read(tmp_path / "a.safetensors")
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        np.testing.assert_array_equal(found[name], array)


def test_strided_and_torch_tensors_are_written_in_order(tmp_path: Path) -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    tensor = torch.from_numpy(base.copy()).requires_grad_()
    files.write_tensors(tmp_path / "a.safetensors", {"t": base.T, "step": base[::2, ::3], "torch": tensor.T})
    for found in (files.read_tensors(tmp_path / "a.safetensors"), files.map_tensors(tmp_path / "a.safetensors")):
        np.testing.assert_array_equal(found["t"], base.T)
        np.testing.assert_array_equal(found["step"], base[::2, ::3])
        np.testing.assert_array_equal(found["torch"], base.T)


def test_mapped_tensors_are_read_only_and_not_copied(tmp_path: Path) -> None:
    files.write_tensors(tmp_path / "a.safetensors", {"a": np.arange(9)})
    mapped = files.map_tensors(tmp_path / "a.safetensors")["a"]
    assert isinstance(mapped, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        mapped[0] = 1


@pytest.mark.parametrize("read", [files.read_tensors, files.map_tensors])
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, read: Any) -> None:
    files.write_tensors(
        tmp_path / "whole.safetensors", {"a": np.arange(40, dtype=np.int32), "b": np.ones((3, 3), np.float32)}
    )
    whole = (tmp_path / "whole.safetensors").read_bytes()
    cut = tmp_path / "cut.safetensors"
    for size in range(len(whole)):
        cut.write_bytes(whole[:size])
        with pytest.raises(SiglumError, match="truncated"):
            read(cut)
    with pytest.raises(SiglumError, match="does not exist"):
        read(tmp_path / "none.safetensors")


@pytest.mark.parametrize("read", [files.read_tensors, files.map_tensors])
@pytest.mark.parametrize("start", [b"\xff" * 8, b"\x02\0\0\0\0\0\0\0[]", b"PK\x03\x04 this is no safetensors file"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, read: Any, start: bytes) -> None:
    (tmp_path / "a.safetensors").write_bytes(start + b" " * 64)
    with pytest.raises(SiglumError, match="not a whole safetensors file"):
        read(tmp_path / "a.safetensors")


def test_a_tensor_kind_that_numpy_lacks_is_named(tmp_path: Path) -> None:
    header = json.dumps({"half": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 4)
    with pytest.raises(SiglumError, match="BF16"):
        files.map_tensors(tmp_path / "a.safetensors")


def test_fingerprints_tell_values_kinds_and_shapes_apart() -> None:
    array = np.arange(6, dtype=np.int32)
    variants: list[tuple[Any, ...]] = [
        (array,),
        (array.astype(np.int64),),
        (array.reshape(2, 3),),
        (array[::-1],),
        (array, 0),
        (array[:3], array[3:]),
        ("ab",),
        ("a", "b"),
        (["a", "b"],),
        ({"a": 1},),
        ({"a": 2},),
        (1,),
        ("1",),
        (np.zeros(0),),
        (),
    ]
    marks = [files.fingerprint(*parts) for parts in variants]
    assert len(set(marks)) == len(marks)
    assert all(len(mark) == 16 and int(mark, 16) >= 0 for mark in marks)


def test_fingerprints_do_not_depend_on_how_the_value_is_held() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert (
        files.fingerprint(array)
        == files.fingerprint(torch.from_numpy(array))
        == files.fingerprint(np.asfortranarray(array))
    )
    assert files.fingerprint({"a": 1, "b": 2}) == files.fingerprint({"b": 2, "a": 1})


@given(st.binary(max_size=60), st.integers(0, 59))
def test_one_changed_byte_changes_the_fingerprint_of_a_file(content: bytes, place: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a"
        path.write_bytes(content)
        before = files.file_fingerprint(path)
        path.write_bytes(
            content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
            if place < len(content)
            else content + b"x"
        )
        assert files.file_fingerprint(path) != before


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), max_size=8))
def test_ids_come_back_from_arrays(ids: list[str]) -> None:
    arrays = files.ids_to_arrays(ids)
    assert files.ids_from_arrays(arrays["id_bytes"], arrays["id_offsets"]) == ids


def make_stage(folder: Path, content: str = "content", **inputs: str) -> str:
    files.begin_stage(folder)
    files.write_text(folder / "part" / "a.txt", content)
    return files.finish_stage(folder, stage="demo", inputs=inputs, number=3)


def test_a_finished_stage_opens_with_its_facts(tmp_path: Path) -> None:
    own = make_stage(tmp_path, vectors="abc")
    record = files.open_stage(tmp_path, "demo", vectors="abc")
    assert record["fingerprint"] == own
    assert record["number"] == 3
    assert list(record["files"]) == ["part/a.txt"]


def test_an_unfinished_stage_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SiglumError, match="no finished demo stage"):
        files.open_stage(tmp_path, "demo")
    make_stage(tmp_path)
    files.begin_stage(tmp_path)
    with pytest.raises(SiglumError, match="no finished demo stage"):
        files.open_stage(tmp_path, "demo")


def test_a_stage_of_other_inputs_kind_or_format_is_refused(tmp_path: Path) -> None:
    make_stage(tmp_path, vectors="abc")
    with pytest.raises(SiglumError, match=r"another vectors .*abc, not abd"):
        files.open_stage(tmp_path, "demo", vectors="abd")
    with pytest.raises(SiglumError, match=r"another tokenizer .*None"):
        files.open_stage(tmp_path, "demo", vectors="abc", tokenizer="x")
    with pytest.raises(SiglumError, match="holds a demo stage, not a index stage"):
        files.open_stage(tmp_path, "index")
    record = files.read_json(tmp_path / files.STAGE_FILE)
    files.write_json(tmp_path / files.STAGE_FILE, record | {"format": files.FORMAT_VERSION + 1})
    with pytest.raises(SiglumError, match="has format 2, but this version reads format 1"):
        files.open_stage(tmp_path, "demo")


def test_a_stage_that_lacks_a_file_is_refused(tmp_path: Path) -> None:
    make_stage(tmp_path)
    (tmp_path / "part" / "a.txt").unlink()
    with pytest.raises(SiglumError, match=r"lacks its file part/a\.txt"):
        files.open_stage(tmp_path, "demo")


def test_the_fingerprint_of_a_stage_is_that_of_its_content_and_inputs(tmp_path: Path) -> None:
    first = make_stage(tmp_path / "a", vectors="abc")
    assert make_stage(tmp_path / "b", vectors="abc") == first
    assert make_stage(tmp_path / "c", vectors="abd") != first
    assert make_stage(tmp_path / "d", "Content", vectors="abc") != first


def test_logs_checkpoints_and_leftovers_of_a_kill_are_no_part_of_a_stage(tmp_path: Path) -> None:
    first = make_stage(tmp_path / "a")
    files.write_text(tmp_path / "b" / "log.jsonl", "{}")
    files.write_text(tmp_path / "b" / "checkpoint" / "state.safetensors", "state")
    files.write_text(tmp_path / "b" / "part" / ".a.txt.x1y2.tmp", "half a fi")
    assert make_stage(tmp_path / "b") == first


def test_a_stage_below_a_folder_called_checkpoint_still_knows_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint" / "run"
    assert make_stage(folder) == make_stage(tmp_path / "plain")
    assert files.open_stage(folder, "demo")["files"]
