"""The query head: towers that aim at finished codes, weighed on validation, for queries and never for items."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from siglum.config import DecoderConfig, FusionConfig, QueryConfig, RunConfig, SearchConfig, TokenizerConfig
from siglum.data.vectors import load_vectors
from siglum.files import read_json
from siglum.fuse.contrastive import embed, new_fusion
from siglum.generate.decoder import CodeDecoder
from siglum.generate.query import BLENDS, QueryHead, fit_query_head, query_vectors
from siglum.generate.store import load_query_head, save_decoder
from siglum.generate.train import fit_decoder, new_decoder
from siglum.log import NoLog, read_log
from siglum.measure.systems import open_systems
from siglum.run import stages
from siglum.run.folder import RunFolder
from siglum.search.beam import search_items
from siglum.search.retriever import Retriever
from siglum.tokenize.train import Tokenizer, fit_tokenizer
from siglum.types import SiglumError, Vectors

QUERY = QueryConfig(members=2, hidden=16, dropout=0.1, input_dropout=0.1, epochs=3, batch_size=64, lr=5e-3)
FUSION = FusionConfig(kind="towers", dim=12, hidden=24, epochs=3, batch_size=64, lr=5e-3, temperature=0.1)
CODES = TokenizerConfig(vocab=(8, 8, 8), epochs=0, train_fusion=False)
DECODER = DecoderConfig(
    d_model=16,
    d_ff=32,
    d_kv=8,
    heads=2,
    encoder_layers=0,
    decoder_layers=1,
    epochs=2,
    batch_size=64,
    null_queries=0.2,
    lr=3e-3,
)


@pytest.fixture(scope="module")
def data(make_vectors) -> Vectors:
    return make_vectors()


@pytest.fixture(scope="module")
def tokenizer(data: Vectors) -> Tokenizer:
    return fit_tokenizer(data, new_fusion(data, FUSION, 0, "cpu"), CODES)


@pytest.fixture(scope="module")
def head(data: Vectors, tokenizer: Tokenizer) -> QueryHead:
    found = fit_query_head(data, tokenizer, QUERY)
    assert found is not None
    return found


def bits(head: QueryHead | None) -> dict[str, Tensor]:
    assert head is not None
    return {name: value.clone() for name, value in head.state_dict().items()}


def same(left: QueryHead | None, right: QueryHead | None) -> bool:
    one, two = bits(left), bits(right)
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


class Notes(NoLog):
    """Keeps the losses of every stage, and ends the process at one epoch of one stage if asked to."""

    def __init__(self, kill: tuple[str, int] | None = None) -> None:
        self.kill = kill
        self.losses: dict[str, list[float]] = {}

    def write(self, stage: str, step: int, values: dict[str, Any]) -> None:
        if (stage, step) == self.kill:
            raise KeyboardInterrupt
        self.losses.setdefault(stage, []).append(values.get("loss_cl", values.get("loss")))


def test_a_query_is_the_normalised_sum_of_its_fused_vector_and_the_towers_answers(
    data: Vectors, tokenizer: Tokenizer, head: QueryHead
) -> None:
    fused = embed(tokenizer.fusion, data.queries, "cpu")
    found = query_vectors(tokenizer, head, data.queries, "cpu")
    answers = [embed(tower, data.queries, "cpu") for tower in head.towers]  # type: ignore[arg-type]
    assert len(answers) == 2 and not torch.equal(*answers)
    wanted = fused + head.blend_M[torch.as_tensor(data.queries.modality).long(), None] * (answers[0] + answers[1])
    torch.testing.assert_close(found, wanted / wanted.norm(dim=1, keepdim=True))
    torch.testing.assert_close(found.norm(dim=1), torch.ones(len(found)))
    assert torch.equal(query_vectors(tokenizer, None, data.queries, "cpu"), fused)


def test_without_members_there_is_no_head(data: Vectors, tokenizer: Tokenizer) -> None:
    assert fit_query_head(data, tokenizer, QueryConfig()) is None


def test_each_tower_learns_and_the_tokenizer_stays_as_it_is(data: Vectors, tokenizer: Tokenizer) -> None:
    before, notes = tokenizer.fingerprint(), Notes()
    head = fit_query_head(data, tokenizer, replace(QUERY, epochs=8), log=notes)
    assert tokenizer.fingerprint() == before
    assert list(notes.losses) == ["query1", "query2"]
    for losses in notes.losses.values():
        assert len(losses) == 8
        assert losses[-1] < 0.9 * losses[0]
    assert head is not None and not head.training
    # The towers answer with something near the codes of what was asked for: nearer than those of other items.
    answer = F.normalize(head.answers(data.queries, "cpu"), dim=-1)[data.pair_query]
    item = embed(tokenizer.fusion, data.items, "cpu")
    kinds = torch.as_tensor(data.items.modality.astype(np.int64))
    hat = tokenizer.quantizer.decode(tokenizer.quantizer.encode(item, kinds)).detach()[data.pair_item]
    own, other = (answer - hat).square().sum(-1), (answer - hat.roll(1, 0)).square().sum(-1)
    assert float(own.mean()) < 0.8 * float(other.mean())


def test_one_seed_gives_one_head(data: Vectors, tokenizer: Tokenizer, head: QueryHead) -> None:
    torch.rand(7)
    assert same(head, fit_query_head(data, tokenizer, QUERY))
    assert not same(head, fit_query_head(data, tokenizer, QUERY, seed=1))
    # A tower is trained apart: it does not matter how many others there are.
    alone = bits(fit_query_head(data, tokenizer, replace(QUERY, members=1)))
    assert all(torch.equal(value, bits(head)[name]) for name, value in alone.items() if name.startswith("towers"))


def slow_mrr(query: Tensor, hat: Tensor, data: Vectors, kind: int) -> float | None:
    """Mean over tasks of the reciprocal rank by squared distance, over validation queries of one modality."""
    means = []
    for task in data.of_split("val"):
        values = []
        for row, positives in zip(task.query_rows, task.positives, strict=True):
            if data.queries.modality[row] == kind:
                far = {int(place): float((query[row] - hat[place]).square().sum()) for place in task.pool_rows}
                nearest = min(far[int(place)] for place in positives)
                values.append(1 / sum(value <= nearest for value in far.values()))
        if values:
            means.append(np.mean(values))
    return float(np.mean(means)) if means else None


def test_the_blend_is_the_best_on_validation_for_each_modality(
    data: Vectors, tokenizer: Tokenizer, head: QueryHead
) -> None:
    fused, answers = embed(tokenizer.fusion, data.queries, "cpu"), head.answers(data.queries, "cpu")
    item = embed(tokenizer.fusion, data.items, "cpu")
    kinds = torch.as_tensor(data.items.modality.astype(np.int64))
    hat = tokenizer.quantizer.decode(tokenizer.quantizer.encode(item, kinds)).detach()
    for kind in range(3):
        values = [slow_mrr(F.normalize(fused + blend * answers, dim=-1), hat, data, kind) for blend in BLENDS]
        assert len(set(values)) > 1
        chosen = values[BLENDS.index(float(head.blend_M[kind]))]
        assert chosen == pytest.approx(max(values), rel=1e-6)


@pytest.mark.parametrize("helped", [0, 1, 2])
def test_towers_have_weight_only_where_they_help(
    data: Vectors, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, helped: int
) -> None:
    item = embed(tokenizer.fusion, data.items, "cpu")
    wanted, other = (torch.zeros(len(data.queries), 12) for _ in range(2))
    query_rows, item_rows = data.first_pairs("val")
    wanted[query_rows], other[query_rows] = 9 * item[item_rows], -9 * item[item_rows]
    misled = torch.as_tensor(data.queries.modality != helped)[:, None]
    monkeypatch.setattr(QueryHead, "answers", lambda *_: torch.where(misled, other, wanted))
    head = fit_query_head(data, tokenizer, replace(QUERY, members=1, epochs=0))
    assert [blend > 0 for blend in bits(head)["blend_M"].tolist()] == [kind == helped for kind in range(3)]


def test_a_modality_without_validation_queries_counts_the_towers_in_full(data: Vectors, tokenizer: Tokenizer) -> None:
    images = [task for task in data.tasks if task.split == "val"]
    for task in images:
        assert set(data.queries.modality[task.query_rows]) == {0, 1, 2}
    few = [replace(task, query_rows=task.query_rows[:0], positives=[]) for task in images]
    for tasks in ([], few):
        head = fit_query_head(replace(data, tasks=tasks), tokenizer, replace(QUERY, members=1, epochs=1))
        assert bits(head)["blend_M"].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("kill", [("query1", 1), ("query2", 0), ("query2", 2)])
def test_a_killed_training_resumes_to_the_same_bits(
    data: Vectors, tokenizer: Tokenizer, head: QueryHead, tmp_path: Path, kill: tuple[str, int]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        fit_query_head(data, tokenizer, QUERY, folder=tmp_path, log=Notes(kill))
    notes = Notes()
    assert same(head, fit_query_head(data, tokenizer, QUERY, folder=tmp_path, resume=True, log=notes))
    # A tower that was finished is not trained again; the other goes on from the epoch before the kill.
    finished = kill[0] == "query2"
    assert [len(notes.losses.get(name, [])) for name in ("query1", "query2")] == [
        0 if finished else 3 - kill[1],
        3 - kill[1] if finished else 3,
    ]


def test_a_checkpoint_of_other_settings_is_refused(data: Vectors, tokenizer: Tokenizer, tmp_path: Path) -> None:
    config = replace(QUERY, members=1, epochs=1)
    fit_query_head(data, tokenizer, config, folder=tmp_path)
    for other, seed in ((replace(config, lr=1e-3), 0), (config, 1)):
        with pytest.raises(SiglumError, match="another configuration"):
            fit_query_head(data, tokenizer, other, seed=seed, folder=tmp_path, resume=True)


def test_a_decoder_trained_behind_another_head_is_not_continued(
    data: Vectors, tokenizer: Tokenizer, head: QueryHead, tmp_path: Path
) -> None:
    config = replace(DECODER, epochs=1)
    fit_decoder(data, tokenizer, config, folder=tmp_path, head=head)
    fit_decoder(data, tokenizer, config, folder=tmp_path, head=head, resume=True)
    other = fit_query_head(data, tokenizer, replace(QUERY, epochs=1))
    for changed in (None, other):
        with pytest.raises(SiglumError, match="another configuration"):
            fit_decoder(data, tokenizer, config, folder=tmp_path, head=changed, resume=True)


@pytest.fixture
def decoder(tokenizer: Tokenizer) -> CodeDecoder:
    return new_decoder(tokenizer, DECODER, 0)


def test_a_saved_head_is_read_back_bit_by_bit(head: QueryHead, decoder: CodeDecoder, tmp_path: Path) -> None:
    save_decoder(tmp_path, decoder, "tok", head)
    again = load_query_head(tmp_path, 12)
    assert same(head, again)
    assert again is not None and again.config == QUERY and not again.training
    (tmp_path / "query.safetensors").unlink()
    with pytest.raises(SiglumError, match="lacks its file"):
        load_query_head(tmp_path, 12)


def test_a_stage_without_a_head_loads_and_keeps_nothing_of_an_earlier_one(
    head: QueryHead, decoder: CodeDecoder, tmp_path: Path
) -> None:
    plain = save_decoder(tmp_path / "plain", decoder, "tok")
    assert load_query_head(tmp_path / "plain", 12) is None
    assert not {"query", "image_dim", "text_dim"} & set(read_json(tmp_path / "plain" / "stage.json"))
    assert save_decoder(tmp_path / "had", decoder, "tok", head) != plain
    assert save_decoder(tmp_path / "had", decoder, "tok") == plain
    assert load_query_head(tmp_path / "had", 12) is None


CONFIG = RunConfig(
    fusion=FUSION,
    tokenizer=replace(CODES, assign_beam=3),
    query=QUERY,
    decoder=DECODER,
    search=SearchConfig(beam=20, omega=5.0, prior=0.5),
)


@pytest.fixture(scope="module")
def run(data: Vectors, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A whole run with a query head of two towers; read it, never write to it."""
    found = RunFolder(tmp_path_factory.mktemp("head"))
    found.write_config(CONFIG)
    stages.take_vectors(found, data)
    stages.make_tokenizer(found)
    stages.make_decoder(found)
    stages.make_index(found, keep_vectors=True)
    return found


def test_a_run_asks_with_adapted_vectors_and_codes_items_with_plain_ones(run: RunFolder, data: Vectors) -> None:
    retriever = Retriever.load(run.root)
    assert retriever.head is not None and len(retriever.head.towers) == 2
    fusion, quantizer = retriever.tokenizer.fusion, retriever.tokenizer.quantizer
    plain, asked = (
        embed(fusion, data.queries, "cpu"),
        query_vectors(retriever.tokenizer, retriever.head, data.queries, "cpu"),
    )
    assert not torch.allclose(plain, asked, atol=1e-3)
    assert torch.equal(retriever.vectors(data.queries, "queries"), asked)
    item = embed(fusion, data.items, "cpu")
    assert torch.equal(retriever.vectors(data.items), item)

    some = np.arange(350, 360)
    hits = retriever.search_features(data.queries.rows(some), k=10)
    wanted = search_items(retriever.engine.scorer(retriever.config), retriever.index, asked[some], beam=20, k=10)
    ids = list(retriever.index.ids)
    assert [[hit.item_id for hit in row] for row in hits] == [[ids[p] for p in row.position] for row in wanted]
    retriever.head = None
    assert hits != retriever.search_features(data.queries.rows(some), k=10)

    codes = quantizer.encode(item, torch.as_tensor(data.items.modality.astype(np.int64))).numpy()
    retriever = Retriever.load(run.root)
    assert np.array_equal(retriever.index.codes_of(data.items.ids), codes)
    retriever.remove(data.items.ids[:20])
    retriever.add(data.items.rows(np.arange(20)))
    assert np.array_equal(retriever.index.codes_of(data.items.ids), codes)


def test_scan_and_geometry_keep_the_plain_vector(run: RunFolder, data: Vectors) -> None:
    systems = open_systems(run)
    tokenizer, head = systems.retriever.tokenizer, systems.retriever.head
    plain, asked = (query_vectors(tokenizer, part, data.queries, "cpu") for part in (None, head))
    for ranker in (systems.scan, systems.geometry):
        assert torch.equal(ranker.query_MD, plain)
    assert torch.equal(systems.coded.query_MD, plain)
    assert systems.own is not None and torch.equal(systems.own.query_MD, asked)
    item = embed(tokenizer.fusion, data.items, "cpu")
    assert torch.equal(systems.coded.item_ND, item)
    torch.testing.assert_close(systems.scan.item_ND, tokenizer.quantizer.decode(systems.coded.codes_NT).detach())


def test_a_saved_retriever_keeps_its_head(run: RunFolder, data: Vectors, tmp_path: Path) -> None:
    retriever = Retriever.load(run.root)
    retriever.save(tmp_path / "copy")
    again = Retriever.load(tmp_path / "copy")
    assert same(retriever.head, again.head)
    some = data.queries.rows(np.arange(5))
    assert again.search_features(some, k=5) == retriever.search_features(some, k=5)


@pytest.mark.parametrize("kill", [("query2", 1), ("decoder", 1)])
def test_a_killed_run_resumes_to_the_same_bytes(run: RunFolder, tmp_path: Path, kill: tuple[str, int]) -> None:
    cut = RunFolder(tmp_path / "cut")
    shutil.copytree(run.root, cut.root, ignore=shutil.ignore_patterns("3-decoder", "log.jsonl"))
    with pytest.raises(KeyboardInterrupt):
        stages.make_decoder(cut, log=Notes(kill))
    with pytest.raises(SiglumError, match="no finished decoder stage"):
        Retriever.load(cut.root)
    stages.make_decoder(cut, resume=True)
    for name in ("query.safetensors", "decoder.safetensors", "stage.json"):
        assert (cut.decoder / name).read_bytes() == (run.decoder / name).read_bytes(), name
    logged = {record["stage"] for record in read_log(run.root / "log.jsonl")}
    assert logged == {"fusion", "query1", "query2", "decoder"}
    assert load_vectors(cut.vectors)[1] == load_vectors(run.vectors)[1]
