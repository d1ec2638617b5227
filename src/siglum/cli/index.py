"""`siglum index`: build the index, or add and remove items."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from siglum.console.commands import OneRun, WritingVerb, say
from siglum.device import check_device
from siglum.types import SiglumError

if TYPE_CHECKING:
    from siglum.data.omitted import Omission
    from siglum.index import Index
    from siglum.run.folder import RunFolder


@dataclass(kw_only=True)
class Command(OneRun, WritingVerb):
    """Build the index of a run's items (4-index), or change it in place.

    A change is logged and on the disk when the command returns; a kill at any moment leaves the index as it was before
    or as it is after.

    Examples:
      siglum index runs/mine
      siglum index runs/mine --pools test
      siglum index runs/mine --add new-items.jsonl
      siglum index runs/mine --remove cat-17 --remove cat-18
      siglum index runs/mine --snapshot before-the-sale
      siglum index runs/mine --restore before-the-sale
    """

    pools: str = ""
    """Index only the items in the pools of this split's tasks (val or test) instead of all items."""
    keep_vectors: bool = False
    """Keep fused vectors (fp16) to order items that share all codes by similarity."""
    add: Path | None = None
    """Add the items of this JSONL or parquet file to the index."""
    remove: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Remove the item with this id; may be repeated."""
    strict: bool = False
    """With --add: refuse unreadable pictures and texts without known words instead of skipping and naming them."""
    drop_added: bool = False
    """Build the index anew though items that were added to the old one, or replaced in it, are not in the new one."""
    compact: bool = False
    """Write what the log holds into the index, which is done by itself when the log has grown long."""
    snapshot: str | None = None
    """Keep the index as it is now under this name, in RUN/snapshots; files are linked, not copied."""
    restore: str | None = None
    """Make the index what a snapshot holds."""
    cut_log: bool = False
    """Give up what stands behind the first damaged place of the logs, later logs included."""


def run(command: Command) -> dict[str, Any]:
    """Make or change stage 4."""
    from siglum.data.omitted import in_words
    from siglum.run.folder import RunFolder

    folder = RunFolder(command.folder)
    omitted: list[Omission] = []
    index = _do(command, folder, check_device(command.device), omitted)
    for line in in_words(omitted):
        say(line)
    collisions = index.collisions()
    say(f"{len(index):,} items indexed in {folder.index}; {collisions.items:,} share their codes with another")
    return {
        "run": str(command.folder),
        "items": len(index),
        "colliding_items": collisions.items,
        "largest_collision": collisions.largest,
        "omitted": [asdict(entry) for entry in omitted],
    }


def _do(command: Command, folder: RunFolder, device: str, omitted: list[Omission]) -> Index:
    """Do the one thing that is asked for and return the index; what is left out of it is put down."""
    from siglum.data.stamps import forget_stamps
    from siglum.run.cut import cut_log
    from siglum.run.generations import open_index
    from siglum.run.live import LiveIndex
    from siglum.run.snapshots import restore_snapshot, take_snapshot
    from siglum.run.stages import make_index

    asked = {
        "--add and --remove": command.add is not None or bool(command.remove),
        "--compact": command.compact,
        "--snapshot": command.snapshot is not None,
        "--restore": command.restore is not None,
        "--cut-log": command.cut_log,
    }
    chosen = [name for name, given in asked.items() if given]
    if len(chosen) > 1:
        raise SiglumError(f"{' and '.join(chosen)} are different things; ask for one at a time.")
    if command.strict and command.add is None:
        raise SiglumError("--strict says how --add takes items; leave it out.")
    building = command.values("pools", "keep_vectors", "drop_added")
    if chosen and any(building.values()):
        given = next(name for name, value in building.items() if value).replace("_", "-")
        raise SiglumError(f"--{given} is for building an index, not for changing it.")
    if not chosen:
        return make_index(folder, **building, device=device)
    if chosen == ["--add and --remove"]:
        return _change(command, folder, device, omitted)
    folder.config()  # a run, or a sentence that says it is none
    if command.cut_log:
        forget_stamps(folder.root, ())
        say(str(cut_log(folder.index)))
    elif command.snapshot is not None:
        say(f"snapshot: {take_snapshot(folder, command.snapshot)}")
    elif command.restore is not None:
        restore_snapshot(folder, command.restore)
    else:
        with LiveIndex(folder.index) as live:
            live.compact(whole=True)
    return open_index(folder.index).index


def _change(command: Command, folder: RunFolder, device: str, omitted: list[Omission]) -> Index:
    """Remove and add items through the log, all or nothing; those that give no feature are left out and put down."""
    from siglum.data.corpus import read_items
    from siglum.encode.run import encode_some
    from siglum.search.retriever import Retriever

    retriever = Retriever.load(folder.root, device=device)
    items = [] if command.add is None else list(read_items(command.add))
    if command.add is not None and not items:
        raise SiglumError(f"{command.add} holds no items.")
    if items and retriever.encoder is None:
        raise SiglumError(f"{folder.root} was made from plain vectors and has no encoder, so it cannot take items.")
    with retriever.writing(folder.root) as live:
        if items and retriever.encoder is not None:
            features, lost = encode_some(items, retriever.encoder, command.strict)
            if not len(features):
                raise SiglumError(f"none of the {len(items):,} items of {command.add} can be added: {lost[0].why}")
            kept = set(features.ids)
            live.replace(command.remove, features, about=[item for item in items if item.id in kept])
            omitted += lost
        else:
            live.remove(command.remove)
        live.compact_if_due()
    return retriever.index
