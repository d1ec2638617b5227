"""How fast search is beside its peers: every system in a process of its own, in interleaved rounds.

Every measurement leaves a part, so a run that was stopped goes on where it was. This module imports nothing heavy; the
processes it starts do.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from multiprocessing import forkserver
from pathlib import Path
from threading import Thread
from time import perf_counter
from typing import TYPE_CHECKING, Any

from siglum.files import STAGE_FILE, fingerprint, read_json, write_json
from siglum.lab.speed.clock import LEAST, WARM, Clock, seconds_of, take
from siglum.lab.units import end_with_parent
from siglum.run.folder import RunFolder
from siglum.types import SiglumError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from siglum.config import RunConfig, SearchConfig
    from siglum.lab.speed.systems import System

Case = tuple[str, str, str]
"""One thing to time: system, mode and precision."""
CASES: dict[str, list[Case]] = {
    "cpu": [
        *(("hf-generate", "none", dtype) for dtype in ("fp32", "bf16")),
        ("ctranslate2", "none", "int8"),
        ("reference", "exact", "fp32"),
        *(("siglum", mode, dtype) for mode in ("exact", "renormalised") for dtype in ("fp32", "bf16", "int8")),
        ("siglum", "scan", "fp32"),
        *(("siglum", "scan-rescore", dtype) for dtype in ("fp32", "bf16", "int8")),
        *((name, "none", "fp32") for name in ("faiss-flat", "faiss-hnsw", "faiss-ivf", "faiss-pq", "torch-flat")),
    ],
    "cuda": [
        *(("hf-generate", "none", dtype) for dtype in ("fp32", "bf16")),
        ("reference", "exact", "fp32"),
        *(("siglum", "exact", dtype) for dtype in ("fp32", "bf16")),
        *(("torch-flat", "none", dtype) for dtype in ("fp32", "bf16")),
    ],
}
"""What can be timed on each device."""
SYSTEMS = tuple(dict.fromkeys(case[0] for cases in CASES.values() for case in cases))
USUAL = tuple(name for name in SYSTEMS if name != "reference")
"""What is timed unless told otherwise; a search that goes beyond the paper's score is set beside the reference too."""
MODES = ("exact", "renormalised", "scan", "scan-rescore")
PRECISIONS = ("fp32", "bf16", "int8")
NEEDS = {"hf-generate": ("transformers",), "ctranslate2": ("ctranslate2", "transformers")}
NEEDS |= {name: ("faiss",) for name in SYSTEMS if name.startswith("faiss")}
"""Packages that a system needs beside those siglum needs itself."""
PLAIN = ("hf-generate", "ctranslate2")
"""Peers whose score is the decoder's alone."""
SWEEP = {"cpu": (1, 4, 8, 16), "cuda": (1, 4, 8, 16, 32, 64, 128, 256)}
"""Batch sizes that hf-generate chooses its best from."""
PAYS = 1.05
"""Beyond ALWAYS, hf-generate tries a larger batch as long as the last one gained this much."""
ALWAYS = {"cpu": 32, "cuda": 0}
"""Batches up to this size are timed whatever they gain."""
PRELOADED = ["torch", "siglum.lab.speed.systems", "siglum.search.ragged", "transformers.models.t5.modeling_t5"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedSettings:
    """What is measured, and how long."""

    work: Path
    """Folder of the parts."""
    device: str = "cpu"
    pools: tuple[int, ...] = (50_000,)
    batches: tuple[int, ...] = (1, 8, 32)
    systems: tuple[str, ...] = USUAL
    modes: tuple[str, ...] = MODES
    precisions: tuple[str, ...] = PRECISIONS
    """Of siglum's decoder; a scan reads none."""
    rounds: int = 3
    queries: int = 256
    """Queries of a pool; calls go round them."""
    threads: int = 1
    seconds: float = 2.0
    """Time of one measurement, unless two calls take longer."""
    recipe: str = "pro"
    scale: str = "paper"
    run: str | None = None
    versions: str = ""
    """Versions of what is measured; parts of others do not count."""

    @property
    def kind(self) -> str:
        """The device without its number."""
        return self.device.partition(":")[0]

    @property
    def number(self) -> int:
        """Queries that are drawn: enough for two different calls of the largest batch."""
        return max(self.queries, LEAST * max(self.batches))

    def model(self) -> RunConfig | str:
        """Return what is searched with: the folder of a trained run, or the configuration of a recipe."""
        from siglum.recipes import recipe

        if self.run is not None:
            return self.run
        config = recipe(self.recipe, self.scale)
        # Not every library can do without an encoder layer.
        layers = max(1, config.decoder.encoder_layers)
        return replace(config, decoder=replace(config.decoder, encoder_layers=layers))

    def cases(self) -> list[Case]:
        """Return what is asked for on this device, installed or not."""
        return [case for case in CASES[self.kind] if self._asks(*case)]

    def _asks(self, system: str, mode: str, precision: str) -> bool:
        chosen = mode in self.modes and (mode == "scan" or precision in self.precisions)
        return system in self.systems and (system != "siglum" or chosen)

    def elsewhere(self) -> list[str]:
        """Return what is asked for and has no case on this device."""
        here = {case[:2] for case in CASES[self.kind]}
        absent = [name for name in self.systems if name not in {system for system, _ in here}]
        modes = self.modes if "siglum" in self.systems else ()
        return absent + [f"siglum {mode}" for mode in modes if ("siglum", mode) not in here]

    def folder(self) -> Path:
        """Return where parts of equal settings lie."""
        record = RunFolder(Path(self.run)).decoder / STAGE_FILE if self.run else None
        trained = read_json(record)["fingerprint"] if record and record.exists() else self.run
        parts = (self.recipe, self.scale, trained, self.number, self.device, self.threads, self.seconds, self.versions)
        return self.work / fingerprint(*parts)

    def pool(self, items: int) -> Path:
        """Return where a pool lies."""
        return self.folder() / "pools" / str(items)


@dataclass(frozen=True, slots=True)
class Job:
    """One process: one case on one pool in one round, at several batch sizes."""

    settings: SpeedSettings
    case: Case
    items: int
    round: int
    batches: tuple[int, ...]

    @property
    def label(self) -> str:
        """The case and its pool in words."""
        return f"{' '.join(word for word in self.case if word != 'none')} over {self.items:,} items"

    def part(self, batch: int) -> Path:
        """Return the file of one measurement."""
        name = "-".join((str(self.items), *self.case, f"b{batch}", f"r{self.round}"))
        return self.settings.folder() / f"{name}.json"

    def missing(self) -> list[int]:
        """Return the batch sizes without a part."""
        return [batch for batch in self.batches if not self.part(batch).exists()]


def run_speed(settings: SpeedSettings, say: Callable[[str], None]) -> tuple[list[dict[str, Any]], list[str]]:
    """Measure what is missing; return all parts, and notes of what was left out."""
    cases, notes = possible(settings)
    if settings.elsewhere():
        notes.insert(0, f"not measured on {settings.kind}: {', '.join(settings.elsewhere())}.")
    if not cases:
        raise SiglumError("no system is left to measure: " + " ".join(notes or ["choose others by --systems."]))
    started, parts, lost = perf_counter(), [], set()
    for number in range(settings.rounds):
        for items in settings.pools:
            for case in cases:
                job = Job(settings, case, items, number, tuple(batches(settings, case, items, number)))
                if job.missing() and items not in lost:
                    what, failed = f"the pool of {items:,} items", _pool(settings, items)
                    if failed:
                        lost.add(items)
                    else:
                        what, failed = job.label, in_process(settings, _measure, job)
                    if failed:
                        notes.append(f"{what} {failed}")
                    say(f"round {number + 1}: {what} {failed or 'done'} ({perf_counter() - started:.0f} s)")
                parts += [read_json(job.part(batch)) for batch in job.batches if job.part(batch).exists()]
    if not any(part["seconds"] for part in parts):
        raise SiglumError(f"nothing was measured: {notes[-1] if notes else 'every batch was left out.'}")
    shutil.rmtree(settings.folder() / "pools", ignore_errors=True)  # gigabytes; parts are enough from here on
    return parts, list(dict.fromkeys(notes))


def possible(settings: SpeedSettings) -> tuple[list[Case], list[str]]:
    """Return the cases asked for that search as the recipe does and whose packages are there, and why others do not."""
    model, cases, notes = settings.model(), [], []
    asked = "" if isinstance(model, str) else " and ".join(beyond_paper(model.search))
    for case in settings.cases():
        system, mode, _ = case
        lacks = [package for package in NEEDS.get(system, ()) if find_spec(package) is None]
        if asked and system in PLAIN:
            notes.append(f"{system} was left out: it has no place for {asked} of recipe {settings.recipe}.")
        elif "search.prior" in asked and mode == "renormalised":
            notes.append("siglum renormalised was left out: search.prior goes with normalisation level alone.")
        elif lacks:
            notes.append(f"{system} was left out: {' and '.join(lacks)} not installed.")
        else:
            cases.append(case)
    return cases, list(dict.fromkeys(notes))


def beyond_paper(config: SearchConfig) -> list[str]:
    """Return what a search asks for that the paper's score has no place for.

    >>> from siglum.config import SearchConfig
    >>> beyond_paper(SearchConfig(lookahead=True))
    ['search.lookahead']
    """
    return [f"search.{name}" for name in ("lookahead", "prior") if getattr(config, name)]


def batches(settings: SpeedSettings, case: Case, items: int, number: int) -> list[int]:
    """Return the batch sizes of a job: hf-generate tries its own in the first round and keeps the best of them."""
    asked = set(settings.batches)
    if case[0] != "hf-generate":
        return sorted(asked)
    sweeps = case[2] == "fp32" or settings.kind == "cuda"
    tried = sorted(asked | set(SWEEP[settings.kind] if sweeps else ()))
    if number == 0:
        return tried
    first = Job(settings, case, items, 0, tuple(tried))
    parts = [read_json(first.part(batch)) for batch in tried if first.part(batch).exists()]
    rate = {part["batch"]: rate_of(part) for part in parts if part["seconds"]}
    best = max(rate, key=rate.__getitem__, default=None)
    return [batch for batch in rate if batch in asked or batch == best]


def rate_of(part: dict[str, Any]) -> float:
    """Return queries a second of one measurement.

    >>> rate_of({"batch": 8, "seconds": [1.0, 3.0]})
    4.0
    """
    return float(part["batch"] * len(part["seconds"]) / sum(part["seconds"]))


def in_process(settings: SpeedSettings, work: Callable[..., None], *arguments: Any) -> str | None:
    """Run work in a fresh process; return None, or why it failed in one sentence."""
    # Importing takes longer than measuring: on a CPU processes are forked from one that has imported, and done no more.
    context: Any = multiprocessing.get_context("forkserver" if settings.kind == "cpu" else "spawn")
    context.set_forkserver_preload(PRELOADED)
    if settings.kind == "cpu":
        usual = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: an interrupt is no traceback of an import
        forkserver.ensure_running()
        signal.signal(signal.SIGINT, usual)
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_guarded, args=(there, work, arguments))
    process.start()
    there.close()
    try:
        told: str | None = here.recv()
    except EOFError:
        told = "failed: its process ended without a word, perhaps for memory."
    except BaseException:  # an interrupt does not wait for what is being measured
        process.kill()
        raise
    finally:
        process.join()
        here.close()
    return told


def _guarded(pipe: Any, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """Run work and tell how it ended; one system that fails must not cost the others."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends without a traceback
    Thread(target=end_with_parent, daemon=True).start()
    try:
        work(*arguments)
    except Exception as error:
        text = str(error).strip().partition("\n")[0].rstrip(".")[:300]
        pipe.send(f"failed: {text if isinstance(error, SiglumError) else f'{type(error).__name__}: {text}'}.")
    else:
        pipe.send(None)


def _pool(settings: SpeedSettings, items: int) -> str | None:
    """Make a pool unless it is there; return None, or why that failed."""
    return None if (settings.pool(items) / "pool.json").exists() else in_process(settings, _make_pool, settings, items)


def _make_pool(settings: SpeedSettings, items: int) -> None:
    import torch

    from siglum.lab.speed.pool import draw_pool, save_pool
    from siglum.lab.speed.systems import right_answers

    torch.set_num_threads(settings.threads)
    pool = draw_pool(items, settings.number, settings.model())
    pool.reference = right_answers(pool, settings.device)
    save_pool(pool, settings.pool(items))


def _measure(job: Job) -> None:
    """Time one system on one pool, batch size by batch size, and write the parts."""
    import torch

    from siglum.lab.speed.pool import open_pool
    from siglum.lab.speed.systems import open_system

    settings = job.settings
    torch.set_num_threads(settings.threads)
    pool, work = open_pool(settings.pool(job.items)), settings.folder() / "pools"
    system = open_system(job.case, pool, settings.device, settings.threads, max(job.batches), work)
    right = pool.reference.get(system.reference or "", [])
    lone = min(seconds_of(system.search, take(pool.query_QD, 1, place))[0] for place in range(LEAST))
    facts = {"system": job.case[0], "mode": job.case[1], "dtype": job.case[2], "pool": job.items, "round": job.round}
    for batch, wanted in paying(job):
        part = {**facts, "batch": batch, "seconds": [], "overlap": None, "checked": 0}
        if wanted:
            if lone * batch < WARM:
                system.search(take(pool.query_QD, batch))
            part |= time_calls(system, pool.query_QD, batch, settings.seconds, right, thorough=job.round == 0)
        part |= {"facts": system.facts, "reference": system.reference, "notes": pool.notes, "load": os.getloadavg()[0]}
        write_json(job.part(batch), part)


def paying(job: Job) -> Iterator[tuple[int, bool]]:
    """Go through the batch sizes without a part; hf-generate stops where a larger one gains little."""
    climbs = job.case[0] == "hf-generate"
    best, pays = 0.0, True
    for batch in sorted(job.batches):
        pays = pays and not (climbs and batch > max(SWEEP["cuda"]))
        if not job.part(batch).exists():
            yield batch, pays or batch <= ALWAYS[job.settings.kind]
        part = read_json(job.part(batch))
        rate = rate_of(part) if part["seconds"] else 0.0
        if climbs and job.round == 0:
            pays = (pays or batch <= ALWAYS[job.settings.kind]) and rate > PAYS * best
        best = max(best, rate)


def time_calls(
    system: System, query_QD: Tensor, batch: int, seconds: float, right: list[np.ndarray], *, thorough: bool
) -> dict[str, Any]:
    """Time calls over different queries, at least two; `thorough` goes on until all known answers are compared."""
    known = min(len(right), len(query_QD))
    times: list[float] = []
    shares: list[float] = []

    def more() -> bool:
        return thorough and len(shares) < known

    for start, taken, result in Clock(seconds).calls(system.search, query_QD, batch, more):
        times.append(taken)
        if start < known:
            found = system.positions(result) or []
            shares += [overlap(a.tolist(), b.tolist()) for a, b in zip(found, right[start:], strict=False)]
    mean = sum(shares) / len(shares) if shares else None
    return {"seconds": times, "overlap": mean, "checked": len(shares)}


def overlap(found: Sequence[int], right: Sequence[int]) -> float:
    """Return the share of the right items among as many that were found; 1 where there are none.

    >>> overlap([3, 1, 2], [1, 2])
    0.5
    """
    return len(set(found[: len(right)]) & set(right)) / len(right) if len(right) else 1.0
