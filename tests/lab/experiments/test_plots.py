"""Figures: three files each, the same bytes every time, numbers beside the picture, and refusals in one sentence."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from siglum.lab.experiments.plots import KINDS, Figure, Panel, Series, draw, short
from siglum.types import SiglumError


def a_figure(name: str = "one", kind: str = "lines", **more: object) -> Figure:
    """Return a figure of one panel with two series, an interval, a gap and a reference."""
    series = [
        Series(label="PRO", y=[0.9, 0.5, None], low=[0.8, 0.4, None], high=[1.0, 0.6, None]),
        Series(label="chance", y=[0.2, 0.1, 0.1], reference=True),
        Series(label="GENIUS", y=[0.7, 0.4, 0.2]),
    ]
    settings = {"x_label": "level", "y_label": "targets kept", "ticks": ["1", "2", "3"], "share": True, **more}
    return Figure(name=name, title="Targets kept", panels=[Panel(kind=kind, series=series, **settings)])


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_drawn_with_its_numbers(kind: str, tmp_path: Path) -> None:
    figure = a_figure(kind, kind, numbers=True)
    assert draw([figure], tmp_path) == [tmp_path / f"{kind}.png"]
    assert {path.name for path in tmp_path.iterdir()} == {f"{kind}.{ending}" for ending in ("svg", "png", "json")}
    found = json.loads((tmp_path / f"{kind}.json").read_text())
    assert found["title"] == "Targets kept" and found["panels"][0]["series"][0]["y"] == [0.9, 0.5, None]
    assert (tmp_path / f"{kind}.svg").read_text().startswith("<?xml")
    assert (tmp_path / f"{kind}.png").read_bytes().startswith(b"\x89PNG")


def test_drawing_again_gives_the_same_bytes(tmp_path: Path) -> None:
    figures = [a_figure("lines"), a_figure("bars", "bars")]
    draw(figures, tmp_path / "a")
    draw(reversed(figures), tmp_path / "b")
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name
    assert b"<dc:date>" not in (tmp_path / "a" / "lines.svg").read_bytes()


def test_other_numbers_give_another_picture(tmp_path: Path) -> None:
    draw([a_figure()], tmp_path / "a")
    draw([a_figure(share=False)], tmp_path / "b")
    for ending in ("svg", "png", "json"):
        assert (tmp_path / "a" / f"one.{ending}").read_bytes() != (tmp_path / "b" / f"one.{ending}").read_bytes()


def test_a_users_own_style_changes_nothing(tmp_path: Path) -> None:
    import matplotlib

    draw([a_figure()], tmp_path / "a")
    with matplotlib.rc_context({"lines.linewidth": 9, "axes.facecolor": "red", "font.size": 30}):
        draw([a_figure()], tmp_path / "b")
        assert matplotlib.rcParams["lines.linewidth"] == 9
    assert (tmp_path / "a" / "one.png").read_bytes() == (tmp_path / "b" / "one.png").read_bytes()


def test_panels_stand_side_by_side_up_to_the_columns(tmp_path: Path) -> None:
    panel = a_figure().panels[0]
    wide = Figure(name="wide", title="t", panels=[panel] * 3)
    tall = replace(wide, name="tall", columns=1)
    draw([wide, tall], tmp_path)
    sizes = {name: struct.unpack(">II", (tmp_path / f"{name}.png").read_bytes()[16:24]) for name in ("wide", "tall")}
    assert sizes["wide"][0] > sizes["wide"][1] and sizes["tall"][0] < sizes["tall"][1]


def test_the_svg_is_text_without_fonts_of_the_reader(tmp_path: Path) -> None:
    draw([a_figure()], tmp_path)
    svg = (tmp_path / "one.svg").read_text()
    assert "<text" not in svg and "font-family" not in svg


@pytest.mark.parametrize(
    ("figure", "message"),
    [
        (Figure(name="f", title="", panels=[]), "figure 'f' has no panels; give it at least one."),
        (a_figure(kind="pie"), "must be one of: lines, steps, points, bars."),
        (a_figure(kind="bars", ticks=["1", "2"]), "series 'PRO' of figure 'one' has 3 bars for 2 named places"),
        (
            Figure(
                name="f",
                title="",
                panels=[Panel(kind="lines", series=[Series(label="a", y=[float("nan")])], x_label="", y_label="")],
            ),
            "series 'a' of figure 'f' holds nan, which cannot be drawn; put None where there is no value.",
        ),
        (
            Figure(
                name="f",
                title="",
                panels=[Panel(kind="lines", series=[Series(label="a", y=[1.0], x=[1.0, 2.0])], x_label="", y_label="")],
            ),
            "has 1 values, but 2 of x; give as many.",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(figure: Figure, message: str, tmp_path: Path) -> None:
    with pytest.raises(SiglumError) as caught:
        draw([figure], tmp_path)
    assert message in str(caught.value) and not list(tmp_path.iterdir())


def test_without_matplotlib_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        SiglumError, match=r"^drawing figures needs matplotlib; `pip install siglum\[plot\]` brings it\.$"
    ):
        draw([a_figure()], tmp_path)


def test_short_numbers() -> None:
    assert [short(value) for value in (12, 1_500, 2e6, 1e9, 0.025)] == ["12", "1.5K", "2M", "1G", "0.025"]


def test_measuring_imports_nothing_that_only_drawing_needs() -> None:
    """Units run on machines without matplotlib, faiss, pyarrow, scipy and what reads or scores with them."""
    blocked = ("matplotlib", "faiss", "pyarrow", "scipy", "ir_measures", "PIL", "transformers")
    names = ("survival", "bound", "efficiency", "overhead")
    lines = [
        "import sys",
        *(f"sys.modules[{name!r}] = None" for name in blocked),
        "from siglum.lab.experiments.base import open_experiment",
        *(f"assert open_experiment({name!r}).name == {name!r}" for name in names),
    ]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)
