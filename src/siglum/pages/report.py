"""The report: runs as one HTML page that needs nothing beside itself, side by side where there are several.

Equal input gives equal bytes. What a run does not have yet is left out, and the page says what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any, TypedDict

from siglum.device import check_device
from siglum.files import write_text
from siglum.given import as_file, as_folder
from siglum.pages.document import (
    COLUMNS,
    Document,
    RunSummary,
    compare_all,
    differing,
    flatten,
    mean_of,
    name_runs,
    own_rung,
)
from siglum.pages.examples import RunExample, find_examples
from siglum.pages.experiments import FinishedExperiment, read_experiments
from siglum.pages.losses import find_losses
from siglum.pages.names import NAMES, in_order
from siglum.pages.render import listed, render
from siglum.pages.results import find_results, gap_closed, rank_runs
from siglum.run.folder import RunFolder
from siglum.types import SiglumError, one_of, whole_number


class Report(TypedDict):
    """What `report` measured, as JSON values; docs/report.md says what they are."""

    command: str
    made: str
    machine: Mapping[str, Any] | None
    split: str
    runs: list[dict[str, Any]]
    """Results, settings and diagnosis of each run."""
    reference: str
    """The run that others are compared with."""
    differences: dict[str, dict[str, dict[str, dict[str, float]]]]
    """By run, task and measure: what it has more than the reference, with the ends of a 95 % interval."""
    experiments: dict[str, Any]
    seconds: float


def report(
    runs: str | Path | Sequence[str | Path],
    *,
    out: str | Path | None = None,
    split: str = "test",
    queries: int = 0,
    experiments: str | Path | None = None,
    seed: int = 0,
    device: str = "auto",
    command: str = "",
    machine: Mapping[str, Any] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """Measure one run or several, write the page about them to `out`, and return its document.

    At most `queries` queries of a run are asked, 0 asks all; `experiments` is a folder of finished ones to be shown
    too, and `seed` is that of the resamples behind the intervals. `command` and `machine` tell how the page was made.

    Example: `siglum.report(["runs/mine", "runs/other"], out="report.html")["differences"]`.
    """
    from siglum.pages.measurement import RunMeasurement

    begun, device = perf_counter(), check_device(device)
    folders = [as_folder(run) for run in (runs if isinstance(runs, Sequence) and not isinstance(runs, str) else [runs])]
    if not folders:
        raise SiglumError("report needs at least one run folder, such as `siglum report runs/demo`.")
    one_of("split", split, ("val", "test"))
    queries, seed = whole_number("queries", queries, 0), whole_number("seed", seed, 0)
    experiments = None if experiments is None else as_folder(experiments)
    names, configs = name_runs(folders), [RunFolder(folder).config() for folder in folders]
    finished = [] if experiments is None else read_experiments(experiments)
    measured = []
    for folder, config in zip(folders, configs, strict=True):
        say(f"measuring {folder}")
        measured.append(RunMeasurement(RunFolder(folder), config, split, queries, device))
    results = [one.results for one in measured]
    document: Report = {
        "command": command,
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "split": split,
        "runs": [one.summary(name) for one, name in zip(measured, names, strict=True)],
        **compare_all(names, results, seed),  # type: ignore[typeddict-item]
        "experiments": {experiment.name: experiment.results for experiment in finished},
        "seconds": round(perf_counter() - begun, 1),
    }
    if out is not None:
        write_text(as_file(out), render_report(document, find_examples(results, names), finished))
    return document


def render_report(
    document: Document, examples: Sequence[RunExample] = (), experiments: Sequence[FinishedExperiment] = ()
) -> str:
    """Return the page about the runs of a document, with example queries and experiments where there are some."""
    runs: Sequence[RunSummary] = document["runs"]
    if not runs:
        raise SiglumError("there are no runs to report on; give at least one.")
    names, flat = [run["name"] for run in runs], [flatten(run["config"]) for run in runs]
    systems = {system for run in runs for system in (*run["systems"], run.get("system"))}
    return render(
        "report.html.j2",
        title=document.get("title") or listed(names),
        document=document,
        ranked=rank_runs(runs),
        closed=gap_closed(document),
        measures=COLUMNS,
        mean_of=mean_of,
        own_rung=own_rung,
        found=find_results(document),
        losses=find_losses(document),
        systems=in_order(systems.intersection(NAMES), NAMES),
        examples=examples,
        settings=flat,
        differing=differing(flat),
        experiments=experiments,
    )
