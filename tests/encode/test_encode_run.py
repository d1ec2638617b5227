"""Encoding a collection: streamed, in shards, resumable, by one process or several, nothing encoded twice."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from siglum.data.collection import Collection
from siglum.data.vectors import load_vectors
from siglum.encode import run as encode_run
from siglum.encode.base import Encoder, PairEncoder
from siglum.encode.run import encode_collection, encode_rows, encode_shard, encode_some
from siglum.files import read_json, read_tensors
from siglum.log import Tick, reporting
from siglum.types import Item, Query, SiglumError


class Counting:
    """Features that tell what they were made from, and a list of all that was encoded."""

    name, image_dim, text_dim, picture_size, framing, joint = "counting", 3, 2, 4, "whole", False

    def __init__(self, stop_after: int | None = None, mark: str = "a") -> None:
        self.seen: list[str] = []
        self.stop_after, self.mark = stop_after, mark

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        if self.stop_after is not None and len(self.seen) + len(texts) > self.stop_after:
            raise KeyboardInterrupt
        self.seen += texts
        return np.array([[len(text), 1 + int(text.split()[-1])] for text in texts], np.float32)

    def encode_images(self, pictures: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
        return np.array([picture[0, 0] for picture in pictures], np.float32)

    def fingerprint(self) -> str:
        return self.mark


class Pairs(Counting):
    """One vector for both parts."""

    image_dim = text_dim = 3

    def encode_pairs(self, texts: Sequence[str | None], pictures: Sequence[np.ndarray | None]) -> np.ndarray:
        assert all(text is not None or picture is not None for text, picture in zip(texts, pictures, strict=True))
        return np.array(
            [[len(t or ""), 0 if p is None else p[0, 0, 0], 7] for t, p in zip(texts, pictures, strict=True)],
            np.float32,
        )


def grey(value: int) -> np.ndarray:
    return np.full((4, 4, 3), value, np.uint8)


def collection(items: int = 50, queries: int = 30) -> Collection:
    """Return items of all three modalities and queries for them."""
    rows = [
        Item(id=f"x{i}", text=f"item {i}" if i % 3 else None, image=grey(1 + i) if i % 3 != 1 else None)
        for i in range(items)
    ]
    asked = {
        split: [Query(id=f"{split}{i}", text=f"ask {split} {i}", positives=(f"x{i}",)) for i in range(queries)]
        for split in ("train", "val")
    }
    return Collection(rows, asked, {("val", ""): [f"x{i}" for i in range(items)]})


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode_run, "SHARD", 8)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def everything(data: Collection) -> list[str]:
    return sorted(
        [item.text for item in data.items if item.text]
        + [query.text for queries in data.queries.values() for query in queries if query.text]
    )


def test_rows_get_what_their_parts_give(tmp_path: Path) -> None:
    data = collection()
    found = encode_collection(data, Counting(), tmp_path, identity="one", workers=3)
    items = found.vectors.items
    assert list(items.ids) == [item.id for item in data.items]
    for row, item in enumerate(data.items):
        assert items.image[row].tolist() == ([1 + row] * 3 if item.image is not None else [0] * 3)
        assert items.text[row].tolist() == ([len(item.text), 1 + row] if item.text else [0, 0])
    assert found.vectors.pair_item.tolist() == list(range(30))
    assert [len(task.query_rows) for task in found.vectors.tasks] == [30]
    record = read_json(tmp_path / "stage.json")
    assert (record["encoder"], record["encoder_fingerprint"], record["skipped"]) == ("counting", "a", 0)
    one = encode_collection(data, Counting(), tmp_path / "one", identity="one", workers=1)
    assert one.fingerprint == found.fingerprint


@pytest.mark.parametrize("stop_after", [0, 5, 40, 80])
def test_a_killed_run_goes_on_without_encoding_anything_twice(tmp_path: Path, stop_after: int) -> None:
    data, first, second = collection(), Counting(stop_after), Counting()
    with pytest.raises(KeyboardInterrupt):
        encode_collection(data, first, tmp_path / "killed", identity="one", workers=2)
    assert not (tmp_path / "killed" / "stage.json").exists()
    encode_collection(data, second, tmp_path / "killed", identity="one", resume=True)
    assert sorted(first.seen + second.seen) == everything(data)
    encode_collection(data, Counting(), tmp_path / "whole", identity="one")
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    assert not (tmp_path / "killed" / "checkpoint").exists()


def test_resuming_a_finished_run_encodes_nothing(tmp_path: Path) -> None:
    first = encode_collection(collection(), Counting(), tmp_path, identity="one")
    again = Counting(stop_after=0)
    found = encode_collection(collection(), again, tmp_path, identity="one", resume=True)
    assert (found.fingerprint, found.skipped, again.seen) == (first.fingerprint, 0, [])
    assert encode_shard(collection(), again, tmp_path, identity="one", shard=(1, 2)) == 0
    anew = Counting()
    encode_collection(collection(), anew, tmp_path, identity="two", resume=True)
    assert sorted(anew.seen) == everything(collection())


def test_shards_share_the_work_and_are_joined(tmp_path: Path) -> None:
    data, parts = collection(), [Counting() for _ in range(3)]
    done = [
        encode_shard(data, part, tmp_path / "parts", identity="one", shard=(number, 3))
        for number, part in enumerate(parts, 1)
    ]
    assert sum(done) == 50 + 60 and min(done) > 20
    assert not (tmp_path / "parts" / "stage.json").exists()
    assert encode_shard(data, parts[1], tmp_path / "parts", identity="one", shard=(2, 3)) == 0
    last = Counting(stop_after=0)
    encode_collection(data, last, tmp_path / "parts", identity="one", resume=True)
    assert sorted(text for part in parts for text in part.seen) == everything(data)
    encode_collection(data, Counting(), tmp_path / "whole", identity="one")
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


def test_a_missing_shard_is_encoded_when_joining(tmp_path: Path) -> None:
    data, half, rest = collection(), Counting(), Counting()
    encode_shard(data, half, tmp_path, identity="one", shard=(2, 2))
    encode_collection(data, rest, tmp_path, identity="one", resume=True)
    assert sorted(half.seen + rest.seen) == everything(data)
    assert half.seen and rest.seen


def test_shards_at_the_same_time_leave_each_other_alone(tmp_path: Path) -> None:
    data, parts, barrier, errors = collection(), [Counting() for _ in range(4)], threading.Barrier(4), []

    def work(number: int) -> None:
        try:
            barrier.wait(timeout=60)
            encode_shard(data, parts[number], tmp_path, identity="one", shard=(number + 1, 4))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    last = Counting(stop_after=0)
    found = encode_collection(data, last, tmp_path, identity="one", resume=True)
    assert len(found.vectors.items) == 50
    assert sorted(text for part in parts for text in part.seen) == everything(data)


def test_shards_of_something_else_are_refused_and_kept(tmp_path: Path) -> None:
    data = collection()
    encode_shard(data, Counting(), tmp_path, identity="one", shard=(1, 2))
    before = contents(tmp_path / "checkpoint")
    for identity, encoder in (("two", Counting()), ("one", Counting(mark="b"))):
        with pytest.raises(SiglumError, match="another collection or encoder"):
            encode_shard(data, encoder, tmp_path, identity=identity, shard=(2, 2))
        with pytest.raises(SiglumError, match="another collection or encoder"):
            encode_collection(data, encoder, tmp_path, identity=identity, resume=True)
    assert contents(tmp_path / "checkpoint") == before
    encode_collection(data, Counting(), tmp_path, identity="two")
    assert load_vectors(tmp_path)[0].items.ids[0] == "x0"


@pytest.mark.parametrize("shard", [(0, 2), (3, 2), (1, 0)])
def test_a_shard_must_be_one_of_its_number(tmp_path: Path, shard: tuple[int, int]) -> None:
    with pytest.raises(SiglumError, match="i from 1 to n"):
        encode_shard(collection(), Counting(), tmp_path, identity="one", shard=shard)


def test_clearing_leaves_no_shard_without_its_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encode_shard(collection(), Counting(), tmp_path, identity="one", shard=(1, 1))
    unlink = Path.unlink

    def once(self: Path, missing_ok: bool = False) -> None:
        unlink(self, missing_ok)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "unlink", once)
    with pytest.raises(KeyboardInterrupt):
        encode_collection(collection(), Counting(), tmp_path, identity="two")
    assert (tmp_path / "checkpoint" / "identity.json").exists()


def test_unreadable_pictures_are_counted_over_all_shards(tmp_path: Path) -> None:
    data = collection()
    Image.fromarray(grey(9)).save(tmp_path / "good.png")
    (tmp_path / "bad.png").write_bytes(b"\x89PNG nothing")
    rows = list(data.items)
    rows[2], rows[20] = (replace(rows[i], image=tmp_path / "bad.png") for i in (2, 20))
    rows[21] = replace(rows[21], image=tmp_path / "good.png")
    data.items = rows
    asked = [*data.queries["train"], Query(id="seen", image=tmp_path / "gone.png", positives=("x3",))]
    data.queries["train"] = [asked[-1], *asked[:-1]]
    found = encode_collection(data, Counting(), tmp_path / "run", identity="one", workers=2)
    assert found.skipped == 3
    assert set(data_ids(data)) - set(found.vectors.items.ids) == {"x2", "x20"}
    # The queries x2 and x20 answer are there, without them; the unreadable query is not.
    assert "seen" not in found.vectors.queries.ids and len(found.vectors.queries) == 60
    pairs = {
        found.vectors.queries.ids[q]: found.vectors.items.ids[i]
        for q, i in zip(found.vectors.pair_query, found.vectors.pair_item, strict=True)
    }
    assert pairs == {f"train{i}": f"x{i}" for i in range(30) if i not in (2, 20)}
    task = found.vectors.tasks[0]
    assert len(task.pool_rows) == 48
    with pytest.raises(SiglumError, match=r"bad\.png"):
        encode_collection(data, Counting(), tmp_path / "strict", identity="one", strict=True, workers=2)
    encode_shard(data, Counting(), tmp_path / "strict", identity="one", shard=(1, 1))
    with pytest.raises(SiglumError, match=r"3 rows .* were skipped before"):
        encode_collection(data, Counting(), tmp_path / "strict", identity="one", strict=True, resume=True)


def data_ids(data: Collection) -> list[str]:
    return [item.id for item in data.items]


def test_a_pair_encoder_gives_both_parts_its_one_vector(tmp_path: Path) -> None:
    assert isinstance(Pairs(), PairEncoder) and not isinstance(Counting(), PairEncoder)
    assert isinstance(Counting(), Encoder)
    rows = [
        Item(id="both", text="words", image=grey(5)),
        Item(id="gone", text="words", image=tmp_path / "gone.png"),
        Item(id="text", text="word"),
        Item(id="image", image=grey(6)),
    ]
    found = encode_rows(rows, Pairs(), strict=False)
    assert list(found.ids) == ["both", "text", "image"]
    assert found.image.tolist() == [[5, 5, 7], [0, 0, 0], [0, 6, 7]]
    assert found.text.tolist() == [[5, 5, 7], [4, 0, 7], [0, 0, 0]]


def test_rows_are_encoded_in_pieces_of_bounded_size() -> None:
    class Largest(Counting):
        most = 0

        def encode_images(self, pictures: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
            self.most = max(self.most, len(pictures))
            return super().encode_images(pictures)

    encoder = Largest()
    found = encode_rows([Item(id=str(i), image=grey(i)) for i in range(1, 30)], encoder, strict=True, workers=2)
    assert found.image[:, 0].tolist() == list(range(1, 30))
    assert encoder.most == 8
    assert len(encode_rows([], encoder, strict=True)) == 0


def test_progress_counts_only_what_is_left(tmp_path: Path) -> None:
    ticks: list[Tick] = []
    left = 110 - encode_shard(collection(), Counting(), tmp_path, identity="one", shard=(1, 2))
    with reporting(ticks.append):
        encode_collection(collection(), Counting(), tmp_path, identity="one", resume=True)
    last = {tick.label: tick for tick in ticks}
    assert set(last) == {"encode items", "encode queries"}
    assert all(tick.unit == "row" and tick.done == tick.total for tick in last.values())
    assert sum(tick.total for tick in last.values()) == left


def test_shard_files_hold_half_precision_and_ids(tmp_path: Path) -> None:
    encode_shard(collection(), Counting(), tmp_path, identity="one", shard=(1, 1))
    arrays = read_tensors(tmp_path / "checkpoint" / "items-000000.safetensors")
    assert arrays["image"].dtype == arrays["text"].dtype == np.float16
    assert len(arrays["id_offsets"]) == 9


class Plain(Counting):
    """An encoder that knows no word with a fox in it."""

    image_dim = text_dim = 3

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        return np.array([[0.0 if "🦊" in text else len(text)] * 3 for text in texts], np.float32)


def test_texts_without_known_words_are_left_out_and_named(tmp_path: Path) -> None:
    rows = [
        Item(id="fox", text="🦊🦊"),
        Item(id="both", text="🦊", image=grey(5)),
        Item(id="words", text="a fox"),
        Item(id="black", image=grey(0)),
        Item(id="gone", text="a fox", image=tmp_path / "gone.png"),
    ]
    asked = [
        Query(id="q0", text="🦊", positives=("words",)),
        Query(id="q1", text="fox", positives=("words", "fox")),
        Query(id="q2", text="🦊", image=grey(7), positives=("both",)),
    ]
    data = Collection(rows, {"train": asked})
    found = encode_collection(data, Plain(), tmp_path / "run", identity="one", workers=2)
    items, queries = found.vectors.items, found.vectors.queries
    assert (list(items.ids), list(queries.ids)) == (["both", "words"], ["q1", "q2"])
    assert (items.has_text.tolist(), items.has_image.tolist()) == ([False, True], [True, False])
    assert (queries.has_text.tolist(), queries.has_image.tolist()) == ([True, False], [False, True])
    assert found.vectors.pair_item.tolist() == [1, 0]
    left = [(entry.kind, entry.id, entry.part) for entry in found.omitted]
    assert sorted(left) == [
        ("item", "black", "row"),
        ("item", "both", "text"),
        ("item", "fox", "row"),
        ("item", "gone", "row"),
        ("query", "q0", "row"),
        ("query", "q2", "text"),
    ]
    assert found.skipped == 4
    assert [e.why for e in found.omitted if e.id == "fox"] == [
        "the text '🦊🦊' has no words this encoder knows (counting); put it in other words."
    ]
    again = encode_collection(data, Plain(), tmp_path / "run", identity="one", resume=True)
    assert again.omitted == found.omitted and again.skipped == 4
    for row in (rows[0], rows[1], asked[0]):
        with pytest.raises(SiglumError, match=r"the text '🦊.*' has no words this encoder knows"):
            encode_rows([row], Plain(), strict=True)
    with pytest.raises(SiglumError, match="shows nothing this encoder can tell"):
        encode_rows([rows[3]], Plain(), strict=True)


def test_shards_remember_what_they_left_out(tmp_path: Path) -> None:
    rows = [Item(id=f"x{i}", text="🦊" if i % 5 == 0 else f"item {i}") for i in range(30)]
    data = Collection(rows, {"train": [Query(id="q", text="item", positives=("x1",))]})
    for number in (2, 1):
        encode_shard(data, Plain(), tmp_path / "parts", identity="one", shard=(number, 2))
    joined = encode_collection(data, Plain(), tmp_path / "parts", identity="one", resume=True)
    assert [entry.id for entry in joined.omitted] == ["x0", "x5", "x10", "x15", "x20", "x25"]
    encode_collection(data, Plain(), tmp_path / "whole", identity="one")
    assert contents(tmp_path / "parts") == contents(tmp_path / "whole")


def test_a_pair_without_a_feature_is_left_out() -> None:
    class Blind(Pairs):
        def encode_pairs(self, texts: Sequence[str | None], pictures: Sequence[np.ndarray | None]) -> np.ndarray:
            return np.array([[0.0 if text == "🦊" else 1.0] * 3 for text in texts], np.float32)

    rows = [Item(id="a", text="🦊", image=grey(3)), Item(id="b", text="fox", image=grey(3))]
    found, omitted = encode_some(rows, Blind(), strict=False)
    assert list(found.ids) == ["b"] and found.has_text.all() and found.has_image.all()
    assert {(entry.id, entry.part) for entry in omitted} == {("a", "row")}
