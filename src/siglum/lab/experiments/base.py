"""What an experiment is: units that are trained and measured apart, and an outcome assembled from what they left."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from siglum.config import RunConfig
from siglum.lab.units import Part as Part
from siglum.types import SiglumError, one_of

if TYPE_CHECKING:
    from siglum.lab.experiments.plots import Figure
    from siglum.lab.experiments.setting import Setting
    from siglum.lab.tables import Table

NAMES = {
    "main": "Main",
    "ablation": "Ablation",
    "distillation": "Distillation",
    "schedules": "Schedules",
    "sensitivity": "Sensitivity",
    "encoders": "Encoders",
    "survival": "Survival",
    "bound": "Bound",
    "cross-dataset": "CrossDataset",
    "efficiency": "Efficiency",
    "overhead": "Overhead",
    "modes": "Modes",
}
"""The experiments and the class of each, in the module of its name."""


@dataclass(frozen=True, slots=True)
class Unit:
    """One thing to measure at one seed; `name` is unique in its experiment and goes into a file name."""

    name: str
    seed: int
    config: RunConfig
    options: dict[str, Any] = field(default_factory=dict)
    """What else tells units apart, as JSON values."""
    alone: bool = False
    """Whether nothing else may run beside it, because it measures time."""
    data: bool = True
    """Whether it needs the setting's vectors; where no unit does, they are not made."""
    stage: int = 0
    """Units begin when those of earlier stages are done."""
    anywhere: bool = False
    """Whether its kind of device does not matter, because nothing is trained or searched on it."""


@dataclass(slots=True)
class Outcome:
    """What an experiment says: numbers for machines, tables and figures for people."""

    results: dict[str, Any]
    tables: list[Table] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)


class Measurable(Protocol):
    """What has units to measure; it travels to other processes."""

    @property
    def name(self) -> str:
        """One word, for files and people."""
        ...

    def units(self, setting: Setting) -> list[Unit]:
        """Return what is to be measured; cheap, and the same for the same setting on any machine."""
        ...

    def measure(self, setting: Setting, unit: Unit) -> dict[str, Any]:
        """Train (or open) what the unit needs and return what was measured, as JSON values."""
        ...


class Experiment(Measurable, Protocol):
    """One experiment: what is measured, and what it says."""

    title: str

    def assemble(self, setting: Setting, parts: list[Part]) -> Outcome:
        """Join the parts there are (at least one) in the order of `units`; some may be missing."""
        ...


def open_experiment(name: str) -> Experiment:
    """Return the experiment of this name.

    >>> open_experiment("cross-dataset").name
    'cross-dataset'
    """
    one_of("experiment", name, NAMES)
    module = import_module(f"siglum.lab.experiments.{name.replace('-', '_')}")
    experiment: Experiment = getattr(module, NAMES[name])()
    return experiment


def by_unit(parts: list[Part]) -> dict[str, list[Part]]:
    """Return the parts of every unit, seeds in order.

    >>> by_unit([{"unit": "a", "seed": 1}, {"unit": "a", "seed": 0}])
    {'a': [{'unit': 'a', 'seed': 0}, {'unit': 'a', 'seed': 1}]}
    """
    found: dict[str, list[Part]] = {}
    for part in sorted(parts, key=lambda part: int(part["seed"])):
        found.setdefault(str(part["unit"]), []).append(part)
    order = list(dict.fromkeys(str(part["unit"]) for part in parts))
    return {name: found[name] for name in order}


def names_of(asked: tuple[str, ...]) -> list[str]:
    """Return the experiments asked for, each once; `all` is every one.

    >>> names_of(("bound", "main", "bound"))
    ['bound', 'main']
    """
    if not asked:
        raise SiglumError(f"name at least one experiment: {', '.join(NAMES)}, or all.")
    for name in asked:
        one_of("experiment", name, (*NAMES, "all"))
    return list(NAMES) if "all" in asked else list(dict.fromkeys(asked))
