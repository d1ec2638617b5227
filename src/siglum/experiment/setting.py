"""Where experiments run: the data, the recipe and scale, and the folder that everything is kept in.

`world` is the carried world at the scale's size, drawn once and encoded into OUT/data; anything else is a folder of
captions (see `siglum.data.captions`). The seed of training changes from unit to unit, the data does not.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from siglum.config import RunConfig
from siglum.data.captions import FILES, read_captions
from siglum.encode.builtin import BuiltinEncoder
from siglum.experiment.features import encoder_of, features_file, folder_features, reduced, split_name
from siglum.files import file_fingerprint, fingerprint
from siglum.recipes import fit_to_data, recipe
from siglum.scales import SCALES
from siglum.types import SiglumError, Vectors, one_of

WORLD = "world"
DEFAULT_SCALES = {True: "demo", False: "captions"}
"""The scale by whether the data is the world."""


@dataclass(frozen=True, slots=True)
class Setting:
    """All that decides the numbers of an experiment but its own units; `replace` gives one on other data."""

    data: str
    """`world`, or a folder of captions."""
    out: Path
    recipe: str = "pro"
    """The recipe under study."""
    scale: str = ""
    """Empty is demo for the world and captions for a folder."""
    seeds: int = 1
    device: str = "cpu"
    other: str = ""
    """A second folder, for cross-dataset."""
    encoders: tuple[str, ...] = ()
    """Features that the experiment on encoders compares; empty is its own choice."""
    pools: tuple[int, ...] = ()
    """Pool sizes of the experiment on efficiency; empty is its own choice."""
    features: str = ""
    """Features in place of the usual ones, for encoders: see `siglum.experiment.features`."""
    world_seed: int = 0
    _kept: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Choose the scale where none was given, and refuse what cannot be."""
        object.__setattr__(self, "scale", self.scale or DEFAULT_SCALES[self.is_world])
        one_of("scale", self.scale, SCALES)
        if self.is_world and self.scale.startswith("captions"):
            raise SiglumError(f"scale {self.scale} is for folders of captions; the world takes tiny, demo or small.")
        if not self.is_world and not Path(self.data).is_dir():
            raise SiglumError(f"--data is {self.data!r}, but must be {WORLD} or a folder of captions.")

    @property
    def is_world(self) -> bool:
        """Whether the data is the carried world."""
        return self.data == WORLD

    @property
    def label(self) -> str:
        """The data in a word."""
        return WORLD if self.is_world else Path(self.data).name

    def config(self, name: str = "", seed: int = 0) -> RunConfig:
        """Return a recipe (the one under study by default) at this scale, sized to the data."""
        return self.fit(recipe(name or self.recipe, self.scale, seed))

    def fit(self, config: RunConfig) -> RunConfig:
        """Return a config of the right size for the data, with the world's own seed.

        The scales of the world are sized to it; a folder may be smaller than its scale.
        """
        if self.is_world:
            return replace(config, world=replace(config.world, seed=self.world_seed))
        vectors = self.vectors()
        return fit_to_data(config, len(np.unique(vectors.pair_item)), len(vectors.pair_item))

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
            return fingerprint(WORLD, world.items, world.variants, self.world_seed, self.features, usual)
        folder, name = Path(self.data), split_name(self.features)[0]
        files = [path for path in (*(folder / name for name in FILES), features_file(folder, name)) if path.exists()]
        return fingerprint("captions", [file_fingerprint(path) for path in files], self.features)

    def vectors(self) -> Vectors:
        """Return the data, read or made once a process."""
        if "vectors" not in self._kept:
            self._kept["vectors"] = self._read()
        found: Vectors = self._kept["vectors"]
        return found

    def _read(self) -> Vectors:
        if self.is_world:
            return self._encode_world()
        return folder_features(read_captions(Path(self.data)), Path(self.data), self.features)

    def _encode_world(self) -> Vectors:
        from siglum.data.collection import world_collection
        from siglum.data.world import World
        from siglum.encode.run import encode_collection

        world = self.config().world
        collection = world_collection(World(world.items, self.world_seed), world.variants)
        encoder, mark = encoder_of(self.features, self.device), replace(self, features="").identity()
        folder = self.out / "data" / fingerprint(mark, encoder.fingerprint())
        with locked(folder):
            found = encode_collection(collection, encoder, folder, identity=mark, resume=True).vectors
        return reduced(found, self.features)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let one process at a time make what goes into a folder; a kill frees the lock."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
