"""`siglum report`: one page about one run, or about several side by side."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from siglum.console.commands import DeviceVerb, say
from siglum.device import check_device
from siglum.types import SiglumError


@dataclass(kw_only=True)
class Command(DeviceVerb):
    """Make one page (HTML, nothing beside it) about one run, or about several side by side.

    It has the results of all systems by task, paired differences against the first run with intervals, where targets
    are lost and what to do about it (as `siglum diagnose` tells), example queries with their pictures, the settings
    and how they differ, versions and hardware. Stages that are missing make the page shorter. Runs are only read.

    Examples:
      siglum report runs/demo --out report.html
      siglum report runs/demo runs/demo/baselines/genius --out compare.html
      siglum report runs/mine --split val --queries 500 --experiments runs/paper --json
    """

    folders: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders; the others are compared with the first that can be searched."""
    out: Path | None = None
    """Where the page goes (missing folders are made); report.html if nothing is said, and no page with --json alone."""
    split: str = "test"
    """val or test."""
    queries: int = 0
    """How many queries to ask a run in all, evenly spread over the tasks; 0 asks all, and the diagnosis 1,000."""
    experiments: Path | None = None
    """Also show the finished experiments of this folder, which `siglum experiment --out` wrote."""
    seed: int = 0
    """Seed of the resamples behind the intervals."""


def run(command: Command) -> dict[str, Any]:
    """Measure the runs, write the page and return its numbers."""
    from siglum.lab.experiments.machine import describe_machine
    from siglum.pages.report import report

    device = check_device(command.device)
    if command.queries < 0:
        raise SiglumError(f"--queries must be 0 (all) or more, not {command.queries}.")
    page = command.out or (None if command.json else Path("report.html"))
    document = report(
        command.folders,
        **command.values("split", "queries", "experiments", "seed"),
        out=page,
        device=device,
        command=as_typed(command),
        machine=describe_machine(device),
        say=say,
    )
    for summary in document["runs"]:
        for note in summary["notes"]:
            say(f"{summary['name']}: {note}")
    if page is not None:
        say(f"page: {page}")
    return dict(document)


def as_typed(command: Command) -> str:
    """Return the command line that makes the page again.

    >>> as_typed(Command(folders=(Path("runs/a"),), queries=50))
    'siglum report runs/a --split test --queries 50 --seed 0 --device cpu'
    """
    words = ["siglum", "report", *map(str, command.folders)]
    for name in ("out", "split", "queries", "experiments", "seed", "device"):
        value = getattr(command, name)
        words += [] if value is None else [f"--{name}", str(value)]
    return shlex.join(words)
