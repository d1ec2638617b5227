"""`siglum build`: from a folder of photographs to a search engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from siglum.console.commands import WritingVerb, override, say
from siglum.types import SiglumError

if TYPE_CHECKING:
    from siglum.build import Built


@dataclass(kw_only=True)
class Command(WritingVerb):
    """Turn a folder of photographs into a search engine: encode, fuse, tokenise, train and index in one go.

    Captions, where there are any, teach it which words belong to which pictures. Without captions every picture is its
    own query, and words find pictures only if the encoder puts both into one space, as CLIP does.

    Examples:
      siglum build ~/Pictures --out runs/photos
      siglum build photos/ --captions captions.csv --out runs/photos --resume
      siglum build photos/ --out runs/photos --update
      siglum build photos/ --captions words.csv:file:alt_text --encoder offline --out runs/photos
    """

    LOCKS = "out"
    photos: tyro.conf.Positional[Path]
    """The folder with the pictures; folders below it count."""
    out: Path = Path("runs/photos")
    """The run folder to make."""
    captions: str = "auto"
    """auto, products, sidecar (a.txt beside a.jpg), names, none, FILE, or FILE:image_column:caption_column."""
    encoder: str = "auto"
    """Which encoder makes the features: auto, offline, builtin, clip:NAME_OR_FOLDER, ..."""
    recipe: str = "pro"
    """Recipe of the run."""
    scale: str = "auto"
    """tiny, demo, small, captions[_small], catalogue[_small], paper, or auto: sized to the folder."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Override a setting, such as --set decoder.epochs=3; may be repeated."""
    seed: int = 0
    """Seed of training and of what is held out."""
    workers: int = 2
    """Threads that read pictures."""
    strict: bool = False
    """Refuse unreadable pictures and texts without known words instead of skipping and naming them."""
    resume: bool = False
    """Go on after a kill; nothing that is finished is made again."""
    update: bool = False
    """Let a finished run follow its folder: add new pictures, remove gone ones; what was learnt stays."""


def run(command: Command) -> dict[str, Any]:
    """Build, and say what came of it and what to type next."""
    from siglum.build import build_folder

    if command.update and command.set:
        raise SiglumError("an update keeps the settings of its run; leave --set out, or build again without --update.")
    built = build_folder(
        command.photos,
        command.out,
        **command.values("captions", "encoder", "recipe", "scale", "seed", "device", "workers", "strict"),
        **command.values("resume", "update"),
        change=lambda config: override(config, command.set),
        say=say,
    )
    _tell_update(built) if command.update else _tell(built)
    return built.as_dict()


def _tell(built: Built) -> None:
    """Say what came of a build: pictures, quality, what was left out, time, and what to type next."""
    learnt = f"{built.captions:,} {built.queries}" if built.supervised else "no captions"
    say(f"\n{built.items:,} {built.things} and {learnt}, encoded by {built.encoder}, are searchable in {built.run}")
    if built.held_out:
        tried, first, ten = (built.held_out[name] for name in ("captions", "success@1", "success@10"))
        say(
            f"quality: {tried:,} {built.queries} of {built.things} it never read about find theirs first in"
            f" {100 * first:.0f} %, among the first 10 of {built.items:,} in {100 * ten:.0f} %"
        )
    _tell_skipped(built)
    spent = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in built.seconds.items())
    total = sum(built.seconds.values())
    say(f"time: {total:.0f} s ({spent})" if spent else "everything was there already; nothing was made again")
    _tell_next(built)


def _tell_update(built: Built) -> None:
    """Say what an update changed, what it left out and what to type next."""
    if built.added or built.changed or built.removed:
        say(f"\n{len(built.added):,} added, {len(built.changed):,} changed, {len(built.removed):,} removed")
    else:
        say("nothing to do: the run holds what its folder does")
    if built.unlearnt:
        new = f"{built.queries} of {built.unlearnt:,} new {built.things}"
        say(f"{new} were not learnt from; build again without --update for that")
    _tell_skipped(built)
    say(f"{built.items:,} {built.things}, encoded by {built.encoder}, are searchable in {built.run}")
    _tell_next(built)


def _tell_skipped(built: Built) -> None:
    """Say how many pictures and captions or queries were left out, and name the first of each with the reason."""
    from siglum.data.omitted import name_some

    pictures = {name: built.reasons.get(name, "it cannot be read.") for name in built.skipped}
    captions = {name: why for name, why in built.reasons.items() if name not in pictures}
    asked = ("caption", "captions") if built.queries == "captions" else ("query", "queries")
    for (one, several), left in ((("picture", "pictures"), pictures), (asked, captions)):
        if left:
            many = f"{several} were" if len(left) > 1 else f"{one} was"
            say("\n".join(name_some(f"{len(left):,} {many} skipped", left)))


def _tell_next(built: Built) -> None:
    """Say what to type next."""
    if not built.by_words:
        say("without captions this encoder finds pictures by pictures only, not by words")
    ask = '"two dogs in the snow"' if built.by_words else f"--image {quote(built.example)}"
    if built.queries != "captions":
        ask = f'"the same in red" --image {quote(built.example)} --exclude-self'
    say(f"next: siglum search {quote(built.run)} {ask} --open")
