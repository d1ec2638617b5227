"""A run of a folder of photographs follows its folder: new pictures are added, changed and gone ones leave the index.

What is learnt stays as it is. The index says which pictures are in it; `pictures.json` beside it says which ids are of
the folder at all, and of what size and time the pictures were. It is written before the index changes, with no time for
what is about to change, and again afterwards: whenever this is killed, the next update finds what is left to do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from siglum.data.folder import FolderCollection, id_of, path_of, read_folder
from siglum.data.source import read_source, write_source
from siglum.data.stamps import Stamp, read_stamps, write_stamps
from siglum.data.vectors import load_vectors
from siglum.encode.run import SHARD, encode_some
from siglum.files import read_stage
from siglum.log import progress
from siglum.run.folder import RunFolder
from siglum.search.retriever import Retriever
from siglum.types import SiglumError


@dataclass(slots=True)
class Built:
    """What a build or an update gave."""

    run: str
    about: str
    """What captions were found, in a sentence."""
    items: int
    """Pictures in the index."""
    captions: int
    """Captions of these pictures, learnt from or held out for validation, each counted once; 0 without captions."""
    skipped: list[str]
    """Paths of pictures that could not be taken."""
    reasons: dict[str, str]
    """Why, by path; and by the ids of captions that were left out."""
    example: str
    """Path of a picture that was read, to try a search with."""
    encoder: str
    supervised: bool
    """Whether captions were learnt from; else every picture was its own query."""
    joint: bool
    """Whether the encoder puts words and pictures into one space."""
    queries: str = "captions"
    """What captions are called here: queries, in a product catalogue."""
    held_out: dict[str, float] = field(default_factory=dict)
    """Number of validation captions tried, and the shares that found their picture (success@1, @5, @10)."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Time of each stage that was made now."""
    added: list[str] = field(default_factory=list)
    """Paths of pictures that an update added ..."""
    changed: list[str] = field(default_factory=list)
    """... encoded again ..."""
    removed: list[str] = field(default_factory=list)
    """... and removed."""
    unlearnt: int = 0
    """How many of those added have captions, which an update does not learn from."""

    @property
    def things(self) -> str:
        """What its items are called."""
        return "pictures" if self.queries == "captions" else "products"

    @property
    def by_words(self) -> bool:
        """Whether words can find pictures in this run."""
        return self.supervised or self.joint

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


@dataclass(slots=True)
class Changes:
    """What an update did, by item ids."""

    items: int
    """Pictures in the index afterwards."""
    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    """Those that were encoded again, since their files have another size or time."""
    removed: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    """Pictures of the folder that give no feature, with the reason."""


def update_run(
    run: RunFolder,
    folder: Path,
    given: Mapping[str, str],
    *,
    tell: Callable[[str], None],
    strict: bool = False,
    **options: Any,
) -> Built:
    """Let the finished run of a folder follow it; `given` are ways of reading it, which must be those of the run."""
    source = read_source(run.root)
    if source.get("kind") != "folder":
        raise SiglumError(f"{run.root} holds no run of {folder} that could be updated; build it first.")
    if source["path"] != str(folder):
        raise SiglumError(f"{run.root} holds the run of {source['path']}, not of {folder}; choose another --out.")
    for name, value in given.items():
        if value not in ("auto", source.get(name, value)):
            raise SiglumError(f"{run.root} was built with {name} {source[name]}, which an update keeps; leave it out.")
    if "encoder" in source and "held_out" not in source:
        raise SiglumError(f"{run.root} is not finished; finish it with --resume and update it then.")
    begun = time.perf_counter()
    found = read_folder(folder, source["captions"], source["seed"], strict)
    done = update_index(run, found, tell=tell, strict=strict, **options)
    write_source(run.root, **{**source, "identity": found.identity})
    taken = [name for name in found.stamps if name not in done.skipped]
    return Built(
        run=str(run.root),
        about=found.about,
        items=done.items,
        captions=source.get("learnt", 0),
        skipped=[*found.unread, *map(path_of, done.skipped)],
        reasons=found.unread | {path_of(name): why for name, why in done.skipped.items()},
        example=str(folder / path_of(taken[0])) if taken else "",
        encoder=read_stage(run.tokenizer).get("encoder", "none"),
        supervised=source["supervised"],
        joint=source.get("joint", False),
        queries=found.queries,
        held_out=source.get("held_out", {}),
        seconds={"update": round(time.perf_counter() - begun, 2)},
        added=[*map(path_of, done.added)],
        changed=[*map(path_of, done.changed)],
        removed=[*map(path_of, done.removed)],
        unlearnt=len(found.captioned.intersection(done.added)),
    )


def update_index(
    run: RunFolder,
    found: FolderCollection,
    *,
    device: str = "cpu",
    workers: int = 1,
    strict: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> Changes:
    """Bring the index of a finished run to what its folder holds now, and return what changed."""
    retriever = Retriever.load(run.root, device=device)
    here, before = list(retriever.index.ids), read_stamps(run.root)
    if before is None:
        tell("this run kept no times of its pictures: files newer than its vectors are taken for changed")
        before = _stamps_of_vectors(run, found)
    new, changed, gone = _compare(found, before, here)
    done = Changes(len(here))
    known: dict[str, Stamp] = {**before, **dict.fromkeys([*new, *changed, *gone])}
    if new or changed or gone:
        write_stamps(run.root, known)
        _apply(run, retriever, found, done, (new, changed, gone), strict, workers)
    write_stamps(run.root, {**known, **found.stamps})
    return done


def _stamps_of_vectors(run: RunFolder, found: FolderCollection) -> dict[str, Stamp]:
    """Return the present stamps of the pictures that the run was made from, without those of newer files."""
    made = (run.vectors / "items.safetensors").stat().st_mtime_ns
    stamps = ((name, found.stamps.get(name)) for name in load_vectors(run.vectors)[0].items.ids)
    return {name: stamp if stamp is not None and stamp[1] <= made else None for name, stamp in stamps}


def _compare(
    found: FolderCollection, before: Mapping[str, Stamp], here: Sequence[str]
) -> tuple[list[str], list[str], list[str]]:
    """Return the ids of new, changed and gone pictures.

    What was never of the folder, since it was added to the index by hand, is not gone from it; nor is what lies in a
    folder that cannot be listed at the moment.
    """
    indexed, hidden = set(here), tuple(f"{id_of(place)}/" for place in found.unread)
    new = [name for name in found.stamps if name not in indexed]
    known = ((name, stamp) for name, stamp in found.stamps.items() if name in indexed)
    changed = [name for name, stamp in known if stamp is None or stamp != before.get(name)]
    gone = [name for name in here if name in before and name not in found.stamps and not name.startswith(hidden)]
    return new, changed, gone


def _apply(
    run: RunFolder,
    retriever: Retriever,
    found: FolderCollection,
    done: Changes,
    plan: tuple[list[str], list[str], list[str]],
    strict: bool,
    workers: int,
) -> None:
    """Change the index part by part and put down what was done; what is gone goes with the last part.

    A part is all or nothing, as is thus an update of one part.
    """
    new, changed, gone = plan
    encoder = retriever.encoder if new or changed else None
    if encoder is None and (new or changed):
        raise SiglumError(f"{run.root} was made from plain vectors and has no encoder, so it cannot take pictures.")
    rows, old = {item.id: item for item in found.collection.items}, set(changed)
    wanted = [*new, *changed]
    parts = [wanted[start : start + SHARD] for start in range(0, len(wanted), SHARD)]
    with retriever.writing(run.root) as live:
        for part in progress(parts, "encode new pictures", total=len(wanted), unit="row", size=SHARD):
            assert encoder is not None
            features, omitted = encode_some([rows[name] for name in part], encoder, strict, workers)
            done.skipped |= {entry.id: entry.why for entry in omitted}
            outdated = [name for name in part if name in old] + (gone if part is parts[-1] else [])
            if len(features):
                live.replace(outdated, features, about=[rows[name] for name in features.ids])
            elif outdated:
                live.remove(outdated)
            for name in features.ids:
                (done.changed if name in old else done.added).append(name)
        if gone and not parts:
            live.remove(gone)
        live.compact_if_due()
    done.removed = [*gone, *(name for name in changed if name in done.skipped)]
    done.items += len(done.added) - len(done.removed)
