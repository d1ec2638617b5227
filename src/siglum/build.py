"""From a folder of photographs to a search engine: encode, fuse, tokenise, train and index in one call."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from siglum.config import RunConfig
from siglum.data.collection import Collection
from siglum.data.folder import FolderCollection, path_of, read_folder
from siglum.data.source import read_source, write_source
from siglum.data.stamps import PICTURES_FILE, read_stamps, write_stamps
from siglum.data.vectors import load_fields, load_vectors, save_vectors
from siglum.device import check_device
from siglum.encode.registry import build_encoder
from siglum.encode.run import read_omitted
from siglum.files import open_stage
from siglum.fuse.contrastive import new_fusion
from siglum.fuse.store import save_fusion
from siglum.generate.store import load_decoder, load_query_head
from siglum.given import as_folder
from siglum.recipes import fit_to_data, recipe_for
from siglum.recipes import recipe as recipe_at
from siglum.rootfiles import remove_root_json
from siglum.run.claim import is_unused
from siglum.run.folder import CONFIG_FILE, RunFolder
from siglum.run.lock import lock_run
from siglum.run.stages import dense_inputs, ensure, make_tokenizer, make_vectors, new_index, settle
from siglum.search.retriever import Retriever
from siglum.terminal import shown_if
from siglum.tokenize.store import load_tokenizer
from siglum.types import Features, Query, SiglumError, Vectors, truth_value
from siglum.update import Built as Built
from siglum.update import update_run

LEAST_PICTURES = 8
"""The smallest vocabulary schedule has levels of 2, 4 and 8 codes, and k-means needs a picture for each code."""
STAGES = {
    "vectors": ("encode", "encoding pictures"),
    "tokenizer": ("tokenize", "learning codes"),
    "decoder": ("train", "training the decoder"),
    "index": ("index", "indexing"),
}
"""What the making of a stage is called, and how it is announced."""
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
    device: str = "auto",
    workers: int = 1,
    strict: bool = False,
    resume: bool = False,
    update: bool = False,
    wait: float | None = None,
    say: Callable[[str], None] | None = None,
    progress: bool = False,
) -> Built:
    """Make a searchable run of all pictures of a folder and return what came of it.

    `captions` is as in `read_folder`, `encoder` as in `build_encoder`; `change` may alter the settings before they are
    used. With `resume` nothing that is finished is made again; with `update` a finished run follows its folder, and
    what it learnt stays as it is. A run of another folder is never overwritten. `wait` is as in `lock_run`; `say` hears
    what is being done, and `progress` is shown on stderr. Example:

        built = siglum.build_folder("Pictures", "runs/photos", encoder="offline")
        hits = siglum.Retriever.load(built.run).search("two dogs in the snow")
    """
    run, folder, device = RunFolder(as_folder(out)), as_folder(photos).absolute(), check_device(device)
    for name, value in (("strict", strict), ("resume", resume), ("update", update)):
        truth_value(name, value)
    clock = _Clock(say or (lambda text: None))
    options: dict[str, Any] = {"device": device, "workers": workers, "strict": strict}
    with shown_if(progress), lock_run(run.root, "siglum build", wait=wait, say=say):
        if update:
            if resume:
                raise SiglumError("an update follows a finished run, and resuming finishes one; choose one of the two.")
            return update_run(run, folder, {"captions": captions, "encoder": encoder}, tell=clock.tell, **options)
        found = read_folder(folder, captions, seed, strict)
        _check_number(found.collection.items, "pictures")
        _claim(run, folder, found, encoder, resume, captions=captions, seed=seed)
        clock.tell(found.about)
        vectors = _find_vectors(run, found, encoder, clock, resume=resume, **options)
        joint = read_source(run.root)["joint"]
        config = configure(vectors, found.supervised, joint, recipe, scale, seed, usual=found.scale)
        _learn(run, found, vectors, (config, change(config) if change else config), clock, device, resume)
        return _summary(run, folder, found, vectors, clock)


def _learn(
    run: RunFolder,
    found: FolderCollection,
    vectors: Vectors,
    configs: tuple[RunConfig, RunConfig],
    clock: _Clock,
    device: str,
    resume: bool,
) -> None:
    """Make what follows the vectors, with the settings a user changed from the usual ones.

    The index comes last: without one nothing is found, so that no build that was killed answers with other weights.
    """
    usual, changed = configs
    given = changed.search.omega != usual.search.omega
    if not given and (run.root / CONFIG_FILE).exists():  # a weight that was chosen stays
        changed = replace(changed, search=replace(changed.search, omega=run.config().search.omega))
    settle(run, changed, remedy="start without --resume")

    def tokenize() -> None:
        if changed.fusion.kind == "sum" and changed.fusion.epochs == 0:
            _write_space(run, vectors)
        make_tokenizer(run, device=device, resume=resume)

    clock.ensure(run, "tokenizer", "decoder", makers={"tokenizer": tokenize}, device=device, resume=resume)
    weights = [configs[1].search.omega * times for times in ((1.0,) if given else WEIGHTS)]
    _weigh(run, vectors, weights, found.supervised, clock, device)
    clock.ensure(run, "index", device=device, resume=resume)
    if read_stamps(run.root) is None:
        write_stamps(run.root, found.stamps)


def _summary(run: RunFolder, folder: Path, found: FolderCollection, vectors: Vectors, clock: _Clock) -> Built:
    source, here = read_source(run.root), set(vectors.items.ids)
    omitted = read_omitted(run.vectors)
    reasons = found.unread | {path_of(entry.id): entry.why for entry in omitted}
    missing = [path_of(item.id) for item in found.collection.items if item.id not in here]
    return Built(
        run=str(run.root),
        about=found.about,
        items=len(Retriever.load(run.root).index),
        captions=source["learnt"],
        skipped=[*found.unread, *missing],
        reasons=reasons,
        example=str(folder / path_of(vectors.items.ids[0])),
        encoder=open_stage(run.vectors, "vectors")["encoder"],
        supervised=found.supervised,
        queries=found.queries,
        joint=source["joint"],
        held_out=source["held_out"],
        seconds=clock.seconds,
    )


def _find_vectors(run: RunFolder, found: FolderCollection, name: str, clock: _Clock, **options: Any) -> Vectors:
    """Return the vectors of the run's first stage, which is made first unless it is finished."""
    encode = {"vectors": lambda: _encode(run, found, name, **options)}
    clock.ensure(run, "vectors", makers=encode, resume=options["resume"])
    vectors = load_vectors(run.vectors)[0] if found.supervised else _ask_for_themselves(run)
    write_source(run.root, **{**read_source(run.root), "joint": open_stage(run.vectors, "vectors")["joint"]})
    _check_number(np.unique(vectors.pair_item), "captioned pictures" if found.supervised else "readable pictures")
    return vectors


@dataclass(slots=True)
class _Clock:
    """Announces stages and keeps the time of each."""

    tell: Callable[[str], None]
    seconds: dict[str, float] = field(default_factory=dict)

    def ensure(self, run: RunFolder, *stages: str, **options: Any) -> None:
        spent = ensure(run, *stages, tell=lambda stage: self.tell(STAGES[stage][1]), **options)
        self.seconds |= {STAGES[stage][0]: seconds for stage, seconds in spent.items()}


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
    if not is_unused(run.root) and before.get("path") != facts["path"]:
        owner = f"the run of {before['path']}" if "path" in before else "something else"
        raise SiglumError(f"{run.root} holds {owner}, not of {folder}; choose another --out.")
    if resume and before:
        if before.get("identity") != found.identity:
            raise SiglumError(
                f"pictures or captions of {folder} changed since {run.root} was begun; start without --resume, or give"
                " --update to a finished run."
            )
        if before["encoder"] != encoder:
            raise SiglumError(
                f"{run.root} was begun with encoder {before['encoder']}, not {encoder}; start without --resume."
            )
        return
    for stage in (run.vectors, run.tokenizer, run.decoder, run.index):
        shutil.rmtree(stage, ignore_errors=True)
    for name in (CONFIG_FILE, PICTURES_FILE):
        remove_root_json(run.root, name)
    write_source(run.root, "folder", **facts, **read_with, about=found.about, supervised=found.supervised)


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


def _ask_for_themselves(run: RunFolder) -> Vectors:
    """Make every picture of the `1-vectors` stage its own query, before the phrases, unless it is already."""
    vectors, _ = load_vectors(run.vectors)
    if len(vectors.pair_query):
        return vectors
    record = open_stage(run.vectors, "vectors")
    own = ("encoder", "encoder_fingerprint", "joint", "skipped", "omitted")
    facts = {key: record[key] for key in own if key in record}
    items, phrases, rows = vectors.items, vectors.queries, np.arange(len(vectors.items))
    parts = ("image", "text", "has_image", "has_text")
    joined = (np.concatenate([getattr(items, part), getattr(phrases, part)]) for part in parts)
    vectors = Vectors(items, Features([*items.ids, *phrases.ids], *joined), rows, rows, [])
    save_vectors(run.vectors, vectors, record["inputs"], load_fields(run.vectors), **facts)
    return vectors


def configure(
    vectors: Vectors, supervised: bool, joint: bool, recipe: str, scale: str, seed: int, *, usual: str = ""
) -> RunConfig:
    """Return the settings, with the encoder's own space kept where nothing better could be learnt.

    Scale `auto` is the folder's `usual` one, if it has one, fitted to the data. A picture that is its own query could
    teach a fusion module nothing, and few captions less than a joint encoder knows. Its space is a plain sum, in which
    one part of each row is there.
    """
    sizes = len(np.unique(vectors.pair_item)), len(vectors.pair_query)
    if scale == "auto" and usual:
        config = replace(fit_to_data(recipe_at(recipe, usual, seed), *sizes), scale="auto")
    elif scale == "auto":
        # Towers with strong dropout were chosen on photographs; the demo's combiner on drawings.
        towers = fit_to_data(recipe_at(recipe, "captions_small", seed), *sizes).fusion
        config = replace(recipe_for(recipe, *sizes, seed), fusion=towers)
    else:
        config = recipe_at(recipe, scale, seed)
    if supervised and not (joint and len(vectors.pair_query) < FEW_PAIRS):
        return config
    fusion = replace(config.fusion, kind="sum", dim=vectors.items.image.shape[1], epochs=0, standardise=False)
    return replace(config, fusion=fusion, tokenizer=replace(config.tokenizer, train_fusion=False))


def _write_space(run: RunFolder, vectors: Vectors) -> None:
    """Write the dense stage: the encoder's space with the mean picture and the mean text taken off.

    Even in a joint space pictures lie in one corner and texts in another; a decoder that has seen the one only must
    not take the way to the other for meaning.
    """
    config, queries = run.config(), vectors.queries
    fusion = new_fusion(vectors, config.fusion, config.seed, "cpu")
    for shift, rows in ((fusion.image_shift, vectors.items.image), (fusion.text_shift, queries.text[queries.has_text])):
        if len(rows):
            shift.copy_(torch.from_numpy(rows.mean(0, dtype=np.float32)))
    made_from = open_stage(run.vectors, "vectors")["fingerprint"]
    save_fusion(run.dense, fusion, dense_inputs(config, made_from), epochs=0)


def _weigh(
    run: RunFolder, vectors: Vectors, weights: Sequence[float], supervised: bool, clock: _Clock, device: str
) -> None:
    """Choose how much distance counts beside the decoder, unless that was done, and keep what held-out captions find.

    A decoder knows the pictures whose captions it has read; the fewer they are, the more distance must count. Without
    captions it has read nothing, and distance gets the largest weight.
    """
    config, source = run.config(), read_source(run.root)
    if "learnt" not in source:  # written last
        best, held_out = weights[-1], dict[str, float]()
        if supervised:
            clock.tell("weighing decoder and distance on held-out queries")
            begun = time.perf_counter()
            best, held_out = _best_weight(run, vectors, weights, device)
            clock.seconds["weigh"] = round(time.perf_counter() - begun, 2)
        run.write_config(replace(config, search=replace(config.search, omega=best)))
        learnt = len(vectors.pair_query) + len(vectors.first_pairs("val")[0]) if supervised else 0
        write_source(run.root, **{**source, "held_out": held_out, "learnt": learnt})


def _engine(run: RunFolder, device: str) -> Retriever:
    """Return the search engine of a run that has no index yet."""
    tokenizer, record = load_tokenizer(run.tokenizer, device)
    decoder = load_decoder(run.decoder, record["tokenizer_fingerprint"], device)
    head = load_query_head(run.decoder, tokenizer.quantizer.dim, device)
    index, _ = new_index(run, device=device)
    return Retriever(tokenizer, index, decoder=decoder, head=head, config=run.config().search, device=device)


def _best_weight(
    run: RunFolder, vectors: Vectors, weights: Sequence[float], device: str
) -> tuple[float, dict[str, float]]:
    """Return the weight with the best mean reciprocal rank on validation, or the first where nothing tells.

    With it comes how many captions were tried and which shares of them found their picture.
    """
    asked = [pair for task in vectors.of_split("val") for pair in zip(task.query_rows, task.positives, strict=True)]
    if not asked:
        return weights[0], {}
    spread = np.linspace(0, len(asked) - 1, min(len(asked), TRIED)).astype(int)
    retriever, item_rows = _engine(run, device), [asked[place][1] for place in spread]
    query_QD = retriever.vectors(vectors.queries.rows(np.array([asked[place][0] for place in spread])), "queries")

    def find(weight: float) -> np.ndarray:
        """Return the rank of every caption's first picture, infinite beyond the last depth."""
        # All items are in the index, in their order, so that a position is an item row.
        ranked = zip(retriever.rank(query_QD, k=DEPTHS[-1], omega=weight), item_rows, strict=True)
        places = [np.flatnonzero(np.isin(hits.position, rows)) for hits, rows in ranked]
        return np.array([1.0 + found[0] if len(found) else np.inf for found in places])

    tried = weights if retriever.config.scorer == "fused" else weights[:1]
    ranks = {weight: find(weight) for weight in tried}
    best = max(tried, key=lambda weight: float((1 / ranks[weight]).mean()))
    shares = {f"success@{depth}": float((ranks[best] <= depth).mean()) for depth in DEPTHS}
    return best, {"captions": len(spread), **shares}
