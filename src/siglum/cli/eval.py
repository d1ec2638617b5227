"""`siglum eval`: measure a run on its tasks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from siglum.console.commands import OneRun, WritingVerb, say
from siglum.device import check_device
from siglum.types import SiglumError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from siglum.run.folder import RunFolder


@dataclass(kw_only=True)
class Command(OneRun, WritingVerb):
    """Measure a run's systems on its tasks: dense, scan, geometry and the run's own search.

    Writes TREC runs and qrels to 5-runs and results to 6-report/eval-SPLIT.json. Success@k is what M-BEIR calls
    Recall@k: any relevant item among the first k.

    Examples:
      siglum eval runs/mine --split test
      siglum eval runs/mine --against runs/other
    """

    split: str = "test"
    """val or test."""
    union: bool = False
    """Also ask every task against the union of all pools."""
    k: int = 10
    """Depth of the runs."""
    against: Path | None = None
    """Compare with another run, evaluated before: paired randomisation test over queries, clustered by item."""


def run(command: Command) -> dict[str, Any]:
    """Evaluate and print the table."""
    from siglum.console.tables import results_table
    from siglum.measure.systems import beam_survival_of, evaluate_run, health_of, open_systems, survival_of
    from siglum.run.folder import RunFolder
    from siglum.run.results import measured_on, write_result

    folder = RunFolder(command.folder)
    systems = open_systems(folder, command.split, check_device(command.device))
    if systems.missing:
        lack = f"{systems.missing:,} of the {len(systems.rows):,} items of the pools"
        say(f"the index lacks {lack}, so that no beam finds them; `siglum index {command.folder}` indexes all")
    rankers = systems.rankers()
    found = evaluate_run(folder, systems, rankers, union=command.union, k=command.k)
    result: dict[str, Any] = {
        "run": str(command.folder),
        "split": command.split,
        "tasks": found.tasks,
        "survival": survival_of(systems),
        "health": health_of(systems).as_dict(),
    }
    if systems.own is not None:
        result["beam_survival"] = beam_survival_of(systems, systems.own)
    if command.union:
        result["union"] = found.union
    if command.against is not None:
        result["against"] = compare(folder, RunFolder(command.against), command.split, list(found.tasks))
    kept = {key: value for key, value in result.items() if key != "run"}
    write_result(folder.report / f"eval-{command.split}.json", kept, measured_on(folder))
    if not command.json:
        results_table(found.tasks, list(rankers))
        _tell(result)
    return result


def _tell(result: dict[str, Any]) -> None:
    say("Success@k in per cent (M-BEIR and the paper call it Recall@k)")
    for title, key in (("token survival, level by level", "survival"), ("targets in the beam", "beam_survival")):
        if result.get(key):
            say(f"{title:<32}" + " ".join(f"{100 * share:3.0f}" for share in result[key]))
    health = result["health"]
    usage = " ".join(f"{100 * level['usage']:3.0f}" for level in health["levels"])
    say(f"{'codewords used':<32}{usage}")
    say(f"{'items sharing all their codes':<32}{100 * health['collision_rate']:.1f} %")
    for task, row in result.get("against", {}).items():
        say(f"{task or 'all':<32}{100 * row['difference']:+.1f} points in Success@1, p = {row['p']:.4f}")


def compare(folder: RunFolder, other: RunFolder, split: str, tasks: Iterable[str]) -> dict[str, dict[str, float]]:
    """Compare two evaluated runs task by task in Success@1; queries of one item are flipped together.

    Rankings that are damaged, or were made before their run was changed, are refused.
    """
    from siglum.data.trec import read_qrels, read_run
    from siglum.measure.retrieval import per_query
    from siglum.measure.significance import paired_randomisation
    from siglum.run.results import refuse_stale

    result = {}
    for task in sorted(name or "all" for name in tasks):
        path = folder.runs / f"{task}.{split}.qrels"
        refuse_stale(folder, path, split)
        qrels, values = read_qrels(path), []
        for run in (folder, other):
            name = run.runs / f"{task}.{split}.{run.config().recipe}.trec"
            if not name.exists():
                raise SiglumError(f"{name} does not exist; run `siglum eval {run.root} --split {split}` first.")
            refuse_stale(run, name, split)
            values.append(per_query(read_run(name), qrels, ("Success@1",))["success@1"])
        clusters = {query: min(found) for query, found in qrels.items()}
        test = paired_randomisation(values[0], values[1], clusters=clusters)
        result[task] = {"difference": test.difference, "p": test.p}
    return result
