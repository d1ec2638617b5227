"""`siglum report`: one page about one run, or about several side by side."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import tyro

from siglum.cli.common import say
from siglum.device import check_device
from siglum.types import SiglumError, one_of

if TYPE_CHECKING:
    from siglum.config import RunConfig
    from siglum.measure.evaluate import Ranker
    from siglum.measure.run_report import Asked
    from siglum.pipeline import RunFolder
    from siglum.types import Vectors

T = TypeVar("T")
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


@dataclass(kw_only=True)
class Command:
    """Make one page (HTML, nothing beside it) about one run, or about several side by side.

    It has the results of all systems by task, paired differences against the first run with intervals, where targets
    are lost and what to do about it (as `siglum diagnose` tells), example queries with their pictures, the settings
    and how they differ, versions and hardware. Stages that are missing make the page shorter. Runs are only read.

    Examples:
      siglum report runs/demo --out report.html
      siglum report runs/demo runs/demo/baselines/genius --out compare.html
      siglum report runs/mine --split val --queries 500 --experiments runs/paper --json
    """

    folders: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders; the others are compared with the first that can be searched."""
    out: Path | None = None
    """Where the page goes (missing folders are made); report.html if nothing is said, and no page with --json alone."""
    split: str = "test"
    """val or test."""
    queries: int = 0
    """How many queries to ask a run in all, evenly spread over the tasks; 0 asks all, and the diagnosis 1,000."""
    experiments: Path | None = None
    """Also show the finished experiments of this folder, which `siglum experiment --out` wrote."""
    seed: int = 0
    """Seed of the resamples behind the intervals."""
    device: str = "cpu"
    """cpu, cuda or mps."""
    json: bool = False
    """Print the same numbers as one JSON document on stdout."""


def run(command: Command) -> dict[str, Any]:
    """Measure the runs, write the page and return its numbers."""
    from time import perf_counter

    from siglum.files import write_text
    from siglum.measure.run_examples import find_examples
    from siglum.measure.run_experiments import read_experiments
    from siglum.measure.run_page import render_run_report
    from siglum.pipeline import RunFolder

    begun = perf_counter()
    names, device = _check(command), check_device(command.device)
    folders = [RunFolder(folder) for folder in command.folders]
    configs = [folder.config() for folder in folders]
    experiments = [] if command.experiments is None else read_experiments(command.experiments)
    portraits, asked = [], []
    for name, folder, config in zip(names, folders, configs, strict=True):
        say(f"measuring {folder.root}")
        found = _Measurement(folder, config, command.split, command.queries, device)
        portraits.append({"name": name, **found.portrait()})
        asked.append(found.asked)
    document = {
        **_head(command, device),
        "runs": portraits,
        **_compare(names, asked, command.seed),
        "experiments": {experiment.name: experiment.results for experiment in experiments},
    }
    examples = find_examples(asked, names)
    document["seconds"] = round(perf_counter() - begun, 1)
    page = command.out or (None if command.json else Path("report.html"))
    if page is not None:
        write_text(page, render_run_report(document, examples, experiments))
    for portrait in portraits:
        for note in portrait["notes"]:
            say(f"{portrait['name']}: {note}")
    if page is not None:
        say(f"page: {page}")
    return document


def _check(command: Command) -> list[str]:
    """Refuse what cannot be reported on before anything is measured; return the names of the runs."""
    from siglum.measure.run_report import name_runs

    if not command.folders:
        raise SiglumError("report needs at least one run folder, such as `siglum report runs/demo`.")
    one_of("split", command.split, ("val", "test"))
    if command.queries < 0:
        raise SiglumError(f"--queries must be 0 (all) or more, not {command.queries}.")
    return name_runs(command.folders)


def _head(command: Command, device: str) -> dict[str, Any]:
    """Return how, when and where the page is made."""
    from datetime import UTC, datetime

    from siglum.experiment.machine import describe_machine

    made = datetime.now(UTC).isoformat(timespec="seconds")
    return {"command": as_typed(command), "made": made, "machine": describe_machine(device), "split": command.split}


def _compare(names: list[str], asked: list[Asked], seed: int) -> dict[str, Any]:
    """Return the run that others are compared with, and what they have more or less."""
    from siglum.measure.run_report import compare

    # A run that cannot be searched yet is no measure of others.
    first = next((place for place, one in enumerate(asked) if one.own), 0)
    others = [(name, one) for place, (name, one) in enumerate(zip(names, asked, strict=True)) if place != first]
    return {"reference": names[first], "differences": {name: compare(asked[first], one, seed) for name, one in others}}


def as_typed(command: Command) -> str:
    """Return the command line that makes the page again.

    >>> as_typed(Command(folders=(Path("runs/a"),), queries=50))
    'siglum report runs/a --split test --queries 50 --seed 0 --device cpu'
    """
    words = ["siglum", "report", *map(str, command.folders)]
    for name in ("out", "split", "queries", "experiments", "seed", "device"):
        value = getattr(command, name)
        words += [] if value is None else [f"--{name}", str(value)]
    return shlex.join(words)


class _Measurement:
    """One run, measured as far as its stages go; what could not be is kept as a sentence."""

    def __init__(self, folder: RunFolder, config: RunConfig, split: str, queries: int, device: str) -> None:
        from siglum.data.source import read_source
        from siglum.data.vectors import load_vectors
        from siglum.measure.run_report import Asked

        self.folder, self.config, self.split, self.queries, self.device = folder, config, split, queries, device
        self.notes: list[str] = []
        self.stages = self._stages()
        self.asked = Asked({}, None, read_source(folder.root), split)
        self.results: dict[str, Any] = {}
        self.rankers: dict[str, Ranker] = {}
        self.diagnosis: dict[str, Any] | None = None
        self.items = 0
        loaded = self._try("vectors", lambda: load_vectors(folder.vectors))
        if loaded is not None:
            self._measure(*loaded)

    def _stages(self) -> dict[str, str]:
        """Return how far each stage is, and note the first that is missing and those that are not whole."""
        from siglum.files import STAGE_FILE

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
        from siglum.measure.diagnose import diagnose, sample
        from siglum.measure.evaluate import evaluate_systems, qrels_of_task, union_rows
        from siglum.measure.run_report import ASKED, Answers, Asked
        from siglum.tokenize.store import load_tokenizer

        tasks = vectors.of_split(self.split)
        if not tasks:
            there = ", ".join(sorted({task.split for task in vectors.tasks})) or "none"
            self.notes.append(f"there are no tasks in split {self.split}, only in {there}; --split names another.")
            return
        self.items = len(union_rows(tasks))
        own = self._open(vectors, made_from)
        asked = sample(tasks, self.queries)
        found = evaluate_systems(vectors, asked, self.rankers, union=False, measures=ASKED)
        self.results = found.tasks
        answers = {
            task.name: Answers(
                qrels_of_task(vectors, task),
                len(task.pool_rows),
                {name: found.runs[task.name, name] for name in self.rankers},
            )
            for task in asked
        }
        self.asked = Asked(answers if self.rankers else {}, own, self.asked.source, self.split)
        opened = self._try("tokenizer", lambda: load_tokenizer(self.folder.tokenizer, self.device, vectors=made_from))
        if opened is not None:
            tokenizer, record = opened
            parts = self._try(
                "decoder", lambda: self._decoder(record["tokenizer_fingerprint"], tokenizer.quantizer.dim)
            )
            self.diagnosis = self._try(
                "tokenizer",
                lambda: diagnose(
                    vectors,
                    tokenizer,
                    self.config.search,
                    split=self.split,
                    queries=self.queries or DIAGNOSED,
                    device=self.device,
                    **(parts or {}),
                ),
            )

    def _decoder(self, tokenizer: str, dim: int) -> dict[str, Any]:
        from siglum.generate.store import load_decoder, load_query_head

        decoder = load_decoder(self.folder.decoder, tokenizer, self.device)
        return {"decoder": decoder, "head": load_query_head(self.folder.decoder, dim, self.device)}

    def _open(self, vectors: Vectors, made_from: str) -> str | None:
        """Open all systems there are, and return which of them the run searches with."""
        from siglum.pipeline import open_systems

        whole = self.stages["decoder"] != "unfinished"
        systems = self._try("index", lambda: open_systems(self.folder, self.split, self.device)) if whole else None
        if systems is None:
            self._open_flat(vectors, made_from)
            return None
        named = {
            "dense_raw": systems.dense_raw,
            "dense": systems.dense,
            "scan": systems.scan,
            "geometry": systems.geometry,
            self.config.recipe: systems.own,
        }
        self.rankers = {name: ranker for name, ranker in named.items() if ranker is not None}
        return self.config.recipe if systems.own is not None else "geometry"

    def _open_flat(self, vectors: Vectors, made_from: str) -> None:
        """Open what needs no index: dense search, and the scan of all reconstructions."""
        import numpy as np
        import torch

        from siglum.fuse.contrastive import embed
        from siglum.fuse.store import load_fusion
        from siglum.measure.evaluate import FlatRanker
        from siglum.tokenize.store import load_tokenizer

        device = self.device
        if (fusion := self._try("dense", lambda: load_fusion(self.folder.dense, device))) is not None:
            self.rankers["dense"] = FlatRanker(
                embed(fusion, vectors.queries, device), embed(fusion, vectors.items, device)
            )
        opened = self._try("tokenizer", lambda: load_tokenizer(self.folder.tokenizer, device, vectors=made_from))
        if opened is not None:
            space, quantizer = opened[0].fusion, opened[0].quantizer
            modality = torch.as_tensor(vectors.items.modality.astype(np.int64)).to(device)
            rebuilt = quantizer.decode(quantizer.encode(embed(space, vectors.items, device), modality)).detach()
            self.rankers["scan"] = FlatRanker(embed(space, vectors.queries, device), rebuilt, squared_distance=True)

    def portrait(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        from siglum.config import as_dict

        changed = self._changed()
        return {
            "folder": str(self.folder.root),
            "recipe": self.config.recipe,
            "scale": self.config.scale,
            "seed": self.config.seed,
            "stages": self.stages,
            "notes": self.notes,
            "trained": self._trained(),
            "items": self.items,
            "queries": {name: len(answers.qrels) for name, answers in self.asked.tasks.items()},
            "pools": {name: answers.pool for name, answers in self.asked.tasks.items()},
            "systems": list(self.rankers),
            "own": self.asked.own,
            "tasks": self.results,
            "diagnosis": self.diagnosis,
            "config": as_dict(self.config),
            "changed": changed or {},
            "changed_known": changed is not None,
        }

    def _changed(self) -> dict[str, list[Any]] | None:
        """Return the settings that are not the recipe's; None where the recipe cannot be made again."""
        from siglum.config import diff
        from siglum.recipes import RECIPES, recipe
        from siglum.scales import SCALES

        config = self.config
        if config.recipe not in RECIPES or config.scale not in SCALES:
            return None
        usual = recipe(config.recipe, config.scale, config.seed)
        return {name: list(pair) for name, pair in diff(usual, config).items()}

    def _trained(self) -> str | None:
        """Return when the run's log was last written to."""
        from datetime import UTC, datetime

        from siglum.log import read_log

        times = [record["time"] for record in read_log(self.folder.root / "log.jsonl")]
        return datetime.fromtimestamp(max(times), UTC).isoformat(timespec="minutes") if times else None
