"""Scenes of the drawn world: what they hold, how they are drawn by lot, and the edits that relate them.

A scene is a background and one to three groups, each of one shape; no two groups of a scene share a shape or a
cell, so "the circle" always names one group. Four scenes make a family: edits of one base. Chance is counted, not
stored: family f of a world depends on (seed, f) alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, TypeVar
from zlib import crc32

import numpy as np

SHAPES = ("circle", "square", "triangle", "star", "ring", "cross", "heart", "moon")
COLOURS = ("red", "orange", "yellow", "green", "teal", "blue", "purple", "pink")
SIZES = ("small", "large")
TEXTURES = ("plain", "striped", "dotted", "chequered")
COUNTS = (1, 2, 3)
BACKGROUNDS = ("cream", "sky", "mint", "lilac", "sand", "night")
FAMILY = 4
"""Scenes in a family."""
MOST_GROUPS = 3
FRESH = 0.75
"""How likely a scene is one edit from the base; else it is one edit from another scene of the family."""
MOST_EDITS = 2
"""Edits between a base and a scene."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Chance:
    """The address of one stream of random numbers: equal addresses give equal numbers, on any machine."""

    seed: int
    purpose: str
    index: int
    variant: int = 0

    def generator(self) -> np.random.Generator:
        """Return a fresh generator at the start of this stream."""
        key = np.array([self.seed, crc32(self.purpose.encode())], np.uint64)
        counter = np.array([0, 0, self.variant, self.index], np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=counter))


class Dice:
    """Cheap choices from one stream; uniforms are fetched in blocks.

    >>> Dice(Chance(0, "doc", 0)).pick("abc") == Dice(Chance(0, "doc", 0)).pick("abc")
    True
    """

    def __init__(self, chance: Chance) -> None:
        """Start at the beginning of the stream."""
        self._generator = chance.generator()
        self._block: list[float] = []

    def roll(self) -> float:
        """Return a number in [0, 1)."""
        if not self._block:
            self._block = self._generator.random(48).tolist()
        return self._block.pop()

    def flip(self, share: float) -> bool:
        """Return True with this probability."""
        return self.roll() < share

    def pick(self, choices: Sequence[T]) -> T:
        """Return one of `choices`, all equally likely."""
        return choices[int(self.roll() * len(choices))]

    def shuffled(self, values: Sequence[T]) -> list[T]:
        """Return the values in random order."""
        keys = [self.roll() for _ in values]
        return [values[i] for i in sorted(range(len(values)), key=keys.__getitem__)]


class BoardCell(NamedTuple):
    """A place on the three by three board, rows from the top and columns from the left."""

    row: int
    column: int


CELLS = tuple(BoardCell(row, column) for row in range(3) for column in range(3))


@dataclass(frozen=True, slots=True)
class ShapeGroup:
    """One to three like objects side by side in one cell."""

    shape: str
    colour: str
    size: str
    texture: str
    count: int
    cell: BoardCell


@dataclass(frozen=True, slots=True)
class Scene:
    """A background and its groups in reading order, so that equal scenes compare equal."""

    background: str
    groups: tuple[ShapeGroup, ...]

    @classmethod
    def of(cls, background: str, groups: Sequence[ShapeGroup]) -> Scene:
        """Return the scene with its groups sorted by cell."""
        return cls(background, tuple(sorted(groups, key=lambda group: group.cell)))


ATTRIBUTES: dict[str, Sequence[object]] = {
    "colour": COLOURS,
    "size": SIZES,
    "texture": TEXTURES,
    "count": COUNTS,
    "shape": SHAPES,
    "cell": CELLS,
}
EDITS = (*ATTRIBUTES, "swap", "background", "add", "remove")
LOTS = (*EDITS, "add", "add", "add", "add", "swap", "background", "size", "texture")
"""Edits of whole groups and backgrounds are drawn more often than those of one attribute."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One change of a scene: `before` becomes `after`, both groups, or both names of backgrounds.

    `kind` is the attribute that changes, swap (all of them but the cell), background, add (nothing before) or remove
    (nothing after).
    """

    kind: str
    before: ShapeGroup | str | None
    after: ShapeGroup | str | None

    def apply(self, scene: Scene) -> Scene:
        """Return the scene after the change."""
        if isinstance(self.after, str):
            return replace(scene, background=self.after)
        groups = [group for group in scene.groups if group != self.before]
        return Scene.of(scene.background, [*groups, self.after] if self.after is not None else groups)


def sample_group(dice: Dice, taken: Sequence[ShapeGroup]) -> ShapeGroup:
    """Draw a group whose shape and cell none of `taken` has."""
    shapes = [shape for shape in SHAPES if shape not in {group.shape for group in taken}]
    cells = [cell for cell in CELLS if cell not in {group.cell for group in taken}]
    return ShapeGroup(
        dice.pick(shapes),
        dice.pick(COLOURS),
        dice.pick(SIZES),
        dice.pick(TEXTURES),
        dice.pick(COUNTS),
        dice.pick(cells),
    )


def sample_scene(dice: Dice) -> Scene:
    """Draw a scene of one group or, twice as often, two; edits may add a third."""
    groups: list[ShapeGroup] = []
    for _ in range(dice.pick((1, 2, 2))):
        groups.append(sample_group(dice, groups))
    return Scene.of(dice.pick(BACKGROUNDS), groups)


def sample_edit(scene: Scene, dice: Dice) -> Edit:
    """Draw an edit that changes `scene` and keeps it a scene."""
    unfit = {MOST_GROUPS: "add", 1: "remove"}.get(len(scene.groups))
    kind = dice.pick([lot for lot in LOTS if lot != unfit])
    if kind == "background":
        return Edit(kind, scene.background, dice.pick([name for name in BACKGROUNDS if name != scene.background]))
    if kind == "add":
        return Edit(kind, None, sample_group(dice, scene.groups))
    group = dice.pick(scene.groups)
    if kind == "remove":
        return Edit(kind, group, None)
    if kind == "swap":
        return Edit(kind, group, replace(sample_group(dice, scene.groups), cell=group.cell))
    # Two groups may share a colour, but neither a shape nor a cell.
    others = scene.groups if kind in ("shape", "cell") else (group,)
    used = {getattr(other, kind) for other in others}
    value = dice.pick([value for value in ATTRIBUTES[kind] if value not in used])
    return Edit(kind, group, replace(group, **{kind: value}))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Family:
    """Four scenes and the base they come from: scene m is the base after `edits[m]`; the base itself is no item."""

    base: Scene
    scenes: tuple[Scene, ...]
    edits: tuple[tuple[Edit, ...], ...]


@lru_cache(maxsize=4096)
def sample_family(seed: int, index: int) -> Family:
    """Return family `index` of the world with this seed; its scenes, the base included, are all different.

    Most are one edit from the base, and so two from one another; the others are one edit from an earlier scene.
    """
    dice = Dice(Chance(seed, "family", index))
    base = sample_scene(dice)
    scenes: list[Scene] = []
    edits: list[tuple[Edit, ...]] = []
    path: tuple[Edit, ...]
    while len(scenes) < FAMILY:
        start, path = base, ()
        if scenes and not dice.flip(FRESH):
            twin = dice.pick(range(len(scenes)))
            start, path = scenes[twin], edits[twin]
        edit = sample_edit(start, dice)
        scene = edit.apply(start)
        if len(path) < MOST_EDITS and scene not in (base, *scenes):
            scenes.append(scene)
            edits.append((*path, edit))
    return Family(base, tuple(scenes), tuple(edits))
