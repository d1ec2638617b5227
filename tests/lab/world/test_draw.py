"""Pictures of scenes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siglum.lab.world.draw import BACKDROP, OUTLINES, PAINT, PATTERN, RADIUS, SceneDrawing, draw
from siglum.lab.world.scene import (
    BACKGROUNDS,
    COLOURS,
    COUNTS,
    SHAPES,
    SIZES,
    TEXTURES,
    BoardCell,
    Chance,
    Scene,
    ShapeGroup,
    sample_family,
)
from siglum.types import Drawing

VIEW = Chance(3, "test", 0)
GROUP = ShapeGroup("circle", "red", "large", "plain", 1, BoardCell(1, 1))


def picture(group: ShapeGroup, view: Chance = VIEW, size: int = 48) -> np.ndarray:
    return draw(Scene.of("sky", [group]), view, size).astype(np.float64)


def test_tables_cover_the_vocabulary() -> None:
    assert set(PAINT) == set(COLOURS) and set(BACKDROP) == set(BACKGROUNDS) and set(PATTERN) == set(TEXTURES)
    assert set(OUTLINES) == set(SHAPES) and set(RADIUS) == set(SIZES)


@settings(max_examples=30)
@given(st.integers(0, 1000), st.integers(0, 3), st.sampled_from([1, 8, 17, 48, 96]))
def test_pictures_have_the_asked_size_and_repeat(index: int, member: int, size: int) -> None:
    drawing = SceneDrawing(sample_family(1, index).scenes[member], Chance(1, "test", index))
    assert isinstance(drawing, Drawing)
    first = drawing.pixels(size)
    assert first.shape == (size, size, 3) and first.dtype == np.uint8
    assert np.array_equal(first, drawing.pixels(size))


def test_views_differ_but_less_than_scenes() -> None:
    views = [draw(sample_family(0, 0).scenes[0], Chance(0, "test", i), 48).astype(float) for i in range(8)]
    others = [draw(sample_family(0, f).scenes[0], Chance(0, "test", f), 48).astype(float) for f in range(1, 9)]
    near = np.mean([np.abs(views[0] - view).mean() for view in views[1:]])
    far = np.mean([np.abs(views[0] - other).mean() for other in others])
    assert 0.5 < near < far


def test_a_small_picture_is_the_large_one_shrunk() -> None:
    large = picture(GROUP, size=192).reshape(48, 4, 48, 4, 3).mean(axis=(1, 3))
    assert np.abs(large - picture(GROUP)).mean() < 6.0


@pytest.mark.parametrize("cell", [BoardCell(0, 0), BoardCell(0, 2), BoardCell(1, 1), BoardCell(2, 0)])
def test_objects_stand_in_their_cell(cell: BoardCell) -> None:
    image = picture(replace(GROUP, cell=cell))
    redness = np.clip(image[..., 0] - image[..., 2], 20.0, None) - 20.0
    rows, columns = redness.sum(axis=1), redness.sum(axis=0)
    axis = np.arange(48) + 0.5
    assert int((axis @ rows) / rows.sum() // 16) == cell.row
    assert int((axis @ columns) / columns.sum() // 16) == cell.column


@pytest.mark.parametrize("colour", COLOURS)
def test_colours_show(colour: str) -> None:
    middle = picture(replace(GROUP, colour=colour))[20:28, 20:28].mean(axis=(0, 1)) / 255.0
    nearest = min(COLOURS, key=lambda name: float(np.abs(middle - np.array(PAINT[name])).sum()))
    assert nearest == colour


def test_sizes_and_counts_show() -> None:
    empty = picture(replace(GROUP, size="small", cell=BoardCell(0, 0)))[24:, 24:].mean()

    def ink(group: ShapeGroup) -> float:
        return float(np.clip(empty - picture(group).mean(axis=2) - 25.0, 0.0, None).sum())

    sizes = [ink(replace(GROUP, size=size, colour="blue")) for size in SIZES]
    assert sizes[0] < sizes[1]
    assert len({round(ink(replace(GROUP, count=count, colour="blue")), 2) for count in COUNTS}) == 3


@pytest.mark.parametrize("kind", ["shape", "texture"])
def test_shapes_and_textures_all_look_different(kind: str) -> None:
    values = SHAPES if kind == "shape" else TEXTURES
    pictures = [picture(replace(GROUP, **{kind: value})) for value in values]
    gaps = [np.abs(a - b).mean() for i, a in enumerate(pictures) for b in pictures[:i]]
    assert min(gaps) > 0.25


def test_outlines_enclose_something_within_the_window() -> None:
    axis = np.linspace(-1.45, 1.45, 61, dtype=np.float32)
    u, v = np.meshgrid(axis, axis)
    for name, outline in OUTLINES.items():
        field = outline(u, v)
        share = (field < 0).mean()
        assert 0.08 < share < 0.5, name
        assert (field[[0, -1]] > 0).all() and (field[:, [0, -1]] > 0).all(), name
