"""A run folder and the verbs that fill it, stage by stage.

runs/NAME/{config.json, log.jsonl, 1-vectors, 2-tokenizer, 3-decoder, 4-index, 5-runs, 6-report}: every stage
records the fingerprint of what it was made from, and a later stage refuses an earlier one that has changed.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from siglum.config import RunConfig, as_dict, config_fingerprint, from_dict
from siglum.data.collection import Collection
from siglum.data.trec import write_qrels, write_run
from siglum.data.vectors import load_vectors, save_vectors
from siglum.encode.base import Encoder
from siglum.encode.run import Encoded, encode_collection
from siglum.files import STAGE_FILE, open_stage, read_record, write_json
from siglum.fuse.contrastive import embed, fit_fusion
from siglum.fuse.modules import Fusion, plain_sum
from siglum.fuse.store import load_fusion, save_fusion
from siglum.generate.query import fit_query_head, query_vectors
from siglum.generate.store import save_decoder
from siglum.generate.train import fit_decoder
from siglum.index import Index
from siglum.log import BothLogs, JsonlLog, Log, TensorBoardLog
from siglum.measure.evaluate import (
    BeamRanker,
    Evaluation,
    FlatRanker,
    Ranker,
    evaluate_systems,
    qrels_of_task,
    union_rows,
)
from siglum.measure.health import Health, tokenizer_health
from siglum.measure.survival import beam_survival, token_survival
from siglum.search.lookahead import LookAhead
from siglum.search.retriever import Retriever, save_index
from siglum.search.scorers import Scorer
from siglum.tokenize.store import load_tokenizer, save_tokenizer
from siglum.tokenize.train import Tokenizer, fit_tokenizer
from siglum.types import SiglumError, Vectors


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Where a run's stages lie."""

    root: Path

    @property
    def vectors(self) -> Path:
        """Stage 1."""
        return self.root / "1-vectors"

    @property
    def tokenizer(self) -> Path:
        """Stage 2."""
        return self.root / "2-tokenizer"

    @property
    def dense(self) -> Path:
        """Stage 2, the dense space every system starts from."""
        return self.root / "2-tokenizer" / "dense"

    @property
    def decoder(self) -> Path:
        """Stage 3."""
        return self.root / "3-decoder"

    @property
    def index(self) -> Path:
        """Stage 4."""
        return self.root / "4-index"

    @property
    def runs(self) -> Path:
        """Stage 5."""
        return self.root / "5-runs"

    @property
    def report(self) -> Path:
        """Stage 6."""
        return self.root / "6-report"

    def config(self) -> RunConfig:
        """Read the run's configuration."""
        if not (self.root / "config.json").exists():
            raise SiglumError(
                f"{self.root} is not a run folder: it has no config.json; begin one with `siglum encode`."
            )
        config: RunConfig = from_dict(RunConfig, read_record(self.root / "config.json"))
        return config

    def write_config(self, config: RunConfig) -> None:
        """Write the run's configuration."""
        write_json(self.root / "config.json", as_dict(config))

    def log(self, tensorboard: bool = False) -> Log:
        """Return the run's log: JSONL, and TensorBoard beside it if asked for."""
        jsonl = JsonlLog(self.root / "log.jsonl")
        return BothLogs(jsonl, TensorBoardLog(self.root / "tensorboard")) if tensorboard else jsonl


def make_vectors(
    run: RunFolder,
    collection: Collection,
    encoder: Encoder,
    *,
    identity: str,
    strict: bool = False,
    resume: bool = False,
    workers: int = 1,
) -> Encoded:
    """Stage 1: encode a collection; `workers` threads decode its pictures."""
    return encode_collection(
        collection, encoder, run.vectors, identity=identity, strict=strict, resume=resume, workers=workers
    )


def take_vectors(run: RunFolder, vectors: Vectors) -> str:
    """Stage 1 from one's own features; those of one size are taken to live in one space."""
    joint = plain_sum(vectors.items.image.shape[1], vectors.items.text.shape[1]) is not None
    return save_vectors(run.vectors, vectors, {"collection": "arrays"}, encoder="none", joint=joint)


def make_dense(run: RunFolder, *, device: str = "cpu", resume: bool = False, log: Log | None = None) -> Fusion:
    """Stage 2, first half: the fused space trained with L_cl alone, best epoch on validation."""
    config, log = run.config(), log or run.log()
    vectors, made_from = load_vectors(run.vectors)
    checkpoint = run.tokenizer / "checkpoint" / "fusion"
    dense, history = fit_fusion(
        vectors, config.fusion, seed=config.seed, device=device, folder=checkpoint, resume=resume, log=log
    )
    save_fusion(run.dense, dense, dense_inputs(config, made_from), epochs=len(history))
    return dense


def dense_inputs(config: RunConfig, vectors: str) -> dict[str, str]:
    """Return what the dense space is made from: the fingerprint of the vectors, the settings and the seed."""
    return {"vectors": vectors, "fusion": config_fingerprint(config.fusion), "seed": str(config.seed)}


def make_tokenizer(run: RunFolder, *, device: str = "cpu", resume: bool = False, log: Log | None = None) -> Tokenizer:
    """Stage 2: the tokenizer, from the dense space on; that is made first unless it is there already."""
    config, log = run.config(), log or run.log()
    vectors, made_from = load_vectors(run.vectors)
    if (run.dense / STAGE_FILE).exists() and read_record(run.dense / STAGE_FILE, "inputs")["inputs"] == dense_inputs(
        config, made_from
    ):
        start = load_fusion(run.dense, device)
    else:
        start = copy.deepcopy(make_dense(run, device=device, resume=resume, log=log))
    tokenizer = fit_tokenizer(
        vectors,
        start,
        config.tokenizer,
        seed=config.seed,
        device=device,
        folder=run.tokenizer / "checkpoint" / "tokenizer",
        resume=resume,
        log=log,
    )
    known = open_stage(run.vectors, "vectors")
    encoder = {name: known[name] for name in ("encoder", "encoder_fingerprint") if name in known}
    save_tokenizer(run.tokenizer, tokenizer, {"vectors": made_from}, **encoder)
    return tokenizer


def make_decoder(run: RunFolder, *, device: str = "cpu", resume: bool = False, log: Log | None = None) -> None:
    """Stage 3: train the decoder."""
    config, log = run.config(), log or run.log()
    vectors, made_from = load_vectors(run.vectors)
    tokenizer, record = load_tokenizer(run.tokenizer, device, vectors=made_from)
    checkpoint = run.decoder / "checkpoint"
    options: dict[str, Any] = {
        "seed": config.seed,
        "device": device,
        "folder": checkpoint,
        "resume": resume,
        "log": log,
    }
    head = fit_query_head(vectors, tokenizer, config.query, **options)
    decoder, _ = fit_decoder(vectors, tokenizer, config.decoder, head=head, **options)
    save_decoder(run.decoder, decoder, record["tokenizer_fingerprint"], head, parameters=decoder.parameter_count())


def make_index(run: RunFolder, *, keep_vectors: bool = False, device: str = "cpu") -> Index:
    """Stage 4: index all items of the test pools, or all items where there are no test tasks."""
    vectors, made_from = load_vectors(run.vectors)
    tokenizer, record = load_tokenizer(run.tokenizer, device, vectors=made_from)
    tasks = vectors.of_split("test")
    rows = union_rows(tasks) if tasks else np.arange(len(vectors.items))
    index, item_ND = _index_rows(vectors, tokenizer, rows, record["tokenizer_fingerprint"], device)
    save_index(run.index, index, item_ND if keep_vectors else None)
    return index


def _index_rows(
    vectors: Vectors, tokenizer: Tokenizer, rows: np.ndarray, fingerprint: str, device: str
) -> tuple[Index, torch.Tensor]:
    items = vectors.items.rows(rows)
    item_ND = embed(tokenizer.fusion, items, device)
    codes = tokenizer.quantizer.encode(item_ND, torch.as_tensor(items.modality.astype(np.int64)).to(device))
    return Index.build(items.ids, codes.cpu().numpy(), tokenizer.quantizer.sizes, fingerprint), item_ND


@dataclass(slots=True)
class Systems:
    """The systems of one run on one split, ready to rank, and what survival is measured on."""

    vectors: Vectors
    split: str
    retriever: Retriever
    dense: FlatRanker
    dense_raw: FlatRanker | None
    """Dense search over the features as they are, where they have a joint space of their own."""
    scan: FlatRanker
    geometry: BeamRanker
    own: BeamRanker | None
    """The run's own scorer (decoder, fused, ...), if a decoder exists."""
    query_MD: torch.Tensor
    item_ND: torch.Tensor
    codes_NT: torch.Tensor
    rows: np.ndarray
    rebuilt: bool
    """Whether the saved index holds other items than the split's pools, so that one was built for them."""


def open_systems(run: RunFolder, split: str = "test", device: str = "cpu") -> Systems:
    """Load a run and build its systems on the pools of a split."""
    vectors, made_from = load_vectors(run.vectors)
    tokenizer, record = load_tokenizer(run.tokenizer, device, vectors=made_from)
    dense = load_fusion(run.dense, device)
    own = record["tokenizer_fingerprint"]
    tasks = vectors.of_split(split)
    if not tasks:
        there = ", ".join(sorted({task.split for task in vectors.tasks})) or "none"
        raise SiglumError(f"{run.root} has no tasks in split {split}; it has {there}.")
    retriever = Retriever.load(run.root, device=device)
    rows = union_rows(tasks)
    rebuilt = list(retriever.index.ids) != [vectors.items.ids[int(row)] for row in rows]
    if rebuilt:
        retriever.index, _ = _index_rows(vectors, tokenizer, rows, own, device)
    query, item = embed(tokenizer.fusion, vectors.queries, device), embed(tokenizer.fusion, vectors.items, device)
    codes = tokenizer.quantizer.encode(item, torch.as_tensor(vectors.items.modality.astype(np.int64)).to(device))
    asked = query_vectors(tokenizer, retriever.head, vectors.queries, device)
    config = retriever.config
    geometry = retriever.scorer(from_dict(type(config), {**as_dict(config), "scorer": "geometry", "lookahead": False}))

    def beam(scorer: Scorer, query_MD: torch.Tensor, ahead: LookAhead | None = None) -> BeamRanker:
        return BeamRanker(scorer, retriever.index, rows, query_MD, config.beam, config.batch_size, ahead, config)

    return Systems(
        vectors,
        split,
        retriever,
        _flat(dense, vectors, device),
        _raw(vectors, device) if open_stage(run.vectors, "vectors").get("joint") else None,
        FlatRanker(query, tokenizer.quantizer.decode(codes).detach(), squared_distance=True),
        beam(geometry, query),
        beam(retriever.scorer(), asked, retriever.lookahead()) if retriever.decoder is not None else None,
        query,
        item,
        codes,
        rows,
        rebuilt,
    )


def _flat(fusion: Fusion, vectors: Vectors, device: str) -> FlatRanker:
    return FlatRanker(embed(fusion, vectors.queries, device), embed(fusion, vectors.items, device))


def _raw(vectors: Vectors, device: str) -> FlatRanker | None:
    fusion = plain_sum(vectors.items.image.shape[1], vectors.items.text.shape[1])
    return None if fusion is None else _flat(fusion, vectors, device)


def survival_of(systems: Systems, beam: int | None = None) -> list[float]:
    """Per-level token survival under the quantised oracle over all queries of the split (first positive)."""
    query_rows, item_rows = (torch.as_tensor(rows) for rows in systems.vectors.first_pairs(systems.split))
    quantizer = systems.retriever.tokenizer.quantizer
    books = systems.retriever.tokenizer.codebooks()
    width = beam or systems.retriever.config.beam
    return token_survival(systems.query_MD[query_rows], systems.codes_NT[item_rows], books, width, quantizer.first)


def beam_survival_of(systems: Systems, ranker: BeamRanker, queries_a_task: int = 200) -> list[float]:
    """Cumulative survival in a system's real beam, over all tasks on their own pools, modality token first.

    At most `queries_a_task` queries of each task are followed, evenly spread over its queries.
    """
    total, count = np.zeros(ranker.index.levels), 0
    for whole in systems.vectors.of_split(systems.split):
        task = whole.spread(queries_a_task)
        allowed = ranker.index.allow(np.isin(ranker.index_rows, task.pool_rows))
        targets = ranker.index.rows([systems.vectors.items.ids[int(rows[0])] for rows in task.positives])
        queries = ranker.query_MD[torch.as_tensor(task.query_rows)]
        alive = beam_survival(
            ranker.scorer, ranker.index, queries, targets, ranker.beam, allowed, ranker.batch_size, ranker.ahead
        )
        total += len(queries) * np.array(alive)
        count += len(queries)
    return [float(value) for value in total / count]


def health_of(systems: Systems) -> Health:
    """Health of the tokenizer on the items of the split's pools."""
    rows = torch.as_tensor(systems.rows)
    return tokenizer_health(systems.retriever.tokenizer.quantizer, systems.item_ND[rows], systems.codes_NT[rows])


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
    for task in tasks:
        write_qrels(run.runs / f"{task.name or 'all'}.{systems.split}.qrels", qrels_of_task(systems.vectors, task))
        for name in rankers:
            path = run.runs / f"{task.name or 'all'}.{systems.split}.{name}.trec"
            write_run(path, result.runs[task.name, name], tag=name)
    return result
