"""`siglum bench speed`: how fast search is beside its peers, with the same weights, on one machine."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from siglum.cli.common import say, write_document
from siglum.types import SiglumError


@dataclass(kw_only=True)
class Command:
    """Time search by every engine, mode and precision, by other libraries with the same weights, and by dense search.

    Every system runs in a process of its own, in interleaved rounds; rows are medians. Weights are seeded random ones
    of the paper's size unless a trained run is given. Every measurement leaves a part beside the output; the same
    command goes on where it was stopped. Systems whose package is not installed are left out with a note.

    Examples:
      siglum bench speed --pools 50000 --batches 8 --out speed.json
      siglum bench speed --pools 5000,50000,500000 --batches 1,8,32 --out speed.json
      siglum bench speed --device cuda --pools 50000 --batches 1,32,256,1024 --out speed_cuda.json
    """

    out: Path
    """Where the document goes, a .json file; the table (.md) and the folder of parts (.parts) lie beside it."""
    device: str = "cpu"
    """cpu or cuda."""
    pools: str = "5000,50000,500000"
    """Numbers of items, by commas."""
    batches: str = ""
    """Queries a call, by commas; 1,8,32 and on a GPU 256 and 1024 as well."""
    run: Path | None = None
    """A trained run, whose weights, items and test queries are used; pools beyond its items are filled up."""
    systems: str = "all"
    """By commas: hf-generate, ctranslate2, siglum, faiss-flat, faiss-hnsw, faiss-ivf, faiss-pq, torch-flat."""
    modes: str = "all"
    """Modes of siglum, by commas: exact, renormalised, scan, scan-rescore."""
    rounds: int = 3
    """How often everything is measured."""
    queries: int = 256
    """Queries that calls go round."""
    threads: int = 0
    """Threads of every system; 0 is all cores there are."""
    seconds: float = 2.0
    """Time of one measurement, unless two calls take longer."""
    scale: str = "paper"
    """Size of the model with random weights: paper, or tiny to try the command."""
    json: bool = False
    """Print the document on stdout as well."""


def run(command: Command) -> dict[str, Any]:
    """Measure what is missing, then write the document and the table."""
    from siglum.bench.speed import Settings, run_speed
    from siglum.bench.speed_table import make_notes, make_rows, markdown, spread_of
    from siglum.experiment.machine import describe_machine
    from siglum.files import fingerprint

    settings = read_settings(command)
    # Asked of the CPU: this process is not to hold memory of a GPU that others are measured on.
    settings = replace(settings, versions=fingerprint(describe_machine("cpu")["versions"]))
    before = os.getloadavg()[0]
    parts, left_out = run_speed(settings, say)
    rows = make_rows(parts, settings.device)
    notes = left_out + make_notes(rows, parts)
    if before > 0.5:
        notes.insert(0, f"the machine was not idle before (load average {before:.2f}): trust ratios, not rates.")
    document = {
        "rows": rows,
        "notes": notes,
        "machine": describe_machine(settings.device),
        "load_average": {"before": before, "after": os.getloadavg()[0]},
        "spread_between_rounds": round(spread_of(parts), 4),
        "settings": {f.name: getattr(settings, f.name) for f in fields(Settings) if f.name not in ("work", "versions")},
    }
    write_document(command.out, document, markdown(document))
    return document


def read_settings(command: Command) -> Any:
    """Check the options and return them as settings of the benchmark."""
    from siglum.bench.speed import CASES, MODES, SYSTEMS, Settings
    from siglum.device import check_device
    from siglum.types import one_of

    if command.out.suffix != ".json":
        raise SiglumError(f"--out is {command.out}, but must be a .json file; the table goes beside it as .md.")
    device = check_device(command.device)
    kind = one_of("device", device.partition(":")[0], CASES)
    one_of("scale", command.scale, ("paper", "tiny"))
    for what, value in (("--rounds", command.rounds), ("--queries", command.queries)):
        if value < 1:
            raise SiglumError(f"{what} must be at least 1, not {value}.")
    if command.threads < 0:
        raise SiglumError(f"--threads is {command.threads}, but must be 0 for all cores, or the number of threads.")
    if not 0 <= command.seconds < float("inf"):
        raise SiglumError(f"--seconds is {command.seconds}, but must be a time of 0 or more.")
    if command.run is not None and not command.run.is_dir():
        raise SiglumError(f"{command.run} is not a run folder.")
    usual = "1,8,32" if kind == "cpu" else "1,8,32,256,1024"
    return Settings(
        work=command.out.with_suffix(".parts"),
        device=device,
        pools=numbers("--pools", command.pools),
        batches=numbers("--batches", command.batches or usual),
        systems=names("system", command.systems, SYSTEMS),
        modes=names("mode", command.modes, MODES),
        rounds=command.rounds,
        queries=command.queries,
        threads=command.threads or cores(),
        seconds=command.seconds,
        scale=command.scale,
        run=None if command.run is None else str(command.run),
    )


def cores() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def numbers(what: str, text: str) -> tuple[int, ...]:
    """Return whole numbers of at least 1, ascending.

    >>> numbers("--pools", "50000,5000")
    (5000, 50000)
    """
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = [0]
    if found[0] < 1:
        raise SiglumError(f"{what} takes whole numbers of at least 1 by commas, not {text!r}.")
    return tuple(found)


def names(what: str, text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Return names by commas, all of them known; `all` is every one."""
    from siglum.types import one_of

    return known if text == "all" else tuple(one_of(what, part.strip(), known) for part in text.split(","))
