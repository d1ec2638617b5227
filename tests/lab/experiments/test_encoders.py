"""Encoders: other features for the same data, and what cannot be run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caption_files import make_captions
from siglum.encode.builtin import BuiltinEncoder
from siglum.files import read_json
from siglum.lab.captions.reader import read_captions
from siglum.lab.experiments.encoders import Encoders, features_of, on_features
from siglum.lab.experiments.features import encoder_of, folder_features, reduced
from siglum.lab.experiments.ranks import MEAN
from siglum.lab.experiments.run import run_experiments
from siglum.lab.experiments.setting import Setting
from siglum.types import SiglumError, Vectors

SPLITS = ["train"] * 30 + ["val"] * 10 + ["test"] * 10


def _captions(folder: Path, text: bool = True) -> Path:
    make_captions(folder, SPLITS, [2] * len(SPLITS))
    path = folder / "captions.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row["text"] = f"picture number {row['image_row']} seen {row['row'] % 2}" if text else None
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return _captions(tmp_path / "data")


def test_words_are_those_of_the_captions(folder: Path) -> None:
    vectors = folder_features(read_captions(folder), folder, "words")
    wanted = BuiltinEncoder().encode_texts(["picture number 3 seen 1"])[0]
    row = list(vectors.items.ids).index("t:7:c7")
    assert np.allclose(vectors.items.text[row], wanted) and np.allclose(vectors.queries.text[7], wanted)
    assert not vectors.items.text[~vectors.items.has_text].any()
    given = read_captions(folder)
    assert (vectors.items.image == given.items.image).all()


def test_principal_components_keep_most_of_the_training_texts(make_vectors: Any) -> None:
    vectors: Vectors = make_vectors(noise=0.0)
    few = reduced(vectors, "builtin@8")
    assert few.items.text.shape[1] == few.queries.text.shape[1] == 8
    assert few.items.image is vectors.items.image
    rows = np.flatnonzero(vectors.items.has_text)[:40]  # 8 hidden numbers, seen through unit rows of 12
    apart = [
        np.linalg.norm(part[rows][:, None] - part[rows][None], axis=-1) for part in (vectors.items.text, few.items.text)
    ]
    assert np.corrcoef(apart[0].ravel(), apart[1].ravel())[0, 1] > 0.99
    fewer = reduced(vectors, "builtin@3").items.text
    assert np.allclose(np.abs(fewer), np.abs(few.items.text[:, :3]), atol=1e-4)
    assert not few.items.text[~vectors.items.has_text].any()
    for name, words in (("x@12", "ask for 12 of 12"), ("x@a", "number of components")):
        with pytest.raises(SiglumError, match=words):
            reduced(vectors, name)


def test_other_files_of_a_folder_are_found(folder: Path, tmp_path: Path) -> None:
    setting = Setting(str(folder), tmp_path / "out", scale="captions_small")
    assert features_of(setting) == ["given", "given@64", "words"]
    rng = np.random.default_rng(0)
    np.save(folder / "text_features_mine.npy", rng.normal(size=(2 * len(SPLITS), 5)).astype(np.float32))
    assert features_of(setting) == ["given", "given@64", "words", "mine"]
    mine = on_features(setting, "mine")
    assert mine.vectors().items.text.shape[1] == 5
    assert on_features(setting, "given") == setting
    before = mine.identity(), setting.identity()
    np.save(folder / "text_features_mine.npy", rng.normal(size=(2 * len(SPLITS), 5)).astype(np.float32))
    assert replace(mine).identity() != before[0] and replace(setting).identity() == before[1]
    np.save(folder / "text_features_mine.npy", np.ones((3, 5), np.float32))
    with pytest.raises(SiglumError, match="3 text features for 100 captions"):
        replace(mine).vectors()
    with pytest.raises(SiglumError, match=r"has no text_features_none\.npy"):
        replace(setting, features="none").vectors()


def test_a_choice_of_encoders_replaces_the_usual_ones(tmp_path: Path) -> None:
    setting = Setting("world", tmp_path, scale="tiny", encoders=("builtin", "clip:nowhere"))
    assert {unit.options["features"] for unit in Encoders().units(setting)} == {"builtin", "clip:nowhere"}
    assert encoder_of("", "cpu").name == encoder_of("builtin@64", "cpu").name == "builtin"
    with pytest.raises(SiglumError, match="name no encoder"):
        encoder_of("none", "cpu")


def test_dense_genius_and_pro_on_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _captions(tmp_path / "data")
    fit = Setting.fit

    def smaller(self: Setting, config: Any) -> Any:
        small = fit(self, config)
        return replace(
            small,
            fusion=replace(small.fusion, dim=8, hidden=24, epochs=5),
            tokenizer=replace(small.tokenizer, vocab=small.tokenizer.vocab[:3], epochs=1),
            decoder=replace(small.decoder, d_model=16, d_ff=16, d_kv=8, heads=2, epochs=1),
        )

    monkeypatch.setattr(Setting, "fit", smaller)
    names = ("given", "words@6", "nothing")
    setting = Setting(str(folder), tmp_path / "out", scale="captions_small", encoders=names)
    told = run_experiments(setting, ["encoders"], command="x", say=lambda line: None)["encoders"]
    assert told["measured"] == 6
    assert set(told["missing"]) == {f"nothing-{system}-0" for system in ("dense", "genius", "pro")}
    results = read_json(setting.out / "encoders" / "results.json")
    assert "need weights" in results["not_run"]
    kept = results["share_of_dense"]
    assert set(kept) == {"given", "words@6"}
    for features, systems in kept.items():
        value, dense = (results["systems"][f"{features} {one}"][MEAN]["success@5"]["mean"] for one in ("pro", "dense"))
        assert systems["pro"]["success@5"] == (pytest.approx(value / dense) if dense else None)
    text = (setting.out / "encoders" / "table.md").read_text()
    assert "| t→i, words@6 " in text and text.count("Not measured: nothing-dense-0, nothing-genius-0") == 1
    spaces = [path for path in (setting.out / "trained" / "space").iterdir() if path.is_dir()]
    assert len(spaces) == 2
