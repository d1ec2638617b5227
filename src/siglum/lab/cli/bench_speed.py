"""`siglum bench speed`: how fast search is beside its peers, with the same weights, on one machine."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from siglum.console.commands import DeviceVerb, say, write_document
from siglum.types import SiglumError


@dataclass(kw_only=True)
class Command(DeviceVerb):
    """Time search by every engine, mode and precision, by other libraries with the same weights, and by dense search.

    With --against COMMIT, siglum's own search alone is timed beside that of an earlier commit, in alternating rounds of
    one run, and the ratio of the two comes with its interval.

    Every system runs in a process of its own, in interleaved rounds; rows are medians. Weights are seeded random ones
    of a recipe's shape at the paper's size unless a trained run is given. A recipe that asks for more than the paper's
    score, as best does, is set beside siglum's reference search in place of libraries that have no such score. Every
    measurement leaves a part beside the output; the same command goes on where it was stopped. Systems whose package is
    not installed are left out with a note.

    Examples:
      siglum bench speed --pools 50000 --batches 8 --out speed.json
      siglum bench speed --pools 5000,50000,500000 --batches 1,8,32 --out speed.json
      siglum bench speed --device cuda --pools 50000 --batches 1,32,256,1024 --out speed_cuda.json
      siglum bench speed --recipe best --pools 50000 --batches 8 --out speed_best.json
      siglum bench speed --against HEAD~1 --pools 50000 --batches 1,8 --out against.json
    """

    out: Path
    """Where the document goes, a .json file; the table (.md) and the folder of parts (.parts) lie beside it."""
    against: str = ""
    """A commit of the checkout siglum runs from; the code as it is, uncommitted changes included, is set beside it."""
    pools: str = ""
    """Numbers of items, by commas; 5000,50000,500000, with --against 50000."""
    batches: str = ""
    """Queries a call, by commas; 1,8,32 and on a GPU 256 and 1024 as well."""
    recipe: str = "pro"
    """Whose model and search is timed, with random weights: pro (the paper), best or another recipe."""
    run: Path | None = None
    """A trained run, whose weights, items and test queries are used; pools beyond its items are filled up."""
    systems: str = "all"
    """By commas: hf-generate, ctranslate2, siglum, faiss-flat, faiss-hnsw, faiss-ivf, faiss-pq, torch-flat; reference,
    siglum's own slow search, is among all of them where a recipe asks for more than the paper's score."""
    modes: str = ""
    """Modes of siglum, by commas: exact, renormalised, scan, scan-rescore; all of them, with --against exact."""
    precisions: str = ""
    """Precisions of siglum, by commas: fp32, bf16, int8; all of them, with --against fp32 and bf16."""
    rounds: int | None = None
    """How often everything is measured, 3; with --against how many pairs of rounds, 20."""
    queries: int = 256
    """Queries that calls go round."""
    threads: int = 0
    """Threads of every system; 0 is all cores there are."""
    seconds: float | None = None
    """Time of one measurement, 2.0, unless two calls take longer; with --against of one round, 0.5."""
    scale: str = "paper"
    """Size of the model with random weights: paper, or tiny to try the command."""


ALONE = {"pools": "5000,50000,500000", "modes": "all", "precisions": "all", "rounds": 3, "seconds": 2.0}
BESIDE = {"pools": "50000", "modes": "exact", "precisions": "fp32,bf16", "rounds": 20, "seconds": 0.5}
"""What options are that were not given, without and with --against."""


def run(command: Command) -> dict[str, Any]:
    """Measure what is missing, then write the document and the table."""
    usual = BESIDE if command.against else ALONE
    given = {name: value for name in usual if (value := getattr(command, name)) not in ("", None)}
    command = replace(command, **{**usual, **given})
    return _beside_commit(command) if command.against else _beside_peers(command)


def _beside_peers(command: Command) -> dict[str, Any]:
    from siglum.lab.speed.bench import run_speed
    from siglum.lab.speed.table import make_notes, make_rows, markdown, spread_of

    settings, before = _for_this_code(read_settings(command)), os.getloadavg()[0]
    parts, left_out = run_speed(settings, say)
    rows = make_rows(parts, settings.device)
    more = {"spread_between_rounds": round(spread_of(parts), 4)}
    document = _document(settings, rows, left_out + make_notes(rows, parts), before) | more
    write_document(command.out, document, markdown(document))
    return document


def _beside_commit(command: Command) -> dict[str, Any]:
    from siglum.lab.speed.against import code_fingerprint, find_commit, run_against
    from siglum.lab.speed.against_table import BAR, make_notes, make_rows, markdown

    if command.systems not in ("all", "siglum"):
        raise SiglumError("--against compares siglum with siglum; leave --systems out.")
    settings = read_settings(replace(command, systems="siglum"))
    old, new = find_commit(command.against), code_fingerprint()
    settings, before = _for_this_code(settings, old, new), os.getloadavg()[0]
    parts, left_out = run_against(settings, old, say)
    rows = make_rows(parts, settings.device)
    document = _document(settings, rows, left_out + make_notes(rows), before)
    document |= {"old": old, "new": document["machine"]["commit"], "new_code": new, "bar": BAR}
    write_document(command.out, document, markdown(document))
    return document


def _for_this_code(settings: Any, *fingerprints: str) -> Any:
    from siglum.files import fingerprint
    from siglum.lab.experiments.machine import describe_machine

    # Asked of the CPU: this process is not to hold memory of a GPU that others are measured on.
    return replace(settings, versions=fingerprint(describe_machine("cpu")["versions"], *fingerprints))


def _document(settings: Any, rows: list[dict[str, Any]], notes: list[str], before: float) -> dict[str, Any]:
    from siglum.lab.experiments.machine import describe_machine

    if before > 0.5:
        told = f"the machine was not idle before (load average {before:.2f}): trust ratios, not rates."
        notes = [told, *notes]
    return {
        "rows": rows,
        "notes": notes,
        "machine": describe_machine(settings.device),
        "load_average": {"before": before, "after": os.getloadavg()[0]},
        "settings": {f.name: getattr(settings, f.name) for f in fields(settings) if f.name not in ("work", "versions")},
    }


def read_settings(command: Command) -> Any:
    """Check the options and return them as settings of the benchmark."""
    from siglum.device import check_device
    from siglum.lab.speed.bench import CASES, MODES, PRECISIONS, SYSTEMS, USUAL, SpeedSettings, beyond_paper
    from siglum.recipes import recipe
    from siglum.types import one_of

    if command.out.suffix != ".json":
        raise SiglumError(f"--out is {command.out}, but must be a .json file; the table goes beside it as .md.")
    device = check_device(command.device)
    kind = one_of("device", device.partition(":")[0], CASES)
    search = recipe(command.recipe, one_of("scale", command.scale, ("paper", "tiny"))).search
    rounds, seconds = command.rounds or 0, command.seconds or 0.0
    refused = {
        f"--rounds must be at least 1, not {rounds}.": rounds < 1,
        f"--queries must be at least 1, not {command.queries}.": command.queries < 1,
        f"--threads is {command.threads}, but must be 0 for all cores, or more.": command.threads < 0,
        f"--seconds is {seconds}, but must be a time of 0 or more.": not 0 <= seconds < float("inf"),
        f"{command.run} is not a run folder.": command.run is not None and not command.run.is_dir(),
        "--run brings a model of its own; leave --recipe out.": command.run is not None and command.recipe != "pro",
    }
    for told in (text for text, wrong in refused.items() if wrong):
        raise SiglumError(told)
    usual = "1,8,32" if kind == "cpu" else "1,8,32,256,1024"
    return SpeedSettings(
        work=command.out.with_suffix(".parts"),
        device=device,
        pools=numbers("--pools", command.pools),
        batches=numbers("--batches", command.batches or usual),
        systems=names("system", command.systems, SYSTEMS, SYSTEMS if beyond_paper(search) else USUAL),
        modes=names("mode", command.modes, MODES),
        precisions=names("precision", command.precisions, PRECISIONS),
        rounds=rounds,
        queries=command.queries,
        threads=command.threads or cores(),
        seconds=seconds,
        recipe=command.recipe,
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


def names(what: str, text: str, known: tuple[str, ...], usual: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return names by commas, all of them known; `all` is the usual ones, or every one."""
    from siglum.types import one_of

    return (usual or known) if text == "all" else tuple(one_of(what, part.strip(), known) for part in text.split(","))
