"""The examples run as they are and say what they promise."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from catalogue_files import make_catalogue

pytestmark = pytest.mark.long
Told = Callable[..., str]
EXAMPLES = Path(__file__).parent.parent / "examples"
SAID = {
    "catalogue.py": ["fashion holds no catalogue of products"],
    "from_clip_retrieval.py": ["near 000000007.jpg: 0000"],
    "from_faiss.py": ["by siglum.fit, ", "in a faiss index: ", "the beam loses"],
    "from_pylate.py": ["among the first 10: 0.9", "removed one: 299 documents"],
    "from_pyserini.py": ["RR@10 ", "for questions never seen"],
    "from_sentence_transformers.py": ["-> a red dog in the garden", "questions never seen, answer among the first 5: "],
    "own_vectors.py": ["1,050 items", "1,025 items", "the same hits", "geometry"],
    "recommend.py": ["64 items, ", "among the first 5 of 64 for 9", "after ", " 1. ", "without training: ["],
    "search_pictures.py": ["By words:", "By picture:", "By picture and words:", "of 80 queries", " * 1."],
    "in_your_own_training_loop.py": [
        "rank weight 0: 1.00 ",
        "rank weight 1: 1.00 ",
        "the beam loses",
        "first 10 for 0.",
    ],
    "photos.py": ["120 pictures; 360 captions", "By words:", "sheet has 6 pictures", "its own query", "By picture: s0"],
    "is_my_tokenizer_good_enough.py": ["ascending: ", "uniform with as many bits: ", "survival  chance", "2,000 items"],
}
NEEDS = {"from_faiss.py": ["faiss"], "from_sentence_transformers.py": ["sentence_transformers"]}


def test_every_example_is_tested_and_short() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAID)
    assert all(len(path.read_text().splitlines()) <= 60 for path in EXAMPLES.glob("*.py"))


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Told:
    """A function that runs an example in a folder of its own and returns what it says."""

    def run(name: str, *arguments: str) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        threads = torch.get_num_threads()
        try:
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        finally:
            torch.set_num_threads(threads)
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("name", sorted(SAID))
def test_example(name: str, tmp_path: Path, told: Told) -> None:
    for needed in NEEDS.get(name, ()):
        pytest.importorskip(needed)
    said = told(name)
    for words in SAID[name]:
        assert words in said, said
    assert not list(tmp_path.iterdir()), "an example leaves files behind"


def test_the_catalogue_example_searches_by_picture_and_words(tmp_path: Path, told: Told) -> None:
    make_catalogue(tmp_path / "shop", ["train"] * 11 + ["val", "test"])
    said = told("catalogue.py", "shop", "run", "builtin", "tiny")
    for words in (
        "81 products; of ",
        "By words: Maker12 Women ",
        "By picture: 12",
        "By picture and words: ",
        " + 12",
        " = ",
    ):
        assert words in said, said
    assert (tmp_path / "run" / "4-index").exists()
