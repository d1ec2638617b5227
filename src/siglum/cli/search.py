"""`siglum search`: ask a question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from siglum.cli.common import check_words, say
from siglum.device import check_device
from siglum.types import SiglumError

if TYPE_CHECKING:
    from siglum.types import Hit


@dataclass(kw_only=True)
class Command:
    """Search a run by text, by picture, or by both.

    Examples:
      siglum search runs/demo "a big red star left of a blue ring"
      siglum search runs/photos "two dogs in the snow" --open
      siglum search runs/mine "make the circle blue" --image photo.jpg -k 5 --json
    """

    folder: tyro.conf.Positional[Path]
    """The run folder."""
    text: tyro.conf.Positional[str] = ""
    """What to look for, in words."""
    image: Path | None = None
    """A picture to look for."""
    k: Annotated[int, tyro.conf.arg(aliases=["-k"])] = 10
    """How many hits."""
    instruction: str = ""
    """What kind of thing is wanted, such as "Find a picture that shows this."."""
    beam: int | None = None
    """Another beam width than the run's."""
    omega: float | None = None
    """Another fusion weight than the run's."""
    scorer: str | None = None
    """fused, decoder, geometry or oracle."""
    within: Path | None = None
    """Search only the ids in this text file, one a line."""
    open: bool = False
    """Write a page of the hits with their pictures (6-report/hits.html) and open it in the browser."""
    sheet: Path | None = None
    """Write that page to this file; it is opened only with --open."""
    seed: int = 0
    """Accepted for uniformity; search draws nothing at random."""
    device: str = "cpu"
    """cpu, cuda or mps."""
    json: bool = False
    """Print one JSON document on stdout."""


def run(command: Command) -> dict[str, Any]:
    """Search and print ranked ids, or paths where the items are files of a folder."""
    import sys
    from dataclasses import asdict

    from siglum.data.folder import path_of
    from siglum.data.source import read_source
    from siglum.search.retriever import Retriever

    source = read_source(command.folder)
    check_words(command.folder, command.text, source)
    retriever = Retriever.load(command.folder, device=check_device(command.device))
    if retriever.decoder is None:
        say(f"{command.folder} has no trained decoder: searching by geometry alone")
    options = {
        name: getattr(command, name) for name in ("beam", "omega", "scorer") if getattr(command, name) is not None
    }
    within = None
    if command.within is not None:
        if not command.within.exists():
            raise SiglumError(f"{command.within} does not exist.")
        within = command.within.read_text().split()
    text, instruction = command.text or None, command.instruction or None
    hits = retriever.search(text, command.image, k=command.k, instruction=instruction, within=within, **options)
    found = [asdict(hit) for hit in hits]
    if source.get("kind") == "folder":
        # An item that was added later may lie elsewhere, and a file may have gone.
        paths = [Path(source["path"], path_of(hit.item_id)) for hit in hits]
        found = [{**hit, "path": str(path)} if path.exists() else hit for hit, path in zip(found, paths, strict=True)]
    if not command.json:
        for hit in found:
            name = hit.get("path") or f"{hit['item_id']:<24}  {'-'.join(map(str, hit['codes']))}"
            sys.stdout.write(f"{hit['rank']:>3}  {hit['score']:>9.3f}  {name}\n")
    if command.open or command.sheet is not None:
        _show(command, source, hits, len(retriever.index))
    if len(hits) < min(command.k, len(retriever.index) if within is None else len(set(within))):
        beam = command.beam or retriever.config.beam
        say(f"{len(hits)} of the {command.k} hits asked for: a beam of {beam} reaches no more; a wider --beam does")
    return {"hits": found}


def _show(command: Command, source: dict[str, Any], hits: Sequence[Hit], number: int) -> None:
    """Write the contact sheet and, if asked, open it; a machine without a browser is told the path alone."""
    import webbrowser

    from siglum.data.folder import path_of
    from siglum.data.source import find_items
    from siglum.files import write_text
    from siglum.measure.sheet import Card, make_thumbnail, render_sheet

    items = find_items(source, [hit.item_id for hit in hits])
    cards = []
    for hit in hits:
        item = items.get(hit.item_id)
        picture = make_thumbnail(item.image) if item and item.image is not None else None
        name = path_of(hit.item_id) if source.get("kind") == "folder" else hit.item_id
        cards.append(Card(hit.rank, hit.score, name, item.text if item else None, picture))
    asked = make_thumbnail(command.image) if command.image else None
    path = command.sheet or command.folder / "6-report" / "hits.html"
    note = f"{number:,} items searched"
    write_text(path, render_sheet(str(command.folder), command.text or None, asked, cards, note=note))
    say(f"hits: {path}")
    if command.open:
        try:
            webbrowser.open(path.absolute().as_uri())
        except (webbrowser.Error, OSError):
            say("no browser could be opened")
