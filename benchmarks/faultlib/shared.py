"""Two processes or many threads on one run: nothing lost, nothing mixed, every answer that of one state."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from random import Random
from typing import Any

from faultlib import ops, threads
from faultlib.campaign import Base, Trial
from faultlib.forks import fork_call
from faultlib.state import difference, hits_of, questions, see, stages_of
from faultlib.told import Fault, Told, attempt, copy, fault, faults_of, tell
from faultlib.verbs import BY_NAME

BAR = 500
PAIRS = {
    "add + add": ("add more", "add last"),
    "add + remove": ("add more", "remove"),
    "add + same add": ("add more", "add more"),
    "remove + remove": ("remove", "remove others"),
    "add + rebuild": ("add more", "rebuild"),
    "add + eval": ("add more", "eval"),
    "add + compact": ("add more", "compact"),
    "remove + compact": ("remove", "compact"),
    "tokenize + tokenize": ("tokenize 5", "tokenize 6"),
    "train + train": ("train 5", "train 6"),
    "save + save": ("save more", "save last"),
    "save + add": ("save last", "add more"),
    "add + search": ("add more", "search"),
    "remove + search": ("remove", "search"),
    "compact + search": ("compact", "search"),
    "save + search": ("save more", "search"),
    "upsert + add": ("upsert", "add more"),
    "upsert + remove": ("upsert", "remove others"),
    "replace + compact": ("replace", "compact"),
    "export + add": ("export", "add more"),
    "queries + compact": ("search --queries", "compact"),
}
REFUSED = re.compile(r"\block|another process|in use|busy|at work|is writing|being written|waited|changed since", re.I)
"""Words of a refusal because of somebody else."""


def command(name: str, base: Base, run: Path) -> Told:
    """Do one of two things at once."""
    if name in ("upsert", "replace", "export", "search --queries"):
        return BY_NAME[name].do(base.root, run, False)
    verb, _, what = name.partition(" ")
    inputs = base.root / "inputs"
    if verb == "add":
        return tell(["index", run, "--add", inputs / f"{what}.jsonl"])
    if verb == "remove":
        gone = ("item20", "item21", "new2") if what else ("item7", "item77", "new1")
        return tell(["index", run, *(arg for name in gone for arg in ("--remove", name))])
    if verb in ("tokenize", "train"):
        return tell([verb, run, "--seed", what])
    if verb == "save":
        return _save(base, run, what)
    return tell(["index", run, *(["--compact"] if verb == "compact" else [])] if verb != "eval" else ["eval", run])


def _save(base: Base, run: Path, what: str) -> Told:
    """Save a retriever that was loaded from elsewhere and has items added in memory."""
    import siglum
    from siglum.data.corpus import read_items

    def save() -> None:
        retriever = siglum.Retriever.load(base.root / "mine")
        retriever.add(read_items(base.root / "inputs" / f"{what}.jsonl"))
        retriever.save(run)

    _, sentence, faults = attempt(save, "save")
    return Told(1 if sentence else 0, "", f"siglum save: {sentence}", faults[0].get("trace", "?") if faults else "")


def snapshot(run: Path, name: str) -> tuple[Any, list[Fault]]:
    """Return what can be seen of a run; after a training also its stages and settings, which must fit."""
    state, faults = see(run)
    if "error" in state:
        state = {"error": "one"}
    if not name.startswith(("tokenize", "train")):
        return state, faults
    stages, more = stages_of(run)
    told = tell(["info", run, "--json"])
    config = json.loads(told.out)["config"] if not told.code and not told.trace else {}
    return {
        "state": state,
        "stages": {key: stages.get(key) for key in ("2-tokenizer", "3-decoder")},
        "seed": config.get("seed"),
    }, faults + more


LEARNT = tuple(PAIRS)


def learn(base: Base, name: str, scratch: Path) -> list[Any]:
    """Do a pair one after the other, both ways, and each alone."""
    pair, outcomes = PAIRS[name], []
    for turn, order in enumerate(((0, 1), (1, 0), (0,), (1,))):
        run = copy(base.root / "mine", scratch / str(turn) / "run")
        codes = [-1, -1]
        for place in order:
            codes[place] = 0 if pair[place] == "search" else command(pair[place], base, run).code
        outcomes.append([codes, snapshot(run, name)[0]])
    return outcomes


def plan(base: Base, tries: int | None) -> list[Trial]:
    """Return trials, evenly over pairs of processes and kinds of threads."""
    cases = [f"processes:{name}" for name in PAIRS]
    return base.spread("shared", [*cases, *(f"threads:{name}" for name in threads.CASES)], tries or BAR)


def act(base: Base, trial: Trial, scratch: Path) -> dict[str, Any]:
    """Do two things at once and tell whether what came of it could have come of one after the other."""
    rng = Random(f"shared {base.seed} {trial.case} {trial.number}")
    way, _, name = trial.case.partition(":")
    if way == "threads":
        return {"faults": threads.CASES[name](base, rng, scratch)}
    run = copy(base.root / "mine", scratch / "run")
    pair, notes, pids = PAIRS[name], [scratch / "0.json", scratch / "1.json"], []
    first = rng.choice((0, 1))
    for place in (first, 1 - first):
        # Mostly one of the two stands still in the middle of its work, for the other to come between.
        pause = rng.randrange(most_operations(base, pair[place])) if place == first and rng.random() < 0.8 else None
        pids.append(_begin(base, run, pair[place], notes[place], pause))
        if len(pids) == 1:
            time.sleep(rng.choice((0.0, rng.random() * 0.06)))
    for pid in pids:
        os.waitpid(pid, 0)
    ends = [json.loads(note.read_text()) if note.exists() else None for note in notes]
    if None in ends:
        return {"faults": [fault("crash", f"{name}: one of the two did not end by itself")]}
    told = [Told(end["code"], end["out"], end["err"], end["trace"]) for end in ends if end]
    faults = [
        one for place, end in enumerate(told) for one in faults_of(end, f"{pair[place]} beside {pair[1 - place]}")
    ]
    faults += [one for end in ends if end for one in end["faults"]]
    return {"faults": faults or _judge(base, name, told, run)}


def most_operations(base: Base, what: str) -> int:
    """Return about how many operations on files something takes."""
    verb = {"add": "index --add", "compact": "index --compact", "save": "save, own run"}.get(
        what.split()[0], what.split()[0]
    )
    return base.known[verb].count if verb in base.known else 30


def _begin(base: Base, run: Path, what: str, note: Path, pause: int | None) -> int:
    def call() -> None:
        ops.install(run, ops.Injury(pause=pause))
        wrong: list[Fault] = []
        if what == "search":
            told, wrong = _search_on(base, run)
        else:
            told = command(what, base, run)
        end = {"code": told.code, "out": told.out, "err": told.err, "trace": told.trace, "faults": wrong}
        note.write_text(json.dumps(end))

    return fork_call(call)


def _search_on(base: Base, run: Path) -> tuple[Told, list[Fault]]:
    """Open and search the run again and again; every answer must be the old one or the new one."""
    import siglum

    seen: list[Any] = []
    for _ in range(6):
        found, sentence, faults = attempt(
            lambda: (lambda r: hits_of(r.search_features(questions(r), k=8)))(siglum.Retriever.load(run)), "search"
        )
        if faults:
            return Told(0), faults
        seen.append(found if not sentence else {"error": sentence})
    return Told(0, json.dumps(seen)), []


def _judge(base: Base, name: str, told: list[Told], run: Path) -> list[Fault]:
    outcomes, pair = base.facts["shared"][name], PAIRS[name]
    found, faults = snapshot(run, name)
    if faults:
        return faults
    found = json.loads(json.dumps(found))
    codes = [end.code for end in told]
    if "search" in pair:
        faults = _judge_search(base, name, told[pair.index("search")])
        codes[pair.index("search")] = 0
    if not any(codes == known[0] and found == known[1] for known in outcomes[:2]):
        faults = faults + _explain(pair, told, codes, found, outcomes)
    return faults


def _explain(pair: tuple[str, str], told: list[Told], codes: list[int], found: Any, outcomes: list[Any]) -> list[Fault]:
    """Say in what way two things at once gave what neither order gives, unless one was refused because of the other."""
    refused = [place for place, code in enumerate(codes) if code == 1]
    for place in refused:
        alone = outcomes[2 + 1 - place]
        if REFUSED.search(told[place].sentence) and codes[1 - place] == alone[0][1 - place] and found == alone[1]:
            return []
    names = " beside ".join(pair)
    if refused and not any(found == known[1] for known in outcomes):
        return [fault("silent", f"{names}: a state that neither order gives, and: {told[refused[0]].sentence}")]
    if refused:
        return [
            fault("stuck", f"{names}: {pair[refused[0]]} fails where it would not alone: {told[refused[0]].sentence}")
        ]
    states = [known[1] for known in outcomes[:2]]
    if "all" in found and all("all" in state for state in states):
        what = difference(found, *states)
        return [fault("loss" if "gone" in what else "silent", f"{names}, both ended well: {what}")]
    return [fault("silent", f"{names}, both ended well, but {json.dumps(found)[:200]} is of neither order")]


def _judge_search(base: Base, name: str, told: Told) -> list[Fault]:
    """Tell whether every answer of a search is that of the state before or after."""
    outcomes = base.facts["shared"][name]
    before, after = base.facts["earlier"][1]["hits"], outcomes[0][1].get("hits")
    for answer in json.loads(told.out or "[]"):
        if isinstance(answer, dict):
            if "save" in name and answer["error"]:
                continue  # a whole run is written anew; it may be told to be unfinished
            return [fault("stuck", f"{name}: a search is refused while the index changes: {answer['error']}")]
        if answer not in (before, after):
            return [fault("silent", f"{name}: a search answers with neither the old nor the new state")]
    return []
