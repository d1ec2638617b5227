"""Systems on tasks: pools, ids and measures as an explicit loop gives them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from siglum.config import SearchConfig
from siglum.index import Index
from siglum.measure.evaluate import evaluate_systems, qrels_of_task, run_of_task, union_rows
from siglum.measure.rankers import BeamRanker, FlatRanker
from siglum.search.engine import Engine
from siglum.types import Task, Vectors


@pytest.fixture
def dense(vectors: Vectors) -> FlatRanker:
    """A dense ranker on random unit vectors in which a query is near its item."""
    generator = torch.Generator().manual_seed(0)
    item = torch.nn.functional.normalize(torch.randn(len(vectors.items), 8, generator=generator), dim=1)
    query = torch.randn(len(vectors.queries), 8, generator=generator)
    for task in vectors.tasks:
        for row, found in zip(task.query_rows, task.positives, strict=True):
            query[row] = item[found[0]] + 0.3 * query[row]
    return FlatRanker(query, item)


def test_success_equals_a_loop(vectors: Vectors, dense: FlatRanker) -> None:
    tasks = vectors.of_split("test")
    found = evaluate_systems(vectors, tasks, {"dense": dense})
    assert list(found.tasks) == ["any2i", "any2t", "any2it"]
    everything = union_rows(tasks)
    for pools, results in (({t.name: t.pool_rows for t in tasks}, found.tasks), (None, found.union)):
        for task in tasks:
            pool = everything if pools is None else pools[task.name]
            hits = {1: 0, 5: 0, 10: 0}
            for row, positive in zip(task.query_rows, task.positives, strict=True):
                scores = dense.item_ND[torch.as_tensor(pool)] @ dense.query_MD[row]
                ranked = pool[scores.argsort(descending=True).numpy()]
                for k in hits:
                    hits[k] += positive[0] in ranked[:k]
            for k, count in hits.items():
                assert results[task.name]["dense"][f"success@{k}"] == pytest.approx(count / len(task.query_rows))
    assert any(found.tasks[t]["dense"] != found.union[t]["dense"] for t in found.tasks)


def test_runs_hold_ids_of_the_pool(vectors: Vectors, dense: FlatRanker) -> None:
    task = vectors.of_split("test")[0]
    found = evaluate_systems(vectors, [task], {"dense": dense}, k=4, union=False)
    assert found.union == {}
    run = found.runs[task.name, "dense"]
    assert list(run) == [vectors.queries.ids[row] for row in task.query_rows]
    pool = {vectors.items.ids[row] for row in task.pool_rows}
    for results in run.values():
        assert len(results) == 4
        assert {item for item, _ in results} <= pool


def test_qrels_name_the_positives(vectors: Vectors) -> None:
    task = vectors.of_split("val")[1]
    qrels = qrels_of_task(vectors, task)
    for row, found in zip(task.query_rows, task.positives, strict=True):
        assert qrels[vectors.queries.ids[row]] == {vectors.items.ids[p]: 1 for p in found}


def test_a_wide_beam_and_a_scan_give_one_ranking(vectors: Vectors, make_system) -> None:
    """The index holds some rows only, in an order of its own; the pool is part of them."""
    system = make_system(0, items=40)
    rows = np.random.default_rng(0).permutation(300)[:40]
    rebuilt = torch.zeros(300, 6)
    rebuilt[torch.as_tensor(rows)] = system.reconstructions()
    engine = Engine(system.codebooks, None, system.index)
    beam = BeamRanker(engine, rows, system.query, SearchConfig(scorer="oracle", beam=40, batch_size=2))
    scan = FlatRanker(system.query, rebuilt)
    for pool in (rows, np.sort(rows), rows[5:20], rows[:1]):
        for left, right in zip(
            beam.rank(np.array([2, 0]), pool, 50), scan.rank(np.array([2, 0]), pool, 50), strict=True
        ):
            assert set(left.position.tolist()) == set(right.position.tolist()) == set(pool.tolist())
            np.testing.assert_allclose(left.score, right.score, atol=1e-4)


def test_a_query_without_results_is_a_miss(vectors: Vectors) -> None:
    index = Index.build(["a"], np.array([[0]]), (1,), "tok")
    engine = Engine([torch.ones(1, 2)], None, index)
    blind = BeamRanker(engine, np.array([0]), torch.ones(400, 2), SearchConfig(scorer="oracle", beam=1))
    task = Task("t", "test", np.array([0, 1]), np.array([5, 6]), [np.array([5]), np.array([6])])
    found = evaluate_systems(vectors, [task], {"blind": blind}, union=False)
    assert found.runs["t", "blind"] == {"q0": [], "q1": []}
    assert found.tasks["t"]["blind"]["success@10"] == 0.0


def test_union_rows_are_sorted_and_distinct() -> None:
    tasks = [Task("a", "test", np.zeros(0, int), pool, []) for pool in (np.array([5, 2]), np.array([9, 5]))]
    assert union_rows(tasks).tolist() == [2, 5, 9]


def test_run_of_task_keeps_scores(vectors: Vectors, dense: FlatRanker) -> None:
    task = vectors.of_split("test")[0]
    rankings = dense.rank(task.query_rows, task.pool_rows, 3)
    run = run_of_task(vectors, task, rankings)
    first = next(iter(run.values()))
    assert [score for _, score in first] == rankings[0].score.tolist()
