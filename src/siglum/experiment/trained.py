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

import numpy as np
import torch
from torch import Tensor

from siglum.config import RunConfig, SearchConfig, config_fingerprint
from siglum.experiment.setting import Setting, locked
from siglum.files import STAGE_FILE, fingerprint, read_record
from siglum.fuse.contrastive import embed, fit_fusion
from siglum.fuse.modules import Fusion
from siglum.fuse.store import load_fusion, save_fusion
from siglum.generate.decoder import CodeDecoder
from siglum.generate.query import QueryHead, fit_query_head, query_vectors
from siglum.generate.store import load_decoder, load_query_head, save_decoder
from siglum.generate.train import fit_decoder
from siglum.index import Index
from siglum.measure.evaluate import BeamRanker, FlatRanker, union_rows
from siglum.measure.retention import Asked, LevelQuantities, retention
from siglum.search.lookahead import build_lookahead
from siglum.search.scorers import build_scorer
from siglum.tokenize.store import load_tokenizer, save_tokenizer
from siglum.tokenize.train import Tokenizer, fit_tokenizer
from siglum.types import Task, Vectors


@dataclass(slots=True)
class Trained:
    """A tokenizer on its data, with the decoder if one was asked for."""

    config: RunConfig
    vectors: Vectors
    device: str
    tokenizer: Tokenizer
    decoder: CodeDecoder | None
    head: QueryHead | None
    query_MD: Tensor
    """Fused queries."""
    asked_MD: Tensor
    """What decoder and fusion search with: the fused query, or what the query head makes of it."""
    item_ND: Tensor
    codes_NT: Tensor
    seconds: dict[str, float]
    """Training time of each stage on the machine that trained it: space, tokenizer, decoder."""
    _indexed: dict[str, tuple[Index, np.ndarray]] = field(default_factory=dict, repr=False)

    @property
    def first(self) -> int:
        """The first token whose codeword counts in geometry."""
        quantizer = self.tokenizer.quantizer
        return 0 if quantizer.config.modality_vector else quantizer.first

    def index(self, tasks: list[Task]) -> tuple[Index, np.ndarray]:
        """Index the pools of some tasks; also return their item rows."""
        rows = union_rows(tasks)
        ids = [self.vectors.items.ids[int(row)] for row in rows]
        codes = self.codes_NT[torch.as_tensor(rows).to(self.codes_NT.device)].cpu().numpy()
        return Index.build(ids, codes, self.tokenizer.quantizer.sizes, self.tokenizer.fingerprint()), rows

    def beam(self, search: SearchConfig, split: str = "test") -> BeamRanker:
        """Return the beam search of a split's pools; geometry and oracle alone are asked with the fused query."""
        if split not in self._indexed:
            self._indexed[split] = self.index(self.vectors.of_split(split))
        scorer = build_scorer(search, self.tokenizer.codebooks(), self.decoder, self.first)
        ahead = build_lookahead(search, self.tokenizer.codebooks(), self.first)
        query = self.query_MD if search.scorer in ("geometry", "oracle") else self.asked_MD
        return BeamRanker(scorer, *self._indexed[split], query, search.beam, search.batch_size, ahead, search)

    def quantities(self, task: Task, *, beam: int, tau: float) -> list[LevelQuantities]:
        """Return K, m and survival of a task's queries in its own pool, residual levels alone; needs no decoder."""
        pool, place = torch.as_tensor(task.pool_rows), {int(row): i for i, row in enumerate(task.pool_rows)}
        target_Q = torch.as_tensor([place[int(rows[0])] for rows in task.positives])
        asked = Asked(
            self.tokenizer.codebooks(),
            self.tokenizer.quantizer.first,
            self.codes_NT[pool],
            self.item_ND[pool],
            self.query_MD[torch.as_tensor(task.query_rows)],
            target_Q,
        )
        return [level for level in retention(asked, beam=beam, tau=tau) if level.level > 0]

    def reconstructions(self) -> Tensor:
        """Return all reconstructions (N, D)."""
        return self.tokenizer.quantizer.decode(self.codes_NT).detach()

    def scan(self) -> FlatRanker:
        """Return the exhaustive scan of reconstructions."""
        return FlatRanker(self.query_MD, self.reconstructions(), squared_distance=True)


def open_space(setting: Setting, config: RunConfig) -> tuple[Fusion, float]:
    """Return the fused space of this configuration and seed, and the seconds its training took."""
    vectors, mark = setting.vectors(), _mark(setting, config.fusion)

    def make(folder: Path) -> None:
        start = perf_counter()
        fusion, history = fit_fusion(vectors, config.fusion, seed=config.seed, device=setting.device)
        save_fusion(folder, fusion, {"made": mark}, epochs=len(history), seconds=perf_counter() - start)

    folder = _once(setting.out / "trained" / "space" / f"{mark}-{config.seed}", make)
    return load_fusion(folder, setting.device, made=mark), _seconds(folder)


def open_trained(setting: Setting, config: RunConfig, *, decoder: bool = True) -> Trained:
    """Return what this configuration and seed trains, from OUT/trained where it is there already.

    Without `decoder` only the tokenizer is trained, which is all that geometry and the quantised oracle need.
    """
    tokenizer, mark, seconds = _open_tokenizer(setting, config)
    generator, head = None, None
    if decoder:
        generator, head, seconds["decoder"] = _open_decoder(setting, config, tokenizer, mark)
    return on_data(config, setting.vectors(), setting.device, tokenizer, generator, head, seconds)


def on_data(
    config: RunConfig,
    vectors: Vectors,
    device: str,
    tokenizer: Tokenizer,
    decoder: CodeDecoder | None,
    head: QueryHead | None,
    seconds: dict[str, float],
) -> Trained:
    """Embed and code a collection with trained parts; it need not be the one they were trained on."""
    query, item = (embed(tokenizer.fusion, part, device) for part in (vectors.queries, vectors.items))
    asked = query if head is None else query_vectors(tokenizer, head, vectors.queries, device)
    kinds = torch.as_tensor(vectors.items.modality.astype(np.int64)).to(device)
    codes = tokenizer.quantizer.encode(item, kinds)
    return Trained(config, vectors, device, tokenizer, decoder, head, query, asked, item, codes, seconds)


def _open_tokenizer(setting: Setting, config: RunConfig) -> tuple[Tokenizer, str, dict[str, float]]:
    mark = _mark(setting, config.fusion, config.tokenizer)
    space, spent = open_space(setting, config)

    def make(folder: Path) -> None:
        start = perf_counter()
        found = fit_tokenizer(setting.vectors(), space, config.tokenizer, seed=config.seed, device=setting.device)
        save_tokenizer(folder, found, {"made": mark}, seconds=perf_counter() - start, history=found.history)

    folder = _once(setting.out / "trained" / "tokenizer" / f"{mark}-{config.seed}", make)
    tokenizer, record = load_tokenizer(folder, setting.device, made=mark)
    tokenizer.history = record["history"]
    return tokenizer, mark, {"space": spent, "tokenizer": record["seconds"]}


def _open_decoder(
    setting: Setting, config: RunConfig, tokenizer: Tokenizer, made_from: str
) -> tuple[CodeDecoder, QueryHead | None, float]:
    mark, seed, device = (
        fingerprint(made_from, *map(config_fingerprint, (config.query, config.decoder))),
        config.seed,
        setting.device,
    )

    def make(folder: Path) -> None:
        start, vectors = perf_counter(), setting.vectors()
        head = fit_query_head(vectors, tokenizer, config.query, seed=seed, device=device)
        decoder, history = fit_decoder(vectors, tokenizer, config.decoder, seed=seed, device=device, head=head)
        facts = {"seconds": perf_counter() - start, "history": history}
        save_decoder(folder, decoder, tokenizer.fingerprint(), head, **facts)

    folder = _once(setting.out / "trained" / "decoder" / f"{mark}-{seed}", make)
    decoder = load_decoder(folder, tokenizer.fingerprint(), device)
    return decoder, load_query_head(folder, tokenizer.quantizer.dim, device), _seconds(folder)


def _mark(setting: Setting, *configs: object) -> str:
    """Return the name of what these settings make of the data."""
    return fingerprint(setting.identity(), *map(config_fingerprint, configs))


def _once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Make a stage unless it is there; of several processes that want it one makes it and the others wait."""
    with locked(folder):
        if not (folder / STAGE_FILE).exists():
            make(folder)
    return folder


def _seconds(folder: Path) -> float:
    return float(read_record(folder / STAGE_FILE, "seconds")["seconds"])
