"""Files of a run that belong to no stage are compared with checks.json, and no kill leaves the two at odds."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from siglum import files, rootfiles
from siglum.types import SiglumError


def test_a_run_s_own_file_that_was_changed_is_refused(tmp_path: Path) -> None:
    rootfiles.write_root_json(tmp_path, "config.json", {"beam": 50})
    assert rootfiles.read_root_json(tmp_path, "config.json", "beam") == {"beam": 50}
    (tmp_path / "config.json").write_text((tmp_path / "config.json").read_text().replace("50", "58"))
    with pytest.raises(SiglumError, match=r"changed by hand or damaged; .*--check --record"):
        rootfiles.read_root_json(tmp_path, "config.json")
    rootfiles.accept_root(tmp_path)
    assert rootfiles.read_root_json(tmp_path, "config.json") == {"beam": 58}
    rootfiles.write_root_json(tmp_path, "source.json", {"kind": "x"})
    assert rootfiles.read_root_json(tmp_path, "config.json") == {"beam": 58}
    assert rootfiles.read_root_json(tmp_path, "source.json") == {"kind": "x"}


def test_writing_one_file_of_an_older_run_accepts_the_other_once(tmp_path: Path) -> None:
    for name in ("config.json", "source.json"):
        files.write_json(tmp_path / name, {"old": 1})
        assert rootfiles.read_root_json(tmp_path, name) == {"old": 1}
    rootfiles.write_root_json(tmp_path, "config.json", {"new": 1})
    assert rootfiles.read_root_json(tmp_path, "source.json") == {"old": 1}
    files.write_json(tmp_path / "source.json", {"old": 2})
    rootfiles.write_root_json(tmp_path, "config.json", {"new": 2})
    with pytest.raises(SiglumError, match="changed by hand"):
        rootfiles.read_root_json(tmp_path, "source.json")


@pytest.mark.parametrize("at", range(6))
def test_a_kill_between_the_writes_leaves_a_run_that_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """The checks, the file, the checks again: each is written beside and moved, and any step may be the last."""
    rootfiles.write_root_json(tmp_path, "config.json", {"beam": 1})
    count, replace = iter(range(99)), os.replace

    def killed(source: str, target: Path) -> None:
        step = next(count)
        if step == at // 2 and at % 2 == 0:
            raise KeyboardInterrupt
        replace(source, target)
        if step == at // 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        rootfiles.write_root_json(tmp_path, "config.json", {"beam": 2})
    monkeypatch.undo()
    assert rootfiles.read_root_json(tmp_path, "config.json") == {"beam": 1 if at < 3 else 2}
    rootfiles.write_root_json(tmp_path, "config.json", {"beam": 3})
    assert rootfiles.read_root_json(tmp_path, "config.json") == {"beam": 3}
    assert len(files.read_json(tmp_path / rootfiles.CHECKS_FILE)["config.json"]) == 1


@pytest.mark.parametrize("content", ["", "[]", "5", '{"config.json": 5}', '{"config.json": null}', "\ufeff{", "{}"])
def test_damaged_checks_are_one_sentence(tmp_path: Path, content: str) -> None:
    rootfiles.write_root_json(tmp_path, "config.json", {"beam": 1})
    (tmp_path / rootfiles.CHECKS_FILE).write_text(content)
    with pytest.raises(SiglumError, match="--check --record") as caught:
        rootfiles.read_root_json(tmp_path, "config.json")
    assert "\n" not in str(caught.value)


def test_a_reader_never_meets_a_half_written_pair(tmp_path: Path) -> None:
    rootfiles.write_root_json(tmp_path, "config.json", {"beam": 0})
    done, seen = threading.Event(), []

    def read() -> None:
        while not done.is_set():
            seen.append(rootfiles.read_root_json(tmp_path, "config.json")["beam"])

    thread = threading.Thread(target=read)
    thread.start()
    for number in range(30):
        rootfiles.write_root_json(tmp_path, "config.json", {"beam": number})
    done.set()
    thread.join()
    assert seen == sorted(seen) and seen


@pytest.mark.parametrize("known", [True, False])
def test_a_file_may_be_removed(tmp_path: Path, known: bool) -> None:
    rootfiles.write_root_json(tmp_path, "config.json", {"beam": 1})
    rootfiles.write_root_json(tmp_path, "source.json", {"kind": "x"})
    if not known:
        (tmp_path / rootfiles.CHECKS_FILE).unlink()
    (tmp_path / "owner.json").unlink(missing_ok=True)
    for name in ("source.json", "source.json", "owner.json"):
        rootfiles.remove_root_json(tmp_path, name)
        assert rootfiles.missing_root_files(tmp_path) == []
    assert not (tmp_path / "source.json").exists()
    assert set(files.read_json(tmp_path / rootfiles.CHECKS_FILE)) == {"config.json"}


def test_what_was_removed_by_hand_is_missed_until_it_is_accepted(tmp_path: Path) -> None:
    for name in ("config.json", "owner.json"):
        rootfiles.write_root_json(tmp_path, name, {"a": 1})
    (tmp_path / "owner.json").unlink()
    assert rootfiles.missing_root_files(tmp_path) == ["owner.json"]
    assert rootfiles.read_kept_json(tmp_path, "source.json") is None
    with pytest.raises(SiglumError, match=r"owner.json is gone; put it back, .*--check --record"):
        rootfiles.read_kept_json(tmp_path, "owner.json")
    rootfiles.accept_root(tmp_path)
    assert rootfiles.missing_root_files(tmp_path) == []
    assert rootfiles.read_kept_json(tmp_path, "owner.json") is None


@pytest.mark.parametrize("work", ["write", "remove"])
@pytest.mark.parametrize("at", range(5))
def test_a_kill_leaves_a_file_that_is_there_or_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str, at: int
) -> None:
    rootfiles.write_root_json(tmp_path, "config.json", {"beam": 1})
    if work == "remove":
        rootfiles.write_root_json(tmp_path, "source.json", {"kind": "x"})
    count = iter(range(99))

    def dying(name: str) -> None:
        own = getattr(os, name)

        def step(*args: object) -> None:
            if next(count) == at:
                raise KeyboardInterrupt
            own(*args)

        monkeypatch.setattr(os, name, step)

    for name in ("replace", "unlink"):
        dying(name)
    try:
        if work == "write":
            rootfiles.write_root_json(tmp_path, "source.json", {"kind": "x"})
        else:
            rootfiles.remove_root_json(tmp_path, "source.json")
    except KeyboardInterrupt:
        pass
    monkeypatch.undo()
    assert rootfiles.missing_root_files(tmp_path) == []
    if (tmp_path / "source.json").exists():
        assert rootfiles.read_root_json(tmp_path, "source.json") == {"kind": "x"}
