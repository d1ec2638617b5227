"""Entry point: finds the verb, imports only its file, and turns errors into one sentence."""

from __future__ import annotations

import importlib
import os
import sys

from siglum import __version__

VERBS = {
    "demo": "see the whole pipeline at work on the drawn world",
    "build": "a folder of pictures -> a search engine, in one go",
    "encode": "1  items and queries -> frozen features",
    "tokenize": "2  features -> fused vectors -> codes",
    "train": "3  train the decoder that generates codes",
    "index": "4  codes -> searchable index; add or remove items",
    "search": "5  ask a question",
    "serve": "a run behind HTTP, and a page to search it with",
    "eval": "6  measure a run on its tasks",
    "explain": "where and why the beam keeps or loses a target",
    "diagnose": "where the beam loses its targets, level by level, and what to do",
    "report": "one page about one run, or about several side by side",
    "info": "what a run folder holds, with curves",
    "import": "a model of GENIUS -> a run",
    "export": "a run's codes as parquet or as a faiss index",
    "experiment": "the tables and figures of the paper, on the drawn world, captions or products",
    "recommend": "what comes next in a user's sequence: recommend fit, eval, next",
    "bench": "measure systems side by side: bench captions, bench catalogue, ...",
}
LAB = ("demo", "experiment", "bench")
"""Verbs of the lab."""
BENCHES = ("captions", "catalogue", "mbeir", "sequences", "speed")
RECOMMENDS = ("fit", "eval", "next")
GROUPS = {"bench": ("benches", BENCHES), "recommend": ("verbs", RECOMMENDS)}
"""Verbs that are several, and what these are called."""
BENCH_HELP = """siglum bench NAME ...      (siglum bench NAME --help tells more)

  captions   text to image and image to text over frozen features of captioned images
  catalogue  all eight kinds of query on photographs and names of products
  mbeir      the nine tasks of the paper on M-BEIR
  sequences  recommenders on users' sequences, TIGER and PRO among them
  speed      queries a second and latency beside other libraries and dense search

Example:
  siglum bench captions --data flickr8k --seeds 3 --out captions.json
"""
RECOMMEND_HELP = """siglum recommend VERB ...      (siglum recommend VERB --help tells more)

  fit        sequences of users and item vectors -> a run
  eval       measure a run on held-out users
  next       what comes next in one user's history

Example:
  siglum recommend fit --data beauty --out runs/beauty
  siglum recommend next runs/beauty --user 17
"""
HELPS = {"bench": BENCH_HELP, "recommend": RECOMMEND_HELP}
HELP = """siglum: multimodal generative retrieval

usage: siglum VERB ...      (siglum VERB --help tells more, with an example)

{verbs}

example:
  siglum demo --out runs/demo
  siglum search runs/demo "a big red star left of a blue ring"
"""


def module_of(verb: str) -> str:
    """Return the module of a verb.

    >>> module_of("search"), module_of("bench speed")
    ('siglum.cli.search', 'siglum.lab.cli.bench_speed')
    """
    place = "siglum.lab.cli" if verb.split()[0] in LAB else "siglum.cli"
    return f"{place}.{verb.replace(' ', '_')}"


def main(argv: list[str] | None = None) -> int:
    """Run one verb and return its exit code: 0 done, 1 the user can mend it, 2 wrong usage."""
    try:
        code = _main(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except BrokenPipeError:
        if not _reader_left():
            raise
        return 1
    return code


def _reader_left() -> bool:
    """Return whether nobody reads stdout any more; what is not yet written is dropped, lest Python try at its end."""
    try:
        sys.stdout.write("\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False


def _main(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        sys.stdout.write(HELP.format(verbs="\n".join(f"  {name:<12}{text}" for name, text in VERBS.items())))
        return 0
    if args[0] == "--version":
        sys.stdout.write(f"siglum {__version__}\n")
        return 0
    if args[0] not in VERBS:
        sys.stderr.write(f"siglum: there is no verb {args[0]!r}; the verbs are {', '.join(VERBS)}.\n")
        return 2
    name, rest = args[0], args[1:]
    if name in GROUPS:
        what, known = GROUPS[name]
        if rest and rest[0] in ("-h", "--help"):
            sys.stdout.write(HELPS[name])
            return 0
        if not rest or rest[0] not in known:
            asked = rest[0] if rest else "nothing"
            sys.stderr.write(f"siglum {name}: the {what} are {', '.join(known)}, not {asked}.\n")
            return 2
        name, rest = f"{name} {rest[0]}", rest[1:]
    # Threads that wait must not spin: on a shared machine spinning costs more than it gains.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    verb = importlib.import_module(module_of(name))
    from siglum.console.commands import call

    return call(verb.Command, verb.run, name, rest)


if __name__ == "__main__":
    sys.exit(main())
