"""The measure of speed: peers search with the same weights, rows say what parts say, a stopped run goes on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from siglum.config import RunConfig
from siglum.console.commands import call
from siglum.index import Index
from siglum.lab.cli import bench_speed
from siglum.lab.speed import bench as speed
from siglum.lab.speed.bench import Job, SpeedSettings, overlap, time_calls
from siglum.lab.speed.pool import Pool, draw_pool, open_pool, residual_codes, save_pool
from siglum.lab.speed.systems import open_system, right_answers
from siglum.recipes import recipe
from siglum.search.beam import search_items
from siglum.search.lookahead import build_lookahead
from siglum.search.ragged import reason_against
from siglum.search.scorers import build_scorer
from siglum.search.static import GraphSearch
from siglum.types import SiglumError

ITEMS = 500
KEYS = ("system", "mode", "dtype", "device", "pool", "batch", "queries_per_s", "ratio_to_hf", "p50_ms", "p95_ms")


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Pool:
    return make_pool(tmp_path_factory.mktemp("pool"), "pro")


def make_pool(folder: Path, recipe: str) -> Pool:
    """Return a small pool as a process that measures finds it."""
    drawn = draw_pool(ITEMS, 40, SpeedSettings(work=folder, recipe=recipe, scale="tiny").model())
    drawn.reference = right_answers(drawn, "cpu")
    save_pool(drawn, folder)
    return open_pool(folder)


def test_items_are_coded_by_their_nearest_codewords(pool: Pool) -> None:
    item_ND = pool.item_ND()
    codes_NT = pool.index.codes_of([str(place) for place in range(ITEMS)])
    assert torch.equal(residual_codes(item_ND, pool.codebooks[1:]), torch.as_tensor(codes_NT[:, 1:]).long())
    assert np.bincount(codes_NT[:, 1]).max() < ITEMS / 3  # codes are used, not one for all
    torch.testing.assert_close(item_ND.norm(dim=1), torch.ones(ITEMS))
    assert not pool.codebooks[0].any() and pool.first_geometric == 1


def test_queries_have_items_nearby_and_do_not_repeat(pool: Pool) -> None:
    nearest = (pool.query_QD @ pool.item_ND().T).max(1).values
    strangers = (torch.nn.functional.normalize(torch.randn(40, 64), dim=1) @ pool.item_ND().T).max(1).values
    assert nearest.mean() > strangers.mean() + 0.2
    every = torch.cat([pool.query_QD, pool.learnt_LD])
    assert len(every) == 40 + 256 == len(torch.unique(every, dim=0))


def test_transformers_finds_what_the_reference_search_finds_with_the_same_weights(pool: Pool, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    peer = open_system(("hf-generate", "none", "fp32"), pool, "cpu", 1, 8, tmp_path)
    right = pool.reference["joint"]
    found = peer.positions(peer.search(pool.query_QD[: len(right)]))
    assert found is not None and len(right) == 8
    for one, other in zip(found, right, strict=True):
        assert len(other) >= pool.config.beam
        assert one.tolist() == other.tolist()


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_engine_is_compared_with_the_paper_score(pool: Pool, tmp_path: Path, dtype: str) -> None:
    system = open_system(("siglum", "exact", dtype), pool, "cpu", 1, 4, tmp_path)
    part = time_calls(system, pool.query_QD, 4, 1.0, pool.reference["paper"], thorough=True)
    assert part["checked"] == 32 and len(part["seconds"]) >= 2
    assert part["overlap"] == 1.0 if dtype == "fp32" else part["overlap"] > 0.9
    worse = time_calls(system, pool.query_QD.flip(0), 4, 1.0, pool.reference["paper"], thorough=True)
    assert worse["overlap"] < 0.5  # other queries have other answers


def test_the_engine_of_static_shapes_finds_the_same(pool: Pool) -> None:
    engine = GraphSearch(pool.decoder(), pool.codebooks, pool.index, pool.config, pool.first_geometric, "cpu")
    found = [ranking.position for ranking in engine.search(pool.query_QD[:8], k=50)]
    assert [overlap(one, other) for one, other in zip(found, pool.reference["paper"], strict=False)] == [1.0] * 8


@pytest.fixture(scope="module")
def best(tmp_path_factory: pytest.TempPathFactory) -> Pool:
    return make_pool(tmp_path_factory.mktemp("best"), "best")


def test_a_recipe_brings_its_own_model_and_search(best: Pool, pool: Pool) -> None:
    wanted = recipe("best", "tiny")
    assert best.index.sizes == (3, *wanted.tokenizer.vocab) != pool.index.sizes
    assert best.config == wanted.search and best.config.lookahead and best.config.prior == 1.0
    assert best.query_head() is not None and pool.query_head() is None
    assert (best.score, pool.score) == ("best", "paper") and list(best.reference) == ["best"]
    assert best.notes == ["queries pass a query head with random weights first: its time counts, its answers do not."]
    assert isinstance(best.model, RunConfig) and best.decoder().config.null_queries > 0


def test_the_reference_answers_are_those_of_look_ahead_and_prior(best: Pool, tmp_path: Path) -> None:
    system = open_system(("reference", "exact", "fp32"), best, "cpu", 1, 4, tmp_path)
    part = time_calls(system, best.query_QD, 4, 1.0, best.reference["best"], thorough=True)
    assert part["overlap"] == 1.0 and part["checked"] == 32
    scorer = build_scorer(best.config, best.codebooks, best.decoder(), best.first_geometric)
    ahead = build_lookahead(best.config, best.codebooks, best.first_geometric)
    few = search_items(scorer, best.index, best.query_QD[:32], beam=best.config.beam, k=50, ahead=ahead)
    assert [row.position.tolist() for row in few] == [row.tolist() for row in best.reference["best"]]
    plain = replace(best, config=replace(best.config, lookahead=False, prior=0.0))
    other = right_answers(plain, "cpu")["paper"]
    shared = [overlap(a.tolist(), b.tolist()) for a, b in zip(other, best.reference["best"], strict=True)]
    assert np.mean(shared) < 0.999  # it is another search


def test_the_fast_engine_answers_for_itself_or_says_why_not(best: Pool, tmp_path: Path) -> None:
    case = ("siglum", "exact", "fp32")
    if reason_against(best.config, best.decoder()) is None:
        system = open_system(case, best, "cpu", 1, 4, tmp_path)
        part = time_calls(system, best.query_QD, 4, 1.0, best.reference["best"], thorough=True)
        assert part["overlap"] > 0.99
    else:
        with pytest.raises(SiglumError, match=r"does not go with search\.(lookahead|prior)"):
            open_system(case, best, "cpu", 1, 4, tmp_path)


@pytest.mark.parametrize("system", ["faiss-flat", "faiss-hnsw", "faiss-ivf", "faiss-pq", "torch-flat"])
def test_dense_systems_find_near_items(pool: Pool, tmp_path: Path, system: str) -> None:
    if system.startswith("faiss"):
        pytest.importorskip("faiss")
    opened = open_system((system, "none", "fp32"), pool, "cpu", 1, 4, tmp_path)
    exact = (pool.query_QD[:8] @ pool.item_ND().T).topk(50).indices.numpy()
    found = opened.positions(opened.search(pool.query_QD[:8]))
    assert found is not None
    shares = [overlap(one, other) for one, other in zip(found, exact, strict=True)]
    assert np.mean(shares) == 1.0 if system.endswith("flat") else np.mean(shares) > 0.7
    if not system.endswith("flat"):
        assert "build_seconds" in opened.facts and 0.7 < opened.facts["recall_at_50"] <= 1
        again = open_system((system, "none", "fp32"), pool, "cpu", 1, 4, tmp_path)
        assert "build_seconds" not in again.facts  # read, not built


def test_ctranslate2_has_the_same_weights(pool: Pool, tmp_path: Path) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2")
    pytest.importorskip("transformers")
    from siglum.lab.speed.peers import as_t5, name_of

    system = open_system(("ctranslate2", "none", "int8"), pool, "cpu", 1, 2, tmp_path)
    found = system.search(pool.query_QD[:2])
    assert [len(one.hypotheses) for one in found] == [pool.config.beam] * 2
    assert {len(path) for path in found[0].hypotheses} == {pool.index.levels}
    assert system.positions(found) is None
    model = as_t5(pool.decoder())
    with torch.no_grad():
        start = torch.zeros(1, 1, dtype=torch.long)
        wanted = model(input_ids=torch.tensor([[7]]), decoder_input_ids=start).logits[0, 0]
    wanted[0] = -torch.inf  # it leaves the end of a sequence out before the softmax
    opened = ctranslate2.Translator(str(tmp_path / "ctranslate2"), compute_type="int8", intra_threads=1)
    options = {"beam_size": 5, "num_hypotheses": 5, "min_decoding_length": 1, "max_decoding_length": 1}
    best = opened.translate_batch([[name_of(7)]], return_scores=True, length_penalty=0, **options)[0]
    tokens = [int(path[0][1:]) for path in best.hypotheses]
    torch.testing.assert_close(torch.tensor(best.scores), wanted.log_softmax(-1)[tokens], atol=0.1, rtol=0)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(*[st.integers(0, 2)] * 4), min_size=1, max_size=30))
def test_the_prefix_tree_allows_what_the_codes_allow(codes: list[tuple[int, ...]]) -> None:
    from siglum.lab.speed.peers import PrefixTree

    first = [1, 4, 7, 10]
    index = Index.build([str(i) for i in range(len(codes))], np.array(codes), (3,) * 4, "t")
    tree = PrefixTree(index, first)
    paths = [[code + start for code, start in zip(path, first, strict=True)] for path in codes]
    for path in paths:
        for depth in range(4):
            wanted = {other[depth] for other in paths if other[:depth] == path[:depth]}
            assert sorted(tree(0, torch.tensor([0, *path[:depth]]))) == sorted(wanted)


def test_calls_take_other_queries_each_time_and_go_round() -> None:
    seen: list[list[float]] = []

    class Recorder:
        reference, facts = None, {}

        def search(self, query_QD: torch.Tensor) -> None:
            seen.append(query_QD[:, 0].tolist())

        def positions(self, result: None) -> None:
            """Find nothing."""

    part = time_calls(Recorder(), torch.arange(5.0)[:, None], 2, 0.0, [], thorough=True)
    assert seen == [[0.0, 1.0], [2.0, 3.0]] and part["overlap"] is None
    time_calls(Recorder(), torch.arange(3.0)[:, None], 2, 0.0, [], thorough=False)
    assert seen[2:] == [[0.0, 1.0], [2.0, 0.0]]


def write_part(job: Job, batch: int, seconds: list[float]) -> None:
    job.part(batch).parent.mkdir(parents=True, exist_ok=True)
    job.part(batch).write_text(json.dumps({"batch": batch, "seconds": seconds}))


def test_on_a_gpu_transformers_climbs_as_long_as_it_pays(tmp_path: Path) -> None:
    own = SpeedSettings(work=tmp_path, device="cuda", batches=(1, 1024))
    case = ("hf-generate", "none", "fp32")
    tried = tuple(speed.batches(own, case, 100, 0))
    assert tried == (1, 4, 8, 16, 32, 64, 128, 256, 1024)
    job, timed = Job(own, case, 100, 0, tried), []
    for batch, wanted in speed.paying(job):
        rate = min(batch, 16)
        write_part(job, batch, [batch / rate] if wanted else [])
        timed += [batch] if wanted else []
    assert timed == [1, 4, 8, 16, 32]
    assert speed.batches(own, case, 100, 1) == [1, 16]  # what was asked for, and the best
    assert speed.batches(own, ("siglum", "exact", "bf16"), 100, 1) == [1, 1024]


@pytest.mark.parametrize(("dtype", "swept"), [("fp32", [1, 4, 8, 16, 32]), ("bf16", [1, 8, 32])])
def test_on_a_cpu_transformers_climbs_beyond_the_usual_batches_if_it_pays(
    tmp_path: Path, dtype: str, swept: list[int]
) -> None:
    own, case = SpeedSettings(work=tmp_path, batches=(1, 8, 32, 64)), ("hf-generate", "none", dtype)
    tried = speed.batches(own, case, 100, 0)
    assert tried == [*swept, 64]
    job, timed = Job(own, case, 100, 0, tuple(tried)), []
    for batch, wanted in speed.paying(job):
        write_part(job, batch, [batch / min(batch, 8)] if wanted else [])
        timed += [batch] if wanted else []
    assert timed == swept
    assert speed.batches(own, case, 100, 1) == [1, 8, 32]
    for batch in tried:
        job.part(batch).unlink()
    for batch, wanted in speed.paying(job):  # a dip at 8 does not count against what comes after it
        write_part(job, batch, [batch / (3.0 if batch == 8 else batch)] if wanted else [])
    assert json.loads(job.part(64).read_text())["seconds"]


def test_systems_without_their_package_are_left_out_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "find_spec", lambda name: None if name in ("faiss", "ctranslate2") else object())
    cases, notes = speed.possible(SpeedSettings(work=Path("unused")))
    assert {case[0] for case in cases} == {"hf-generate", "siglum", "torch-flat"}
    assert len(notes) == 5 and all("not installed" in note for note in notes)


def test_cases_follow_what_is_asked_for() -> None:
    own = SpeedSettings(work=Path("unused"), systems=("siglum", "faiss-flat"), modes=("scan", "exact"))
    wanted = {("siglum", "scan", "fp32"), ("faiss-flat", "none", "fp32")}
    assert set(own.cases()) == wanted | {("siglum", "exact", dtype) for dtype in ("fp32", "bf16", "int8")}
    on_gpu = replace(own, device="cuda:1")
    assert {case[0] for case in on_gpu.cases()} == {"siglum"}
    assert own.elsewhere() == [] and on_gpu.elsewhere() == ["faiss-flat", "siglum scan"]
    assert replace(on_gpu, systems=("torch-flat",)).elsewhere() == []


def test_peers_without_the_score_of_a_recipe_are_left_out_with_a_note() -> None:
    own = SpeedSettings(
        work=Path("unused"), recipe="best", systems=("hf-generate", "ctranslate2", "reference", "siglum")
    )
    cases, notes = speed.possible(own)
    assert {case[:2] for case in cases} == {
        ("reference", "exact"),
        *(("siglum", mode) for mode in ("exact", "scan", "scan-rescore")),
    }
    assert notes == [
        "hf-generate was left out: it has no place for search.lookahead and search.prior of recipe best.",
        "ctranslate2 was left out: it has no place for search.lookahead and search.prior of recipe best.",
        "siglum renormalised was left out: search.prior goes with normalisation level alone.",
    ]


def bench(out: Path, *more: str) -> int:
    few = ["--scale", "tiny", "--pools", "400", "--batches", "1,4", "--rounds", "1", "--seconds", "0.01"]
    some = ["--systems", "siglum,torch-flat", "--modes", "scan", "--queries", "16", "--threads", "1"]
    return call(bench_speed.Command, bench_speed.run, "bench speed", ["--out", str(out), *few, *some, *more])


def test_one_command_measures_and_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    out = tmp_path / "speed.json"
    assert bench(out) == 0
    document = json.loads(out.read_text())
    rows = document["rows"]
    assert {(row["system"], row["batch"]) for row in rows} == {(s, b) for s in ("siglum", "torch-flat") for b in (1, 4)}
    assert all(set(KEYS) | {"overlap_at_50", "queries"} <= set(row) for row in rows)
    assert all(row["queries_per_s"] > 0 and row["p95_ms"] >= row["p50_ms"] > 0 for row in rows)
    assert [row["overlap_at_50"] is None for row in rows] == [row["system"] == "torch-flat" for row in rows]
    told = " ".join(note for note in document["notes"] if note.startswith("siglum scan against exhaustive search"))
    assert "at batch 1 and 4:" in told or ("at batch 1:" in told and "at batch 4:" in told)
    assert document["machine"]["versions"]["torch"] and "before" in document["load_average"]
    table = out.with_suffix(".md").read_text()
    assert ["siglum", "scan", "fp32", "cpu", "400", "4"] in [
        line.replace("|", " ").split()[:6] for line in table.split("\n")
    ]
    assert not list(tmp_path.rglob("pool.safetensors"))  # taken away once all parts are there
    parts = sorted(tmp_path.rglob("400-*.json"))
    assert len(parts) == 4
    parts[0].unlink()
    before = {part: part.stat().st_mtime_ns for part in parts[1:]}
    assert bench(out) == 0
    assert parts[0].exists() and before == {part: part.stat().st_mtime_ns for part in parts[1:]}


def test_a_recipe_is_set_beside_the_reference_search(tmp_path: Path) -> None:
    out = tmp_path / "best.json"
    assert bench(out, "--recipe", "best", "--systems", "all", "--modes", "exact", "--precisions", "fp32") == 0
    document = json.loads(out.read_text())
    assert document["settings"]["recipe"] == "best"
    rows = {(row["system"], row["batch"]): row for row in document["rows"]}
    for batch in (1, 4):
        own = rows["reference", batch]
        assert own["overlap_at_50"] == own["ratio_to_reference"] == 1.0 and own["reference"] == "best"
        flat = rows["torch-flat", batch]
        assert flat["ratio_to_reference"] == pytest.approx(flat["queries_per_s"] / own["queries_per_s"], rel=1e-3)
    told = " ".join(document["notes"])
    assert "hf-generate was left out" in told and "query head" in told
    refused = "siglum exact fp32 over 400 items failed: mode exact in fp32 needs the fast engine"
    assert ("siglum", 1) in rows or refused in told  # never a row of another engine under its name
    assert "| ratio_to_hf | ratio_to_reference |" in out.with_suffix(".md").read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--pools", "5k"], "--pools takes whole numbers"),
        (["--pools", "0"], "--pools takes whole numbers of at least 1"),
        (["--batches", "x"], "--batches takes whole numbers"),
        (["--threads", "-1"], "--threads is -1"),
        (["--seconds", "-1"], "--seconds is -1.0"),
        (["--seconds", "nan"], "--seconds is nan"),
        (["--scale", "big"], "paper, tiny"),
        (["--systems", "siglum,faiss"], "hf-generate"),
        (["--modes", "fast"], "scan-rescore"),
        (["--rounds", "0"], "--rounds must be at least 1"),
        (["--device", "mps:7"], "mps"),
        (["--run", "nowhere"], "nowhere is not a run folder"),
        (["--run", ".", "--recipe", "best"], "leave --recipe out"),
        (["--recipe", "better"], "genius"),
    ],
)
def test_wrong_options_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert bench(tmp_path / "speed.json", *options) == 1
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1


def test_parts_of_other_versions_do_not_count(tmp_path: Path) -> None:
    own = SpeedSettings(work=tmp_path, versions="1")
    assert own.folder() == replace(own, modes=("scan",)).folder() != replace(own, versions="2").folder()


def test_one_system_that_fails_is_told_and_the_rest_is_kept(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    out = tmp_path / "speed.json"
    assert bench(out, "--pools", "100", "--systems", "faiss-pq,torch-flat") == 0  # faiss-pq needs 256 items
    document = json.loads(out.read_text())
    assert {row["system"] for row in document["rows"]} == {"torch-flat"}
    (note,) = [note for note in document["notes"] if note.startswith("faiss-pq fp32 over 100 items failed: ")]
    assert note.endswith(".") and note in out.with_suffix(".md").read_text()


def test_a_pool_that_cannot_be_made_is_told_once(tmp_path: Path) -> None:
    own = SpeedSettings(work=tmp_path, pools=(400,), rounds=2, systems=("torch-flat", "siglum"), run="none-such")
    said: list[str] = []
    with pytest.raises(SiglumError, match=r"nothing was measured: the pool of 400 items failed: .*none-such"):
        speed.run_speed(own, said.append)
    assert len(said) == 1
