"""From sequences and item vectors to a recommender, by the stages that retrieval has too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from siglum.api import Arrays, features
from siglum.config import RunConfig
from siglum.data.fields import fields_by_id
from siglum.data.histories import history_vectors
from siglum.data.sequences import Sequences, SplitEvents, assemble_sequences, split_events
from siglum.data.vectors import load_vectors
from siglum.device import check_device
from siglum.files import STAGE_FILE, read_stage
from siglum.fuse.contrastive import embed
from siglum.generate.store import load_decoder
from siglum.given import as_folder
from siglum.recommend.recommender import Recommender
from siglum.recommend.validation import choose_fusion, validation, validation_of
from siglum.recommenders import fit_to_items, fit_to_parts, recommender
from siglum.rootfiles import read_kept_json, write_root_json
from siglum.run.claim import Owner, arrays_identity, claim_run
from siglum.run.folder import RunFolder
from siglum.run.lock import lock_run
from siglum.run.stages import ensure, make_decoder, make_index, settle, take_vectors, train_all
from siglum.terminal import shown_if
from siglum.tokenize.store import load_tokenizer
from siglum.types import Features, Item, SiglumError, Vectors, shown

History = Sequence[str] | Sequence[int]
CHOSEN = "chosen.json"
"""What was tried of weights and vectors on validation, in the run folder."""


def fit(
    sequences: Sequences | Mapping[str, History] | Sequence[History],
    item_vectors: Arrays | None = None,
    *,
    item_ids: Sequence[str] | None = None,
    recipe: str = "tiger",
    scale: str = "paper",
    config: RunConfig | None = None,
    split: str = "leave_one_out",
    folder: str | Path | None = None,
    about: Iterable[Item] = (),
    seed: int = 0,
    device: str = "auto",
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = False,
) -> Recommender:
    """Train a recommender on users' sequences, oldest item first, and return it over all items.

    Sequences are lists of item ids, or of rows of `item_vectors`, by user or one a user; or what `read_sequences`
    gives, with the vectors in its order. A user's last item is kept for test, the one before for validation (`split`
    time: the last tenths of all time). `item_vectors` are features of texts, pictures or both, as `siglum.fit` takes
    them. A `config` takes the place of the recipe. With `folder` the run is kept there, and `resume` goes on with one
    that was killed. Example:

        recommender = siglum.recommend.fit(sequences, item_vectors)
        hits = recommender.next(["item-3", "item-17"], k=5)
    """
    device, root = check_device(device), None if folder is None else as_folder(folder)
    if root is None and (resume or overwrite):
        raise SiglumError("resume and overwrite are about a folder; name one, or leave them out.")
    found, own = _sequences(sequences, item_vectors, item_ids, about, seed)
    chosen = recommender(recipe, scale, seed) if config is None else replace(config, seed=seed)
    prepared = prepare(found, own, chosen, split=split, as_given=config is not None)
    with shown_if(progress):
        if root is None:
            return _fit_in_memory(prepared, device)
        with lock_run(root, "siglum.recommend.fit"):
            fit_run(RunFolder(root), prepared, device=device, resume=resume, overwrite=overwrite)
            return Recommender.load(root, device=device)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Sequences as vectors, with the settings that fit them."""

    vectors: Vectors
    config: RunConfig
    fields: Sequence[str]
    encoder: str = "none"
    """What makes the vectors of items to come."""


def prepare(
    sequences: Sequences,
    item_features: Features,
    config: RunConfig,
    *,
    split: str | SplitEvents = "leave_one_out",
    as_given: bool = False,
    encoder: str = "none",
) -> Prepared:
    """Return sequences as vectors, and the settings fitted to them unless they are to be as given."""
    item_features = with_parts(item_features)
    events, history = split, config.decoder.history
    if isinstance(events, str):
        events = split_events(sequences, events)
    if not history.items:
        raise SiglumError("a recommender reads histories; set decoder.history.items above 0.")
    vectors = history_vectors(sequences, events, item_features, length=history.items, fade=history.fade)
    sized = config if as_given else fit_to_items(config, item_features, len(events.train))
    return Prepared(
        vectors, fit_to_parts(sized, item_features), fields_by_id(list(sequences.items), item_features.ids), encoder
    )


def with_parts(found: Features) -> Features:
    """Return features without the columns of a part that no item has."""
    image_dim = found.image.shape[1] if found.has_image.any() else 0
    text_dim = found.text.shape[1] if found.has_text.any() else 0
    return replace(found, image=found.image[:, :image_dim], text=found.text[:, :text_dim])


def fit_run(
    run: RunFolder, prepared: Prepared, *, device: str = "cpu", resume: bool = False, overwrite: bool = False
) -> dict[str, float]:
    """Make all stages of a recommender in a folder whose lock is held; return the seconds of those made now."""
    vectors, config = prepared.vectors, prepared.config
    claim_run(run.root, Owner(arrays_identity(vectors)), overwrite=overwrite)
    if resume:
        settle(run, config, free=("search.",), remedy="fit without --resume")
    else:
        run.write_config(config)

    def decode() -> None:
        measure = validation_of(run, device)
        goes_on = resume and not (run.decoder / STAGE_FILE).exists()
        make_decoder(run, device=device, resume=goes_on, validate=measure)

    makers: dict[str, Callable[[], object]] = {
        "vectors": lambda: take_vectors(run, vectors, prepared.fields, prepared.encoder),
        "decoder": decode,
        "index": lambda: make_index(run, keep_vectors=True, drop_added=overwrite, device=device),
    }
    seconds = ensure(run, "vectors", "tokenizer", "decoder", "index", makers=makers, device=device, resume=resume)
    _choose(run, device)
    return seconds


def _choose(run: RunFolder, device: str) -> None:
    """Choose weight and vector of fusion on validation, unless that was done for this decoder."""
    config = run.config()
    if config.search.scorer != "fused":
        return
    vectors, made_from = load_vectors(run.vectors)
    tokenizer, record = load_tokenizer(run.tokenizer, device, vectors=made_from)
    own = record["tokenizer_fingerprint"]
    decoder = load_decoder(run.decoder, own, device)
    before = read_kept_json(run.root, CHOSEN) or {}
    identity = f"{own}-{read_stage(run.decoder)['fingerprint']}"
    if before.get("decoder") == identity:
        return
    search, tried = choose_fusion(vectors, tokenizer, decoder, config, device)
    run.write_config(replace(config, search=search))
    write_root_json(run.root, CHOSEN, {"decoder": identity, "tried": tried})


def _fit_in_memory(prepared: Prepared, device: str) -> Recommender:
    vectors, config = prepared.vectors, prepared.config
    models, index = train_all(
        vectors,
        config,
        prepared.fields,
        device=device,
        validation=lambda own, tokenizer: validation(own, tokenizer, config, device),
    )
    tokenizer, decoder = models["tokenizer"], models["decoder"]
    search, _ = choose_fusion(vectors, tokenizer, decoder, config, device)
    item_ND = embed(tokenizer.fusion, vectors.items, device)
    return Recommender(tokenizer, index, decoder=decoder, config=search, encoder="none", item_ND=item_ND, device=device)


def _sequences(
    given: Sequences | Mapping[str, History] | Sequence[History],
    item_vectors: Arrays | None,
    item_ids: Sequence[str] | None,
    about: Iterable[Item],
    seed: int,
) -> tuple[Sequences, Features]:
    """Return sequences over items in an order that the seed draws, and the features of these."""
    if isinstance(given, Sequences):
        own = given.features if item_vectors is None else features(item_vectors, [item.id for item in given.items])
        if own is None:
            raise SiglumError("these sequences have no item vectors; give item_vectors in the order of their items.")
        return given, own
    if item_vectors is None:
        raise SiglumError("sequences of ids need item_vectors, one row an item.")
    own = features(item_vectors, item_ids)
    if item_ids is None and not isinstance(item_vectors, Features):
        own = replace(own, ids=[str(row) for row in range(len(own))])
    users = given if isinstance(given, Mapping) else {f"user {row}": one for row, one in enumerate(given)}
    known, events = set(own.ids), dict[str, list[tuple[Any, str]]]()
    for user, history in users.items():
        names = [_name(one, own.ids) for one in history]
        lacking = next((name for name in names if name not in known), None)
        if lacking is not None:
            raise SiglumError(f"the sequence of {shown(user)} has the item {shown(lacking)}, which has no vector.")
        if names:
            events[str(user)] = [(None, name) for name in names]
    told = {item.id: item for item in about}
    found, order = assemble_sequences(events, {name: told.get(name, Item(id=name)) for name in own.ids}, seed=seed)
    return found, own.rows(order)


def _name(one: object, ids: Sequence[str]) -> str:
    """Return an item's id, given that or a row."""
    if isinstance(one, str):
        return one
    if isinstance(one, bool) or not isinstance(one, int | np.integer) or not 0 <= int(one) < len(ids):
        raise SiglumError(f"an item of a sequence is an id or a row of {len(ids)} item vectors, not {shown(one)}.")
    return ids[int(one)]
