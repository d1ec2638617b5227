"""Where experiments run: the data, the recipe and scale, and the folder that everything is kept in.

`world` is the drawn world at the scale's size, drawn once and encoded into OUT/data; anything else is a folder of
captions (see `siglum.lab.captions.reader`) or a catalogue of products, encoded into OUT/data too unless it is a file
that was prepared. The seed of training changes from unit to unit, the data does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from siglum.config import RunConfig
from siglum.data.catalogue import Catalogue
from siglum.encode.builtin import BuiltinEncoder
from siglum.files import file_fingerprint, fingerprint
from siglum.lab.captions.reader import FILES, read_captions
from siglum.lab.catalogue.prepared import is_catalogue, prepared_file, read_prepared
from siglum.lab.experiments.distractors import distractors
from siglum.lab.experiments.features import GIVEN, encoder_of, features_file, folder_features, reduced, split_name
from siglum.lab.sources import DRAWING, sources_fingerprint
from siglum.recipes import Space, fit_to_data, recipe
from siglum.run.lock import lock_file
from siglum.scales import SCALES
from siglum.types import Features, Modality, SiglumError, Vectors, one_of

WORLD, CAPTIONS, CATALOGUE = "world", "captions", "catalogue"
DEFAULT_SCALES = {WORLD: "demo", CAPTIONS: "captions", CATALOGUE: "catalogue"}
"""The scale by the kind of data."""


@dataclass(frozen=True, slots=True)
class Setting:
    """All that decides the numbers of an experiment but its own units; `replace` gives one on other data."""

    data: str
    """`world`, a folder of captions, or a catalogue."""
    out: Path
    recipe: str = "pro"
    """The recipe under study."""
    scale: str = ""
    """Empty is demo for the world, and the kind of data for others."""
    seeds: int = 1
    other: str = ""
    """A second folder, for cross-dataset."""
    encoders: tuple[str, ...] = ()
    """Features that the experiment on encoders compares; empty is its own choice."""
    pools: tuple[int, ...] = ()
    """Pool sizes of the experiment on efficiency; empty is its own choice."""
    features: str = ""
    """Features in place of the usual ones, for encoders: see `siglum.lab.experiments.features`."""
    world_seed: int = 0
    device: str = "cpu"
    _kept: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Choose the scale where none was given, and refuse what cannot be."""
        object.__setattr__(self, "scale", self.scale or DEFAULT_SCALES[self.kind])
        one_of("scale", self.scale, SCALES)
        if self.is_world and self.scale.startswith((CAPTIONS, CATALOGUE)):
            raise SiglumError(f"scale {self.scale} is for folders of features; the world takes tiny, demo or small.")
        if not self.is_world and not (
            Path(self.data).is_dir() or (self.kind == CATALOGUE and Path(self.data).exists())
        ):
            raise SiglumError(f"--data is {self.data!r}, but must be {WORLD}, a folder of captions or a catalogue.")

    @property
    def kind(self) -> str:
        """What the data is: world, captions or catalogue."""
        return WORLD if self.is_world else CATALOGUE if is_catalogue(Path(self.data)) else CAPTIONS

    @property
    def is_world(self) -> bool:
        """Whether the data is the drawn world."""
        return self.data == WORLD

    @property
    def label(self) -> str:
        """The data in a word."""
        return WORLD if self.is_world else Path(self.data).stem

    def config(self, name: str = "", seed: int = 0, space: Space = "") -> RunConfig:
        """Return a recipe (the one under study by default) at this scale, sized to the data."""
        return self.fit(recipe(name or self.recipe, self.scale, seed, space))

    def fit(self, config: RunConfig) -> RunConfig:
        """Return a config of the right size for the data, with the world's own seed.

        The scales of the world are sized to it; a folder may be smaller than its scale.
        """
        if self.is_world:
            return replace(config, world=replace(config.world, seed=self.world_seed))
        vectors = self.vectors()
        return fit_to_data(config, len(np.unique(vectors.pair_item)), len(vectors.pair_item))

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to other processes without the data, which each reads for itself."""
        return type(self), tuple(getattr(self, one.name) for one in fields(self) if one.init)

    def identity(self) -> str:
        """Return what tells data apart, wherever they lie: contents, not paths."""
        if "identity" not in self._kept:
            self._kept["identity"] = self._identity()
        found: str = self._kept["identity"]
        return found

    def _identity(self) -> str:
        if self.is_world:
            world = self.config().world
            usual = BuiltinEncoder().fingerprint()
            drawn = sources_fingerprint(*DRAWING)
            return fingerprint(WORLD, world.items, world.variants, self.world_seed, self.features, usual, drawn)
        if self.kind == CATALOGUE:
            return fingerprint(
                CATALOGUE, file_fingerprint(self.prepared()), self._catalogue()[0].queries_fingerprint(), self.features
            )
        folder, name = Path(self.data), split_name(self.features)[0]
        files = [path for path in (*(folder / name for name in FILES), features_file(folder, name)) if path.exists()]
        return fingerprint("captions", [file_fingerprint(path) for path in files], self.features)

    def vectors(self) -> Vectors:
        """Return the data, read or made once a process."""
        if "vectors" not in self._kept:
            self._kept["vectors"] = self._read()
        found: Vectors = self._kept["vectors"]
        return found

    def distractors(self, kind: Modality, number: int) -> Features:
        """Return items that answer no query of test, for larger pools."""
        return distractors(self, kind, number)

    def _read(self) -> Vectors:
        if self.is_world:
            return self._encode_world()
        if self.kind == CATALOGUE:
            return reduced(self._catalogue()[1], self.features)
        return folder_features(read_captions(Path(self.data)), Path(self.data), self.features)

    def prepared(self) -> Path:
        """Return the file of a catalogue, made once."""
        if "prepared" not in self._kept:
            folder = self.out / "data"
            with locked(folder / CATALOGUE):
                name = split_name(self.features)[0].removeprefix(GIVEN)
                self._kept["prepared"] = prepared_file(Path(self.data), folder, name, device=self.device)
        found: Path = self._kept["prepared"]
        return found

    def _catalogue(self) -> tuple[Catalogue, Vectors]:
        if "catalogue" not in self._kept:
            self._kept["catalogue"] = read_prepared(self.prepared())[:2]
        found: tuple[Catalogue, Vectors] = self._kept["catalogue"]
        return found

    def _encode_world(self) -> Vectors:
        from siglum.encode.run import encode_collection
        from siglum.lab.world.collection import World, world_collection

        world = self.config().world
        collection = world_collection(World(world.items, self.world_seed), world.variants)
        encoder, identity = encoder_of(self.features, self.device), replace(self, features="").identity()
        folder = self.out / "data" / fingerprint(identity, encoder.fingerprint())
        with locked(folder):
            found = encode_collection(collection, encoder, folder, identity=identity, resume=True).vectors
        return reduced(found, self.features)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one process at a time make what goes into a folder; a kill frees the lock."""
    with lock_file(folder.with_name(f".{folder.name}.lock"), folder, "siglum experiment"):
        yield
