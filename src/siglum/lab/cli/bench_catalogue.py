"""`siglum bench catalogue`: train and measure all systems on the eight kinds of query of a product catalogue."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from siglum.console.commands import say, write_document
from siglum.lab.cli import bench_captions
from siglum.types import SiglumError

SCALES = ("catalogue", "catalogue_small")


@dataclass(kw_only=True)
class Command(bench_captions.Command):
    """Train one universal model a system for all eight kinds of query, and measure every kind, over several seeds.

    The folder holds products.jsonl and the photographs it names. They are encoded once, beside the output, into one
    file that can be taken to another machine and given there as --data. Every training leaves a part; the same command
    goes on where it was stopped. Weights are chosen on validation.

    Examples:
      siglum bench catalogue --data fashion --seeds 3 --out catalogue.json --device cuda --jobs 12
      siglum bench catalogue --data fashion --out catalogue.json --encode-only
      siglum bench catalogue --data fashion --scale catalogue_small --units dense,pro,genius --out small.json
    """

    data: Path
    """The folder of products, or the file that was made of it."""
    scale: str = "catalogue"
    """catalogue (a GPU), or catalogue_small (2 CPU cores)."""
    units: str = "all"
    """Trainings to run, by commas: dense, text_alone, image_alone, and those of bench captions."""
    encoder: str = ""
    """Which encoder makes the features of a folder, offline unless given; a file has its features."""
    encode_only: bool = False
    """Encode the photographs, say where the file of their features is, and train nothing."""
    draw: bool = True
    """Draw the figures, beside the document; they need matplotlib."""


def run(command: Command) -> dict[str, Any]:
    """Run what is missing, then write the document, tables, figures and, among the parts, a page of examples."""
    from siglum.lab.catalogue.prepared import is_catalogue
    from siglum.lab.catalogue.systems import UNITS, CatalogueSystems
    from siglum.lab.catalogue.table import build_document, describe, figures, markdown

    if not is_catalogue(command.data) or not command.data.exists():
        raise SiglumError(f"--data is {command.data}, but must be a folder with products.jsonl or a prepared file.")
    if command.encode_only:
        prepared = bench_captions.open_setting(command, SCALES, command.encoder).prepared()
        say(f"encoded into {prepared}")
        return {"prepared": str(prepared)}
    if command.draw:
        from siglum.lab.experiments.plots import draw, load_matplotlib

        load_matplotlib()  # refused now, not after hours of training
    setting, parts, facts = bench_captions.measure_units(
        command, CatalogueSystems, UNITS, SCALES, features=command.encoder
    )
    document = build_document(parts, {**facts, "about": describe(setting.vectors())})
    write_document(command.out, document, markdown(document, parts))
    if command.draw:
        draw(figures(document, parts), command.out.with_suffix(""))
    if command.data.is_dir():
        from siglum.lab.catalogue.report import write_report

        write_report(setting.out / "examples.html", command.data, parts)
        say(f"examples, with photographs: {setting.out / 'examples.html'}")
    return document
