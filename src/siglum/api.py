"""`siglum.fit`, from one's own arrays to a retriever in one call, and `siglum.diagnose`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from pathlib import Path

import numpy as np
from torch import Tensor

from siglum.config import RunConfig
from siglum.data.collection import assemble
from siglum.data.fields import fields_by_id
from siglum.data.vectors import check_features, check_parts, features_of, load_vectors, with_widths
from siglum.device import check_device
from siglum.generate.store import load_decoder, load_query_head
from siglum.given import as_array, as_folder
from siglum.measure.diagnose import RunDiagnosis
from siglum.measure.diagnose import diagnose as diagnose_vectors
from siglum.recipes import recipe_for
from siglum.run.claim import Owner, arrays_identity, claim_run
from siglum.run.folder import RunFolder
from siglum.run.lock import lock_run
from siglum.run.stages import ensure, make_index, settle, take_vectors, train_all
from siglum.search.retriever import Retriever
from siglum.search.state import checked_items
from siglum.terminal import shown_if
from siglum.tokenize.store import load_tokenizer
from siglum.types import Features, Item, SiglumError, Vectors, shown, truth_value, whole_number

LEAST_ITEMS = 8
"""The smallest vocabulary schedule, 2/4/8, needs as many."""
Arrays = np.ndarray | Mapping[str, np.ndarray] | Features
"""An array (N, D), or {"image": (N, Di), "text": (N, Dt)} with rows of NaN for missing parts, or features."""

Positives = Sequence[Sequence[int] | int] | np.ndarray | Tensor
"""For every query the item rows that answer it, or one row."""


def fit(
    items: Arrays,
    queries: Arrays,
    positives: Positives,
    *,
    item_ids: Sequence[str] | None = None,
    config: RunConfig | None = None,
    recipe: str = "pro",
    folder: str | Path | None = None,
    about: Iterable[Item] = (),
    validation: float = 0.1,
    seed: int | None = None,
    device: str = "auto",
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = False,
) -> Retriever:
    """Train tokenizer and decoder on one's own vectors and return a retriever over all items.

    `positives[i]` are the item rows (or one row) that answer query i. A share of the queries is held out to choose by.
    With `folder` the run is kept there, and `resume` goes on with one that was killed; without, nothing is written. A
    `config` takes the place of the recipe; its seed counts unless another is given. Hits carry the texts and pictures
    of the items given in `about`, found by their ids. A folder with a run of other data is refused, unless `overwrite`
    lets that run go; while another process writes there, this one waits. `progress` is shown on stderr. Example:

        retriever = siglum.fit(item_vectors, query_vectors, positives)
        hits = retriever.search_features(siglum.features(query_vectors[:1]), k=5)
    """
    device = check_device(device)
    if not isinstance(config, RunConfig | None):
        raise SiglumError(f"config is a RunConfig (siglum.recipe makes one), not {shown(config)}.")
    chosen = (config.seed if config else 0) if seed is None else whole_number("seed", seed, 0)
    root = None if folder is None else as_folder(folder)
    if (truth_value("resume", resume) | truth_value("overwrite", overwrite)) and root is None:
        raise SiglumError("resume and overwrite are about a folder; name one, or leave them out.")
    vectors = _assembled(items, queries, positives, item_ids, validation, chosen)
    if config is None and len(set(vectors.pair_item.tolist())) < LEAST_ITEMS:
        found = len(set(vectors.pair_item.tolist()))
        raise SiglumError(f"fit needs training queries for at least {LEAST_ITEMS} items, but they cover {found}.")
    sized = config or recipe_for(recipe, len(vectors.items), len(vectors.pair_query), chosen)
    settings, fields = replace(sized, seed=chosen), fields_by_id(checked_items(about), vectors.items.ids)
    with shown_if(progress):
        if root is None:
            models, index = train_all(vectors, settings, fields, device=device)
            return Retriever(index=index, config=settings.search, encoder="none", device=device, **models)
        with lock_run(root, "siglum.fit"):
            claim_run(root, Owner(arrays_identity(vectors)), overwrite=overwrite)
            take_vectors(RunFolder(root), vectors, fields)
            _make(RunFolder(root), settings, device=device, resume=resume, drop_added=overwrite)
            return Retriever.load(root, device=device)


def _assembled(
    items: Arrays,
    queries: Arrays,
    positives: Positives,
    item_ids: Sequence[str] | None,
    validation: float,
    seed: int,
) -> Vectors:
    """Return checked arrays as vectors with training pairs and a share of the queries held out."""
    item_features, query_features = _features(items, "item", item_ids), _features(queries, "query", None)
    image_dim, text_dim = (_width(item_features, query_features, part) for part in ("image", "text"))
    item_features = with_widths(item_features, image_dim, text_dim, "items")
    query_features = with_widths(query_features, image_dim, text_dim, "queries")
    if not isinstance(validation, Real) or not 0 <= validation < 1:
        raise SiglumError(f"validation is a share of the queries between 0 and 1, not {shown(validation)}.")
    held_out = np.random.default_rng(seed).random(len(query_features)) < validation
    vectors = assemble(item_features, query_features, _about(positives, held_out, item_features), {})
    for side, what in ((vectors.items, "items"), (vectors.queries, "queries")):
        check_features(side, what)  # before a run that may be overwritten goes
    return vectors


def _make(run: RunFolder, config: RunConfig, *, device: str, resume: bool, drop_added: bool) -> None:
    """Make all stages; with `resume` those that are not there, for which the settings must be the same."""
    if resume:
        settle(run, config, free=("search.",), remedy="fit without resume")
    else:
        run.write_config(config)
    index = {"index": lambda: make_index(run, drop_added=drop_added, device=device)}
    ensure(run, "tokenizer", "decoder", "index", makers=index, device=device, resume=resume)


def diagnose(
    run: str | Path,
    *,
    split: str = "test",
    beam: int | None = None,
    tau: float | None = None,
    queries: int = 1000,
    device: str = "auto",
) -> RunDiagnosis:
    """Tell whether the tokenizer of a run is good enough, and where the beam loses its targets, level by level.

    Needs the stages vectors and tokenizer; with a trained decoder it also tells what that and fusion add. At most
    `queries` are asked, 0 asks all; beam and tau are those of the run unless given. Example:

        found = siglum.diagnose("runs/mine", split="val")
        print(found["verdict"], found["levels"][1]["survival"])
    """
    folder, device = RunFolder(as_folder(run)), check_device(device)
    search = folder.config().search
    vectors, made_from = load_vectors(folder.vectors)
    tokenizer, record = load_tokenizer(folder.tokenizer, device, vectors=made_from)
    decoder, head = None, None
    if any(folder.decoder.glob("*.*")):  # one that has lost its record is refused, not taken for none
        decoder = load_decoder(folder.decoder, record["tokenizer_fingerprint"], device)
        head = load_query_head(folder.decoder, tokenizer.quantizer.dim, device)
    elif folder.decoder.exists():
        logging.getLogger("siglum").warning("the training of %s is not finished; it is left out.", folder.decoder)
    how = {"split": split, "beam": beam, "tau": tau, "queries": queries, "device": device}
    return diagnose_vectors(vectors, tokenizer, search, decoder=decoder, head=head, **how)  # type: ignore[arg-type]


def features(arrays: Arrays, ids: Sequence[str] | None = None) -> Features:
    """Return arrays in the form `search_features` and `add` take."""
    return _features(arrays, "row", ids)


def _features(arrays: Arrays, what: str, ids: Sequence[str] | None) -> Features:
    if isinstance(arrays, Features):
        check_parts(arrays, what)
        return arrays
    given = arrays if isinstance(arrays, Mapping) else {"text": arrays}
    unknown = [name for name in given if name not in ("image", "text")]
    if unknown or not given:
        raise SiglumError(
            f"feature arrays are named image and text, not {', '.join(map(shown, unknown)) or 'nothing'}."
        )
    parts = {name: as_array(f"{name} features", rows) for name, rows in given.items()}
    size = next(iter(parts.values())).shape[:1] or (0,)
    names = [f"{what}{row}" for row in range(size[0])] if ids is None else ids
    return features_of(names, image=parts.get("image"), text=parts.get("text"))


def _about(positives: Positives, held_out: np.ndarray, items: Features) -> list[tuple[str, str, list[str]]]:
    """Return split, dataset and positive ids of every query, refusing rows that no item has."""
    entries = positives if isinstance(positives, Sequence) else as_array("positives", positives)
    if isinstance(entries, str | bytes) or (isinstance(entries, np.ndarray) and entries.ndim == 0):
        raise SiglumError(f"positives are item rows, one entry a query, not {shown(positives)}.")
    if len(entries) != len(held_out):
        raise SiglumError(f"there are {len(held_out)} queries but {len(entries)} entries in positives.")
    about = []
    for row, found in enumerate(entries):
        rows = np.atleast_1d(as_array(f"positives of query {row}", found))
        whole = rows.ndim == 1 and rows.dtype.kind in "iu" and len(rows) > 0
        if not whole or rows.min() < 0 or rows.max() >= len(items):
            raise SiglumError(
                f"positives of query {row} are {shown(found)}, but must be rows of the {len(items)} items."
            )
        about.append(("val" if held_out[row] else "train", "", [items.ids[p] for p in rows]))
    return about


def _width(items: Features, queries: Features, part: str) -> int:
    """Return the width of a part: that of the items, or of the queries where no item has it."""
    return int(getattr(items, part).shape[1] or getattr(queries, part).shape[1])
