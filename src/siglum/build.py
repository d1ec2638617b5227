"""From a folder of photographs to a search engine: encode, fuse, tokenise, train and index in one call."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from siglum.config import RunConfig, diff
from siglum.data.collection import Collection
from siglum.data.folder import FolderCollection, path_of, read_folder
from siglum.data.source import read_source, write_source
from siglum.data.vectors import load_vectors, save_vectors
from siglum.device import check_device
from siglum.encode.registry import build_encoder
from siglum.files import open_stage
from siglum.fuse.contrastive import new_fusion
from siglum.fuse.store import save_fusion
from siglum.pipeline import RunFolder, dense_inputs, make_decoder, make_index, make_tokenizer, make_vectors
from siglum.recipes import fit_to_data, recipe_for
from siglum.recipes import recipe as recipe_at
from siglum.search.retriever import Retriever
from siglum.types import Features, Query, SiglumError, Vectors

LEAST_PICTURES = 8
"""The smallest vocabulary schedule, 2/4/8, needs as many to learn from."""
STAGES = {
    "encode": "encoding pictures",
    "tokenize": "learning codes",
    "train": "training the decoder",
    "index": "indexing",
    "weigh": "weighing decoder and distance on held-out captions",
}
WEIGHTS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""What is tried as weight of distance beside the decoder, times that of the recipe."""
TRIED = 200
"""Most validation queries it is tried on."""
DEPTHS = (1, 5, 10)
"""Held-out captions are counted that find their picture among the first so many."""
FEW_PAIRS = 5_000
"""With fewer captions a space learnt anew cannot match the one a joint encoder brings."""
PHRASES = tuple(
    f"{start} {thing}"
    for start in ("a photo of", "a picture showing", "there is", "we see")
    for thing in (
        "two people at a table with food",
        "a child playing in a park",
        "a dog on the beach",
        "a city street with cars at night",
        "mountains and a lake under a blue sky",
        "a close-up of a flower",
        "an old building with a tower",
        "a living room with a sofa and a lamp",
    )
)
"""What people look for in photographs; they tell where texts lie in a joint space when there are no captions."""


@dataclass(slots=True)
class Built:
    """What a build gave."""

    run: str
    about: str
    """What captions were found, in a sentence."""
    items: int
    """Pictures in the index."""
    captions: int
    """Captions of these pictures, learnt from or held out for validation; 0 without captions."""
    skipped: list[str]
    """Paths of pictures that could not be read."""
    example: str
    """Path of a picture that was read, to try a search with."""
    encoder: str
    supervised: bool
    """Whether captions were learnt from; else every picture was its own query."""
    joint: bool
    """Whether the encoder puts words and pictures into one space."""
    held_out: dict[str, float] = field(default_factory=dict)
    """Number of validation captions tried, and the shares that found their picture (success@1, @5, @10)."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time of each stage that was made now."""

    @property
    def by_words(self) -> bool:
        """Whether words can find pictures in this run."""
        return self.supervised or self.joint

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


def build_folder(
    photos: str | Path,
    out: str | Path,
    *,
    captions: str = "auto",
    encoder: str = "auto",
    recipe: str = "pro",
    scale: str = "auto",
    change: Callable[[RunConfig], RunConfig] | None = None,
    seed: int = 0,
    device: str = "cpu",
    workers: int = 1,
    strict: bool = False,
    resume: bool = False,
    say: Callable[[str], None] | None = None,
) -> Built:
    """Make a searchable run of all pictures of a folder and return what came of it.

    `captions` is as in `read_folder`, `encoder` as in `build_encoder`; `change` may alter the settings before they are
    used. With `resume` nothing that is finished is made again. A run of another folder is never overwritten.
    """
    run, folder = RunFolder(Path(out)), Path(photos).absolute()
    check_device(device)
    found = read_folder(folder, captions, seed)
    _check_number(found.collection.items, "pictures")
    _claim(run, folder, found, encoder, resume, captions=captions, seed=seed)
    clock = _Clock(say or (lambda text: None))
    clock.tell(found.about)
    vectors = _find_vectors(run, found, encoder, clock, device=device, workers=workers, strict=strict, resume=resume)
    record = open_stage(run.vectors, "vectors")
    config = _configure(vectors, found.supervised, record["joint"], recipe, scale, seed)
    changed = change(config) if change else config
    given = changed.search.omega != config.search.omega
    _settle(run, changed, resume, given)
    _train(run, vectors, record["fingerprint"], clock, device, resume)
    weights = [changed.search.omega * times for times in ((1.0,) if given else WEIGHTS)]
    held_out = _weigh(run, vectors, weights, found.supervised, clock, device)
    return Built(
        run=str(run.root),
        about=found.about,
        items=len(vectors.items),
        captions=len(vectors.pair_query) + len(vectors.first_pairs("val")[0]) if found.supervised else 0,
        skipped=[path_of(name) for name in _missing(found, vectors)],
        example=str(folder / path_of(vectors.items.ids[0])),
        encoder=record["encoder"],
        supervised=found.supervised,
        joint=record["joint"],
        held_out=held_out,
        seconds=clock.seconds,
    )


def _missing(found: FolderCollection, vectors: Vectors) -> list[str]:
    """Return the ids of pictures that could not be encoded."""
    here = set(vectors.items.ids)
    return [item.id for item in found.collection.items if item.id not in here]


def _find_vectors(run: RunFolder, found: FolderCollection, name: str, clock: _Clock, **options: Any) -> Vectors:
    """Return the vectors of the run's first stage, which is made first unless it is finished."""
    if not _finished(run.vectors, "vectors"):
        with clock.stage("encode"):
            _encode(run, found, name, **options)
    vectors, _ = load_vectors(run.vectors) if found.supervised else _ask_for_themselves(run)
    write_source(run.root, **{**read_source(run.root), "joint": open_stage(run.vectors, "vectors")["joint"]})
    _check_number(np.unique(vectors.pair_item), "captioned pictures" if found.supervised else "readable pictures")
    return vectors


def _train(run: RunFolder, vectors: Vectors, made_from: str, clock: _Clock, device: str, resume: bool) -> None:
    """Make the stages after `1-vectors` that are not finished."""
    if not _finished(run.tokenizer, "tokenizer", vectors=made_from):
        with clock.stage("tokenize"):
            if (fusion := run.config().fusion).kind == "sum" and fusion.epochs == 0:
                _write_space(run, vectors, made_from)
            make_tokenizer(run, device=device, resume=resume)
    own = open_stage(run.tokenizer, "tokenizer")["tokenizer_fingerprint"]
    if not _finished(run.decoder, "decoder", tokenizer=own):
        with clock.stage("train"):
            make_decoder(run, device=device, resume=resume)
    if not _finished(run.index, "index", tokenizer=own):
        with clock.stage("index"):
            make_index(run, device=device)


@dataclass(slots=True)
class _Clock:
    """Announces stages and keeps the time of each."""

    tell: Callable[[str], None]
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.tell(STAGES[name])
        begun = time.perf_counter()
        yield
        self.seconds[name] = round(time.perf_counter() - begun, 2)


def _check_number(pictures: Sequence[Any] | np.ndarray, what: str) -> None:
    if len(pictures) < LEAST_PICTURES:
        more = "; add captions or use --captions none" if what.startswith("captioned") else "; add some"
        raise SiglumError(
            f"there are {len(pictures)} {what} to learn from, but a search needs at least {LEAST_PICTURES}{more}."
        )


def _claim(
    run: RunFolder, folder: Path, found: FolderCollection, encoder: str, resume: bool, **read_with: str | int
) -> None:
    """Say whose run this is, refusing to touch another's and to go on with what has changed."""
    before, facts = read_source(run.root), {"path": str(folder), "identity": found.identity, "encoder": encoder}
    if run.root.exists() and any(run.root.iterdir()) and before.get("path") != facts["path"]:
        owner = f"the run of {before['path']}" if "path" in before else "something else"
        raise SiglumError(f"{run.root} holds {owner}, not of {folder}; choose another --out.")
    if resume and before:
        if before.get("identity") != found.identity:
            raise SiglumError(
                f"pictures or captions of {folder} changed since {run.root} was begun; start without --resume."
            )
        if before["encoder"] != encoder:
            raise SiglumError(
                f"{run.root} was begun with encoder {before['encoder']}, not {encoder}; start without --resume."
            )
        return
    for stage in (run.vectors, run.tokenizer, run.decoder, run.index):
        shutil.rmtree(stage, ignore_errors=True)
    (run.root / "config.json").unlink(missing_ok=True)
    write_source(run.root, "folder", **facts, **read_with, about=found.about, supervised=found.supervised)


def _finished(folder: Path, stage: str, **inputs: str) -> bool:
    """Return whether a stage is whole and was made from these inputs."""
    try:
        open_stage(folder, stage, **inputs)
    except SiglumError:
        return False
    return True


def _encode(run: RunFolder, found: FolderCollection, name: str, *, device: str, **options: Any) -> None:
    encoder = build_encoder(name, device=device)
    if encoder is None or not encoder.image_dim:
        raise SiglumError(f"encoder {name} makes no features of pictures; choose another.")
    collection = found.collection
    if not found.supervised and encoder.text_dim:
        # Every picture becomes its own query afterwards, so that none is encoded twice.
        phrases = [Query(id=f"phrase {place}", text=phrase) for place, phrase in enumerate(PHRASES)]
        collection = Collection(collection.items, {"train": phrases})
    make_vectors(run, collection, encoder, identity=found.identity, **options)


def _ask_for_themselves(run: RunFolder) -> tuple[Vectors, str]:
    """Make every picture of the `1-vectors` stage its own query, before the phrases, unless it is already."""
    vectors, made_from = load_vectors(run.vectors)
    if len(vectors.pair_query):
        return vectors, made_from
    record = open_stage(run.vectors, "vectors")
    facts = {k: v for k, v in record.items() if k not in ("stage", "format", "inputs", "files", "fingerprint")}
    items, phrases, rows = vectors.items, vectors.queries, np.arange(len(vectors.items))
    parts = ("image", "text", "has_image", "has_text")
    joined = (np.concatenate([getattr(items, part), getattr(phrases, part)]) for part in parts)
    vectors = Vectors(items, Features([*items.ids, *phrases.ids], *joined), rows, rows, [])
    return vectors, save_vectors(run.vectors, vectors, record["inputs"], **facts)


def _configure(vectors: Vectors, supervised: bool, joint: bool, recipe: str, scale: str, seed: int) -> RunConfig:
    """Return the settings, with the encoder's own space kept where nothing better could be learnt.

    A picture that is its own query could teach a fusion module nothing, and few captions less than a joint encoder
    knows. Its space is a plain sum, in which one part of each row is there.
    """
    sizes = len(np.unique(vectors.pair_item)), len(vectors.pair_query)
    if scale == "auto":
        # Towers with strong dropout were chosen on photographs; the demo's combiner on drawings.
        towers = fit_to_data(recipe_at(recipe, "captions_small", seed), *sizes).fusion
        config = replace(recipe_for(recipe, *sizes, seed), fusion=towers)
    else:
        config = recipe_at(recipe, scale, seed)
    if supervised and not (joint and len(vectors.pair_query) < FEW_PAIRS):
        return config
    fusion = replace(config.fusion, kind="sum", dim=vectors.items.image.shape[1], epochs=0, standardise=False)
    return replace(config, fusion=fusion, tokenizer=replace(config.tokenizer, train_fusion=False))


def _write_space(run: RunFolder, vectors: Vectors, made_from: str) -> None:
    """Write the dense stage: the encoder's space with the mean picture and the mean text taken off.

    Even in a joint space pictures lie in one corner and texts in another; a decoder that has seen the one only must
    not take the way to the other for meaning.
    """
    config, queries = run.config(), vectors.queries
    fusion = new_fusion(vectors, config.fusion, config.seed, "cpu")
    for shift, rows in ((fusion.image_shift, vectors.items.image), (fusion.text_shift, queries.text[queries.has_text])):
        if len(rows):
            shift.copy_(torch.from_numpy(rows.mean(0, dtype=np.float32)))
    save_fusion(run.dense, fusion, dense_inputs(config, made_from), epochs=0)


def _settle(run: RunFolder, config: RunConfig, resume: bool, given: bool) -> None:
    """Write the settings, refusing to go on with others than before; a weight that was chosen, not given, stays."""
    if resume and (run.root / "config.json").exists():
        before = run.config()
        if not given:
            config = replace(config, search=replace(config.search, omega=before.search.omega))
        changed = diff(before, config)
        if changed:
            name, (was, now) = next(iter(changed.items()))
            raise SiglumError(f"{run.root} was begun with {name} {was}, not {now}; start without --resume.")
    run.write_config(config)


def _weigh(
    run: RunFolder, vectors: Vectors, weights: Sequence[float], supervised: bool, clock: _Clock, device: str
) -> dict[str, float]:
    """Choose how much distance counts beside the decoder, unless that was done, and return what held-out captions find.

    A decoder knows the pictures whose captions it has read; the fewer they are, the more distance must count. Without
    captions it has read nothing, and distance gets the largest weight.
    """
    config, source = run.config(), read_source(run.root)
    held_out: dict[str, float] = source.get("held_out", {})
    if "held_out" not in source:
        best = weights[-1]
        if supervised:
            with clock.stage("weigh"):
                best, held_out = _best_weight(run, vectors, weights, device)
        run.write_config(replace(config, search=replace(config.search, omega=best)))
        write_source(run.root, **{**source, "held_out": held_out})
    return held_out


def _best_weight(
    run: RunFolder, vectors: Vectors, weights: Sequence[float], device: str
) -> tuple[float, dict[str, float]]:
    """Return the weight with the best mean reciprocal rank on validation, or the first where nothing tells.

    With it comes how many captions were tried and which shares of them found their picture.
    """
    query_rows, item_rows = vectors.first_pairs("val")
    if not len(query_rows):
        return weights[0], {}
    spread = np.linspace(0, len(query_rows) - 1, min(len(query_rows), TRIED)).astype(int)
    retriever = Retriever.load(run.root, device=device)
    query_QD = retriever.vectors(vectors.queries.rows(query_rows[spread]), "queries")

    def find(weight: float) -> np.ndarray:
        """Return the rank of every caption's picture, infinite beyond the last depth."""
        # All items are in the index, in their order, so that a position is an item row.
        found = zip(retriever.rank(query_QD, k=DEPTHS[-1], omega=weight), item_rows[spread], strict=True)
        return np.array([next((1.0 + p for p in np.flatnonzero(hits.position == row)), np.inf) for hits, row in found])

    tried = weights if retriever.config.scorer == "fused" else weights[:1]
    ranks = {weight: find(weight) for weight in tried}
    best = max(tried, key=lambda weight: float((1 / ranks[weight]).mean()))
    shares = {f"success@{depth}": float((ranks[best] <= depth).mean()) for depth in DEPTHS}
    return best, {"captions": len(spread), **shares}
