"""Words of the drawn world: captions, edits and instructions, each with many wordings for one meaning.

A caption names the groups in random order and leaves some attributes out, as people do; an edit always names what
changes and what it becomes.
"""

from __future__ import annotations

from collections.abc import Sequence

from siglum.lab.world.scene import BoardCell, Dice, Edit, Scene, ShapeGroup
from siglum.types import SiglumError

SHAPE_WORDS: dict[str, tuple[str, ...]] = {
    "circle": ("circle", "disc"),
    "square": ("square", "box"),
    "triangle": ("triangle", "wedge"),
    "star": ("star",),
    "ring": ("ring", "hoop"),
    "cross": ("cross", "plus sign"),
    "heart": ("heart",),
    "moon": ("moon", "crescent"),
}
COLOUR_WORDS: dict[str, tuple[str, ...]] = {
    "red": ("red", "crimson", "scarlet"),
    "orange": ("orange", "tangerine"),
    "yellow": ("yellow", "golden"),
    "green": ("green", "emerald"),
    "teal": ("teal", "turquoise"),
    "blue": ("blue", "azure"),
    "purple": ("purple", "violet"),
    "pink": ("pink", "rose"),
}
SIZE_WORDS: dict[str, tuple[str, ...]] = {
    "small": ("small", "little", "tiny"),
    "large": ("large", "big", "huge"),
}
TEXTURE_WORDS: dict[str, tuple[str, ...]] = {
    "plain": ("plain", "solid"),
    "striped": ("striped", "banded"),
    "dotted": ("dotted", "spotted"),
    "chequered": ("chequered", "checked"),
}
BACKGROUND_WORDS: dict[str, tuple[str, ...]] = {
    "cream": ("cream", "ivory"),
    "sky": ("pale blue", "sky blue"),
    "mint": ("mint", "pale green"),
    "lilac": ("lilac", "lavender"),
    "sand": ("sandy", "beige"),
    "night": ("dark", "night blue"),
}
GROUND_WORDS = ("background", "backdrop", "ground")
COUNT_WORDS: dict[int, tuple[str, ...]] = {2: ("two", "a pair of"), 3: ("three", "a trio of")}
ROW_WORDS = (("top", "upper"), ("middle",), ("bottom", "lower"))
COLUMN_WORDS = ("left", "middle", "right")

INSTRUCTIONS: dict[str, tuple[str, ...]] = {
    "t2i": (
        "Find a picture that shows this.",
        "Which image matches this description?",
        "Show me a drawing of the following.",
    ),
    "i2t": (
        "Find a text that describes this picture.",
        "Which caption fits the image?",
        "Describe this drawing with a sentence from the collection.",
    ),
    "t2t": (
        "Find another text that says the same.",
        "Which sentence has this meaning?",
        "Look up a caption worded differently.",
    ),
    "i2i": (
        "Find another picture of this scene.",
        "Which image shows the same as this one?",
        "Look up a drawing like this.",
    ),
    "t2it": (
        "Find a captioned picture of this.",
        "Which illustrated entry, image and text together, fits?",
        "Look up a picture with its caption for this description.",
    ),
    "it2i": (
        "Find a picture like this one after the change.",
        "Which image shows the scene once edited?",
        "Show me the drawing with this modification.",
    ),
    "it2t": (
        "Find a text that describes this picture after the change.",
        "Which caption fits the image once edited?",
        "Look up the sentence for the drawing with this modification.",
    ),
    "it2it": (
        "Find a captioned picture like this one after the change.",
        "Which illustrated entry, image and text together, fits once edited?",
        "Look up a picture with its caption for the drawing with this modification.",
    ),
}
"""What is wanted, in words, by task; the wording tells the wanted modality."""

ITEM_DETAIL = 0.90
"""How likely a text of the collection is to mention an attribute."""
QUERY_DETAIL = 0.80
"""How likely a query is to mention an attribute."""


def caption(scene: Scene, dice: Dice, detail: float) -> str:
    """Describe a scene; every attribute is mentioned with probability `detail`, colours and shapes always.

    >>> from siglum.lab.world.scene import Chance, sample_family
    >>> caption(sample_family(0, 0).scenes[0], Dice(Chance(0, "doc", 0)), 1.0).endswith(".")
    True
    """
    order = dice.shuffled(scene.groups)
    phrases = [
        _noun_phrase(group, dice, detail) + _place(group, order[:i], dice, detail) for i, group in enumerate(order)
    ]
    body = _join(phrases)
    lead = dice.pick(("", "", "a picture of ", "we see ", "this shows "))
    if not dice.flip(detail):
        return _sentence(lead + body)
    tone, ground = dice.pick(BACKGROUND_WORDS[scene.background]), dice.pick(GROUND_WORDS)
    where = f"{dice.pick(('on', 'against'))} {_article(tone)} {tone} {ground}"
    return _sentence(dice.pick((f"{lead}{body} {where}", f"{where}, {body}", f"{lead}{body}; the {ground} is {tone}")))


def edit_words(edits: Sequence[Edit], dice: Dice) -> str:
    """Word edits as one request; every group and new value is named, so that words tell a family's edits apart.

    >>> from siglum.lab.world.scene import Chance
    >>> edit_words([Edit("background", "sky", "mint")], Dice(Chance(0, "doc", 0))).endswith(".")
    True
    """
    return _sentence(_join([_request(edit, dice) for edit in edits]))


def instruction(task: str, dice: Dice) -> str:
    """Return one wording of what `task` asks for."""
    return dice.pick(INSTRUCTIONS[task])


def _request(edit: Edit, dice: Dice) -> str:
    before, after = edit.before, edit.after
    forms: tuple[str, ...]
    if isinstance(after, str):
        tone, ground = dice.pick(BACKGROUND_WORDS[after]), dice.pick(GROUND_WORDS)
        forms = (
            f"make the {ground} {tone}",
            f"put it on {_article(tone)} {tone} {ground}",
            f"use a {ground} in {tone}",
        )
    elif isinstance(after, ShapeGroup) and before is None:
        thing = f"{_noun_phrase(after, dice, 1.0)} {_cell_words(after.cell, dice)}"
        forms = (f"add {thing}", f"put in {thing}", f"draw {thing} as well")
    elif isinstance(before, ShapeGroup) and after is None:
        thing = _naming(before, dice)
        forms = (f"remove {thing}", f"take away {thing}", f"leave out {thing}")
    elif isinstance(before, ShapeGroup) and isinstance(after, ShapeGroup):
        forms = _change_forms(edit.kind, before, after, dice)
    else:
        raise SiglumError(
            f"an edit of kind {edit.kind!r} needs groups or backgrounds, but has {before!r} and {after!r}."
        )
    return dice.pick(forms)


def _change_forms(kind: str, before: ShapeGroup, after: ShapeGroup, dice: Dice) -> tuple[str, ...]:
    it, plural = _naming(before, dice), before.count > 1
    if kind == "cell":
        place = _cell_words(after.cell, dice)
        return (f"move {it} {place}", f"put {it} {place}", f"shift {it} {place}")
    if kind == "swap":
        thing = _noun_phrase(after, dice, 1.0)
        return (f"replace {it} by {thing}", f"turn {it} into {thing}", f"put {thing} in place of {it}")
    if kind == "count":
        if after.count == 1:
            return (f"keep only one of {it}", f"leave a single {dice.pick(SHAPE_WORDS[after.shape])}")
        number, shapes = dice.pick(COUNT_WORDS[after.count]), _shape_word(after, dice)
        return (f"make it {number} {shapes}", f"have {number} {shapes}", f"draw {number} {shapes} instead")
    if kind == "shape":
        word = dice.pick(SHAPE_WORDS[after.shape])
        into = _plural(word) if plural else f"{_article(word)} {word}"
        return (f"turn {it} into {into}", f"replace {it} by {into}", f"put {into} in place of {it}")
    words = {"colour": COLOUR_WORDS, "size": SIZE_WORDS, "texture": TEXTURE_WORDS}[kind]
    value = dice.pick(words[getattr(after, kind)])
    return (f"make {it} {value}", f"turn {it} {value}", f"have {it} {value}")


def _naming(group: ShapeGroup, dice: Dice) -> str:
    """Name a group the reader already knows; its shape alone would be enough within a scene."""
    colour = f"{dice.pick(COLOUR_WORDS[group.colour])} " if dice.flip(0.4) else ""
    place = f" {_cell_words(group.cell, dice)}" if dice.flip(0.6) else ""
    return f"the {colour}{_shape_word(group, dice)}{place}"


def _shape_word(group: ShapeGroup, dice: Dice) -> str:
    word = dice.pick(SHAPE_WORDS[group.shape])
    return _plural(word) if group.count > 1 else word


def _noun_phrase(group: ShapeGroup, dice: Dice, detail: float) -> str:
    words = []
    if dice.flip(detail):
        words.append(dice.pick(SIZE_WORDS[group.size]))
    adjectives = [dice.pick(COLOUR_WORDS[group.colour])]
    # Nobody says "plain" as often as "striped".
    if dice.flip(detail * (0.5 if group.texture == "plain" else 1.0)):
        adjectives.append(dice.pick(TEXTURE_WORDS[group.texture]))
    words += dice.shuffled(adjectives)
    words.append(_shape_word(group, dice))
    phrase = " ".join(words)
    return f"{_article(phrase)} {phrase}" if group.count == 1 else f"{dice.pick(COUNT_WORDS[group.count])} {phrase}"


def _place(group: ShapeGroup, known: Sequence[ShapeGroup], dice: Dice, detail: float) -> str:
    """Say where a group is: by its cell, or by its relation to a group already named, or not at all."""
    if not dice.flip(detail):
        return ""
    if known and dice.flip(0.3):
        other = dice.pick(known)
        return f" {relation(group.cell, other.cell, dice)} the {_shape_word(other, dice)}"
    return f" {_cell_words(group.cell, dice)}"


def relation(cell: BoardCell, other: BoardCell, dice: Dice) -> str:
    """Return words for where a cell lies from another one."""
    sides = []
    if cell.row != other.row:
        sides.append(dice.pick(("above", "over")) if cell.row < other.row else dice.pick(("below", "under")))
    if cell.column != other.column:
        sides.append("left of" if cell.column < other.column else "right of")
    return " and ".join(sides)


def _cell_words(cell: BoardCell, dice: Dice) -> str:
    row, column = dice.pick(ROW_WORDS[cell.row]), COLUMN_WORDS[cell.column]
    if cell == (1, 1):
        return dice.pick(("in the middle", "in the centre"))
    if cell.row == 1:
        return dice.pick((f"at the {column}", f"on the {column} side"))
    if cell.column == 1:
        return dice.pick((f"at the {row} centre", f"in the {row} middle"))
    return dice.pick((f"at the {row} {column}", f"in the {row} {column} corner"))


def _plural(word: str) -> str:
    if word.endswith("us"):
        return f"{word}es"
    if word.endswith(("x", "ss")):
        return f"{word}es"
    return f"{word}s"


def _article(phrase: str) -> str:
    return "an" if phrase[0] in "aeiou" else "a"


def _join(phrases: Sequence[str]) -> str:
    return phrases[0] if len(phrases) == 1 else f"{', '.join(phrases[:-1])} and {phrases[-1]}"


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."
