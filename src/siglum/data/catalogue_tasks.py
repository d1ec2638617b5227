"""What is asked about the products of one split: eight tasks, each query with all its positives and its cluster.

Where products are looked for (validation and test), those of a group are divided as in retrieval of clothes: some ask,
the others, the gallery, are found. A product that asks is no candidate, neither as a photograph nor with its name, so
that no query finds itself. In training every product does both, and is only no answer to itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TypeVar

from siglum.data.catalogue_words import PEOPLE, USES, attribute_words, change_words, instruction
from siglum.data.tasks import TASKS
from siglum.types import Query

NO_COLOURS = ("", "na", "multi")
"""Colours that nobody could ask for, in small letters."""
MOST_CHANGES = 20
"""Most composed queries of a task that a group asks."""
KEPT_GENDER, ASKED_USE = 0.75, 0.5
"""How often a description says whom a product is for, and its use where that is worth a word."""
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class Product:
    """One product; names that differ in case or white space alone share a text."""

    id: str
    picture: str
    name: str
    group: str
    type: str
    colour: str
    split: str
    gender: str = ""
    usage: str = ""
    text_id: str = ""
    """Id of the item that is its name."""

    @property
    def image_id(self) -> str:
        """Id of the item that is its photograph."""
        return f"i:{self.id}"

    @property
    def pair_id(self) -> str:
        """Id of the item that is photograph and name."""
        return f"it:{self.id}"

    @property
    def has_colour(self) -> bool:
        """Whether one could ask for its colour."""
        return self.colour.lower() not in NO_COLOURS


@dataclass(frozen=True, slots=True)
class CatalogueQuery:
    """One query before its picture is looked up."""

    id: str
    task: str
    cluster: str
    """What its query has in common with others: a group; intervals draw clusters."""
    instruction: str
    positives: tuple[str, ...]
    text: str | None = None
    picture: str | None = None

    def query(self, folder: Path) -> Query:
        """Return the query, its picture in this folder."""
        return Query(
            id=self.id,
            text=self.text,
            image=None if self.picture is None else folder / self.picture,
            instruction=self.instruction,
            task=self.task,
            positives=self.positives,
        )


def ask(products: Sequence[Product], split: str, seed: int) -> list[CatalogueQuery]:
    """Return all queries about the products of a split, task by task."""
    gallery = gallery_of(products, split, seed)
    found = {
        "t2i": _names(products, gallery, seed),
        "i2t": _pictures(products, seed),
        "i2i": _likenesses(products, gallery, split, seed),
        **_descriptions(products, gallery, split, seed),
        **_changes(products, gallery, split, seed),
    }
    return [one for task in TASKS for one in found[task]]


def gallery_of(products: Sequence[Product], split: str, seed: int) -> list[Product]:
    """Return the products that are found: all in training, elsewhere all but those that ask.

    Half the products of a name ask; so do half of a group's that have a name of their own.
    """
    if split == "train":
        return list(products)
    asking: set[str] = set()
    for group, members in grouped(products, lambda one: one.group).items():
        names = grouped(members, lambda one: one.text_id).values()
        alone = [own[0] for own in names if len(own) == 1]
        for place, some in enumerate([alone, *(own for own in names if len(own) > 1)]):
            asking |= {one.id for one in _dice(seed, "gallery", group, place).sample(some, len(some) // 2)}
    return [product for product in products if product.id not in asking]


def _names(products: Sequence[Product], gallery: Sequence[Product], seed: int) -> list[CatalogueQuery]:
    """Every name that the gallery shows asks for its photographs."""
    shown, first = grouped(gallery, lambda one: one.text_id), grouped(products, lambda one: one.text_id)
    return [
        CatalogueQuery(
            f"t2i:{name[2:]}",
            "t2i",
            own[0].group,
            instruction("t2i", _dice(seed, "t2i", name)),
            tuple(one.image_id for one in own),
            text=first[name][0].name,
        )
        for name, own in shown.items()
    ]


def _pictures(products: Sequence[Product], seed: int) -> list[CatalogueQuery]:
    """Every photograph asks for its name."""
    return [
        CatalogueQuery(
            f"i2t:{one.id}",
            "i2t",
            one.group,
            instruction("i2t", _dice(seed, "i2t", one.id)),
            (one.text_id,),
            picture=one.picture,
        )
        for one in products
    ]


def _likenesses(products: Sequence[Product], gallery: Sequence[Product], split: str, seed: int) -> list[CatalogueQuery]:
    """Every photograph that is not in the gallery asks for the others of its name."""
    found, shown = [], grouped(gallery, lambda one: one.text_id)
    for one in askers(products, gallery, split):
        others = tuple(other.image_id for other in shown.get(one.text_id, ()) if other.id != one.id)
        if others:
            told = instruction("i2i", _dice(seed, "i2i", one.id))
            found.append(CatalogueQuery(f"i2i:{one.id}", "i2i", one.group, told, others, picture=one.picture))
    return found


def _descriptions(
    products: Sequence[Product], gallery: Sequence[Product], split: str, seed: int
) -> dict[str, list[CatalogueQuery]]:
    """Attributes in varied words ask for names and for products that have all of them; a description is a cluster."""
    found: dict[str, list[CatalogueQuery]] = {"t2t": [], "t2it": []}
    places: dict[tuple[str, str], list[Product]] = grouped(products, lambda one: (one.type, one.colour))
    listed = {one.id for one in gallery}
    seen: set[tuple[str, ...]] = set()
    for key, members in sorted(grouped(products, lambda one: (one.gender, one.type, one.colour)).items()):
        if not members[0].has_colour:
            continue
        dice = _dice(seed, "description", *key)
        gender, use = _asked_attributes(members, dice)
        kind, colour = key[1:]
        if (gender, kind, colour, use) in seen:
            continue
        seen.add((gender, kind, colour, use))
        fitting = [one for one in places[kind, colour] if gender in ("", one.gender) and use in ("", one.usage)]
        words = attribute_words(gender, kind, colour, use, dice)
        positives = {
            "t2t": tuple(dict.fromkeys(one.text_id for one in fitting)),
            "t2it": tuple(one.pair_id for one in fitting if one.id in listed),
        }
        name = "-".join("_".join(part.split()) for part in (split, gender, kind, colour, use) if part)
        for task, own in positives.items():
            if own:
                told = instruction(task, _dice(seed, task, *key))
                found[task].append(CatalogueQuery(f"{task}:{name}", task, name, told, own, text=words))
    return found


def _asked_attributes(members: Sequence[Product], dice: Random) -> tuple[str, str]:
    """Return the gender and the use that a description of these products names, empty where it names none."""
    one = dice.choice(members)
    named, worth = dice.random() < KEPT_GENDER, dice.random() < ASKED_USE
    gender = one.gender if named and one.gender.lower() in PEOPLE else ""
    plain = one.usage.lower() not in USES or one.usage.lower() in one.type.lower()
    return gender, one.usage if worth and not plain else ""


def _changes(
    products: Sequence[Product], gallery: Sequence[Product], split: str, seed: int
) -> dict[str, list[CatalogueQuery]]:
    """A photograph and another colour of its group ask for products of that colour and another name."""
    found: dict[str, list[CatalogueQuery]] = {"it2i": [], "it2t": [], "it2it": []}
    asking = grouped(askers(products, gallery, split), lambda one: one.group)
    for group, members in grouped(gallery, lambda one: one.group).items():
        by_colour = grouped((one for one in members if one.has_colour), lambda one: one.colour)
        pairs = [
            (one, colour, answers)
            for one in asking.get(group, ())
            for colour, own in by_colour.items()
            if colour != one.colour and (answers := [other for other in own if other.text_id != one.text_id])
        ]
        chosen = _dice(seed, "changes", group).sample(range(len(pairs)), min(MOST_CHANGES, len(pairs)))
        for one, colour, answers in (pairs[place] for place in sorted(chosen)):
            name = f"{one.id}:{'_'.join(colour.split())}"
            words = change_words(colour, _dice(seed, "change", name))
            positives = {
                "it2i": (other.image_id for other in answers),
                "it2t": (other.text_id for other in answers),
                "it2it": (other.pair_id for other in answers),
            }
            for task, ids in positives.items():
                told, own = instruction(task, _dice(seed, task, name)), tuple(dict.fromkeys(ids))
                found[task].append(
                    CatalogueQuery(f"{task}:{name}", task, group, told, own, text=words, picture=one.picture)
                )
    return found


def askers(products: Sequence[Product], gallery: Sequence[Product], split: str) -> Iterator[Product]:
    """Yield the products that ask by their photographs: all in training, elsewhere those not in the gallery."""
    listed = set() if split == "train" else {one.id for one in gallery}
    return (one for one in products if one.id not in listed)


def grouped(members: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return members by key, both in the order they come."""
    found: dict[K, list[T]] = defaultdict(list)
    for one in members:
        found[key(one)].append(one)
    return dict(found)


def _dice(seed: int, *purpose: object) -> Random:
    return Random(" ".join(map(str, (seed, *purpose))))
