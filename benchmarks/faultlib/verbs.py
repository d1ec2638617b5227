"""Every verb that writes: what it starts from, how it is taken up again, and what it leaves when nothing happens."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from faultlib import ops
from faultlib.base import ITEMS, SMALL, build_command, encode_command
from faultlib.campaign import Base
from faultlib.forks import fork_call
from faultlib.state import State, plain, see, stages_of
from faultlib.told import Told, attempt, copy, shorten, tell

Do = Callable[[Path, Path, bool], Told]
"""What a verb does: with the folder of bases and that of the run; the last tells whether it is taken up again."""
ANOTHER = 99
"""Another seed than the run's."""


@dataclass(frozen=True)
class Verb:
    """One way to write into a run."""

    name: str
    do: Do
    start: str = ""
    """The base it starts from; none begins a folder."""
    whole: bool = False
    """Whether the run must open after any kill, as it was before or as it is after."""
    prints: bool = False
    """Whether its JSON is an answer to compare."""
    gives: tuple[str, ...] = ()
    """Files it writes beside the run's own, which must be whole wherever they are."""


def _command(make: Callable[[Path, Path], list[Any]], resumes: bool = False) -> Do:
    def do(base: Path, run: Path, again: bool) -> Told:
        return tell([*make(base, run), *(["--resume"] if again and resumes else [])])

    return do


def _call(make: Callable[[Path, Path, bool], Any], what: str) -> Do:
    def do(base: Path, run: Path, again: bool) -> Told:
        _, sentence, faults = attempt(lambda: make(base, run, again), what)
        trace = faults[0].get("trace", "?") if faults else ""
        return Told(1 if sentence else 0, "", f"siglum {what}: {sentence}\n" if sentence else "", trace)

    return do


def _grown(base: Path, run: Path, own: bool) -> Any:
    """Return a retriever with items added in memory."""
    import siglum
    from siglum.data.corpus import read_items

    retriever = siglum.Retriever.load(run if own else base / "mine")
    retriever.add(read_items(base / "inputs" / "more.jsonl"))
    return retriever


def _writing(base: Path, run: Path, again: bool) -> None:
    """Put items in the place of others through the log, in two calls that last each."""
    import siglum

    retriever = siglum.Retriever.load(run)
    with retriever.writing(run) as live:
        live.upsert([siglum.Item(id="item7", text="red star"), siglum.Item(id="put1", text="blue moon")])


def _replace(base: Path, run: Path, again: bool) -> None:
    """Take one item out and another in, both or neither."""
    import siglum

    retriever = siglum.Retriever.load(run)
    with retriever.writing(run) as live:
        live.replace(["item9"], [siglum.Item(id="put2", text="green heart")])


def _publish(base: Path, run: Path, again: bool) -> None:
    """Write what the hub gets, with items added."""
    _grown(base, run, own=False).save_pretrained(run)


def _queries(base: Path, run: Path) -> list[Any]:
    return ["search", run, "--queries", base / "inputs" / "test.jsonl", "--out", run / "hits.jsonl"]


def _export(base: Path, run: Path) -> list[Any]:
    return ["export", run, "--codes", run / "codes.parquet", "--faiss", run / "items.faiss"]


def _import(base: Path, run: Path) -> list[Any]:
    inputs = base / "inputs"
    return ["import", "--genius", inputs / "genius.pth", "--items", inputs / "pool.npz", "--out", run]


def _fit(base: Path, run: Path, again: bool) -> None:
    import numpy as np

    import siglum
    from siglum.console.commands import override

    rng = np.random.default_rng(3)
    items = rng.normal(size=(ITEMS, 8)).astype(np.float32)
    rows = np.arange(ITEMS)
    config = override(siglum.recipe("pro", "tiny"), tuple(f"{name}={value}" for name, value in SMALL))
    siglum.fit(items, items + 0.1, rows.tolist(), config=config, folder=run, resume=again)


def _add(base: Path, run: Path) -> list[Any]:
    return ["index", run, "--add", base / "inputs" / "more.jsonl"]


def _remove(base: Path, run: Path) -> list[Any]:
    return ["index", run, "--remove", "item7", "--remove", "new1", "--remove", "item77"]


VERBS = (
    Verb("encode", _command(lambda base, run: encode_command(base / "inputs", run, 0), resumes=True)),
    Verb("tokenize", _command(lambda base, run: ["tokenize", run, "--seed", ANOTHER], resumes=True), "plain"),
    Verb("train", _command(lambda base, run: ["train", run, "--seed", ANOTHER], resumes=True), "plain"),
    Verb("index", _command(lambda base, run: ["index", run]), "fresh"),
    Verb("index --keep-vectors", _command(lambda base, run: ["index", run, "--keep-vectors"]), "plain"),
    Verb("index --add", _command(_add), "mine", whole=True),
    Verb("index --remove", _command(_remove), "mine", whole=True),
    Verb("index --add, first", _command(_add), "plain", whole=True),
    Verb("index --compact", _command(lambda base, run: ["index", run, "--compact"]), "mine", True),
    Verb("index --drop-added", _command(lambda base, run: ["index", run, "--drop-added"]), "mine", True),
    Verb(
        "index --snapshot",
        _command(lambda base, run: ["index", run, "--snapshot", "a"]),
        "mine",
        True,
    ),
    Verb(
        "index --restore",
        _command(lambda base, run: ["index", run, "--restore", "before"]),
        "kept",
        whole=True,
    ),
    Verb("eval", _command(lambda base, run: ["eval", run, "--json"]), "plain", whole=True, prints=True),
    Verb(
        "report",
        _command(lambda base, run: ["report", run, "--out", run / "6-report" / "report.html"]),
        "mine",
        whole=True,
    ),
    Verb("build", _command(lambda base, run: build_command(base / "photos", run), resumes=True)),
    Verb(
        "build --update",
        _command(lambda base, run: ["build", base / "live", "--out", run, "--update"]),
        "album-live",
        whole=True,
    ),
    Verb("save", _call(lambda base, run, again: _grown(base, run, own=False).save(run), "save")),
    Verb("save, own run", _call(lambda base, run, again: _grown(base, run, own=True).save(run), "save"), "mine", True),
    Verb("fit", _call(_fit, "fit")),
    Verb("upsert", _call(_writing, "upsert"), "mine", whole=True),
    Verb("replace", _call(_replace, "replace"), "mine", whole=True),
    Verb("save_pretrained", _call(_publish, "save_pretrained")),
    Verb("save_pretrained, again", _call(_publish, "save_pretrained"), "published"),
    Verb("search --queries", _command(_queries), "mine", whole=True, gives=("hits.jsonl",)),
    Verb("export", _command(_export), "mine", whole=True, gives=("codes.parquet", "items.faiss")),
    Verb(
        "diagnose --out",
        _command(lambda base, run: ["diagnose", run, "--out", run / "diagnosis.html"]),
        "mine",
        whole=True,
        gives=("diagnosis.html",),
    ),
    Verb("import", _command(_import)),
)
BY_NAME = {verb.name: verb for verb in VERBS}


@dataclass
class Known:
    """What a verb does when nothing happens to it."""

    count: int
    """Operations on files."""
    written: int
    """Bytes."""
    seconds: float
    before: State
    after: State
    stages: dict[str, Any]
    out: Any
    last: str
    """The last thing it tells."""
    given: dict[str, str] = field(default_factory=dict)
    """Fingerprints of the files it gives."""


def start(verb: Verb, base: Path, run: Path) -> None:
    """Lay out what a verb starts from."""
    if verb.start:
        copy(base / verb.start, run)


def injured(verb: Verb, base: Path, run: Path, injury: ops.Injury, note: Path) -> int:
    """Begin a verb in a process of its own that has this coming to it; return the process id.

    What it told goes to `note` when it ends by itself.
    """

    def call() -> None:
        shim = ops.install(run, injury)
        import time

        begun = time.perf_counter()
        told = verb.do(base, run, False)
        told_all = {"code": told.code, "out": told.out, "err": told.err, "trace": told.trace}
        facts = {"count": shim.count, "written": shim.written, "seconds": time.perf_counter() - begun}
        shim.real["io.open"](note, "w").write(json.dumps(told_all | facts))
        if injury.power and injury.at is None:
            shim.die()

    return fork_call(call)


LEARNT = tuple(BY_NAME)


def learn(base: Base, name: str, scratch: Path) -> dict[str, Any]:
    """Do a verb undisturbed and keep what came of it."""
    verb, run, note = BY_NAME[name], scratch / "run", scratch / "note.json"
    start(verb, base.root, run)
    before, _ = see(run)
    os.waitpid(injured(verb, base.root, run, ops.Injury(), note), 0)
    told = json.loads(note.read_text())
    if told["code"]:
        raise RuntimeError(f"{verb.name} fails undisturbed: {told['err']}{told['trace']}")
    after, faults = see(run)
    if faults:
        raise RuntimeError(f"{verb.name} leaves a run that cannot be opened: {faults}")
    out = plain(Told(0, told["out"]), run) if verb.prints else None
    last = shorten(told["err"].strip().splitlines()[-1]) if told["err"].strip() else ""
    stages, _ = stages_of(run)
    counts = told["count"], told["written"], told["seconds"]
    return asdict(Known(*counts, before, after, stages, out, last, given_by(verb, run)))


def given_by(verb: Verb, run: Path) -> dict[str, str]:
    """Return fingerprints of the files that a verb gives, as far as they are there."""
    from siglum.files import file_fingerprint

    return {name: file_fingerprint(run / name) for name in verb.gives if (run / name).exists()}
