"""`siglum.fit`: from one's own arrays to a retriever in one call."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from siglum.config import RunConfig
from siglum.data.collection import assemble
from siglum.data.vectors import features_of, with_widths
from siglum.device import check_device
from siglum.pipeline import RunFolder, make_decoder, make_index, make_tokenizer, take_vectors
from siglum.recipes import recipe_for
from siglum.search.retriever import Retriever
from siglum.types import Features, SiglumError

LEAST_ITEMS = 8
"""The smallest vocabulary schedule, 2/4/8, needs as many."""
Arrays = np.ndarray | Mapping[str, np.ndarray] | Features
"""An array (N, D), or {"image": (N, Di), "text": (N, Dt)} with rows of NaN for missing parts, or features."""


def fit(
    items: Arrays,
    queries: Arrays,
    positives: Sequence[Sequence[int] | int],
    *,
    item_ids: Sequence[str] | None = None,
    config: RunConfig | None = None,
    recipe: str = "pro",
    folder: str | Path | None = None,
    validation: float = 0.1,
    seed: int | None = None,
    device: str = "cpu",
    resume: bool = False,
) -> Retriever:
    """Train tokenizer and decoder on one's own vectors and return a retriever over all items.

    `positives[i]` are the item rows (or one row) that answer query i. A share of the queries is held out to
    choose by. With `folder` the run is kept there, else it lives in memory only. A `config` takes the place of the
    recipe; its seed counts unless another is given. Example:

        retriever = siglum.fit(item_vectors, query_vectors, positives)
        hits = retriever.search_features(siglum.features(query_vectors[:1]), k=5)
    """
    check_device(device)
    chosen = (config.seed if config else 0) if seed is None else seed
    item_features, query_features = _features(items, "item", item_ids), _features(queries, "query", None)
    image_dim, text_dim = (_width(item_features, query_features, part) for part in ("image", "text"))
    item_features = with_widths(item_features, image_dim, text_dim, "items")
    query_features = with_widths(query_features, image_dim, text_dim, "queries")
    if len(positives) != len(query_features):
        raise SiglumError(f"there are {len(query_features)} queries but {len(positives)} entries in positives.")
    if not 0 <= validation < 1:
        raise SiglumError(f"validation is a share of the queries between 0 and 1, not {validation}.")
    held_out = np.random.default_rng(chosen).random(len(query_features)) < validation
    about = _about(positives, held_out, item_features)
    vectors = assemble(item_features, query_features, about, {})
    if config is None and len(set(vectors.pair_item.tolist())) < LEAST_ITEMS:
        found = len(set(vectors.pair_item.tolist()))
        raise SiglumError(f"fit needs training queries for at least {LEAST_ITEMS} items, but they cover {found}.")
    with tempfile.TemporaryDirectory() as scratch:
        run = RunFolder(Path(folder) if folder is not None else Path(scratch))
        take_vectors(run, vectors)
        sized = config or recipe_for(recipe, len(item_features), len(vectors.pair_query), chosen)
        run.write_config(replace(sized, seed=chosen))
        make_tokenizer(run, device=device, resume=resume)
        make_decoder(run, device=device, resume=resume)
        make_index(run, device=device)
        return Retriever.load(run.root, device=device)


def features(arrays: Arrays, ids: Sequence[str] | None = None) -> Features:
    """Return arrays in the form `search_features` and `add` take."""
    return _features(arrays, "row", ids)


def _features(arrays: Arrays, what: str, ids: Sequence[str] | None) -> Features:
    if isinstance(arrays, Features):
        return arrays
    parts = {
        name: np.asarray(rows) for name, rows in (arrays if isinstance(arrays, Mapping) else {"text": arrays}).items()
    }
    unknown = sorted(set(parts) - {"image", "text"})
    if unknown or not parts:
        raise SiglumError(f"feature arrays are named image and text, not {', '.join(unknown) or 'nothing'}.")
    size = next(iter(parts.values())).shape[:1] or (0,)
    names = [f"{what}{row}" for row in range(size[0])] if ids is None else ids
    return features_of(names, image=parts.get("image"), text=parts.get("text"))


def _about(
    positives: Sequence[Sequence[int] | int], held_out: np.ndarray, items: Features
) -> list[tuple[str, str, list[str]]]:
    """Return split, dataset and positive ids of every query, refusing rows that no item has."""
    about = []
    for row, found in enumerate(positives):
        rows = np.atleast_1d(np.asarray(found))
        if rows.dtype.kind not in "iu" or not len(rows) or rows.min() < 0 or rows.max() >= len(items):
            raise SiglumError(
                f"positives of query {row} are {rows.tolist()}, but must be rows of the {len(items)} items."
            )
        about.append(("val" if held_out[row] else "train", "", [items.ids[p] for p in rows]))
    return about


def _width(items: Features, queries: Features, part: str) -> int:
    """Return the width of a part: that of the items, or of the queries where no item has it."""
    return int(getattr(items, part).shape[1] or getattr(queries, part).shape[1])
