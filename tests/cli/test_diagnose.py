"""`siglum diagnose` on a tiny run, before and after the decoder exists."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from markup import all_said, links, parse, rows, said
from siglum.cli.main import main
from siglum.files import read_json
from siglum.measure.diagnose import sample
from siglum.measure.systems import beam_survival_of, health_of, open_systems, survival_of
from siglum.rootfiles import write_root_json
from siglum.run.folder import RunFolder
from siglum.types import SiglumError, Task

Call = Callable[..., str]


@pytest.fixture
def young_run(run_copy: Path) -> Path:
    """A run whose tokenizer is trained and nothing more."""
    for stage in ("3-decoder", "4-index"):
        shutil.rmtree(run_copy / stage)
    return run_copy


def test_before_the_decoder(call: Call, young_run: Path) -> None:
    found = json.loads(call("diagnose", young_run, "--json"))
    assert [rung["rung"] for rung in found["ladder"]] == ["teacher", "oracle", "geometry"]
    assert (found["own"], found["decoder"], found["omega"]) == ("geometry", False, None)
    assert [level["level"] for level in found["levels"]] == [0, 1, 2, 3, 4]
    for level in found["levels"]:
        assert level["eps"] is None and level["eps_fused"] is None and level["eps_scope"] is None
        assert level["K"] >= 0 and -1 <= level["m"] <= 1
        assert level["chance"] == min(1.0, found["beam"] / level["size"])
    for rung in found["ladder"]:
        assert all(a >= b for a, b in zip(rung["survival"], rung["survival"][1:], strict=False))
        assert all(0 < share <= 1 for share in rung["leaves"])
    lost = sum(sum(rung["share"]) for rung in found["ladder"])
    assert lost == pytest.approx(1 - found["ladder"][-1]["survival"][-1])
    assert f"at level {found['cause']['level']}: " in found["verdict"]


def test_figures_are_those_of_eval(call: Call, world_run: Path) -> None:
    found = json.loads(call("diagnose", world_run, "--queries", 0, "--json"))
    systems = open_systems(RunFolder(world_run))
    assert systems.own is not None
    assert [level["survival"] for level in found["levels"][1:]] == pytest.approx(survival_of(systems))
    health = health_of(systems).as_dict()
    assert {k: v for k, v in health.items() if k != "levels"} == pytest.approx(found["health"])
    for level, wanted in zip(found["levels"], health["levels"], strict=True):
        assert {name: level[name] for name in wanted} == pytest.approx(wanted)
    rungs = {rung["rung"]: rung for rung in found["ladder"]}
    assert list(rungs) == ["teacher", "oracle", "geometry", "decoder", "fused"]
    for name, ranker in (("geometry", systems.geometry), ("fused", systems.own)):
        wanted = beam_survival_of(systems, ranker, queries_per_task=10_000)
        assert rungs[name]["survival"] == pytest.approx(wanted, abs=0.005)
    assert found["own"] == "fused"
    for level in found["levels"]:
        assert 0 <= level["eps"] <= 1 and 0 <= level["eps_fused_plain"] <= 1 and level["eps_scope"] == "full"


def test_the_tables_fit_and_name_the_rungs(call: Call, world_run: Path) -> None:
    text = call("diagnose", world_run, "--queries", 60)
    assert max(len(line) for line in text.splitlines()) <= 100
    assert "…" not in text
    for word in ("Codes", "Ladder", "Lost", "Verdict", "teacher", "fused", "ε", "B/V", "chance", "leaves"):
        assert word in text


def test_options_are_taken(call: Call, young_run: Path) -> None:
    wide = json.loads(call("diagnose", young_run, "--json", "--queries", 40, "--split", "val"))
    narrow = json.loads(
        call("diagnose", young_run, "--json", "--queries", 40, "--split", "val", "--beam", 2, "--tau", 0.5)
    )
    assert (wide["split"], narrow["beam"], narrow["tau"], wide["tau"]) == ("val", 2, 0.5, 0.05)
    assert 30 <= wide["queries"] <= 50
    assert narrow["ladder"][0]["survival"][-1] < wide["ladder"][0]["survival"][-1]
    assert narrow["levels"][2]["K"] < wide["levels"][2]["K"]


def test_a_look_ahead_run_ends_with_that_rung(call: Call, young_run: Path) -> None:
    config = read_json(young_run / "config.json")
    config["search"]["lookahead"] = True
    write_root_json(young_run, "config.json", config)
    found = json.loads(call("diagnose", young_run, "--json", "--queries", 40))
    assert found["own"] == found["ladder"][-1]["rung"] == "look-ahead"


def test_the_remedy_follows_the_run_s_settings(call: Call, world_run: Path, run_copy: Path) -> None:
    """The run distils and fuses, so neither is advised; the copy ranks by its decoder alone."""
    config = read_json(run_copy / "config.json")
    assert config["tokenizer"]["rank_weight"] > 0
    config["search"]["scorer"] = "decoder"
    write_root_json(run_copy, "config.json", config)
    fused, plain = (json.loads(call("diagnose", run, "--json", "--queries", 60)) for run in (world_run, run_copy))
    assert "distillation" not in fused["verdict"] and "search.scorer=fused" not in fused["verdict"]
    assert plain["own"] == "decoder" and plain["cause"]["rung"] in ("teacher", "oracle", "geometry", "decoder")
    assert "distillation" not in plain["verdict"] and "omega (now" not in plain["verdict"]


def test_fail_under_tells_and_exits_with_1(young_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(young_run), "--json", "--fail-under", "0"]) == 0
    capsys.readouterr()
    assert main(["diagnose", str(young_run), "--json", "--fail-under", "1"]) == 1
    found = capsys.readouterr()
    final = json.loads(found.out)["ladder"][-1]["survival"][-1]
    assert f"{100 * final:.1f} % of targets reach the last level (geometry)" in found.err
    assert "100 % asked for" in found.err


def test_mistakes_are_one_sentence(fail: Call, young_run: Path, tmp_path: Path) -> None:
    assert "no tasks in split train; there are some in test, val" in fail("diagnose", young_run, "--split", "train")
    assert "beam must be a whole number of at least 1" in fail("diagnose", young_run, "--beam", 0)
    assert "queries must be a whole number of at least 0, not -1" in fail("diagnose", young_run, "--queries", -1)
    assert "share from 0 to 1, not 80.0" in fail("diagnose", young_run, "--fail-under", 80)
    assert "is not a run folder" in fail("diagnose", tmp_path / "none")


def test_an_unfinished_decoder_is_left_out(young_run: Path, call: Call, caplog: pytest.LogCaptureFixture) -> None:
    (young_run / "3-decoder").mkdir()
    assert json.loads(call("diagnose", young_run, "--json", "--queries", "20"))["decoder"] is False
    assert "is not finished; it is left out" in caplog.text


def test_a_sample_is_spread_over_tasks() -> None:
    def task(count: int) -> Task:
        return Task("t", "test", np.arange(count), np.arange(3), [np.array([0])] * count)

    tasks = [task(100), task(300)]
    assert sample(tasks, 0) == sample(tasks, 400) == tasks
    assert [len(one.query_rows) for one in sample(tasks, 40)] == [10, 30]
    assert [len(one.query_rows) for one in sample(tasks, 1)] == [1, 1]


def test_a_target_outside_its_pool_is_refused() -> None:
    from siglum.measure.diagnose import target_places

    with pytest.raises(SiglumError, match="1 targets of task t are not in its pool"):
        target_places(Task("t", "test", np.arange(2), np.arange(3), [np.array([1]), np.array([7])]))


def test_a_page_of_all_that_is_found(call: Call, young_run: Path, world_run: Path, tmp_path: Path) -> None:
    found = json.loads(call("diagnose", world_run, "--queries", 60, "--out", tmp_path / "pages" / "a.html", "--json"))
    page = parse((tmp_path / "pages" / "a.html").read_text())
    own = next(rung for rung in found["ladder"] if rung["rung"] == "fused")
    (finding,) = all_said(page, "p", "finding")
    reached = f"{100 * own['survival'][-1]:.1f} % of targets reach the last level of the run’s own search (fused)"
    assert finding.startswith(reached) and f"{found['queries']} queries of split test" in said(page)
    (levels,) = (one for one in page.iter("details") if "open" in one.attrib)
    assert said(levels.find("summary")) == "Level by level" and "ε fused" in all_said(levels, "th")
    errors = [f"{level['error']:.4f}" for level in found["levels"]]
    assert set(errors) <= {cell for row in rows(levels) for cell in row}
    assert all(link.startswith(("data:", "#")) for link in links(page))
    call("diagnose", young_run, "--queries", 60, "--out", tmp_path / "b.html")
    young = parse((tmp_path / "b.html").read_text())
    assert "No decoder is trained yet" in said(young) and "ε fused" not in all_said(young, "th")
    assert "search (geometry)" in said(young)
