"""The demo, shortened: its files, its report, and that the same seed gives the same bytes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from siglum.cli.main import main
from siglum.config import RunConfig
from siglum.data.source import find_items, read_source
from siglum.data.tasks import TASKS
from siglum.lab.demo import run_demo
from siglum.lab.demo_report import gap_closed
from siglum.recipes import recipe
from siglum.rootfiles import accept_root
from siglum.search.retriever import Retriever
from siglum.types import SiglumError

pytestmark = pytest.mark.long
SYSTEMS = ("dense", "scan", "geometry", "genius", "pro")


def short_recipe(name: str, scale: str, seed: int) -> RunConfig:
    config = recipe(name, scale, seed)
    parts = {part: replace(getattr(config, part), epochs=2) for part in ("fusion", "tokenizer", "decoder")}
    return replace(config, world=replace(config.world, items=480), **parts)


@pytest.fixture(scope="module", autouse=True)
def _short() -> Iterator[None]:
    """Let the demo train little on little: what is tested is its course, not its figures."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("siglum.lab.demo.recipe", short_recipe)
        yield


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo") / "run"
    run_demo(out, scale="tiny", seed=0, device="cpu", resume=False, say=lambda text: None)
    return out


def test_report_has_every_task_system_and_survival(demo: Path) -> None:
    report = json.loads((demo / "6-report" / "report.json").read_text())
    for part in ("tasks", "union"):
        assert set(report[part]) == set(TASKS)
        for task in TASKS:
            assert set(report[part][task]) == set(SYSTEMS)
            for system in SYSTEMS:
                row = report[part][task][system]
                assert 0 <= row["success@1"] <= row["success@5"] <= row["success@10"] <= 1
    assert {name: len(curve) for name, curve in report["survival"].items()} == {
        "pro": 4,
        "genius": 4,
        "pro_without_pd": 4,
    }
    text = (demo / "6-report" / "report.json").read_text()
    assert str(demo) not in text
    assert "seconds" not in text


def test_pro_and_genius_have_the_same_layout(demo: Path) -> None:
    for run in (demo, demo / "baselines" / "genius"):
        for stage in ("1-vectors", "2-tokenizer", "3-decoder", "4-index"):
            assert (run / stage / "stage.json").exists()
        assert list((run / "5-runs").glob("*.trec"))
    assert len(Retriever.load(demo).search(text="a red circle", k=3)) == 3


def test_hits_can_be_shown_as_the_scenes_they_are(demo: Path) -> None:
    for run in (demo, demo / "baselines" / "genius"):
        ids = list(Retriever.load(run).index.ids)
        found = find_items(read_source(run), ids)
        assert list(found) == ids
        assert 3 * sum(item.image is not None for item in found.values()) == 2 * len(ids)


def test_page_stands_alone(demo: Path) -> None:
    page = (demo / "6-report" / "report.html").read_text()
    HTMLParser().feed(page)
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page


@pytest.mark.long
def test_same_seed_gives_the_same_bytes_and_resume_keeps_them(demo: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    assert main(["demo", "--scale", "tiny", "--out", str(again), "--json"]) == 0
    first = (demo / "6-report" / "report.json").read_bytes()
    assert (again / "6-report" / "report.json").read_bytes() == first
    assert (again / "6-report" / "report.html").read_bytes() == (demo / "6-report" / "report.html").read_bytes()
    (again / "3-decoder" / "stage.json").unlink()
    assert main(["demo", "--scale", "tiny", "--out", str(again), "--resume"]) == 0
    assert (again / "6-report" / "report.json").read_bytes() == first


def test_a_folder_that_is_no_demo_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("keep me")
    with pytest.raises(SiglumError, match="holds no demo"):
        run_demo(tmp_path, scale="tiny", seed=0, device="cpu", resume=False, say=lambda text: None)
    assert (tmp_path / "precious.txt").read_text() == "keep me"


def folder_bytes(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def begin(out: Path, **options: object) -> None:
    """Begin a demo and be killed before it encodes anything."""

    def stop(text: str) -> None:
        raise KeyboardInterrupt

    given = {"scale": "tiny", "seed": 0, "device": "cpu", "resume": False, "say": stop}
    with pytest.raises(KeyboardInterrupt):
        run_demo(out, **given | options)


def test_a_demo_may_be_repeated_but_not_take_the_place_of_another_run(demo: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    shutil.copytree(demo, again, symlinks=True)
    (again / "mine.txt").write_text("keep me")
    before = folder_bytes(again)
    with pytest.raises(SiglumError, match=r"a demo of another scale or seed; .* --overwrite"):
        begin(again, seed=7)
    assert folder_bytes(again) == before
    (again / "owner.json").unlink()  # as before owners were kept
    accept_root(again)
    begin(again)
    assert not (again / "4-index").exists() and (again / "mine.txt").exists()
    assert not (again / "baselines" / "genius" / "4-index").exists()
    begin(again, resume=True)
    begin(again)
    begin(again, seed=7, overwrite=True)
    assert read_source(again)["seed"] == 7


def test_a_run_that_is_no_demo_is_not_removed(run_copy: Path) -> None:
    before = folder_bytes(run_copy)
    with pytest.raises(SiglumError, match="a run that is no demo"):
        begin(run_copy)
    assert folder_bytes(run_copy) == before
    begin(run_copy, overwrite=True)
    assert not (run_copy / "4-index").exists()


def test_gap_closed_is_a_share_of_the_sums() -> None:
    rows = [(0.8, 0.4, 0.7), (0.6, 0.5, 0.5)]
    tasks = {
        str(i): {name: {"success@1": value} for name, value in zip(("dense", "genius", "pro"), row, strict=True)}
        for i, row in enumerate(rows)
    }
    gap = gap_closed(tasks)
    assert gap["closed"] == pytest.approx(0.3 / 0.5)
    assert (gap["tasks_won"], gap["tasks"]) == (1, 2)


def test_resuming_with_another_seed_is_refused(demo: Path) -> None:
    before = (demo / "config.json").read_bytes()
    with pytest.raises(SiglumError, match=r"made with seed 0, not 7; start without --resume"):
        run_demo(demo, scale="tiny", seed=7, device="cpu", resume=True, say=lambda text: None)
    assert (demo / "config.json").read_bytes() == before
