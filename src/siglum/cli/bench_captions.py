"""`siglum bench captions`: train and measure all systems on frozen features of captioned images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from siglum.cli.common import say, write_document
from siglum.types import SiglumError


@dataclass(kw_only=True)
class Command:
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
    """Trainings to run, by commas: dense, pro, vs, pd, genius, genius_half, genius_double, best, faiss_pq, ..."""
    jobs: int = 1
    """Trainings at a time, each in a process of its own."""
    device: str = "cpu"
    """cpu, cuda or mps."""
    limit: float = 0.0
    """Start no training after this many seconds and report what is there; 0 is no limit."""
    json: bool = False
    """Print the document on stdout as well."""


def run(command: Command) -> dict[str, Any]:
    """Run what is missing, then write the document and the table."""
    from siglum.bench.captions import UNITS, Bench
    from siglum.bench.quantisers import QUANTISERS, load_faiss
    from siglum.bench.run import run_units
    from siglum.bench.table import markdown, read_parts, summarise_ranks
    from siglum.data.captions import read_captions
    from siglum.device import check_device
    from siglum.types import one_of

    names = [name.strip() for name in (",".join(UNITS) if command.units == "all" else command.units).split(",")]
    for name in names:
        one_of("unit", name, UNITS)
    if command.out.suffix != ".json":
        raise SiglumError(f"--out is {command.out}, but must be a .json file; the table goes beside it as .md.")
    if set(names) & set(QUANTISERS):
        load_faiss()  # refused now, not after hours of training
    one_of("scale", command.scale, ("captions", "captions_small"))
    for what, value in (("--seeds", command.seeds), ("--jobs", command.jobs)):
        if value < 1:
            raise SiglumError(f"{what} must be at least 1, not {value}.")
    vectors = read_captions(command.data)
    work = command.out.with_suffix(".parts")
    bench = Bench(command.data, work, command.scale, check_device(command.device))
    done, missing = run_units(bench, dict.fromkeys(names), command.seeds, command.jobs, command.limit, vectors, say)
    if not done:
        raise SiglumError("nothing was measured: the limit left no time for any training.")
    ranks, told = read_parts(done)
    facts = {
        "scale": command.scale,
        "seeds": command.seeds,
        "recipe_of_best": "best",
        "images": {task.split: len(task.pool_rows) for task in vectors.tasks if task.name == "t2i"},
        "missing": missing,
    }
    document = summarise_ranks(ranks, told, facts)
    write_document(command.out, document, markdown(document))
    return document
