"""Sequences are read, split and asked without a look ahead, and what files number does not matter."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from sequence_files import quick_config, write_world
from siglum.data.histories import fading, history_vectors
from siglum.data.sequence_files import read_sequences
from siglum.data.sequences import Sequences, split_events
from siglum.data.vectors import load_vectors, save_vectors
from siglum.recommend import fit
from siglum.types import SiglumError


def of(*lengths: int, items: int = 9, time: bool = False) -> Sequences:
    from siglum.types import Item

    rng = np.random.default_rng(0)
    rows = rng.integers(0, items, sum(lengths))
    offsets = np.append(0, np.cumsum(lengths))
    clock = np.concatenate([np.sort(rng.integers(0, 100, n)) for n in lengths]) if time else None
    return Sequences(
        [f"u{n}" for n in range(len(lengths))], [Item(id=f"x{n}") for n in range(items)], rows, offsets, clock
    )


def test_leaving_one_out_tells_each_event_once() -> None:
    sequences = of(5, 2, 3, 1)
    split = split_events(sequences)
    assert split.test.tolist() == [4, 9] and split.val.tolist() == [3, 8]
    assert split.train.tolist() == [1, 2, 6]  # user 1 has two items, which only teach
    assert split.learnt_E.tolist() == [True] * 3 + [False] * 2 + [True] * 2 + [True, False, False] + [True]
    history = sequences.histories(split.test, 3)
    assert history[0].tolist() == sequences.row_E[1:4].tolist()  # the validation item is its last
    assert history[1].tolist() == [*sequences.row_E[7:9].tolist(), -1]


def test_a_split_by_time_learns_nothing_of_later_times() -> None:
    sequences = of(*[8] * 30, time=True)
    split = split_events(sequences, "time")
    assert sequences.time_E is not None
    before = sequences.time_E[split.learnt_E].max()
    assert (sequences.time_E[split.val] > before).all() and (sequences.time_E[split.test] > before).all()
    assert sequences.time_E[split.test].min() >= sequences.time_E[split.val].max()
    users = sequences.user_E[split.test]
    assert len(np.unique(users)) == len(users)
    with pytest.raises(SiglumError, match="needs the times"):
        split_events(of(5), "time")
    with pytest.raises(SiglumError, match="must be one of: leave_one_out, time"):
        split_events(sequences, "random")


def test_items_that_training_never_sees_are_cold() -> None:
    sequences = of(6, 6, items=40)
    cold = split_events(sequences).cold_items(sequences)
    learnt = set(sequences.row_E[:4].tolist()) | set(sequences.row_E[6:10].tolist())
    assert set(np.flatnonzero(~cold).tolist()) == learnt
    gone = np.zeros(40, bool)
    gone[sequences.row_E[0]] = True
    fewer = sequences.without_items(gone)
    assert sequences.row_E[0] not in fewer.row_E and len(fewer.users) == 2


def test_training_pairs_are_prefixes_of_training(tmp_path: Path) -> None:
    sequences = read_sequences(write_world(tmp_path))
    split = split_events(sequences)
    assert sequences.features is not None
    vectors = history_vectors(sequences, split, sequences.features, length=3, fade=0.5)
    assert vectors.histories is not None and [task.split for task in vectors.tasks] == ["val", "test"]
    seen = {(user, count) for user, count in zip(sequences.user_E[split.train], range(len(split.train)), strict=True)}
    assert len(vectors.pair_query) == len(split.train) == len(seen)
    for row, target in zip(vectors.pair_query, vectors.pair_item, strict=True):
        user, _, count = vectors.queries.ids[row].rpartition(":")
        own = sequences.of_user(sequences.users.index(user)).tolist()
        assert int(count) <= len(own) - 3 and target == own[int(count)]
        history = own[max(0, int(count) - 3) : int(count)]
        assert vectors.histories.row_MH[row].tolist() == history + [-1] * (3 - len(history))
        weight = 0.5 ** np.arange(len(history))[::-1]
        mean = weight @ sequences.features.text[history] / weight.sum()
        np.testing.assert_allclose(vectors.queries.text[row], mean, atol=2e-3, rtol=1e-3)
    save_vectors(tmp_path / "stage", vectors, {})
    again, _ = load_vectors(tmp_path / "stage")
    assert again.histories is not None
    for name in ("row_MH", "user_M", "seen_M"):
        assert (getattr(again.histories, name) == getattr(vectors.histories, name)).all()


def test_older_items_fade() -> None:
    assert fading(np.array([[5, 6, 7], [5, -1, -1]]), 0.0).tolist() == [[0, 0, 1], [1, 0, 0]]


def test_results_do_not_depend_on_how_a_file_numbers_its_items(tmp_path: Path) -> None:
    found = []
    for name, shuffle in (("first", None), ("second", 3)):
        sequences = read_sequences(write_world(tmp_path / name, users=30, shuffle=shuffle))
        fitted = fit(sequences, config=quick_config())
        history = [item.id for item in sequences.items[:3]]
        hits = [(hit.item_id, hit.codes, hit.score) for hit in fitted.next(history, k=8)]
        found.append(([item.id for item in sequences.items], sequences.row_E.tolist(), hits))
    assert found[0] == found[1]
    other = read_sequences(tmp_path / "first", seed=1)
    assert [item.id for item in other.items] != found[0][0]
    assert sorted(item.id for item in other.items) == sorted(found[0][0])
    names = [item.id for item in other.items]
    assert names != sorted(names), "the order of the file would tell who came first"


def packed(path: Path, lines: list[str]) -> Path:
    with gzip.open(path, "wt") as file:
        file.write("\n".join(lines) + "\n")
    return path


def test_amazon_reviews_of_2014(tmp_path: Path) -> None:
    reviews = [
        {"reviewerID": f"U{user}", "asin": f"B{(user + place) % 4}", "overall": 5.0, "unixReviewTime": 9 - place}
        for user in range(4)
        for place in range(4)
    ]
    reviews += [{**reviews[0], "unixReviewTime": 99}, {"reviewerID": "lone", "asin": "B0", "unixReviewTime": 1}]
    packed(tmp_path / "reviews_Beauty_5.json.gz", [json.dumps(one) for one in reviews])
    meta = ["{'asin': 'B0', 'title': \"Cream\", 'brand': 'Own', 'categories': [['Beauty', 'Skin'], ['Other']]}"]
    packed(tmp_path / "meta_Beauty.json.gz", meta)
    found = read_sequences(tmp_path, core=3)
    assert found.users == ["U0", "U1", "U2", "U3"] and dict(found.notes) == {"users with too few reviews": 1}
    names = [item.id for item in found.items]
    assert [names[row] for row in found.of_user(0)] == ["B3", "B2", "B1", "B0"]  # by time, and each item once
    place = names.index("B0")
    assert found.items[place].text == "Cream" and found.texts[place] == "Cream; Brand: Own; Categories: Beauty > Skin"
    assert found.time_E is not None and found.texts[names.index("B1")] is None


def test_amazon_reviews_of_2023(tmp_path: Path) -> None:
    reviews = [
        {"rating": 5.0, "user_id": f"U{user}", "asin": "x", "parent_asin": f"P{place}", "timestamp": 10**12 + place}
        for user in range(3)
        for place in range(4)
    ]
    (tmp_path / "All_Beauty.jsonl").write_text("".join(json.dumps(one) + "\n" for one in reviews))
    about = {"parent_asin": "P1", "title": "Brush", "store": "Shop", "categories": ["Beauty"], "main_category": "All"}
    (tmp_path / "meta_All_Beauty.jsonl").write_text(json.dumps(about) + "\n")
    found = read_sequences(tmp_path / "All_Beauty.jsonl", core=3)
    names = [item.id for item in found.items]
    assert [names[row] for row in found.of_user(2)] == ["P0", "P1", "P2", "P3"]
    assert found.texts[names.index("P1")] == "Brush; Brand: Shop; Categories: Beauty"
    assert len(split_events(found, "leave_one_out").test) == 3


def test_movielens(tmp_path: Path) -> None:
    ratings = [f"{user}::{film}::5::{1000 + 7 * film}" for user in (1, 2) for film in (3, 1, 2)]
    (tmp_path / "ratings.dat").write_text("\n".join(ratings) + "\n")
    (tmp_path / "movies.dat").write_bytes("1::Ammé (1995)::Drama|War\n2::B::Comedy\n".encode("latin-1"))
    found = read_sequences(tmp_path, core=2)
    names = [item.id for item in found.items]
    assert [names[row] for row in found.of_user(0)] == ["1", "2", "3"]
    assert found.items[names.index("1")].text == "Ammé (1995)"
    assert found.texts[names.index("1")] == "Ammé (1995); Genres: Drama, War" and found.texts[names.index("3")] is None


def test_times_of_a_folder_are_read_and_put_events_in_order(tmp_path: Path) -> None:
    found = read_sequences(write_world(tmp_path, users=4, times=True))
    assert found.time_E is not None and (np.diff(found.time_E.reshape(4, -1), axis=1) > 0).all()
    assert len(split_events(found, "time").test) > 0


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("sequences.txt", "u1 1 2\nu1 3 4\n", "user 'u1' stands twice"),
        ("sequences.txt", "u1\n", "user 'u1' has no item"),
        ("sequences.txt", "u1 1 999\n", "names the item '999'"),
        ("items.jsonl", '{"title": "none"}\n', "line 1: an item needs an id"),
        ("items.jsonl", '{"id": 1}\n{"id": 1}\n', "has 1 ids twice"),
        ("times.txt", "u0 1 2\n", "needs 7 whole numbers for user 'u0'"),
    ],
)
def test_a_damaged_folder_is_refused_by_its_line(tmp_path: Path, name: str, content: str, words: str) -> None:
    write_world(tmp_path)
    (tmp_path / name).write_text(content)
    with pytest.raises(SiglumError, match=words):
        read_sequences(tmp_path)


def test_what_holds_no_sequences_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SiglumError, match="holds no sequences that can be read"):
        read_sequences(tmp_path)
    (tmp_path / "a.jsonl").write_text('{"user_id": 1}\n')
    with pytest.raises(SiglumError, match="line 1: a review needs reviewerID"):
        read_sequences(tmp_path)
    (tmp_path / "a.jsonl").write_text('{"user_id": "u", "parent_asin": "p", "timestamp": 3}\n')
    with pytest.raises(SiglumError, match="no user and item with 5 events each"):
        read_sequences(tmp_path)
    (tmp_path / "b.json").write_text("")
    with pytest.raises(SiglumError, match="holds 2 sequences"):
        read_sequences(tmp_path)
    write_world(tmp_path / "world")
    np.save(tmp_path / "world" / "text_features.npy", np.zeros((3, 4)))
    with pytest.raises(SiglumError, match=r"shape \(3, 4\), but must have a row for each of 64 items"):
        read_sequences(tmp_path / "world")
