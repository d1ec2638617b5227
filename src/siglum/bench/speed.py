"""How fast search is beside its peers: every system in a process of its own, in interleaved rounds.

Every measurement leaves a part, so a run that was stopped goes on where it was. This module imports nothing heavy; the
processes it starts do.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from time import perf_counter
from typing import TYPE_CHECKING, Any

from siglum.files import STAGE_FILE, fingerprint, read_json, write_json
from siglum.types import SiglumError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from siglum.bench.speed_systems import System

CASES: dict[str, list[tuple[str, str, str]]] = {
    "cpu": [
        *(("hf-generate", "none", dtype) for dtype in ("fp32", "bf16")),
        ("ctranslate2", "none", "int8"),
        *(("siglum", mode, dtype) for mode in ("exact", "renormalised") for dtype in ("fp32", "bf16", "int8")),
        ("siglum", "scan", "fp32"),
        *(("siglum", "scan-rescore", dtype) for dtype in ("fp32", "bf16", "int8")),
        *((name, "none", "fp32") for name in ("faiss-flat", "faiss-hnsw", "faiss-ivf", "faiss-pq", "torch-flat")),
    ],
    "cuda": [
        *(("hf-generate", "none", dtype) for dtype in ("fp32", "bf16")),
        ("siglum", "exact", "bf16"),
        *(("torch-flat", "none", dtype) for dtype in ("fp32", "bf16")),
    ],
}
"""What is timed on each device: system, mode and precision."""
SYSTEMS = tuple(dict.fromkeys(case[0] for cases in CASES.values() for case in cases))
MODES = ("exact", "renormalised", "scan", "scan-rescore")
NEEDS = {"hf-generate": ("transformers",), "ctranslate2": ("ctranslate2", "transformers")}
NEEDS |= {name: ("faiss",) for name in SYSTEMS if name.startswith("faiss")}
"""Packages that a system needs beside those siglum needs itself."""
SWEEP = {"cpu": (1, 4, 8, 16), "cuda": (1, 4, 8, 16, 32, 64, 128, 256)}
"""Batch sizes that hf-generate chooses its best from."""
PAYS = 1.05
"""Beyond ALWAYS, hf-generate tries a larger batch as long as the last one gained this much."""
ALWAYS = {"cpu": 32, "cuda": 0}
"""Batches up to this size are timed whatever they gain."""
PRELOADED = ["torch", "siglum.bench.speed_systems", "siglum.search.fast", "transformers.models.t5.modeling_t5"]
LEAST = 2
"""Calls that are timed at least."""
WARM = 3.0
"""A batch that takes less than so many seconds is run once before it is timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is measured, and how long."""

    work: Path
    """Folder of the parts."""
    device: str = "cpu"
    pools: tuple[int, ...] = (50_000,)
    batches: tuple[int, ...] = (1, 8, 32)
    systems: tuple[str, ...] = SYSTEMS
    modes: tuple[str, ...] = MODES
    rounds: int = 3
    queries: int = 256
    """Queries of a pool; calls go round them."""
    threads: int = 1
    seconds: float = 2.0
    """Time of one measurement, unless two calls take longer."""
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

    def cases(self) -> list[tuple[str, str, str]]:
        """Return what is asked for on this device, installed or not."""
        return [
            case
            for case in CASES[self.kind]
            if case[0] in self.systems and (case[0] != "siglum" or case[1] in self.modes)
        ]

    def elsewhere(self) -> list[str]:
        """Return what is asked for and has no case on this device."""
        here = {case[:2] for case in CASES[self.kind]}
        absent = [name for name in self.systems if name not in {system for system, _ in here}]
        modes = self.modes if "siglum" in self.systems else ()
        return absent + [f"siglum {mode}" for mode in modes if ("siglum", mode) not in here]

    def folder(self) -> Path:
        """Return where parts of equal settings lie."""
        record = Path(self.run, "3-decoder", STAGE_FILE) if self.run else None
        trained = read_json(record)["fingerprint"] if record and record.exists() else self.run
        marks = (self.scale, trained, self.number, self.device, self.threads, self.seconds, self.versions)
        return self.work / fingerprint(*marks)

    def pool(self, items: int) -> Path:
        """Return where a pool lies."""
        return self.folder() / "pools" / str(items)


@dataclass(frozen=True, slots=True)
class Job:
    """One process: one case on one pool in one round, at several batch sizes."""

    settings: Settings
    case: tuple[str, str, str]
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


def run_speed(settings: Settings, say: Callable[[str], None]) -> tuple[list[dict[str, Any]], list[str]]:
    """Measure what is missing; return all parts, and notes of what was left out."""
    cases, notes = _installed(settings.cases())
    if settings.elsewhere():
        notes.insert(0, f"not measured on {settings.kind}: {', '.join(settings.elsewhere())}.")
    if not cases:
        raise SiglumError("no system is left to measure: " + " ".join(notes or ["choose others by --systems."]))
    started, parts, lost = perf_counter(), [], set()
    for number in range(settings.rounds):
        for items in settings.pools:
            for case in cases:
                job = Job(settings, case, items, number, tuple(_batches(settings, case, items, number)))
                if job.missing() and items not in lost:
                    what, failed = f"the pool of {items:,} items", _pool(settings, items)
                    if failed:
                        lost.add(items)
                    else:
                        what, failed = job.label, _in_process(settings, _measure, job)
                    if failed:
                        notes.append(f"{what} {failed}")
                    say(f"round {number + 1}: {what} {failed or 'done'} ({perf_counter() - started:.0f} s)")
                parts += [read_json(job.part(batch)) for batch in job.batches if job.part(batch).exists()]
    if not any(part["seconds"] for part in parts):
        raise SiglumError(f"nothing was measured: {notes[-1] if notes else 'every batch was left out.'}")
    shutil.rmtree(settings.folder() / "pools", ignore_errors=True)  # gigabytes; parts are enough from here on
    return parts, list(dict.fromkeys(notes))


def _installed(cases: list[tuple[str, str, str]]) -> tuple[list[tuple[str, str, str]], list[str]]:
    """Return the cases whose packages are there, and a note for every system without."""
    lacks = {name: [pkg for pkg in NEEDS.get(name, ()) if find_spec(pkg) is None] for name, _, _ in cases}
    notes = [f"{name} was left out: {' and '.join(gone)} not installed." for name, gone in lacks.items() if gone]
    return [case for case in cases if not lacks[case[0]]], notes


def _batches(settings: Settings, case: tuple[str, str, str], items: int, number: int) -> list[int]:
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


def _in_process(settings: Settings, work: Callable[..., None], *arguments: Any) -> str | None:
    """Run work in a fresh process; return None, or why it failed in one sentence."""
    # Importing takes longer than measuring: on a CPU processes are forked from one that has imported, and done no more.
    context: Any = multiprocessing.get_context("forkserver" if settings.kind == "cpu" else "spawn")
    context.set_forkserver_preload(PRELOADED)
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
    Thread(target=_end_with_parent, daemon=True).start()
    try:
        work(*arguments)
    except Exception as error:
        text = str(error).strip().partition("\n")[0].rstrip(".")[:300]
        pipe.send(f"failed: {text if isinstance(error, SiglumError) else f'{type(error).__name__}: {text}'}.")
    else:
        pipe.send(None)


def _end_with_parent() -> None:
    """End this process when the one that started it does, however that ends, lest it disturb the next run's times."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _pool(settings: Settings, items: int) -> str | None:
    """Make a pool unless it is there; return None, or why that failed."""
    return None if (settings.pool(items) / "pool.json").exists() else _in_process(settings, _make_pool, settings, items)


def _make_pool(settings: Settings, items: int) -> None:
    import torch

    from siglum.bench.speed_pool import make_pool

    torch.set_num_threads(settings.threads)
    make_pool(settings.pool(items), items, settings.number, settings.scale, settings.run, settings.device)


def _measure(job: Job) -> None:
    """Time one system on one pool, batch size by batch size, and write the parts."""
    import torch

    from siglum.bench.speed_pool import open_pool
    from siglum.bench.speed_systems import Case, open_system

    settings = job.settings
    torch.set_num_threads(settings.threads)
    pool, work = open_pool(settings.pool(job.items)), settings.folder() / "pools"
    system = open_system(Case(*job.case), pool, settings.device, settings.threads, max(job.batches), work)
    right = pool.reference.get(system.reference or "", [])
    lone = min(clock(system, pool.query_QD[place : place + 1])[0] for place in range(LEAST))
    facts = {"system": job.case[0], "mode": job.case[1], "dtype": job.case[2], "pool": job.items, "round": job.round}
    for batch, wanted in _paying(job):
        part = {**facts, "batch": batch, "seconds": [], "overlap": None, "checked": 0}
        if wanted:
            if lone * batch < WARM:
                system.search(take(pool.query_QD, batch, 0))
            part |= time_calls(system, pool.query_QD, batch, settings.seconds, right, thorough=job.round == 0)
        part |= {"facts": system.facts, "reference": system.reference, "notes": pool.notes, "load": os.getloadavg()[0]}
        write_json(job.part(batch), part)


def _paying(job: Job) -> Iterator[tuple[int, bool]]:
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


def clock(system: System, query_QD: Tensor) -> tuple[float, Any]:
    """Return the seconds of a call, from host memory to host memory, and what it found."""
    start = perf_counter()
    result = system.search(query_QD)
    return perf_counter() - start, result


def take(query_QD: Tensor, batch: int, start: int) -> Tensor:
    """Return `batch` queries from `start` on, going round."""
    import torch

    return query_QD[torch.arange(start, start + batch) % len(query_QD)]


def time_calls(
    system: System, query_QD: Tensor, batch: int, seconds: float, right: list[np.ndarray], *, thorough: bool
) -> dict[str, Any]:
    """Time calls over different queries, at least two; `thorough` goes on until all known answers are compared."""
    times: list[float] = []
    shares: list[float] = []
    while (
        len(times) < LEAST
        or sum(times) < seconds
        or (thorough and len(shares) < min(len(right), len(query_QD)) and sum(times) < 4 * seconds)
    ):
        start = len(times) * batch
        taken, result = clock(system, take(query_QD, batch, start))
        times.append(taken)
        if start < min(len(right), len(query_QD)):
            found = system.positions(result) or []
            shares += [overlap(one, other) for one, other in zip(found, right[start:], strict=False)]
    mean = sum(shares) / len(shares) if shares else None
    return {"seconds": times, "overlap": mean, "checked": len(shares)}


def overlap(found: np.ndarray, right: np.ndarray) -> float:
    """Return the share of the right items among as many that were found.

    >>> import numpy as np
    >>> overlap(np.array([3, 1, 2]), np.array([1, 2]))
    0.5
    """
    return len(set(found[: len(right)].tolist()) & set(right.tolist())) / max(1, len(right))
