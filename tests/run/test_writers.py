"""Verbs that write a run take turns, say so, and leave nothing behind where they are refused."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from siglum.cli.main import main
from siglum.config import config_fingerprint
from siglum.run.folder import RunFolder
from siglum.run.lock import LOCK_FILE, lock_run
from siglum.tokenize.store import load_tokenizer

Call = Callable[..., str]
WRITERS = (
    ["tokenize", "RUN"],
    ["train", "RUN"],
    ["index", "RUN"],
    ["eval", "RUN"],
    ["encode", "--out", "RUN", "--world", "240"],
    ["demo", "--out", "RUN", "--scale", "tiny"],
    ["build", "PHOTOS", "--out", "RUN"],
)


@pytest.mark.parametrize("words", WRITERS, ids=lambda words: words[0])
def test_a_writing_verb_does_not_wait_if_told_so(fail: Call, tmp_path: Path, words: list[str]) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with locked_by_another(run):
        message = fail(*(word.replace("RUN", str(run)) for word in words), "--wait", 0)
    assert f"{run} is being written by `siglum sleep` (process " in message
    assert message.endswith(".")
    assert list(run.iterdir()) == []


class locked_by_another:
    """Another thread of this process holds the run."""

    def __init__(self, run: Path) -> None:
        self.run, self.held, self.done = run, threading.Event(), threading.Event()

    def __enter__(self) -> None:
        self.thread = threading.Thread(target=self._hold)
        self.thread.start()
        assert self.held.wait(5)

    def _hold(self) -> None:
        with lock_run(self.run, "siglum sleep"):
            self.held.set()
            self.done.wait(60)

    def __exit__(self, *error: object) -> None:
        self.done.set()
        self.thread.join()


@pytest.mark.parametrize("words", WRITERS, ids=lambda words: words[0])
def test_help_tells_of_waiting(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([words[0], "--help"]) == 0
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--wait" in text and "while another process writes the run" in text
    assert ("--overwrite" in text) == (words[0] in ("encode", "demo"))


@pytest.mark.parametrize("verb", ["tokenize", "train", "index", "eval"])
def test_a_refused_verb_makes_nothing(fail: Call, tmp_path: Path, verb: str) -> None:
    fail(verb, tmp_path / "no" / "where")
    assert not list(tmp_path.iterdir())
    assert "0 or more" in fail(verb, tmp_path / "no" / "where", "--wait", -1)


def test_reading_a_run_takes_no_lock(call: Call, world_run: Path) -> None:
    with locked_by_another(world_run):
        call("search", world_run, "a red star")
        call("info", world_run)


@pytest.mark.parametrize("first", [0, 1])
def test_two_tokenizers_at_once_leave_one_consistent_run(run_copy: Path, first: int) -> None:
    vocab = [[8, 16], [16, 32]]
    order = vocab if first == 0 else vocab[::-1]
    quick = ["--set", "tokenizer.epochs=1", "--set", "fusion.epochs=1"]
    words = [sys.executable, "-m", "siglum", "tokenize", str(run_copy), *quick, "--set"]
    both = [
        subprocess.Popen([*words, f"tokenizer.vocab={sizes}"], stderr=subprocess.PIPE, text=True) for sizes in order
    ]
    told = [process.communicate(timeout=120)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    assert sum("is being written by `siglum tokenize`" in text for text in told) == 1
    run = RunFolder(run_copy)
    tokenizer, _ = load_tokenizer(run.tokenizer)
    assert tokenizer.quantizer.sizes[1:] == run.config().tokenizer.vocab
    assert config_fingerprint(tokenizer.quantizer.config) == config_fingerprint(run.config().tokenizer)
    assert not (run_copy / LOCK_FILE).exists()
