"""Charts of shares as inline SVG, drawn by hand: grouped bars, and lines labelled at their ends.

Every chart has the same size and a y axis from 0 to 100 %, so that charts side by side can be compared by eye. Colours
are CSS paints of the caller; text and grid take the page's `--ink`, `--muted` and `--line`, with fallbacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import isfinite

from siglum.types import SiglumError

WIDTH, BARS_HEIGHT, LINES_HEIGHT = 440, 262, 276
"""Units of the pictures; small enough that their text can still be read on a phone."""
LEFT, TOP, BOTTOM = 44.0, 18.0, 236.0
BARS_RIGHT, LINES_RIGHT = 434.0, 322.0
"""Right edge of the frame; lines leave room for their labels."""
TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)
LABEL_GAP = 15.0
NAME_LENGTH = 17
MOST_BAR, NUMBERED_BAR = 30.0, 13.0
"""Widest bar, and the least width of one that carries its number."""
INK, MUTED, LINE, PAPER = "var(--ink,#1b1f24)", "var(--muted,#5b6470)", "var(--line,#d9dde3)", "var(--card,#fff)"
MARKERS = (
    "M-3.6 0a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0 -7.2 0z",
    "M-3.3 -3.3h6.6v6.6h-6.6z",
    "M0 -4.4L4.2 3.2H-4.2z",
    "M0 -4.6L4.6 0L0 4.6L-4.6 0z",
)


@dataclass(frozen=True, slots=True)
class Series:
    """One row of shares from 0 to 1, under one name and in one colour; None where there is no value."""

    label: str
    values: Sequence[float | None]
    colour: str
    marker: int = 0
    """Number of the shape that marks its points."""
    reference: bool = False
    """Drawn thin and dashed, without markers."""


def draw_bars(groups: Sequence[str], series: Sequence[Series], title: str) -> str:
    """Draw one group of bars a name, one bar a series, each with its number in per cent where there is room.

    >>> draw_bars(["t→i"], [Series("PRO", [0.5], "blue")], "Success").count("<rect")
    1
    """
    _check(groups, series)
    span = (BARS_RIGHT - LEFT) / max(1, len(groups))
    width = min(MOST_BAR, 0.84 * span / max(1, len(series)))
    parts = list(_draw_frame(BARS_RIGHT))
    for place, group in enumerate(groups):
        middle = LEFT + (place + 0.5) * span
        parts.append(_text(middle, BOTTOM + 18, group, "middle", INK))
        start = middle - width * len(series) / 2
        for i, row in enumerate(series):
            parts += _draw_bar(start + i * width, width, group, row, row.values[place])
    return _wrap(parts, title, BARS_HEIGHT)


def draw_lines(ticks: Sequence[str], series: Sequence[Series], title: str, axis: str) -> str:
    """Draw one line a series over the named ticks, labelled at its end; a series may stop early.

    >>> svg = draw_lines(["1", "2"], [Series("PRO", [1.0, 0.5], "blue")], "Survival", "level")
    >>> "PRO" in svg and "level" in svg
    True
    """
    _check(ticks, series)
    step = (LINES_RIGHT - LEFT) / max(1, len(ticks))
    xs = [LEFT + (i + 0.5) * step for i in range(len(ticks))]
    parts = list(_draw_frame(LINES_RIGHT))
    parts += [_text(x, BOTTOM + 16, tick, "middle", MUTED, 11) for x, tick in zip(xs, ticks, strict=True)]
    parts.append(_text((LEFT + LINES_RIGHT) / 2, BOTTOM + 35, axis, "middle", MUTED, 11))
    # References go below, so that no curve is hidden by one.
    for row in sorted(series, key=lambda row: not row.reference):
        parts += _draw_line(xs, ticks, row)
    parts += _draw_labels(xs, series)
    return _wrap(parts, title, LINES_HEIGHT)


def spread_labels(heights: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move labels apart until each is `gap` from the next, within `low` to `high` if they fit, keeping their order.

    >>> spread_labels([50.0, 50.0, 90.0], gap=10, low=0, high=95)
    [50.0, 60.0, 90.0]
    """
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    moved, floor = list(heights), low
    for i in order:
        moved[i] = floor = max(moved[i], floor)
        floor += gap
    ceiling = high
    for i in reversed(order):
        moved[i] = ceiling = min(moved[i], ceiling)
        ceiling -= gap
    return moved


def _check(names: Sequence[str], series: Sequence[Series]) -> None:
    for row in series:
        if len(row.values) > len(names):
            raise SiglumError(f"series {row.label!r} has {len(row.values)} values for {len(names)} places; give fewer.")
        for value in row.values:
            if value is not None and not (isfinite(value) and 0.0 <= value <= 1.0):
                raise SiglumError(f"series {row.label!r} holds {value}, but a chart shows shares from 0 to 1.")


def _height(share: float) -> float:
    return BOTTOM - share * (BOTTOM - TOP)


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _shape(row: Series) -> str:
    return MARKERS[row.marker % len(MARKERS)]


def _text(x: float, y: float, words: str, anchor: str, colour: str, size: int = 12) -> str:
    at = f'x="{_number(x)}" y="{_number(y)}" text-anchor="{anchor}" font-size="{size}"'
    return f'<text {at} fill="{colour}">{escape(words)}</text>'


def _wrap(parts: list[str], title: str, height: int) -> str:
    head = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}" font-family="inherit">'
    return head + "".join(parts) + "</svg>"


def _draw_frame(right: float) -> Iterator[str]:
    for share in TICKS:
        y, colour = _number(_height(share)), MUTED if share == 0 else LINE
        yield f'<path d="M{_number(LEFT)} {y}H{_number(right)}" stroke="{colour}" fill="none"/>'
        yield _text(LEFT - 6, _height(share) + 4, f"{100 * share:.0f}" + (" %" if share == 1 else ""), "end", MUTED, 11)


def _draw_bar(x: float, width: float, group: str, row: Series, share: float | None) -> Iterator[str]:
    if share is None:
        return
    y = _height(share)
    box = f'x="{_number(x + 0.75)}" y="{_number(y)}" width="{_number(width - 1.5)}" height="{_number(BOTTOM - y)}"'
    hint = escape(f"{group}, {row.label}: {100 * share:.1f} %")
    yield f'<rect {box} rx="1.5" fill="{row.colour}"><title>{hint}</title></rect>'
    if width >= NUMBERED_BAR:
        yield _text(x + width / 2, y - 4, f"{100 * share:.0f}", "middle", MUTED, 9)


def _draw_line(xs: list[float], ticks: Sequence[str], row: Series) -> Iterator[str]:
    points = [(x, _height(v), v, tick) for x, v, tick in zip(xs, row.values, ticks, strict=False) if v is not None]
    if not points:
        return
    path = "L".join(f"{_number(x)} {_number(y)}" for x, y, _, _ in points)
    pen = 'stroke-width="1.2" stroke-dasharray="4 3"' if row.reference else 'stroke-width="2.4" stroke-linejoin="round"'
    yield f'<path class="curve" d="M{path}" fill="none" stroke="{row.colour}" {pen}/>'
    for x, y, share, tick in points if not row.reference else []:
        at = f'class="mark" transform="translate({_number(x)} {_number(y)})" fill="{row.colour}" stroke="{PAPER}"'
        hint = escape(f"{row.label}, {tick}: {100 * share:.1f} %")
        yield f'<path d="{_shape(row)}" {at}><title>{hint}</title></path>'


def _draw_labels(xs: list[float], series: Sequence[Series]) -> Iterator[str]:
    known = [(row, [(x, v) for x, v in zip(xs, row.values, strict=False) if v is not None]) for row in series]
    ends = [(row, *points[-1]) for row, points in known if points]
    moved = spread_labels([_height(share) for _, _, share in ends], LABEL_GAP, TOP, BOTTOM - 4)
    for (row, x, share), to in zip(ends, moved, strict=True):
        y, start, end = _height(share), x + 5, LINES_RIGHT + 4
        route = f"M{_number(start)} {_number(y)}L{_number(end)} {_number(to)}"
        yield f'<path d="{route}" fill="none" stroke="{row.colour}" stroke-width="0.7" opacity="0.6"/>'
        if row.reference:
            yield f'<path d="M{_number(end)} {_number(to)}h11" stroke="{row.colour}" stroke-dasharray="4 3"/>'
        else:
            spot = f'transform="translate({_number(end + 5)} {_number(to)})"'
            yield f'<path d="{_shape(row)}" {spot} fill="{row.colour}"/>'
        name = row.label if len(row.label) <= NAME_LENGTH else row.label[: NAME_LENGTH - 1] + "…"
        yield _text(end + 14, to + 4, name, "start", MUTED if row.reference else INK, 11)
