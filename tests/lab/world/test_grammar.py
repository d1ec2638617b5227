"""Captions, edits and instructions."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siglum.data.tasks import TASKS
from siglum.lab.world import grammar
from siglum.lab.world.scene import (
    COLOURS,
    SHAPES,
    BoardCell,
    Chance,
    Dice,
    Edit,
    Family,
    Scene,
    ShapeGroup,
    sample_family,
)

families = st.builds(sample_family, st.integers(0, 50), st.integers(0, 10_000))


def dice(variant: int = 0) -> Dice:
    return Dice(Chance(0, "test", 0, variant))


@given(families, st.integers(0, 1000))
def test_a_full_caption_names_every_attribute(family: Family, variant: int) -> None:
    for scene in family.scenes:
        text = grammar.caption(scene, dice(variant), 1.0).lower()
        assert any(word in text for word in grammar.BACKGROUND_WORDS[scene.background])
        for group in scene.groups:
            assert any(word in text for word in grammar.SHAPE_WORDS[group.shape])
            assert any(word in text for word in grammar.COLOUR_WORDS[group.colour])
            assert any(word in text for word in grammar.SIZE_WORDS[group.size])
            if group.texture != "plain":
                assert any(word in text for word in grammar.TEXTURE_WORDS[group.texture])


@given(families)
def test_less_detail_gives_shorter_captions(family: Family) -> None:
    scene = family.scenes[0]
    lengths = [sum(len(grammar.caption(scene, dice(i), detail)) for i in range(20)) for detail in (0.0, 1.0)]
    assert lengths[0] < lengths[1]


def test_one_scene_has_many_wordings() -> None:
    scene = sample_family(0, 0).scenes[0]
    assert len({grammar.caption(scene, dice(i), 0.9) for i in range(100)}) > 90


@given(families, st.integers(0, 1000))
def test_captions_are_well_formed(family: Family, variant: int) -> None:
    for scene in family.scenes:
        text = grammar.caption(scene, dice(variant), 0.8)
        assert text[0].isupper() and text.endswith(".")
        assert not re.search(r"  |\ba [aeiou]|\ban [^aeiou]|of on |see on |\btwo \w+ \w+ star\b", text)


def test_counts_have_words() -> None:
    group = ShapeGroup("cross", "red", "small", "plain", 1, BoardCell(0, 0))
    texts = {count: grammar.caption(Scene.of("sky", [replace(group, count=count)]), dice(), 1.0) for count in (1, 2, 3)}
    assert "two" in texts[2].lower() or "pair" in texts[2].lower()
    assert "three" in texts[3].lower() or "trio" in texts[3].lower()
    assert re.search(r"crosses|plus signs", texts[2])
    assert not re.search(r"crosses|plus signs", texts[1])


@given(families, st.integers(0, 1000))
def test_words_tell_the_edits_of_a_scene_apart(family: Family, variant: int) -> None:
    wordings = [grammar.edit_words(edits, dice(variant)) for edits in family.edits]
    assert len(set(wordings)) == len(wordings)


def test_an_edit_names_the_group_and_the_new_value() -> None:
    before = ShapeGroup("circle", "red", "small", "plain", 1, BoardCell(0, 0))
    for colour in COLOURS[1:]:
        text = grammar.edit_words([Edit("colour", before, replace(before, colour=colour))], dice()).lower()
        assert any(word in text for word in grammar.COLOUR_WORDS[colour])
        assert "circle" in text or "disc" in text
    moved = grammar.edit_words([Edit("cell", before, replace(before, cell=BoardCell(2, 2)))], dice()).lower()
    assert "right" in moved and ("bottom" in moved or "lower" in moved)


def test_relations_follow_from_cells() -> None:
    assert "left of" in grammar.relation(BoardCell(1, 0), BoardCell(1, 2), dice())
    assert grammar.relation(BoardCell(0, 1), BoardCell(2, 1), dice()) in ("above", "over")


def test_every_task_has_its_own_instructions() -> None:
    wordings = [wording for task in TASKS for wording in grammar.INSTRUCTIONS[task]]
    assert len(set(wordings)) == len(wordings)
    assert {grammar.instruction("t2i", dice(i)) for i in range(50)} == set(grammar.INSTRUCTIONS["t2i"])


@pytest.mark.parametrize(
    "words",
    [grammar.SHAPE_WORDS, grammar.COLOUR_WORDS, grammar.SIZE_WORDS, grammar.TEXTURE_WORDS, grammar.BACKGROUND_WORDS],
)
def test_no_word_has_two_meanings(words: dict[str, tuple[str, ...]]) -> None:
    listed = [word for synonyms in words.values() for word in synonyms]
    assert len(set(listed)) == len(listed)


def test_every_shape_and_colour_has_words() -> None:
    assert set(grammar.SHAPE_WORDS) == set(SHAPES)
    assert set(grammar.COLOUR_WORDS) == set(COLOURS)
