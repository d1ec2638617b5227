"""The demo: GENIUS and PRO on the carried world, side by side, and one report."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from siglum.config import RunConfig, diff
from siglum.data.collection import world_collection
from siglum.data.pictures import load_picture
from siglum.data.source import write_source
from siglum.data.world import TASKS, World
from siglum.encode.builtin import BuiltinEncoder
from siglum.files import STAGE_FILE, write_json, write_text
from siglum.log import Reporter, Tick, reporting
from siglum.measure.evaluate import Evaluation, Ranker
from siglum.measure.report import Example, Shown, render_report
from siglum.pipeline import (
    RunFolder,
    beam_survival_of,
    evaluate_run,
    health_of,
    make_decoder,
    make_dense,
    make_index,
    make_tokenizer,
    make_vectors,
    open_systems,
    survival_of,
)
from siglum.recipes import recipe
from siglum.types import Item, Query, SiglumError

T = TypeVar("T")
PRO, GENIUS, NO_PD = "pro", "genius", "pro_without_pd"
RECIPE_OF = {PRO: "pro", GENIUS: "genius", NO_PD: "vs_sf"}
PICTURE_SIZE = 144
DIAGNOSTIC_BEAM = 20
"""Beam of token survival; the paper's diagnostics use 20 too, to make pruning visible."""
FOLLOWED = 100
"""Queries a task whose targets are followed through the real beam."""
UNION_QUERIES = 200
"""Queries a task asked against the union pool: it is three times as large and tells the same story."""


@dataclass(slots=True)
class Measured:
    """What was measured of one run."""

    found: Evaluation
    survival: list[float]
    beam_survival: dict[str, list[float]]
    health: dict[str, Any]


def run_demo(
    out: Path,
    *,
    scale: str,
    seed: int,
    device: str,
    resume: bool,
    say: Callable[[str], None],
    reporter: Reporter | None = None,
) -> dict[str, Any]:
    """Train PRO in `out`, GENIUS and PRO without distillation in `out`/baselines, and write the report.

    The runs are independent once they have the fused space, so they go through two processes of one thread each.
    """
    if not resume:
        _clear(out)
    folders = {PRO: out, GENIUS: out / "baselines" / GENIUS, NO_PD: out / "baselines" / NO_PD}
    configs = {name: with_world_seed(recipe(RECIPE_OF[name], scale, seed)) for name in folders}
    for name, folder in folders.items():
        _continue_only(RunFolder(folder), configs[name])
        RunFolder(folder).write_config(configs[name])
        write_source(folder, "world", items=configs[name].world.items, seed=seed)
    world = World(configs[PRO].world.items, seed)
    pro = RunFolder(out)
    if not _done(pro.vectors):
        say(f"drawing and encoding a world of {world.num_items:,} items")
        variants = configs[PRO].world.variants
        identity = f"world {world.num_items} {seed} {variants}"
        make_vectors(pro, world_collection(world, variants), BuiltinEncoder(), identity=identity, resume=resume)
    if not _done(pro.dense):
        say("training the fused space (dense search)")
        make_dense(pro, device=device, resume=resume)
    for name in (GENIUS, NO_PD):
        _share(pro, RunFolder(folders[name]))
    say("training tokenizers and decoders: PRO, GENIUS, and PRO without distillation")
    _in_parallel(_train, [(name, folders[name], device, resume) for name in folders], reporter)
    say("asking every test query, against its own pool and against the union of all pools")
    jobs = [(name, folders[name], device) for name in folders]
    measured = dict(zip(folders, _in_parallel(_measure, jobs, reporter), strict=True))
    report, found = build_report(measured, configs)
    write_json(pro.report / "report.json", report)
    page = render_report(report, find_examples(world, found), "Siglum on the carried world")
    write_text(pro.report / "report.html", page)
    return report


def _clear(out: Path) -> None:
    """Remove an earlier demo, and nothing else."""
    if not out.exists() or not any(out.iterdir()):
        return
    if not (out / "baselines" / GENIUS).is_dir():
        raise SiglumError(f"{out} is there already and holds no demo; choose another --out.")
    shutil.rmtree(out)


def _continue_only(run: RunFolder, config: RunConfig) -> None:
    """Refuse to go on with a demo of another scale or seed."""
    if (run.root / "config.json").exists():
        changed = diff(run.config(), config)
        if changed:
            name, (was, now) = next(iter(changed.items()))
            raise SiglumError(f"{run.root} was made with {name} {was}, not {now}; start without --resume.")


def with_world_seed(config: RunConfig) -> RunConfig:
    """Return the config with the world drawn from the run's own seed."""
    return replace(config, world=replace(config.world, seed=config.seed))


def _done(folder: Path) -> bool:
    return (folder / STAGE_FILE).exists()


def _share(source: RunFolder, run: RunFolder) -> None:
    """Give a baseline the same vectors and the same fused space."""
    if not run.vectors.exists():
        run.vectors.symlink_to(os.path.relpath(source.vectors, run.root), target_is_directory=True)
    if not _done(run.dense):
        shutil.copytree(source.dense, run.dense, dirs_exist_ok=True)


@dataclass(slots=True)
class _Watched:
    """A worker's reporter: names the run, and ends the worker when its parent is gone (a kill of the demo)."""

    name: str
    inner: Reporter | None
    parent: int

    def __call__(self, tick: Tick) -> None:
        if os.getppid() != self.parent:
            os._exit(1)
        if self.inner is not None:
            self.inner(replace(tick, label=f"{self.name} {tick.label}"))


def _work(task: Callable[..., T], name: str, arguments: Sequence[Any], reporter: Reporter | None, parent: int) -> T:
    torch.set_num_threads(1)
    with reporting(_Watched(name, reporter, parent)):
        return task(*arguments)


def _in_parallel(task: Callable[..., T], jobs: Sequence[tuple[Any, ...]], reporter: Reporter | None) -> list[T]:
    """Run jobs (name, arguments...) in two worker processes and return their results in order."""
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(_work, task, name, (name, *rest), reporter, os.getpid()) for name, *rest in jobs]
        return [future.result() for future in futures]


def _train(name: str, folder: Path, device: str, resume: bool) -> None:
    run = RunFolder(folder)
    if not _done(run.tokenizer):
        make_tokenizer(run, device=device, resume=resume)
    if name != NO_PD and not _done(run.decoder):
        make_decoder(run, device=device, resume=resume)
    if not _done(run.index):
        make_index(run, device=device)


def _measure(name: str, folder: Path, device: str) -> Measured:
    """Evaluate a run's systems: PRO's run also stands for dense, scan and geometry."""
    run = RunFolder(folder)
    systems = open_systems(run, "test", device)
    survival, health = survival_of(systems, DIAGNOSTIC_BEAM), health_of(systems).as_dict()
    rankers: dict[str, Ranker] = {}
    beams = {}
    if name == PRO:
        rankers |= {"dense": systems.dense, "scan": systems.scan, "geometry": systems.geometry}
        beams["geometry"] = beam_survival_of(systems, systems.geometry, queries_a_task=FOLLOWED)
    if systems.own is not None:
        rankers[name] = systems.own
        beams[name] = beam_survival_of(systems, systems.own, queries_a_task=FOLLOWED)
    found = evaluate_run(run, systems, rankers, union_queries=UNION_QUERIES) if rankers else Evaluation()
    return Measured(found, survival, beams, health)


def build_report(measured: dict[str, Measured], configs: dict[str, RunConfig]) -> tuple[dict[str, Any], Evaluation]:
    """Join what was measured into the content of report.json; also return all results with their runs."""
    found = measured[PRO].found
    other = measured[GENIUS].found
    for results, more in ((found.tasks, other.tasks), (found.union, other.union)):
        for task, row in more.items():
            results[task] |= row
    found.runs |= other.runs
    config = configs[PRO]
    sizes = {name: configs[name].tokenizer.vocab for name in (GENIUS, PRO)}
    report: dict[str, Any] = {
        "tasks": found.tasks,
        "union": found.union,
        "survival": {name: part.survival for name, part in measured.items()},
        "beam_survival": {name: curve for part in measured.values() for name, curve in part.beam_survival.items()},
        "chance": {name: [min(1.0, DIAGNOSTIC_BEAM / size) for size in vocab] for name, vocab in sizes.items()},
        "health": {name: part.health for name, part in measured.items()},
        "gap": gap_closed(found),
        "settings": {
            "recipe": config.recipe,
            "scale": config.scale,
            "seed": config.seed,
            "beam": config.search.beam,
            "diagnostic_beam": DIAGNOSTIC_BEAM,
            "omega": config.search.omega,
            "vocab": {name: list(vocab) for name, vocab in sizes.items()},
            "items": config.world.items,
            "queries": {task: len(found.runs[task, PRO]) for task in found.tasks},
            "union_queries": UNION_QUERIES,
        },
    }
    return report, found


def gap_closed(found: Evaluation) -> dict[str, Any]:
    """Return the share of GENIUS' gap to dense search that PRO closes in Success@1, and on how many tasks it wins."""
    rows = [{name: row[name]["success@1"] for name in ("dense", GENIUS, PRO)} for row in found.tasks.values()]
    gained = sum(row[PRO] - row[GENIUS] for row in rows)
    gap = sum(row["dense"] - row[GENIUS] for row in rows)
    won = sum(row[PRO] > row[GENIUS] for row in rows)
    return {"closed": gained / gap if gap > 0 else 1.0, "tasks_won": won, "tasks": len(rows)}


def find_examples(world: World, found: Evaluation) -> list[Example]:
    """Return one query a task, chosen to tell the story: PRO and dense find the target first, GENIUS does not.

    Where there is no such query, one that comes close is shown.
    """
    examples = []
    for task in TASKS:
        runs = {name: found.runs[task, name] for name in ("dense", GENIUS, PRO)}

        def first_right(query: Query, name: str, runs: dict[str, Any] = runs) -> bool:
            hits = runs[name].get(query.id)
            return bool(hits) and hits[0][0] in query.positives

        def dullness(query: Query, right: Callable[[Query, str], bool] = first_right) -> int:
            return (not right(query, PRO)) + right(query, GENIUS) + (not right(query, "dense"))

        query = min(world.queries("test", task), key=dullness)
        hits = {
            name: [_shown(world.item(i), i in query.positives) for i, _ in run[query.id][:3]]
            for name, run in runs.items()
        }
        picture = None if query.image is None else load_picture(query.image, PICTURE_SIZE)
        examples.append(Example(task, query.text, picture, _shown(world.item(query.positives[0]), True), hits))
    return examples


def _shown(item: Item, correct: bool) -> Shown:
    picture: np.ndarray | None = None if item.image is None else load_picture(item.image, PICTURE_SIZE)
    return Shown(item.id, item.text, picture, correct)
