"""A run folder and the verbs that fill it, stage by stage.

runs/NAME/{config.json, log.jsonl, 1-vectors, 2-tokenizer, 3-decoder, 4-index, 5-runs, 6-report}: every stage
records the fingerprint of what it was made from, and a later stage refuses an earlier one that has changed.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from siglum.config import RunConfig, as_dict, from_dict
from siglum.data.collection import Collection
from siglum.data.trec import write_qrels, write_run
from siglum.data.vectors import load_vectors, save_vectors
from siglum.encode.base import Encoder
from siglum.encode.run import Encoded, encode_collection
from siglum.files import open_stage, read_json, write_json
from siglum.fuse.contrastive import embed, fit_fusion
from siglum.fuse.modules import Fusion
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
        config: RunConfig = from_dict(RunConfig, read_json(self.root / "config.json"))
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
) -> Encoded:
    """Stage 1: encode a collection."""
    return encode_collection(collection, encoder, run.vectors, identity=identity, strict=strict, resume=resume)


def take_vectors(run: RunFolder, vectors: Vectors) -> str:
    """Stage 1 from one's own features."""
    return save_vectors(run.vectors, vectors, {"collection": "arrays"}, encoder="none")


def make_tokenizer(
    run: RunFolder, *, dense: Fusion | None = None, device: str = "cpu", resume: bool = False, log: Log | None = None
) -> tuple[Tokenizer, Fusion]:
    """Stage 2: contrastive fusion (unless `dense` is given), then the tokenizer."""
    config, log = run.config(), log or run.log()
    vectors, made_from = load_vectors(run.vectors)
    if dense is None:
        checkpoint = run.tokenizer / "checkpoint" / "fusion"
        dense, _ = fit_fusion(
            vectors, config.fusion, seed=config.seed, device=device, folder=checkpoint, resume=resume, log=log
        )
    start = copy.deepcopy(dense)
    checkpoint = run.tokenizer / "checkpoint" / "tokenizer"
    tokenizer = fit_tokenizer(
        vectors, start, config.tokenizer, seed=config.seed, device=device, folder=checkpoint, resume=resume, log=log
    )
    encoder = open_stage(run.vectors, "vectors")["encoder"]
    save_tokenizer(run.tokenizer, tokenizer, dense, {"vectors": made_from}, encoder=encoder)
    return tokenizer, dense


def make_decoder(run: RunFolder, *, device: str = "cpu", resume: bool = False, log: Log | None = None) -> None:
    """Stage 3: train the decoder."""
    config, log = run.config(), log or run.log()
    vectors, made_from = load_vectors(run.vectors)
    tokenizer, _, record = load_tokenizer(run.tokenizer, device, vectors=made_from)
    checkpoint = run.decoder / "checkpoint"
    decoder, _ = fit_decoder(
        vectors, tokenizer, config.decoder, seed=config.seed, device=device, folder=checkpoint, resume=resume, log=log
    )
    save_decoder(run.decoder, decoder, record["tokenizer_fingerprint"], parameters=decoder.parameter_count())


def make_index(run: RunFolder, *, keep_vectors: bool = False, device: str = "cpu") -> Index:
    """Stage 4: index all items of the test pools, or all items where there are no test tasks."""
    vectors, made_from = load_vectors(run.vectors)
    tokenizer, _, record = load_tokenizer(run.tokenizer, device, vectors=made_from)
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
    scan: FlatRanker
    geometry: BeamRanker
    own: BeamRanker | None
    """The run's own scorer (decoder, fused, ...), if a decoder exists."""
    query_MD: torch.Tensor
    item_ND: torch.Tensor
    codes_NT: torch.Tensor
    rows: np.ndarray


def open_systems(run: RunFolder, split: str = "test", device: str = "cpu") -> Systems:
    """Load a run and build its systems on the pools of a split."""
    vectors, made_from = load_vectors(run.vectors)
    tokenizer, dense, record = load_tokenizer(run.tokenizer, device, vectors=made_from)
    own = record["tokenizer_fingerprint"]
    tasks = vectors.of_split(split)
    if not tasks:
        raise SiglumError(
            f"{run.root} has no tasks in split {split}; it has {', '.join(sorted({t.split for t in vectors.tasks})) or 'none'}."
        )
    retriever = Retriever.load(run.root, device=device)
    rows = union_rows(tasks)
    if list(retriever.index.ids) != [vectors.items.ids[int(row)] for row in rows]:
        retriever.index, _ = _index_rows(vectors, tokenizer, rows, own, device)
    query, item = embed(tokenizer.fusion, vectors.queries, device), embed(tokenizer.fusion, vectors.items, device)
    codes = tokenizer.quantizer.encode(item, torch.as_tensor(vectors.items.modality.astype(np.int64)).to(device))
    config = retriever.config
    geometry = retriever.scorer(from_dict(type(config), {**as_dict(config), "scorer": "geometry"}))

    def beam(scorer: Scorer) -> BeamRanker:
        return BeamRanker(scorer, retriever.index, rows, query, config.beam, config.batch_size)

    return Systems(
        vectors,
        split,
        retriever,
        FlatRanker(embed(dense, vectors.queries, device), embed(dense, vectors.items, device)),
        FlatRanker(query, tokenizer.quantizer.decode(codes).detach(), squared_distance=True),
        beam(geometry),
        beam(retriever.scorer()) if retriever.decoder is not None else None,
        query,
        item,
        codes,
        rows,
    )


def survival_of(systems: Systems, beam: int | None = None) -> list[float]:
    """Per-level token survival under the quantised oracle over all queries of the split (first positive)."""
    query_rows, item_rows = _first_positives(systems)
    quantizer = systems.retriever.tokenizer.quantizer
    books = systems.retriever.tokenizer.codebooks()
    width = beam or systems.retriever.config.beam
    return token_survival(systems.query_MD[query_rows], systems.codes_NT[item_rows], books, width, quantizer.first)


def beam_survival_of(systems: Systems, ranker: BeamRanker, queries_a_task: int = 200) -> list[float]:
    """Cumulative survival in a system's real beam, over all tasks on their own pools, modality token first.

    At most `queries_a_task` queries of each task are followed, evenly spread over its queries.
    """
    total, count = np.zeros(ranker.index.levels), 0
    for task in systems.vectors.of_split(systems.split):
        pick = np.linspace(0, len(task.query_rows) - 1, min(queries_a_task, len(task.query_rows))).astype(int)
        allowed = ranker.index.allow(np.isin(ranker.index_rows, task.pool_rows))
        targets = ranker.index.rows([systems.vectors.items.ids[int(task.positives[i][0])] for i in pick])
        queries = ranker.query_MD[torch.as_tensor(task.query_rows[pick])]
        total += len(queries) * np.array(
            beam_survival(ranker.scorer, ranker.index, queries, targets, ranker.beam, allowed, ranker.batch_size)
        )
        count += len(queries)
    return [float(value) for value in total / count]


def health_of(systems: Systems) -> Health:
    """Health of the tokenizer on the items of the split's pools."""
    rows = torch.as_tensor(systems.rows)
    return tokenizer_health(systems.retriever.tokenizer.quantizer, systems.item_ND[rows], systems.codes_NT[rows])


def _first_positives(systems: Systems) -> tuple[torch.Tensor, torch.Tensor]:
    tasks = systems.vectors.of_split(systems.split)
    queries = np.concatenate([task.query_rows for task in tasks])
    items = np.array([int(rows[0]) for task in tasks for rows in task.positives])
    return torch.as_tensor(queries), torch.as_tensor(items)


def evaluate_run(
    run: RunFolder, systems: Systems, rankers: dict[str, Ranker], *, union: bool = True, k: int = 10
) -> Evaluation:
    """Stage 5: evaluate systems on the tasks of a split and write TREC runs and qrels."""
    tasks = systems.vectors.of_split(systems.split)
    result = evaluate_systems(systems.vectors, tasks, rankers, k=k, union=union)
    for task in tasks:
        write_qrels(run.runs / f"{task.name or 'all'}.{systems.split}.qrels", qrels_of_task(systems.vectors, task))
        for name in rankers:
            write_run(
                run.runs / f"{task.name or 'all'}.{systems.split}.{name}.trec", result.runs[task.name, name], tag=name
            )
    return result
