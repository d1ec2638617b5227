"""The retriever on a whole tiny run: searching, growing, shrinking, saving, and refusing."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from records import reseal
from siglum.data.corpus import read_items
from siglum.encode.builtin import BuiltinEncoder
from siglum.encode.run import encode_rows
from siglum.files import read_json
from siglum.lab.world.collection import World
from siglum.measure.systems import evaluate_run, open_systems
from siglum.run.folder import RunFolder
from siglum.run.generations import save_index
from siglum.run.stages import make_index
from siglum.search.retriever import Retriever
from siglum.types import Features, Hit, Item, SiglumError


@pytest.fixture
def retriever(world_run: Path) -> Retriever:
    return Retriever.load(world_run)


@pytest.fixture
def kept(run_copy: Path) -> Retriever:
    """A retriever whose index keeps vectors."""
    make_index(RunFolder(run_copy), pools="test", keep_vectors=True)
    return Retriever.load(run_copy)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def new_items(world: World, number: int = 5) -> list[Item]:
    return [world.items("train")[i] for i in range(number)]


def features(*items: Item) -> Features:
    return encode_rows(items, BuiltinEncoder(), strict=True)


def test_search_by_text_picture_and_both(retriever: Retriever, world: World) -> None:
    for task in ("t2i", "i2t", "it2i"):
        query = world.queries("test", task)[3]
        hits = retriever.search(query.text, query.image, k=7, instruction=query.instruction)
        assert [hit.rank for hit in hits] == list(range(1, 8))
        assert all(isinstance(hit, Hit) and hit.item_id in retriever.index.ids for hit in hits)
        encoded = encode_rows([query], BuiltinEncoder(), strict=True)
        assert hits == retriever.search_features(encoded, k=7)[0]


def test_a_drawn_picture_equals_its_pixels(retriever: Retriever, world: World) -> None:
    drawing = world.queries("test", "i2i")[0].image
    pixels = drawing.pixels(BuiltinEncoder.picture_size)
    assert retriever.search(image=drawing) == retriever.search(image=pixels)


def test_the_instruction_is_part_of_the_question(retriever: Retriever, world: World) -> None:
    query = world.queries("test", "t2i")[0]
    with_wish, without = (retriever.search(query.text, instruction=wish) for wish in (query.instruction, None))
    assert with_wish != without


def test_options_change_the_search(retriever: Retriever, world: World) -> None:
    text = world.queries("test", "t2i")[0].text
    assert len(retriever.search(text, k=50, beam=3)) < len(retriever.search(text, k=50, beam=90))
    scores = {kind: retriever.search(text, scorer=kind)[0].score for kind in ("fused", "decoder", "geometry", "oracle")}
    assert len(set(scores.values())) == 4
    with pytest.raises(SiglumError, match="has no field 'width'"):
        retriever.search(text, width=3)


def test_search_within(retriever: Retriever, world: World) -> None:
    text = world.queries("test", "t2i")[0].text
    pictures = list(world.pool("test", "t2i"))
    mask = np.isin(np.array(list(retriever.index.ids)), pictures)
    by_ids, by_mask = (retriever.search(text, k=99, beam=99, within=within) for within in (pictures, mask))
    assert {hit.item_id for hit in by_ids} == set(pictures)
    assert by_ids == by_mask
    assert retriever.search(text, within=[]) == []
    with pytest.raises(SiglumError, match="not in the index"):
        retriever.search(text, within=["nobody"])


def test_a_target_is_mostly_found(retriever: Retriever, world: World) -> None:
    found = 0
    for query in world.queries("test", "i2i"):
        hits = retriever.search(
            query.text, query.image, instruction=query.instruction, within=world.pool("test", "i2i")
        )
        found += query.positives[0] in [hit.item_id for hit in hits]
    assert found > 0.7 * len(world.queries("test", "i2i"))


def test_an_added_item_is_found_by_its_own_vector(retriever: Retriever, world: World) -> None:
    fresh = new_items(world)
    before = len(retriever.index)
    retriever.add(fresh)
    assert len(retriever.index) == before + 5
    assert list(retriever.index.ids[before:]) == [item.id for item in fresh]
    for item in fresh:
        hits = retriever.search_features(features(item), k=5, scorer="geometry", beam=50)[0]
        assert item.id in [hit.item_id for hit in hits]


def test_items_are_added_as_features_too(retriever: Retriever, world_run: Path, world: World) -> None:
    other = Retriever.load(world_run)
    retriever.add(new_items(world))
    other.add(features(*new_items(world)))
    assert np.array_equal(retriever.index.packed_NB, other.index.packed_NB)


def test_a_removed_item_is_not_found_again(retriever: Retriever, world: World) -> None:
    text = world.queries("test", "t2i")[0].text
    best = retriever.search(text)[0].item_id
    retriever.remove([best])
    assert best not in [hit.item_id for hit in retriever.search(text, k=99, beam=99)]


def test_adding_then_removing_leaves_the_same_bytes(kept: Retriever, world: World, tmp_path: Path) -> None:
    save_index(tmp_path / "before", kept.index, kept.item_ND)
    kept.add(new_items(world))
    save_index(tmp_path / "between", kept.index, kept.item_ND)
    kept.remove([item.id for item in new_items(world)])
    save_index(tmp_path / "after", kept.index, kept.item_ND)
    assert contents(tmp_path / "before") == contents(tmp_path / "after") != contents(tmp_path / "between")
    assert set(contents(tmp_path / "after")) == {
        "stage.json",
        "index.safetensors",
        "ids.safetensors",
        "fields.safetensors",
        "vectors.safetensors",
    }


@pytest.mark.parametrize("leaf_order", ["pool", "dense"])
def test_results_outlive_saving_and_loading(kept: Retriever, world: World, tmp_path: Path, leaf_order: str) -> None:
    kept.add(new_items(world))
    kept.remove([kept.index.ids[0], kept.index.ids[7]])
    kept.save(tmp_path / "saved")
    again = Retriever.load(tmp_path / "saved")
    assert again.config == kept.config
    assert torch.equal(again.item_ND, kept.item_ND)
    for task in ("t2i", "it2t"):
        for query in world.queries("test", task)[:3]:
            question = {"text": query.text, "image": query.image, "k": 60, "leaf_order": leaf_order}
            assert again.search(**question) == kept.search(**question)
    again.save(tmp_path / "twice")
    assert contents(tmp_path / "twice") == contents(tmp_path / "saved")


def test_kept_vectors_follow_the_pool_and_order_a_leaf(kept: Retriever, world: World) -> None:
    twin = new_items(world, 1)[0]
    copies = [Item(id=f"copy{i}", text=twin.text, image=twin.image) for i in range(3)]
    kept.add(copies)
    before = dict(zip(kept.index.ids, kept.item_ND, strict=True))
    kept.remove([kept.index.ids[3], "copy1"])
    after = dict(zip(kept.index.ids, kept.item_ND, strict=True))
    assert len(after) == len(before) - 2
    assert all(torch.equal(before[name], row) for name, row in after.items())
    own = kept.vectors(features(copies[0]))
    torch.testing.assert_close(kept.item_ND[-1:], own, atol=1e-3, rtol=0)
    ids = list(kept.index.ids)
    hits = kept.search_features(features(copies[0]), k=99, beam=99, leaf_order="dense")[0]
    near = {item: float(own[0] @ row) for item, row in zip(ids, kept.item_ND, strict=True)}
    for above, below in zip(hits, hits[1:], strict=False):
        if above.codes == below.codes:
            assert near[above.item_id] >= near[below.item_id]
    assert {"copy0", "copy2"} <= {hit.item_id for hit in hits}


def test_an_index_without_vectors_cannot_order_by_similarity(retriever: Retriever) -> None:
    with pytest.raises(SiglumError, match="keeps no vectors"):
        retriever.search("a red star", leaf_order="dense")


def test_reindexing_without_vectors_forgets_them(kept: Retriever, run_copy: Path) -> None:
    assert list((run_copy / "4-index").rglob("vectors.safetensors"))
    make_index(RunFolder(run_copy), pools="test")
    assert not list((run_copy / "4-index").rglob("vectors.safetensors"))
    assert Retriever.load(run_copy).item_ND is None


def test_saving_into_its_own_run_keeps_the_run_whole(run_copy: Path, world: World) -> None:
    before = contents(run_copy)
    retriever = Retriever.load(run_copy)
    retriever.add(new_items(world))
    retriever.save(run_copy)
    after = contents(run_copy)
    assert all(before[name] == after[name] for name in before)
    assert set(after) - set(before) == {"4-index/log-000000", "4-index/log-000000.ack"}
    assert len(Retriever.load(run_copy).index) == len(retriever.index)
    systems = open_systems(RunFolder(run_copy), "val")
    assert evaluate_run(RunFolder(run_copy), systems, {"dense": systems.dense}, union=False).tasks


def test_without_a_decoder_it_searches_by_geometry(run_copy: Path) -> None:
    shutil.rmtree(run_copy / "3-decoder")
    retriever = Retriever.load(run_copy)
    assert retriever.config.scorer == "geometry"
    assert retriever.search("a red star") == retriever.search("a red star", scorer="geometry")
    with pytest.raises(SiglumError, match="needs a trained decoder"):
        retriever.search("a red star", scorer="fused")


def test_nothing_changes_when_adding_or_removing_is_refused(kept: Retriever, world: World) -> None:
    index, vectors = kept.index, kept.item_ND
    known = world.item(index.ids[4])
    with pytest.raises(SiglumError, match="in the index already"):
        kept.add([*new_items(world), known])
    with pytest.raises(SiglumError, match="not in the index"):
        kept.remove([index.ids[0], "nobody"])
    with pytest.raises(SiglumError, match="empty index"):
        kept.remove(list(index.ids))
    with pytest.raises(SiglumError, match="stands twice"):
        kept.add(features(*new_items(world, 1), *new_items(world, 1)))
    assert kept.index is index
    assert kept.item_ND is vectors


def test_features_of_another_width_are_refused(retriever: Retriever, world: World) -> None:
    right = features(*new_items(world, 2))
    wrong = Features(right.ids, right.image, right.text[:, :-1], right.has_image, right.has_text)
    for act in (retriever.add, retriever.search_features):
        with pytest.raises(
            SiglumError, match=r"text features of the \w+ have 511 numbers, but those of this run have 512"
        ):
            act(wrong)
    with pytest.raises(SiglumError, match=r"shape \(Q, 64\)"):
        retriever.rank(torch.zeros(2, 63), scorer="geometry")


def test_bad_features_are_refused_by_name(retriever: Retriever, world: World) -> None:
    found = features(*new_items(world, 3))
    found.text[1, 5] = np.nan
    with pytest.raises(SiglumError, match="NaN or infinite") as caught:
        retriever.add(found)
    assert found.ids[1] in str(caught.value)
    with pytest.raises(SiglumError, match="no words this encoder knows"):
        retriever.search("?!")


def test_nothing_to_search_for(retriever: Retriever) -> None:
    with pytest.raises(SiglumError, match="needs a text, an image or both"):
        retriever.search()
    with pytest.raises(SiglumError, match="k must be a whole number of at least 1, not 0"):
        retriever.search("a red star", k=0)
    with pytest.raises(SiglumError, match="collection is empty"):
        retriever.add([])


def test_a_run_of_plain_vectors_has_no_encoder(retriever: Retriever, world: World) -> None:
    bare = Retriever(retriever.tokenizer, retriever.index, decoder=retriever.decoder, config=retriever.config)
    for act in (lambda: bare.search("a red star"), lambda: bare.add(new_items(world))):
        with pytest.raises(SiglumError, match="has no encoder"):
            act()
    query = encode_rows([world.queries("test", "t2i")[0]], BuiltinEncoder(), strict=True)
    assert bare.search_features(query) == retriever.search_features(query)


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SiglumError, match="is not a run folder"):
        Retriever.load(tmp_path / "none")


@pytest.mark.parametrize("at", range(17))
def test_a_full_disk_leaves_the_saved_index_as_it_was(
    kept: Retriever, run_copy: Path, world: World, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """An index takes another's place in seven writes (vectors, rows, ids, fields, record, generation, CURRENT) of a
    file and a name, with the names of folders between; each but the last meets a full disk."""
    before, count, fsync = contents(run_copy), iter(range(99)), os.fsync

    def full(handle: int) -> None:
        if next(count) == at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    kept.add(new_items(world))
    monkeypatch.setattr(os, "fsync", full)
    if at == 16:
        save_index(run_copy / "4-index", kept.index, kept.item_ND)
        assert contents(run_copy) != before
        return
    with pytest.raises(SiglumError, match="No space left on device") as caught:
        save_index(run_copy / "4-index", kept.index, kept.item_ND)
    assert "\n" not in str(caught.value)
    monkeypatch.undo()
    if at < 15:  # at the last sync CURRENT has its new content already
        assert contents(run_copy) == before
    assert len(Retriever.load(run_copy).index) == len(kept.index) - (len(new_items(world)) if at < 15 else 0)


def test_an_encoder_of_other_weights_is_refused(
    run_copy: Path, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, mark = run_copy / "2-tokenizer" / "stage.json", BuiltinEncoder().fingerprint()
    record = read_json(path)
    assert record["encoder_fingerprint"] == mark
    assert read_json(run_copy / "1-vectors" / "stage.json")["encoder_fingerprint"] == mark
    question = features(*new_items(world, 1))
    monkeypatch.setattr("siglum.encode.builtin.VERSION", 2)
    retriever = Retriever.load(run_copy)
    retriever.save(tmp_path / "saved")
    for again in (retriever, retriever, Retriever.load(tmp_path / "saved")):
        assert again.search_features(question)[0]
        with pytest.raises(SiglumError, match=f"encoded with other weights than builtin has now .*{mark}, not"):
            again.search("a red star")
    reseal(run_copy / "2-tokenizer", without=("encoder_fingerprint",))
    assert Retriever.load(run_copy).search("a red star"), "runs without the field go on working"


def test_a_run_without_a_decoder_warns_of_its_scorer(run_copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    Retriever.load(run_copy)
    assert not caplog.records
    shutil.rmtree(run_copy / "3-decoder")
    assert Retriever.load(run_copy).config.scorer == "geometry"
    assert "has no decoder: it is searched by geometry, not by its scorer fused" in caplog.text


@pytest.mark.parametrize("name", ["", " ", "a b", "a\tb", " a", "a\n", "a\u00a0b", "a\u2028b"])
def test_ids_that_files_refuse_are_refused_here(run_copy: Path, tmp_path: Path, name: str) -> None:
    retriever = Retriever.load(run_copy)
    before = len(retriever)
    rows = [Item(id="good", text="a star"), Item(id=name, text="a red star")]
    for call in (retriever.add, retriever.upsert):
        with pytest.raises(SiglumError, match="of an item is empty or holds whitespace; rename it"):
            call(rows)
    with (
        retriever.writing(run_copy) as live,
        pytest.raises(SiglumError, match="of an item is empty or holds whitespace; rename it"),
    ):
        live.add(rows)
    assert len(retriever) == before == len(Retriever.load(run_copy))
    (tmp_path / "items.jsonl").write_text(json.dumps({"id": name, "text": "a red star"}))
    with pytest.raises(SiglumError, match="is empty or holds whitespace; rename it"):
        read_items(tmp_path / "items.jsonl")
    retriever.add([Item(id="2024/two%20dogs.jpg", text="as the id of a file is written")])
    assert len(retriever) == before + 1
