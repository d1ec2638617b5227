"""`siglum experiment` from the command line, on the drawn world at its smallest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from siglum.lab.experiments import region
from siglum.lab.experiments import trained as training
from siglum.lab.experiments.main import Main
from siglum.lab.experiments.setting import Setting


@pytest.fixture(autouse=True)
def _small_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """A world of 240 items, and of the systems two."""
    from dataclasses import replace

    fit, units = Setting.fit, Main.units
    monkeypatch.setattr(
        Setting, "fit", lambda self, config: fit(self, replace(config, world=replace(config.world, items=240)))
    )
    monkeypatch.setattr(
        Main, "units", lambda self, setting: [one for one in units(self, setting) if one.name in ("dense", "pro")]
    )


def test_train_here_and_draw_there(call: Callable[..., str], tmp_path: Path, monkeypatch: Any) -> None:
    words = ["experiment", "main", "--data", "world", "--scale", "tiny", "--out", tmp_path, "--json"]
    told = json.loads(call(*words, "--no-draw"))
    assert told["main"] == {"units": 2, "measured": 2, "missing": {}}
    assert not (tmp_path / "main" / "results.json").exists()
    for name in ("fit_fusion", "fit_tokenizer", "fit_decoder"):
        monkeypatch.setattr(training, name, None)
    monkeypatch.setattr(Setting, "vectors", None)  # assembling reads no data
    call(*words)
    results = json.loads((tmp_path / "main" / "results.json").read_text())
    assert set(results["systems"]) == {"dense", "pro"}
    assert len(results["systems"]["dense"]) == 9 and results["machines"][0]["device"] == "cpu"
    assert results["command"].startswith("siglum experiment main --data world --recipe pro --scale tiny --seeds 1")


def test_drawn_pools_do_not_encode_the_world(call: Callable[..., str], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(Setting, "vectors", None)
    monkeypatch.setattr(region, "region_units", lambda setting, pools, seconds: [])
    words = ["efficiency", "--data", "world", "--scale", "tiny", "--pools", "60", "--out", tmp_path, "--json"]
    told = json.loads(call("experiment", *words))
    assert told["efficiency"] == {"units": 1, "measured": 1, "missing": {}}
    assert json.loads((tmp_path / "efficiency" / "results.json").read_text())["data"] == "world"
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("mein", "--data", "world"), "experiment is 'mein', but must be one of: main, ablation"),
        (("main", "--data", "nowhere"), "--data is 'nowhere', but must be world, a folder"),
        (("efficiency", "--data", "nowhere"), "--data is 'nowhere', but must be world, a folder"),
        (("efficiency", "--data", "."), "captions"),
        (("main", "--data", "world", "--recipe", "x"), "recipe is 'x'"),
        (("main", "--data", "world", "--scale", "captions"), "for folders of features"),
        (("main", "--data", "world", "--seeds", "0"), "--seeds must be at least 1"),
        (("main", "--data", "world", "--jobs", "0"), "--jobs must be at least 1"),
        (("main", "--data", "world", "--device", "tpu"), "tpu"),
        (("main", "--data", "world", "--limit", "0.000001"), "nothing was measured: not measured yet."),
    ],
)
def test_refusals(fail: Callable[..., str], tmp_path: Path, words: tuple[str, ...], reason: str) -> None:
    assert reason in fail("experiment", *words, "--out", tmp_path)
