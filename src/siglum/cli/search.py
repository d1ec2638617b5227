"""`siglum search`: ask a question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from siglum.cli.search_flags import SearchFlags, read_ids
from siglum.console.commands import DeviceVerb, OneRun, say
from siglum.device import check_device
from siglum.types import SiglumError

if TYPE_CHECKING:
    from siglum.search.retriever import Retriever
    from siglum.types import Hit

LETTERS = 60
"""Most letters of a text that are printed beside a hit."""


@dataclass(kw_only=True)
class Command(SearchFlags, OneRun, DeviceVerb):
    """Search a run by text, by picture, by both, or by all the queries of a file.

    Examples:
      siglum search runs/demo "a big red star left of a blue ring"
      siglum search runs/photos "two dogs in the snow" --open
      siglum search runs/mine "make the circle blue" --image photo.jpg -k 5 --json
      siglum search runs/mine --queries queries.jsonl --format trec --out hits.trec -k 100 --beam 100
    """

    text: tyro.conf.Positional[str] = ""
    """What to look for, in words."""
    image: Path | None = None
    """A picture to look for."""
    queries: Path | None = None
    """Search for every query of this file instead: JSONL or parquet with id, text, image."""
    query_features: Path | None = None
    """Search for every row of this file of features, which runs without an encoder need."""
    k: Annotated[int, tyro.conf.arg(aliases=["-k"])] = 10
    """How many hits."""
    instruction: str = ""
    """What kind of thing is wanted, such as "Find a picture that shows this."."""
    without: Path | None = None
    """Leave out the ids in this text file, one a line."""
    exclude_self: bool = False
    """Leave out the item that has the id or the picture file of the query."""
    min_score: float | None = None
    """Leave out hits of a lower score."""
    out: Path | None = None
    """Write the hits of --queries to this file, and not to stdout."""
    format: Literal["jsonl", "trec"] = "jsonl"
    """How the hits of --queries are written: a JSON line a query, or a TREC run."""
    batch: int = 256
    """How many queries of a file are worked on at once; does not change what is found."""
    open: bool = False
    """Write a page of the hits with their pictures (6-report/hits.html) and open it in the browser."""
    sheet: Path | None = None
    """Write that page to this file; it is opened only with --open."""

    def filters(self) -> dict[str, Any]:
        """Return what restricts the hits, as `Retriever.search` takes it."""
        without = () if self.without is None else read_ids(self.without)
        return {"within": self.ids(), "without": without, "min_score": self.min_score}


def run(command: Command) -> dict[str, Any]:
    """Search and print ranked ids, or paths where the items are files of a folder, each with its text if it has one."""
    from siglum.cli.search_queries import search_queries
    from siglum.data.source import read_source
    from siglum.search.retriever import Retriever

    from_file = _check(command)
    source = read_source(command.folder)
    retriever = Retriever.load(command.folder, device=check_device(command.device))
    if retriever.decoder is None:
        say(f"{command.folder} has no trained decoder: searching by geometry alone")
    if from_file:
        return search_queries(command, retriever, source, partial(_record, source))
    return _search(command, retriever, source)


def _check(command: Command) -> bool:
    """Return whether the queries are those of a file, refusing options that do not go together."""
    files = [name for name in ("queries", "query_features") if getattr(command, name) is not None]
    lone = [name for name in ("text", "image", "instruction", "open", "sheet") if getattr(command, name)]
    if len(files) > 1 or (files and lone):
        others = ", ".join(f"--{name}".replace("--text", "a text").replace("_", "-") for name in [*lone, *files[1:]])
        raise SiglumError(f"--{files[0].replace('_', '-')} is a search of its own; leave out {others}.")
    if command.query_features is not None and command.exclude_self:
        raise SiglumError("--exclude-self looks at the queries themselves; give --queries FILE, not their features.")
    if not files and (command.out is not None or command.format != "jsonl"):
        raise SiglumError("--out and --format are for the queries of a file; give --queries FILE as well.")
    return bool(files)


def _search(command: Command, retriever: Retriever, source: dict[str, Any]) -> dict[str, Any]:
    """Answer one query."""
    import sys

    options, filters = command.options(), command.filters()
    how = {"instruction": command.instruction or None, "exclude_self": command.exclude_self, **filters, **options}
    hits = retriever.search(command.text or None, command.image, k=command.k, **how)
    found = [_record(source, hit) for hit in hits]
    if not command.json:
        for hit in found:
            name = hit.get("path") or f"{hit['item_id']:<24}  {'-'.join(map(str, hit['codes']))}"
            near = "" if hit["similarity"] is None else f"{100 * hit['similarity']:.0f} %"
            sys.stdout.write(f"{hit['rank']:>3}  {near:>5}  {hit['score']:>9.3f}  {name}  {_line(hit)}".rstrip() + "\n")
    if command.open or command.sheet is not None:
        _show(command, source, hits, len(retriever))
    within, restricted = filters["within"], filters["without"] or command.exclude_self or command.min_score is not None
    if not restricted and len(hits) < min(command.k, len(retriever) if within is None else len(set(within))):
        beam = options.get("beam", retriever.config.beam)
        say(f"{len(hits)} of the {command.k} hits asked for: a beam of {beam} reaches no more; a wider --beam does")
    return {"hits": found}


def _record(source: dict[str, Any], hit: Hit) -> dict[str, Any]:
    """Return a hit as JSON values, with its path where it is a file of a folder."""
    from siglum.data.folder import path_of

    found = hit.as_dict()
    if source.get("kind") == "folder":
        # An item that was added later may lie elsewhere, and a file may have gone.
        path = Path(source["path"], path_of(hit.item_id))
        found |= {"path": str(path)} if path.exists() else {}
    return found


def _line(hit: dict[str, Any]) -> str:
    """Return the text of a hit as part of a line, nothing where it has none."""
    words = " ".join((hit["text"] or "").split())
    return words if len(words) <= LETTERS else f"{words[: LETTERS - 1].rstrip()}…"


def _show(command: Command, source: dict[str, Any], hits: Sequence[Hit], number: int) -> None:
    """Write the contact sheet and, if asked, open it; a machine without a browser is told the path alone."""
    import webbrowser

    from siglum.files import write_text
    from siglum.pages.contact_sheet import make_cards, make_thumbnail, render_sheet
    from siglum.run.folder import RunFolder

    path = command.sheet or RunFolder(command.folder).report / "hits.html"
    asked = make_thumbnail(command.image) if command.image else None
    cards = make_cards(hits, source, path)
    note = f"{number:,} items searched"
    write_text(path, render_sheet(str(command.folder), command.text or None, asked, cards, note=note))
    say(f"hits: {path}")
    if command.open:
        try:
            webbrowser.open(path.absolute().as_uri())
        except (webbrowser.Error, OSError):
            say("no browser could be opened")
