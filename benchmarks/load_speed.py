"""Time to open a run folder: `Retriever.load` after imports, with its files in the page cache.

    python benchmarks/load_speed.py runs/demo --out load.json

One load before the others reads the files in and finishes lazy imports; it is told apart as `first_ms`. Nothing is
searched: what an engine prepares for the first search does not count. On a busy machine `median_cpu_ms` is the number
to trust.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

PARTS = ("2-tokenizer", "3-decoder", "4-index")
"""Stages that a load reads."""


def main() -> None:
    """Measure, write the numbers as JSON to stdout, and to a file where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("--loads", type=int, default=20, help="loads that are timed")
    parser.add_argument("--out", type=Path, help="a .json file")
    options = parser.parse_args()
    if options.loads < 1:
        parser.error("--loads must be at least 1")
    text = json.dumps(measure(options.run, options.loads), indent=1) + "\n"
    sys.stdout.write(text)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text)


def measure(run: Path, loads: int) -> dict[str, Any]:
    """Return the times of loading a run, in milliseconds, and how much there was to read."""
    # As the command line does, and before torch is imported: threads that spin in wait cost a busy machine the most.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from siglum.lab.experiments.machine import describe_machine
    from siglum.search.retriever import Retriever

    def load() -> tuple[float, float, int]:
        start, cpu = perf_counter(), process_time()
        retriever = Retriever.load(run)
        return 1e3 * (perf_counter() - start), 1e3 * (process_time() - cpu), len(retriever.index)

    before = os.getloadavg()[0]
    first, _, items = load()
    timed = [load() for _ in range(loads)]
    times = sorted(taken for taken, _, _ in timed)
    return {
        "items": items,
        "stage_mb": {part: megabytes(run / part) for part in PARTS if (run / part).exists()},
        "loads": loads,
        "first_ms": round(first, 2),
        "median_ms": round(statistics.median(times), 2),
        "p95_ms": round(times[round(0.95 * (loads - 1))], 2),
        "median_cpu_ms": round(statistics.median(cpu for _, cpu, _ in timed), 2),
        "load_average": {"before": before, "after": os.getloadavg()[0]},
        "machine": describe_machine("cpu"),
    }


def megabytes(folder: Path) -> float:
    """Return the size of a stage's files."""
    return round(sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6, 2)


if __name__ == "__main__":
    main()
