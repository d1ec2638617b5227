"""What all sections share: the bases, what is known of them, and the order of trials."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from faultlib.told import Fault, Told, faults_of

if TYPE_CHECKING:
    from faultlib.verbs import Known


LEARNING = 300.0
"""Seconds of computing after which something undisturbed counts as hanging."""


@dataclass(frozen=True)
class Trial:
    """One thing to try; its seed, section, case and number decide everything about it."""

    section: str
    case: str
    number: int

    @property
    def id(self) -> str:
        """The name by which it can be tried again."""
        return f"{self.section}/{self.case}/{self.number}"


@dataclass
class Noted(Told):
    """How a verb ended that wrote a note of it, with what is wrong about that."""

    faults: list[Fault] = field(default_factory=list)


@dataclass
class Base:
    """Where the tiny runs are and what is known of them."""

    root: Path
    seed: int
    known: dict[str, Known]
    facts: dict[str, Any]
    """What sections learnt of the undisturbed runs."""

    def spread(self, section: str, cases: list[str], tries: int, share: dict[str, int] | None = None) -> list[Trial]:
        """Return trials spread over cases evenly, or by their shares; the first of every case come first."""
        weight = share or dict.fromkeys(cases, 1)
        total = sum(weight.values())
        trials = []
        for case in cases:
            number = max(1, math.ceil(tries * weight[case] / total))
            trials += [((n + 0.5) / number, Trial(section, case, n)) for n in range(number)]
        order = {case: Random(f"{self.seed} {section} {case}").random() for case in cases}
        return [trial for _, trial in sorted(trials, key=lambda pair: (pair[0], order[pair[1].case]))][: max(tries, 1)]

    def read_note(self, note: Path) -> Noted | None:
        """Return how a verb ended, or None if it was killed first."""
        try:
            told = json.loads(note.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        end = Told(told["code"], told["out"], told["err"], told["trace"])
        return Noted(end.code, end.out, end.err, end.trace, faults_of(end, "the verb"))


def make(root: Path, seed: int) -> None:
    """Make the bases and learn what verbs and readers do undisturbed; meant for a process of its own."""
    from faultlib import damages, live, shared, verbs
    from faultlib.base import make_bases
    from faultlib.forks import run_trials

    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    make_bases(root, seed)
    base, parts = Base(root, seed, {}, {}), {"verbs": verbs, "damages": damages, "shared": shared, "live": live}
    facts: dict[str, Any] = {name: {} for name in parts}

    def learn(trial: Trial, scratch: Path) -> dict[str, Any]:
        return {"found": parts[trial.section].learn(base, trial.case, scratch)}

    trials = [Trial(name, case, 0) for name, part in parts.items() for case in part.LEARNT]
    for trial, result in run_trials(iter(trials), learn, root / "scratch", workers=2, limit=LEARNING):
        if "found" not in result:
            raise RuntimeError(f"{trial.case} fails undisturbed: {result['faults']}")
        facts[trial.section][trial.case] = result["found"]
    (root / "known.json").write_text(json.dumps({**facts, **about(root)}))


def about(root: Path) -> dict[str, Any]:
    """Return what is in the bases: items, code sizes, files, and answers before and after something was added."""
    import siglum
    from faultlib.state import see

    mine = root / "mine"
    states = [see(root / name)[0] for name in ("plain", "mine")]
    return {
        "earlier": states,
        "ids": [hit[0] for hit in states[1]["all"]],
        "sizes": [int(size) for size in siglum.Retriever.load(mine).index.sizes],
        "files": sorted(str(path.relative_to(mine)) for path in mine.rglob("*") if path.is_file()),
    }


def load(root: Path) -> Base:
    """Read what `make` left, and import all that it had imported."""
    import importlib

    from faultlib.verbs import Known

    made, facts = (json.loads((root / name).read_text()) for name in ("made.json", "known.json"))
    for name in made["modules"]:
        try:
            importlib.import_module(name)
        except Exception as error:  # a module that only comes to life inside another
            del error
    import torch

    torch.set_num_threads(1)
    return Base(root, made["seed"], {name: Known(**one) for name, one in facts["verbs"].items()}, facts)


def calm() -> None:
    """Keep every library to one thread, before any is imported: a fork may not inherit a pool of them."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
        os.environ[name] = "1"
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    sys.stdout.flush()
