"""The examples run as they are and say what they promise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SAID = {
    "own_vectors.py": ["1,050 items", "1,025 items", "the same hits", "geometry"],
    "search_pictures.py": ["By words:", "By picture:", "By picture and words:", "of 80 queries", " * 1."],
    "photos.py": ["120 pictures; 360 captions", "By words:", "sheet has 6 pictures", "its own query", "By picture: s0"],
    "is_my_tokenizer_good_enough.py": ["ascending: ", "uniform with as many bits: ", "survival  chance", "2,000 items"],
}


def test_every_example_is_tested_and_short() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAID)
    assert all(len(path.read_text().splitlines()) < 60 for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", sorted(SAID))
def test_example(name: str, tmp_path: Path) -> None:
    source = str(EXAMPLES.parent / "src")
    inherited = os.environ.get("PYTHONPATH", "")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [source, inherited]))}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    for words in SAID[name]:
        assert words in done.stdout, done.stdout
    assert not list(tmp_path.iterdir()), "an example leaves files behind"
