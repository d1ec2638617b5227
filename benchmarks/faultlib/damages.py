"""Damage: every file of a run, hurt in every way, and then read by everything that reads."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from faultlib.campaign import Base, Trial
from faultlib.state import difference, plain, see, stages_of
from faultlib.told import Fault, attempt, copy, fault, faults_of, tell
from faultlib.verbs import BY_NAME, given_by

BAR = 1000
KINDS = ("bit", "byte", "zero", "truncate", "extend", "empty", "delete", "swap")
Answer = tuple[Any, str, list[Fault]]
"""What a reader found (None after an error), what it told people, and what is wrong with how it ended."""
NOTES = ("log.jsonl", "5-runs/", "6-report/")
"""Files nothing is answered from."""


def _command(*args: str, part: Callable[[Any], Any] = lambda found: found) -> Callable[[Base, Path], Answer]:
    def read(base: Base, run: Path) -> Answer:
        told = tell([args[0], run, *args[1:]])
        faults = faults_of(told, " ".join(args[:1]))
        answer = plain(told, run) if "--json" in args else True
        return (None if told.code or faults else part(answer)), told.err, faults

    return read


def _load(base: Base, run: Path) -> Answer:
    heard = io.StringIO()
    handler = logging.StreamHandler(heard)
    logging.getLogger("siglum").addHandler(handler)
    state, faults = see(run)
    logging.getLogger("siglum").removeHandler(handler)
    return (None if "error" in state else state), state.get("error", "") + heard.getvalue(), faults


def _add(base: Base, run: Path) -> Answer:
    told = tell(["index", run, "--add", base.root / "inputs" / "more.jsonl"])
    faults = faults_of(told, "index --add")
    if told.code or faults:
        return None, told.err, faults
    state, told_then, more = _load(base, run)
    return state, told.err + told_then, more


def _resume(verb: str) -> Callable[[Base, Path], Answer]:
    def read(base: Base, run: Path) -> Answer:
        told = tell([verb, run, "--resume"])
        faults = faults_of(told, f"{verb} --resume")
        return (None if told.code or faults else stages_of(run)[0]), told.err, faults

    return read


def _report(found: Any) -> Any:
    """Return what a report measured, if it found all stages; one that is damaged is told about and left out."""
    run = found["runs"][0]
    return [run["tasks"], run["items"]] if all(run["stages"].values()) and not run["notes"] else "told"


def _info(found: Any) -> Any:
    stages = {name: [one["state"], one["fingerprint"]] for name, one in found["stages"].items()}
    return {"config": found["config"], "stages": stages}


def _reconstruct(base: Base, run: Path) -> Answer:
    import siglum

    def rebuild() -> Any:
        retriever = siglum.Retriever.from_pretrained(run)
        return retriever.reconstruct(list(retriever.index.ids)[::7]).tolist()

    found, sentence, faults = attempt(rebuild, "reconstruct")
    return found, sentence, faults


def _against(base: Base, run: Path) -> Answer:
    """Compare a whole run with this one, by the rankings that lie in it."""
    told = tell(["eval", copy(base.root / "mine", run.parent / "whole"), "--against", run, "--json"])
    faults = faults_of(told, "eval --against")
    return (None if told.code or faults else json.loads(told.out)["against"]), told.err, faults


def _written(verb: str) -> Callable[[Base, Path], Answer]:
    """Return a reader that writes what it finds to files, which are compared."""

    def read(base: Base, run: Path) -> Answer:
        told = BY_NAME[verb].do(base.root, run, False)
        faults = faults_of(told, verb)
        return (None if told.code or faults else given_by(BY_NAME[verb], run)), told.err, faults

    return read


READERS: dict[str, Callable[[Base, Path], Answer]] = {
    "load": _load,
    "search": _command("search", "red star", "--json"),
    "search --image": _command("search", "--image", "IMAGE", "--json"),
    "info": _command("info", "--json", part=_info),
    "info --check": _command("info", "--check"),
    "explain": _command("explain", "--query-id", "test0", "--json"),
    "diagnose": _command("diagnose", "--json"),
    "eval --against": _against,
    "eval": _command("eval", "--json"),
    "report": _command("report", "--json", part=_report),
    "tokenize --resume": _resume("tokenize"),
    "train --resume": _resume("train"),
    "reconstruct": _reconstruct,
    "search --queries": _written("search --queries"),
    "export": _written("export"),
    "diagnose --out": _written("diagnose --out"),
    "index --add": _add,
}
WRITERS = ("search --queries", "export", "diagnose --out")
ANSWERS = (
    "load", "search", "search --image", "explain", "diagnose", "eval", "reconstruct", *WRITERS, "index --add",
)  # fmt: skip


def read(name: str, base: Base, run: Path) -> Answer:
    """Ask one reader."""
    if name == "search --image":
        return _command("search", "--image", str(base.root / "inputs" / "a.png"), "--json")(base, run)
    return READERS[name](base, run)


def readers_of(base: Base, artifact: str) -> list[str]:
    """Return the readers to ask after this file was damaged; those that write come last."""
    names = [name for name in READERS if not name.endswith("--resume")]
    if "checkpoint" in artifact:
        names = ["load", "tokenize --resume" if artifact.startswith("2") else "train --resume"]
    return names


LEARNT = tuple(READERS)


def learn(base: Base, name: str, scratch: Path) -> Any:
    """Ask a reader of the whole run, twice: what differs by itself is not compared."""
    found = []
    for turn in ("a", "b"):
        answer, told, faults = read(name, base, copy(base.root / "mine", scratch / turn / "run"))
        if answer is None or faults:
            raise RuntimeError(f"{name} fails on a whole run: {told} {faults}")
        found.append(json.loads(json.dumps(answer)))
    return found[0] if found[0] == found[1] else None


def plan(base: Base, tries: int | None) -> list[Trial]:
    """Return trials: every file in every way, as evenly as the number allows."""
    cases = [f"{kind}:{name}" for name in base.facts["files"] for kind in KINDS]
    return base.spread("damages", cases, max(tries or BAR, 1))


def role(name: str) -> str:
    """Return a path without its numbers, so that files of the same role in two runs can be matched.

    >>> role("4-index/segment-000012/ids.safetensors")
    'N-index/segment-N/ids.safetensors'
    """
    return re.sub(r"[0-9a-f]{16}|\d+", "N", name)


def partner(base: Base, name: str) -> Path | None:
    """Return the file of the other run that has the same role."""
    other = base.root / "other"
    if (other / name).is_file():
        return other / name
    alike = [p for p in sorted(other.rglob("*")) if p.is_file() and role(str(p.relative_to(other))) == role(name)]
    return alike[0] if alike else None


def hurt(base: Base, run: Path, name: str, kind: str, rng: Random) -> str:
    """Damage one file and say how; an empty string means that nothing changed."""
    path = run / name
    data = bytearray(path.read_bytes())
    before = bytes(data)
    # Half of the damage goes near an end, where headers and last records are.
    end = rng.choice((64, len(data))) or 1
    at = rng.randrange(min(end, len(data)) or 1)
    at = len(data) - 1 - at if rng.random() < 0.25 and data else at
    how = f"{kind} at {at:,} of {len(data):,} bytes"
    if kind == "delete":
        path.unlink()
        return "deleted"
    if kind == "swap":
        source = partner(base, name)
        data = bytearray(source.read_bytes()) if source else data
        how = "swapped with that of another run"
    elif kind == "extend":
        data += bytes(rng.randrange(256) for _ in range(rng.choice((1, 7, 512))))
    elif not data:
        return ""
    elif kind == "bit":
        data[at] ^= 1 << rng.randrange(8)
    elif kind == "byte":
        data[at] = rng.randrange(256)
    elif kind == "zero":
        span = rng.choice((1, 8, 512))
        data[at : at + span] = bytes(len(data[at : at + span]))
    elif kind == "truncate":
        del data[at:]
    elif kind == "empty":
        data.clear()
    path.write_bytes(data)
    return how if bytes(data) != before else ""


def act(base: Base, trial: Trial, scratch: Path) -> dict[str, Any]:
    """Damage a copy and ask every reader."""
    rng = Random(f"damages {base.seed} {trial.case} {trial.number}")
    kind, _, name = trial.case.partition(":")
    run = copy(base.root / "mine", scratch / "run")
    how = hurt(base, run, name, kind, rng)
    faults: list[Fault] = []
    if not how:
        return {"faults": [], "way": "nothing changed"}
    expected = base.facts["damages"]
    for reader in readers_of(base, name):
        answer, told, wrong = read(reader, base, run)
        wrong = wrong or _judge(base, name, kind, reader, answer, told, expected.get(reader))
        faults += wrong
    return {"faults": [one | {"what": f"{one['what']} ({name} {how})"} for one in faults], "way": f"{name}: {how}"}


def _judge(base: Base, name: str, kind: str, reader: str, answer: Any, told: str, expected: Any) -> list[Fault]:
    """Tell whether a reader's answer is one it may give after this damage."""
    note = name.startswith(NOTES) or "checkpoint/" in name
    if answer is None:
        if note and reader in ANSWERS:
            return [
                fault("stuck", f"damage of {role(name)}, from which nothing is answered, stops {reader}: {told[-300:]}")
            ]
        return []
    if reader == "info --check":
        times = name == "log.jsonl" and kind in ("bit", "byte", "zero")  # which are compared with nothing
        unchecked = times or name.endswith(("checks.json", ".ack", "report.html"))
        return [] if unchecked else [fault("silent", f"info --check calls a run whole whose {role(name)} is damaged")]
    answer = json.loads(json.dumps(answer))
    if expected is None or answer in (expected, "told"):
        return []
    if reader == "info" and any(answer["stages"][key][0] != one[0] for key, one in expected["stages"].items()):
        return []  # it tells that a stage is not whole
    # Cut short, an append-only log holds fewer updates: some earlier state, and it is told.
    shorter = "log" in Path(name).name and (kind in ("truncate", "empty") or told)
    if reader == "load" and shorter and answer in base.facts["earlier"]:
        return []
    more = f": {difference(answer, expected)}" if reader == "load" else ""
    return [fault("silent", f"{reader} gives another answer after damage of {role(name)}{more}")]
