"""`siglum eval`: measure a run on its tasks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from siglum.cli.common import check_device, say


@dataclass(kw_only=True)
class Command:
    """Measure a run's systems on its tasks: dense, scan, geometry and the run's own search.

    Writes TREC runs and qrels to 5-runs and results to 6-report/eval-SPLIT.json. Success@k is what M-BEIR calls
    Recall@k: any relevant item among the first k.

    Example:
      siglum eval runs/mine --split test
    """

    folder: tyro.conf.Positional[Path]
    """The run folder."""
    split: str = "test"
    """val or test."""
    union: bool = False
    """Also ask every task against the union of all pools."""
    k: int = 10
    """Depth of the runs."""
    seed: int = 0
    """Accepted for uniformity; evaluation draws nothing at random."""
    device: str = "cpu"
    """cpu, cuda or mps."""
    json: bool = False
    """Print one JSON document on stdout."""


def run(command: Command) -> dict[str, Any]:
    """Evaluate and print the table."""
    from siglum.cli.tables import results_table
    from siglum.files import write_json
    from siglum.measure.evaluate import Ranker
    from siglum.pipeline import RunFolder, evaluate_run, health_of, open_systems, survival_of

    folder = RunFolder(command.folder)
    name = folder.config().recipe
    systems = open_systems(folder, command.split, check_device(command.device))
    rankers: dict[str, Ranker] = {"dense": systems.dense, "scan": systems.scan, "geometry": systems.geometry}
    if systems.own is not None:
        rankers[name] = systems.own
    found = evaluate_run(folder, systems, rankers, union=command.union, k=command.k)
    result: dict[str, Any] = {
        "run": str(command.folder),
        "split": command.split,
        "tasks": found.tasks,
        "survival": survival_of(systems),
        "health": health_of(systems).as_dict(),
    }
    if command.union:
        result["union"] = found.union
    write_json(
        folder.report / f"eval-{command.split}.json", {key: value for key, value in result.items() if key != "run"}
    )
    if not command.json:
        results_table(found.tasks, list(rankers))
        say("Success@k in per cent (M-BEIR and the paper call it Recall@k)")
    return result
