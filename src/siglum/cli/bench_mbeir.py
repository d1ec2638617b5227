"""`siglum bench mbeir`: train one universal model on M-BEIR and measure it on the paper's nine tasks."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from siglum.cli.common import override, say, write_document
from siglum.device import check_device
from siglum.types import SiglumError

if TYPE_CHECKING:
    from siglum.config import RunConfig
    from siglum.data.mbeir_layout import Layout
    from siglum.measure.evaluate import Ranker
    from siglum.pipeline import RunFolder
    from siglum.types import Vectors

READING = "mbeir.json"
"""What was read, in the run folder: identity of the data, queries asked of each task, and what was left out."""


@dataclass(kw_only=True)
class Command:
    """Train one universal model on M-BEIR and measure it, dense search beside it, on the paper's nine tasks.

    Encodes, trains tokenizer and decoder, builds the index and evaluates; --resume keeps what is finished. Writes OUT
    (JSON) and, beside it, a Markdown table in which the paper's rows are marked as quoted and ours as measured.

    Examples:
      siglum bench mbeir --data M-BEIR --encoder uniir-clip-sf:clip_sf_large.pth --out mbeir.json --device cuda
      siglum bench mbeir --data M-BEIR --encoder builtin --scale tiny --tasks nights_task4 --out try.json
    """

    data: Path
    """M-BEIR's folder, with query, cand_pool, qrels, instructions and mbeir_images."""
    encoder: str
    """Which encoder makes the features, such as uniir-clip-sf:clip_sf_large.pth."""
    out: Path
    """Where results go, a .json file; the table goes beside it as .md."""
    run: Path = Path("runs/mbeir")
    """The run folder."""
    scale: str = "paper"
    """tiny, demo, small, captions_small, captions or paper."""
    pool: Literal["local", "union"] = "local"
    """Ask test queries against their task's pool, as the paper does, or against the union of all pools."""
    tasks: tuple[str, ...] = ()
    """Tasks such as mscoco_task0; the paper's nine unless given, all for M-BEIR's sixteen."""
    prompt: Literal["seeded", "first"] = "seeded"
    """Which instruction a query gets: drawn by seed, or the first one."""
    against: tuple[Literal["genius", "genius_original"], ...] = ()
    """Baselines to train and measure too, on the same vectors."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Override a setting of all systems, such as --set decoder.epochs=3; may be repeated."""
    seed: int = 0
    """Seed of training, of the prompts and of the choice among a query's positives."""
    device: str = "cpu"
    """cpu, cuda or mps."""
    workers: int = 4
    """Threads that decode pictures."""
    strict: bool = False
    """Refuse unreadable pictures instead of skipping and counting them."""
    resume: bool = False
    """Keep finished stages and measured tasks, and continue a killed stage."""
    json: bool = False
    """Print one JSON document on stdout."""


def run(command: Command) -> dict[str, Any]:
    """Make every stage that is not there yet, measure, and write the table."""
    from siglum.cli.mbeir_table import build_report, markdown
    from siglum.data.vectors import load_vectors
    from siglum.pipeline import RunFolder
    from siglum.recipes import recipe

    if command.out.suffix != ".json":
        raise SiglumError(f"--out is {command.out}, but must be a .json file; the table goes beside it as .md.")
    device = check_device(command.device)
    folder = RunFolder(command.run)
    folders, recipes = {"pro": folder}, {"pro": "mbeir"}
    for baseline in command.against:
        folders[baseline], recipes[baseline] = RunFolder(folder.root / "baselines" / baseline), baseline
    configs = {name: override(recipe(recipes[name], command.scale, command.seed), command.set) for name in folders}
    reading = _encode(command, folder, configs["pro"], device)
    for name, one in folders.items():
        _continue_only(one, configs[name])
        _train(name, one, folder, device, command.resume)
    vectors, made_from = load_vectors(folder.vectors)
    lost = set(reading["asked"]) - {task.name for task in vectors.of_split("test")}
    if lost:
        raise SiglumError(f"no query of {min(lost)} could be encoded with an answer; see that its pictures are there.")
    space, dense = _dense(folder, vectors, device)
    results = {"dense": _measure(folder, "dense", vectors, f"{made_from}-{space}", dense, reading["asked"])}
    for name, one in folders.items():
        mark, generative = _generative(one, configs[name], vectors, device)
        results[name] = _measure(one, name, vectors, mark, generative, reading["asked"])
    facts = {
        "encoder": command.encoder,
        "dense_space": space,
        "recipe": "mbeir",
        "scale": command.scale,
        "pool": command.pool,
        "prompt": command.prompt,
        "seed": command.seed,
        "settings": list(command.set),
    }
    report = build_report(facts, reading, vectors.of_split("test"), results)
    write_document(command.out, report, markdown(report))
    return report


def _encode(command: Command, folder: RunFolder, config: RunConfig, device: str) -> dict[str, Any]:
    """Stage 1, unless it is there; return what is known of the data."""
    from siglum.data.mbeir import read_mbeir
    from siglum.data.mbeir_layout import Layout
    from siglum.encode.registry import build_encoder
    from siglum.files import STAGE_FILE, read_record, write_json
    from siglum.pipeline import make_vectors

    union, tasks = command.pool == "union", command.tasks or None
    identity = _identity(command, Layout.of(command.data, tasks, union))
    record = folder.root / READING
    if folder.root.exists() and any(folder.root.iterdir()):
        if not record.exists():
            raise SiglumError(f"{folder.root} is there already and holds no M-BEIR run; choose another --run.")
        if not command.resume:
            raise SiglumError(f"{folder.root} holds an M-BEIR run; go on with --resume, or choose another --run.")
        if read_record(record, "identity", "asked", "notes")["identity"] != identity:
            raise SiglumError(
                f"{folder.root} was made from other data, tasks, pool, prompts, seed or encoder; choose another --run."
            )
    if not (folder.vectors / STAGE_FILE).exists():
        encoder = build_encoder(command.encoder, device=device)
        if encoder is None:
            raise SiglumError("M-BEIR has to be encoded; give an encoder other than none.")
        collection = read_mbeir(command.data, tasks=tasks, prompt=command.prompt, seed=command.seed, union=union)
        for note, count in collection.notes.items():
            say(f"{note}: {count:,}")
        asked = Counter(query.task for query in collection.queries["test"])
        write_json(record, {"identity": identity, "asked": asked, "notes": collection.notes})
        _continue_only(folder, config)
        make_vectors(
            folder,
            collection,
            encoder,
            identity=identity,
            strict=command.strict,
            resume=command.resume,
            workers=command.workers,
        )
    skipped = read_record(folder.vectors / STAGE_FILE).get("skipped", 0)
    return {**read_record(record), "skipped": skipped}


def _identity(command: Command, layout: Layout) -> str:
    """Return what tells this data from other data: files by name and size, and everything that chooses from them."""
    from siglum.files import fingerprint

    files = [[str(path.relative_to(layout.root)), path.stat().st_size] for path in layout.files()]
    return fingerprint(files, layout.tasks, layout.union, command.prompt, command.seed, command.encoder)


def _continue_only(folder: RunFolder, config: RunConfig) -> None:
    """Write the run's config, refusing to go on with a run of other settings; those of search may change."""
    from siglum.config import diff

    if (folder.root / "config.json").exists():
        for name, (was, now) in diff(folder.config(), config).items():
            if name.startswith("search."):
                continue
            raise SiglumError(f"{folder.root} was made with {name} {was}, not {now}; choose another --run.")
    folder.write_config(config)


def _train(name: str, folder: RunFolder, source: RunFolder, device: str, resume: bool) -> None:
    """Stages 2 to 4 that are not there yet; a baseline takes the vectors and the dense space of `source`."""
    from siglum.files import STAGE_FILE
    from siglum.pipeline import make_decoder, make_index, make_tokenizer

    if folder != source:
        if not folder.vectors.exists():
            folder.vectors.symlink_to(os.path.relpath(source.vectors, folder.root), target_is_directory=True)
        if not (folder.dense / STAGE_FILE).exists():
            shutil.copytree(source.dense, folder.dense, dirs_exist_ok=True)
    if not (folder.tokenizer / STAGE_FILE).exists():
        say(f"{name}: training the tokenizer")
        make_tokenizer(folder, device=device, resume=resume)
    if not (folder.decoder / STAGE_FILE).exists():
        say(f"{name}: training the decoder")
        make_decoder(folder, device=device, resume=resume)
    if not (folder.index / STAGE_FILE).exists():
        say(f"{name}: indexing the pools")
        make_index(folder, device=device)


def _dense(folder: RunFolder, vectors: Vectors, device: str) -> tuple[str, Callable[[], Ranker]]:
    """Return which space dense search is in, and its ranker: the features as they are, where they have one space."""
    from siglum.files import open_stage
    from siglum.fuse.modules import plain_sum
    from siglum.fuse.store import load_fusion
    from siglum.measure.stream import StreamedDense

    fusion = plain_sum(vectors.items.image.shape[1], vectors.items.text.shape[1])
    if fusion is not None and open_stage(folder.vectors, "vectors").get("joint"):
        plain = fusion.to(device)
        return "features", lambda: StreamedDense(plain, vectors, device)
    return "fused", lambda: StreamedDense(load_fusion(folder.dense, device), vectors, device)


def _generative(
    folder: RunFolder, config: RunConfig, vectors: Vectors, device: str
) -> tuple[str, Callable[[], Ranker]]:
    """Return what a run's results depend on, and its ranker."""
    from siglum.config import as_dict
    from siglum.files import STAGE_FILE, fingerprint, read_record
    from siglum.measure.evaluate import union_rows
    from siglum.measure.stream import StreamedBeam
    from siglum.search.retriever import Retriever

    stages = [read_record(part / STAGE_FILE, "fingerprint")["fingerprint"] for part in (folder.decoder, folder.index)]

    def build() -> Ranker:
        retriever = Retriever.load(folder.root, device=device)
        return StreamedBeam(retriever, vectors, union_rows(vectors.of_split("test")))

    return fingerprint(stages, as_dict(config.search)), build


def _measure(
    folder: RunFolder,
    name: str,
    vectors: Vectors,
    mark: str,
    build: Callable[[], Ranker],
    asked: dict[str, int],
) -> dict[str, dict[str, float]]:
    """Measure a system task by task, keeping what was measured before; write TREC runs and qrels."""
    from siglum.data.mbeir import metric_ks
    from siglum.data.trec import write_qrels, write_run
    from siglum.files import read_record, write_json
    from siglum.measure.evaluate import evaluate_systems, qrels_of_task

    path = folder.report / f"mbeir-{name}.json"
    done: dict[str, Any] = read_record(path, "made_from", "tasks") if path.exists() else {}
    if done.get("made_from") != mark:
        done = {"made_from": mark, "tasks": {}}
    ranker = None
    for task in vectors.of_split("test"):
        if task.name in done["tasks"]:
            continue
        say(f"{name}: {task.name}, {len(task.query_rows):,} queries on {len(task.pool_rows):,} candidates")
        ranker, ks = ranker or build(), metric_ks(task.name)
        measures = tuple(f"Success@{k}" for k in ks)
        found = evaluate_systems(vectors, [task], {name: ranker}, k=ks[-1], union=False, measures=measures)
        write_qrels(folder.runs / f"{task.name}.test.qrels", qrels_of_task(vectors, task))
        write_run(folder.runs / f"{task.name}.test.{name}.trec", found.runs[task.name, name], tag=name)
        # Queries that cannot be answered were left out of the task; in M-BEIR's averages they are misses.
        share = len(task.query_rows) / asked[task.name]
        done["tasks"][task.name] = {key: value * share for key, value in found.tasks[task.name][name].items()}
        write_json(path, done)
    results: dict[str, dict[str, float]] = done["tasks"]
    return results
