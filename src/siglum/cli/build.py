"""`siglum build`: from a folder of photographs to a search engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from siglum.cli.common import override, say

if TYPE_CHECKING:
    from siglum.build import Built

NAMED = 5
"""Most unreadable pictures the summary names; --json names all."""


@dataclass(kw_only=True)
class Command:
    """Turn a folder of photographs into a search engine: encode, fuse, tokenise, train and index in one go.

    Captions, where there are any, teach it which words belong to which pictures. Without captions every picture is its
    own query, and words find pictures only if the encoder puts both into one space, as CLIP does.

    Examples:
      siglum build ~/Pictures --out runs/photos
      siglum build photos/ --captions captions.csv --out runs/photos --resume
      siglum build photos/ --captions words.csv:file:alt_text --encoder offline --out runs/photos
    """

    photos: tyro.conf.Positional[Path]
    """The folder with the pictures; folders below it count."""
    out: Path = Path("runs/photos")
    """The run folder to make."""
    captions: str = "auto"
    """auto, sidecar (a.txt beside a.jpg), names, none, FILE, or FILE:image_column:caption_column."""
    encoder: str = "auto"
    """Which encoder makes the features: auto, offline, builtin, clip:NAME_OR_FOLDER, ..."""
    recipe: str = "pro"
    """Recipe of the run."""
    scale: str = "auto"
    """tiny, demo, small, captions_small, captions, paper, or auto: sized to the folder."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Override a setting, such as --set decoder.epochs=3; may be repeated."""
    seed: int = 0
    """Seed of training and of what is held out."""
    device: str = "cpu"
    """cpu, cuda or mps."""
    workers: int = 2
    """Threads that read pictures."""
    strict: bool = False
    """Refuse unreadable pictures instead of skipping and counting them."""
    resume: bool = False
    """Go on after a kill; nothing that is finished is made again."""
    json: bool = False
    """Print one JSON document on stdout."""


def run(command: Command) -> dict[str, Any]:
    """Build, and say what came of it and what to type next."""
    from siglum.build import build_folder

    built = build_folder(
        command.photos,
        command.out,
        captions=command.captions,
        encoder=command.encoder,
        recipe=command.recipe,
        scale=command.scale,
        change=lambda config: override(config, command.set),
        seed=command.seed,
        device=command.device,
        workers=command.workers,
        strict=command.strict,
        resume=command.resume,
        say=say,
    )
    _tell(built)
    return built.as_dict()


def _tell(built: Built) -> None:
    """Say what came of a build: pictures, quality, what was left out, time, and what to type next."""
    learnt = f"{built.captions:,} captions" if built.supervised else "no captions"
    say(f"\n{built.items:,} pictures and {learnt}, encoded by {built.encoder}, are searchable in {built.run}")
    if built.held_out:
        tried, first, ten = (built.held_out[name] for name in ("captions", "success@1", "success@10"))
        say(
            f"quality: {tried:,} captions of pictures it never read about find theirs first in {100 * first:.0f} %,"
            f" among the first 10 of {built.items:,} in {100 * ten:.0f} %"
        )
    if built.skipped:
        more = ", ..." if len(built.skipped) > NAMED else ""
        say(
            f"{len(built.skipped):,} pictures cannot be read and were skipped: {', '.join(built.skipped[:NAMED])}{more}"
        )
    spent = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in built.seconds.items())
    total = sum(built.seconds.values())
    say(f"time: {total:.0f} s ({spent})" if spent else "everything was there already; nothing was made again")
    if not built.by_words:
        say("without captions this encoder finds pictures by pictures only, not by words")
    ask = '"two dogs in the snow"' if built.by_words else f"--image {quote(built.example)}"
    say(f"next: siglum search {quote(built.run)} {ask} --open")
