"""The drawn world: splits, items, queries and their determinism."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siglum.data.tasks import TASK_LABELS, TASKS
from siglum.lab.world.collection import SPLITS, Lazy, World, target
from siglum.lab.world.draw import SceneDrawing
from siglum.lab.world.scene import ATTRIBUTES, EDITS, FAMILY, MOST_EDITS, MOST_GROUPS, Chance, Dice, sample_family
from siglum.types import Item, Modality, SiglumError

WORLD = World(1_200, seed=5)


@settings(max_examples=60)
@given(st.integers(0, 2**63 - 1), st.integers(0, 10**6))
def test_families_are_distinct_valid_scenes_linked_by_their_edits(seed: int, index: int) -> None:
    family = sample_family(seed, index)
    assert len(set(family.scenes)) == FAMILY
    for scene in family.scenes:
        assert 1 <= len(scene.groups) <= MOST_GROUPS
        assert len({group.shape for group in scene.groups}) == len(scene.groups)
        assert len({group.cell for group in scene.groups}) == len(scene.groups)
    assert family.base not in family.scenes
    for edits, wanted in zip(family.edits, family.scenes, strict=True):
        scene = family.base
        assert 1 <= len(edits) <= MOST_EDITS
        for edit in edits:
            assert edit.apply(scene) != scene
            scene = edit.apply(scene)
        assert scene == wanted


def test_every_kind_of_edit_and_every_value_occurs() -> None:
    families = [sample_family(0, index) for index in range(600)]
    assert {edit.kind for family in families for edits in family.edits for edit in edits} == set(EDITS)
    groups = [group for family in families for scene in family.scenes for group in scene.groups]
    for name, values in ATTRIBUTES.items():
        assert {getattr(group, name) for group in groups} == set(values)


def test_chance_depends_on_every_part_of_its_address() -> None:
    addresses = [Chance(0, "a", 0), Chance(1, "a", 0), Chance(0, "b", 0), Chance(0, "a", 1), Chance(0, "a", 0, 1)]
    rolls = [tuple(address.generator().random(4)) for address in addresses]
    assert len(set(rolls)) == len(addresses)
    # Neighbouring indices must not be shifted copies of one another.
    long = [set(Chance(0, "a", i).generator().random(1000).tolist()) for i in range(4)]
    assert len(set.union(*long)) == 4000


def test_dice_are_fair() -> None:
    dice = Dice(Chance(0, "fair", 0))
    picks = [dice.pick("abcd") for _ in range(4000)]
    assert all(850 < picks.count(letter) < 1150 for letter in "abcd")
    assert sorted(dice.shuffled(range(9))) == list(range(9))
    assert 0.2 < np.mean([dice.flip(0.3) for _ in range(1000)]) < 0.4


@settings(max_examples=50)
@given(st.integers(200, 1_000_000))
def test_splits_part_whole_families_and_cover_the_world(items: int) -> None:
    world = World(items)
    parts = [world.scenes(split) for split in SPLITS]
    assert sum(map(len, parts)) == world.num_scenes
    assert sorted((part.start, part.stop) for part in parts)[0][0] == 0
    assert all(part.start % FAMILY == 0 and len(part) % FAMILY == 0 and len(part) > 0 for part in parts)
    assert not set(parts[0][:50]) & set(parts[2][:50])
    assert items - 12 < world.num_items <= items
    assert len(parts[0]) > len(parts[1]) and len(parts[2]) <= 2000


def test_default_world_has_the_documented_split() -> None:
    assert [len(World(12_000).scenes(split)) for split in SPLITS] == [2880, 320, 800]
    assert [len(World(1_000_000).scenes(split)) for split in SPLITS] == [330_532, 800, 2000]


def test_large_worlds_share_test_and_val() -> None:
    small, large = World(100_000, seed=1), World(1_000_000, seed=1)
    assert small.scenes("test") == large.scenes("test") and small.scenes("val") == large.scenes("val")
    assert small.items("test")[17] == large.items("test")[17]


@pytest.mark.parametrize(("items", "seed"), [(199, 0), (1_000_001, 0), (300, -1)])
def test_impossible_worlds_are_refused(items: int, seed: int) -> None:
    with pytest.raises(SiglumError, match=r"world"):
        World(items, seed)


def test_items_come_in_threes_with_different_views_and_words() -> None:
    items = WORLD.items("val")
    assert len(items) == 3 * len(WORLD.scenes("val"))
    picture, text, both = items[0], items[1], items[2]
    assert [item.modality for item in (picture, text, both)] == [Modality.IMAGE, Modality.TEXT, Modality.IMAGE_TEXT]
    assert [item.id.split("-")[1] for item in (picture, text, both)] == ["i", "t", "it"]
    assert isinstance(picture.image, SceneDrawing) and isinstance(both.image, SceneDrawing)
    assert picture.image.scene == both.image.scene
    assert not np.array_equal(picture.image.pixels(24), both.image.pixels(24))
    assert sum(items[i + 1].text != items[i + 2].text for i in range(0, 90, 3)) > 25
    assert len({item.id for split in SPLITS for item in WORLD.items(split)}) == WORLD.num_items
    assert WORLD.item(both.id) == both


@pytest.mark.parametrize("item_id", ["s9999999-i", "s0000001-x", "nonsense", "s-i", "", "x0000001-i", "1-i"])
def test_unknown_ids_are_refused(item_id: str) -> None:
    with pytest.raises(SiglumError, match="no item"):
        WORLD.item(item_id)


@pytest.mark.parametrize("task", TASKS)
def test_queries_have_the_parts_and_the_target_of_their_task(task: str) -> None:
    queries, pool = WORLD.queries("test", task), WORLD.pool("test", task)
    assert len(queries) == len(pool) == len(WORLD.scenes("test"))
    given_parts = task.split("2")[0]
    for query, wanted in zip(queries[:20], pool[:20], strict=True):
        assert (query.image is not None) == ("i" in given_parts) and (query.text is not None) == ("t" in given_parts)
        assert query.positives == (wanted,) and query.task == task and query.instruction
        assert WORLD.item(wanted).modality == target(task)
    assert len(set(pool)) == len(pool) and set(pool) <= {item.id for item in WORLD.items("test")}


@pytest.mark.parametrize("task", ["it2i", "it2t", "it2it"])
def test_composed_queries_show_the_base_of_the_family(task: str) -> None:
    for number, query in zip(WORLD.scenes("test"), WORLD.queries("test", task), strict=True):
        assert isinstance(query.image, SceneDrawing)
        family = sample_family(WORLD.seed, number // FAMILY)
        assert query.image.scene == family.base != WORLD.scene(number)


def test_a_query_is_never_the_stored_item() -> None:
    words = [(q.text, WORLD.item(q.positives[0]).text) for q in WORLD.queries("test", "t2t")]
    assert np.mean([query == item for query, item in words]) < 0.05
    query, item = WORLD.queries("test", "i2i")[0], WORLD.items("test")[0]
    assert isinstance(query.image, SceneDrawing) and isinstance(item.image, SceneDrawing)
    assert query.image.scene == item.image.scene and query.image.view != item.image.view


def test_variants_differ_and_start_with_the_single_one() -> None:
    once, thrice = WORLD.queries("train", "t2i"), WORLD.queries("train", "t2i", variants=3)
    assert len(thrice) == 3 * len(once)
    assert thrice[3] == once[1] and len({query.id for query in thrice[:9]}) == 9
    assert len({query.text for query in thrice[:3]}) == 3


def test_unknown_names_are_refused_by_naming_the_choices() -> None:
    with pytest.raises(SiglumError, match="train, val, test"):
        WORLD.items("dev")
    with pytest.raises(SiglumError, match="t2it"):
        WORLD.queries("test", "i2x")
    with pytest.raises(SiglumError, match="at least 1"):
        WORLD.queries("test", "t2i", variants=0)


def test_labels_name_every_task() -> None:
    assert list(TASK_LABELS)[: len(TASKS)] == list(TASKS)
    assert TASK_LABELS["it2it"] == "(i,t)→(i,t)"


def test_lazy_behaves_like_a_list() -> None:
    lazy: Lazy[int] = Lazy(5, lambda i: i * 10)
    assert list(lazy) == [0, 10, 20, 30, 40] and lazy[-1] == 40 and lazy[3:] == [30, 40] and lazy[::-2] == [40, 20, 0]
    assert 20 in lazy and lazy.index(30) == 3
    for index in (5, -6):
        with pytest.raises(IndexError):
            lazy[index]


def test_another_process_makes_the_same_world() -> None:
    code = (
        "from siglum.lab.world.collection import World; w = World(1200, seed=5); "
        "print(repr(w.items('train')[4]) + repr(w.queries('train', 'it2t')[7]))"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert other == repr(WORLD.items("train")[4]) + repr(WORLD.queries("train", "it2t")[7])


def test_seeds_make_different_worlds() -> None:
    def first(seed: int) -> Item:
        return World(300, seed).items("train")[1]

    assert first(0).id == first(1).id and first(0).text != first(1).text
