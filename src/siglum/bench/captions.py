"""Text to image and image to text over frozen features: what is trained, once a recipe and seed.

A unit is one training (a fused space, or a tokenizer with its decoder) at one seed; it gives one or more systems.
Every unit leaves its ranks in a file of its own, so a run that was stopped goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from siglum.bench.quantisers import QUANTISERS, reconstruct
from siglum.bench.weigh import first_ranks, mean_reciprocal_rank, weigh
from siglum.config import RunConfig, SearchConfig, as_dict, config_fingerprint
from siglum.data.captions import read_captions
from siglum.files import STAGE_FILE, fingerprint, read_json, write_json
from siglum.fuse.contrastive import embed, fit_fusion
from siglum.fuse.modules import Fusion
from siglum.fuse.store import load_fusion, save_fusion
from siglum.generate.query import fit_query_head, query_vectors
from siglum.generate.train import fit_decoder
from siglum.index import Index
from siglum.measure.evaluate import BeamRanker, FlatRanker, Ranker, union_rows
from siglum.recipes import fit_to_data, recipe
from siglum.search.lookahead import build_lookahead
from siglum.search.scorers import build_scorer
from siglum.tokenize.train import Tokenizer, fit_tokenizer
from siglum.types import SiglumError, Task, Vectors

UNITS: dict[str, tuple[str, ...]] = {
    "dense": ("dense",),
    "pro": ("pro", "pd_vs", "pro_scan", "pro_geometry"),
    "vs": ("vs", "vs_sf"),
    "pd": ("pd", "pd_sf"),
    "genius": ("genius", "sf"),
    "genius_half": ("genius_half",),
    "genius_double": ("genius_double",),
    "best": ("best", "scan", "geometry", "best_decoder", "best_scan", "best_dense"),
    **{name: (name,) for name in QUANTISERS},
}
"""What each training gives: its own system first, then what its codes and decoder give without some part."""
DEPTH = 10
"""Ranks beyond this count as not found."""
OMEGAS = (5.0, 10.0, 20.0, 40.0, 60.0, 80.0, 120.0, 160.0, 240.0, 320.0, 640.0, 2560.0, 10240.0)
PRIORS = (0.0, 0.5, 1.0, 1.5, 2.0)
"""What is tried on validation as weight of geometry and, where the decoder knows it, of the prior."""
DIMS = (64, 128)
"""Sizes of the fused space `best` chooses from, by a scan of its codes on validation."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Where a run of the benchmark reads and writes, and at which scale."""

    data: Path
    work: Path
    scale: str
    device: str = "cpu"

    def part(self, unit: str, seed: int) -> Path:
        """The file a unit leaves."""
        return self.work / "parts" / f"{unit}-{seed}.json"

    def config(self, unit: str, seed: int, vectors: Vectors) -> RunConfig:
        """The settings of a unit: its recipe at this scale, sized to the data where that is small."""
        name = {"dense": "pro", **dict.fromkeys(QUANTISERS, "best")}.get(unit, unit)
        return fit_to_data(recipe(name, self.scale, seed), len(np.unique(vectors.pair_item)), len(vectors.pair_item))

    def identity(self, unit: str, config: RunConfig) -> str:
        """What must agree for a part to count: settings, data and the format of parts."""
        stamp = [(path.name, path.stat().st_size) for path in sorted(self.data.iterdir()) if path.is_file()]
        return fingerprint(1, unit, config_fingerprint(config), stamp)


def is_done(bench: Bench, unit: str, seed: int, vectors: Vectors) -> bool:
    """Whether a unit has left its part, made with the same settings from the same data."""
    path = bench.part(unit, seed)
    return path.exists() and read_json(path)["identity"] == bench.identity(unit, bench.config(unit, seed, vectors))


def run_unit(bench: Bench, unit: str, seed: int) -> Path:
    """Train and measure one unit and return the file it left; one that is there already is not made again."""
    if unit not in UNITS:
        raise SiglumError(f"{unit!r} is not a unit of this benchmark; the units are {', '.join(UNITS)}.")
    started, vectors = perf_counter(), read_captions(bench.data)
    path, config = bench.part(unit, seed), bench.config(unit, seed, vectors)
    if is_done(bench, unit, seed, vectors):
        return path
    makers = {"dense": _dense_unit, **dict.fromkeys(QUANTISERS, _quantiser_unit)}
    found = makers.get(unit, _code_unit)(bench, unit, config, vectors)
    write_json(
        path,
        {
            "identity": bench.identity(unit, config),
            "unit": unit,
            "seed": seed,
            "seconds": round(perf_counter() - started, 1),
            "device": bench.device,
            "config": as_dict(config),
            **found,
        },
    )
    return path


def _fused_space(bench: Bench, config: RunConfig, vectors: Vectors) -> Fusion:
    """Return the space of this fusion configuration and seed, trained once and shared by all units that use it."""
    mark = config_fingerprint(config.fusion)
    folder = bench.work / "spaces" / f"{mark}-{config.seed}"
    if (folder / STAGE_FILE).exists():
        return load_fusion(folder, bench.device)
    fusion, _ = fit_fusion(vectors, config.fusion, seed=config.seed, device=bench.device)
    save_fusion(folder, fusion, {"fusion": mark, "seed": str(config.seed)})
    return fusion


def _ranks(vectors: Vectors, rankers: dict[str, Ranker], split: str = "test") -> dict[str, dict[str, list[int]]]:
    """Return system -> task -> rank of the first positive of every query, 0 where it is not among the first ten."""
    tasks = vectors.of_split(split)
    return {
        name: {task.name: first_ranks(task, ranker, DEPTH).tolist() for task in tasks}
        for name, ranker in rankers.items()
    }


def _flat(query: torch.Tensor, item: torch.Tensor, squared: bool = False) -> FlatRanker:
    return FlatRanker(query, item, squared_distance=squared)


def _dense_unit(bench: Bench, unit: str, config: RunConfig, vectors: Vectors) -> dict[str, Any]:
    fusion = _fused_space(bench, config, vectors)
    ranker = _flat(embed(fusion, vectors.queries, bench.device), embed(fusion, vectors.items, bench.device))
    systems = _ranks(vectors, {"dense": ranker})
    val = {task: mean_reciprocal_rank(ranks) for task, ranks in _ranks(vectors, {"d": ranker}, "val")["d"].items()}
    return {"systems": systems, "validation": {"mrr@10": val}, "bytes": {"dense": 4 * config.fusion.dim}}


def _quantiser_unit(bench: Bench, unit: str, config: RunConfig, vectors: Vectors) -> dict[str, Any]:
    """A quantiser of faiss on the dense space, at the bytes of `best`, searched exhaustively."""
    shared = bench.config("dense", config.seed, vectors)
    fusion = _fused_space(bench, shared, vectors)
    query, item = (embed(fusion, part, bench.device).cpu() for part in (vectors.queries, vectors.items))
    size = int(code_bits(config) // 8)
    hat = reconstruct(unit, item.numpy(), np.unique(vectors.pair_item), size)
    return {"systems": _ranks(vectors, {unit: _flat(query, torch.from_numpy(hat), True)}), "bytes": {unit: size}}


def code_bits(config: RunConfig) -> float:
    """Return the bits of an item's residual codes."""
    return float(np.log2(np.array(config.tokenizer.vocab, float)).sum())


@dataclass(slots=True)
class _Coded:
    """A trained tokenizer on the data: codes, reconstructions, and an index over a split's pools."""

    tokenizer: Tokenizer
    query_MD: torch.Tensor
    item_ND: torch.Tensor
    codes_NT: torch.Tensor

    @classmethod
    def of(cls, tokenizer: Tokenizer, vectors: Vectors, device: str) -> _Coded:
        """Code all items."""
        query, item = (embed(tokenizer.fusion, part, device) for part in (vectors.queries, vectors.items))
        kinds = torch.as_tensor(vectors.items.modality.astype(np.int64)).to(device)
        return cls(tokenizer, query, item, tokenizer.quantizer.encode(item, kinds))

    def index(self, vectors: Vectors, tasks: list[Task]) -> tuple[Index, np.ndarray]:
        """Index the pools of some tasks; also return their item rows."""
        rows = union_rows(tasks)
        ids = [vectors.items.ids[int(row)] for row in rows]
        codes = self.codes_NT[torch.as_tensor(rows).to(self.codes_NT.device)].cpu().numpy()
        return Index.build(ids, codes, self.tokenizer.quantizer.sizes, self.tokenizer.fingerprint()), rows

    def scan(self) -> torch.Tensor:
        """All reconstructions (N, D)."""
        return self.tokenizer.quantizer.decode(self.codes_NT).detach()


def _code_unit(bench: Bench, unit: str, config: RunConfig, vectors: Vectors) -> dict[str, Any]:
    device, seed = bench.device, config.seed
    tried = {}
    for dim in DIMS if unit == "best" else (config.fusion.dim,):
        sized = replace(config, fusion=replace(config.fusion, dim=dim))
        tokenizer = fit_tokenizer(
            vectors, _fused_space(bench, sized, vectors), config.tokenizer, seed=seed, device=device
        )
        coded = _Coded.of(tokenizer, vectors, device)
        val = _ranks(vectors, {"scan": _flat(coded.query_MD, coded.scan(), True)}, "val")["scan"]
        tried[dim] = (float(np.mean([mean_reciprocal_rank(ranks) for ranks in val.values()])), sized, coded)
    _, config, coded = max(tried.values(), key=lambda found: found[0])
    found = _search_codes(unit, config, vectors, coded, device)
    found["validation"]["scan_mrr@10"] = {str(dim): value for dim, (value, *_) in tried.items()}
    return found


def _search_codes(unit: str, config: RunConfig, vectors: Vectors, coded: _Coded, device: str) -> dict[str, Any]:
    """Train what searches the codes (query head, decoder), weigh its parts on validation and measure its systems."""
    tokenizer, seed = coded.tokenizer, config.seed
    head = fit_query_head(vectors, tokenizer, config.query, seed=seed, device=device)
    decoder, history = fit_decoder(vectors, tokenizer, config.decoder, seed=seed, device=device, head=head)
    asked = query_vectors(tokenizer, head, vectors.queries, device)
    first = 0 if tokenizer.quantizer.config.modality_vector else tokenizer.quantizer.first
    indexed = {split: coded.index(vectors, vectors.of_split(split)) for split in ("val", "test")}

    def beam(search: SearchConfig, split: str = "test", query: torch.Tensor = asked) -> BeamRanker:
        scorer = build_scorer(search, tokenizer.codebooks(), decoder, first)
        ahead = build_lookahead(search, tokenizer.codebooks(), first)
        return BeamRanker(scorer, *indexed[split], query, search.beam, search.batch_size, ahead, search)

    alone = replace(config.search, prior=0.0, lookahead=False)
    plain, geometry = (replace(alone, scorer=kind) for kind in ("decoder", "geometry"))
    weights = (OMEGAS, PRIORS if config.decoder.null_queries else (0.0,))
    parts = (decoder, tokenizer.quantizer, asked, coded.codes_NT)
    weighed = weigh(vectors, beam(config.search, "val"), *parts, replace(config.search, scorer="fused"), weights)
    makers: dict[str, Callable[[], Ranker]] = {
        **dict.fromkeys(("pro", "vs_sf", "pd_sf", "sf", "best"), lambda: beam(weighed.best)),
        **dict.fromkeys(("pd_vs", "vs", "pd", "genius", "genius_half", "genius_double"), lambda: beam(plain)),
        "best_decoder": lambda: beam(replace(weighed.best, scorer="decoder", lookahead=False)),
        **dict.fromkeys(("scan", "pro_scan"), lambda: _flat(coded.query_MD, coded.scan(), True)),
        **dict.fromkeys(("geometry", "pro_geometry"), lambda: beam(geometry, query=coded.query_MD)),
        "best_scan": lambda: _flat(asked, coded.scan(), True),
        "best_dense": lambda: _flat(coded.query_MD, coded.item_ND),
    }
    size = code_bits(config) / 8
    return {
        "systems": _ranks(vectors, {name: makers[name]() for name in UNITS[unit]}),
        "validation": {
            "omega": weighed.best.omega,
            "prior": weighed.best.prior,
            "tried": weighed.tried,
            "blend": None if head is None else head.blend_M.tolist(),
            "decoder_loss": history[-1].get("val_loss") if history else None,
        },
        "bytes": {name: 4 * config.fusion.dim if name == "best_dense" else size for name in UNITS[unit]},
    }
