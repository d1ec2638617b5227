"""One run, measured for its report as far as its stages go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from siglum.config import RunConfig, as_dict, diff
from siglum.data.source import read_source
from siglum.data.vectors import load_vectors
from siglum.files import STAGE_FILE
from siglum.fuse.contrastive import embed, kinds_of
from siglum.fuse.store import load_fusion
from siglum.generate.store import load_decoder, load_query_head
from siglum.log import read_log
from siglum.measure.diagnose import RunDiagnosis, diagnose, sample
from siglum.measure.evaluate import Evaluation, Ranker, evaluate_systems, qrels_of_task, union_rows
from siglum.measure.rankers import FlatRanker
from siglum.measure.systems import open_systems
from siglum.pages.document import MEASURES, Answers, RunResults, token_survival_of
from siglum.recommenders import usual_of
from siglum.run.folder import RunFolder
from siglum.tokenize.store import load_tokenizer
from siglum.types import SiglumError, Task, Vectors

T = TypeVar("T")
SAVED = "saved retriever"
"""What a run is called whose training nobody recorded."""
DIAGNOSED = 1000
"""Queries of the diagnosis unless a number is given."""
STAGES = {
    "vectors": "there are no features yet: `siglum encode` makes them.",
    "dense": "",
    "tokenizer": "there are no codes yet: `siglum tokenize` learns them.",
    "decoder": "there is no decoder yet: `siglum train` trains one; until then distance alone ranks.",
    "index": "there is no index yet, so the run cannot be searched: `siglum index` makes one.",
}
"""Stages of a run, with what to say where one is missing; the dense space comes with the tokenizer."""


class RunMeasurement:
    """One run, measured as far as its stages go; what could not be is kept as a sentence in `notes`."""

    def __init__(self, folder: RunFolder, config: RunConfig, split: str, queries: int, device: str) -> None:
        """Measure all there is; `queries` 0 asks all, and the diagnosis 1,000."""
        self.folder, self.config, self.split, self.queries, self.device = folder, config, split, queries, device
        self.notes: list[str] = []
        self.stages = self._stages()
        self.results = RunResults({}, None, read_source(folder.root), split)
        self.found = Evaluation()
        self.rankers: dict[str, Ranker] = {}
        self.diagnosis: RunDiagnosis | None = None
        self.items = 0
        loaded = self._try("vectors", lambda: load_vectors(folder.vectors))
        if loaded is not None:
            self._measure(*loaded)

    def summary(self, name: str) -> dict[str, Any]:
        """Return all of it as JSON values."""
        times = [record["time"] for record in read_log(self.folder.root / "log.jsonl")]
        trained = datetime.fromtimestamp(max(times), UTC).isoformat(timespec="minutes") if times else None
        known = run_summary(name, self.config, self.results, self.found, self.diagnosis)
        if self.folder.has_search_alone:
            searched = {"search": known["config"]["search"]}
            known |= {"recipe": SAVED, "scale": "", "config": searched, "changed": {}, "changed_known": False}
        return {
            **known,
            "folder": str(self.folder.root),
            "stages": self.stages,
            "notes": self.notes,
            "trained": trained,
            "items": self.items,
            "systems": list(self.rankers),
        }

    def _stages(self) -> dict[str, str]:
        """Return how far each stage is, and note the first that is missing and those that are not whole."""
        places = {name: getattr(self.folder, name) for name in STAGES}
        states = {
            name: "finished" if (place / STAGE_FILE).exists() else "unfinished" if place.exists() else "missing"
            for name, place in places.items()
        }
        for name, words in STAGES.items():
            if words and states[name] == "missing":
                self.notes.append(words)
            elif words and states[name] == "unfinished":
                self.notes.append(f"the stage {places[name].name} is not finished, so what needs it is left out.")
            if name in ("vectors", "tokenizer") and states[name] != "finished":
                break  # what comes after needs it
        return states

    def _try(self, stage: str, work: Callable[[], T]) -> T | None:
        """Do what needs a stage, if it is finished; where it is refused, keep the sentence."""
        if self.stages[stage] != "finished":
            return None
        try:
            return work()
        except SiglumError as error:
            if str(error) not in self.notes:
                self.notes.append(str(error))
            return None

    def _measure(self, vectors: Vectors, made_from: str) -> None:
        tasks = vectors.of_split(self.split)
        if not tasks:
            there = ", ".join(sorted({task.split for task in vectors.tasks})) or "none"
            self.notes.append(f"there are no tasks in split {self.split}, only in {there}; --split names another.")
            return
        self.items = len(union_rows(tasks))
        own = self._open(vectors, made_from)
        tasks = sample(tasks, self.queries)
        self.found = evaluate_systems(vectors, tasks, self.rankers, union=False, measures=MEASURES)
        answers = answers_of(vectors, tasks, self.found) if self.rankers else {}
        self.results = RunResults(answers, own, self.results.source, self.split)
        self.diagnosis = self._try("tokenizer", lambda: self._diagnose(vectors, made_from))

    def _diagnose(self, vectors: Vectors, made_from: str) -> RunDiagnosis:
        """Return where the beam loses its targets, with the decoder where there is one."""
        tokenizer, record = load_tokenizer(self.folder.tokenizer, self.device, vectors=made_from)
        place, dim = self.folder.decoder, tokenizer.quantizer.dim
        parts = self._try(
            "decoder",
            lambda: {
                "decoder": load_decoder(place, record["tokenizer_fingerprint"], self.device),
                "head": load_query_head(place, dim, self.device),
            },
        )
        options: dict[str, Any] = {"queries": self.queries or DIAGNOSED, "device": self.device, **(parts or {})}
        return diagnose(vectors, tokenizer, self.config.search, split=self.split, **options)

    def _open(self, vectors: Vectors, made_from: str) -> str | None:
        """Open all systems there are, and return which of them the run searches with."""
        whole = self.stages["decoder"] != "unfinished"
        systems = self._try("index", lambda: open_systems(self.folder, self.split, self.device)) if whole else None
        if systems is None:
            self._open_flat(vectors, made_from)
            return None
        named: dict[str, Ranker | None] = {
            name: getattr(systems, name) for name in ("dense_raw", "dense", "scan", "geometry")
        }
        if systems.retriever.decoder is None:  # served by geometry, which stands there already
            systems.own = None
        named[self.config.recipe] = systems.own
        self.rankers = {name: ranker for name, ranker in named.items() if ranker is not None}
        return "geometry" if systems.own is None else self.config.recipe

    def _open_flat(self, vectors: Vectors, made_from: str) -> None:
        """Open what needs no index: dense search, and the scan of all reconstructions."""
        device = self.device
        if (fusion := self._try("dense", lambda: load_fusion(self.folder.dense, device))) is not None:
            query_MD, item_ND = (embed(fusion, rows, device) for rows in (vectors.queries, vectors.items))
            self.rankers["dense"] = FlatRanker(query_MD, item_ND)
        opened = self._try("tokenizer", lambda: load_tokenizer(self.folder.tokenizer, device, vectors=made_from))
        if opened is not None:
            space, quantizer = opened[0].fusion, opened[0].quantizer
            codes = quantizer.encode(embed(space, vectors.items, device), kinds_of(vectors.items, device))
            query_MD = embed(space, vectors.queries, device)
            self.rankers["scan"] = FlatRanker(query_MD, quantizer.decode(codes).detach(), squared_distance=True)


def answers_of(vectors: Vectors, tasks: Sequence[Task], found: Evaluation) -> dict[str, Answers]:
    """Return what was found for the queries of every task, by system."""
    return {
        task.name: Answers(
            qrels_of_task(vectors, task),
            len(task.pool_rows),
            {system: found.runs[task.name, system] for system in found.tasks[task.name]},
        )
        for task in tasks
    }


def run_summary(
    name: str, config: RunConfig, results: RunResults, found: Evaluation, diagnosis: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return what a document says of one run; a caller adds where it lies and what it lacks."""
    usual = usual_of(config)
    known = usual is not None
    changed = {} if usual is None else diff(usual, config)
    return {
        "name": name,
        "recipe": config.recipe,
        "scale": config.scale,
        "seed": config.seed,
        "queries": {task: len(answers.qrels) for task, answers in results.tasks.items()},
        "pools": {task: answers.pool for task, answers in results.tasks.items()},
        "own": results.own,
        "tasks": found.tasks,
        "union": found.union,
        "diagnosis": diagnosis,
        "token_survival": token_survival_of(diagnosis) if diagnosis else None,
        "config": as_dict(config),
        "changed": {setting: list(pair) for setting, pair in changed.items()},
        "changed_known": known,
        "trained": None,
    }
