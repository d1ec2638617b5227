"""Ranks of systems, contrasts with intervals, and tables in both forms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_setting import small_setting

from siglum.lab.experiments.base import Part
from siglum.lab.experiments.ranks import MEAN, Ranks, rank_systems
from siglum.lab.experiments.trained import open_trained
from siglum.lab.tables import Table
from siglum.types import SiglumError


def _parts(ranks: dict[str, list[list[int]]], groups: list[int] | None = None) -> list[Part]:
    """Parts of one task: system -> seed -> ranks."""
    more = {} if groups is None else {"groups": {"t2i": groups}}
    return [
        {"seed": seed, "systems": {name: {"t2i": rows}}, **more}
        for name, seeds in ranks.items()
        for seed, rows in enumerate(seeds)
    ]


def test_measures_of_ranks() -> None:
    ranks = Ranks.read(_parts({"a": [[1, 4, 0, 10], [2, 0, 0, 0]]}))
    assert ranks.over_seeds("a", "t2i", "success@1") == [0.25, 0.0]
    assert ranks.over_seeds("a", MEAN, "success@5") == [0.5, 0.25]
    assert ranks.over_seeds("a", "t2i", "mrr@10") == pytest.approx([(1 + 0.25 + 0.1) / 4, 0.125])
    cell = ranks.summary()["a"]["t2i"]["success@10"]
    assert cell["mean"] == 0.5 and cell["seeds"] == [0.75, 0.25] and cell["std"] == pytest.approx(0.5 / 2**0.5)
    assert Ranks.read(_parts({"a": [[1]]})).cell("a", "t2i", "success@1")["std"] is None


def test_an_interval_is_as_wide_as_theory_says() -> None:
    rng = np.random.default_rng(1)
    left, right = (rng.integers(0, 3, 900) for _ in range(2))
    ranks = Ranks.read(_parts({"a": [left.tolist()], "b": [right.tolist()]}))
    found = ranks.contrast({"a": 1, "b": -1}, "t2i", "success@1")
    gap = (left == 1).astype(float) - (right == 1)
    assert found is not None and found["mean"] == pytest.approx(gap.mean())
    assert found["high"] - found["low"] == pytest.approx(2 * 1.96 * gap.std() / 30, rel=0.08)


def test_queries_of_one_target_are_drawn_together() -> None:
    rows = [1, 1, 1, 2, 2, 2] * 20
    alone = Ranks.read(_parts({"a": [rows]})).contrast({"a": 1}, "t2i", "success@1")
    groups = [place // 3 for place in range(len(rows))]
    together = Ranks.read(_parts({"a": [rows]}, groups)).contrast({"a": 1}, "t2i", "success@1")
    assert alone is not None and together is not None
    assert alone["mean"] == pytest.approx(0.5) and together["mean"] == pytest.approx(0.5)
    assert together["high"] - together["low"] > 1.5 * (alone["high"] - alone["low"])


def test_seeds_widen_an_interval_and_a_constant_has_none() -> None:
    same = Ranks.read(_parts({"a": [[1] * 50, [1] * 50], "b": [[2] * 50, [2] * 50]}))
    assert same.contrast({"a": 1, "b": -1}, MEAN, "success@1") == pytest.approx({"mean": 1, "low": 1, "high": 1})
    torn = Ranks.read(_parts({"a": [[1] * 50, [2] * 50]}))
    assert torn.contrast({"a": 1}, MEAN, "success@1") == pytest.approx({"mean": 0.5, "low": 0, "high": 1})


def test_contrasts_keep_to_common_seeds() -> None:
    parts = _parts({"a": [[1, 1], [2, 2]], "b": [[2, 2]]})
    found = Ranks.read(parts).contrast({"a": 1, "b": -1}, "t2i", "success@1")
    assert found is not None and found["mean"] == pytest.approx(1)
    assert Ranks.read(parts).contrast({"a": 1, "c": -1}, "t2i", "success@1") is None
    apart = [{"seed": seed, "systems": {name: {"t2i": [1]}}} for seed, name in enumerate("ab")]
    assert Ranks.read(apart).contrast({"a": 1, "b": -1}, "t2i", "success@1") is None


def test_ranked_systems_name_their_targets_where_shared(tmp_path: Path) -> None:
    setting = small_setting(tmp_path)
    trained = open_trained(setting, setting.config(), decoder=False)
    found = rank_systems(trained.vectors, {"scan": trained.scan()})
    for task in trained.vectors.of_split("test"):
        targets = [int(rows[0]) for rows in task.positives]
        assert len(found["systems"]["scan"][task.name]) == len(targets)
        assert found["groups"].get(task.name, targets) == targets
        assert (task.name in found["groups"]) == (len(set(targets)) < len(targets))


def test_a_table_in_both_forms() -> None:
    table = Table("x", "5 % of a_b", ["system", "t→i"], [["**A & B**", "**1.0 ±0.2**"], ["C", "τ"]], ["A note."])
    text = table.markdown()
    assert "| **A & B** | **1.0 ±0.2** |" in text and text.count("\n| ") == 4 and "- A note." in text
    latex = table.latex()
    assert r"\textbf{A \& B} & \textbf{1.0 $\pm$0.2} \\" in latex and r"\caption{5 \% of a\_b}" in latex
    assert latex.count(r"\toprule") == latex.count(r"\bottomrule") == 1 and r"system & t$\to$i \\" in latex
    assert "resizebox" not in latex and "resizebox" in Table("y", "y", list("abcdefg")).latex()
    with pytest.raises(SiglumError, match="2 columns, but a row of 1"):
        Table("x", "x", ["a", "b"], [["c"]])
