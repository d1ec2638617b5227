"""What the demo measures of its runs, and the report on them: PRO beside GENIUS and PRO without distillation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from siglum.config import RunConfig
from siglum.data.source import read_source
from siglum.files import write_text
from siglum.measure.diagnose import RunDiagnosis, diagnose
from siglum.measure.evaluate import Evaluation, Ranker, Results
from siglum.measure.systems import beam_survival_of, evaluate_run, health_of, open_systems, survival_of
from siglum.pages.document import RunResults, compare_all
from siglum.pages.examples import find_examples
from siglum.pages.measurement import answers_of, run_summary
from siglum.pages.names import name_system
from siglum.pages.report import render_report
from siglum.run.folder import RunFolder
from siglum.run.results import begin_results, keep_results, measured_on, write_result

PRO, GENIUS, NO_PD = "pro", "genius", "pro_without_pd"
DIAGNOSTIC_BEAM = 20
"""Beam of token survival; the paper's diagnostics use 20 too, to make pruning visible."""
FOLLOWED = 100
"""Queries a task whose targets are followed through the real beam."""
UNION_QUERIES = 200
"""Queries a task asked against the union pool: it is three times as large and tells the same story."""


@dataclass(slots=True)
class DemoRun:
    """What was measured of one run."""

    found: Evaluation
    results: RunResults
    survival: list[float]
    beam_survival: dict[str, list[float]]
    health: dict[str, Any]
    diagnosis: RunDiagnosis


def measure(name: str, folder: Path, device: str) -> DemoRun:
    """Evaluate a run's systems: PRO's run also stands for dense, scan and geometry."""
    run = RunFolder(folder)
    systems = open_systems(run, "test", device)
    survival, health = survival_of(systems, DIAGNOSTIC_BEAM), health_of(systems).as_dict()
    rankers: dict[str, Ranker] = {}
    beams = {}
    if name == PRO:
        assert systems.scan is not None and systems.geometry is not None, "residual codes have vectors"
        rankers |= {"dense": systems.dense, "scan": systems.scan, "geometry": systems.geometry}
        beams["geometry"] = beam_survival_of(systems, systems.geometry, queries_per_task=FOLLOWED)
    if systems.own is not None:
        rankers[name] = systems.own
        beams[name] = beam_survival_of(systems, systems.own, queries_per_task=FOLLOWED)
    found = evaluate_run(run, systems, rankers, union_queries=UNION_QUERIES) if rankers else Evaluation()
    tasks, retriever = systems.vectors.of_split("test"), systems.retriever
    answers = answers_of(systems.vectors, tasks, found) if rankers else {}
    results = RunResults(answers, name if systems.own is not None else None, read_source(folder), "test")
    told = diagnose(
        systems.vectors,
        retriever.tokenizer,
        retriever.config,
        decoder=retriever.decoder,
        head=retriever.head,
        queries=FOLLOWED * len(tasks),  # those whose targets are followed above
        device=device,
    )
    return DemoRun(found, results, survival, beams, health, told)


def write_report(pro: RunFolder, measured: dict[str, DemoRun], configs: dict[str, RunConfig]) -> dict[str, Any]:
    """Write report.json and report.html of the demo to PRO's run, and return the former."""
    report = build_report(measured, configs)
    document = build_document(measured, configs, report["gap"])
    results, names = [part.results for part in measured.values()], [run["name"] for run in document["runs"]]
    made_from = measured_on(pro)
    write_result(pro.report / "report.json", report, made_from)
    page = render_report(document, find_examples(results, names, for_the_first=True))
    begin_results(pro.report, ["report.html"])
    write_text(pro.report / "report.html", page)
    keep_results(pro.report, ["report.html"], made_from)
    return report


def build_document(measured: dict[str, DemoRun], configs: dict[str, RunConfig], gap: dict[str, Any]) -> dict[str, Any]:
    """Return the document of the three runs; it is the same wherever and whenever the same demo is made."""
    config, runs = configs[PRO], []
    for name, part in measured.items():
        chance = [min(1.0, DIAGNOSTIC_BEAM / size) for size in configs[name].tokenizer.vocab]
        summary = run_summary(name_system(name), configs[name], part.results, part.found, part.diagnosis)
        summary["token_survival"] = {"beam": DIAGNOSTIC_BEAM, "survival": part.survival, "chance": chance}
        systems = list(next(iter(part.found.tasks.values()), {}))
        stages = ["vectors", "dense", "tokenizer", *["decoder"] * (name != NO_PD), "index"]
        facts = {"stages": dict.fromkeys(stages, "finished"), "notes": [], "items": part.health["items"]}
        place = "." if name == PRO else f"baselines/{name}"
        runs.append({**summary, **facts, "systems": systems, "system": name, "folder": place})
    names, results = [run["name"] for run in runs], [part.results for part in measured.values()]
    ahead, behind = name_system(PRO), name_system(GENIUS)
    return {
        "title": "Siglum on the drawn world",
        "command": f"siglum demo --scale {config.scale} --seed {config.seed}",
        "split": "test",
        "facts": {
            "Queries a task against the union pool": str(UNION_QUERIES),
            "Queries a task followed through the beam": str(FOLLOWED),
        },
        "runs": runs,
        **compare_all(names, results, config.seed),
        "gap": {**gap, "ahead": ahead, "behind": behind},
        "examples_show": f"of every task one that {ahead} and dense search find first and {behind} does not",
    }


def build_report(measured: dict[str, DemoRun], configs: dict[str, RunConfig]) -> dict[str, Any]:
    """Join what was measured into the content of report.json."""
    own, other = measured[PRO].found, measured[GENIUS].found
    tasks, union = (
        {task: {**row, **more[task]} for task, row in results.items()}
        for results, more in ((own.tasks, other.tasks), (own.union, other.union))
    )
    config = configs[PRO]
    sizes = {name: configs[name].tokenizer.vocab for name in (GENIUS, PRO)}
    return {
        "tasks": tasks,
        "union": union,
        "survival": {name: part.survival for name, part in measured.items()},
        "beam_survival": {name: curve for part in measured.values() for name, curve in part.beam_survival.items()},
        "chance": {name: [min(1.0, DIAGNOSTIC_BEAM / size) for size in vocab] for name, vocab in sizes.items()},
        "health": {name: part.health for name, part in measured.items()},
        "gap": gap_closed(tasks),
        "settings": {
            "recipe": config.recipe,
            "scale": config.scale,
            "seed": config.seed,
            "beam": config.search.beam,
            "diagnostic_beam": DIAGNOSTIC_BEAM,
            "omega": config.search.omega,
            "vocab": {name: list(vocab) for name, vocab in sizes.items()},
            "items": config.world.items,
            "queries": {task: len(own.runs[task, PRO]) for task in tasks},
            "union_queries": UNION_QUERIES,
        },
    }


def gap_closed(tasks: Results) -> dict[str, Any]:
    """Return the share of GENIUS' gap to dense search that PRO closes in Success@1, and on how many tasks it wins."""
    rows = [{name: row[name]["success@1"] for name in ("dense", GENIUS, PRO)} for row in tasks.values()]
    gained = sum(row[PRO] - row[GENIUS] for row in rows)
    gap = sum(row["dense"] - row[GENIUS] for row in rows)
    won = sum(row[PRO] > row[GENIUS] for row in rows)
    return {"closed": gained / gap if gap > 0 else 1.0, "tasks_won": won, "tasks": len(rows)}
