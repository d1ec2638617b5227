"""The brush: figures as SVG and PNG by matplotlib, in one style and always in the same bytes."""

from __future__ import annotations

import math
import textwrap
from io import BytesIO
from typing import TYPE_CHECKING, Any

from siglum.lab.experiments.plots import Figure, Panel, load_matplotlib, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#8b5a2b")
"""The palette of Okabe and Ito, with brown for its yellow, which is lost on white."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
HATCHES = ("", "////", "....", r"\\\\", "xxxx", "++++", "oo", "--")
GREY = "#6b7280"
WIDTH, PANEL_WIDTH, PANEL_HEIGHT = 3.6, 2.45, 1.95
"""Inches: a figure of one panel, and a panel of several."""
MOST_TICKS, TICK_WIDTH = 9, 0.058
"""Values of x that are all named, and the inches of a letter of a tick."""
DPI = 220
STYLE: dict[str, Any] = {
    "svg.hashsalt": "siglum",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 7.5,
    "axes.titlesize": 7.5,
    "axes.labelsize": 7.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "figure.titlesize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#e3e6ea",
    "grid.linewidth": 0.6,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "xtick.labelcolor": "black",
    "ytick.labelcolor": "black",
    "lines.linewidth": 1.3,
    "lines.markersize": 3.6,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "legend.handlelength": 2.4,
}


def render(figure: Figure) -> dict[str, bytes]:
    """Return the figure as SVG and PNG."""
    matplotlib = load_matplotlib()
    from matplotlib.figure import Figure as Canvas

    columns = min(figure.columns, len(figure.panels))
    rows = -(-len(figure.panels) // columns)
    width = WIDTH if columns == 1 else PANEL_WIDTH * columns
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # whatever a user's own settings are
        matplotlib.rcParams.update(STYLE)
        entries = _entries(figure)
        per_line = _per_line(list(entries), width)
        lines = textwrap.wrap(figure.title.replace(" = ", "\u00a0=\u00a0"), int(13.6 * width))
        legend = -(-len(entries) // per_line) if len(entries) > 1 else 0
        height = (2.1 if columns == 1 else PANEL_HEIGHT) * rows + 0.16 * (len(lines) + legend)
        canvas = Canvas(figsize=(width, height), dpi=DPI, layout="constrained")
        grid = canvas.subplots(rows, columns, squeeze=False).flatten()
        for place, (axes, panel) in enumerate(zip(grid, figure.panels, strict=False)):
            _fill(axes, panel, width / columns)
            axes.set_ylim(*_limits(figure, panel))
            if place % columns and len({other.y_label for other in figure.panels}) == 1:
                axes.set_ylabel("")  # said once, at the left
        for axes in grid[len(figure.panels) :]:
            axes.set_axis_off()
        canvas.suptitle("\n".join(lines), x=0.01, ha="left", fontweight="bold")
        if legend:
            _add_legend(canvas, entries, per_line)
        found = {}
        for ending, metadata in (("svg", {"Date": None, "Creator": "siglum"}), ("png", {"Software": None})):
            buffer = BytesIO()
            canvas.savefig(buffer, format=ending, metadata=metadata)
            found[ending] = buffer.getvalue()
    found["png"] = _fewer_colours(found["png"])
    return found


def _fewer_colours(png: bytes) -> bytes:
    """Return the picture with a palette of its own, a third of the bytes and to the eye the same."""
    from PIL import Image

    buffer = BytesIO()
    Image.open(BytesIO(png)).convert("RGB").quantize(128).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _look(panel: Panel, place: int) -> dict[str, Any]:
    """Return the colour and shape of a series, by its number."""
    row = panel.series[place]
    number = place if row.style is None else row.style
    colour = GREY if row.reference and row.style is None else COLOURS[number % len(COLOURS)]
    if panel.kind == "bars" and not row.reference:
        return {"facecolor": colour, "hatch": HATCHES[number % len(HATCHES)], "edgecolor": "white"}
    if row.reference:
        return {"color": colour, "linestyle": (0, (4, 2)), "linewidth": 0.9}
    marker = MARKERS[number % len(MARKERS)]
    if panel.kind == "steps":  # too many points for markers: the curves also differ in their strokes
        return {"color": colour, "linestyle": ("-", (0, (5, 1.5)), (0, (1.5, 1)))[number % 3]}
    if panel.kind == "points":
        return {"color": colour, "marker": marker, "linestyle": "none", "alpha": 0.7, "markeredgewidth": 0}
    return {"color": colour, "marker": marker}


def _entries(figure: Figure) -> dict[str, tuple[Panel, int]]:
    """Return what the legend names: every label once, references last."""
    found = {row.label: (panel, place) for panel in reversed(figure.panels) for place, row in enumerate(panel.series)}
    first = [row.label for panel in figure.panels for row in panel.series if not row.reference]
    return {label: found[label] for label in [*dict.fromkeys(first), *found] if label in found}


def _per_line(labels: list[str], width: float) -> int:
    """Return how many labels of a legend fit side by side."""
    longest = max((len(label) for label in labels), default=1)
    fit = max(1, min(len(labels), int(width / (0.42 + 0.062 * longest))))
    lines = -(-len(labels) // fit)
    return -(-len(labels) // lines) if labels else 1  # lines of equal length


def _add_legend(canvas: Canvas, entries: dict[str, tuple[Panel, int]], per_line: int) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = []
    for label, (panel, place) in entries.items():
        look, bars = _look(panel, place), panel.kind == "bars" and not panel.series[place].reference
        handles.append(Patch(label=label, **look) if bars else Line2D([], [], label=label, **look))
    canvas.legend(handles=handles, loc="outside lower center", ncols=per_line, columnspacing=1.2)


def _fill(axes: Axes, panel: Panel, width: float) -> None:
    """Draw one panel of so many inches; names too long for their places are set askew."""
    (_draw_bars if panel.kind == "bars" else _draw_curves)(axes, panel)
    if panel.log_x:
        _scale_x(axes, panel)
    if panel.log_y:
        axes.set_yscale("log")
    elif panel.share:
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}")
    if panel.ticks:
        axes.set_xticks(range(len(panel.ticks)), panel.ticks)
        axes.tick_params(axis="x", length=0)
        if TICK_WIDTH * sum(len(tick) + 2 for tick in panel.ticks if tick) > 0.8 * width:
            for label in axes.get_xticklabels():
                label.set(rotation=35, ha="right", rotation_mode="anchor")
    if panel.kind == "bars":
        axes.grid(visible=False, axis="x")
        axes.axhline(0, color=GREY, linewidth=0.6)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label + (" (%)" if panel.share else ""))
    if panel.title:
        axes.set_title(panel.title, loc="left")


def _scale_x(axes: Axes, panel: Panel) -> None:
    """Make x logarithmic; where there are few values, they are its ticks."""
    axes.set_xscale("log")
    values = sorted({x for row in panel.series for x in row.x})
    if len(values) <= MOST_TICKS:
        axes.set_xticks(values, [short(value) for value in values])
        axes.set_xticks([], minor=True)


def _limits(figure: Figure, own: Panel) -> tuple[float, float]:
    """Return the ends of y, the same for all panels that show the same; shares and bars start at zero."""
    panels = [panel for panel in figure.panels if (panel.y_label, panel.log_y) == (own.y_label, own.log_y)]
    values = [v for panel in panels for row in panel.series for v in (*row.y, *row.low, *row.high) if v is not None]
    if own.log_y:
        return min(values, default=1.0) / 1.5, max(values, default=1.0) * 1.5
    if own.share or own.kind == "bars":
        values.append(0.0)
    low, top = min(values, default=0.0), max(values, default=1.0)
    room = (0.12 if any(panel.numbers for panel in panels) else 0.05) * ((top - low) or 1.0)
    return low - (0.0 if low == 0 else room), top + room


def _draw_curves(axes: Axes, panel: Panel) -> None:
    for place, row in enumerate(panel.series):
        look = _look(panel, place)
        x = list(row.x) or [float(i) for i in range(len(row.y))]
        y = [math.nan if v is None else v for v in row.y]
        axes.plot(x, y, drawstyle="steps-post" if panel.kind == "steps" else "default", **look)
        if row.low and row.high:
            low, high = ([math.nan if v is None else v for v in ends] for ends in (row.low, row.high))
            axes.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)


def _draw_bars(axes: Axes, panel: Panel) -> None:
    bars = [place for place, row in enumerate(panel.series) if not row.reference]
    width = 0.8 / max(1, len(bars))
    for place, row in enumerate(panel.series):
        look = _look(panel, place)
        if row.reference:
            axes.plot(range(len(row.y)), [math.nan if v is None else v for v in row.y], **look)
            continue
        shift = (bars.index(place) - (len(bars) - 1) / 2) * width
        for i, value in enumerate(row.y):
            if value is None:
                continue
            axes.bar(i + shift, value, 0.94 * width, linewidth=0.3, **look)
            ends = (row.low[i], row.high[i]) if row.low and row.high else (None, None)
            if ends[0] is not None and ends[1] is not None:
                axes.vlines(i + shift, ends[0], ends[1], color="black", linewidth=0.8)
            if panel.numbers:
                words = f"{100 * value:.0f}" if panel.share else f"{value:.3g}"
                axes.annotate(
                    words,
                    (i + shift, ends[1] or value),
                    (0, 1.5),
                    textcoords="offset points",
                    ha="center",
                    va="bottom",
                    fontsize=6,
                )
