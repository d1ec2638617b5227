"""`siglum bench captions`: train and measure all systems on frozen features of captioned images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siglum.console.commands import DeviceVerb, say, write_document
from siglum.types import SiglumError

if TYPE_CHECKING:
    from siglum.lab.captions.systems import Captions
    from siglum.lab.experiments.setting import Setting
    from siglum.lab.units import Part


@dataclass(kw_only=True)
class Command(DeviceVerb):
    """Train and measure all systems, text to image and image to text, over several seeds.

    The folder holds images.jsonl, captions.jsonl, image_features.npy and text_features.npy. Every training leaves a
    part beside the output; the same command goes on where it was stopped. Weights are chosen on validation.

    Examples:
      siglum bench captions --data flickr8k --seeds 3 --out captions.json --device cuda --jobs 12
      siglum bench captions --data flickr8k --scale captions_small --out small.json
      siglum bench captions --data flickr8k --units dense,pro,genius --out some.json
    """

    data: Path
    """The folder of features."""
    out: Path
    """Where the document goes, a .json file; the table (.md) and the folder of parts (.parts) lie beside it."""
    seeds: int = 1
    """Number of seeds, from 0 on."""
    scale: str = "captions"
    """captions (a GPU), or captions_small (2 CPU cores)."""
    units: str = "all"
    """Trainings to run, by commas, such as dense,pro,genius,genius_joint,best; their names are in the docs."""
    jobs: int = 1
    """Trainings at a time, each in a process of its own."""
    limit: float = 0.0
    """Start no training after this many seconds and report what is there; 0 is no limit."""


def run(command: Command) -> dict[str, Any]:
    """Run what is missing, then write the document and the table."""
    from siglum.lab.captions.systems import UNITS, Captions
    from siglum.lab.captions.table import build_document, markdown

    if not command.data.is_dir():
        raise SiglumError(f"--data is {command.data}, but must be a folder of features of captioned images.")
    setting, parts, facts = measure_units(command, Captions, UNITS, ("captions", "captions_small"))
    tasks = setting.vectors().tasks
    facts["images"] = {task.split: len(task.pool_rows) for task in tasks if task.name == "t2i"}
    document = build_document(parts, facts)
    write_document(command.out, document, markdown(document))
    return document


def open_setting(command: Command, scales: Sequence[str], features: str = "") -> Setting:
    """Return the setting of a benchmark, its parts beside its document."""
    from siglum.device import check_device
    from siglum.lab.experiments import setting as settings
    from siglum.lab.units import check_counts
    from siglum.types import one_of

    if command.out.suffix != ".json":
        raise SiglumError(f"--out is {command.out}, but must be a .json file; the table goes beside it as .md.")
    one_of("scale", command.scale, scales)
    check_counts(seeds=command.seeds, jobs=command.jobs)
    return settings.Setting(
        str(command.data.resolve()),
        command.out.with_suffix(".parts"),
        scale=command.scale,
        seeds=command.seeds,
        device=check_device(command.device),
        features=features,
    )


def measure_units(
    command: Command, experiment: type[Captions], units: Mapping[str, Sequence[str]], scales: Sequence[str], **more: str
) -> tuple[Setting, list[Part], dict[str, Any]]:
    """Run the units asked for that are missing; return the setting, all parts, and what the document says of both."""
    from siglum.lab.captions.dense import with_dense
    from siglum.lab.captions.quantisers import QUANTISERS, load_faiss
    from siglum.lab.cli.bench_speed import names
    from siglum.lab.experiments.run import measure
    from siglum.lab.units import refuse_nothing

    chosen = names("unit", command.units, tuple(units))
    if set(chosen) & set(QUANTISERS):
        load_faiss()  # refused now, not after hours of training
    setting = open_setting(command, scales, **more)
    asked = experiment(tuple(dict.fromkeys(chosen)))
    (found,) = measure(setting, [asked], jobs=command.jobs, limit=command.limit, say=say)
    if not found.parts:
        refuse_nothing(found.missing.values())
    parts, dense = with_dense(found.parts)
    facts = {"scale": command.scale, "seeds": command.seeds, "recipe_of_best": "best", "missing": list(found.missing)}
    return setting, parts, facts | dense
