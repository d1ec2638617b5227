"""Drawing of scenes at any size: signed distances for the edges, so that small pictures are cheap and large ones crisp.

A picture is a scene and a view. The view jitters places, sizes, hues and light, so that one scene has endlessly many
pictures. Shapes: N objects, S pixels a side of the picture, P pixels a side of an object's window.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil, cos, pi, sin
from typing import Any

import numpy as np
from numpy.typing import NDArray

from siglum.lab.world.scene import Chance, Dice, Scene, ShapeGroup

PAINT = {
    "red": (0.83, 0.24, 0.24),
    "orange": (0.93, 0.53, 0.20),
    "yellow": (0.94, 0.78, 0.25),
    "green": (0.36, 0.66, 0.33),
    "teal": (0.16, 0.63, 0.62),
    "blue": (0.25, 0.45, 0.83),
    "purple": (0.54, 0.33, 0.74),
    "pink": (0.93, 0.53, 0.67),
}
BACKDROP = {
    "cream": (0.97, 0.94, 0.86),
    "sky": (0.80, 0.89, 0.97),
    "mint": (0.82, 0.94, 0.86),
    "lilac": (0.90, 0.85, 0.96),
    "sand": (0.90, 0.81, 0.66),
    "night": (0.20, 0.23, 0.34),
}
RADIUS = {"small": 0.095, "large": 0.155}
SHRINK = {1: 1.0, 2: 0.68, 3: 0.60}
PATTERN = {
    "plain": (0.0, 0.0, 0.0, 1.0),
    "striped": (1.0, 0.0, 0.0, 0.0),
    "chequered": (0.0, 1.4, 0.0, 0.0),
    "dotted": (0.0, 0.0, -1.4, 0.45),
}
"""Weights of stripes, checks, dots and a constant; the paint shows where the sum is positive, chalk elsewhere."""
CHALK = 0.97
WINDOW = 2.9
"""Side of an object's window in radii: the object at any turn, and its shadow."""

Field = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class SceneDrawing:
    """A scene seen in one view; it draws itself on demand."""

    scene: Scene
    view: Chance

    def pixels(self, size: int) -> np.ndarray:
        """Return the picture as uint8 (size, size, 3)."""
        return draw(self.scene, self.view, size)


@dataclass(frozen=True, slots=True)
class _Light:
    """The light of one view: a colour cast, a slope across the picture, and an exposure."""

    cast: tuple[float, float, float]
    slope: tuple[float, float]
    exposure: float
    grain: float


@dataclass(frozen=True, slots=True)
class _Object:
    """One object to paint, in units of the picture's side."""

    shape: str
    x: float
    y: float
    radius: float
    turn: float
    frequency: float
    paint: tuple[float, ...]
    pattern: tuple[float, ...]


def draw(scene: Scene, view: Chance, size: int) -> np.ndarray:
    """Return the scene in this view, uint8 (size, size, 3).

    >>> from siglum.lab.world.scene import sample_family
    >>> draw(sample_family(0, 0).scenes[0], Chance(0, "doc", 0), 48).shape
    (48, 48, 3)
    """
    dice = Dice(view)
    light = _place_light(dice)
    objects = _place_objects(scene, dice)
    picture = _paint_backdrop(BACKDROP[scene.background], light, size)
    _paint_objects(picture, objects)
    picture *= np.float32(light.exposure)
    # The difference of two bytes is a cheap, nearly bell-shaped grain.
    bytes_2SS = replace(view, purpose=f"{view.purpose} grain").generator().integers(0, 256, (2, size, size), np.uint8)
    picture += ((bytes_2SS[0].astype(np.float32) - bytes_2SS[1]) * np.float32(light.grain))[..., None]
    return np.clip(picture * 255.0 + 0.5, 0.0, 255.0).astype(np.uint8)


def _place_light(dice: Dice) -> _Light:
    angle, slope = pi * _spread(dice), 0.10 + 0.08 * _spread(dice)
    cast = (0.055 * _spread(dice), 0.055 * _spread(dice), 0.055 * _spread(dice))
    exposure, grain = 1.0 + 0.14 * _spread(dice), 0.020 + 0.012 * _spread(dice)
    return _Light(cast, (slope * cos(angle), slope * sin(angle)), exposure, grain / 255.0)


def _place_objects(scene: Scene, dice: Dice) -> list[_Object]:
    pan_x, pan_y = 0.018 * _spread(dice), 0.018 * _spread(dice)
    return [thing for group in scene.groups for thing in _place_group(group, pan_x, pan_y, dice)]


def _place_group(group: ShapeGroup, pan_x: float, pan_y: float, dice: Dice) -> list[_Object]:
    """Lay a group's objects side by side, or in a triangle, around its jittered place."""
    x = 0.5 + 0.27 * (group.cell.column - 1) + pan_x + 0.046 * _spread(dice)
    y = 0.5 + 0.27 * (group.cell.row - 1) + pan_y + 0.046 * _spread(dice)
    radius = RADIUS[group.size] * SHRINK[group.count] * (1.0 + 0.21 * _spread(dice))
    turn, around, shade = 0.20 * _spread(dice), 0.5 * _spread(dice), 1.0 + 0.10 * _spread(dice)
    paint = tuple(shade * channel + 0.07 * _spread(dice) for channel in PAINT[group.colour])
    reach, start = {1: (0.0, 0.0), 2: (1.10, 0.0), 3: (1.25, pi / 2)}[group.count]
    objects = []
    for i in range(group.count):
        at = around + start + 2.0 * pi * i / group.count
        left, top = x + reach * radius * cos(at), y + reach * radius * sin(at)
        tilt, frequency = turn + 0.10 * _spread(dice), (9.0 if group.texture == "dotted" else 7.0) + 0.6 * _spread(dice)
        objects.append(_Object(group.shape, left, top, radius, tilt, frequency, paint, PATTERN[group.texture]))
    return objects


def _spread(dice: Dice) -> float:
    return 2.0 * dice.roll() - 1.0


def _paint_backdrop(rgb: tuple[float, float, float], light: _Light, size: int) -> np.ndarray:
    """Return an empty picture, float32 (S, S, 3), lit on a slope and darker at the rim."""
    axis = (np.arange(size, dtype=np.float32) + 0.5) / size - 0.5
    across = 1.0 + light.slope[0] * axis - 0.18 * axis**2
    down = light.slope[1] * axis - 0.18 * axis**2
    shade = across[None, :] + down[:, None]
    picture: np.ndarray = shade[..., None] * (np.array(rgb, np.float32) + np.array(light.cast, np.float32))
    return picture


def _paint_objects(picture: np.ndarray, objects: list[_Object]) -> None:
    """Paint shadows and objects onto the picture, in place and in order."""
    size = len(picture)
    place = np.array([(o.x, o.y, o.radius, cos(o.turn), sin(o.turn), o.frequency) for o in objects], np.float32)
    x, y, radius, cosine, sine, frequency = (place[:, i, None, None] for i in range(6))
    drop = max(1, round(0.016 * size))
    side = ceil(WINDOW * float(place[:, 2].max()) * size) + drop
    corner_N2 = np.floor(place[:, :2] * size - side / 2.0).astype(np.int64)
    steps = np.arange(side, dtype=np.float32) + 0.5
    across = ((corner_N2[:, 0, None, None] + steps[None, None, :]) / size - x) / radius
    down = ((corner_N2[:, 1, None, None] + steps[None, :, None]) / size - y) / radius
    across, down = across.astype(np.float32), down.astype(np.float32)
    u, v = across * cosine + down * sine, down * cosine - across * sine
    distance = np.stack([OUTLINES[o.shape](u[i], v[i]) for i, o in enumerate(objects)])
    pixels = distance * (radius * size)
    # The shadow is the same field, moved down and right by `drop` pixels and blurred by a gentler ramp.
    shadow = np.clip(0.5 - pixels[:, :-drop, :-drop] / (0.05 * size), 0.0, 1.0) * 0.30
    inner = (slice(None), slice(drop, None), slice(drop, None))
    cover = np.clip(0.5 - pixels[inner], 0.0, 1.0)
    shade = 1.0 - 0.10 * (across[:, :, drop:] + down[:, drop:, :])
    shade -= 0.25 * np.clip(1.0 + distance[inner] * 6.0, 0.0, 1.0)
    colour = _paint_pattern(objects, frequency * u[inner], frequency * v[inner]) * (shade * cover)[..., None]
    through = ((1.0 - cover) * (1.0 - shadow))[..., None]
    for i, (left, top) in enumerate((corner_N2 + drop).tolist()):
        # A window may reach over the picture's rim.
        here = (slice(max(0, top), max(0, top + side - drop)), slice(max(0, left), max(0, left + side - drop)))
        window = picture[here]
        part = (
            i,
            slice(max(0, -top), max(0, -top) + len(window)),
            slice(max(0, -left), max(0, -left) + window.shape[1]),
        )
        window *= through[part]
        window += colour[part]


def _paint_pattern(objects: list[_Object], u: Field, v: Field) -> np.ndarray:
    """Return paint and chalk by each object's texture, float32 (N, P, P, 3)."""
    paint_N3 = np.clip(np.array([o.paint for o in objects], np.float32), 0.0, 1.0)
    stripes, checks, dots, constant = np.array([o.pattern for o in objects], np.float32).T[:, :, None, None]
    wave_u, wave_v = np.cos(u), np.cos(v)
    height = stripes * wave_u + checks * wave_u * wave_v + dots * 0.5 * (wave_u + wave_v) + constant
    chalk = np.clip(0.5 - 2.0 * height, 0.0, 1.0)[..., None] * np.float32(0.72)
    paint = paint_N3[:, None, None, :]
    mixed: np.ndarray = paint + chalk * (np.float32(CHALK) - paint)
    return mixed


def _circle(u: Field, v: Field) -> Field:
    return np.hypot(u, v) - 0.95


def _square(u: Field, v: Field) -> Field:
    distance: Field = np.maximum(np.abs(u), np.abs(v)) - 0.82
    return distance


def _triangle(u: Field, v: Field) -> Field:
    distance: Field = np.maximum(0.866 * np.abs(u) - 0.5 * (v - 0.15), v - 0.15) - 0.60
    return distance


def _star(u: Field, v: Field) -> Field:
    sector = 2.0 * np.float32(pi) / 5.0
    angle, radius = np.arctan2(u, -v), np.hypot(u, v)
    angle = np.abs(angle - sector * np.round(angle / sector))
    # One flank runs from the tip (1.12, 0) to the notch at half a sector; its normal gives the distance.
    notch_x, notch_y = 0.48 * cos(pi / 5.0), 0.48 * sin(pi / 5.0)
    length = ((1.12 - notch_x) ** 2 + notch_y**2) ** 0.5
    normal_x, normal_y = notch_y / length, (1.12 - notch_x) / length
    return (radius * np.cos(angle) - 1.12) * np.float32(normal_x) + radius * np.sin(angle) * np.float32(normal_y)


def _ring(u: Field, v: Field) -> Field:
    return np.abs(np.hypot(u, v) - 0.70) - 0.27


def _cross(u: Field, v: Field) -> Field:
    a, b = np.abs(u), np.abs(v)
    distance: Field = np.minimum(np.maximum(a - 0.32, b - 0.98), np.maximum(a - 0.98, b - 0.32))
    return distance


def _heart(u: Field, v: Field) -> Field:
    # A square on its corner with a half disc on each upper side.
    a, b = (u - v - 0.1) * 0.7071, (-u - v - 0.1) * 0.7071
    half = 0.56
    box = np.maximum(np.abs(a), np.abs(b)) - half
    discs = np.minimum(np.hypot(a - half, b), np.hypot(a, b - half)) - half
    distance: Field = np.minimum(box, discs)
    return distance


def _moon(u: Field, v: Field) -> Field:
    distance: Field = np.maximum(np.hypot(u, v) - 0.98, 0.70 - np.hypot(u - 0.46, v + 0.12))
    return distance


OUTLINES: dict[str, Callable[[Field, Field], Field]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
    "ring": _ring,
    "cross": _cross,
    "heart": _heart,
    "moon": _moon,
}
