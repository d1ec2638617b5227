"""No damage of any file of a run is passed over: opening or searching it says so in one sentence, as does info."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import QUICK
from records import reseal
from siglum.cli.main import main
from siglum.data.source import read_source, write_source
from siglum.data.vectors import load_vectors
from siglum.files import STAGE_FILE, read_json, read_tensors, write_json, write_tensors, write_text
from siglum.fuse.store import load_fusion
from siglum.generate.store import load_decoder, load_query_head
from siglum.rootfiles import write_root_json
from siglum.run import stages
from siglum.run.check import check_run
from siglum.run.folder import RunFolder
from siglum.search.retriever import Retriever
from siglum.tokenize.store import load_tokenizer
from siglum.types import Features, SiglumError

Call = Callable[..., str]
WITH_HEAD = replace(QUICK, query=replace(QUICK.query, members=1, epochs=1))


@pytest.fixture(scope="module")
def runs(make_vectors: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two whole runs of the same sizes on other data, with a query head and kept vectors."""
    made = []
    for seed in (0, 1):
        run = RunFolder(tmp_path_factory.mktemp("runs") / "run")
        run.write_config(replace(WITH_HEAD, seed=seed, search=replace(WITH_HEAD.search, beam=50 + seed)))
        write_source(run.root, "folder", path=f"/photos{seed}")
        stages.take_vectors(run, make_vectors(seed=seed))
        stages.make_tokenizer(run)
        stages.make_decoder(run)
        stages.make_index(run, keep_vectors=True)
        made.append(run.root)
    return made[0], made[1]


@pytest.fixture
def run(runs: tuple[Path, Path], tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(runs[0], tmp_path / "run", ignore=shutil.ignore_patterns("checkpoint")))


def artifacts(run: Path) -> list[str]:
    return [
        str(path.relative_to(run))
        for path in sorted(run.rglob("*"))
        if path.is_file()
        and path.stat().st_size
        and "checkpoint" not in path.parts
        and path.name not in ("log.jsonl", ".lock")
    ]


def answers(run: Path) -> list[Any]:
    """All that is read of a run, and what it finds."""
    folder = RunFolder(run)
    vectors, made_from = load_vectors(folder.vectors)
    load_tokenizer(folder.tokenizer, vectors=made_from)
    load_fusion(folder.dense)
    retriever = Retriever.load(run)
    queries: Features = vectors.queries.rows(np.arange(4))
    hits = retriever.search_features(queries, k=5, leaf_order="dense")
    return [[(hit.item_id, hit.score) for hit in row] for row in hits] + [folder.config(), read_source(run)]


def flipped(content: bytes, place: float) -> bytes:
    changed = bytearray(content)
    changed[int(place * len(content))] ^= 4
    return bytes(changed)


DAMAGES: dict[str, Callable[[bytes, bytes], bytes]] = {
    "flip first": lambda own, _: flipped(own, 0),
    "flip early": lambda own, _: flipped(own, 0.3),
    "flip late": lambda own, _: flipped(own, 0.8),
    "zero": lambda own, _: bytes(len(own)),
    "zero the end": lambda own, _: own[: len(own) // 2] + bytes(len(own) - len(own) // 2),
    "truncate": lambda own, _: own[: len(own) // 2],
    "empty": lambda own, _: b"",
    "lengthen": lambda own, _: own + b"\0" * 9,
    "swap": lambda _, other: other,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_damage_is_passed_over(runs: tuple[Path, Path], run: Path, damage: str) -> None:
    wanted, names = answers(run), artifacts(run)
    assert len(names) > 15
    for name in names:
        path, whole = run / name, (runs[0] / name).read_bytes()
        bad = DAMAGES[damage](whole, (runs[1] / name).read_bytes())
        if bad == whole:
            assert damage == "swap" and path.name in ("tasks.json", "ids.safetensors", "CURRENT"), name
            continue
        path.write_bytes(bad)
        try:
            found = answers(run)
        except SiglumError as error:
            assert "\n" not in str(error) and str(error).endswith(".")  # noqa: PT017
        else:
            # A flipped blank in a record leaves it as it was.
            assert found == wanted and path.suffix == ".json" and "flip" in damage, name
        path.write_bytes(whole)
    assert answers(run) == wanted


def test_nothing_that_is_gone_is_passed_over(runs: tuple[Path, Path], run: Path) -> None:
    for name in artifacts(run):
        if name != "checks.json":  # without it a run counts as made before there were checks
            (run / name).unlink()
            with pytest.raises(SiglumError) as caught:
                answers(run)
            assert "\n" not in str(caught.value), name
            (run / name).write_bytes((runs[0] / name).read_bytes())


def all_problems(run: Path) -> dict[str, str]:
    return check_run(run).faults


@pytest.mark.parametrize("damage", ["flip late", "zero", "truncate", "swap"])
def test_a_check_names_every_damaged_file(runs: tuple[Path, Path], run: Path, fail: Call, damage: str) -> None:
    names = [name for name in artifacts(run) if name.endswith(".safetensors") and "ids" not in name]
    for name in names:
        (run / name).write_bytes(DAMAGES[damage]((runs[0] / name).read_bytes(), (runs[1] / name).read_bytes()))
    (run / names[0]).unlink()
    assert set(all_problems(run)) == set(names)
    told = fail("info", run, "--check")
    assert f"{len(names)} files" in told and f"{names[0]} (missing)" in told and all(name in told for name in names)
    assert "cannot be relied on" in fail("info", run, "--check", "--record")
    assert set(all_problems(run)) == set(names)


def test_a_sound_run_is_told_so(run: Path, call: Call) -> None:
    found = json.loads(call("info", run, "--check", "--json"))["check"]
    assert (found["faults"], found["unrecorded"], found["recorded"]) == ({}, [], [])
    sizes = [(run / name).stat().st_size for name in artifacts(run) if name != "checks.json"]
    assert (found["files"], found["bytes"]) == (len(sizes), sum(sizes))
    assert f"sound: {len(sizes)} files" in call("info", run, "--check")


def make_old(run: Path) -> None:
    """Take away all that earlier versions did not write."""
    (run / "checks.json").unlink()
    for path in run.rglob(STAGE_FILE):
        record = read_json(path)
        write_json(path, {name: value for name, value in record.items() if name not in ("checks", "record")})


def test_a_run_of_an_earlier_version_opens_and_may_be_given_checks(
    run: Path, call: Call, fail: Call, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = answers(run)
    make_old(run)
    assert answers(run) == wanted == answers(run)
    assert sum("before files were checked" in record.getMessage() for record in caplog.records) == 1
    path = run / "3-decoder" / "decoder.safetensors"
    whole = path.read_bytes()
    path.write_bytes(flipped(whole, 0.9))
    assert "3-decoder/decoder.safetensors" in fail("info", run, "--check", "--record")
    assert "checks" not in read_json(run / "3-decoder" / STAGE_FILE)
    assert "checks" in read_json(run / "1-vectors" / STAGE_FILE)
    path.write_bytes(whole)
    times = (run / "3-decoder" / STAGE_FILE).stat().st_mtime_ns
    found = json.loads(call("info", run, "--check", "--record", "--json"))["check"]
    assert found["recorded"] == ["3-decoder"]
    assert (run / "3-decoder" / STAGE_FILE).stat().st_mtime_ns == times
    assert json.loads(call("info", run, "--check", "--json"))["check"]["unrecorded"] == []
    assert answers(run) == wanted


def test_changed_settings_may_be_accepted(run: Path, call: Call, fail: Call) -> None:
    path = run / "config.json"
    path.write_text(path.read_text().replace('"beam": 50', '"beam": 58'))
    for verb in (["info", run], ["info", run, "--check"], ["train", run]):
        assert "config.json" in fail(*verb)
    with pytest.raises(SiglumError, match="changed by hand or damaged"):
        Retriever.load(run)
    assert json.loads(call("info", run, "--check", "--record", "--json"))["config"]["search"]["beam"] == 58
    assert Retriever.load(run).config.beam == 58
    path.write_text("{")
    assert "config.json (changed by hand or damaged)" in fail("info", run, "--check", "--record")
    assert "--record goes with --check" in fail("info", run, "--record")


def test_a_saved_retriever_shows_its_own_sizes(run: Path, tmp_path: Path, call: Call) -> None:
    Retriever.load(run).save(tmp_path / "saved")
    found = json.loads(call("info", tmp_path / "saved", "--json"))
    assert set(found["config"]) == {"search"} and found["config"]["search"]["beam"] == 50
    assert (found["vocab"], found["encoder"]) == ([8, 16], "none")
    assert found["items"]["encoded"] is None and found["items"]["indexed"] == len(Retriever.load(run).index)
    states = {name: stage["state"] for name, stage in found["stages"].items()}
    assert states["1-vectors"] == "missing" and states["2-tokenizer"] == states["4-index"] == "finished"
    text = call("info", tmp_path / "saved")
    assert "a saved retriever" in text and "codes 8 16 " in text and "4096" not in text and "encoder none" in text


def states(call: Call, run: Path) -> dict[str, str]:
    return {name: stage["state"] for name, stage in json.loads(call("info", run, "--json"))["stages"].items()}


def test_settings_changed_after_a_stage_make_it_stale(run_copy: Path, call: Call) -> None:
    folder = RunFolder(run_copy)
    config = folder.config()
    assert set(states(call, run_copy).values()) <= {"finished", "missing"}
    folder.write_config(replace(config, decoder=replace(config.decoder, epochs=99)))
    found = states(call, run_copy)
    assert [name for name, state in found.items() if state == "stale"] == ["3-decoder"]
    was = config.decoder.epochs
    assert f"3-decoder is stale: made with decoder.epochs {was}, which is 99 now" in call("info", run_copy)
    folder.write_config(replace(config, fusion=replace(config.fusion, dim=8), search=replace(config.search, beam=3)))
    assert [name for name, state in states(call, run_copy).items() if state == "stale"] == [
        "2-tokenizer",
        "2-tokenizer/dense",
        "3-decoder",
        "4-index",
    ]


def test_a_stage_made_again_makes_later_ones_stale(run: Path, call: Call, make_vectors: Callable[..., Any]) -> None:
    write_text(run / "5-runs" / "all.test.trec", "q Q0 x 1 1 siglum\n")
    write_text(run / "6-report" / "eval-test.json", "{}")
    fresh = states(call, run)
    assert set(fresh.values()) == {"finished", "there"}
    later = time.time_ns() + 10**9
    reseal(run / "4-index")
    os.utime(run / "4-index" / STAGE_FILE, ns=(later, later))
    assert states(call, run) == {**fresh, "5-runs": "stale", "6-report": "stale"}
    os.utime(run / "4-index" / STAGE_FILE, ns=(0, 0))
    reseal(run / "2-tokenizer", tokenizer_fingerprint="another")
    found = states(call, run)
    assert (found["2-tokenizer"], found["3-decoder"], found["4-index"]) == ("finished", "stale", "stale")
    stages.take_vectors(RunFolder(run), make_vectors(seed=2))
    found = states(call, run)
    assert {name for name, state in found.items() if state == "stale"} == set(found) - {"1-vectors"}
    assert "2-tokenizer is stale: made from another 1-vectors than is there now" in call("info", run)


def test_info_shows_items_and_encoder_before_there_is_an_index(run: Path, call: Call) -> None:
    shutil.rmtree(run / "4-index")
    (run / "3-decoder" / STAGE_FILE).unlink()
    found = json.loads(call("info", run, "--json"))
    assert found["items"] == {"encoded": 300, "indexed": None}
    assert (found["stages"]["3-decoder"]["state"], found["stages"]["4-index"]["state"]) == ("unfinished", "missing")
    assert "items 300 encoded   encoder none" in call("info", run)


def test_info_survives_a_damaged_log_and_says_so(run: Path, call: Call) -> None:
    whole = (run / "log.jsonl").read_bytes()
    bad = [
        b"\xff\xfe",
        b"[1]",
        b"5",
        b'{"step": 1}',
        b'{"stage": 1, "step": 1}',
        b'{"stage": "a", "step": "b"}',
        b"[" * 99999,
        b'{"stage": "a", "step": 0}',
        b'{"stage": "a", "step": 0, "time": "now"}',
        b'{"stage": "a", "step": 0, "time": 1e300}',
        b'{"stage": "a", "step": 0, "time": NaN}',
    ]
    odd = (
        b'{"stage": "[/x]", "step": 0, "time": 7, "loss": NaN, "big": 1e999, "n": 9'
        + b"9" * 400
        + b', "l": ["a"], "m": [1, {}]}'
    )
    (run / "log.jsonl").write_bytes(whole + b"\n".join([*bad, odd]) + b"\n")
    found = json.loads(call("info", run, "--json"))
    assert found["unreadable_log_lines"] == len(bad)
    assert "11 unreadable lines" in call("info", run)
    assert json.loads(call("report", run, "--json"))["runs"][0]["trained"].startswith("20")
    assert found["curves"]["decoder"]["loss"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_info_never_shows_a_traceback(runs: tuple[Path, Path], run: Path, damage: str, capsys: Any) -> None:
    make_old(run)
    for name in [*artifacts(run), "log.jsonl"]:
        whole = (run / name).read_bytes()
        (run / name).write_bytes(DAMAGES[damage](whole, (runs[1] / name).read_bytes()))
        for options in ([], ["--check"], ["--json"]):
            assert main(["info", str(run), *options]) in (0, 1)
            assert capsys.readouterr().err.count("\n") <= 1
        (run / name).write_bytes(whole)


MARK = "tokenizer_fingerprint"
OPENERS: dict[str, Callable[[Path], object]] = {
    "1-vectors": lambda folder: load_vectors(folder),
    "2-tokenizer": lambda folder: load_tokenizer(folder),
    "2-tokenizer/dense": lambda folder: load_fusion(folder),
    "3-decoder": lambda folder: load_decoder(folder, read_json(folder.parent / "2-tokenizer" / STAGE_FILE)[MARK]),
    "3-decoder head": lambda folder: load_query_head(folder, WITH_HEAD.fusion.dim),
}


ENDLESS = ("encoder_layers", "decoder_layers", "members", "soft_tokens")
"""Counts that a module is built by, one part after the other: a number without end is not tried."""


@pytest.mark.parametrize("stage", OPENERS)
def test_facts_of_other_kinds_are_one_sentence(run: Path, stage: str) -> None:
    """Records of earlier versions have no seal: anything may stand in them."""
    make_old(run)
    folder = run / stage.split()[0]
    record = read_json(folder / STAGE_FILE)
    OPENERS[stage](folder)
    for wrong in (None, -1, "x", [-1], {"a": 1}, 2**70, 1.5, True):
        changes = [{name: wrong} for name in record]
        for outer in ("fusion", "tokenizer", "decoder", "query", "inputs", "files"):
            names = [name for name in record.get(outer, ()) if wrong != 2**70 or name not in ENDLESS]
            changes += [{outer: record[outer] | {name: wrong}} for name in names]
        for change in changes:
            (folder / STAGE_FILE).write_text(json.dumps(record | change))
            with suppress(SiglumError):
                OPENERS[stage](folder)


@pytest.mark.parametrize(
    "tasks", [None, 5, {}, "x", [1], [{}], [{"name": 5, "split": "val"}], [{"name": "a", "split": "val"}] * 99]
)
def test_tasks_of_other_kinds_are_one_sentence(run: Path, tasks: Any) -> None:
    write_json(run / "1-vectors" / "tasks.json", tasks)
    reseal(run / "1-vectors")
    with pytest.raises(SiglumError, match=r"tasks\.(json|safetensors)") as caught:
        load_vectors(run / "1-vectors")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["items", "queries", "tasks"])
def test_arrays_that_do_not_fit_are_one_sentence(run: Path, name: str, subtests: pytest.Subtests) -> None:
    path = run / "1-vectors" / f"{name}.safetensors"
    arrays = read_tensors(path)
    changes: list[Callable[[np.ndarray], np.ndarray]] = [
        lambda array: array[:-1],
        lambda array: array.reshape(-1, 1, 1),
        lambda array: (np.asarray(array, np.int64) * 0 - 7).reshape(array.shape),
        lambda array: np.asarray(array, np.int64) + 10**12,
    ]
    for chosen in arrays:
        with subtests.test(chosen):
            write_tensors(path, {other: array for other, array in arrays.items() if other != chosen})
            reseal(run / "1-vectors")
            with pytest.raises(SiglumError, match=path.name):
                load_vectors(run / "1-vectors")
            for change in changes:
                write_tensors(path, {**arrays, chosen: change(arrays[chosen])})
                reseal(run / "1-vectors")
                with suppress(SiglumError):
                    load_vectors(run / "1-vectors")


@pytest.mark.parametrize(
    "source", [{}, {"kind": "web"}, {"kind": []}, {"kind": "world", "items": "a"}, {"kind": "folder"}]
)
def test_a_source_that_lacks_facts_is_one_sentence(tmp_path: Path, source: dict[str, Any]) -> None:
    write_root_json(tmp_path, "source.json", source)
    with pytest.raises(SiglumError, match=r"source\.json"):
        read_source(tmp_path)
