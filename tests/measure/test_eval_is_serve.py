"""What is evaluated is what is served: one ranking, or one refusal, for any configuration of the search."""

from __future__ import annotations

import random
import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from siglum.config import SearchConfig, as_dict, from_dict
from siglum.measure.evaluate import run_of_task, union_rows
from siglum.measure.rankers import BeamRanker
from siglum.measure.systems import open_systems
from siglum.recipes import recipe
from siglum.run.folder import RunFolder
from siglum.run.stages import make_decoder, make_index, make_tokenizer, take_vectors
from siglum.search.hits import as_hits
from siglum.search.retriever import Retriever
from siglum.types import SiglumError, Vectors

CHOICES: dict[str, list[Any]] = {
    "scorer": ["fused", "fused", "fused", "decoder", "geometry", "oracle"],
    "beam": [1, 3, 10, 400],
    "omega": [0.0, 1.0, 50.0],
    "prior": [0.0, 0.0, 0.0, 0.7],
    "normalisation": ["level", "level", "level", "joint", "children"],
    "zscore": [False, False, False, True],
    "lookahead": [False, False, True],
    "leaf_order": ["pool", "dense"],
    "batch_size": [1, 7, 64],
    "engine": ["auto", "auto", "auto", "fast", "reference"],
    "precision": ["fp32", "fp32", "fp32", "fp32", "bf16", "int8"],
    "mode": ["exact", "exact", "exact", "renormalised", "scan", "scan-rescore"],
    "vector": ["mean"],  # of histories, which these queries are not
}
CONFIGURATIONS = 200
Found = list[list[tuple[str, float]]] | str


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, make_vectors) -> RunFolder:
    """A tiny run with all parts of a search (query head, prior, kept vectors); many items share their codes."""
    folder, config = RunFolder(tmp_path_factory.mktemp("served") / "run"), recipe("best", "tiny")
    config = replace(
        config,
        tokenizer=replace(config.tokenizer, vocab=(8, 8)),
        fusion=replace(config.fusion, dim=16, epochs=1),
        query=replace(config.query, epochs=1),
        decoder=replace(config.decoder, epochs=1),
    )
    folder.write_config(config)
    take_vectors(folder, make_vectors())
    make_tokenizer(folder)
    make_decoder(folder)
    make_index(folder, keep_vectors=True)
    return folder


def drawn(number: int) -> list[dict[str, Any]]:
    """Return random configurations, the same every time."""
    rng = random.Random(0)
    return [{name: rng.choice(values) for name, values in CHOICES.items()} for _ in range(number)]


def open_own(run: RunFolder, options: dict[str, Any]) -> BeamRanker:
    """Return what `siglum eval` measures as a run's own search, where the run has this configuration."""
    run.write_config(replace(run.config(), search=from_dict(SearchConfig, options)))
    own = open_systems(run).own
    assert own is not None
    return own


def evaluated(own: BeamRanker, vectors: Vectors) -> Found:
    """Return what an evaluation finds, on a pool and on all items."""
    tasks = vectors.of_split("test")
    task = tasks[0].spread(5)
    try:
        rankings = [own.rank(task.query_rows, pool, 20) for pool in (task.pool_rows, union_rows(tasks))]
    except SiglumError as error:
        return str(error)
    return [hits for one in rankings for hits in run_of_task(vectors, task, one).values()]


def served(retriever: Retriever, vectors: Vectors, options: dict[str, Any]) -> Found:
    """Return what the searches of a retriever give."""
    task = vectors.of_split("test")[0].spread(5)
    # All queries are fused at once, as an evaluation does: a row may round otherwise among others, and int8 steps then.
    queries = retriever.vectors(vectors.queries, "queries")[task.query_rows]
    pool = [vectors.items.ids[row] for row in task.pool_rows]
    try:
        found = [one for within in (pool, None) for one in retriever.rank(queries, k=20, within=within, **options)]
    except SiglumError as error:
        return str(error)
    return [[(hit.item_id, hit.score) for hit in as_hits(retriever.index, one)] for one in found]


def same(one: Found, other: Found) -> bool:
    """Return whether both are refusals in the same words, or rankings with the same ids and scores."""
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    pairs = list(zip(one, other, strict=True))
    ids = all([name for name, _ in a] == [name for name, _ in b] for a, b in pairs)
    return ids and all(np.allclose([s for _, s in a], [s for _, s in b], rtol=1e-5, atol=1e-5) for a, b in pairs)


def test_every_setting_of_a_search_is_drawn() -> None:
    assert set(CHOICES) == {field.name for field in fields(SearchConfig)}


def test_what_is_evaluated_is_what_is_served(run: RunFolder, make_vectors) -> None:
    retriever, vectors, answers, wrong = Retriever.load(run.root), make_vectors(), [], []
    own = open_own(run, as_dict(retriever.config))
    for number, options in enumerate(drawn(CONFIGURATIONS)):
        answers.append(served(retriever, vectors, options))
        # Opening the run takes longer than searching it: most are searches of one that is open.
        asked = replace(own, config=from_dict(SearchConfig, options)) if number % 10 else open_own(run, options)
        found = evaluated(asked, vectors)
        if not same(found, answers[-1]):
            wrong.append((options, found, answers[-1]))
    assert not wrong, f"{len(wrong)} of {CONFIGURATIONS} differ, such as {wrong[0]}"
    refused = {one for one in answers if isinstance(one, str)}
    answered = [one for one in answers if not isinstance(one, str)]
    assert len(answered) >= CONFIGURATIONS // 3 and len(refused) >= 5
    assert all(len(hits) for one in answered for hits in one)


def test_what_is_evaluated_is_what_is_served_without_a_decoder(run: RunFolder, tmp_path: Path, make_vectors) -> None:
    """Such a run is served by geometry, with all its other settings."""
    bare = RunFolder(tmp_path / "bare")
    shutil.copytree(run.root, bare.root)
    shutil.rmtree(bare.decoder)
    retriever, vectors, different = Retriever.load(bare.root), make_vectors(), 0
    plain = evaluated(replace(open_own(bare, {}), config=SearchConfig(scorer="geometry")), vectors)
    for options in ({"scorer": "fused"}, {"lookahead": True, "leaf_order": "dense", "beam": 2}, {"mode": "scan"}):
        asked = {**as_dict(SearchConfig()), **options}
        own = open_own(bare, asked)
        found = evaluated(own, vectors)
        served_as = {**asked, "scorer": "geometry"} if asked["scorer"] == "fused" else asked
        assert same(found, served(retriever, vectors, served_as))
        different += not same(found, plain)
    assert different


def test_the_order_of_a_leaf_reaches_both(run: RunFolder, make_vectors) -> None:
    retriever, vectors, found = Retriever.load(run.root), make_vectors(), {}
    for order in ("pool", "dense"):
        options = as_dict(SearchConfig(scorer="geometry", beam=10, leaf_order=order))
        found[order] = evaluated(open_own(run, options), vectors)
        assert same(found[order], served(retriever, vectors, options))
    assert not same(found["pool"], found["dense"])
