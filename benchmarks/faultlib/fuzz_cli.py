"""The command line with options nobody should give: wrong kinds, sizes, paths and letters."""

from __future__ import annotations

import importlib
import json
import math
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any

from faultlib.base import SETTINGS, encode_command
from faultlib.campaign import Base
from faultlib.fuzz_values import Case
from faultlib.state import see
from faultlib.told import Fault, Told, fault, faults_of, tell
from siglum.cli import main

NUMBERS = (
    "0",
    "-1",
    "1",
    "3",
    "2.5",
    "nan",
    "inf",
    "-inf",
    "1e308",
    "-1e9",
    "10000000000000",
    "1e-300",
    "0x10",
    "True",
)
WORDS = (
    "", " ", "\t", "\n", "a\nb", "\x00", "é", "日本語", "🙂", "🙂🙂", "\udcff", "\ud800", "‮abc", "x" * 5000,
    "--", "-", "--k", "None", "null", "[]", "{}", "../..", "/", ".", "~", "a b", "'", '"', "%s%n", "{0}", "$(ls)", "*",
)  # fmt: skip
WORDED = (
    "red star",
    "cat",
    "val",
    "test",
    "train",
    "fused",
    "geometry",
    "oracle",
    "decoder",
    "cpu",
    "pro",
    "tiny",
    "builtin",
)
SET = (
    "decoder.epochs=-1", "decoder.epochs=x", "decoder.epochs=1.5", "tokenizer.vocab=[]", "tokenizer.vocab=[1]",
    "tokenizer.vocab=[2,null]", "tokenizer.vocab=3", "tokenizer.vocab=[4,8,8", "nothing=1", "tokenizer=1",
    "tokenizer={}",
    "tokenizer.nothing=1", "seed=1", "search.beam=0", "search.beam=1e3", "search.omega=nan", "search.omega=NaN",
    "search.omega=-1", "search.scorer=none", "fusion.dim=0", "fusion.lr=nan", "fusion.lr=1e400", "decoder.heads=3",
    "decoder.d_model=0", "decoder.lr=\"a\"", "x", "=", "a=b=c", ".=1", "..=1", "decoder.=1", "decoder.dropout=2",
    "decoder.batch_size=true", "decoder.batch_size=0", "tokenizer.batch_size=10000000000", "decoder.softmax=none",
    "decoder.t5_weights=/nowhere", "decoder.t5_weights=1", "tokenizer.temperature=0", "decoder.lr=1e30",
    "fusion.kind=none", "fusion.kind=sum", "tokenizer.assign_beam=0", "search.batch_size=0", "tokenizer.lr=1e30",
)  # fmt: skip
WRITTEN = ("out", "sheet", "codes", "faiss")
"""Options that name what is written."""
SLOW = {"tensorboard", "open"}
"""Options that only take time, or open a browser."""
ENDLESS = {"world": ("-1", "0", "5", "199", "10000000000000", "x"), "variants": ("-1", "0", "1", "x", "nan")}
"""Options of which some right values would take hours."""
HEAVY = (
    *(verb for verb in main.LAB if verb != "bench"),
    *(f"bench {name}" for name in main.BENCHES),
    *("serve", "recommend fit"),
)
"""Verbs of which a right call takes minutes, or does not end: always given something that cannot be right."""


def paths(rng: Random, scratch: Path) -> str:
    """Return a path that is there, is not there, or is something else."""
    junk = scratch / "junk"
    if not junk.exists():
        junk.write_bytes(bytes(rng.randrange(256) for _ in range(300)))
        (scratch / "empty.jsonl").write_bytes(b"")
        (scratch / "folder.jsonl").mkdir()
        (scratch / "dangling.jsonl").symlink_to("nowhere")
        (scratch / "loop").symlink_to("loop")
    there = ("run", "junk", "empty.jsonl", "folder.jsonl", "dangling.jsonl", "loop", "nowhere.jsonl", "run/config.json")
    some = (
        *there,
        "run/4-index",
        "nowhere/deep/a.html",
        "/dev/null",
        "/dev/null/x",
        "/proc/self/mem",
        "",
        "x" * 300,
        "\x00",
    )
    return rng.choice(some)


def value(field: Any, rng: Random, scratch: Path) -> str:
    """Return a value for an option, more often of its kind than not."""
    kind = str(field.type)
    if field.name in ENDLESS:
        return rng.choice(ENDLESS[field.name])
    if field.name == "set":
        return rng.choice(SET)
    if field.name == "encoder":
        return rng.choice(("builtin", "none", "", "nothing", "builtin+builtin", "builtin:x", "a+b+c", "🙂", "+", ":"))
    if rng.random() < 0.12:
        return rng.choice(NUMBERS + WORDS)
    if "Path" in kind:
        return paths(rng, scratch)
    if "int" in kind or "float" in kind:
        return rng.choice(NUMBERS)
    return rng.choice(WORDS + WORDED)


def arguments(command: type[Any], rng: Random, scratch: Path, verb: str) -> list[str]:
    """Return options of a verb at random."""
    args: list[str] = []
    options = [f for f in fields(command) if f.name not in SLOW]
    for field in rng.sample(options, min(len(options), rng.choice((0, 1, 1, 2, 3)))):
        name, kind = field.name, str(field.type)
        if "Positional" in kind:
            continue
        option = "-k" if name == "k" and verb == "search" and rng.random() < 0.3 else f"--{name.replace('_', '-')}"
        if "bool" in kind:
            args.append(option if rng.random() < 0.9 else f"{option}=maybe")
        elif rng.random() < 0.05:
            args.append(option)
        elif name in WRITTEN:
            args += [option, rng.choice(("run", "new/run", "junk", "/dev/null/x", "run/config.json", "", "\x00"))]
        else:
            args += [option, value(field, rng, scratch)]
    if rng.random() < 0.06:
        args.insert(rng.randrange(len(args) + 1), rng.choice(("--nothing", "-z", "--", "-", "--k", *WORDS)))
    return args


def _verb(verb: str) -> Case:
    def case(base: Base, rng: Random, scratch: Path) -> tuple[str, list[Fault]]:
        module = importlib.import_module(main.module_of(verb))
        paths(rng, scratch)
        args = arguments(module.Command, rng, scratch, verb)
        run = "run" if rng.random() < 0.8 else paths(rng, scratch)
        argv = [*verb.split(), *_positional(verb, run, rng, base, scratch), *args]
        if verb in HEAVY:
            argv.append(rng.choice(("--no-such-option", "--seed=x", "--json=maybe")))
        before = see(scratch / "run")[0] if verb == "index" else None
        told = tell(argv)
        way = " ".join(map(ascii, argv))
        faults = faults_of(told, verb) or _check(verb, argv, told)
        if before and told.code and not faults and see(scratch / "run")[0] != before:
            faults = [fault("silent", f"{verb} failed, but the run answers otherwise: {told.sentence}")]
        return way, faults

    return case


def _positional(verb: str, run: str, rng: Random, base: Base, scratch: Path) -> list[str]:
    if verb == "encode":
        if rng.random() < 0.5:
            return []
        return [str(arg) for arg in encode_command(base.root / "inputs", scratch / "new", 0)[1:]]
    if verb == "search":
        return [run, rng.choice((*WORDED, *WORDS))]
    if verb == "explain":
        query = ["--query", rng.choice((*WORDED, *WORDS))] if rng.random() < 0.5 else ["--query-id", "test0"]
        return [run, *query, *(["--target", rng.choice(("item3", "nothing", "🙂"))] if rng.random() < 0.7 else [])]
    if verb == "report":
        return [run, *([paths(rng, scratch)] if rng.random() < 0.3 else [])]
    if verb == "build":
        photos = str(base.root / "photos") if rng.random() < 0.3 else paths(rng, scratch)
        return [
            photos,
            "--out",
            rng.choice(("run", "new", "junk")),
            "--encoder",
            "builtin",
            "--scale",
            "tiny",
            *SETTINGS,
        ]
    return [] if verb in (*HEAVY, "import") else [run]


def _check(verb: str, argv: list[str], told: Told) -> list[Fault]:
    """Look at an answer: as many hits as asked for, in order, with real scores, of real items."""
    if told.code or verb != "search" or "--json" not in argv:
        return []
    hits = json.loads(told.out)["hits"]
    scores = [hit["score"] for hit in hits]
    good = all(math.isfinite(score) for score in scores) and scores == sorted(scores, reverse=True)
    ids = [hit["item_id"] for hit in hits]
    if not good or len(set(ids)) != len(ids) or not all(name.startswith(("item", "new")) for name in ids):
        return [fault("silent", f"search gives hits that cannot be: {hits[:3]}")]
    for option in ("--k", "-k", "--beam", "--omega"):
        given = argv[argv.index(option) + 1] if option in argv[:-1] else ""
        if given in ("0", "-1", "nan", "-inf", "-1e9", "inf") and not (given == "0" and option == "--omega"):
            return [fault("silent", f"search takes {option} {given} without a word")]
    return []


def _no_verb(base: Base, rng: Random, scratch: Path) -> tuple[str, list[Fault]]:
    argv = [rng.choice(WORDS + NUMBERS + ("bench", "Search", "index ")) for _ in range(rng.choice((1, 1, 2, 3)))]
    told = tell(argv)
    return " ".join(map(ascii, argv)), faults_of(told, "no verb")


SINGLE = tuple(verb for verb in main.VERBS if verb not in (*main.LAB, *main.GROUPS))
GROUPED = tuple(f"recommend {name}" for name in main.RECOMMENDS)
CASES: dict[str, Case] = {**{verb: _verb(verb) for verb in (*SINGLE, *GROUPED, *HEAVY)}, "no verb": _no_verb}
