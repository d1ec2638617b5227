"""The systems of a run on one split: its own search and those it is compared with, opened and measured."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from siglum.config import SearchConfig
from siglum.data.trec import write_qrels, write_run
from siglum.data.vectors import load_vectors
from siglum.files import open_stage
from siglum.fuse.contrastive import embed
from siglum.fuse.modules import Fusion, plain_sum
from siglum.fuse.store import load_fusion
from siglum.generate.decoder import CodeDecoder
from siglum.generate.query import query_vectors
from siglum.measure.evaluate import Evaluation, Ranker, evaluate_systems, qrels_of_task
from siglum.measure.health import Health, tokenizer_health
from siglum.measure.rankers import BeamRanker, FlatRanker, geometry_alone
from siglum.measure.survival import beam_survival, token_survival
from siglum.run.coded import Coded, item_rows
from siglum.run.folder import RunFolder
from siglum.run.results import begin_results, keep_results, measured_on
from siglum.search.histories import AskedHistories, HistoryReader, ManyQuestions
from siglum.search.retriever import Retriever
from siglum.types import Vectors


@dataclass(slots=True)
class Systems:
    """The systems of one run on one split, ready to rank, and what survival is measured on."""

    name: str
    """What the run's own system is called: its recipe."""
    coded: Coded
    split: str
    rows: np.ndarray
    """The items of the split's pools."""
    indexed_rows: np.ndarray
    """The items in the run's index, by pool position."""
    retriever: Retriever
    dense: FlatRanker
    dense_raw: FlatRanker | None
    """Dense search over the features as they are, where they have a joint space of their own."""
    scan: FlatRanker | None
    geometry: BeamRanker | None
    """What ranks by vectors of codes; None where codes have none."""
    own: BeamRanker | None
    """The run's own search, as it is served; None where neither a decoder nor vectors of codes could rank."""

    @property
    def vectors(self) -> Vectors:
        """The collection."""
        return self.coded.vectors

    @property
    def missing(self) -> int:
        """How many items of the pools are not in the run's index, so that no beam finds them."""
        return int((~np.isin(self.rows, self.indexed_rows)).sum())

    def rankers(self) -> dict[str, Ranker]:
        """Return all systems there are by name, the run's own last."""
        named = {
            "dense_raw": self.dense_raw,
            "dense": self.dense,
            "scan": self.scan,
            "geometry": self.geometry,
            self.name: self.own,
        }
        return {name: ranker for name, ranker in named.items() if ranker is not None}


def open_systems(run: RunFolder, split: str = "test", device: str = "cpu") -> Systems:
    """Load a run and build its systems on the pools of a split; beams search the run's index, filtered by pool."""
    name = run.config().recipe
    vectors, made_from = load_vectors(run.vectors)
    open_stage(run.tokenizer, "tokenizer", vectors=made_from)
    dense, raw = load_fusion(run.dense, device), joint_space(run, vectors)
    rows = vectors.pool_rows(split)
    retriever = Retriever.load(run.root, device=device)
    coded, config = Coded.of(vectors, retriever.tokenizer, device), retriever.config
    asked: ManyQuestions
    if vectors.histories is None:
        asked = query_vectors(retriever.tokenizer, retriever.head, vectors.queries, device)
    else:
        asked = asked_histories(coded, retriever.decoder, config)
    indexed, engine = item_rows(vectors, retriever.index), replace(retriever.engine, graphs=False)
    has_vectors = bool(retriever.tokenizer.codebooks())
    return Systems(
        name,
        coded,
        split,
        rows,
        indexed,
        retriever,
        dense_of(dense, vectors, device),
        None if raw is None else dense_of(raw, vectors, device),
        scan_of(coded) if has_vectors else None,
        BeamRanker(engine, indexed, coded.query_MD, geometry_alone(config)) if has_vectors else None,
        BeamRanker(engine, indexed, asked, config) if has_vectors or retriever.decoder is not None else None,
    )


def asked_histories(coded: Coded, decoder: CodeDecoder | None, config: SearchConfig) -> ManyQuestions:
    """Return what the histories of a collection are asked with; without a decoder their vectors alone."""
    histories = coded.vectors.histories
    if decoder is None or histories is None:
        return coded.query_MD
    return AskedHistories(HistoryReader(decoder, coded.codes_NT, coded.item_ND), histories, config.vector)


def scan_of(coded: Coded) -> FlatRanker:
    """Return exhaustive search over the reconstructions of all items."""
    return FlatRanker(coded.query_MD, coded.reconstructions(), squared_distance=True)


def dense_of(fusion: Fusion, vectors: Vectors, device: str) -> FlatRanker:
    """Return exhaustive search over all items in the space of a fusion module."""
    return FlatRanker(embed(fusion, vectors.queries, device), embed(fusion, vectors.items, device))


def joint_space(run: RunFolder, vectors: Vectors) -> Fusion | None:
    """Return the space that a run's features have in common as they are; None where they have none."""
    joint = open_stage(run.vectors, "vectors").get("joint")
    return plain_sum(vectors.items.image.shape[1], vectors.items.text.shape[1]) if joint else None


def survival_of(systems: Systems, beam: int | None = None) -> list[float]:
    """Per-level token survival under the quantised oracle over all queries of the split (first positive).

    It is of no level where codes have no vectors.
    """
    query_rows, targets = (torch.as_tensor(rows) for rows in systems.vectors.first_pairs(systems.split))
    coded, tokenizer = systems.coded, systems.coded.tokenizer
    if not tokenizer.codebooks():
        return []
    width, first_residual = beam or systems.retriever.config.beam, tokenizer.quantizer.first_residual
    return token_survival(
        coded.query_MD[query_rows], coded.codes_NT[targets], tokenizer.codebooks(), width, first_residual
    )


def beam_survival_of(systems: Systems, ranker: BeamRanker, queries_per_task: int = 200) -> list[float]:
    """Cumulative survival in a system's real beam, over all tasks on their own pools, modality token first.

    At most `queries_per_task` queries of each task are followed, evenly spread over its queries; a target that is not
    in the index never was in the beam.
    """
    total, count = np.zeros(ranker.index.levels), 0
    for whole in systems.vectors.of_split(systems.split):
        task = whole.spread(queries_per_task)
        allowed = ranker.index.allow(np.isin(ranker.index_rows, task.pool_rows))
        places = ranker.index.ids.locate([systems.vectors.items.ids[int(rows[0])] for rows in task.positives])
        targets = ranker.index.rows_of(places[places >= 0])
        queries = ranker.query_MD[torch.as_tensor(task.query_rows[places >= 0])]
        alive = beam_survival(
            ranker.scorer, ranker.index, queries, targets, ranker.beam, allowed, ranker.batch_size, ranker.ahead
        )
        total += len(queries) * np.array(alive)
        count += len(places)
    return [float(value) for value in total / count]


def health_of(systems: Systems) -> Health:
    """Health of the tokenizer on the items of the split's pools."""
    coded, rows = systems.coded, torch.as_tensor(systems.rows)
    return tokenizer_health(coded.tokenizer.quantizer, coded.item_ND[rows], coded.codes_NT[rows])


def evaluate_run(
    run: RunFolder,
    systems: Systems,
    rankers: dict[str, Ranker],
    *,
    union: bool = True,
    union_queries: int | None = None,
    k: int = 10,
) -> Evaluation:
    """Stage 5: evaluate systems on the tasks of a split and write TREC runs and qrels."""
    tasks = systems.vectors.of_split(systems.split)
    result = evaluate_systems(systems.vectors, tasks, rankers, k=k, union=union, union_queries=union_queries)
    ends = ["qrels", *(f"{name}.trec" for name in rankers)]
    names = [f"{task.name or 'all'}.{systems.split}.{end}" for task in tasks for end in ends]
    begin_results(run.runs, names)
    for task in tasks:
        write_qrels(run.runs / f"{task.name or 'all'}.{systems.split}.qrels", qrels_of_task(systems.vectors, task))
        for name in rankers:
            path = run.runs / f"{task.name or 'all'}.{systems.split}.{name}.trec"
            write_run(path, result.runs[task.name, name], tag=name)
    keep_results(run.runs, names, measured_on(run))
    return result
