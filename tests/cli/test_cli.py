"""The command line: every verb on a tiny world, JSON for machines, one sentence for every mistake."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from siglum.cli.main import GROUPS, VERBS, main, module_of
from siglum.console import commands as common
from siglum.files import read_json
from siglum.lab.world.collection import World
from siglum.rootfiles import write_root_json
from siglum.search.retriever import Retriever
from siglum.types import SiglumError

Call = Callable[..., str]
SMALL = ["--set", "fusion.epochs=1", "--set", "tokenizer.epochs=1", "--set", "decoder.epochs=1"]


def in_process(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, env=environment)


COMMANDS = [
    *(verb for verb in VERBS if verb not in GROUPS),
    *(f"{group} {name}" for group, (_, names) in GROUPS.items() for name in names),
]


@pytest.mark.parametrize("verb", COMMANDS)
def test_every_verb_helps_with_an_example(call: Call, verb: str) -> None:
    text = call(*verb.split(), "--help")
    assert "Example" in text
    assert f"siglum {verb} " in text
    assert "--json" in text


@pytest.mark.parametrize("args", [[], ["-h"], ["--help"]])
def test_help_names_every_verb(call: Call, args: list[str]) -> None:
    text = call(*args)
    assert all(f"  {verb} " in text for verb in VERBS)
    assert "example:" in text


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_names_all_it_has(call: Call, capsys: pytest.CaptureFixture[str], group: str) -> None:
    text, (_, names) = call(group, "--help"), GROUPS[group]
    assert all(f"  {name} " in text for name in names) and "example:" in text.lower()
    for args in ([group], [group, "nothing-known"]):
        assert main(args) == 2
        assert ", ".join(names) in capsys.readouterr().err


def test_version(call: Call) -> None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        wanted = version("siglum")
    except PackageNotFoundError:
        pytest.skip("the package is not installed")
    assert call("--version") == f"siglum {wanted}\n"


def test_help_needs_no_torch() -> None:
    code = "import sys; from siglum.cli.main import VERBS, main; codes = [main(['--help'])]; "
    code += "light = set(sys.modules); codes += [main([verb, '--help']) for verb in VERBS]; "
    code += "assert not {'torch', 'numpy', 'tyro'} & light, light; assert not {'torch', 'PIL'} & set(sys.modules); "
    code += "sys.exit(max(codes))"
    done = in_process(code)
    assert done.returncode == 0, done.stderr


def test_the_module_is_the_command_line() -> None:
    done = subprocess.run([sys.executable, "-m", "siglum", "fly"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == f"siglum: there is no verb 'fly'; the verbs are {', '.join(VERBS)}.\n"


@pytest.mark.parametrize(
    "args", [["fly"], ["search"], ["search", "run", "--widht", "3"], ["train", "run", "--seed", "x"]]
)
def test_wrong_usage_exits_with_2(capsys: pytest.CaptureFixture[str], args: list[str]) -> None:
    assert main(args) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_the_whole_pipeline(call: Call, tmp_path: Path) -> None:
    run = tmp_path / "run"
    found = json.loads(
        call("encode", "--out", run, "--world", 240, "--variants", 1, "--scale", "tiny", "--json", *SMALL)
    )
    assert found == {"items": 240, "queries": 640, "run": str(run), "skipped": 0, "omitted": []}
    assert read_json(run / "config.json")["tokenizer"]["epochs"] == 1
    found = json.loads(call("tokenize", run, "--json", "--set", "tokenizer.vocab=[8,16]"))
    assert found["sizes"] == [3, 8, 16]
    assert read_json(run / "config.json")["tokenizer"]["vocab"] == [8, 16]
    found = json.loads(call("train", run, "--seed", 3, "--json"))
    assert (found["step"], read_json(run / "config.json")["seed"]) == (0, 3)
    assert found["loss"] > 0
    found = json.loads(call("index", run, "--pools", "test", "--json"))
    assert found["items"] == 48
    found = json.loads(call("index", run, "--json"))
    assert found["items"] == 240
    assert found["colliding_items"] >= found["largest_collision"]
    found = json.loads(call("search", run, "a red star", "-k", 4, "--json"))
    assert [hit["rank"] for hit in found["hits"]] == [1, 2, 3, 4]
    found = json.loads(call("eval", run, "--split", "test", "--union", "--json"))
    assert set(found) == {"run", "split", "tasks", "union", "survival", "beam_survival", "health"}
    assert set(found["tasks"]["t2i"]) == {"dense", "scan", "geometry", "pro"}
    written = read_json(run / "6-report" / "eval-test.json")
    assert written == {key: value for key, value in found.items() if key != "run"}
    assert (run / "5-runs" / "it2t.test.pro.trec").exists()
    found = json.loads(call("info", run, "--json"))
    assert {name: stage["state"] for name, stage in found["stages"].items()} == {
        **dict.fromkeys(("1-vectors", "2-tokenizer", "2-tokenizer/dense", "3-decoder", "4-index"), "finished"),
        **dict.fromkeys(("5-runs", "6-report"), "there"),
    }
    assert found["changed"]["decoder.epochs"] == [4, 1]
    assert len(found["curves"]["decoder"]["loss"]) == 1
    text = call("info", run)
    assert "decoder.epochs = 1 (recipe: 4)" in text
    assert "finished" in text
    table = call("eval", run)
    assert "t→(i,t)" in table
    assert "mean" in table


def test_search_prints_ranked_ids(call: Call, world_run: Path, world: World, tmp_path: Path) -> None:
    from PIL import Image

    query = world.queries("test", "it2i")[0]
    Image.fromarray(query.image.pixels(48)).save(tmp_path / "picture.png")
    found = json.loads(call("search", world_run, query.text, "--image", tmp_path / "picture.png", "--json"))
    lines = call("search", world_run, query.text, "--image", tmp_path / "picture.png").splitlines()
    assert [line.split()[4] for line in lines] == [hit["item_id"] for hit in found["hits"]]
    assert lines[0].split()[1] == f"{100 * found['hits'][0]['similarity']:.0f}"
    assert lines[0].split()[5] == "-".join(map(str, found["hits"][0]["codes"]))
    only = tmp_path / "only.txt"
    only.write_text("\n".join(world.pool("test", "t2t")))
    options = ["--within", only, "--beam", 5, "--omega", 1.5, "--scorer", "fused", "--instruction", "Find a text."]
    inside = json.loads(call("search", world_run, "a red star", *options, "--json"))
    assert {hit["item_id"][-2:] for hit in inside["hits"]} == {"-t"}


def test_index_changes_in_place(call: Call, fail: Call, run_copy: Path, world: World, tmp_path: Path) -> None:
    new = tmp_path / "new.jsonl"
    new.write_text('{"id": "n1", "text": "a small blue ring"}\n{"id": "n2", "text": "two green stars"}\n')
    before = call("index", run_copy, "--json")
    start = json.loads(before)["items"]
    assert json.loads(call("index", run_copy, "--add", new, "--json"))["items"] == start + 2
    assert "in the index already" in fail("index", run_copy, "--add", new)
    hits = json.loads(call("search", run_copy, "a small blue ring", "--scorer", "geometry", "--beam", 99, "--json"))
    assert "n1" in [hit["item_id"] for hit in hits["hits"]]
    assert json.loads(call("index", run_copy, "--remove", "n1", "--remove", "n2", "--json"))["items"] == start
    assert "is for building an index" in fail("index", run_copy, "--remove", "n1", "--keep-vectors")
    assert "one at a time" in fail("index", run_copy, "--remove", "n1", "--compact")
    call("index", run_copy, "--keep-vectors")
    assert list((run_copy / "4-index").rglob("vectors.safetensors"))
    call("index", run_copy, "--add", new)
    assert len(Retriever.load(run_copy).item_ND) == start + 2
    assert "2 items of the index" in fail("index", run_copy)
    call("index", run_copy, "--snapshot", "two")
    assert "there already" in fail("index", run_copy, "--snapshot", "two")
    assert json.loads(call("index", run_copy, "--compact", "--json"))["items"] == start + 2
    assert json.loads(call("index", run_copy, "--drop-added", "--json"))["items"] == start
    assert "it has two" in fail("index", run_copy, "--restore", "three")
    assert json.loads(call("index", run_copy, "--restore", "two", "--json"))["items"] == start + 2
    assert {"n1", "n2"} <= set(Retriever.load(run_copy).index.ids)


def test_info_on_a_young_run(call: Call, run_copy: Path) -> None:
    shutil.rmtree(run_copy / "4-index")
    (run_copy / "3-decoder" / "stage.json").unlink()
    config = read_json(run_copy / "config.json")
    write_root_json(run_copy, "config.json", {**config, "scale": "auto"})
    found = json.loads(call("info", run_copy, "--json"))
    assert found["changed"] == {}
    states = {name: stage["state"] for name, stage in found["stages"].items()}
    assert (states["3-decoder"], states["4-index"], states["6-report"]) == ("unfinished", "missing", "missing")


def mistakes(run: Path) -> list[tuple[Sequence[object], str]]:
    none = run / "none"
    return [
        (["search", none, "a"], "is not a run folder"),
        (["search", run], "needs a text, an image or both"),
        (["search", run, "a", "--image", none], "does not exist"),
        (["search", run, "a", "--within", none], "does not exist"),
        (["search", run, "a", "--within", run], "directory"),
        (["search", run, "a", "--scorer", "best"], "fused, decoder, geometry, oracle"),
        (["search", run, "a", "--beam", 0], "beam is 0, but must be at least 1"),
        (["search", run, "a", "-k", 0], "k must be a whole number of at least 1"),
        (["search", run, "a", "--device", "tpu"], "cpu, cuda"),
        (["search", run, "a", "--device", "cuda:9"], "cuda"),
        (["eval", run, "--split", "train"], "no tasks in split train"),
        (["eval", run, "--k", 0], "k must be at least 1"),
        (["eval", none], "is not a run folder"),
        (["info", none], "siglum encode"),
        (["tokenize", none], "siglum encode"),
        (["train", none], "siglum encode"),
        (["index", none], "no finished vectors stage"),
        (["index", run, "--remove", "nobody"], "'nobody'"),
        (["index", run, "--add", none], "suffix"),
        (["index", run, "--add", run / "none.jsonl"], "cannot be read"),
        (["train", run, "--set", "decoder.epoch=3"], "DecoderConfig has no field 'epoch'"),
        (["train", run, "--set", "model.epochs=3"], "this verb takes settings of decoder, search"),
        (["train", run, "--set", "decoder.epochs"], "field=value"),
        (["train", run, "--set", "decoder.epochs=many"], "must be of type int"),
        (["tokenize", run, "--set", "tokenizer.vocab=9"], "must be a list"),
        (["encode", "--out", none], "--world N or --items FILE"),
        (["encode", "--out", none, "--world", 10], "200 to 1,000,000"),
        (["encode", "--out", none, "--world", 240, "--items", none], "--world N or --items FILE"),
        (["encode", "--out", none, "--world", 240, "--encoder", "none"], "siglum.fit"),
        (["encode", "--out", none, "--world", 240, "--encoder", "clip"], "builtin, none"),
        (["encode", "--out", none, "--world", 240, "--recipe", "finest"], "pro, genius"),
        (
            ["encode", "--out", none, "--world", 240, "--scale", "huge"],
            "tiny, demo, small, captions_small, captions, catalogue_small, catalogue, paper",
        ),
        (["encode", "--out", none, "--items", run / "none.jsonl"], "cannot be read"),
    ]


def test_mistakes_are_told_in_one_sentence(fail: Call, world_run: Path, subtests: pytest.Subtests) -> None:
    before = {path: path.read_bytes() for path in world_run.rglob("*") if path.is_file()}
    for args, words in mistakes(world_run):
        with subtests.test(" ".join(map(str, args))):
            message = fail(*args)
            assert words in message, (args, message)
    assert {path: path.read_bytes() for path in world_run.rglob("*") if path.is_file()} == before


def test_a_killed_training_resumes_to_the_same_bytes(call: Call, run_copy: Path, tmp_path: Path) -> None:
    shutil.rmtree(run_copy / "3-decoder")
    whole = shutil.copytree(run_copy, tmp_path / "whole")
    settings = ["--set", "decoder.epochs=30"]
    call("train", whole, *settings)
    checkpoint = run_copy / "3-decoder" / "checkpoint" / "checkpoint.json"
    process = subprocess.Popen(
        [sys.executable, "-m", "siglum", "train", str(run_copy), *settings],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while not checkpoint.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert process.returncode == -signal.SIGKILL
    done = len(read_json(checkpoint)["history"])
    assert 1 <= done < 30
    assert not (run_copy / "3-decoder" / "stage.json").exists()
    assert json.loads(call("train", run_copy, "--resume", "--json"))["step"] == 29
    for name in ("decoder.safetensors", "stage.json"):
        assert (run_copy / "3-decoder" / name).read_bytes() == (whole / "3-decoder" / name).read_bytes()
    lines = [json.loads(line) for line in (run_copy / "log.jsonl").read_text().splitlines()]
    # One record an epoch: a new training forgets the one before, a resumed one the epoch it does again.
    assert [line["step"] for line in lines if line["stage"] == "decoder"] == list(range(30))


def test_a_checkpoint_of_other_settings_is_not_resumed(fail: Call, run_copy: Path) -> None:
    (run_copy / "3-decoder" / "stage.json").unlink()
    config = (run_copy / "config.json").read_bytes()
    assert "another configuration" in fail("train", run_copy, "--resume", "--set", "decoder.lr=0.5")
    assert (run_copy / "config.json").read_bytes() == config


@pytest.mark.parametrize("args", [["--help"], ["search", "--help"], ["info", "RUN"]])
def test_a_reader_that_leaves_early_is_no_error_worth_words(run_copy: Path, args: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    words = [sys.executable, "-m", "siglum", *(str(run_copy) if arg == "RUN" else arg for arg in args)]
    done = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_settings_are_read_as_json_or_as_words() -> None:
    from siglum.config import RunConfig

    changed = common.override(RunConfig(), ("search.scorer=oracle", "tokenizer.vocab=[2,3]", "seed=7"))
    assert (changed.search.scorer, changed.tokenizer.vocab, changed.seed) == ("oracle", (2, 3), 7)
    with pytest.raises(SiglumError, match=r"no setting 'tokenizer\.vocab\.x'"):
        common.override(RunConfig(), ("tokenizer.vocab.x=1",))


def test_eval_compares_two_runs(call: Call, fail: Call, run_copy: Path, tmp_path: Path) -> None:
    other = shutil.copytree(run_copy, tmp_path / "other", symlinks=True)
    shutil.rmtree(other / "5-runs", ignore_errors=True)
    assert "siglum eval" in fail("eval", run_copy, "--against", other)
    call("eval", other)
    same = json.loads(call("eval", run_copy, "--against", other, "--json"))
    assert all(row == {"difference": 0.0, "p": 1.0} for row in same["against"].values())
    assert set(same["against"]) == set(same["tasks"])
    assert len(same["beam_survival"]) == len(same["survival"]) + 1


def test_info_shows_levels(call: Call, run_copy: Path) -> None:
    shown = json.loads(call("info", run_copy, "--json"))
    assert len(shown["levels"]["tokenizer"]["survival"]) + 1 == len(shown["levels"]["tokenizer"]["usage"])
    assert "survival" in call("info", run_copy)


def test_numbers_nothing_can_work_with_are_refused_and_leave_the_run_as_it_was(
    fail: Call, run_copy: Path, subtests: pytest.Subtests
) -> None:
    before = {name: (run_copy / name).read_bytes() for name in ("config.json", "2-tokenizer/stage.json")}
    for setting, told in (
        ("tokenizer.batch_size=0", "batch_size is 0, but must be at least 1"),
        ("tokenizer.epochs=-1", "epochs is -1, but must be at least 0"),
        ("tokenizer.vocab=[]", "vocab is []"),
        ("fusion.dropout=1.5", "must be at most 1"),
        ("search.omega=NaN", "omega is nan"),
    ):
        with subtests.test(setting):
            assert told in fail("tokenize", run_copy, "--set", setting)
            assert {name: (run_copy / name).read_bytes() for name in before} == before
    assert "must be one of: auto, cpu" in fail("search", run_copy, "a", "--device", "cpu:x")
    write_root_json(run_copy, "config.json", [])
    assert "not what it should be" in fail("search", run_copy, "a")


def test_only_verbs_that_resume_speak_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(command: object) -> dict[str, object]:
        raise KeyboardInterrupt

    for verb, more in (("search", False), ("train", True)):
        command = importlib.import_module(module_of(verb)).Command
        assert common.call(command, interrupt, verb, ["run"]) == 130
        assert ("--resume" in capsys.readouterr().err) == more


def test_a_search_without_a_decoder_says_so(run_copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(run_copy / "3-decoder")
    assert main(["search", str(run_copy), "a red circle"]) == 0
    assert "by geometry alone" in capsys.readouterr().err


def test_eval_of_a_changed_index_says_what_it_measures(run_copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run_copy)]) == 0
    assert "lacks" not in capsys.readouterr().err
    gone = next(iter(Retriever.load(run_copy).index.ids))
    assert main(["index", str(run_copy), "--remove", gone]) == 0
    assert main(["eval", str(run_copy)]) == 0
    assert "the index lacks 1 of the 96 items of the pools" in capsys.readouterr().err
    assert main(["index", str(run_copy)]) == 0
    assert main(["eval", str(run_copy)]) == 0
    assert "lacks" not in capsys.readouterr().err
