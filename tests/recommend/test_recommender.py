"""A recommender learns a rule, says what comes next, takes new items, resumes and is diagnosed like any run."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import siglum
from sequence_files import SIDE, draw_world, quick_config, tiny_config, write_world
from siglum.data.sequence_files import read_sequences
from siglum.data.vectors import load_vectors
from siglum.measure.systems import open_systems
from siglum.recommend import Recommender, fit, recommender
from siglum.recommend.evaluation import evaluate
from siglum.recommend.fitting import fit_run, prepare
from siglum.recommend.people import seen_items, training_counts
from siglum.run.folder import RunFolder
from siglum.search.retriever import Retriever
from siglum.types import SiglumError


@pytest.mark.long
def test_a_rule_on_the_last_two_items_is_learnt() -> None:
    sequences, vectors = draw_world()
    fitted = fit(sequences, vectors, config=tiny_config())
    histories = [[str(item) for item in own[:-1]] for own in sequences]
    found = fitted.next_many(histories, k=5)
    right = [str(own[-1]) in [hit.item_id for hit in hits] for own, hits in zip(sequences, found, strict=True)]
    assert np.mean(right) > 0.9


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the world in a folder, with all that fusion needs."""
    folder = tmp_path_factory.mktemp("recommend")
    sequences = read_sequences(write_world(folder / "data"))
    config = quick_config("pro_without_pd")
    config = replace(config, fusion=replace(config.fusion, kind="none"))
    assert sequences.features is not None
    fit_run(RunFolder(folder / "run"), prepare(sequences, sequences.features, config, as_given=True))
    return folder / "run"


def test_a_recommender_is_a_run_folder_that_says_what_comes_next(run: Path) -> None:
    fitted = Recommender.load(run)
    assert isinstance(fitted, Recommender) and len(fitted) == SIDE * SIDE
    history = list(fitted.index.ids[:3])
    hits = fitted.next(history, k=5)
    assert [hit.rank for hit in hits] == [1, 2, 3, 4, 5] and all(
        hit.text and hit.text.startswith("thing") for hit in hits
    )
    unseen = fitted.next(history, k=5, unseen=True, beam=64)
    assert len(unseen) == 5 and not {hit.item_id for hit in unseen} & set(history)
    many = fitted.next_many([history, history[:1], []], k=5)
    assert [hit.item_id for hit in many[0]] == [hit.item_id for hit in hits] and len(many[2]) == 5
    assert fitted.next(history, k=5, engine="reference")[0].item_id == hits[0].item_id
    for vector in ("mean", "last", "learned", "ridge"):
        assert len(fitted.next(history, k=3, vector=vector)) == 3


def test_what_is_no_history_is_refused(run: Path) -> None:
    fitted = Recommender.load(run)
    for wrong, words in (
        ("x1", "collection of strings"),
        (["nothing"], "which is not in the index"),
        ([3], "ids must be strings"),
    ):
        with pytest.raises(SiglumError, match=words):
            fitted.next(wrong)  # type: ignore[arg-type]
    with pytest.raises(SiglumError, match="2 users"):
        fitted.next_many([["A001"]], users=["a", "b"])
    with pytest.raises(SiglumError, match="reads histories of items, not vectors"):
        fitted.search_features(siglum.features(np.ones((1, 2 * SIDE), np.float32)))


def test_a_run_of_vectors_is_no_recommender(world_run: Path) -> None:
    with pytest.raises(SiglumError, match="is no recommender"):
        Recommender.load(world_run)


def test_new_items_get_ids_of_their_own_without_training(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    fitted = Recommender.load(copy)
    vectors = load_vectors(RunFolder(copy).vectors)[0].items
    twin = vectors.text[:1]
    fitted.add(siglum.features(np.concatenate([twin, twin]).astype(np.float32), ["new 1", "new 2"]))
    codes = fitted.index.codes_of([vectors.ids[0], "new 1", "new 2"])
    assert len(np.unique(codes[:, :-1], axis=0)) == 1 and len(np.unique(codes, axis=0)) == 3
    told = fitted.disambiguation()
    assert told is not None and told.largest >= 3 and told.left == 0
    assert fitted.next(["new 1"], k=3) and "new 2" in {hit.item_id for hit in fitted.next(["new 1"], k=66, beam=66)}
    fitted.save(copy)
    again = Recommender.load(copy)
    assert again.next(["new 2"], k=4) == fitted.next(["new 2"], k=4)


def test_what_is_evaluated_is_what_is_served(run: Path) -> None:
    fitted, vectors = Recommender.load(run), load_vectors(RunFolder(run).vectors)[0]
    own, task = open_systems(RunFolder(run)).own, vectors.of_split("test")[0]
    assert own is not None and vectors.histories is not None
    found = own.rank(task.query_rows, task.pool_rows, 7)
    ids, rows = vectors.items.ids, vectors.histories.row_MH[task.query_rows]
    served = fitted.next_many([[ids[item] for item in history if item >= 0] for history in rows], k=7)
    for ranking, hits in zip(found, served, strict=True):
        np.testing.assert_allclose(ranking.score, [hit.score for hit in hits], atol=1e-4)
    same = [
        [ids[row] for row in ranking.position] == [hit.item_id for hit in hits]
        for ranking, hits in zip(found, served, strict=True)
    ]
    assert np.mean(same) > 0.9  # ties aside


def test_what_users_have_seen_is_told_by_the_run(run: Path) -> None:
    vectors = load_vectors(RunFolder(run).vectors)[0]
    sequences = read_sequences(run.parent / "data")
    task = vectors.of_split("test")[0]
    assert vectors.histories is not None
    for user, own in enumerate(seen_items(vectors.histories, task.query_rows)):
        assert own.tolist() == sorted(set(sequences.of_user(user)[:-1].tolist()))
    counts = np.zeros(len(vectors.items), int)
    for user in range(len(sequences)):
        np.add.at(counts, sequences.of_user(user)[:-2], 1)
    assert training_counts(vectors).tolist() == counts.tolist()


def test_weight_and_vector_are_those_that_validate_best(run: Path) -> None:
    chosen = json.loads((run / "chosen.json").read_text())
    best = max(chosen["tried"], key=lambda one: one["ndcg@10"])
    config = RunFolder(run).config().search
    assert (config.vector, config.omega) == (best["vector"], best["omega"])
    assert {one["vector"] for one in chosen["tried"]} == {"mean", "last", "ridge", "learned"}
    before = (run / "chosen.json").stat().st_mtime_ns
    sequences = read_sequences(run.parent / "data")
    own = replace(RunFolder(run).config())
    assert sequences.features is not None
    fit_run(RunFolder(run), prepare(sequences, sequences.features, own, as_given=True), resume=True)
    assert (run / "chosen.json").stat().st_mtime_ns == before


def test_evaluation_has_all_systems_under_both_policies(run: Path) -> None:
    found = evaluate(run)
    assert set(found["systems"]) == {"pro_without_pd", "decoder", "dense", "last_item", "popularity"}
    for one in found["systems"].values():
        assert 0 <= one["recall@5"] <= one["recall@10"] <= 1 and one["ndcg@5"] <= one["recall@5"]
        assert one["by_codes"]["recall@10"] >= one["recall@10"] - 1e-9 and set(one["unseen"]) >= {"recall@10"}
        assert sum(part["users"] for part in one["lengths"].values()) == one["users"] == 60
    assert (run / "6-report" / "recommend-test.json").exists()
    assert evaluate(run, split="val", users=10)["systems"]["popularity"]["users"] == 10


def test_diagnosis_explanation_report_and_evaluation_know_histories(run: Path, tmp_path: Path, call) -> None:
    found = siglum.diagnose(run, queries=20)
    assert [rung["rung"] for rung in found["ladder"]] == ["teacher", "oracle", "geometry", "decoder", "fused"]
    assert found["levels"][0]["eps"] is not None
    call("eval", run)
    vectors = load_vectors(RunFolder(run).vectors)[0]
    query = vectors.queries.ids[int(vectors.of_split("test")[0].query_rows[0])]
    told = call("explain", run, "--query-id", query, "--json")
    assert '"log_probability"' in told and '"geometry"' in told
    fitted = Recommender.load(run)
    hit = fitted.next(["A001", "A002"])[2]
    assert siglum.explain(fitted, fitted.ask(["A001", "A002"]), hit.item_id).rank == 3
    page = tmp_path / "page.html"
    siglum.report(run, out=page, queries=10)
    assert page.stat().st_size > 1000
    call("info", run, "--check")


def test_a_kill_costs_one_epoch_at_most(tmp_path: Path) -> None:
    sequences, vectors = draw_world(40, 6)
    config = tiny_config(epochs=3, d_model=16, d_ff=16, d_kv=8, heads=2)
    whole = fit(sequences, vectors, config=config, folder=tmp_path / "whole")
    partly = replace(config, decoder=replace(config.decoder, epochs=3))
    from siglum.generate import history_train

    class Stop(Exception): ...

    epoch = history_train.HistoryTraining.epoch

    def stop(self, number):
        if number == 2:
            raise Stop
        return epoch(self, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history_train.HistoryTraining, "epoch", stop)
        with pytest.raises(Stop):
            fit(sequences, vectors, config=partly, folder=tmp_path / "cut")
    again = fit(sequences, vectors, config=partly, folder=tmp_path / "cut", resume=True)
    assert whole.decoder is not None and again.decoder is not None
    for name, value in whole.decoder.state_dict().items():
        assert (value == again.decoder.state_dict()[name]).all(), name
    memory = fit(sequences, vectors, config=config)
    history = [str(item) for item in sequences[0][:3]]
    assert [hit.item_id for hit in memory.next(history)] == [hit.item_id for hit in whole.next(history)]


@pytest.mark.parametrize("recipe", ["pro", "tiger_rqvae", "liger", "bridge", "pro_without_vs"])
def test_every_recipe_goes_through(recipe: str) -> None:
    sequences, vectors = draw_world(40, 6)
    config = quick_config(recipe)
    config = replace(config, tokenizer=replace(config.tokenizer, latent=8, widths=(16,), kmeans_iters=3))
    fitted = fit(sequences, vectors, config=config)
    assert len(fitted.next(["3", "9"], k=7)) == 7
    assert isinstance(fitted, Retriever)


@pytest.mark.parametrize("recipe", ["tiger", "pro", "bridge"])
def test_what_is_asked_in_validation_and_test_teaches_nothing(recipe: str) -> None:
    """Other last items, which are those asked for, leave codes, decoder, learned vector and bridge as they are."""
    sequences, vectors = draw_world(40, 7)
    others = [[*own[:-2], (own[-2] + 9) % 64, (own[-1] + 17) % 64] for own in sequences]
    config = quick_config(recipe)
    config = replace(config, search=replace(config.search, scorer="decoder"))
    one, two = (fit(chosen, vectors, config=config) for chosen in (sequences, others))
    assert one.decoder is not None and two.decoder is not None
    for left, right in (
        (one.decoder, two.decoder),
        (one.tokenizer.quantizer, two.tokenizer.quantizer),
        (one.tokenizer.fusion, two.tokenizer.fusion),
    ):
        for name, value in left.state_dict().items():
            assert (value == right.state_dict()[name]).all(), name
    assert one.decoder.ridge.any()


def test_items_with_text_and_picture_share_a_space() -> None:
    sequences, vectors = draw_world(40, 6)
    pictures = np.random.default_rng(0).normal(size=(64, 5)).astype(np.float32)
    pictures[::2] = np.nan
    fitted = fit(sequences, {"text": vectors, "image": pictures}, config=quick_config())
    assert fitted.tokenizer.fusion.config.kind == "towers" and len(fitted.next(["5", "6"], k=3)) == 3
    alone = fit(sequences, {"image": np.nan_to_num(pictures) + 1}, config=quick_config())
    assert alone.tokenizer.fusion.config.kind == "none"


def test_users_may_have_tokens() -> None:
    sequences, vectors = draw_world(40, 6)
    config = quick_config()
    history = replace(config.decoder.history, users=7)
    config = replace(config, decoder=replace(config.decoder, history=history))
    fitted = fit({f"u{n}": own for n, own in enumerate(sequences)}, vectors, config=config)
    scores = {user: fitted.next(["3", "4"], k=1, user=user)[0].score for user in ("", "u1", "u2", "somebody new")}
    assert len(set(scores.values())) > 2


def test_recipes_say_what_they_are() -> None:
    plain, strong, pro = (recommender(name) for name in ("tiger", "tiger_strong", "pro"))
    assert (plain.decoder.encoder_layers, strong.decoder.encoder_layers) == (4, 6)
    assert pro.tokenizer.vocab == (160, 240, 256) and pro.tokenizer.rank_weight == 1.0 and pro.search.scorer == "fused"
    assert recommender("pro_without_pd").tokenizer.rank_weight == 0
    assert recommender("pro_without_vs").tokenizer.vocab == (256, 256, 256)
    assert recommender("pro_without_sf").search.scorer == "decoder"
    with pytest.raises(SiglumError, match="must be one of: tiger, "):
        recommender("tigre")


def test_bad_sequences_are_refused() -> None:
    _, vectors = draw_world()
    for wrong, words in (
        ([[0, 1, 99]], "is an id or a row of 64"),
        ({"a": ["0", "none"]}, "which has no vector"),
        ([[1]], "nothing to learn from"),
        ([], "no sequences"),
    ):
        with pytest.raises(SiglumError, match=words):
            fit(wrong, vectors, config=quick_config())  # type: ignore[arg-type]
    with pytest.raises(SiglumError, match="need item_vectors"):
        fit([[0, 1, 2]])
