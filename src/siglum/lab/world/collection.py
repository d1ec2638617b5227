"""The drawn world: up to a million items of drawn scenes and captions, made on demand from a seed.

Every scene gives three items: a picture (`s0000012-i`), a text (`s0000012-t`) and a picture with a text
(`s0000012-it`). Nothing is stored; any item or query is made in constant time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Collection as Several
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar, overload

from siglum.data.collection import SPLITS, Chain, Collection
from siglum.data.source import SOURCES, Facts
from siglum.data.tasks import TASKS
from siglum.lab.world.draw import SceneDrawing
from siglum.lab.world.grammar import ITEM_DETAIL, QUERY_DETAIL, caption, edit_words, instruction
from siglum.lab.world.scene import FAMILY, Chance, Dice, Scene, sample_family
from siglum.types import Item, Modality, Query, SiglumError, one_of

LEAST_ITEMS, MOST_ITEMS = 200, 1_000_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lazy(Sequence[T], Generic[T]):
    """A sequence whose members are made when asked for.

    >>> list(Lazy(4, lambda i: i * i)[1:3])
    [1, 4]
    """

    length: int
    make: Callable[[int], T]

    def __len__(self) -> int:
        """Return the number of members."""
        return self.length

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        """Make one member, or a list of those in a slice."""
        if isinstance(index, slice):
            return [self.make(i) for i in range(*index.indices(self.length))]
        if not -self.length <= index < self.length:
            raise IndexError(f"index {index} is outside a sequence of {self.length}")
        return self.make(index % self.length)

    def __iter__(self) -> Iterator[T]:
        """Make the members in turn."""
        return (self.make(i) for i in range(self.length))


def target(task: str) -> Modality:
    """Return the modality a task asks for.

    >>> target("it2t").short
    't'
    """
    wanted = one_of("task", task, TASKS).split("2")[1]
    return Modality.of(has_image="i" in wanted, has_text="t" in wanted)


@dataclass(frozen=True, slots=True)
class World:
    """A world of at most `items` items: whole families of four scenes, three items a scene.

    Families are split, never scenes: a fifth of them is test, a twelfth or so val, the rest train. Test stops at 500
    families (2,000 scenes) and val at 200, so a large world has a large train split; val has at least nine families,
    if that is no more than a quarter. Families are numbered test first, so that worlds of one seed that reach both
    limits share test and val, and a larger one only adds to train.

    >>> [len(World(12_000, seed=0).items(split)) for split in SPLITS]
    [8640, 960, 2400]
    """

    num_items: int
    seed: int

    def __init__(self, items: int, seed: int = 0) -> None:
        """Lay out a world; nothing is made yet."""
        if not LEAST_ITEMS <= items <= MOST_ITEMS:
            raise SiglumError(f"a world has {LEAST_ITEMS:,} to {MOST_ITEMS:,} items, but {items:,} were asked for.")
        if not 0 <= seed < 2**63:
            raise SiglumError(f"the seed of a world is a number from 0 to 2**63 - 1, not {seed}.")
        object.__setattr__(self, "num_items", items // (3 * FAMILY) * 3 * FAMILY)
        object.__setattr__(self, "seed", seed)

    @property
    def num_scenes(self) -> int:
        """Number of scenes in all splits together."""
        return self.num_items // 3

    def scenes(self, split: str) -> range:
        """Return the numbers of a split's scenes."""
        families = self.num_scenes // FAMILY
        test = min(round(0.20 * families), 500)
        val = min(max(round(0.08 * families), 9), families // 4, 200)
        bounds = {"test": (0, test), "val": (test, test + val), "train": (test + val, families)}
        first, last = bounds[one_of("split", split, SPLITS)]
        return range(first * FAMILY, last * FAMILY)

    def scene(self, number: int) -> Scene:
        """Return scene `number` of the world."""
        return sample_family(self.seed, number // FAMILY).scenes[number % FAMILY]

    def items(self, split: str) -> Sequence[Item]:
        """Return the items of a split: picture, text, and both, scene by scene."""
        scenes = self.scenes(split)
        return Lazy(3 * len(scenes), lambda i: self._item(scenes[i // 3], Modality(i % 3)))

    def item(self, item_id: str) -> Item:
        """Return the item with this id."""
        number, _, short = item_id[1:].partition("-")
        modality = next((m for m in Modality if m.short == short), None)
        if modality is not None and number.isdigit() and int(number) < self.num_scenes:
            item = self._item(int(number), modality)
            if item.id == item_id:
                return item
        last = _item_id(self.num_scenes - 1, Modality.IMAGE_TEXT)
        raise SiglumError(f"{item_id!r} is no item of this world, whose ids run from s0000000-i to {last}.")

    def pool(self, split: str, task: str) -> Sequence[str]:
        """Return the ids of a task's own pool: the split's items of the modality it asks for."""
        scenes, modality = self.scenes(split), target(task)
        return Lazy(len(scenes), lambda i: _item_id(scenes[i], modality))

    def queries(self, split: str, task: str, variants: int = 1) -> Sequence[Query]:
        """Return `variants` queries a scene of one task, each with other words and another view."""
        scenes, modality = self.scenes(split), target(task)
        if variants < 1:
            raise SiglumError(f"variants is {variants}, but a scene needs at least 1 query.")
        return Lazy(len(scenes) * variants, lambda i: self._query(scenes[i // variants], task, modality, i % variants))

    def _item(self, number: int, modality: Modality) -> Item:
        scene, purpose = self.scene(number), f"item {modality.short}"
        drawing, text = None, None
        if modality != Modality.TEXT:
            drawing = SceneDrawing(scene, Chance(self.seed, f"{purpose} view", number))
        if modality != Modality.IMAGE:
            text = caption(scene, Dice(Chance(self.seed, f"{purpose} words", number)), ITEM_DETAIL)
        return Item(id=_item_id(number, modality), text=text, image=drawing)

    def _query(self, number: int, task: str, modality: Modality, variant: int) -> Query:
        dice = Dice(Chance(self.seed, f"{task} words", number, variant))
        given, wanted = task.split("2")[0], instruction(task, dice)
        scene, text = self.scene(number), None
        if given == "t":
            text = caption(scene, dice, QUERY_DETAIL)
        elif given == "it":
            family = sample_family(self.seed, number // FAMILY)
            scene, text = family.base, edit_words(family.edits[number % FAMILY], dice)
        view = Chance(self.seed, f"{task} view", number, variant)
        return Query(
            id=f"{task}-s{number:07d}-{variant}",
            text=text,
            image=SceneDrawing(scene, view) if "i" in given else None,
            instruction=wanted,
            task=task,
            positives=(_item_id(number, modality),),
        )


def _item_id(number: int, modality: Modality) -> str:
    return f"s{number:07d}-{modality.short}"


def world_collection(world: World, variants: int = 1) -> Collection:
    """Return the drawn world as a collection; `variants` wordings and redrawings of every training query."""
    items = Chain([world.items(split) for split in SPLITS])
    queries: dict[str, Sequence[Query]] = {}
    for split in SPLITS:
        number = variants if split == "train" else 1
        queries[split] = Chain([world.queries(split, task, number) for task in TASKS])
    pools = {(split, task): world.pool(split, task) for split in SPLITS[1:] for task in TASKS}
    return Collection(items, queries, pools)


@SOURCES.register("world")
class WorldSource:
    """The drawn world as a source: nothing is stored, any item or query is drawn again."""

    needs: Mapping[str, type] = {"items": int, "seed": int}

    @staticmethod
    def items(facts: Facts, ids: Several[str]) -> dict[str, Item]:
        """Draw items again; those added to an index later are not of the world."""
        world, known = World(facts["items"], facts["seed"]), {}
        for name in ids:
            with suppress(SiglumError):
                known[name] = world.item(name)
        return known

    @staticmethod
    def queries(facts: Facts, split: str, task: str, ids: Sequence[str]) -> Sequence[Query]:
        """Return all queries of a task, words and drawing."""
        return World(facts["items"], facts["seed"]).queries(split, task)
