"""Trained systems of an experiment: made once, kept in OUT/trained and shared by every unit that needs the same.

Three stages are kept apart, each under what it was made from: the fused space, the tokenizer, and the decoder with
its query head. What differs in search alone is therefore trained once. Shapes: M queries, N items, T tokens, D
numbers a vector.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from siglum.config import RunConfig, SearchConfig, config_fingerprint
from siglum.files import STAGE_FILE, fingerprint, read_record
from siglum.fuse.contrastive import embed, fit_fusion
from siglum.fuse.modules import Fusion
from siglum.fuse.store import load_fusion, save_fusion
from siglum.generate.decoder import CodeDecoder
from siglum.generate.query import QueryHead, fit_query_head
from siglum.generate.store import load_decoder, load_query_head, save_decoder
from siglum.generate.train import fit_decoder
from siglum.lab.experiments.setting import Setting, locked
from siglum.lab.sources import TRAINING, sources_fingerprint
from siglum.measure.rankers import BeamRanker, FlatRanker
from siglum.measure.retention import LevelQuantities, QueryBatch, retention
from siglum.run.coded import Coded
from siglum.search.engine import Engine
from siglum.tokenize.store import load_tokenizer, save_tokenizer
from siglum.tokenize.train import Tokenizer, fit_tokenizer
from siglum.types import Task, Vectors


@dataclass(slots=True, kw_only=True)
class Trained(Coded):
    """A collection with a trained tokenizer, and the decoder that searches its codes if one was asked for."""

    config: RunConfig
    decoder: CodeDecoder | None
    head: QueryHead | None
    asked_MD: Tensor
    """What decoder and fusion search with: the fused query, or what the query head makes of it."""
    seconds: dict[str, float]
    """Training time of each stage on the machine that trained it: space, tokenizer, decoder."""
    loss: float | None = None
    """The decoder's last loss on validation, where there is one."""
    _engine: Engine | None = field(default=None, repr=False)

    @classmethod
    def on(
        cls,
        vectors: Vectors,
        tokenizer: Tokenizer,
        device: str,
        config: RunConfig,
        decoder: CodeDecoder | None = None,
        head: QueryHead | None = None,
        **facts: Any,
    ) -> Trained:
        """Embed and code a collection with trained parts; it need not be the one they were trained on."""
        coded = Coded.of(vectors, tokenizer, device)
        asked_MD = coded.query_MD if head is None else head.adapt(coded.query_MD, vectors.queries, device)
        own = (coded.query_MD, coded.item_ND, coded.codes_NT)
        more = {"config": config, "decoder": decoder, "head": head, "asked_MD": asked_MD, **facts}
        return cls(vectors, tokenizer, device, *own, **more)

    def moved(self, vectors: Vectors) -> Trained:
        """Return the same training on another collection."""
        return Trained.on(
            vectors, self.tokenizer, self.device, self.config, self.decoder, self.head, seconds=self.seconds
        )

    def beam(self, search: SearchConfig) -> BeamRanker:
        """Return the search of all items; geometry and oracle alone are asked with the fused query."""
        if self._engine is None:
            self._engine = Engine.of(self.tokenizer, self.decoder, self.index, device=self.device, graphs=False)
        query_MD = self.query_MD if search.scorer in ("geometry", "oracle") else self.asked_MD
        return BeamRanker(self._engine, np.arange(len(self.vectors.items)), query_MD, search)

    def query_batch(self, task: Task) -> QueryBatch:
        """Return a task's queries with their first targets in the task's own pool."""
        pool, query = torch.as_tensor(task.pool_rows), torch.as_tensor(task.query_rows)
        place = {int(row): number for number, row in enumerate(task.pool_rows)}
        return QueryBatch(
            self.tokenizer.codebooks(),
            self.tokenizer.quantizer.first_residual,
            self.codes_NT[pool],
            self.item_ND[pool],
            self.query_MD[query],
            torch.as_tensor([place[int(rows[0])] for rows in task.positives]),
            self.asked_MD[query],
        )

    def quantities(self, task: Task, *, beam: int, tau: float, **more: Any) -> list[LevelQuantities]:
        """Return K, m and survival of a task's queries in its own pool, residual levels alone; needs no decoder."""
        return [one for one in retention(self.query_batch(task), beam=beam, tau=tau, **more) if one.level > 0]

    def dense(self) -> FlatRanker:
        """Return the exhaustive search of the fused vectors."""
        return FlatRanker(self.query_MD, self.item_ND)

    def scan(self, query_MD: Tensor | None = None) -> FlatRanker:
        """Return the exhaustive scan of reconstructions, by the fused queries or by others."""
        query_MD = self.query_MD if query_MD is None else query_MD
        return FlatRanker(query_MD, self.reconstructions(), squared_distance=True)


def code_bits(config: RunConfig) -> float:
    """Return the bits of an item's residual codes."""
    return float(np.log2(np.array(config.tokenizer.vocab, float)).sum())


def flat_ranker(fusion: Fusion, vectors: Vectors, device: str) -> FlatRanker:
    """Return exhaustive search in a fused space."""
    return FlatRanker(embed(fusion, vectors.queries, device), embed(fusion, vectors.items, device))


def open_space(setting: Setting, config: RunConfig) -> tuple[Fusion, float]:
    """Return the fused space of this configuration and seed, and the seconds its training took."""
    vectors, key = setting.vectors(), _key(setting, "space", config.fusion)

    def make(folder: Path) -> None:
        start = perf_counter()
        fusion, history = fit_fusion(vectors, config.fusion, seed=config.seed, device=setting.device)
        save_fusion(folder, fusion, {"made": key}, epochs=len(history), seconds=perf_counter() - start)

    folder = _once(setting.out / "trained" / "space" / f"{key}-{config.seed}", make)
    return load_fusion(folder, setting.device, made=key), float(read_record(folder / STAGE_FILE, "seconds")["seconds"])


def open_trained(setting: Setting, config: RunConfig, *, decoder: bool = True) -> Trained:
    """Return what this configuration and seed trains, from OUT/trained where it is there already.

    Without `decoder` only the tokenizer is trained, which is all that geometry and the quantised oracle need.
    """
    tokenizer, key, seconds = _open_tokenizer(setting, config)
    own: list[Any] = []
    loss = None
    if decoder:
        *own, record = _open_decoder(setting, config, tokenizer, key)
        seconds["decoder"] = float(record["seconds"])
        loss = record["history"][-1].get("val_loss") if record["history"] else None
    return Trained.on(setting.vectors(), tokenizer, setting.device, config, *own, seconds=seconds, loss=loss)


def _open_tokenizer(setting: Setting, config: RunConfig) -> tuple[Tokenizer, str, dict[str, float]]:
    key = _key(setting, "tokenizer", config.fusion, config.tokenizer)
    space, spent = open_space(setting, config)

    def make(folder: Path) -> None:
        start = perf_counter()
        found = fit_tokenizer(setting.vectors(), space, config.tokenizer, seed=config.seed, device=setting.device)
        save_tokenizer(folder, found, {"made": key}, seconds=perf_counter() - start, history=found.history)

    folder = _once(setting.out / "trained" / "tokenizer" / f"{key}-{config.seed}", make)
    tokenizer, record = load_tokenizer(folder, setting.device, made=key)
    tokenizer.history = record["history"]
    return tokenizer, key, {"space": spent, "tokenizer": record["seconds"]}


def _open_decoder(
    setting: Setting, config: RunConfig, tokenizer: Tokenizer, made_from: str
) -> tuple[CodeDecoder, QueryHead | None, dict[str, Any]]:
    key = fingerprint(made_from, _key(setting, "decoder", config.query, config.decoder))
    seed, device = config.seed, setting.device

    def make(folder: Path) -> None:
        start, vectors = perf_counter(), setting.vectors()
        head = fit_query_head(vectors, tokenizer, config.query, seed=seed, device=device)
        decoder, history = fit_decoder(vectors, tokenizer, config.decoder, seed=seed, device=device, head=head)
        facts = {"seconds": perf_counter() - start, "history": history}
        save_decoder(folder, decoder, tokenizer.fingerprint(), head, **facts)

    folder = _once(setting.out / "trained" / "decoder" / f"{key}-{seed}", make)
    decoder = load_decoder(folder, tokenizer.fingerprint(), device)
    head = load_query_head(folder, tokenizer.quantizer.dim, device)
    return decoder, head, read_record(folder / STAGE_FILE, "seconds", "history")


def _key(setting: Setting, stage: str, *configs: object) -> str:
    """Return the name of what these settings make of the data by the sources of a stage."""
    return fingerprint(setting.identity(), sources_fingerprint(*TRAINING[stage]), *map(config_fingerprint, configs))


def _once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Make a stage unless it is there; of several processes that want it one makes it and the others wait."""
    with locked(folder):
        if not (folder / STAGE_FILE).exists():
            make(folder)
    return folder
