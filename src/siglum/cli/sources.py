"""Where a run's items and queries come from, as verbs take it on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siglum.types import SiglumError

if TYPE_CHECKING:
    from siglum.data.collection import Collection
    from siglum.types import Features, Vectors

ONE_OF = {"world": "N", "items": "FILE", "folder": "DIR", "catalogue": "DIR", "karpathy": "JSON", "mbeir": "DIR"}
"""The sources, of which one is given, and what each takes."""
EXTRAS = {"items": ("train", "val", "test"), "folder": ("captions",), "karpathy": ("images",), "mbeir": ("tasks",)}
"""Options that go with one source alone."""


@dataclass(kw_only=True)
class Sources:
    """Options that say where items and queries come from; exactly one source is given."""

    world: int = 0
    """Use the drawn world with this many items (200 to 1,000,000)."""
    variants: int = 2
    """Wordings and redrawings of every training query of the world."""
    items: Path | None = None
    """One's own items: JSONL or parquet with id, text, image."""
    train: Path | None = None
    """Training queries with positives, to go with --items."""
    val: Path | None = None
    """Validation queries."""
    test: Path | None = None
    """Test queries."""
    folder: Path | None = None
    """A folder of pictures, with captions if there are any."""
    captions: str = "auto"
    """Where the folder's captions are: sidecar, names, none, a table FILE[:image_column:caption_column], or auto."""
    catalogue: Path | None = None
    """A product catalogue: products.jsonl and its photographs, with all eight kinds of query."""
    karpathy: Path | None = None
    """A dataset in Karpathy's layout, such as dataset_flickr8k.json."""
    images: Path | None = None
    """The folder of its pictures."""
    mbeir: Path | None = None
    """A copy of M-BEIR."""
    tasks: str = ""
    """Its tasks, such as mscoco_task0,nights_task4; the paper's nine unless given."""
    item_features: Path | None = None
    """Features of the items made elsewhere (.npy, .npz, .safetensors, .parquet, .pt), instead of an encoder."""
    query_features: Path | None = None
    """Features of the queries; rows without ids of their own are those of train, val and test in this order."""
    seed: int = 0
    """Seed of training (and of the world)."""


@dataclass(slots=True)
class ChosenSource:
    """A collection, the words that identify it, and where its items can be looked up again."""

    collection: Collection
    identity: str
    origin: dict[str, Any] = field(default_factory=dict)
    """What `siglum.data.source.write_source` keeps; empty where it knows no such kind."""
    about: str = ""
    """What was found, in words."""


def choose_source(options: Sources) -> str:
    """Return the name of the one source that is given, refusing none, several and options of another one."""
    given = [name for name in ONE_OF if getattr(options, name)]
    if len(given) != 1:
        raise SiglumError(f"give exactly one source: {' or '.join(f'--{name} {ONE_OF[name]}' for name in ONE_OF)}.")
    defaults = {entry.name: entry.default for entry in fields(Sources)}
    for owner, extras in EXTRAS.items():
        for extra in extras:
            if owner != given[0] and getattr(options, extra) != defaults[extra]:
                raise SiglumError(f"--{extra} goes with --{owner}, not with --{given[0]}.")
    return given[0]


def read_source(options: Sources) -> ChosenSource:
    """Read the one source that is given."""
    readers = dict(zip(ONE_OF, (_world, _items, _folder, _catalogue, _karpathy, _mbeir), strict=True))
    return readers[choose_source(options)](options)


def _world(options: Sources) -> ChosenSource:
    from siglum.lab.world.collection import World, world_collection

    collection = world_collection(World(options.world, options.seed), options.variants)
    identity = f"world {options.world} {options.seed} {options.variants}"
    return ChosenSource(collection, identity, {"kind": "world", "items": options.world, "seed": options.seed})


def _items(options: Sources) -> ChosenSource:
    from siglum.data.collection import read_collection
    from siglum.files import file_fingerprint

    assert options.items is not None
    collection = read_collection(options.items, options.train, options.val, options.test)
    paths = [path for path in (options.items, options.train, options.val, options.test) if path is not None]
    origin = {"kind": "items", "path": str(options.items.absolute())}
    origin |= {name: str(path.absolute()) for name in ("val", "test") if (path := getattr(options, name)) is not None}
    return ChosenSource(collection, " ".join(file_fingerprint(path) for path in paths), origin)


def _folder(options: Sources) -> ChosenSource:
    from siglum.data.folder import read_folder

    assert options.folder is not None
    found = read_folder(options.folder, options.captions, options.seed, getattr(options, "strict", False))
    origin = {"kind": "folder", "path": str(options.folder.absolute()), "supervised": found.supervised}
    origin |= {"captions": options.captions, "seed": options.seed, "identity": found.identity}
    origin |= {"queries": found.queries}
    return ChosenSource(found.collection, f"folder {found.identity} {options.seed}", origin, found.about)


def _catalogue(options: Sources) -> ChosenSource:
    from siglum.data.catalogue import read_catalogue

    assert options.catalogue is not None
    found = read_catalogue(options.catalogue.absolute(), options.seed)
    origin = {"kind": "catalogue", "path": str(found.folder), "seed": options.seed}
    return ChosenSource(found.collection, f"catalogue {found.identity()}", origin, found.about())


def _karpathy(options: Sources) -> ChosenSource:
    from siglum.data.karpathy import read_karpathy
    from siglum.files import file_fingerprint

    assert options.karpathy is not None
    if options.images is None and options.item_features is None:
        raise SiglumError("--karpathy needs --images DIR, the folder of its pictures.")
    collection = read_karpathy(options.karpathy, options.images)
    return ChosenSource(collection, f"karpathy {file_fingerprint(options.karpathy)}")


def _mbeir(options: Sources) -> ChosenSource:
    from siglum.files import fingerprint
    from siglum.lab.mbeir.layout import MbeirFiles
    from siglum.lab.mbeir.reader import read_mbeir

    assert options.mbeir is not None
    tasks = [name.strip() for name in options.tasks.split(",")] if options.tasks else None
    files = MbeirFiles.of(options.mbeir, tasks, False).files()
    sizes = [[str(path.relative_to(options.mbeir)), path.stat().st_size] for path in files]
    collection = read_mbeir(options.mbeir, tasks=tasks, seed=options.seed)
    about = "; ".join(f"{note}: {count:,}" for note, count in collection.notes.items())
    return ChosenSource(collection, f"mbeir {fingerprint(sizes, tasks, options.seed)}", {}, about)


def read_vectors(options: Sources, collection: Collection) -> Vectors | None:
    """Return features made elsewhere, joined with the collection's positives and pools; None if none are given."""
    from siglum.data.collection import SPLITS, assemble
    from siglum.data.vectors import with_widths

    if options.item_features is None and options.query_features is None:
        return None
    if options.item_features is None or options.query_features is None:
        raise SiglumError("--item-features and --query-features go together; give both.")
    asked = [(split, query) for split in SPLITS for query in collection.queries.get(split, ())]
    items = _features(options.item_features, [item.id for item in collection.items])
    queries = _features(options.query_features, [query.id for _, query in asked])
    image, text = (max(getattr(side, part).shape[1] for side in (items, queries)) for part in ("image", "text"))
    about = [(split, query.task, query.positives) for split, query in asked]
    items, queries = with_widths(items, image, text, "items"), with_widths(queries, image, text, "queries")
    return assemble(items, queries, about, collection.pools)


def _features(path: Path, ids: Sequence[str]) -> Features:
    """Read the features of these ids: by the file's own ids, or row by row where it has none."""
    from siglum.data.precomputed import match_features, read_features

    if path.suffix == ".npy":
        return read_features(path, ids)
    found = read_features(path)
    numbered = len(found) == len(ids) and list(found.ids) == [str(row) for row in range(len(ids))]
    if numbered and not set(ids) <= set(found.ids):
        found.ids = list(ids)
    return match_features(found, ids)
