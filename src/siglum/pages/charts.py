"""Charts of shares, grouped bars and labelled lines: what they show and on which axis; a template draws them as SVG.

Bars stand on 0 and reach to 100 %. Lines do too, unless most of them lie close together: then the axis shows their part
of it alone, and the chart says so. What lies beyond is cut at the edge of the frame and named with its value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite
from typing import ClassVar

from siglum.types import SiglumError

WIDTH, LEFT, TOP, BOTTOM = 360, 46, 14, 210
"""Units of the pictures; as wide as a phone shows, so that their text can be read there."""
BARS_RIGHT, LINES_RIGHT = 356, 234
"""Right edge of the frame; lines leave room for their labels."""
LABEL_GAP, LETTER, MOST_LETTERS = 15, 6.6, 15
"""Units from label to label and of a letter on a phone, and letters of a label."""
MOST_BAR = 30
CLOSE, FINE, STEPS = 25, 10, 5
"""Per cent within which lines must lie to be drawn larger, in steps of 5; those of 2; and the least of steps."""


@dataclass(frozen=True, slots=True)
class ShareSeries:
    """One row of shares from 0 to 1, under one name and in one colour; None where there is no value."""

    label: str
    values: Sequence[float | None]
    colour: str
    marker: int = 0
    """Number of the shape that marks its points."""
    reference: bool = False
    """Drawn thin and dashed, without markers."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A y axis from one whole number of per cent to another."""

    low: int = 0
    high: int = 100
    step: int = 25

    def y(self, share: float) -> float:
        """Return where a share stands, at the edge of the frame where it is beyond the axis."""
        part = (100 * share - self.low) / (self.high - self.low)
        return round(BOTTOM - min(max(part, 0), 1) * (BOTTOM - TOP), 2)

    def holds(self, share: float) -> bool:
        """Say whether it reaches a share."""
        return self.low - 1e-9 <= 100 * share <= self.high + 1e-9

    @property
    def part(self) -> str:
        """What part of 0 to 100 % it shows, in words; nothing if all of it."""
        if (self.low, self.high) == (0, 100):
            return ""
        return f"axis from {self.low} to {self.high} %" + (", not from 0" if self.low else "")


@dataclass(frozen=True, slots=True)
class Chart:
    """Series over named places, one group of bars or one tick a name."""

    names: Sequence[str]
    series: Sequence[ShareSeries]
    title: str
    """For those who cannot see it."""
    axis: str = ""
    """What the names of a chart of lines are; nothing for bars."""
    WIDTH: ClassVar[int] = WIDTH
    LEFT: ClassVar[int] = LEFT
    BOTTOM: ClassVar[int] = BOTTOM
    LETTERS: ClassVar[int] = MOST_LETTERS

    def __post_init__(self) -> None:
        for row in self.series:
            many = len(row.values)
            if many > len(self.names):
                raise SiglumError(f"series {row.label!r} has {many} values for {len(self.names)} places; give fewer.")
            for value in row.values:
                if value is not None and not (isfinite(value) and 0.0 <= value <= 1.0):
                    raise SiglumError(f"series {row.label!r} holds {value}, but a chart shows shares from 0 to 1.")

    @property
    def right(self) -> int:
        """Right edge of the frame."""
        return LINES_RIGHT if self.axis else BARS_RIGHT

    @property
    def span(self) -> float:
        """Units from place to place."""
        return (self.right - LEFT) / max(1, len(self.names))

    @property
    def xs(self) -> list[float]:
        """The middle of every place."""
        return [round(LEFT + (place + 0.5) * self.span, 2) for place in range(len(self.names))]

    @property
    def bar(self) -> float:
        """Units of a bar."""
        return min(MOST_BAR, 0.84 * self.span / max(1, len(self.series)))

    @property
    def crowd(self) -> int:
        """How many names, side by side, would need the room of one."""
        return max(1, ceil(LETTER * (0.5 + max(map(len, self.names), default=0)) / self.span))

    @property
    def scale(self) -> Axis:
        """The y axis; references have no say in it."""
        rows = [[v for v in row.values if v is not None] for row in self.series if not row.reference]
        return choose_axis([v for row in choose_close(rows) for v in row]) if self.axis else Axis()

    def points(self, row: ShareSeries) -> list[tuple[float, float, str]]:
        """Return place, share and name of the points of a line that the axis reaches."""
        known = zip(self.xs, row.values, self.names, strict=False)
        return [(x, share, name) for x, share, name in known if share is not None and self.scale.holds(share)]

    def pieces(self, row: ShareSeries) -> list[list[tuple[float, float]]]:
        """Return the parts of a line within the frame, each as places and shares; it is cut where it leaves."""
        known = [(x, share) for x, share in zip(self.xs, row.values, strict=False) if share is not None]
        found: list[list[tuple[float, float]]] = [[]]
        for before, after in zip([None, *known], known, strict=False):
            for cut in _cuts(before, after, self.scale) if before else ():
                found[-1].append(cut)
                if len(found[-1]) > 1:  # it leaves; one that comes in begins a part
                    found.append([])
            if self.scale.holds(after[1]):
                found[-1].append(after)
            elif found[-1]:
                found.append([])
        return [part for part in found if part]

    @property
    def ends(self) -> list[tuple[ShareSeries, float, float, float]]:
        """Every line with its last point, x and share, and the height of its label."""
        last = []
        for row in self.series:
            known = [(x, share) for x, share in zip(self.xs, row.values, strict=False) if share is not None]
            last += [(row, *known[-1])] if known else []
        heights = spread_labels([self.scale.y(share) for _, _, share in last], LABEL_GAP, TOP, BOTTOM - 4)
        return [(*one, round(height, 2)) for one, height in zip(last, heights, strict=True)]


def _cuts(start: tuple[float, float], end: tuple[float, float], axis: Axis) -> list[tuple[float, float]]:
    """Return where a line from one place and share to another crosses the ends of an axis, in this order."""
    (x, share), (x_end, share_end) = start, end
    edges = [edge for edge in (axis.low / 100, axis.high / 100) if (share - edge) * (share_end - edge) < 0]
    cuts = [(x + (x_end - x) * (edge - share) / (share_end - share), edge) for edge in edges]
    return sorted((round(place, 2), edge) for place, edge in cuts)


def choose_close(rows: Sequence[Sequence[float]]) -> list[Sequence[float]]:
    """Return the most lines that lie close together, if they are several and more than half; else all.

    >>> choose_close([[1.0, 0.93], [1.0, 0.01], [0.99, 0.95]]), choose_close([[0.9], [0.1]])
    ([[1.0, 0.93], [0.99, 0.95]], [[0.9], [0.1]])
    """
    known = [row for row in rows if row]
    groups = [[row for row in known if low <= min(row) and 100 * (max(row) - low) <= CLOSE] for low in map(min, known)]
    most: list[Sequence[float]] = max(groups, key=len, default=[])
    return most if 2 * len(most) > max(len(known), 2) else known


def choose_axis(shares: Sequence[float]) -> Axis:
    """Return the whole axis, or the part of it that holds all shares where they lie close together but differ.

    >>> choose_axis([0.1, 0.9]), choose_axis([0.93, 0.99])
    (Axis(low=0, high=100, step=25), Axis(low=90, high=100, step=2))
    """
    least, most = round(100 * min(shares, default=0), 6), round(100 * max(shares, default=100), 6)
    if most == least or most - least > CLOSE:
        return Axis()
    step = 2 if most - least <= FINE else 5
    low = step * floor(least / step)
    high = min(100, max(step * ceil(most / step), low + STEPS * step))
    return Axis(min(low, high - STEPS * step), high, step)


def spread_labels(heights: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move labels apart until each is `gap` from the next, within `low` to `high` if they fit, keeping their order.

    >>> spread_labels([50.0, 50.0, 90.0], gap=10, low=0, high=95)
    [50.0, 60.0, 90.0]
    """
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    moved, bound = list(heights), low
    for i in order:
        moved[i] = bound = max(moved[i], bound)
        bound += gap
    bound = high
    for i in reversed(order):
        moved[i] = bound = min(moved[i], bound)
        bound -= gap
    return moved
