"""No run is written over another's by mistake, and one's own may be repeated and resumed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import QUICK
from siglum import Retriever, SiglumError, fit
from siglum.encode.builtin import BuiltinEncoder
from siglum.files import read_json
from siglum.rootfiles import accept_root
from siglum.run.claim import OWNER_FILE, Owner, claim_run, clear_run, is_unused
from siglum.run.folder import RunFolder
from siglum.run.snapshots import take_snapshot

Call = Callable[..., str]


def data(seed: int = 0) -> dict[str, Any]:
    """Forty items, queries near them, and which belongs to which."""
    rng = np.random.default_rng(seed)
    items = rng.normal(size=(40, 8)).astype(np.float32)
    return {"items": items, "queries": items + 0.1, "positives": list(range(40)), "config": QUICK}


def bytes_of(folder: Path) -> dict[str, bytes]:
    """Return all files of a folder by their path in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def items_file(folder: Path, word: str) -> list[object]:
    """Write items and training queries, and return the options that name them."""
    folder.mkdir(exist_ok=True)
    for name, more in (("items", ""), ("train", ', "positives": ["{}"]')):
        rows = [f'{{"id": "{{}}", "text": "{word} {{}}"{more}}}'.replace("{}", f"x{row}") for row in range(12)]
        (folder / f"{name}.jsonl").write_text("\n".join(rows))
    return ["--items", folder / "items.jsonl", "--train", folder / "train.jsonl", "--scale", "tiny"]


def test_fit_leaves_the_run_of_another_as_it_is(run_copy: Path) -> None:
    before = bytes_of(run_copy)
    with pytest.raises(SiglumError, match="holds the run of another collection") as caught:
        fit(**data(), folder=run_copy)
    assert "overwrite=True" in str(caught.value)
    assert bytes_of(run_copy) == before


def test_fit_may_be_repeated_and_told_to_overwrite(tmp_path: Path) -> None:
    run = tmp_path / "run"
    fit(**data(), folder=run)
    first = bytes_of(run)
    fit(**data(), folder=run, resume=True)
    fit(**data(), folder=run, seed=1)  # the same arrays, held out otherwise
    with pytest.raises(SiglumError, match="another collection"):
        fit(**data(1), folder=run)
    bad = data(1)
    bad["items"][3] = np.inf
    (run / "mine.txt").write_text("keep me")
    before = bytes_of(run)
    with pytest.raises(SiglumError, match="infinite"):  # what cannot be fitted costs nobody his run
        fit(**bad, folder=run, overwrite=True)
    assert bytes_of(run) == before
    fit(**data(1), folder=run, overwrite=True)
    after = bytes_of(run)
    assert after["mine.txt"] == b"keep me"
    assert set(after) == {*first, "mine.txt"}
    assert after["1-vectors/items.safetensors"] != first["1-vectors/items.safetensors"]
    assert len((run / "log.jsonl").read_text().splitlines()) == len(first["log.jsonl"].splitlines())


def test_a_killed_fit_may_be_repeated_from_any_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    def die(*args: Any, **options: Any) -> None:
        raise Killed

    for place in ("siglum.data.vectors.write_json", "siglum.run.stages.fit_tokenizer", "siglum.api.make_index"):
        run = tmp_path / place
        with monkeypatch.context() as patch:
            patch.setattr(place, die)
            with pytest.raises(Killed):
                fit(**data(), folder=run)
        with pytest.raises(SiglumError, match="another collection"):
            fit(**data(1), folder=run)
        assert len(fit(**data(), folder=run, resume=True).index) == 40


def test_a_run_of_arrays_made_before_owners_were_kept_is_known(tmp_path: Path) -> None:
    run = tmp_path / "run"
    fit(**data(), folder=run)
    (run / OWNER_FILE).unlink()
    accept_root(run)
    with pytest.raises(SiglumError, match="another collection"):
        fit(**data(1), folder=run)
    fit(**data(), folder=run)


def test_encode_refuses_the_run_of_another(call: Call, fail: Call, run_copy: Path, tmp_path: Path) -> None:
    before = bytes_of(run_copy)
    mine = items_file(tmp_path / "mine", "cat")
    message = fail("encode", "--out", run_copy, *mine)
    assert "another collection" in message and "--overwrite" in message
    assert "--overwrite" in fail("encode", "--out", run_copy, *mine, "--resume")
    assert "leave it out" in fail("encode", "--out", run_copy, *mine, "--overwrite", "--shard", "1/2")
    assert bytes_of(run_copy) == before
    call("encode", "--out", run_copy, *mine, "--overwrite")
    there = {path.name for path in run_copy.iterdir()} - {"checks.json"}
    assert there == {"1-vectors", "config.json", "source.json", OWNER_FILE}
    assert f"({tmp_path / 'mine' / 'items.jsonl'})" in fail("encode", "--out", run_copy, "--world", 240)


def test_the_same_collection_may_be_encoded_again(call: Call, fail: Call, tmp_path: Path) -> None:
    run, mine = tmp_path / "run", items_file(tmp_path / "mine", "cat")
    for _ in range(2):
        call("encode", "--out", run, *mine)
    items_file(tmp_path / "mine", "dog")  # it may change where it lies
    call("encode", "--out", run, *mine)
    moved = items_file(tmp_path / "moved", "dog")  # and lie elsewhere
    call("encode", "--out", run, *moved)
    assert "another collection" in fail("encode", "--out", run, *items_file(tmp_path / "other", "bird"))


def test_an_unfinished_encoding_of_another_collection_is_refused(
    call: Call, fail: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from siglum.cli.main import main

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    run, mine = tmp_path / "run", items_file(tmp_path / "mine", "cat")
    for known in (True, False):
        with monkeypatch.context() as patch:
            patch.setattr(BuiltinEncoder, "encode_texts", interrupt)
            assert main([str(word) for word in ("encode", "--out", run, *mine)]) == 130
        if not known:
            (run / OWNER_FILE).unlink()  # as before owners were kept
            accept_root(run)
        for more in ([], ["--resume"], ["--shard", "1/2"]):
            assert "another collection" in fail("encode", "--out", run, "--world", 240, *more)
    call("encode", "--out", run, *mine, "--resume")


def test_a_saved_engine_is_known_by_its_tokenizer(tmp_path: Path) -> None:
    run, one, other = tmp_path, Owner(tokenizer="a"), Owner(tokenizer="b")
    claim_run(run, one)
    (run / "2-tokenizer").mkdir()
    (run / "2-tokenizer" / "fusion.safetensors").touch()  # killed here
    claim_run(run, one)
    with pytest.raises(SiglumError, match="another collection"):
        claim_run(run, other)
    (run / "2-tokenizer" / "stage.json").write_text('{"tokenizer_fingerprint": "b"}')
    claim_run(run, other)
    with pytest.raises(SiglumError, match="another collection"):
        claim_run(run, one)
    with pytest.raises(SiglumError, match="another collection"):
        claim_run(run, Owner("a collection"))
    claim_run(run, one, overwrite=True)
    assert {path.name for path in run.iterdir()} == {OWNER_FILE, "checks.json"}
    assert read_json(run / OWNER_FILE) == {"tokenizer": "a"}


def test_a_damaged_run_is_refused_and_may_be_overwritten(run_copy: Path) -> None:
    (run_copy / OWNER_FILE).write_text("{")
    with pytest.raises(SiglumError, match="changed by hand or damaged"):
        claim_run(run_copy, Owner("mine"))
    claim_run(run_copy, Owner("mine"), overwrite=True)
    assert {path.name for path in run_copy.iterdir()} == {OWNER_FILE, "checks.json"}


def test_clearing_takes_nothing_but_the_run(run_copy: Path, tmp_path: Path) -> None:
    (run_copy / "mine").mkdir()
    (run_copy / "mine" / "precious.txt").touch()
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "1-vectors").symlink_to(run_copy / "1-vectors")
    clear_run(linked)
    assert is_unused(linked) and (run_copy / "1-vectors" / "stage.json").exists()
    take_snapshot(RunFolder(run_copy), "before")
    clear_run(run_copy)
    assert list(bytes_of(run_copy)) == ["mine/precious.txt"]


def test_saving_leaves_the_run_of_another_as_it_is(world_run: Path, run_copy: Path, tmp_path: Path) -> None:
    mine, other = fit(**data(), folder=tmp_path / "mine"), Retriever.load(world_run)
    before = bytes_of(run_copy)
    with pytest.raises(SiglumError, match="another collection"):
        mine.save(run_copy)
    assert bytes_of(run_copy) == before
    mine.save(tmp_path / "mine")
    other.save(run_copy)
    for _ in range(2):
        other.save(tmp_path / "saved")
    with pytest.raises(SiglumError, match="another collection"):
        mine.save(tmp_path / "saved")
    with pytest.raises(SiglumError, match="another collection"):
        fit(**data(), folder=tmp_path / "saved")
    mine.save(tmp_path / "saved", overwrite=True)
    assert list(Retriever.load(tmp_path / "saved").index.ids) == list(mine.index.ids)
    mine.save(run_copy, overwrite=True)
    assert not (run_copy / "1-vectors").exists()
