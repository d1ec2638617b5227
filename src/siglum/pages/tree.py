"""An explanation as one page: the beam drawn as a tree, its numbers, and the pictures of its items.

Every row of the tree is a level, or several that are folded, best prefix first: the few best, the target, and the last
one kept, behind which the beam cuts. Those in between are drawn as one dot; the path of the target is the thick line.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from siglum.measure.explain import Explanation, Level, Prefix, fold_tail, tell
from siglum.pages.contact_sheet import make_thumbnail
from siglum.pages.render import render
from siglum.types import Item, Modality, Query

BEST = 3
"""Best prefixes of a level that are drawn, beside the target and the last one kept."""
WIDTH, MARGIN, BOX, DOT, GAP = 344, 2, 52, 24, 5
"""Units across: as wide as a phone shows, so that the text can be read there."""
ROOT, ROOM, CODES, SHOT = 18, 56, 50, 46
"""Units down: the query, the room for the lines between rows, a box without its picture, and the picture."""
KINDS = {Modality.IMAGE: "image", Modality.TEXT: "text", Modality.IMAGE_TEXT: "both"}
PICTURE = 96
"""Pixels a side of an embedded picture."""
QUERY = "the query"
"""Under which name its picture is kept."""


@dataclass(frozen=True, slots=True)
class Spot:
    """One thing in a row of the tree: a prefix, or a dot for all prefixes from one rank to another."""

    x: float
    """Its middle."""
    low: int
    high: int
    prefix: Prefix | None = None
    parent: float | None = None
    """The middle of what it continues in the row above; None where that is not on the page."""


@dataclass(frozen=True, slots=True)
class TreeRow:
    """One level, or several that are folded, of which the last is told."""

    levels: Sequence[Level]
    spots: Sequence[Spot]
    kind: str
    """How the target fares: mine where it is kept, fell where it falls, out below that."""

    @property
    def level(self) -> Level:
        """The level that is told."""
        return self.levels[-1]

    @property
    def x(self) -> float:
        """The middle of the target."""
        return next(spot.x for spot in self.spots if spot.prefix == self.level.target)

    def name_of(self, prefix: Prefix) -> str:
        """Return the last code of a prefix; the modality token in words."""
        return str(prefix.codes[-1]) if self.level.level else KINDS[Modality(prefix.codes[-1])]


@dataclass(frozen=True, slots=True)
class Tree:
    """The rows, and where they stand."""

    rows: Sequence[TreeRow]
    end: int
    """The row in which the target falls or is found."""
    faces: bool
    """Whether boxes show pictures or words."""
    ROOT: ClassVar[int] = ROOT
    WIDTH: ClassVar[int] = WIDTH
    BOX: ClassVar[int] = BOX
    GAP: ClassVar[int] = GAP
    SHOT: ClassVar[int] = SHOT
    QUERY: ClassVar[float] = MARGIN + BOX / 2

    @property
    def folded(self) -> bool:
        """Whether a row stands for several levels."""
        return any(len(row.levels) > 1 for row in self.rows)

    @property
    def box(self) -> int:
        """Height of a box."""
        return CODES + SHOT * self.faces

    def top(self, place: int) -> int:
        """Return where the boxes of a row begin."""
        return ROOT + ROOM + place * (ROOM + self.box)


def render_explanation(explanation: Explanation, query: Query, items: Mapping[str, Item], title: str) -> str:
    """Return the page; `items` are those of the examples and hits that are known, with their texts and pictures."""
    shots = {}
    pictures = {**{name: item.image for name, item in items.items()}, QUERY: query.image}
    for name, image in pictures.items():
        # One that cannot be read is not shown.
        if image is not None and (picture := make_thumbnail(image, PICTURE)) is not None:
            shots[name] = picture.jpeg
    faces = {name for name, item in items.items() if name in shots or item.text}
    finding, *lead = tell(explanation)
    return render(
        "explain.html.j2",
        title=title,
        finding=finding,
        lead=" ".join(lead),
        explanation=explanation,
        query=query,
        items=items,
        tree=grow_tree(explanation, faces),
        faces=faces,
        pictures=shots,
        numbers={name: place for place, name in enumerate(shots)},
        side=PICTURE,
        QUERY=QUERY,
    )


def grow_tree(explanation: Explanation, faces: Collection[str] = ()) -> Tree:
    """Place the rows of the tree; `faces` are the ids of items that can be shown."""
    fall, rows = explanation.fall, []
    above = [Spot(Tree.QUERY, 0, 0)]
    for levels in fold_tail(explanation):
        level = levels[-1]
        kind = "mine" if level.target.kept else "fell" if level is fall else "out"
        rows.append(TreeRow(levels, _lay_out(levels, kind == "out", above), kind))
        above = list(rows[-1].spots)
    shown = any(name in faces for row in rows for spot in row.spots if spot.prefix for name in spot.prefix.examples)
    return Tree(rows, next((place for place, row in enumerate(rows) if row.kind == "fell"), len(rows) - 1), shown)


def _lay_out(levels: Sequence[Level], out: bool, above: Sequence[Spot]) -> list[Spot]:
    """Place the prefixes of a row, best first, with a dot where some are left out."""
    level = levels[-1]
    chosen = {prefix.codes: prefix for prefix in (*level.best[:BEST], level.last, level.target)}
    spots, x, seen = [], float(MARGIN), 0

    def is_out(prefix: Prefix) -> bool:
        return out and prefix.codes == level.target.codes

    # A target that is out stands before the prefix whose rank it would take, and takes none.
    for prefix in sorted(chosen.values(), key=lambda one: (one.rank, not is_out(one))):
        if prefix.rank - 1 > seen:
            spots.append(Spot(x + DOT / 2, seen + 1, prefix.rank - 1))
            x += DOT + GAP
        spots.append(Spot(x + BOX / 2, prefix.rank, prefix.rank, prefix, _parent(prefix, len(levels) > 1, above)))
        x += BOX + GAP
        seen = prefix.rank - is_out(prefix)
    return spots


def _parent(prefix: Prefix, folded: bool, above: Sequence[Spot]) -> float | None:
    """Return the middle of what a prefix continues: its ancestor, or the dot that stands for it."""
    for spot in above:
        if spot.prefix and prefix.codes[: len(spot.prefix.codes)] == spot.prefix.codes:
            return spot.x
    dots = [spot for spot in above if spot.prefix is None]
    if folded and len(dots) > 1:
        return None  # the rank of an ancestor further up is not known
    rank = prefix.parent
    return min(dots, key=lambda spot: max(spot.low - rank, rank - spot.high)).x
