"""How fast search is beside an earlier commit: both in alternating rounds of one run, so that both see the same noise.

One process a side searches the same index with the same model, and only one of them computes at any time. Every pool,
mode, precision and batch size leaves a part, so a run that was stopped goes on where it was. This module imports
nothing heavy; the processes it starts do.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from siglum.files import file_fingerprint, fingerprint, read_json, write_json, write_tensors
from siglum.lab.speed.bench import SpeedSettings, in_process, overlap
from siglum.types import SiglumError

SIDES = ("old", "new")
CLOCKS = ("seconds", "cpu_seconds")
PACKAGE = Path(__file__).parents[2]
"""The code that is running."""
WORKER = Path("lab", "speed", "against_worker.py")
"""The script of both sides, inside the package."""


class Refused(Exception):
    """A side said in one sentence why it cannot answer."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is compared at once: one mode and precision over one pool at one batch size."""

    mode: str
    precision: str
    items: int
    batch: int

    @property
    def label(self) -> str:
        """The unit in words."""
        return f"{self.mode} {self.precision} over {self.items:,} items at batch {self.batch}"

    def part(self, settings: SpeedSettings) -> Path:
        """Return the file of its measurement."""
        name = f"{self.items}-{self.mode}-{self.precision}-b{self.batch}-x{settings.rounds}.json"
        return settings.folder() / name


def units(settings: SpeedSettings, items: int) -> list[Comparison]:
    """Return what is compared over one pool; a scan reads no decoder, so it has one precision."""
    return [
        Comparison(mode, precision, items, batch)
        for batch in settings.batches
        for mode in settings.modes
        for precision in (("fp32",) if mode == "scan" else settings.precisions)
    ]


def turns(rounds: int) -> list[tuple[str, str]]:
    """Return who goes first and second in every pair; turning round each time cancels a drift of the machine.

    >>> turns(3)
    [('old', 'new'), ('new', 'old'), ('old', 'new')]
    """
    return [("old", "new") if pair % 2 == 0 else ("new", "old") for pair in range(rounds)]


def find_commit(name: str) -> str:
    """Return the full name of a commit of the checkout that this code runs from."""
    if shutil.which("git") is None:
        raise SiglumError("--against needs git, which is not installed.")
    if _git(PACKAGE, "ls-files", "--error-unmatch", "__init__.py").returncode:
        raise SiglumError(f"--against needs siglum to run from a git checkout, but {PACKAGE} is not in one.")
    found = _git(PACKAGE, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if found.returncode:
        raise SiglumError(f"there is no commit {name!r} in {PACKAGE}; `git log --oneline` shows those there are.")
    return found.stdout.decode().strip()


def code_fingerprint() -> str:
    """Return a fingerprint of the code that is running, uncommitted changes included."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return fingerprint(*[(str(path.relative_to(PACKAGE)), file_fingerprint(path)) for path in paths])


@contextmanager
def checked_out(commit: str) -> Iterator[dict[str, Path]]:
    """Copy the package of both sides into a temporary folder, which ends with the block."""
    with TemporaryDirectory(prefix="siglum-against-") as folder:
        prefix = _git(PACKAGE, "rev-parse", "--show-prefix").stdout.decode().strip()
        whole = PACKAGE.parents[len(Path(prefix).parts) - 1]
        archive = Path(folder, "old.tar")
        told = _git(whole, "archive", "--format=tar", f"--output={archive}", commit, "--", prefix)
        if told.returncode:
            raise SiglumError(f"commit {commit[:12]} has no {prefix} to compare with; choose a later one.")
        with tarfile.open(archive) as tar:
            tar.extractall(Path(folder, "old"), filter="data")
        archive.unlink()
        # A copy of this side too: nothing that is edited meanwhile gets into the measurement.
        shutil.copytree(PACKAGE, Path(folder, "new", prefix), ignore=shutil.ignore_patterns("__pycache__"))
        yield {side: Path(folder, side, prefix) for side in SIDES}


def _git(place: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(place), *arguments], capture_output=True, check=False)


class Side:
    """A process that searches with one side's code, and waits in between."""

    def __init__(self, name: str, package: Path, script: Path, inputs: Path, settings: SpeedSettings) -> None:
        """Start it and wait until it has opened the inputs."""
        self.name, self.heard = name, package.parent / "stderr"
        path = os.pathsep.join(filter(None, [str(package.parent), os.environ.get("PYTHONPATH")]))
        # Threads that wait must not spin: the other side is computing.
        environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ, "PYTHONPATH": path}
        scratch = package.parent / f"index-{inputs.name}"
        options = [str(inputs), str(scratch), settings.device, str(settings.threads)]
        with self.heard.open("wb") as heard:
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(script), *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=heard,
                env=environment,
            )
        try:
            opened = self._answer()
            used, self.queries = opened["siglum"], int(opened["queries"])
            if Path(used).resolve() != package.resolve():
                raise Refused(f"the {name} side would run {used}, not {package}; do not install siglum over its path.")
        except BaseException:
            self.end()
            raise

    def ask(self, unit: Comparison, start: int, calls: int) -> dict[str, Any]:
        """Return what the side answers, queries from `start` on."""
        asked = {"mode": unit.mode, "precision": unit.precision, "batch": unit.batch, "start": start, "calls": calls}
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # why it ended is told when its answer is missed
            self.process.stdin.write(json.dumps(asked).encode() + b"\n")
            self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            last = self.heard.read_text(errors="replace").strip().rpartition("\n")[2][:300]
            raise Refused(f"the {self.name} side ended without an answer: {last or 'perhaps for memory'}")
        told: dict[str, Any] = json.loads(line)
        if "failed" in told:
            raise Refused(f"the {self.name} side failed: {told['failed']}")
        return told

    def end(self) -> None:
        """End the process, whatever it does."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):  # a request that it did not read
                pipe.close()


def run_against(
    settings: SpeedSettings, commit: str, say: Callable[[str], None]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Compare what is missing; return all parts, and notes of what was left out."""
    asked = [unit for items in settings.pools for unit in units(settings, items)]
    notes: list[str] = []
    if not all(unit.part(settings).exists() for unit in asked):
        with checked_out(commit) as packages:
            for items in settings.pools:
                missing = [unit for unit in asked if unit.items == items and not unit.part(settings).exists()]
                notes += _compare(missing, packages, settings, say) if missing else []
    parts = [read_json(unit.part(settings)) for unit in asked if unit.part(settings).exists()]
    if not parts:
        raise SiglumError(f"nothing was compared: {notes[-1]}")
    shutil.rmtree(settings.folder() / "pools", ignore_errors=True)  # parts are enough from here on
    return parts, list(dict.fromkeys([*notes, *(note for part in parts for note in part["notes"])]))


def _compare(
    missing: list[Comparison], packages: dict[str, Path], settings: SpeedSettings, say: Callable[[str], None]
) -> list[str]:
    """Measure the missing units of one pool and write their parts; return notes of those that could not be."""
    items, started, notes = missing[0].items, perf_counter(), []
    inputs, script = settings.pool(items), packages["new"] / WORKER
    failed = None if (inputs / "facts.json").exists() else in_process(settings, write_inputs, settings, items)
    if failed:
        return [f"the pool of {items:,} items {failed}"]
    known = read_json(inputs / "facts.json")["notes"]
    with ExitStack() as stack:
        sides: dict[str, Side] = {}
        try:
            for name in SIDES:
                sides[name] = Side(name, packages[name], script, inputs, settings)
                stack.callback(sides[name].end)
        except Refused as error:
            return [f"over {items:,} items {error}."]
        for unit in missing:
            told = f"{unit.label} done"
            try:
                write_json(unit.part(settings), {**measure(unit, sides, settings), "notes": known})
            except Refused as error:
                told = f"{unit.label}: {error}."
                notes.append(told)
            say(f"{told} ({perf_counter() - started:.0f} s)")
    return notes


def measure(unit: Comparison, sides: dict[str, Side], settings: SpeedSettings) -> dict[str, Any]:
    """Return the seconds of both sides, pair by pair; in a pair both answer the same queries in as many calls."""
    lone = 0.0
    for side in sides.values():
        side.ask(unit, 0, 1)  # the first call folds weights
        lone = max(lone, side.ask(unit, 0, 1)["seconds"])
    calls = max(1, round(settings.seconds / lone))
    times: dict[str, dict[str, list[float]]] = {kind: {name: [] for name in SIDES} for kind in CLOCKS}
    shares: dict[int, float] = {}
    for pair, order in enumerate(turns(settings.rounds)):
        start = pair * calls * unit.batch
        told = {name: sides[name].ask(unit, start, calls) for name in order}
        for kind, name in product(CLOCKS, SIDES):
            times[kind][name].append(told[name][kind])
        for place, (old, new) in enumerate(zip(told["old"]["found"], told["new"]["found"], strict=True)):
            shares[(start + place) % sides["new"].queries] = overlap(*sorted((old, new), key=len))
    return {
        "mode": unit.mode,
        "dtype": unit.precision,
        "pool": unit.items,
        "batch": unit.batch,
        "calls": calls,
        **times,
        "overlap": sum(shares.values()) / len(shares),
        "checked": len(shares),
        "load": os.getloadavg()[0],
    }


def write_inputs(settings: SpeedSettings, items: int) -> None:
    """Write what both sides search, in plain tensors and numbers: codes, codebooks, queries and the decoder."""
    import torch

    from siglum.config import DecoderConfig, SearchConfig
    from siglum.lab.speed.pool import draw_pool

    torch.set_num_threads(settings.threads)
    pool, folder = draw_pool(items, settings.number, settings.model()), settings.pool(items)
    decoder, sizes = pool.decoder(), list(pool.index.sizes)
    codes_NT = pool.index.codes_of([str(place) for place in range(items)])
    books = {f"book_{level}": book.contiguous() for level, book in enumerate(pool.codebooks)}
    arrays = {"codes": torch.as_tensor(codes_NT).long(), "queries": pool.query_QD.contiguous(), **books}
    write_tensors(folder / "arrays.safetensors", arrays)
    write_tensors(folder / "decoder.safetensors", decoder.state_dict())
    kind = {"modality": "metadata", "modality_vector": False} if pool.first_geometric else {"modality": "none"}
    facts = {
        "sizes": sizes,
        "dim": pool.query_QD.shape[1],
        "tokenizer": {**kind, "vocab": sizes[pool.first_geometric :]},
        "decoder": unusual(decoder.config, DecoderConfig()),
        "search": unusual(pool.config, SearchConfig()),
        "notes": pool.notes,
    }
    write_json(folder / "facts.json", facts)  # the last file: a kill before it leaves no half of a pool


def unusual(config: Any, usual: Any) -> dict[str, Any]:
    """Return the fields that are not as usual: the other side may not know those that are new since."""
    return {f.name: own for f in fields(config) if (own := getattr(config, f.name)) != getattr(usual, f.name)}
