"""`siglum encode`: begin a run folder by encoding a collection."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from siglum.cli.common import override, say
from siglum.types import SiglumError


@dataclass(kw_only=True)
class Command:
    """Encode items and queries into frozen features (1-vectors) and begin a run folder.

    Examples:
      siglum encode --out runs/world --world 12000 --scale demo
      siglum encode --out runs/mine --items items.jsonl --train train.jsonl --val val.jsonl --test test.jsonl
    """

    out: Path
    """The run folder to begin."""
    world: int = 0
    """Use the carried world with this many items (200 to 1,000,000)."""
    variants: int = 2
    """Wordings and redrawings of every training query of the world."""
    items: Path | None = None
    """One's own items: JSONL or parquet with id, text, image."""
    train: Path | None = None
    """Training queries with positives."""
    val: Path | None = None
    """Validation queries."""
    test: Path | None = None
    """Test queries."""
    encoder: str = "builtin"
    """Which encoder makes the features."""
    recipe: str = "pro"
    """Recipe of the run."""
    scale: str = "auto"
    """tiny, demo, small, paper, or auto: sized to the collection."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Override a setting, such as --set tokenizer.epochs=3; may be repeated."""
    seed: int = 0
    """Seed of training (and of the world)."""
    device: str = "cpu"
    """Accepted for uniformity; the built-in encoder runs on the CPU."""
    strict: bool = False
    """Refuse unreadable pictures instead of skipping and counting them."""
    resume: bool = False
    """Continue after a kill without encoding anything twice."""
    json: bool = False
    """Print one JSON document on stdout."""


def run(command: Command) -> dict[str, Any]:
    """Encode and begin the run."""
    from dataclasses import replace

    from siglum.config import WorldConfig
    from siglum.encode.registry import build_encoder
    from siglum.files import file_fingerprint
    from siglum.pipeline import RunFolder, make_vectors
    from siglum.recipes import recipe, recipe_for

    if bool(command.world) == bool(command.items):
        raise SiglumError("give either --world N or --items FILE.")
    encoder = build_encoder(command.encoder)
    if encoder is None:
        raise SiglumError("encoder none is for runs made from one's own vectors in Python (siglum.fit).")
    collection = _collection(command)
    if command.scale == "auto":
        config = recipe_for(
            command.recipe, len(collection.items), len(collection.queries.get("train", ())), command.seed
        )
    else:
        config = recipe(command.recipe, command.scale, command.seed)
    if command.world:
        config = replace(config, world=WorldConfig(items=command.world, variants=command.variants, seed=command.seed))
        identity = f"world {command.world} {command.seed} {command.variants}"
    else:
        paths = [path for path in (command.items, command.train, command.val, command.test) if path is not None]
        identity = " ".join(file_fingerprint(path) for path in paths)
    config = override(config, command.set)
    folder = RunFolder(command.out)
    encoded = make_vectors(folder, collection, encoder, identity=identity, strict=command.strict, resume=command.resume)
    folder.write_config(config)
    result = {
        "run": str(command.out),
        "items": len(encoded.vectors.items),
        "queries": len(encoded.vectors.queries),
        "skipped": encoded.skipped,
    }
    say(f"{result['items']:,} items and {result['queries']:,} queries encoded into {folder.vectors}")
    if encoded.skipped:
        say(f"{encoded.skipped:,} rows were skipped: their pictures could not be read")
    return result


def _collection(command: Command) -> Any:
    from siglum.data.collection import read_collection, world_collection
    from siglum.data.world import World

    if command.world:
        return world_collection(World(command.world, command.seed), command.variants)
    assert command.items is not None
    return read_collection(command.items, command.train, command.val, command.test)
