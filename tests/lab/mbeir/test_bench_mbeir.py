"""`siglum bench mbeir` ends in a table, counts what cannot be found as a miss, and does not do finished work again."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from mbeir_files import append_lines, make_root, question
from siglum.config import diff
from siglum.console.commands import call
from siglum.data.trec import read_qrels, read_run
from siglum.files import STAGE_FILE
from siglum.lab.cli import bench_mbeir
from siglum.lab.mbeir.layout import NINE, metric_ks
from siglum.lab.mbeir.paper_numbers import COLUMNS, FULL_TABLES, MARK, quoted_rows
from siglum.recipes import recipe
from siglum.run.results import write_result

LOST = ("webqa_task1", 1)
"""A task, and how many of its test queries have no positive in the pool."""


@dataclass
class Bench:
    """A finished benchmark."""

    root: Path
    out: Path
    run: Path

    def arguments(self, *more: object) -> list[str]:
        fixed = ["--data", self.root, "--out", self.out, "--run", self.run, "--encoder", "builtin", "--scale", "tiny"]
        return [str(value) for value in (*fixed, *more)]


def bench(arguments: list[str]) -> int:
    return call(bench_mbeir.Command, bench_mbeir.run, "bench mbeir", arguments)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("bench")
    root = make_root(folder / "root", NINE, scenes=3)
    append_lines(root / "query/test/mbeir_webqa_task1_test.jsonl", [question("2:99", "text", ["9:0"], "nowhere")])
    path = root / "qrels/test/mbeir_webqa_task1_test_qrels.txt"
    path.write_text(path.read_text() + "2:99 0 9:0 1 1\n")
    made = Bench(root, folder / "out.json", folder / "run")
    assert bench(made.arguments("--against", "genius")) == 0
    return made


@pytest.fixture
def copied(finished: Bench, tmp_path: Path) -> Bench:
    run = Path(shutil.copytree(finished.run, tmp_path / "run", symlinks=True))
    return Bench(finished.root, tmp_path / "out.json", run)


def test_the_report_holds_every_task_and_system(finished: Bench) -> None:
    report = json.loads(finished.out.read_text())
    assert set(report["tasks"]) == set(NINE)
    for task, row in report["tasks"].items():
        assert set(row["systems"]) == {"dense", "pro", "genius"}
        for values in row["systems"].values():
            assert set(values) == {f"success@{k}" for k in metric_ks(task)}
            assert 0 <= values["success@1"] <= values["success@5"] <= values["success@10"] <= 1
    # Queries are their candidates' own pictures and words, so even a tiny model finds most of them.
    dense = [row["systems"]["dense"]["success@5"] for task, row in report["tasks"].items() if task != LOST[0]]
    assert sum(dense) / len(dense) > 0.8
    assert (report["pool"], report["seed"], report["dense_space"]) == ("local", 0, "fused")


def test_queries_that_cannot_be_answered_are_misses(finished: Bench) -> None:
    report = json.loads(finished.out.read_text())
    task, lost = LOST
    row = report["tasks"][task]
    assert row["queries"] - row["answerable"] == lost
    assert report["notes"]["test: queries without a positive in their pool"] == lost
    qrels = read_qrels(finished.run / "5-runs" / f"{task}.test.qrels")
    run = read_run(finished.run / "5-runs" / f"{task}.test.dense.trec")
    hits = sum(run[query][0][0] in judged for query, judged in qrels.items())
    assert "2:99" not in qrels
    assert row["systems"]["dense"]["success@1"] == pytest.approx(hits / (len(qrels) + lost))


def test_the_table_tells_quoted_from_measured(finished: Bench) -> None:
    lines = finished.out.with_suffix(".md").read_text().splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")]
    quoted = {row[0]: row for row in rows if row[1].startswith(MARK)}
    measured = {row[0]: row for row in rows if row[1] == "**measured here**"}
    assert list(quoted) == [row.method for row in quoted_rows()]
    assert list(measured) == ["dense", "pro", "genius"]
    assert quoted["PRO"][2] == "45.8 / 72.6" and quoted["AVG"][4] == "–"
    report = json.loads(finished.out.read_text())["tasks"]
    for name, row in measured.items():
        for task, cell in zip(COLUMNS, row[2:], strict=True):
            values = report[task]["systems"][name]
            assert cell == f"{100 * values['success@1']:.1f} / {100 * values['success@5']:.1f}"


def test_resuming_does_nothing_again(copied: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    stages = sorted(copied.run.rglob(STAGE_FILE))
    before = [(path.stat().st_mtime_ns, path.read_bytes()) for path in stages]
    assert bench(copied.arguments("--against", "genius", "--resume", "--json")) == 0
    found = capsys.readouterr()
    assert [(path.stat().st_mtime_ns, path.read_bytes()) for path in stages] == before
    assert "training" not in found.err and "candidates" not in found.err.split("M-BEIR")[0]
    assert json.loads(found.out) == json.loads(copied.out.read_text())


def test_a_lost_stage_and_a_lost_task_are_made_again(copied: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    whole = json.loads((copied.run / "6-report" / "mbeir-pro.json").read_text())
    less = {**whole, "tasks": {name: row for name, row in whole["tasks"].items() if name != "nights_task4"}}
    (copied.run / "6-report" / "mbeir-pro.json").write_text(json.dumps(less))
    capsys.readouterr()
    assert bench(copied.arguments("--resume")) == 1
    assert "mbeir-pro.json is damaged, or of another run" in capsys.readouterr().err
    write_result(copied.run / "6-report" / "mbeir-pro.json", less, "")
    shutil.rmtree(copied.run / "4-index")
    capsys.readouterr()
    assert bench(copied.arguments("--resume")) == 0
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if line.startswith("pro:")] == [
        "pro: indexing all candidates",
        "pro: nights_task4, 3 queries on 6 candidates",
    ]
    assert json.loads((copied.run / "6-report" / "mbeir-pro.json").read_text()) == whole


def test_another_beam_is_measured_without_training(copied: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(copied.arguments("--resume", "--set", "search.beam=2")) == 0
    said = capsys.readouterr().err
    assert "training" not in said
    assert said.count("\npro: ") + said.startswith("pro: ") == len(NINE)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ((), "go on with --resume"),
        (("--resume", "--pool", "union"), "was made from other data"),
        (("--resume", "--prompt", "first"), "was made from other data"),
        (("--resume", "--seed", "5"), "was made from other data"),
        (("--resume", "--set", "decoder.epochs=9"), "was made with decoder.epochs 4, not 9"),
        (("--resume", "--tasks", "mscoco_task9"), "one of: visualnews_task0"),
        (("--out", "table.txt"), "must be a .json file"),
    ],
)
def test_other_work_in_the_same_folder_is_refused(
    finished: Bench, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], message: str
) -> None:
    capsys.readouterr()
    assert bench(finished.arguments(*more)) == 1
    found = capsys.readouterr()
    assert message in found.err and len(found.err.strip().splitlines()) == 1 and found.out == ""


def test_the_union_pool_has_no_quoted_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = make_root(tmp_path / "root", ["webqa_task1", "fashioniq_task7"], scenes=8)
    made = Bench(root, tmp_path / "out.json", tmp_path / "run")
    tasks = ("--tasks", "webqa_task1", "fashioniq_task7", "--prompt", "first")
    assert bench(made.arguments("--pool", "union", *tasks)) == 0
    report = json.loads(made.out.read_text())
    assert {row["pool"] for row in report["tasks"].values()} == {32}
    assert report["paper_table"][MARK] == {}
    assert set(report["tasks"]["fashioniq_task7"]["systems"]["pro"]) == {"success@10", "success@20", "success@50"}
    assert "so none are quoted" in made.out.with_suffix(".md").read_text()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = make_root(tmp_path / "root", ["webqa_task1"], scenes=1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    made = Bench(root, tmp_path / "out.json", tmp_path / "mine")
    assert bench(made.arguments("--tasks", "webqa_task1")) == 1
    assert "holds no M-BEIR run" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


def test_quoted_numbers_are_whole() -> None:
    rows = {row.method: row for row in quoted_rows()}
    assert tuple(COLUMNS) == NINE
    assert sorted(task for tasks in FULL_TABLES.values() for task in tasks) == sorted(NINE)
    for method in ("CLIP-SF", "BLIP-FF", "GENIUS", "PRO"):
        assert set(rows[method].cells) == set(NINE)
    for row in rows.values():
        for task, cell in row.cells.items():
            assert task in FULL_TABLES[cell.table]
            values = [value for value in cell.values if value is not None]
            assert len(cell.values) == len(cell.spread) == 3 and values == sorted(values)
    # The paper: PRO beats GENIUS on every task, and no standard deviation exceeds .45 (R@1) and .36 (R@5).
    for task in NINE:
        pro, genius = rows["PRO"].cells[task], rows["GENIUS"].cells[task]
        assert all(a > b for a, b in zip(pro.values, genius.values, strict=True))
        assert pro.spread[0] <= 0.45 and pro.spread[1] <= 0.36
    assert rows["CLIP-SF"].cells["infoseek_task6"].success(10) == 37.0
    assert rows["AVG"].cells["mscoco_task0"].success(10) is None


@pytest.mark.parametrize("scale", ["tiny", "demo", "paper"])
def test_the_recipe_is_the_paper_s(scale: str) -> None:
    assert set(diff(recipe("pro", scale), recipe("mbeir", scale))) == {"recipe"}
