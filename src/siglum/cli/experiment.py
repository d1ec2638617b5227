"""`siglum experiment`: the experiments of the paper, each with its table and its figures."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from siglum.cli.common import say
from siglum.types import SiglumError


@dataclass(kw_only=True)
class Command:
    """Run experiments of the paper on the carried world or on a folder of captions.

    NAME is one or several of main, ablation, schedules, sensitivity, encoders, survival, bound, cross-dataset,
    efficiency, overhead, modes, or all. Each writes OUT/NAME/{results.json, table.md, table.tex} and its figures.
    Every unit leaves a part, and experiments that need the same training share it: the same command goes on where it
    was stopped, and trains nothing once all is there. efficiency draws its own pools: of the data it takes the model's
    size alone, so the world is not encoded for it.

    Examples:
      siglum experiment main --data world --scale tiny --out runs/paper
      siglum experiment main ablation --data world --seeds 3 --out runs/paper
      siglum experiment all --data flickr8k --out runs/flickr8k --device cuda --jobs 8 --no-draw
    """

    names: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Experiments to run."""
    data: str
    """`world`, or a folder with images.jsonl, captions.jsonl, image_features.npy and text_features.npy."""
    out: Path
    """Folder of results, parts and trainings."""
    recipe: str = "pro"
    """The recipe under study."""
    scale: str = ""
    """World: tiny, demo (default) or small; folder: captions (default, a GPU) or captions_small."""
    seeds: int = 1
    """Number of seeds of training, from 0 on; sensitivity takes the first alone, as in the paper."""
    device: str = "cpu"
    """cpu, cuda or mps."""
    jobs: int = 1
    """Units at a time, each in a process of its own; those that measure time run alone."""
    limit: float = 0.0
    """Begin no unit after this many seconds and assemble what is there; 0 is no limit."""
    other: str = ""
    """A second folder, for cross-dataset."""
    encoders: str = ""
    """What encoders compares, by commas. World: as in `siglum encode`; folder: given, words, NAME; @64 reduces any."""
    pools: str = ""
    """Pool sizes of efficiency, by commas; empty is 5,000 to 1,000,000."""
    draw: bool = True
    """Assemble tables and figures; with --no-draw only train and measure."""
    json: bool = False
    """Print on stdout what was measured and what is missing."""


def run(command: Command) -> dict[str, Any]:
    """Measure what is missing and assemble the results."""
    from siglum.device import check_device
    from siglum.experiment.base import names_of
    from siglum.experiment.run import run_experiments
    from siglum.experiment.setting import Setting
    from siglum.recipes import RECIPES
    from siglum.types import one_of

    names = names_of(command.names)
    one_of("recipe", command.recipe, RECIPES)
    for what, value in (("--seeds", command.seeds), ("--jobs", command.jobs)):
        if value < 1:
            raise SiglumError(f"{what} must be at least 1, not {value}.")
    setting = Setting(
        command.data,
        command.out,
        recipe=command.recipe,
        scale=command.scale,
        seeds=command.seeds,
        device=check_device(command.device),
        other=command.other,
        encoders=tuple(name.strip() for name in command.encoders.split(",") if name.strip()),
        pools=_whole_numbers(command.pools),
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
        reasons = [reason for found in told.values() for reason in found["missing"].values()]
        raise SiglumError(
            f"nothing was measured: {reasons[0] if reasons else 'there are no units'}.".replace("..", ".")
        )
    return told


def _whole_numbers(text: str) -> tuple[int, ...]:
    """Read numbers by commas.

    >>> _whole_numbers("500, 2000")
    (500, 2000)
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() for part in parts):
        raise SiglumError(f"--pools takes whole numbers by commas, such as 5000,50000, not {text!r}.")
    return tuple(int(part) for part in parts)


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
