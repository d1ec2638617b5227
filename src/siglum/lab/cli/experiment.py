"""`siglum experiment`: the experiments of the paper, each with its table and its figures."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from siglum.console.commands import DeviceVerb, say


@dataclass(kw_only=True)
class Command(DeviceVerb):
    """Run experiments of the paper on the drawn world, a folder of captions or a catalogue of products.

    NAME is one or several of main, ablation, distillation, schedules, sensitivity, encoders, survival, bound,
    cross-dataset, efficiency, overhead, modes, or all. Each writes OUT/NAME/{results.json, table.md, table.tex} and its
    figures. Every unit leaves a part, and experiments that need the same training share it: the same command goes on
    where it was stopped, and trains nothing once all is there. With --pools survival and main also ask the same trained
    models on larger pools.

    Examples:
      siglum experiment main --data world --scale tiny --out runs/paper
      siglum experiment main ablation --data world --seeds 3 --out runs/paper
      siglum experiment survival main --data world --pools 25000,100000,300000 --out runs/paper
      siglum experiment all --data flickr8k --out runs/flickr8k --device cuda --jobs 8 --no-draw
    """

    names: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Experiments to run."""
    data: str
    """`world`, a folder of captions (see bench captions), or a catalogue of products (see bench catalogue)."""
    out: Path
    """Folder of results, parts and trainings."""
    recipe: str = "pro"
    """The recipe under study."""
    scale: str = ""
    """World: tiny, demo (default) or small; folder: captions or catalogue (a GPU), captions_small, catalogue_small."""
    seeds: int = 1
    """Number of seeds of training, from 0 on; sensitivity takes the first alone, as in the paper."""
    jobs: int = 1
    """Units at a time, each in a process of its own; those that measure time run alone."""
    limit: float = 0.0
    """Begin no unit after this many seconds and assemble what is there; 0 is no limit."""
    other: str = ""
    """A second folder, for cross-dataset."""
    encoders: str = ""
    """What encoders compares, by commas. World: as in `siglum encode`; folder: given, words, NAME; @64 reduces any."""
    pools: str = ""
    """Larger pools for survival and main, and pool sizes of efficiency (by itself 5,000 to 1,000,000), by commas."""
    draw: bool = True
    """Assemble tables and figures; with --no-draw only train and measure."""


def run(command: Command) -> dict[str, Any]:
    """Measure what is missing and assemble the results."""
    from siglum.device import check_device
    from siglum.lab.cli.bench_speed import numbers
    from siglum.lab.experiments.base import names_of
    from siglum.lab.experiments.run import run_experiments
    from siglum.lab.experiments.setting import Setting
    from siglum.lab.units import check_counts, refuse_nothing
    from siglum.recipes import RECIPES
    from siglum.types import one_of

    names = names_of(command.names)
    one_of("recipe", command.recipe, RECIPES)
    check_counts(seeds=command.seeds, jobs=command.jobs)
    setting = Setting(
        command.data,
        command.out,
        recipe=command.recipe,
        scale=command.scale,
        seeds=command.seeds,
        device=check_device(command.device),
        other=command.other,
        encoders=tuple(name.strip() for name in command.encoders.split(",") if name.strip()),
        pools=numbers("--pools", command.pools) if command.pools else (),
    )
    told = run_experiments(
        setting,
        names,
        jobs=command.jobs,
        limit=command.limit,
        draw=command.draw,
        command=as_typed(command, setting.scale),
        say=say,
    )
    for found in told.values():
        if "tables" in found:
            say(found.pop("tables"))
    if not any(found["measured"] for found in told.values()):
        refuse_nothing(reason for found in told.values() for reason in found["missing"].values())
    return told


def as_typed(command: Command, scale: str) -> str:
    """Return the command line that repeats this run.

    >>> as_typed(Command(names=("main",), data="world", out=Path("runs/x"), seeds=3), "demo")
    'siglum experiment main --data world --recipe pro --scale demo --seeds 3 --out runs/x --device cpu'
    """
    words = ["siglum", "experiment", *command.names]
    for name in ("data", "other", "encoders", "pools", "recipe", "scale", "seeds", "out", "device"):
        value = scale if name == "scale" else getattr(command, name)
        words += [f"--{name}", str(value)] if value != "" else []
    return shlex.join(words)
