"""`siglum encode`: begin a run folder by encoding a collection."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from siglum.cli.sources import ChosenSource, Sources, choose_source, read_source, read_vectors
from siglum.console.commands import WritingVerb, override, say
from siglum.encode.registry import all_forms
from siglum.types import SiglumError

if TYPE_CHECKING:
    from siglum.config import RunConfig
    from siglum.encode.base import Encoder
    from siglum.run.folder import RunFolder
    from siglum.types import Vectors


@dataclass(kw_only=True)
class Command(Sources, WritingVerb):
    """Encode items and queries into frozen features (1-vectors) and begin a run folder.

    Encoders (--encoder), KIND, KIND:MODEL or A+B for texts by A and pictures by B:
      {encoders}

    A folder that holds the run of another collection is refused unless --overwrite is given.

    Examples:
      siglum encode --out runs/world --world 12000 --scale demo
      siglum encode --out runs/mine --items items.jsonl --train train.jsonl --val val.jsonl --test test.jsonl
      siglum encode --out runs/photos --folder photos --encoder offline
      siglum encode --out runs/shop --catalogue fashion --encoder offline --scale catalogue_small
      siglum encode --out runs/mbeir --mbeir M-BEIR --encoder clip:ViT-L/14 --device cuda --shard 1/4
    """

    LOCKS = "out"
    out: Path
    """The run folder to begin."""
    encoder: str = "builtin"
    """Which encoder makes the features; the kinds are listed above."""
    device: str = "cpu"
    """Where the encoder runs: cpu, cuda, cuda:N or mps; the built-in one runs on the CPU."""
    precision: str = "auto"
    """float32, bfloat16, float16, or auto: float32 on the CPU, float16 elsewhere."""
    batch_size: int = 64
    """Inputs the encoder takes at once."""
    workers: int = 0
    """Threads that decode pictures; 0 for one a core, at most 8, beyond which they gain little."""
    shard: str = ""
    """Encode part i/n only, such as 1/4; when all parts are done, join them with --resume and no --shard."""
    recipe: str = "pro"
    """Recipe of the run."""
    scale: str = "auto"
    """tiny, demo, small, captions[_small], catalogue[_small], paper, or auto: sized to the collection."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Override a setting, such as --set tokenizer.epochs=3; may be repeated."""
    strict: bool = False
    """Refuse unreadable pictures and texts without known words instead of skipping and naming them."""
    resume: bool = False
    """Continue after a kill without encoding anything twice."""
    overwrite: bool = False
    """Remove the run of another collection that OUT holds."""


Command.__doc__ = str(Command.__doc__).replace(
    "{encoders}", "\n      ".join(f"{form:<26} {text}" for form, text in all_forms().items())
)


def run(command: Command) -> dict[str, Any]:
    """Encode and begin the run."""
    from siglum.data.fields import fields_in_order
    from siglum.data.omitted import in_words
    from siglum.data.source import SOURCE_FILE, write_source
    from siglum.encode.run import read_omitted
    from siglum.rootfiles import remove_root_json
    from siglum.run.folder import RunFolder
    from siglum.run.stages import take_vectors

    choose_source(command)
    encoder = None if command.item_features or command.query_features else _encoder(command)
    if encoder is None and command.shard:
        raise SiglumError("--shard is for encoding, but features made elsewhere are only taken over; leave it out.")
    source, folder = read_source(command), RunFolder(command.out)
    if source.about:
        say(source.about)
    config = _config(command, source)
    given = read_vectors(command, source.collection) if encoder is None else None
    _claim(command, source, encoder)
    if encoder is not None and command.shard:
        return _encode_shard(command, folder, source, encoder)
    if given is not None:
        vectors, skipped = given, 0
        take_vectors(folder, vectors, fields_in_order(source.collection.items, vectors.items.ids))
    else:
        assert encoder is not None
        vectors, skipped = _encode(command, folder, source, encoder)
    folder.write_config(config)
    if source.origin:
        write_source(command.out, **source.origin | ({"joint": encoder.joint} if encoder else {}))
    else:
        remove_root_json(command.out, SOURCE_FILE)
    items, queries = len(vectors.items), len(vectors.queries)
    say(f"{items:,} items and {queries:,} queries {'encoded' if encoder else 'taken'} into {folder.vectors}")
    omitted = read_omitted(folder.vectors)
    for line in in_words(omitted):
        say(line)
    named = [asdict(entry) for entry in omitted]
    return {"run": str(command.out), "items": items, "queries": queries, "skipped": skipped, "omitted": named}


def _claim(command: Command, source: ChosenSource, encoder: Encoder | None) -> None:
    """Make the folder this collection's, refusing another's run unless it may be overwritten."""
    from siglum.encode.run import encoding_fingerprint
    from siglum.run.claim import Owner, claim_run

    if command.shard and command.overwrite:
        raise SiglumError("--overwrite would remove what other parts have encoded; leave it out, or --shard.")
    encoding = encoding_fingerprint(source.identity, encoder) if encoder else ""
    claim_run(command.out, Owner(source.identity, source.origin, encoding), overwrite=command.overwrite)


def _encoder(command: Command) -> Encoder:
    from siglum.encode.registry import build_encoder

    encoder = build_encoder(command.encoder, **command.values("device", "precision", "batch_size"))
    if encoder is None:
        raise SiglumError(
            "encoder none is for one's own vectors: give --item-features and --query-features, or use siglum.fit."
        )
    return encoder


def _config(command: Command, source: ChosenSource) -> RunConfig:
    from siglum.config import WorldConfig
    from siglum.recipes import recipe, recipe_for

    collection = source.collection
    if command.scale == "auto":
        pairs = len(collection.queries.get("train", ()))
        config = recipe_for(command.recipe, len(collection.items), pairs, command.seed)
    else:
        config = recipe(command.recipe, command.scale, command.seed)
    if command.world:
        config = replace(config, world=WorldConfig(items=command.world, variants=command.variants, seed=command.seed))
    return override(config, command.set)


def _encode(command: Command, folder: RunFolder, source: ChosenSource, encoder: Encoder) -> tuple[Vectors, int]:
    from siglum.run.stages import make_vectors

    options = {"identity": source.identity, "workers": _workers(command), **command.values("strict", "resume")}
    encoded = make_vectors(folder, source.collection, encoder, **options)
    return encoded.vectors, encoded.skipped


def _encode_shard(command: Command, folder: RunFolder, source: ChosenSource, encoder: Encoder) -> dict[str, Any]:
    from siglum.encode.run import encode_shard

    number, _, count = command.shard.partition("/")
    if not (number.isdecimal() and count.isdecimal()):
        raise SiglumError(f"--shard is {command.shard!r}, but must be i/n, such as 1/4.")
    part = (int(number), int(count))
    options: dict[str, Any] = {"identity": source.identity, "workers": _workers(command), "strict": command.strict}
    rows = encode_shard(source.collection, encoder, folder.vectors, shard=part, **options)
    say(f"{rows:,} rows of part {command.shard} encoded; join all parts with --resume and without --shard")
    return {"run": str(command.out), "shard": command.shard, "rows": rows}


def _workers(command: Command) -> int:
    if command.workers < 0:
        raise SiglumError(f"--workers is {command.workers}, but must be 0 or more.")
    return command.workers or min(os.cpu_count() or 1, 8)
