"""Weights chosen on validation are those a real beam search would choose, and their parts are the scorers' own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from siglum.config import SearchConfig, TokenizerConfig
from siglum.data.vectors import features_of
from siglum.index import Index
from siglum.lab.experiments.fusion_weights import (
    _components,
    first_ranks,
    mean_reciprocal_rank,
    reciprocal_ranks,
    weigh,
)
from siglum.measure.rankers import BeamRanker
from siglum.search.beam import Ranking
from siglum.search.engine import Engine
from siglum.tokenize.rq import ResidualQuantizer
from siglum.types import Task, Vectors

OMEGAS, PRIORS = (0.5, 3.0, 20.0, 200.0), (0.0, 1.0)


@dataclass
class Fixed:
    """A ranker that answers by heart: query row -> item rows."""

    answers: dict[int, list[int]]

    def rank(self, query_rows: np.ndarray, pool_rows: np.ndarray, k: int) -> list[Ranking]:
        found = [np.array(self.answers[int(row)][:k], np.int64) for row in query_rows]
        return [Ranking(rows, rows, -np.arange(len(rows), dtype=float)) for rows in found]


def test_the_first_positive_counts() -> None:
    task = Task("t", "val", np.array([4, 5, 6, 7]), np.arange(9), [np.array(p) for p in ([3, 1], [8], [2], [0])])
    ranker = Fixed({4: [0, 1, 3], 5: [8], 6: [0, 1, 3, 2], 7: []})
    assert first_ranks(task, ranker, 10).tolist() == [2, 1, 4, 0]
    assert first_ranks(task, ranker, 3).tolist() == [2, 1, 0, 0]


def test_reciprocal_ranks() -> None:
    assert reciprocal_ranks([[1, 2], [0, 5]]).tolist() == [[1.0, 0.5], [0.0, 0.2]]
    assert mean_reciprocal_rank([1, 0, 2, 0]) == 0.375


@dataclass
class Case:
    """A random system whose items all have codes of their own, with two validation tasks."""

    system: object
    quantizer: ResidualQuantizer
    codes: torch.Tensor
    index: Index
    vectors: Vectors

    def ranker(self, search: SearchConfig) -> BeamRanker:
        engine = Engine(self.system.codebooks, self.system.decoder, self.index)
        return BeamRanker(engine, np.arange(len(self.codes)), self.system.query, search)


@pytest.fixture(params=[0, 1, 2])
def case(request: pytest.FixtureRequest, make_system) -> Case:
    rng = np.random.default_rng(request.param)
    system = make_system(request.param, items=60, queries=20)
    system.decoder.config = replace(system.decoder.config, null_queries=0.1)
    codes = rng.permutation(np.unique(system.codes, axis=0))
    quantizer = ResidualQuantizer(TokenizerConfig(vocab=tuple(map(len, system.codebooks)), modality="none"), 6)
    with torch.no_grad():
        for book, own in zip(quantizer.codebooks, system.codebooks, strict=True):
            book.copy_(own)
    half = len(codes) // 2
    # Targets near the queries, so that omega matters; the second task has a pool of its own and two positives.
    near = torch.cdist(system.query, quantizer.decode(torch.as_tensor(codes)).detach()).argsort(1).numpy()
    tasks = [
        Task("a", "val", np.arange(12), np.arange(len(codes)), [row[[2]] for row in near[:12]]),
        Task("b", "val", np.arange(12, 20), np.arange(half), [row[row < half][[3, 9]] for row in near[12:]]),
    ]
    nothing = features_of(["x"], text=np.ones((1, 2)))
    vectors = Vectors(nothing, nothing, np.zeros(0, int), np.zeros(0, int), tasks)
    index = Index.build([str(row) for row in range(len(codes))], codes, quantizer.sizes, "tok")
    return Case(system, quantizer, torch.as_tensor(codes), index, vectors)


def test_the_parts_are_what_the_scorers_say(case: Case) -> None:
    items = np.stack([np.arange(len(case.codes))] * len(case.system.query))
    said = _components(case.system.decoder, case.quantizer, case.system.query, case.codes, items)
    plain = SearchConfig(scorer="decoder", beam=1000)
    geometry = replace(plain, scorer="geometry")
    engine = Engine(case.system.codebooks, case.system.decoder, case.index)
    without_query = BeamRanker(engine, items[0], torch.zeros_like(case.system.query), plain)
    rankers = (case.ranker(plain), without_query, case.ranker(geometry))
    for values, ranker in zip(said, rankers, strict=True):
        for query, ranking in enumerate(ranker.rank(np.arange(len(items)), items[0], 1000)):
            assert sorted(ranking.position) == items[0].tolist()
            np.testing.assert_allclose(values[query, ranking.position], ranking.score, atol=1e-4)


def test_the_choice_is_that_of_real_searches(case: Case) -> None:
    """With a beam that covers the pool, every setting's MRR is what searching with it gives."""
    search = SearchConfig(beam=1000)
    parts = (case.system.decoder, case.quantizer, case.system.query, case.codes)
    weighed = weigh(case.vectors, case.ranker(replace(search, scorer="decoder")), *parts, search, (OMEGAS, PRIORS))
    assert {(row["omega"], row["prior"]) for row in weighed.tried} == {(w, p) for w in OMEGAS for p in PRIORS}
    real = {}
    for row in weighed.tried:
        setting = replace(search, omega=row["omega"], prior=row["prior"])
        found = [first_ranks(task, case.ranker(setting), 10) for task in case.vectors.tasks]
        real[row["omega"], row["prior"]] = np.average(
            [mean_reciprocal_rank(ranks) for ranks in found], weights=[len(ranks) ** 0.5 for ranks in found]
        )
        assert row["mrr@10"] == pytest.approx(real[row["omega"], row["prior"]])
    assert len({round(value, 6) for value in real.values()}) > 1
    assert real[weighed.best.omega, weighed.best.prior] == pytest.approx(max(real.values()))
    assert weighed.best == replace(search, omega=weighed.best.omega, prior=weighed.best.prior)


def test_what_the_shortlist_misses_counts_as_a_miss(case: Case) -> None:
    task = case.vectors.tasks[0]
    answers = {int(row): [int(task.positives[place][0])] for place, row in enumerate(task.query_rows)}
    answers |= {int(row): [] for row in task.query_rows[:3]}
    some = replace(case.vectors, tasks=[task])
    parts = (case.system.decoder, case.quantizer, case.system.query, case.codes)
    weighed = weigh(some, Fixed(answers), *parts, SearchConfig(beam=5), ((1.0,), (0.0,)))
    assert weighed.tried == [{"omega": 1.0, "prior": 0.0, "mrr@10": pytest.approx(0.75)}]


def test_the_test_split_has_no_say(case: Case) -> None:
    test = [replace(task, split="test", positives=task.positives[::-1]) for task in case.vectors.tasks]
    more = replace(case.vectors, tasks=[*test, *case.vectors.tasks])
    parts = (case.system.decoder, case.quantizer, case.system.query, case.codes)
    ranker, search = case.ranker(SearchConfig(beam=8)), SearchConfig(beam=8)
    assert weigh(more, ranker, *parts, search, (OMEGAS, PRIORS)) == weigh(
        case.vectors, ranker, *parts, search, (OMEGAS, PRIORS)
    )
