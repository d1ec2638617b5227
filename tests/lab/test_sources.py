"""Sources: which files a number comes from, and what changes their fingerprint."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from siglum.lab import sources as listing
from siglum.lab.sources import MEASURING, TRAINING, sources, sources_fingerprint


def test_training_and_search_are_there_and_what_only_tells_is_not() -> None:
    found = sources(*MEASURING)
    for name in (
        "siglum.tokenize.losses",
        "siglum.search.static.triton_steps",
        "siglum.generate.train",
        "siglum.run.coded",
    ):
        assert found[name].is_file()
    for name in ("siglum.pages", "siglum.console", "siglum.recipes", "siglum.log", "siglum.api", "siglum.run.live"):
        assert not any(f"{one}.".startswith(f"{name}.") for one in found)
    by_stage = {stage: set(sources(*modules)) for stage, modules in TRAINING.items()}
    assert by_stage["space"] < by_stage["tokenizer"] and "siglum.tokenize.rq" not in by_stage["space"]
    assert not any(name.startswith("siglum.search") for names in by_stage.values() for name in names)


def test_the_fingerprint_follows_the_sources_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "siglum"
    shutil.copytree(listing.ROOT, copy, ignore=shutil.ignore_patterns("__pycache__"))
    here = sources_fingerprint(*MEASURING)
    monkeypatch.setattr(listing, "ROOT", copy)

    def changed(path: str) -> bool:
        with (copy / path).open("a") as file:
            file.write("# a word\n")
        for one in (listing.sources_fingerprint, listing._imported):
            one.cache_clear()
        before, changed.last = changed.last, sources_fingerprint(*MEASURING)  # type: ignore[attr-defined]
        return before != changed.last  # type: ignore[attr-defined]

    changed.last = here  # type: ignore[attr-defined]
    assert not changed("pages/html_parts.py") and not changed("recipes.py")
    assert changed("tokenize/losses.py") and changed("search/beam.py") and changed("lab/experiments/fusion_weights.py")
