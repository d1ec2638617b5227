"""Charts are well-formed SVG whose shapes stand where their numbers say, inside the frame, on an axis that says so."""

from __future__ import annotations

from itertools import pairwise
from xml.etree.ElementTree import Element

import pytest
from hypothesis import given
from hypothesis import strategies as st

from markup import all_said, parse, said
from siglum.pages.charts import (
    BARS_RIGHT,
    BOTTOM,
    LEFT,
    LINES_RIGHT,
    TOP,
    WIDTH,
    Chart,
    ShareSeries,
    choose_axis,
    spread_labels,
)
from siglum.pages.render import environment
from siglum.types import SiglumError

SHARE = st.floats(0, 1)


def drawn(kind: str, chart: Chart) -> Element:
    svg = parse(getattr(environment().get_template("charts.html.j2").module, kind)(chart)).find("svg")
    assert svg is not None
    return svg


def bars(groups: list[str], rows: list[ShareSeries], title: str = "title") -> Element:
    return drawn("bars", Chart(groups, rows, title))


def lines(ticks: list[str], *rows: ShareSeries, axis: str = "level") -> Element:
    return drawn("lines", Chart(ticks, rows, "title", axis))


def boxes(svg: Element) -> list[tuple[float, ...]]:
    return [tuple(float(box.attrib[key]) for key in ("x", "y", "width", "height")) for box in svg.iter("rect")]


def curves(svg: Element) -> list[list[tuple[float, ...]]]:
    paths = [path for path in svg.iter("path") if "curve" in path.get("class", "").split()]
    points = [path.attrib["d"].removeprefix("M").split("L") for path in paths]
    return [[tuple(map(float, point.split())) for point in path] for path in points]


def words(svg: Element) -> dict[str, float]:
    return {said(text): float(text.attrib["y"]) for text in svg.iter("text")}


@given(st.integers(1, 8).flatmap(lambda n: st.lists(st.lists(SHARE, min_size=n, max_size=n), min_size=1, max_size=7)))
def test_no_bar_leaves_the_frame_or_meets_another(rows: list[list[float]]) -> None:
    groups = [f"g{i}" for i in range(len(rows[0]))]
    found = boxes(bars(groups, [ShareSeries(f"s{i}", row, "red") for i, row in enumerate(rows)]))
    assert len(found) == len(rows) * len(groups)
    right = float(LEFT)
    for x, y, width, height in found:
        assert right <= x + 0.02
        assert width > 0
        assert y >= TOP - 0.01
        assert y + height == pytest.approx(BOTTOM, abs=0.02)
        right = x + width
    assert right <= BARS_RIGHT + 0.02


def test_heights_follow_shares_from_0_to_100_per_cent() -> None:
    svg = bars(["a", "b", "c"], [ShareSeries("s", [0.0, 0.25, 1.0], "red")])
    assert [height for *_, height in boxes(svg)] == pytest.approx([0, 0.25 * (BOTTOM - TOP), BOTTOM - TOP])
    axis = {said(text): float(text.attrib["y"]) for text in svg.iter("text") if "tick" in text.attrib["class"]}
    assert (axis["0"], axis["100 %"]) == pytest.approx((BOTTOM + 4, TOP + 4))
    assert axis["50"] == pytest.approx((BOTTOM + TOP) / 2 + 4)
    close = bars(["a", "b"], [ShareSeries("s", [0.95, 0.96], "red")])  # bars always stand on 0
    assert min(height for *_, height in boxes(close)) > 0.9 * (BOTTOM - TOP) and "100 %" in words(close)


def test_a_missing_value_leaves_a_hole_not_a_zero() -> None:
    assert len(boxes(bars(["a", "b"], [ShareSeries("s", [None, 0.4], "red")]))) == 1
    assert len(curves(lines(["1", "2", "3"], ShareSeries("s", [0.1, None, 0.4], "red")))[0]) == 2
    assert "nothing" not in words(lines(["1"], ShareSeries("nothing", [None], "red")))


@given(st.lists(SHARE, min_size=1, max_size=16))
def test_lines_pass_through_their_values_inside_the_frame(values: list[float]) -> None:
    (points,) = curves(lines([str(i) for i in range(len(values))], ShareSeries("s", values, "red")))
    axis = choose_axis(values)
    part = [(100 * v - axis.low) / (axis.high - axis.low) for v in values]
    assert [y for _, y in points] == pytest.approx([BOTTOM - p * (BOTTOM - TOP) for p in part], abs=0.01)
    assert [x for x, _ in points] == sorted(x for x, _ in points)
    assert LEFT < points[0][0] <= points[-1][0] < LINES_RIGHT


@given(st.lists(SHARE, min_size=1, max_size=9))
def test_an_axis_holds_all_values_and_is_never_narrow(values: list[float]) -> None:
    axis = choose_axis(values)
    assert all(map(axis.holds, values))
    assert 0 <= axis.low < axis.high <= 100 and (axis.high - axis.low) % axis.step == 0
    assert axis.high - axis.low >= 10
    assert (max(values) - min(values) > 0.25) <= ((axis.low, axis.high) == (0, 100)) == (axis.part == "")


def test_lines_that_lie_together_are_drawn_larger_and_the_chart_says_so() -> None:
    chance = ShareSeries("chance", [0.5, 0.13], "grey", reference=True)
    near = lines(["1", "2"], ShareSeries("a", [1.0, 0.93], "red"), ShareSeries("b", [1.0, 0.91], "blue"), chance)
    assert all_said(near, "text", "tick") == ["90", "92", "94", "96", "98", "100 %"]
    assert all_said(near, "text", "part") == ["axis from 90 to 100 %, not from 0"]
    assert near.attrib["aria-label"].endswith("axis from 90 to 100 %, not from 0")
    assert len(all_said(near, "path", "broken")) == 1
    assert "chance 13 % ↓" in words(near)  # it is below the frame, and is named with its value
    (_, red), (_, blue) = (points for points in curves(near))
    assert blue[1] - red[1] == pytest.approx(0.2 * (BOTTOM - TOP), abs=0.02)
    low = lines(["1", "2"], ShareSeries("a", [0.01, 0.04], "red"))
    assert all_said(low, "text", "part") == ["axis from 0 to 10 %"] and all_said(low, "path", "broken") == []
    for values in ([1.0, 0.5], [1.0, 1.0]):
        whole = lines(["1", "2"], ShareSeries("a", values, "red"), chance)
        assert all_said(whole, "text", "part") == [] and "100 %" in words(whole) and len(curves(whole)) == 2


def test_a_line_far_off_leaves_the_others_large_and_is_cut_and_named() -> None:
    near = [ShareSeries("a", [1.0, 0.93], "red"), ShareSeries("b", [1.0, 0.91], "blue")]
    far = lines(["1", "2"], *near, ShareSeries("far", [1.0, 0.0], "green"))
    assert all_said(far, "text", "part") == ["axis from 90 to 100 %, not from 0"]
    assert {"a", "b", "far 0 % ↓"} <= words(far).keys()
    xs = [x for x, _ in curves(far)[0]]
    assert curves(far)[2] == [(xs[0], TOP), (pytest.approx(xs[0] + 0.1 * (xs[1] - xs[0]), abs=0.02), BOTTOM)]
    assert all_said(far, "path", "mark").count("far, 1: 100.0 %") == 1 and "far, 2: 0.0 %" not in said(far)
    even = lines(["1", "2"], *near, *(ShareSeries(name, [1.0, 0.0], "green") for name in ("c", "d")))
    assert all_said(even, "text", "part") == [], "no line is far off where as many are elsewhere"


@given(st.lists(SHARE, min_size=1, max_size=9))
def test_what_is_seen_of_a_line_is_what_the_frame_holds(values: list[float]) -> None:
    near = [ShareSeries(name, [0.5, 0.55], "red") for name in "ab" * len(values)]
    chart = Chart([str(place) for place in range(9)], [*near, ShareSeries("far", values, "blue")], "title", "level")
    pieces, axis = chart.pieces(chart.series[-1]), chart.scale
    points = [point for piece in pieces for point in piece]
    assert points == sorted(points, key=lambda point: point[0]) and all(axis.holds(share) for _, share in points)
    for x, share, _ in chart.points(chart.series[-1]):
        assert (x, share) in points
    inner = [point for piece in pieces for point in (piece[:1], piece[-1:])[: len(piece)]]
    known = list(zip(chart.xs, values, strict=False))
    for ((_, share),) in [one for one in inner if one[0] not in known]:
        assert share in (axis.low / 100, axis.high / 100)


def test_references_are_dashed_without_markers_and_drawn_first() -> None:
    svg = lines(["1", "2"], ShareSeries("s", [1, 0.5], "red"), ShareSeries("c", [0.1, 0.1], "blue", reference=True))
    kinds = [path.attrib["class"] for path in svg.iter("path") if "curve" in path.get("class", "")]
    assert kinds == ["curve reference", "curve"]
    assert len(all_said(svg, "path", "mark")) == 2
    assert {"s", "c"} <= words(svg).keys()


def test_labels_of_lines_that_end_together_do_not_overlap() -> None:
    svg = lines(["1", "2"], *(ShareSeries(f"line {i}", [0.02, 0.02], "red") for i in range(5)))
    heights = sorted(y for name, y in words(svg).items() if name.startswith("line"))
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
        Chart(["a"], [ShareSeries("s", [value], "red")], "t")


def test_more_values_than_places_are_refused() -> None:
    with pytest.raises(SiglumError, match="2 values for 1 places"):
        Chart(["1"], [ShareSeries("s", [0.1, 0.2], "red")], "t", "x")


def test_text_is_escaped_and_the_picture_is_named() -> None:
    svg = bars(["<a>"], [ShareSeries('"&', [0.5], "red")], 'Success "now" & <then>')
    assert svg.attrib["aria-label"] == 'Success "now" & <then>'
    assert svg.attrib["viewBox"].startswith(f"0 0 {WIDTH} ")
    assert "<a>" in words(svg)
    assert said(svg.find("rect/title")) == '<a>, "&: 50.0 %'


def test_long_names_are_cut_to_their_room_and_told_whole() -> None:
    svg = lines(["1"], ShareSeries("a name that is far too long", [0.5], "red"))
    (label,) = (text for text in svg.iter("text") if "…" in said(text))
    assert label.text == "a name that is…" and said(label.find("title")) == "a name that is far too long"


def test_names_that_do_not_fit_side_by_side_take_turns() -> None:
    heights = words(bars([f"a long name {i}" for i in range(6)], [ShareSeries("s", [0.5] * 6, "red")]))
    assert len({y for name, y in heights.items() if name.startswith("a long")}) == 2
    ticks = all_said(lines([str(i) for i in range(40)], ShareSeries("s", [0.1] * 20 + [0.9] * 20, "red")), "text")
    assert {"0", "39"} & set(ticks) and len([tick for tick in ticks if tick.isdigit()]) < 25
