"""Figures of experiments: what is drawn is data, and drawing leaves NAME.svg, NAME.png and the numbers in NAME.json.

One style for all: the colours of Okabe and Ito, which colour-blind people can tell apart, a marker or hatch besides
every colour, a light grid, and letters that can be read at the width of a column. The same figure gives the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from siglum.files import atomic, write_json
from siglum.types import SiglumError, one_of

Kind = Literal["lines", "steps", "points", "bars"]
KINDS = ("lines", "steps", "points", "bars")
MOST_COLUMNS = 3


@dataclass(frozen=True, slots=True)
class Series:
    """One row of numbers under one name; None where there is no value."""

    label: str
    y: Sequence[float | None]
    x: Sequence[float] = ()
    """Where the values stand; empty is 0, 1, 2 and so on."""
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    """Ends of an interval around each value; empty is none."""
    style: int | None = None
    """Number of its colour and marker, so that a system looks the same in every figure; None is its place."""
    reference: bool = False
    """Drawn thin, dashed and without markers: chance, a limit, a quoted value."""

    @classmethod
    def of(
        cls, label: str, found: Sequence[Mapping[str, Any] | None], style: int | None = None, key: str = "value"
    ) -> Series:
        """Return values with their intervals, each under `key`, low and high; None where there is no value."""
        y, low, high = ([None if one is None else one[name] for one in found] for name in (key, "low", "high"))
        return cls(label, y, low=low, high=high, style=style)


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes."""

    kind: Kind
    series: Sequence[Series]
    x_label: str
    y_label: str
    title: str = ""
    ticks: Sequence[str] = ()
    """Names of the places 0, 1, 2 and so on; bars need them."""
    log_x: bool = False
    log_y: bool = False
    share: bool = False
    """Whether values are shares from 0 to 1, which are shown in per cent."""
    numbers: bool = False
    """Whether bars carry their values."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One picture: its file name, what it shows in a sentence, and its panels, read line by line."""

    name: str
    title: str
    panels: Sequence[Panel]
    columns: int = MOST_COLUMNS
    """Most panels side by side."""


def short(value: float) -> str:
    """Return a number in few letters.

    >>> short(5_000), short(335_000), short(1e6), short(0.05)
    ('5K', '335K', '1M', '0.05')
    """
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "K")):
        if abs(value) >= unit:
            return f"{value / unit:.3g}{letter}"
    return f"{value:.3g}"


def level_ticks(depth: int) -> list[str]:
    """Return the names of levels below an axis, every third alone where there are many.

    >>> level_ticks(3), level_ticks(9)[:4]
    (['1', '2', '3'], ['1', '', '', '4'])
    """
    return [str(place + 1) if depth <= 8 or place % 3 == 0 else "" for place in range(depth)]


def load_matplotlib() -> Any:
    """Return matplotlib, or say how to get it."""
    try:
        import matplotlib
    except ImportError as error:
        raise SiglumError("drawing figures needs matplotlib; `pip install siglum[plot]` brings it.") from error
    return matplotlib


def draw(figures: Iterable[Figure], folder: Path) -> list[Path]:
    """Draw figures into a folder, three files each, and return the PNG of each."""
    from siglum.lab.experiments.plots_matplotlib import render

    found = []
    for figure in figures:
        _check(figure)
        for ending, content in render(figure).items():
            with atomic(folder / f"{figure.name}.{ending}") as file:
                file.write(content)
        write_json(folder / f"{figure.name}.json", asdict(figure))
        found.append(folder / f"{figure.name}.png")
    return found


def _check(figure: Figure) -> None:
    """Refuse what would be drawn wrongly or not at all."""
    if not figure.panels:
        raise SiglumError(f"figure {figure.name!r} has no panels; give it at least one.")
    for panel in figure.panels:
        one_of(f"the kind of a panel of figure {figure.name!r}", panel.kind, KINDS)
        for row in panel.series:
            name = f"series {row.label!r} of figure {figure.name!r}"
            for part, values in (("x", row.x), ("low", row.low), ("high", row.high)):
                if values and len(values) != len(row.y):
                    raise SiglumError(f"{name} has {len(row.y)} values, but {len(values)} of {part}; give as many.")
            wrong = [v for v in (*row.x, *row.y, *row.low, *row.high) if v is not None and not math.isfinite(v)]
            if wrong:
                raise SiglumError(f"{name} holds {wrong[0]}, which cannot be drawn; put None where there is no value.")
            if panel.kind == "bars" and len(row.y) != len(panel.ticks):
                raise SiglumError(f"{name} has {len(row.y)} bars for {len(panel.ticks)} named places; give as many.")
