"""Scenes of the carried world: what they hold, how they are drawn by lot, and the edits that relate them.

A scene is a background and one to three groups, each of one shape; no two groups of a scene share a shape or a
cell, so "the circle" always names one group. Four scenes make a family: a base and edits of it. Chance is
counted, not stored: family f of a world depends on (seed, f) alone.
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
EDITS_AT_ONCE = (1, 2, 2, 3)
"""How many edits part a scene from its parent, all equally likely."""

T = TypeVar("T")


class Chance(NamedTuple):
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


class Cell(NamedTuple):
    """A place on the three by three board, rows from the top and columns from the left."""

    row: int
    column: int


CELLS = tuple(Cell(row, column) for row in range(3) for column in range(3))


@dataclass(frozen=True, slots=True)
class Group:
    """One to three like objects side by side in one cell."""

    shape: str
    colour: str
    size: str
    texture: str
    count: int
    cell: Cell


@dataclass(frozen=True, slots=True)
class Scene:
    """A background and its groups in reading order, so that equal scenes compare equal."""

    background: str
    groups: tuple[Group, ...]

    @classmethod
    def of(cls, background: str, groups: Sequence[Group]) -> Scene:
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
EDITS = ("remove", "swap", *ATTRIBUTES, "background", "add")


@dataclass(frozen=True, slots=True)
class Edit:
    """One change of a scene: `before` becomes `after`, both groups, or both names of backgrounds.

    `kind` is the attribute that changes, swap (all of them but the cell), background, add (nothing before) or remove
    (nothing after).
    """

    kind: str
    before: Group | str | None
    after: Group | str | None

    def apply(self, scene: Scene) -> Scene:
        """Return the scene after the change."""
        if isinstance(self.after, str):
            return replace(scene, background=self.after)
        groups = [group for group in scene.groups if group != self.before]
        return Scene.of(scene.background, [*groups, self.after] if self.after is not None else groups)

    def inverse(self) -> Edit:
        """Return the edit that undoes this one."""
        kind = {"add": "remove", "remove": "add"}.get(self.kind, self.kind)
        return Edit(kind, self.after, self.before)


def sample_group(dice: Dice, taken: Sequence[Group]) -> Group:
    """Draw a group whose shape and cell none of `taken` has."""
    shapes = [shape for shape in SHAPES if shape not in {group.shape for group in taken}]
    cells = [cell for cell in CELLS if cell not in {group.cell for group in taken}]
    return Group(
        dice.pick(shapes), dice.pick(COLOURS), dice.pick(SIZES), dice.pick(TEXTURES), dice.pick(COUNTS), dice.pick(cells)
    )


def sample_scene(dice: Dice) -> Scene:
    """Draw a scene; two groups are as likely as one and three together."""
    groups: list[Group] = []
    for _ in range(dice.pick((1, 2, 2, 3))):
        groups.append(sample_group(dice, groups))
    return Scene.of(dice.pick(BACKGROUNDS), groups)


def sample_edits(scene: Scene, dice: Dice) -> tuple[Edit, ...]:
    """Draw one to three edits to be applied in turn, each of another kind, in the order of `EDITS`."""
    count = len(scene.groups)
    unfit = {"add"} if count == MOST_GROUPS else {"remove"} if count == 1 else {dice.pick(("add", "remove"))}
    kinds = dice.shuffled([kind for kind in EDITS if kind not in unfit])[: dice.pick(EDITS_AT_ONCE)]
    edits = []
    for kind in sorted(kinds, key=EDITS.index):
        edits.append(_sample_edit(kind, scene, dice))
        scene = edits[-1].apply(scene)
    return tuple(edits)


def _sample_edit(kind: str, scene: Scene, dice: Dice) -> Edit:
    """Draw an edit of this kind that changes `scene` and keeps it a scene."""
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
    """Scenes a few edits apart: member m > 0 is member `parents[m - 1]` after `edits[m - 1]`."""

    scenes: tuple[Scene, ...]
    parents: tuple[int, ...]
    edits: tuple[tuple[Edit, ...], ...]

    def ways_to(self, member: int) -> list[tuple[int, tuple[Edit, ...]]]:
        """Return every (other member, edits) that leads to `member` in one step of the tree."""
        ways = [(self.parents[member - 1], self.edits[member - 1])] if member else []
        for child, parent in enumerate(self.parents, start=1):
            if parent == member:
                ways.append((child, tuple(edit.inverse() for edit in reversed(self.edits[child - 1]))))
        return ways


@lru_cache(maxsize=4096)
def sample_family(seed: int, index: int) -> Family:
    """Return family `index` of the world with this seed; its scenes are all different."""
    dice = Dice(Chance(seed, "family", index))
    scenes: list[Scene] = [sample_scene(dice)]
    parents: list[int] = []
    edits: list[tuple[Edit, ...]] = []
    while len(scenes) < FAMILY:
        parent = dice.pick(range(len(scenes)))
        steps = sample_edits(scenes[parent], dice)
        scene = scenes[parent]
        for step in steps:
            scene = step.apply(scene)
        if scene not in scenes:
            scenes.append(scene)
            parents.append(parent)
            edits.append(steps)
    return Family(tuple(scenes), tuple(parents), tuple(edits))
