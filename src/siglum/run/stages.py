"""The stages of a run: the verbs that make them, and `ensure`, which makes only what is not there.

Every stage records the fingerprint of what it was made from, and a later stage refuses an earlier one that has
changed.
"""

from __future__ import annotations

import copy
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from torch import Tensor

from siglum.config import RunConfig, config_fingerprint, diff
from siglum.data.collection import Collection
from siglum.data.stamps import forget_stamps
from siglum.data.vectors import load_fields, load_vectors, save_vectors
from siglum.encode.base import Encoder
from siglum.encode.run import Encoded, encode_collection
from siglum.files import STAGE_FILE, open_stage, read_stage
from siglum.fuse.contrastive import embed, fit_fusion, kinds_of
from siglum.fuse.modules import Fusion, plain_sum
from siglum.fuse.store import load_fusion, save_fusion
from siglum.generate.decoder import CodeDecoder
from siglum.generate.history_train import Validate, fit_history_decoder
from siglum.generate.query import QueryHead, fit_query_head
from siglum.generate.store import save_decoder
from siglum.generate.train import fit_decoder
from siglum.index import Index
from siglum.log import Log
from siglum.run.folder import CONFIG_FILE, RunFolder
from siglum.run.generations import holds_index, read_generation, refuse_dropping, save_index
from siglum.tokenize.store import load_tokenizer, save_tokenizer
from siglum.tokenize.train import Tokenizer, fit_tokenizer
from siglum.types import Features, SiglumError, Vectors

SHARED = ("vectors", "dense")
"""Stages that runs of one collection can have in common."""


def settle(run: RunFolder, config: RunConfig, *, free: tuple[str, ...] = (), remedy: str) -> None:
    """Write the settings of a run, refusing others than it was begun with; those that begin like `free` may change."""
    if (run.root / CONFIG_FILE).exists():
        for name, (was, now) in diff(run.config(), config).items():
            if not name.startswith(free):
                raise SiglumError(f"{run.root} was made with {name} {was}, not {now}; {remedy}.")
    run.write_config(config)


def ensure(
    run: RunFolder,
    *stages: str,
    makers: Mapping[str, Callable[[], object]] | None = None,
    share: RunFolder | None = None,
    device: str = "cpu",
    resume: bool = False,
    tell: Callable[[str], None] = lambda stage: None,
) -> dict[str, float]:
    """See that stages are there (vectors, dense, tokenizer, decoder, index), and return the seconds of those made now.

    With `resume` one that was made from what is there now is taken as it is, and one that is not finished is gone on
    with; without, all are made anew. What `share` has of the same inputs is linked or copied from there. `makers`
    make a stage in another way than usual, as they must the vectors, and `tell` hears the name of a stage before it is
    made.
    """

    def training(make: Callable[..., object], folder: Path) -> Callable[[], object]:
        # The checkpoints of a finished stage are of no use to one of other inputs.
        return lambda: make(run, device=device, resume=resume and not (folder / STAGE_FILE).exists())

    ways: dict[str, Callable[[], object]] = {
        "dense": training(make_dense, run.dense),
        "tokenizer": training(make_tokenizer, run.tokenizer),
        "decoder": training(make_decoder, run.decoder),
        "index": lambda: make_index(run, device=device),
        **(makers or {}),
    }
    seconds: dict[str, float] = {}
    for stage in stages:
        if resume and is_made(run, stage):
            continue
        if share is not None and stage in SHARED and is_made(run, stage, getattr(share, stage)):
            _take(run, share, stage)
            continue
        if stage not in ways:
            raise SiglumError(f"{getattr(run, stage)} holds no finished {stage} stage; make it first.")
        tell(stage)
        begun = time.perf_counter()
        ways[stage]()
        seconds[stage] = round(time.perf_counter() - begun, 2)
    return seconds


def is_made(run: RunFolder, stage: str, folder: Path | None = None) -> bool:
    """Return whether a stage, of this run or in another folder, is finished and made from what this run has now.

    A damaged one is not made again behind the user's back: whoever opens it is refused.
    """
    folder = folder or getattr(run, stage)
    if stage == "index":
        own = read_stage(run.tokenizer)["tokenizer_fingerprint"]
        return holds_index(folder) and read_generation(folder).tokenizer == own
    if not (folder / STAGE_FILE).exists():
        return False
    made_from = read_stage(folder)["inputs"]
    return all(made_from.get(name) == fingerprint for name, fingerprint in _inputs(run, stage).items())


def _inputs(run: RunFolder, stage: str) -> dict[str, str]:
    """Return what a stage would be made from now."""
    if stage == "vectors":
        return {}
    if stage == "decoder":
        return {"tokenizer": read_stage(run.tokenizer)["tokenizer_fingerprint"]}
    vectors = read_stage(run.vectors)["fingerprint"]
    return dense_inputs(run.config(), vectors) if stage == "dense" else {"vectors": vectors}


def _take(run: RunFolder, share: RunFolder, stage: str) -> None:
    """Take a stage over from another run: vectors by a link, where the file system knows links, else by a copy."""
    source, to = getattr(share, stage), getattr(run, stage)
    if to.is_symlink():
        to.unlink()
    elif to.exists():
        shutil.rmtree(to)
    if stage == "vectors":
        try:
            to.symlink_to(os.path.relpath(source, to.parent), target_is_directory=True)
        except OSError:
            pass
        else:
            return
    shutil.copytree(source, to)


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


def take_vectors(run: RunFolder, vectors: Vectors, fields: Sequence[str] = (), encoder: str = "none") -> str:
    """Stage 1 from one's own features; those of one size are taken to live in one space."""
    joint = plain_sum(vectors.items.image.shape[1], vectors.items.text.shape[1]) is not None
    return save_vectors(run.vectors, vectors, {"collection": "arrays"}, fields, encoder=encoder, joint=joint)


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
    if is_made(run, "dense"):
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


def make_decoder(
    run: RunFolder,
    *,
    device: str = "cpu",
    resume: bool = False,
    log: Log | None = None,
    validate: Validate | None = None,
) -> None:
    """Stage 3: train the decoder; `validate` measures one that reads histories beside its losses."""
    config, log = run.config(), log or run.log()
    vectors, made_from = load_vectors(run.vectors)
    tokenizer, record = load_tokenizer(run.tokenizer, device, vectors=made_from)
    options: dict[str, Any] = {"device": device, "folder": run.decoder / "checkpoint", "resume": resume, "log": log}
    decoder, head = _train_decoder(vectors, tokenizer, config, validate, **options)
    save_decoder(run.decoder, decoder, record["tokenizer_fingerprint"], head, parameters=decoder.parameter_count())


def _train_decoder(
    vectors: Vectors, tokenizer: Tokenizer, config: RunConfig, validate: Validate | None = None, **options: Any
) -> tuple[CodeDecoder, QueryHead | None]:
    """Train the query head, where there is to be one, and then the decoder."""
    if config.decoder.history.items:
        options = {"seed": config.seed, "validate": validate, **options}
        return fit_history_decoder(vectors, tokenizer, config.decoder, **options)[0], None
    head = fit_query_head(vectors, tokenizer, config.query, seed=config.seed, **options)
    return fit_decoder(vectors, tokenizer, config.decoder, head=head, seed=config.seed, **options)[0], head


class TrainedModels(TypedDict):
    """The models of the stages."""

    tokenizer: Tokenizer
    decoder: CodeDecoder
    head: QueryHead | None


def train_all(
    vectors: Vectors,
    config: RunConfig,
    fields: Sequence[str] = (),
    *,
    device: str = "cpu",
    validation: Callable[[Vectors, Tokenizer], Validate | None] | None = None,
) -> tuple[TrainedModels, Index]:
    """Make what the stages make, to the same bits, and write nothing."""
    dense, _ = fit_fusion(vectors, config.fusion, seed=config.seed, device=device)
    tokenizer = fit_tokenizer(vectors, dense, config.tokenizer, seed=config.seed, device=device)
    validate = None if validation is None else validation(vectors, tokenizer)
    decoder, head = _train_decoder(vectors, tokenizer, config, validate, device=device)
    models: TrainedModels = {"tokenizer": tokenizer, "decoder": decoder, "head": head}
    return models, _index_items(vectors.items, tokenizer, fields, device)[0]


def make_index(
    run: RunFolder, *, pools: str = "", keep_vectors: bool = False, drop_added: bool = False, device: str = "cpu"
) -> Index:
    """Stage 4: index all items, or, where a split is named, only those of its tasks' pools.

    Where that would drop items which were added to an earlier index it is refused, unless they are to be dropped.
    """
    index, item_ND = new_index(run, pools, device)
    if not drop_added:
        refuse_dropping(run.index, index, "give --drop-added (in Python drop_added=True)")
    forget_stamps(run.root, index.ids)
    save_index(run.index, index, item_ND if keep_vectors else None)
    return index


def new_index(run: RunFolder, pools: str = "", device: str = "cpu") -> tuple[Index, Tensor]:
    """Return what `make_index` writes, and the vectors of its items."""
    vectors, made_from = load_vectors(run.vectors)
    tokenizer, _ = load_tokenizer(run.tokenizer, device, vectors=made_from)
    items, fields = vectors.items, load_fields(run.vectors)
    if pools:
        rows = vectors.pool_rows(pools)
        items, fields = items.rows(rows), [fields[row] for row in rows.tolist()] if fields else []
    return _index_items(items, tokenizer, fields, device)


def _index_items(items: Features, tokenizer: Tokenizer, fields: Sequence[str], device: str) -> tuple[Index, Tensor]:
    item_ND = embed(tokenizer.fusion, items, device)
    codes = tokenizer.quantizer.encode(item_ND, kinds_of(items, device)).cpu().numpy()
    return Index.build(items.ids, codes, tokenizer.quantizer.sizes, tokenizer.fingerprint(), fields), item_ND
