"""The fault campaign: kills, damage, full disks, shared runs and bad input, seeded and resumable.

    python benchmarks/faults.py                              all sections to their bars, at most two hours on two cores
    python benchmarks/faults.py --seconds 60 --seed 3        a slice of all sections; exits with 1 on any fault
    python benchmarks/faults.py --section kills --tries 200  one section
    python benchmarks/faults.py --only 'kills/index --add/17' --seed 3     one trial again, with its traceback

The whole campaign writes benchmarks/results/faults.json and faults.md; docs/faults.md tells more.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from faultlib import campaign

SECTIONS = ("kills", "damages", "disk", "shared", "fuzz")
LIMITS = {"kills": 60.0, "damages": 60.0, "disk": 60.0, "shared": 60.0, "fuzz": 30.0}
"""Seconds of computing, or of standing still, after which a trial counts as hanging."""
SHORT = 20.0
"""The same in a slice."""
RESULTS = Path(__file__).resolve().parent / "results" / "faults.json"
SLICES = {"kills": 0.26, "damages": 0.26, "disk": 0.1, "shared": 0.18, "fuzz": 0.2}
"""Shares of the time of a slice."""


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, help="a slice of all sections, so many seconds of trials")
    parser.add_argument("--section", choices=SECTIONS, action="append", help="only this section; may be repeated")
    parser.add_argument("--tries", type=int, help="so many trials a section instead of its bar")
    parser.add_argument("--only", help="one trial: SECTION/CASE/NUMBER")
    parser.add_argument("--out", type=Path, help="where the document goes; the table lies beside it")
    parser.add_argument("--resume", action="store_true", help="go on after a kill of the campaign")
    parser.add_argument("--workers", type=int, default=2)
    return parser.parse_args(argv)


def scratch_folder() -> Path:
    """Return a new folder in memory where there is room, since every trial syncs, else a temporary one."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 1 << 30
    return Path(tempfile.mkdtemp(prefix="faults-", dir=memory if roomy else None))


def module(section: str) -> ModuleType:
    """Return the module of a section."""
    return importlib.import_module(f"faultlib.{section}")


def prepare(root: Path, seed: int) -> campaign.Base:
    """Make the tiny runs in a process of their own, and open them here."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); from faultlib import campaign; campaign.calm();"
    code += "from pathlib import Path; campaign.make(Path(sys.argv[2]), int(sys.argv[3]))"
    here = str(Path(__file__).resolve().parent)
    with subprocess.Popen([sys.executable, "-c", code, here, str(root / "base"), str(seed)]) as maker:
        importlib.import_module("siglum.search.retriever")  # most of what `load` imports, while they are made
    if maker.returncode:
        raise SystemExit("the runs that trials begin with could not be made.")
    return campaign.load(root / "base")


def run_section(
    base: campaign.Base, name: str, trials: list[campaign.Trial], root: Path, workers: int, seconds: float | None
) -> Iterator[tuple[campaign.Trial, dict[str, Any]]]:
    """Yield the trials of a section with their results, until there are none left or the time is over."""
    from faultlib.forks import run_trials

    section, end = module(name), None if seconds is None else time.monotonic() + seconds

    def act(trial: campaign.Trial, folder: Path) -> dict[str, Any]:
        begun = time.perf_counter()
        result: dict[str, Any] = section.act(base, trial, folder)
        return {**result, "seconds": round(time.perf_counter() - begun, 3)}

    still = itertools.takewhile(lambda _: end is None or time.monotonic() < end, trials)
    limit = LIMITS[name] if seconds is None else SHORT
    for trial, result in run_trials(iter(still), act, root / name, workers=workers, limit=limit):
        yield trial, {"seconds": limit, **result}


def main(argv: list[str] | None = None) -> int:
    """Run the campaign, a slice of it, or one trial."""
    options = parse(argv)
    campaign.calm()
    root, begun = scratch_folder(), time.monotonic()
    try:
        base = prepare(root, options.seed)
        if options.only:
            return show(base, options.only, root)
        return run_campaign(options, base, root, begun)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def run_campaign(options: argparse.Namespace, base: campaign.Base, root: Path, begun: float) -> int:
    """Run the sections and write what they found."""
    from faultlib.results import Journal, summarise, table

    whole = not (options.seconds or options.section or options.tries)
    out = options.out or (RESULTS if whole else root / "faults.json")
    header = {"seed": options.seed, "tries": options.tries}
    journal = Journal(out.with_suffix(".trials.jsonl"), header, options.resume)
    left = options.seconds  # of trials alone: on a slow machine, too, a slice is more than its preparation
    for name in options.section or SECTIONS:
        trials = [t for t in module(name).plan(base, options.tries) if t.id not in journal.done]
        share = None if left is None else left * SLICES[name] / sum(SLICES[n] for n in options.section or SECTIONS)
        for number, (trial, result) in enumerate(run_section(base, name, trials, root, options.workers, share), 1):
            journal.write(trial, result)
            tell(name, number, len(trials), trial, result)
    document = summarise(journal, options.seed, about(journal))
    out.write_text(json.dumps(document, indent=1) + "\n")
    out.with_suffix(".md").write_text(table(document))
    print(table(document))
    if whole:
        journal.path.unlink()
    print(f"{time.monotonic() - begun:.0f} s", file=sys.stderr)
    return 1 if document["faults"] else 0


def about(journal: Any) -> dict[str, Any]:
    """Say what was tried, with what."""
    import torch

    import siglum.files

    spent = sum(line["seconds"] for line in journal.done.values())
    found = sum(bool(line["faults"]) for line in journal.done.values())
    told = f"{len(journal.done):,} trials, {found:,} with a fault; {spent / 60:.0f} minutes of work on one core."
    return {"told": told, "torch": torch.__version__, "format": siglum.files.FORMAT_VERSION}


def tell(name: str, number: int, total: int, trial: campaign.Trial, result: dict[str, Any]) -> None:
    """Say on stderr how far a section is, and name faults when they are found."""
    for one in result["faults"]:
        print(f"{trial.id}: {one['kind']}: {one['what']}", file=sys.stderr)
    if number % 100 == 0 or number == total:
        print(f"{name} {number:,} of {total:,}", file=sys.stderr)


def show(base: campaign.Base, name: str, root: Path) -> int:
    """Do one trial again and print all that is known of its faults."""
    section, _, rest = name.partition("/")
    case, _, number = rest.rpartition("/")
    trial = campaign.Trial(section, case, int(number))
    for _, result in run_section(base, section, [trial], root, 1, None):
        print(json.dumps({key: value for key, value in result.items() if key != "faults"}))
        for one in result["faults"]:
            print(f"{one['kind']}: {one['what']}\n{one.get('trace', '')}")
        return 1 if result["faults"] else 0
    return 2


if __name__ == "__main__":
    sys.exit(main())
