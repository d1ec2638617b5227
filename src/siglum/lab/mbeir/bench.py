"""M-BEIR: one universal model and its baselines trained on it, and all of them measured task by task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from siglum.config import RunConfig, as_dict
from siglum.data.trec import write_qrels, write_run
from siglum.data.vectors import load_vectors
from siglum.encode.registry import build_encoder
from siglum.files import fingerprint, read_record, read_stage
from siglum.fuse.store import load_fusion
from siglum.lab.mbeir.layout import MbeirFiles, metric_ks
from siglum.lab.mbeir.reader import read_mbeir
from siglum.measure.evaluate import Ranker, Results, evaluate_systems, qrels_of_task
from siglum.measure.rankers import StreamedBeam, StreamedDense
from siglum.measure.systems import joint_space
from siglum.rootfiles import read_root_json, write_root_json
from siglum.run.claim import is_unused
from siglum.run.coded import item_rows
from siglum.run.folder import RunFolder
from siglum.run.generations import index_record
from siglum.run.results import begin_results, keep_results, measured_on, verify_result, write_result
from siglum.run.stages import SHARED, ensure, make_vectors, settle
from siglum.search.retriever import Retriever
from siglum.types import SiglumError, Task, Vectors

PRO = "pro"
"""The universal model under study; other systems are its baselines, on the same vectors."""
READING = "mbeir.json"
"""What was read, in the run folder: identity of the data, queries asked of each task, and what was left out."""
WORDS = {
    "dense": "training the fused space",
    "tokenizer": "training the tokenizer",
    "decoder": "training the decoder",
    "index": "indexing all candidates",
}
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Reading:
    """What is read of M-BEIR, and how it is encoded."""

    data: Path
    encoder: str
    union: bool = False
    """Whether test queries are asked against the union of all pools."""
    tasks: Sequence[str] | None = None
    prompt: Literal["seeded", "first"] = "seeded"
    seed: int = 0
    strict: bool = False
    workers: int = 1

    def identity(self) -> str:
        """Return what tells this data from other data: files by name and size, and all that chooses from them."""
        layout = MbeirFiles.of(self.data, self.tasks, self.union)
        files = [[str(path.relative_to(layout.root)), path.stat().st_size] for path in layout.files()]
        return fingerprint(files, layout.tasks, layout.union, self.prompt, self.seed, self.encoder)


@dataclass(slots=True)
class MbeirResults:
    """What came of it."""

    reading: dict[str, Any]
    """What is known of the data: asked, notes, skipped."""
    dense_space: str
    tasks: list[Task]
    results: Results
    """system -> task -> measure -> value."""


def run_mbeir(
    root: Path, reading: Reading, configs: Mapping[str, RunConfig], *, device: str, resume: bool, say: Say
) -> MbeirResults:
    """Train PRO in `root` and the baselines in `root`/baselines, as far as they are not there, and measure them."""
    folder = RunFolder(root)
    folders = {name: folder if name == PRO else RunFolder(root / "baselines" / name) for name in configs}
    known = _encode(folder, reading, configs[PRO], device, resume, say)
    for name, one in folders.items():
        _settle(one, configs[name])
        options: dict[str, Any] = {"device": device, "tell": lambda stage, name=name: say(f"{name}: {WORDS[stage]}")}
        if one != folder:
            ensure(one, *SHARED, share=folder, resume=True, **options)
        ensure(one, "tokenizer", "decoder", "index", resume=True, **options)
    vectors, made_from = load_vectors(folder.vectors)
    tasks = vectors.of_split("test")
    lost = set(known["asked"]) - {task.name for task in tasks}
    if lost:
        raise SiglumError(f"no query of {min(lost)} could be encoded with an answer; see that its pictures are there.")
    space, dense = _dense(folder, vectors, device)
    results = {"dense": _measure(folder, "dense", vectors, f"{made_from}-{space}", dense, known["asked"], say)}
    for name, one in folders.items():
        made_of, generative = _generative(one, configs[name], vectors, device)
        results[name] = _measure(one, name, vectors, made_of, generative, known["asked"], say)
    return MbeirResults(known, space, tasks, results)


def _settle(folder: RunFolder, config: RunConfig) -> None:
    settle(folder, config, free=("search.",), remedy="choose another --run")


def _encode(
    folder: RunFolder, reading: Reading, config: RunConfig, device: str, resume: bool, say: Say
) -> dict[str, Any]:
    """Stage 1, unless it is there; return what is known of the data."""
    identity = reading.identity()
    if not is_unused(folder.root):
        if not (folder.root / READING).exists():
            raise SiglumError(f"{folder.root} is there already and holds no M-BEIR run; choose another --run.")
        if not resume:
            raise SiglumError(f"{folder.root} holds an M-BEIR run; go on with --resume, or choose another --run.")
        if read_root_json(folder.root, READING, "identity", "asked", "notes")["identity"] != identity:
            raise SiglumError(
                f"{folder.root} was made from other data, tasks, pool, prompts, seed or encoder; choose another --run."
            )

    def encode() -> None:
        encoder = build_encoder(reading.encoder, device=device)
        if encoder is None:
            raise SiglumError("M-BEIR has to be encoded; give an encoder other than none.")
        collection = read_mbeir(
            reading.data, tasks=reading.tasks, prompt=reading.prompt, seed=reading.seed, union=reading.union
        )
        for note, count in collection.notes.items():
            say(f"{note}: {count:,}")
        asked = Counter(query.task for query in collection.queries["test"])
        write_root_json(folder.root, READING, {"identity": identity, "asked": asked, "notes": collection.notes})
        _settle(folder, config)
        options: dict[str, Any] = {"strict": reading.strict, "resume": resume, "workers": reading.workers}
        make_vectors(folder, collection, encoder, identity=identity, **options)

    ensure(folder, "vectors", makers={"vectors": encode}, resume=resume)
    return {**read_root_json(folder.root, READING), "skipped": read_stage(folder.vectors).get("skipped", 0)}


def _dense(folder: RunFolder, vectors: Vectors, device: str) -> tuple[str, Callable[[], Ranker]]:
    """Return which space dense search is in, and its ranker: the features as they are, where they have one space."""
    if (plain := joint_space(folder, vectors)) is not None:
        return "features", lambda: StreamedDense(plain.to(device), vectors, device)
    return "fused", lambda: StreamedDense(load_fusion(folder.dense, device), vectors, device)


def _generative(
    folder: RunFolder, config: RunConfig, vectors: Vectors, device: str
) -> tuple[str, Callable[[], Ranker]]:
    """Return what a run's results depend on, and its ranker."""
    stages = [read_stage(folder.decoder)["fingerprint"], index_record(folder.index)["fingerprint"]]

    def build() -> Ranker:
        retriever = Retriever.load(folder.root, device=device)
        return StreamedBeam(retriever, vectors, item_rows(vectors, retriever.index))

    return fingerprint(stages, as_dict(config.search)), build


def _measure(
    folder: RunFolder,
    name: str,
    vectors: Vectors,
    made_of: str,
    build: Callable[[], Ranker],
    asked: dict[str, int],
    say: Say,
) -> dict[str, dict[str, float]]:
    """Measure a system task by task, keeping what was measured before; write TREC runs and qrels."""
    path = folder.report / f"mbeir-{name}.json"
    if path.exists():
        verify_result(path)
    done: dict[str, Any] = read_record(path, "made_from", "tasks") if path.exists() else {}
    if done.get("made_from") != made_of:
        done = {"made_from": made_of, "tasks": {}}
    ranker, source = None, measured_on(folder)
    for task in vectors.of_split("test"):
        if task.name in done["tasks"]:
            continue
        say(f"{name}: {task.name}, {len(task.query_rows):,} queries on {len(task.pool_rows):,} candidates")
        ranker, ks = ranker or build(), metric_ks(task.name)
        measures = tuple(f"Success@{k}" for k in ks)
        found = evaluate_systems(vectors, [task], {name: ranker}, k=ks[-1], union=False, measures=measures)
        files = [f"{task.name}.test.qrels", f"{task.name}.test.{name}.trec"]
        begin_results(folder.runs, files)
        write_qrels(folder.runs / files[0], qrels_of_task(vectors, task))
        write_run(folder.runs / files[1], found.runs[task.name, name], tag=name)
        keep_results(folder.runs, files, source)
        # Queries that cannot be answered were left out of the task; in M-BEIR's averages they are misses.
        share = len(task.query_rows) / asked[task.name]
        done["tasks"][task.name] = {key: value * share for key, value in found.tasks[task.name][name].items()}
        write_result(path, done, source)
    results: dict[str, dict[str, float]] = done["tasks"]
    return results
