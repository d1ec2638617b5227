"""What a search takes and gives: one or many texts, pictures and queries; hits with similarities; who is left out."""

from __future__ import annotations

import io
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import siglum
from siglum.config import SearchConfig
from siglum.encode.builtin import BuiltinEncoder
from siglum.lab.world.collection import World
from siglum.search.asked import SearchOptions
from siglum.search.hits import ROWS
from siglum.search.retriever import Retriever
from siglum.types import Item, Query, SiglumError


@pytest.fixture(scope="module")
def retriever(world_run: Path) -> Retriever:
    return Retriever.load(world_run)


@pytest.fixture
def changed(run_copy: Path) -> Retriever:
    """A retriever that a test may change."""
    return Retriever.load(run_copy)


@pytest.fixture
def pixels(world: World) -> np.ndarray:
    """A picture at the size at which the encoder takes it, so that every way to give it gives the same pixels."""
    image = next(item.image for item in world.items("test") if item.image is not None)
    found: np.ndarray = image.pixels(BuiltinEncoder().picture_size)  # type: ignore[union-attr]
    return found


def forms(pixels: np.ndarray, folder: Path) -> list[Any]:
    """Return a picture as a file, as bytes, as a PIL image and as pixels."""
    image, stream = Image.fromarray(pixels), io.BytesIO()
    image.save(folder / "picture.png")
    image.save(stream, "PNG")
    return [folder / "picture.png", stream.getvalue(), image, Image.open(folder / "picture.png"), pixels]


def ids(hits: list[siglum.Hit]) -> list[str]:
    return [hit.item_id for hit in hits]


def same(one: list[siglum.Hit], other: list[siglum.Hit]) -> bool:
    """Return whether hits are the same, scores to rounding: many queries are multiplied at once."""
    numbers = [[(hit.score, hit.similarity or 0.0) for hit in hits] for hits in (one, other)]
    plain = [[replace(hit, score=0, similarity=None) for hit in hits] for hits in (one, other)]
    return plain[0] == plain[1] and np.allclose(*numbers, atol=1e-3)


def test_a_list_gives_a_list_of_lists(retriever: Retriever, world: World) -> None:
    queries = [query for task in ("t2i", "i2i", "it2i") for query in list(world.queries("test", task))[:5]]
    found = retriever.search(queries, k=4)
    assert all(same(hits, retriever.search(query, k=4)) for hits, query in zip(found, queries, strict=True))
    assert same(found[0], retriever.search(queries[0].text, k=4, instruction=queries[0].instruction))
    texts = [query.text or "a star" for query in queries]
    for many in (texts, tuple(texts), np.array(texts), iter(texts)):
        assert [ids(hits) for hits in retriever.search(many, k=3)] == [ids(retriever.search(t, k=3)) for t in texts]  # type: ignore[call-overload]
    assert retriever.search(text=texts, k=4) == retriever.search(texts, k=4)
    assert retriever.search([]) == []


def test_many_queries_are_more_than_one_batch(retriever: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"{size} {colour} star" for size in ("big", "small") for colour in ("red", "blue", "green", "mint")]
    whole = retriever.search(texts, k=5)
    monkeypatch.setattr("siglum.search.models.SHARD", 3)
    monkeypatch.setattr("siglum.search.hits.ROWS", 4)
    assert [ids(hits) for hits in retriever.search(texts, k=5)] == [ids(hits) for hits in whole]


def test_a_picture_in_any_form(retriever: Retriever, pixels: np.ndarray, tmp_path: Path) -> None:
    pictures = forms(pixels, tmp_path)
    wanted = retriever.search(image=pixels, k=5)
    assert all(same(found, wanted) for found in retriever.search(pictures, k=5))
    assert all(retriever.search(picture, k=5) == wanted for picture in pictures)
    assert retriever.search(image=str(pictures[0]), k=5) == wanted, "beside a text a string is a path"
    assert all(same(found, wanted) for found in retriever.search(image=pictures, k=5))
    composed = retriever.search("make it red", pixels, k=5)
    assert composed != wanted
    many = retriever.search(["make it red"] * len(pictures), pictures, k=5)
    assert all(same(found, composed) for found in many)
    mixed = retriever.search(["make it red", "a star"], [pixels, None], k=5)
    assert same(mixed[0], composed) and same(mixed[1], retriever.search("a star", k=5))


def test_a_string_is_a_text_whatever_it_names(retriever: Retriever, pixels: np.ndarray, tmp_path: Path) -> None:
    path = forms(pixels, tmp_path)[0]
    assert retriever.search(str(path)) == retriever.search(text=str(path)) != retriever.search(path)


def test_an_instruction_of_a_query_comes_first(retriever: Retriever) -> None:
    own = Query(id="q", text="a star", instruction="Find a picture.")
    assert retriever.search(own, instruction="Find a text.") == retriever.search(own)
    assert retriever.search("a star", instruction="Find a picture.") == retriever.search(own)


def test_options_are_those_of_the_configuration(retriever: Retriever) -> None:
    assert list(SearchOptions.__annotations__) == [field.name for field in fields(SearchConfig)]
    own = dict.fromkeys(SearchOptions.__annotations__)
    assert retriever.search("a star", **own) == retriever.search("a star")  # type: ignore[call-overload]


def test_some_are_left_out(retriever: Retriever) -> None:
    whole = retriever.search("a red star", k=99, beam=99)
    best = ids(whole)[:3]
    found = retriever.search("a red star", k=99, beam=99, without=[*best, "nobody"])
    assert ids(found) == ids(whole)[3:] and found[0].rank == 1
    within = ids(whole)[:5]
    mask = np.isin(np.array(list(retriever.index.ids)), within)
    for chosen in (within, mask):
        assert set(ids(retriever.search("a red star", within=chosen, without=best))) == set(within[3:])
    assert retriever.search("a red star", within=best, without=best) == []
    features = siglum.features({"text": np.ones((1, len(retriever.tokenizer.fusion.text_shift)), np.float32)})
    first = ids(retriever.search_features(features)[0])[0]
    assert first not in ids(retriever.search_features(features, without=[first])[0])


def test_hits_below_a_score_are_left_out(retriever: Retriever) -> None:
    whole = retriever.search("a red star", k=10)
    assert retriever.search("a red star", k=10, min_score=whole[3].score) == whole[:4]
    assert retriever.search("a red star", k=10, min_score=whole[0].score + 1) == []
    assert retriever.search(["a red star"], k=10, min_score=-np.inf) == [whole]


def test_the_item_of_the_query_is_left_out_on_request(retriever: Retriever) -> None:
    whole = retriever.search("a red star", k=6)
    own = Query(id=whole[1].item_id, text="a red star")
    assert retriever.search(own, k=5) == whole[:5]
    found = retriever.search([own, "a red star"], k=5, exclude_self=True)
    assert ids(found[0]) == [name for name in ids(whole) if name != own.id]
    assert [hit.rank for hit in found[0]] == [1, 2, 3, 4, 5]
    assert same(found[1], whole[:5])


def test_similarity_is_the_geometry_of_the_codes(retriever: Retriever) -> None:
    for scorer in ("geometry", "fused"):
        hits = retriever.search("a red star", k=40, beam=99, scorer=scorer)
        near = np.array([hit.similarity for hit in hits])
        query, item = retriever.encode_queries("a red star"), retriever.reconstruct(ids(hits))
        assert near == pytest.approx(1 - np.square(query - item).sum(1) / 4, abs=1e-6)
        assert 0 <= near.min() < near.max() <= 1
        if scorer == "geometry":
            assert (np.diff(near) <= 1e-6).all(), "geometry ranks by it"
    unit = item / np.linalg.norm(item, axis=1, keepdims=True)
    assert 1 - np.square(query - unit).sum(1) / 4 == pytest.approx((1 + unit @ query) / 2, abs=1e-6)


def test_similarity_is_that_of_kept_vectors_where_there_are_some(retriever: Retriever, world: World) -> None:
    items = [item for item in world.items("test") if item.id in retriever.index.ids]
    vectors = retriever.encode_items([*items])
    names = [item.id for item in items]
    order = np.argsort(retriever.index.ids.locate(names))
    kept = Retriever(
        retriever.tokenizer,
        retriever.index,
        encoder="builtin",
        config=SearchConfig(scorer="geometry"),
        item_ND=torch.from_numpy(vectors[order]),
    )
    hits, rows = kept.search("a red star"), dict(zip(names, vectors, strict=True))
    cosine = np.array([rows[hit.item_id] @ kept.encode_queries("a red star") for hit in hits])
    assert [hit.similarity for hit in hits] == pytest.approx((1 + cosine) / 2, abs=1e-6)


def test_queries_and_items_as_vectors(retriever: Retriever, pixels: np.ndarray, world: World) -> None:
    dim = retriever.tokenizer.quantizer.dim
    for encode in (retriever.encode_queries, retriever.encode_items):
        many = encode(["a red star", pixels, "a blue ring"])  # type: ignore[operator]
        assert many.shape == (3, dim) and many.dtype == np.float32
        assert np.linalg.norm(many, axis=1) == pytest.approx(1, abs=1e-5)
        assert encode("a red star") == pytest.approx(many[0], abs=1e-6)  # type: ignore[operator]
        assert encode([]).shape == (0, dim)  # type: ignore[operator]
    items = list(world.items("test"))[:4]
    same = [Item(id="same", text=item.text, image=item.image) for item in items]
    assert (retriever.encode_items(items) == retriever.encode_items(same)).all(), "ids may repeat"
    rankings = retriever.rank(retriever.encode_queries(["a red star", "a blue ring"]), k=3)
    hits = retriever.search(["a red star", "a blue ring"], k=3)
    for ranking, found in zip(rankings, hits, strict=True):
        assert [retriever.index.ids[int(place)] for place in ranking.position] == ids(found)


def test_reconstructions_are_sums_of_codewords(retriever: Retriever, monkeypatch: pytest.MonkeyPatch) -> None:
    names = list(retriever.index.ids)[:9]
    codes, books = retriever.index.codes_of(names), retriever.tokenizer.codebooks()
    wanted = sum(book[torch.from_numpy(codes[:, level]).long()] for level, book in enumerate(books))
    assert retriever.reconstruct(names) == pytest.approx(wanted.numpy(), abs=1e-6)  # type: ignore[union-attr]
    assert ROWS > 9
    monkeypatch.setattr("siglum.search.hits.ROWS", 4)
    assert retriever.reconstruct(names).shape == (9, retriever.tokenizer.quantizer.dim)
    assert retriever.reconstruct([]).shape == (0, retriever.tokenizer.quantizer.dim)


def test_upsert_adds_and_replaces(changed: Retriever, run_copy: Path) -> None:
    size, old = len(changed), changed.index.ids[0]
    codes = changed.index.codes_of([old]).tolist()
    changed.upsert([Item(id=old, text="three green hearts"), Item(id="new", text="a blue ring")])
    assert len(changed) == size + 1 and len(changed.index.ids) == size + 1
    assert changed.index.codes_of([old]).tolist() != codes
    assert changed.index.codes_of([old]).tolist() != changed.index.codes_of(["new"]).tolist()
    before = changed.index
    with pytest.raises(SiglumError, match="stands twice"):
        changed.upsert([Item(id="other", text="a"), Item(id="other", text="b")])
    with pytest.raises(SiglumError, match="neither"):
        changed.upsert([Item(id=old, text="a star"), Item(id="none")])
    assert changed.index is before
    changed.save(run_copy)
    assert list(Retriever.load(run_copy).index.ids) == list(changed.index.ids)
    assert (Retriever.load(run_copy).index.codes() == changed.index.codes()).all()


def test_upsert_may_replace_everything(changed: Retriever) -> None:
    names = list(changed.index.ids)
    changed.upsert([Item(id=name, text=f"{place} stars") for place, name in enumerate(names)])
    assert list(changed.index.ids) == names
    assert changed.search("7 stars", k=3)


def test_upserts_that_last(changed: Retriever, run_copy: Path) -> None:
    old, size = changed.index.ids[0], len(changed)
    with changed.writing(run_copy) as live:
        live.upsert([Item(id=old, text="three green hearts"), Item(id="new", text="a blue ring")])
        with pytest.raises(SiglumError, match="stands twice"):
            live.upsert([Item(id="other", text="a"), Item(id="other", text="b")])
    for one in (changed, Retriever.load(run_copy)):
        assert len(one) == size + 1 and list(one.index.ids)[-2:] == [old, "new"]


def test_progress_is_shown_where_it_is_asked_for(
    retriever: Retriever, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siglum.terminal.PAUSE", 0.0)
    retriever.search(["a red star"] * 3)
    assert capsys.readouterr() == ("", "")
    retriever.search(["a red star"] * 3, progress=True)
    assert capsys.readouterr().err.startswith("search  100 %")
    retriever.encode_queries(["a red star"] * 3, progress=True)
    assert "encode queries" in capsys.readouterr().err


class Own(BuiltinEncoder):
    """One's own encoder: the built-in one under another name."""

    name = "mine"

    def fingerprint(self) -> str:
        return BuiltinEncoder().fingerprint()


class Narrow(Own):
    """One whose texts are of another width."""

    text_dim = 7


class Other(Own):
    """One of other weights."""

    def fingerprint(self) -> str:
        return "f00d"


def test_an_encoder_of_one_s_own(world_run: Path, retriever: Retriever) -> None:
    mine = Retriever.load(world_run, encoder=Own())
    assert mine.encoder is not None and mine.encoder.name == "mine"
    assert mine.search("a red star") == retriever.search("a red star")
    assert Retriever.load(world_run, encoder="builtin", device="auto").search("a red star") == mine.search("a red star")
    for encoder, match in (
        (Other(), "other weights than mine has now"),
        (Narrow(), "makes text features of 7 numbers, but those of this run have 512"),
        (object(), "is no encoder: it lacks name, image_dim"),
    ):
        with pytest.raises(SiglumError, match=match):
            Retriever.load(world_run, encoder=encoder)  # type: ignore[arg-type]


def test_the_version_is_known() -> None:
    assert siglum.__version__.count(".") == 2
