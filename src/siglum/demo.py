"""The demo: GENIUS and PRO on the carried world, one report."""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from siglum.config import RunConfig
from siglum.data.collection import world_collection
from siglum.data.pictures import load_picture
from siglum.data.world import TASKS, World
from siglum.encode.builtin import BuiltinEncoder
from siglum.files import STAGE_FILE, write_json, write_text
from siglum.fuse.modules import Fusion
from siglum.measure.evaluate import Evaluation, Ranker
from siglum.measure.report import Example, Shown, render_report
from siglum.pipeline import (
    RunFolder,
    Systems,
    beam_survival_of,
    evaluate_run,
    health_of,
    make_decoder,
    make_index,
    make_tokenizer,
    make_vectors,
    open_systems,
    survival_of,
)
from siglum.recipes import recipe
from siglum.tokenize.store import load_tokenizer
from siglum.types import Item, Query

SYSTEMS = ("dense", "scan", "geometry", "genius", "pro")
EXAMPLE_SIZE = 144
EXAMPLES_A_TASK = 1


def run_demo(
    out: Path, *, scale: str, seed: int, device: str, resume: bool, say: Callable[[str], None]
) -> dict[str, Any]:
    """Train PRO in `out`, GENIUS and PRO without distillation in `out`/baselines, and write the report."""
    if not resume and out.exists():
        shutil.rmtree(out)
    pro, genius, no_pd = (
        RunFolder(out),
        RunFolder(out / "baselines" / "genius"),
        RunFolder(out / "baselines" / "pro_without_pd"),
    )
    configs = {name: recipe(name, scale, seed) for name in ("pro", "genius", "vs_sf")}
    pro.write_config(replace(configs["pro"], world=replace(configs["pro"].world, seed=seed)))
    world = World(configs["pro"].world.items, seed)
    if not _done(pro.vectors):
        say(f"drawing and encoding a world of {configs['pro'].world.items:,} items")
        make_vectors(
            pro,
            world_collection(world),
            BuiltinEncoder(),
            identity=f"world {configs['pro'].world.items} {seed} 1",
            resume=resume,
        )
    say("PRO: fused space, tokenizer, decoder, index")
    dense = _train(pro, None, device, resume)
    for folder, name, label in (
        (genius, "genius", "GENIUS"),
        (no_pd, "vs_sf", "PRO without distillation (tokenizer only)"),
    ):
        say(f"{label}: the same fused space to start from")
        folder.write_config(configs[name])
        _link(pro.vectors, folder.vectors)
        _train(folder, dense, device, resume, decoder=name == "genius")
    say("evaluating")
    return _report(pro, genius, no_pd, world, device, configs)


def _done(folder: Path) -> bool:
    return (folder / STAGE_FILE).exists()


def _link(source: Path, link: Path) -> None:
    if not link.exists():
        link.symlink_to(os.path.relpath(source, link.parent), target_is_directory=True)


def _train(run: RunFolder, dense: Fusion | None, device: str, resume: bool, decoder: bool = True) -> Fusion:
    """Make the stages that are not there yet and return the dense fusion module."""
    if _done(run.tokenizer):
        start = load_tokenizer(run.tokenizer, device)[1]
    else:
        start = make_tokenizer(run, dense=copy.deepcopy(dense), device=device, resume=resume)[1]
    if decoder and not _done(run.decoder):
        make_decoder(run, device=device, resume=resume)
    if not _done(run.index):
        make_index(run, device=device)
    return start


def _report(
    pro: RunFolder, genius: RunFolder, no_pd: RunFolder, world: World, device: str, configs: dict[str, RunConfig]
) -> dict[str, Any]:
    ours, theirs, off = (open_systems(run, "test", device) for run in (pro, genius, no_pd))
    assert ours.own is not None and theirs.own is not None
    rankers: dict[str, Ranker] = {
        "dense": ours.dense,
        "scan": ours.scan,
        "geometry": ours.geometry,
        "genius": theirs.own,
        "pro": ours.own,
    }
    found = evaluate_run(pro, ours, rankers)
    evaluate_run(genius, theirs, {"genius": theirs.own}, union=False)
    beam = configs["pro"].search.beam
    sizes = {"genius": configs["genius"].tokenizer.vocab, "pro": configs["pro"].tokenizer.vocab}
    report: dict[str, Any] = {
        "tasks": found.tasks,
        "union": found.union,
        "survival": {"genius": survival_of(theirs), "pro": survival_of(ours), "pro_without_pd": survival_of(off)},
        "beam_survival": {
            "geometry": beam_survival_of(ours, ours.geometry),
            "genius": beam_survival_of(theirs, theirs.own),
            "pro": beam_survival_of(ours, ours.own),
        },
        "chance": {name: [min(1.0, beam / size) for size in vocab] for name, vocab in sizes.items()},
        "health": {"genius": health_of(theirs).as_dict(), "pro": health_of(ours).as_dict()},
        "gap": gap_closed(found),
        "settings": {
            "scale": configs["pro"].scale,
            "seed": configs["pro"].seed,
            "beam": beam,
            "omega": configs["pro"].search.omega,
            "vocab": {name: list(vocab) for name, vocab in sizes.items()},
            "items": configs["pro"].world.items,
            "queries": {task.name: len(task.query_rows) for task in ours.vectors.of_split("test")},
        },
    }
    write_json(pro.report / "report.json", report)
    write_text(
        pro.report / "report.html",
        render_report(report, find_examples(world, ours, found), "Siglum on the carried world"),
    )
    return report


def gap_closed(found: Evaluation) -> dict[str, Any]:
    """Return the share of GENIUS' gap to dense search that PRO closes in Success@1, and on how many tasks it wins."""
    rows = [{name: row[name]["success@1"] for name in ("dense", "genius", "pro")} for row in found.tasks.values()]
    gained, gap = sum(row["pro"] - row["genius"] for row in rows), sum(row["dense"] - row["genius"] for row in rows)
    return {
        "closed": gained / gap if gap > 0 else 1.0,
        "tasks_won": sum(row["pro"] > row["genius"] for row in rows),
        "tasks": len(rows),
    }


def find_examples(world: World, systems: Systems, found: Evaluation) -> list[Example]:
    """Return one query a task that tells the story: PRO finds its target first where GENIUS does not, if there is one."""
    examples = []
    for task in TASKS:
        queries = world.queries("test", task)
        runs = {name: found.runs[task, name] for name in ("dense", "genius", "pro")}

        def telling(query: Query, runs: dict[str, Any] = runs) -> tuple[bool, bool]:
            first = {
                name: run[query.id][0][0] in query.positives if run.get(query.id) else False
                for name, run in runs.items()
            }
            return (not (first["pro"] and not first["genius"]), not first["dense"])

        for query in sorted(queries, key=telling)[:EXAMPLES_A_TASK]:
            hits = {
                name: [_shown(world.item(i), i in query.positives) for i, _ in runs[name][query.id][:3]]
                for name in runs
            }
            picture = None if query.image is None else load_picture(query.image, EXAMPLE_SIZE)
            examples.append(Example(task, query.text, picture, _shown(world.item(query.positives[0]), True), hits))
    return examples


def _shown(item: Item, correct: bool) -> Shown:
    picture: np.ndarray | None = None if item.image is None else load_picture(item.image, EXAMPLE_SIZE)
    return Shown(item.id, item.text, picture, correct)
