"""Running experiments: parts, resuming, failures, limits, processes, and what is written in the end."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_setting import SmallSetting, small_setting

from siglum.config import SearchConfig
from siglum.files import read_json, write_json
from siglum.lab.experiments import origin
from siglum.lab.experiments import run as running
from siglum.lab.experiments import trained as training
from siglum.lab.experiments.base import Outcome, Part, Unit, names_of, open_experiment
from siglum.lab.experiments.machine import commit, describe_machine
from siglum.lab.experiments.main import Main
from siglum.lab.experiments.plots import Figure, Panel, Series
from siglum.lab.experiments.ranks import choose_weights
from siglum.lab.experiments.run import run_experiments, work_of
from siglum.lab.experiments.setting import Setting, locked
from siglum.lab.experiments.trained import Trained, open_space, open_trained
from siglum.lab.tables import Table
from siglum.measure.survival import token_survival
from siglum.types import SiglumError


class Fake:
    """An experiment that trains nothing and notes what it was asked to measure."""

    name, title = "main", "A title with 5 % and an _underscore_"

    def __init__(self) -> None:
        self.measured: list[str] = []
        self.faults: dict[str, BaseException] = {}
        self.factor = 2
        self.alone: set[str] = set()
        self.data = True

    def units(self, setting: Setting) -> list[Unit]:
        return [
            Unit(name, seed, setting.config(seed=seed), {"factor": self.factor}, name in self.alone, self.data)
            for seed in range(setting.seeds)
            for name in "abc"
        ]

    def measure(self, setting: Setting, unit: Unit) -> dict[str, Any]:
        self.measured.append(f"{unit.name}{unit.seed}")
        if unit.name in self.faults:
            raise self.faults[unit.name]
        return {"value": unit.options["factor"] * (unit.seed + 1)}

    def assemble(self, setting: Setting, parts: list[Part]) -> Outcome:
        values = [float(part["value"]) for part in parts]
        panel = Panel(kind="lines", series=[Series(label="v", y=values)], x_label="x", y_label="y")
        table = Table("t", "T", ["unit", "value"], [[part["unit"], f"{part['value']}"] for part in parts])
        return Outcome({"values": values}, [table], [Figure(name="curve", title="Curve", panels=[panel])])


Run = Callable[..., dict[str, Any]]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    found = Fake()
    monkeypatch.setattr(running, "open_experiment", lambda name: found)
    return found


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def call(**options: Any) -> dict[str, Any]:
        setting = small_setting(tmp_path, **options.pop("setting", {}))
        said: list[str] = []
        told = run_experiments(setting, ["main"], command="siglum experiment main", say=said.append, **options)
        return {**told["main"], "said": said}

    return call


def test_a_second_run_measures_nothing_and_writes_the_same(fake: Fake, run: Run, tmp_path: Path) -> None:
    first = run(setting={"seeds": 2})
    assert sorted(fake.measured) == ["a0", "a1", "b0", "b1", "c0", "c1"]
    assert first["units"] == first["measured"] == 6 and not first["missing"]
    before = {path: path.read_bytes() for path in (tmp_path / "main").glob("*.*") if path.name != "results.json"}
    assert {path.name for path in before} == {"table.md", "table.tex", "curve.svg", "curve.png", "curve.json"}
    fake.measured.clear()
    again = run(setting={"seeds": 2})
    assert fake.measured == [] and again["said"][0] == "6 of 6 units are there already"
    assert {path: path.read_bytes() for path in before} == before


def test_results_tell_what_was_run(fake: Fake, run: Run, tmp_path: Path) -> None:
    run(setting={"seeds": 2})
    results = read_json(tmp_path / "main" / "results.json")
    assert results["values"] == [2.0, 2.0, 2.0, 4.0, 4.0, 4.0]
    assert results["command"] == "siglum experiment main" and results["seeds"] == [0, 1]
    assert results["title"] == fake.title and results["recipe"] == "pro" and results["scale"] == "tiny"
    assert results["commit"] == commit()
    assert results["date"].endswith("+00:00") and results["seconds"] >= 0
    (machine,) = results["machines"]
    assert machine["device"] == "cpu" and machine["versions"]["torch"] and machine["cores"] >= 1
    assert r"\begin{tabular}{@{}lr@{}}" in (tmp_path / "main" / "table.tex").read_text()
    part = read_json(tmp_path / "main" / "parts" / "a-1.json")
    assert (part["unit"], part["seed"], part["options"], part["value"]) == ("a", 1, {"factor": 2}, 4)


def test_other_options_settings_or_formats_are_measured_again(
    fake: Fake, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run()
    for change in (
        lambda: setattr(fake, "factor", 3),
        lambda: monkeypatch.setattr(running, "FORMAT", 99),
        lambda: monkeypatch.setattr(Setting, "identity", lambda self: "other data"),
    ):
        fake.measured.clear()
        change()
        run()
        assert len(fake.measured) == 3
    fake.measured.clear()
    run(setting={"recipe": "vs_sf"})
    assert len(fake.measured) == 3


def test_other_sources_are_measured_again(fake: Fake, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run()
    fake.measured.clear()
    monkeypatch.setattr(running, "sources_fingerprint", lambda *modules: "other sources")
    run()
    assert fake.measured == ["a0", "b0", "c0"]


def test_what_is_there_from_another_device_stays_alone(
    fake: Fake, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake.faults = {"b": SiglumError("later.")}
    run()
    part = tmp_path / "main" / "parts" / "a-0.json"
    assert read_json(part)["origin"]["device"] == "cpu"
    told = {name: value for name, value in read_json(part)["origin"].items() if value}
    assert read_json(tmp_path / "main" / "results.json")["origin"] == told and set(told) == {
        "device",
        "sources",
        "data",
    }
    fake.faults, fake.measured = {}, []
    with monkeypatch.context() as patch:
        patch.setattr(origin, "kind_of_device", lambda device: "NVIDIA H200")
        elsewhere = run()
    assert fake.measured == [] and elsewhere["measured"] == 2
    assert "main b-0 is measured on NVIDIA H200 but a-0 on cpu" in elsewhere["missing"]["b-0"]
    assert run()["measured"] == 3  # and here it goes on
    write_json(part, read_json(part) | {"origin": {**read_json(part)["origin"], "device": "NVIDIA H200"}})
    with pytest.raises(SiglumError, match="b-0 is measured on cpu but a-0 on NVIDIA H200"):
        run()


def test_a_fault_is_one_sentence_and_the_others_go_on(fake: Fake, run: Run, tmp_path: Path) -> None:
    fake.faults = {"a": SiglumError("the moon is missing."), "b": RuntimeError("two\nlines")}
    told = run()
    assert told["measured"] == 1
    assert told["missing"] == {"a-0": "the moon is missing.", "b-0": "RuntimeError: two lines"}
    assert any("main a-0: failed: the moon is missing." in line for line in told["said"])
    assert read_json(tmp_path / "main" / "results.json")["missing"] == told["missing"]
    assert "Not measured: a-0 (the moon is missing)." in (tmp_path / "main" / "table.md").read_text()
    fake.measured.clear()
    fake.faults = {}
    assert run()["missing"] == {} and fake.measured == ["a0", "b0"]


def test_an_interrupted_run_goes_on(fake: Fake, run: Run) -> None:
    fake.faults = {"b": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        run()
    assert fake.measured == ["a0", "b0"]
    fake.faults, fake.measured = {}, []
    assert run()["measured"] == 3 and fake.measured == ["b0", "c0"]


def test_a_field_of_every_part_cannot_be_returned(fake: Fake, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake, "measure", lambda setting, unit: {"seed": 5})
    assert "returned 'seed'" in run()["missing"]["a-0"]


def test_units_that_measure_time_come_last_and_alone(fake: Fake, run: Run) -> None:
    fake.alone = {"a"}
    run()
    assert fake.measured == ["b0", "c0", "a0"]


def test_data_are_made_only_where_a_unit_needs_them(fake: Fake, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(SmallSetting, "vectors", lambda self: made.append(self.data))
    fake.data = False
    assert run()["measured"] == 3 and made == []
    fake.data, fake.factor = True, 3
    assert run()["measured"] == 3 and made == ["world"]


def test_the_limit_begins_nothing_and_assembles_what_is_there(fake: Fake, run: Run) -> None:
    fake.faults = {"c": SiglumError("later.")}
    run()
    fake.faults, fake.measured = {}, []
    told = run(limit=1e-9)
    assert fake.measured == [] and told["measured"] == 2 and told["missing"] == {"c-0": "not measured yet"}


def test_without_drawing_only_parts_are_left(fake: Fake, run: Run, tmp_path: Path, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib", None)
        run(draw=False)
        assert [path.name for path in (tmp_path / "main").iterdir()] == ["parts"]
        with pytest.raises(SiglumError, match="needs matplotlib"):
            run()
    fake.measured.clear()
    run()
    assert fake.measured == [] and (tmp_path / "main" / "results.json").exists()


def test_units_that_train_the_same_are_not_begun_together() -> None:
    setting, main = small_setting(Path("nowhere")), Main()
    config = setting.config()
    other = replace(config, seed=1)
    decoder = replace(config, search=replace(config.search, scorer="decoder"), recipe="pd_vs")
    units = [Unit(name, 0, one) for name, one in (("a", config), ("b", decoder), ("c", other))]
    a, b, c = (work_of(setting, main, unit).shares for unit in units)
    assert a == b != c


def test_names() -> None:
    assert names_of(("all", "main"))[:2] == ["main", "ablation"] and len(names_of(("all",))) == 12
    for asked, words in (((), "at least one"), (("mein",), "mein")):
        with pytest.raises(SiglumError, match=words):
            names_of(asked)
    for name in names_of(("all",)):
        assert open_experiment(name).name == name


def test_settings_are_checked(tmp_path: Path, subtests: pytest.Subtests) -> None:
    assert Setting("world", tmp_path).scale == "demo" and Setting(str(tmp_path), tmp_path).scale == "captions"
    for options, words in (
        ({"scale": "huge"}, "scale is 'huge'"),
        ({"scale": "captions"}, "folders of features"),
        ({"data": str(tmp_path / "none")}, "must be world, a folder"),
    ):
        with subtests.test(words), pytest.raises(SiglumError, match=words):
            Setting(**{"data": "world", "out": tmp_path, **options})


def test_a_checkout_has_a_commit_and_a_plain_folder_none(tmp_path: Path) -> None:
    assert commit(tmp_path) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@y"]
    (tmp_path / "a").write_text("1")
    for words in (["init", "-q"], ["add", "a"], ["commit", "-qm", "m"]):
        subprocess.run([*git, *words], check=True)
    clean = commit(tmp_path)
    assert clean is not None and len(clean) == 40
    (tmp_path / "a").write_text("2")
    assert commit(tmp_path) == f"{clean} with changes"
    json.dumps(describe_machine("cpu"))


# What is trained.


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> tuple[Setting, Trained]:
    setting = small_setting(tmp_path_factory.mktemp("trained"))
    return setting, open_trained(setting, setting.config())


def test_what_is_there_is_opened_and_not_trained(one: tuple[Setting, Trained], monkeypatch) -> None:
    setting, trained = one
    for name in ("fit_fusion", "fit_tokenizer", "fit_query_head", "fit_decoder"):
        monkeypatch.setattr(training, name, None)
    again = open_trained(setting, replace(setting.config("pd_vs"), search=SearchConfig(scorer="decoder")))
    assert again.tokenizer.fingerprint() == trained.tokenizer.fingerprint()
    assert again.seconds == trained.seconds and set(again.seconds) == {"space", "tokenizer", "decoder"}
    assert again.tokenizer.history == trained.tokenizer.history
    task = setting.vectors().of_split("test")[0]
    for search in (SearchConfig(beam=5), SearchConfig(beam=5, scorer="oracle"), SearchConfig(beam=5, lookahead=True)):
        left, right = (found.beam(search).rank(task.query_rows, task.pool_rows, 5) for found in (trained, again))
        assert all((a.position == b.position).all() for a, b in zip(left, right, strict=True))
    with pytest.raises(TypeError):  # another tokenizer must be trained, and nothing can be here
        open_trained(setting, setting.config("vs"))


def test_a_training_that_was_killed_keeps_its_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = small_setting(tmp_path)
    with monkeypatch.context() as patch:

        def killed(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(training, "fit_decoder", killed)
        with pytest.raises(KeyboardInterrupt):
            open_trained(setting, setting.config())
    for name in ("fit_fusion", "fit_tokenizer"):
        monkeypatch.setattr(training, name, None)
    assert open_trained(setting, setting.config()).decoder is not None


def test_other_data_seeds_and_settings_are_trained_apart(one: tuple[Setting, Trained]) -> None:
    setting, _ = one
    config = setting.config()
    space = setting.out / "trained" / "space"
    before = len([path for path in space.iterdir() if path.is_dir()])
    open_space(setting, config)
    for other, changed in (
        (setting, replace(config, seed=3)),
        (setting, replace(config, fusion=replace(config.fusion, epochs=1))),
        (replace(setting, world_seed=7), config),
    ):
        open_space(other, changed)
    assert len([path for path in space.iterdir() if path.is_dir()]) == before + 3


def test_quantities_are_those_of_the_task_in_its_own_pool(one: tuple[Setting, Trained]) -> None:
    _, trained = one
    quantizer = trained.tokenizer.quantizer
    for task in trained.vectors.of_split("test"):
        levels = trained.quantities(task, beam=7, tau=0.05)
        targets = [int(rows[0]) for rows in task.positives]
        wanted = token_survival(
            trained.query_MD[task.query_rows],
            trained.codes_NT[targets],
            trained.tokenizer.codebooks(),
            7,
            quantizer.first_residual,
        )
        assert [float(level.token_survived_Q.mean()) for level in levels] == pytest.approx(wanted)
        assert [level.size for level in levels] == list(trained.config.tokenizer.vocab)
        assert all(level.prefixes <= len(task.pool_rows) for level in levels)


def test_weights_are_the_best_on_validation(one: tuple[Setting, Trained]) -> None:
    _, trained = one
    for search in (trained.config.search, replace(trained.config.search, zscore=True)):
        found = choose_weights(trained, search)
        best = max(row["mrr@10"] for row in found.tried)
        assert next(row["mrr@10"] for row in found.tried if row["omega"] == found.best.omega) == best
        assert found.best.zscore == search.zscore and found.best.scorer == "fused"


@pytest.mark.long
def test_two_processes_measure_what_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    units = Main.units
    monkeypatch.setattr(Main, "units", lambda self, setting: units(self, setting)[:2])
    found = []
    for jobs in (1, 2):
        setting = small_setting(tmp_path / str(jobs))
        told = run_experiments(setting, ["main"], jobs=jobs, draw=False, command="", say=lambda line: None)
        assert told["main"]["missing"] == {}
        parts = [read_json(path) for path in sorted((setting.out / "main" / "parts").glob("*.json"))]
        found.append([(part["unit"], part["systems"], part["identity"]) for part in parts])
        assert [part["unit"] for part in parts] == ["dense", "genius"]
        spaces = [path for path in (setting.out / "trained" / "space").iterdir() if path.is_dir()]
        assert len(spaces) == 1  # both processes asked for it, and one of them made it
    assert found[0] == found[1]


def test_a_setting_travels_without_its_data(tmp_path: Path) -> None:
    setting = small_setting(tmp_path, seeds=3, pools=(5, 6))
    setting.identity()
    there = pickle.loads(pickle.dumps(setting))
    assert there == setting and type(there) is SmallSetting and setting._kept and not there._kept
    assert there.identity() == setting.identity()


def test_a_lock_is_free_again_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), locked(tmp_path / "x"):
        raise KeyboardInterrupt
    with locked(tmp_path / "x"):
        pass
