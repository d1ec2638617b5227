"""Catalogues of products: what is read, what is asked, and what every query keeps to."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from random import Random
from typing import Any

import pytest

from catalogue_files import make_catalogue
from siglum.data.catalogue import Catalogue, CatalogueSource, read_catalogue
from siglum.data.catalogue_tasks import MOST_CHANGES, Product, ask, gallery_of
from siglum.data.catalogue_words import ATTRIBUTE_FORMS, CHANGES, INSTRUCTIONS, attribute_words
from siglum.data.collection import SPLITS as ALL_SPLITS
from siglum.data.corpus import check_positives
from siglum.data.tasks import TASKS
from siglum.types import SiglumError


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Catalogue:
    return read_catalogue(make_catalogue(tmp_path_factory.mktemp("catalogue") / "data"))


def products(numbers: int, colours: tuple[str, ...] = ("Red", "Blue", "Multi"), split: str = "test") -> list[Product]:
    """Return groups of differently many products, some of one name."""
    found = []
    for group in range(numbers):
        for place in range(3 * group + 2):
            colour = colours[place % len(colours)]
            name = f"name {group} {colour} {place % 4}"
            fields = {"name": name, "group": f"g{group}", "type": "Shirts", "colour": colour, "split": split}
            found.append(Product(id=f"{group}-{place}", picture="x.png", text_id=f"t:{name}", gender="Men", **fields))
    return found


def rewrite(folder: Path, **changes: Any) -> Path:
    """Change the last product of a catalogue."""
    lines = (folder / "products.jsonl").read_text().splitlines()
    lines[-1] = json.dumps({name: value for name, value in (json.loads(lines[-1]) | changes).items() if value != "-"})
    (folder / "products.jsonl").write_text("\n".join(lines))
    return folder


def test_a_product_gives_a_photograph_a_pair_and_a_name_gives_one_text(drawn: Catalogue) -> None:
    collection = drawn.collection
    kinds = Counter(item.modality.short for item in collection.items)
    names = {product.name for product in drawn.products}
    assert kinds == {"i": len(drawn.products), "it": len(drawn.products), "t": len(names)}
    texts = {item.id: item.text for item in collection.items}
    for product in drawn.products:
        assert texts[product.text_id] == texts[product.pair_id] == product.name
    assert set(collection.queries) == set(ALL_SPLITS) and collection.shared
    assert len({item.id for item in collection.items}) == len(collection.items)
    every = [query.id for queries in collection.queries.values() for query in queries]
    assert len(set(every)) == len(every)


def test_every_task_asks_for_its_kind_in_the_pool_of_its_split(drawn: Catalogue) -> None:
    collection = drawn.collection
    kind_of = {item.id: item.modality.short for item in collection.items}
    split_of = {name: p.split for p in drawn.products for name in (p.image_id, p.text_id, p.pair_id)}
    for split, queries in collection.queries.items():
        check_positives(queries, kind_of)
        assert {query.task for query in queries} == set(TASKS)
        for query in queries:
            given, wanted = query.task.split("2")
            assert (query.image is not None) == ("i" in given) and (query.text is not None) == ("t" in given)
            assert query.instruction in INSTRUCTIONS[query.task]
            assert query.positives and len(set(query.positives)) == len(query.positives)
            assert {kind_of[item] for item in query.positives} == {wanted}
            assert {split_of[item] for item in query.positives} == {split}
            if split != "train":
                pool = collection.pools[split, query.task]
                assert set(query.positives) <= set(pool) and {split_of[item] for item in pool} == {split}


def test_no_query_of_a_photograph_finds_itself(drawn: Catalogue) -> None:
    by_id = {product.id: product for product in drawn.products}
    for split, queries in drawn.collection.queries.items():
        for query in queries:
            if query.task != "i2t" and query.image is not None:
                own = by_id[query.id.split(":")[1]]
                assert not {own.image_id, own.pair_id} & set(query.positives)
                if split != "train":
                    assert not {own.image_id, own.pair_id} & set(drawn.collection.pools[split, query.task])


def test_composed_queries_ask_for_another_name_in_a_colour_one_can_name(drawn: Catalogue) -> None:
    by_id = {f"{kind}:{product.id}": product for product in drawn.products for kind in ("i", "t", "it")}
    number: Counter[tuple[str, str]] = Counter()
    for queries in drawn.collection.queries.values():
        for query in (query for query in queries if query.task.startswith("it2")):
            own, colour = by_id[f"i:{query.id.split(':')[1]}"], query.id.split(":")[2]
            number[query.task, own.group] += 1
            assert colour.lower() not in ("na", "multi", own.colour.lower())
            for item in query.positives:
                answer = by_id[item]
                assert (answer.group, answer.colour) == (own.group, colour) and answer.name != own.name
    assert 0 < max(number.values()) <= MOST_CHANGES
    assert {task for task, _ in number} == {"it2i", "it2t", "it2it"}


def test_queries_have_all_their_positives(drawn: Catalogue) -> None:
    """Read the positives off the products anew, by other means."""
    split = "test"
    found = {query.id: query for query in drawn.collection.queries[split]}
    gallery = gallery_of(drawn.of_split(split), split, drawn.seed)
    for query in found.values():
        if query.task == "t2i":
            wanted = {one.image_id for one in gallery if one.name == query.text}
        elif query.task in ("i2i", "i2t"):
            own = next(one for one in drawn.products if one.id == query.id.split(":")[1])
            alike = {one.image_id for one in gallery if one.name == own.name}
            wanted = alike if query.task == "i2i" else {own.text_id}
        elif query.task == "it2i":
            own = next(one for one in drawn.products if one.id == query.id.split(":")[1])
            colour = query.id.split(":")[2]
            wanted = {
                one.image_id
                for one in gallery
                if one.group == own.group and one.colour == colour and one.name != own.name
            }
        else:
            continue
        assert set(query.positives) == wanted, query.id
    described = {name: query for name, query in found.items() if query.task == "t2t"}
    for query in described.values():
        answers = [one for one in drawn.of_split(split) if one.text_id in query.positives]
        key = {(one.type, one.colour) for one in answers}
        assert len(key) == 1
        same = [one for one in drawn.of_split(split) if (one.type, one.colour) in key]
        left = {one.text_id for one in same} - set(query.positives)
        asked = query.id.split("-")[1:]
        for one in same:  # what is left out lacks a gender or a use that was asked for
            if one.text_id in left:
                assert not {one.gender, one.usage} >= set(asked) & {"Men", "Women", "Sports"}


def test_half_of_a_group_asks_and_the_other_half_is_found() -> None:
    some = products(6)
    for seed in range(5):
        gallery = {one.id for one in gallery_of(some, "test", seed)}
        by_name: dict[str, list[str]] = defaultdict(list)
        for one in some:
            by_name[one.text_id].append(one.id)
        for own in by_name.values():
            if len(own) > 1:
                assert len(gallery & set(own)) == len(own) - len(own) // 2
        assert 0.5 <= len(gallery) / len(some) < 0.8
    assert [one.id for one in gallery_of(some, "train", 0)] == [one.id for one in some]


def test_a_group_asks_no_more_than_it_may() -> None:
    asked = ask(products(14, ("Red", "Blue", "Green", "Gold", "Multi")), "test", 0)
    by_group = Counter(one.cluster for one in asked if one.task == "it2t")
    assert max(by_group.values()) == MOST_CHANGES
    trios = [[(one.text, one.picture) for one in asked if one.task == task] for task in ("it2i", "it2t", "it2it")]
    assert trios[0] == trios[1] == trios[2]


def test_words_come_from_the_seed_alone_and_differ() -> None:
    some = products(12)
    first, again, other = (ask(some, "test", seed) for seed in (0, 0, 1))
    assert first == again != other
    turned = {one.id: one for one in ask(some[::-1], "test", 0)}
    words = {one.id: one.instruction for one in first if one.task in ("t2i", "i2t")}
    assert all(turned[name].instruction == text for name, text in words.items() if name in turned)
    changes = {one.text for one in first if one.task == "it2i"}
    assert len(changes) > len(CHANGES)


def test_descriptions_name_what_is_asked_and_nothing_empty() -> None:
    for roll in range(40):
        words = attribute_words("Women", "Sarees", "Teal", "Ethnic", Random(roll))
        assert "teal" in words and "sarees" in words and ("women" in words or "ladies" in words)
        assert "ethnic" in words or "traditional" in words
        plain = attribute_words("", "Sarees", "Teal", "", Random(roll))
        assert "for" not in plain.split() and "  " not in plain and "'" not in plain
    assert len(ATTRIBUTE_FORMS) > 2


def test_the_source_finds_items_and_queries_again(drawn: Catalogue) -> None:
    facts = {"path": str(drawn.folder), "seed": 0}
    one = drawn.products[3]
    found = CatalogueSource.items(facts, [one.pair_id, "it:none"])
    assert list(found) == [one.pair_id] and found[one.pair_id].text == one.name
    assert list(CatalogueSource.queries(facts, "val", "", [])) == list(drawn.collection.queries["val"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "line 100: name is '', but a product needs id, picture, name, group, type, colour, split"),
        ({"colour": "-"}, "line 100: colour is None"),
        ({"id": 7}, "line 100: id is 7"),
        ({"id": "a b"}, "the id 'a b' holds white space"),
        ({"id": "00"}, "the id '00' stands there before"),
        ({"split": "dev"}, "split is 'dev', but must be one of: train, val, test"),
        ({"group": "g0"}, "the group 'g0' stands in split train too"),
        ({"name": "Maker0 Men Red Model0 Tshirts"}, "the name 'Maker0 Men Red Model0 Tshirts' stands in split train"),
    ],
)
def test_faults_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = rewrite(make_catalogue(tmp_path / "data"), **changes)
    with pytest.raises(SiglumError, match=message):
        read_catalogue(folder)


def test_a_folder_without_products_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SiglumError, match=r"has no products\.jsonl"):
        read_catalogue(tmp_path)
    (tmp_path / "products.jsonl").write_text("\n")
    with pytest.raises(SiglumError, match="lists no products"):
        read_catalogue(tmp_path)
