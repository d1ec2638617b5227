"""Charts are well-formed SVG whose shapes stand where their numbers say, inside the frame."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siglum.measure.charts import (
    BARS_RIGHT,
    BOTTOM,
    LEFT,
    LINES_RIGHT,
    TOP,
    WIDTH,
    Series,
    draw_bars,
    draw_lines,
    spread_labels,
)
from siglum.types import SiglumError

SHARE = st.floats(0, 1)


def boxes(svg: str) -> list[tuple[float, float, float, float]]:
    found = ElementTree.fromstring(svg).iter("rect")
    return [tuple(float(box.attrib[key]) for key in ("x", "y", "width", "height")) for box in found]  # type: ignore[misc]


def curve(svg: str, number: int = 0) -> list[tuple[float, float]]:
    paths = [path for path in ElementTree.fromstring(svg).iter("path") if path.get("class") == "curve"]
    pairs = [point.split() for point in paths[number].attrib["d"].removeprefix("M").split("L")]
    return [(float(x), float(y)) for x, y in pairs]


def words(svg: str) -> dict[str, float]:
    return {str(text.text): float(text.attrib["y"]) for text in ElementTree.fromstring(svg).iter("text")}


@given(st.integers(1, 8).flatmap(lambda n: st.lists(st.lists(SHARE, min_size=n, max_size=n), min_size=1, max_size=7)))
def test_no_bar_leaves_the_frame_or_meets_another(rows: list[list[float]]) -> None:
    groups = [f"g{i}" for i in range(len(rows[0]))]
    found = boxes(draw_bars(groups, [Series(f"s{i}", row, "red") for i, row in enumerate(rows)], "title"))
    assert len(found) == len(rows) * len(groups)
    right = LEFT
    for x, y, width, height in found:
        assert right <= x + 0.01
        assert width > 0
        assert y >= TOP - 0.01
        assert y + height == pytest.approx(BOTTOM, abs=0.02)
        right = x + width
    assert right <= BARS_RIGHT + 0.01


def test_heights_follow_shares_from_0_to_100_per_cent() -> None:
    svg = draw_bars(["a", "b", "c"], [Series("s", [0.0, 0.25, 1.0], "red")], "title")
    assert [height for *_, height in boxes(svg)] == pytest.approx([0, 0.25 * (BOTTOM - TOP), BOTTOM - TOP])
    ends = (text for text in ElementTree.fromstring(svg).iter("text") if text.get("text-anchor") == "end")
    axis = {text.text: float(text.attrib["y"]) for text in ends}
    assert (axis["0"], axis["100 %"]) == pytest.approx((BOTTOM + 4, TOP + 4))
    assert axis["50"] == pytest.approx((BOTTOM + TOP) / 2 + 4)


def test_a_missing_value_leaves_a_hole_not_a_zero() -> None:
    assert len(boxes(draw_bars(["a", "b"], [Series("s", [None, 0.4], "red")], "title"))) == 1
    assert len(curve(draw_lines(["1", "2", "3"], [Series("s", [0.1, None, 0.4], "red")], "title", "x"))) == 2
    assert "nothing" not in words(draw_lines(["1"], [Series("nothing", [None], "red")], "title", "x"))


@given(st.lists(SHARE, min_size=1, max_size=16))
def test_lines_pass_through_their_values_inside_the_frame(values: list[float]) -> None:
    ticks = [str(i) for i in range(len(values))]
    points = curve(draw_lines(ticks, [Series("s", values, "red")], "title", "level"))
    assert [y for _, y in points] == pytest.approx([BOTTOM - v * (BOTTOM - TOP) for v in values], abs=0.01)
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert LEFT < points[0][0] <= points[-1][0] < LINES_RIGHT


def test_references_are_dashed_without_markers_and_drawn_first() -> None:
    svg = draw_lines(
        ["1", "2"], [Series("s", [1, 0.5], "red"), Series("c", [0.1, 0.1], "blue", reference=True)], "t", "x"
    )
    curves = re.findall(r'<path class="curve"[^>]*>', svg)
    assert ["stroke-dasharray" in path for path in curves] == [True, False]
    assert svg.count('class="mark"') == 2
    assert {"s", "c"} <= words(svg).keys()


def test_labels_of_lines_that_end_together_do_not_overlap() -> None:
    series = [Series(f"line {i}", [0.02, 0.02], "red") for i in range(5)]
    heights = sorted(
        y for name, y in words(draw_lines(["1", "2"], series, "t", "x")).items() if name.startswith("line")
    )
    assert all(after - before >= 12 for before, after in pairwise(heights))
    assert heights[-1] <= BOTTOM + 4


@given(st.lists(st.floats(0, 100), max_size=6))
def test_spread_labels_keep_order_gap_and_bounds(heights: list[float]) -> None:
    moved = spread_labels(heights, gap=15, low=0, high=100)
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    lined = [moved[i] for i in order]
    assert all(after - before >= 15 - 1e-9 for before, after in pairwise(lined))
    assert all(-1e-9 <= y <= 100 for y in moved)


def test_spread_labels_leave_those_with_room_where_they_are() -> None:
    assert spread_labels([80.0, 10.0, 40.0], gap=15, low=0, high=100) == [80.0, 10.0, 40.0]


@pytest.mark.parametrize("value", [-0.01, 1.01, float("nan"), 79.0])
def test_what_is_no_share_is_refused(value: float) -> None:
    with pytest.raises(SiglumError, match="shares from 0 to 1"):
        draw_bars(["a"], [Series("s", [value], "red")], "t")
    with pytest.raises(SiglumError, match="shares from 0 to 1"):
        draw_lines(["a"], [Series("s", [value], "red")], "t", "x")


def test_more_values_than_places_are_refused() -> None:
    with pytest.raises(SiglumError, match="2 values for 1 places"):
        draw_lines(["1"], [Series("s", [0.1, 0.2], "red")], "t", "x")


def test_text_is_escaped_and_the_picture_is_named() -> None:
    bars = draw_bars(["<a>"], [Series('"&', [0.5], "red")], 'Success "now" & <then>')
    root = ElementTree.fromstring(bars)
    assert root.attrib["aria-label"] == 'Success "now" & <then>'
    assert root.attrib["viewBox"].startswith(f"0 0 {WIDTH} ")
    assert "<a>" in words(bars)
    assert root.findtext("rect/title") == '<a>, "&: 50.0 %'


def test_long_names_are_cut_to_their_room() -> None:
    svg = draw_lines(["1"], [Series("a name that is far too long", [0.5], "red")], "t", "x")
    assert "a name that is f…" in words(svg)


def test_equal_input_gives_equal_bytes() -> None:
    assert draw_bars(["a"], [Series("s", [1 / 3], "red")], "t") == draw_bars(["a"], [Series("s", [1 / 3], "red")], "t")
