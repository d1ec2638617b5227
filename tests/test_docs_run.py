"""Every block of code in the documentation runs as it stands, on small data in the places it names, or says why not.

`<!-- not run: WHY -->` before a block takes it out. Blocks of a page share one folder and, in Python, one namespace.
"""

from __future__ import annotations

import doctest
import json
import re
import shlex
import shutil
import subprocess
import sys
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from serving import running
from siglum.cli.main import main
from siglum.data.corpus import write_items, write_queries
from siglum.lab.world.collection import World
from siglum.registry import ENCODERS, QUANTISERS, SCORERS
from siglum.types import Drawing, Item

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
FENCE = re.compile(r"(?:<!-- not run: (?P<why>[^>]+) -->\n)?```(?P<kind>python|pycon|sh|bash)\n(?P<code>.*?)```", re.S)
SMALLER = {"World(6_000": "World(360", "[32,64,64,128]": "[8,16,16,16]"}
"""Sizes that a reader has minutes for and a test has not."""
BEGUN = ("README.md", "own-data.md")
"""Pages that begin runs/mine themselves."""
PAGE_OF = {page.name: page.read_text() for page in PAGES}
QUICK = [part for one in ("fusion", "tokenizer", "decoder") for part in ("--set", f"{one}.epochs=1")]
Told = Callable[[], tuple[str, str]]


def blocks(page: Path) -> list[re.Match[str]]:
    return list(FENCE.finditer(page.read_text()))


def place(page: str, world_run: Path, folder: Path) -> None:
    """Put what a page names into a folder: runs, files of items and queries, a picture, a folder of photographs."""
    world, runs = World(360, 0), folder / "runs"
    for name in ("demo", "demo/baselines/genius", *(() if page in BEGUN else ("mine",))):
        shutil.copytree(world_run, runs / name)
    texts = [item for split in ("train", "val", "test") for item in world.items(split) if item.image is None]
    write_items(folder / "items.jsonl", texts)
    for split in ("train", "val", "test"):
        write_queries(folder / f"{split}.jsonl", list(world.queries(split, "t2t")))
    if page in ("photos.md", "explain.md", "README.md", "python.md", "serve.md"):
        place_pictures(world, folder, build=page == "explain.md")
    if page == "formats.md":
        items, queries = re.findall(r"```json\n(.*?)```", PAGE_OF[page], re.S)[:2]
        (folder / "items.jsonl").write_text(items)
        (folder / "queries.jsonl").write_text(re.sub(r', "positives": \[.*?\]', "", queries))
        (folder / "qrels.txt").write_text("q1 0 shoe-1 1\nq1 0 shoe-2 1\n")
        place_pictures(world, folder, build=False)
    if page == "updates.md":
        before = folder / "before.jsonl"
        write_items(before, [Item(id=f"cat-{n}", text=f"a cat and {n} mice") for n in range(15, 21)])
        assert main(["index", str(runs / "mine"), "--add", str(before)]) == 0
        write_items(folder / "cats.jsonl", [Item(id="cat-20", text="a white cat")])
        write_items(folder / "new-items.jsonl", [Item(id="new", text="three green hearts")])


def place_pictures(world: World, folder: Path, *, build: bool) -> None:
    """Draw pictures into a folder and, if asked to, build a run of them."""
    items = world.items("train")
    words = [item.text for item in items if item.image is None]
    drawn = [item for item in items if isinstance(item.image, Drawing)]
    pictures = folder / "Pictures" / "dogs"
    pictures.mkdir(parents=True)
    for number, item in enumerate(drawn[:20]):
        Image.fromarray(item.image.pixels(48)).save(pictures / f"{number}.jpg")
        (pictures / f"{number}.txt").write_text(words[number])
    shutil.copy(pictures / "0.jpg", folder / "photo.jpg")
    shutil.copytree(folder / "Pictures", folder / "pictures")
    shutil.copytree(folder / "Pictures", folder / "photos")
    if build:
        run = str(folder / "runs" / "photos")
        assert main(["build", str(folder / "Pictures"), "--out", run, "--encoder", "builtin", *QUICK]) == 0


def names() -> dict[str, Any]:
    """Return the arrays that pages take for the reader's own."""
    random = np.random.default_rng(0)
    vectors = random.normal(size=(60, 16)).astype(np.float32)
    seen = vectors + 0.1 * random.normal(size=vectors.shape).astype(np.float32)
    return {"item_vectors": vectors, "query_vectors": seen, "positives": list(range(60)), "__name__": "page"}


@contextmanager
def at_work(page: str, folder: Path) -> Iterator[dict[str, str]]:
    """Serve a run for the page that asks a service; give the places it names, and where they are instead."""
    if page != "serve.md":
        yield {}
        return
    with running(folder / "runs" / "demo") as one:
        place = one.address.removeprefix("http://")
        yield {"127.0.0.1:8000": place, "localhost:8000": place}


def ask(words: list[str]) -> None:
    """Ask the service with curl, which must be there."""
    answer = subprocess.run([*words, "--fail-with-body"], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, f"{words}: {answer.stdout}{answer.stderr}"


def shell(code: str, told: Told) -> None:
    """Run the commands of a block in this process; only siglum's can be, and curl."""
    for line in code.replace("\\\n", " ").splitlines():
        for command in filter(None, map(str.strip, re.split(r"&&", line))):
            words = [str(Path(w).expanduser()) if w.startswith("~") else w for w in shlex.split(command, comments=True)]
            if not words:
                continue
            if words[0] == "curl":
                ask(words)
                continue
            assert words[0] == "siglum", f"mark the block of {command!r} as not run, or show siglum's own commands"
            words, target = (words[1 : words.index(">")], words[-1]) if ">" in words else (words[1:], None)
            quick = {"encode": ["--scale", "tiny", *QUICK], "build": [] if "--update" in words else QUICK}
            code_found = main([*words, *quick.get(words[0], [])])
            out, err = told()
            assert code_found == 0, f"{command}: {err}"
            if target:
                Path(target).write_text(out)


@pytest.fixture
def own_parts() -> Iterator[None]:
    """Take out again what a page registers by name."""
    registries = (ENCODERS, QUANTISERS, SCORERS)
    before = [registry.names() for registry in registries]
    yield
    for registry, names in zip(registries, before, strict=True):
        for name in set(registry.names()) - set(names):
            registry.forget(name)


@pytest.mark.usefixtures("own_parts")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_of_a_page_runs(
    page: Path,
    world_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = [block for block in blocks(page) if not block["why"]]
    if not shown:
        return
    place(page.name, world_run, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(webbrowser, "open", lambda url: True)
    monkeypatch.setitem(sys.modules, "page", sys.modules[__name__])
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    with at_work(page.name, tmp_path) as places:
        run_blocks(page, shown, {**SMALLER, **places}, runner, lambda: tuple(capsys.readouterr()))  # type: ignore[arg-type,return-value]
    assert runner.summarize(verbose=False).failed == 0


def run_blocks(
    page: Path, shown: list[re.Match[str]], others: dict[str, str], runner: doctest.DocTestRunner, told: Told
) -> None:
    """Run the blocks of a page one after another."""
    space, parser = names(), doctest.DocTestParser()
    for block in shown:
        code = block["code"]
        for here, instead in others.items():
            code = code.replace(here, instead)
        if block["kind"] == "python":
            exec(compile(code, page.name, "exec"), space)
        elif block["kind"] == "pycon":
            runner.run(parser.get_doctest(code, space, page.name, page.name, 0), clear_globs=False)
            space = {**space, **runner.test.globs} if hasattr(runner, "test") else space
        else:
            shell(code, told)


def test_all_code_is_of_a_kind_that_is_run_or_is_no_code() -> None:
    """Nothing hides from the test above behind another name of its language."""
    kinds = {kind for page in PAGES for kind in re.findall(r"^```(\w*)\n", page.read_text(), re.M)} - {""}
    assert kinds <= {"python", "pycon", "sh", "bash", "text", "json", "toml", "yaml", "bibtex"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_json_shown_can_be_read(page: Path) -> None:
    for block in re.findall(r"```json\n(.*?)```", page.read_text(), re.S):
        for line in block.splitlines():
            json.loads(line)
