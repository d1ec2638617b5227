"""The parts on plain tensors, changes that last, published folders and functions on runs, given what nobody should."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch

from faultlib.campaign import Base
from faultlib.fuzz_values import ANYTHING, Case, words
from faultlib.state import answers_of, see
from faultlib.told import Fault, attempt, copy, fault

ITEMS, LEVELS, SIZE, DIM, QUERIES = 12, 3, 4, 5, 6
NUMBERS = (0, -1, 1, 2, 2.5, "3", None, math.nan, math.inf, True, 10**9, [])


def _tensors(rng: Random) -> dict[str, Any]:
    """Return what the parts take, and all of it right."""
    draw = torch.Generator().manual_seed(rng.randrange(99))
    books = [torch.randn(SIZE, DIM, generator=draw) for _ in range(LEVELS)]
    codes = torch.randint(SIZE, (ITEMS, LEVELS), generator=draw)
    partial = torch.stack([books[level][codes[:, level]] for level in range(LEVELS)], 1).cumsum(1)
    queries = torch.randn(QUERIES, DIM, generator=draw)
    return {"codes": codes, "codebooks": books, "partial": partial, "items": partial[:, -1], "queries": queries}


def _spoilt(value: Any, rng: Random) -> Any:
    """Return something like a tensor (or a list of them) that is wrong in one way, or anything at all."""
    if isinstance(value, list):
        narrow = [one[..., :-1] if isinstance(one, torch.Tensor) else one for one in value]
        return rng.choice((value[:-1], [], [*value, value[0]], narrow, *ANYTHING))
    if not isinstance(value, torch.Tensor):
        return rng.choice(ANYTHING)
    changes: tuple[Callable[[], Any], ...] = (
        lambda: value[:-1], lambda: value[..., :-1], lambda: value[0], lambda: value[None], lambda: value[:0],
        lambda: value.double(), lambda: value.half(), lambda: value.long() - 9, lambda: value.bool(),
        lambda: value * math.nan, lambda: value.numpy(), lambda: value.tolist(), lambda: value + 10**6,
        lambda: rng.choice(ANYTHING),
    )  # fmt: skip
    return rng.choice(changes)()


def _scorer(query: torch.Tensor, codes_RL: torch.Tensor) -> torch.Tensor:
    return torch.zeros(len(query), SIZE)


SCORERS: tuple[Any, ...] = (
    None, _scorer, lambda query, codes: torch.zeros(len(query), 1), lambda query, codes: None,
    lambda query, codes: torch.full((len(query), SIZE), math.nan), lambda: None, "x", 3,
)  # fmt: skip


def parts(base: Base, rng: Random, scratch: Path) -> tuple[str, list[Fault]]:
    """Call the parts on plain tensors with one or two of them wrong."""
    import siglum

    tensors = _tensors(rng)
    verb = rng.choice(("build_trie", "fused_beam_search", "diagnose_codes", "prefix_ranking_loss"))
    if verb == "build_trie":
        given: dict[str, Any] = {"codes_NL": tensors["codes"], "sizes": (SIZE,) * LEVELS}
        given["ids"] = rng.choice((None, [f"i{n}" for n in range(ITEMS)]))
    elif verb == "fused_beam_search":
        given = {"trie": siglum.build_trie(tensors["codes"]), "scorer": rng.choice(SCORERS[:2])}
        given |= {"query": tensors["queries"], "codebooks": tensors["codebooks"], "beam": 3, "k": 2}
    elif verb == "diagnose_codes":
        names = {"codes": "codes_NT", "codebooks": "codebooks", "queries": "query_QD", "items": "item_ND"}
        given = {name: tensors[own] for own, name in names.items()} | {"beam": 3}
    else:
        names = {"queries": "query_QD", "items": "target_ND", "partial": "partial_NTD", "codes": "codes_NT"}
        given = {name: tensors[own] for own, name in names.items()}
    for name in rng.sample(list(given), rng.choice((0, 1, 1, 2))):
        if name in ("beam", "k"):
            given[name] = rng.choice(NUMBERS)
        elif name == "scorer":
            given[name] = rng.choice(SCORERS)
        else:
            given[name] = _spoilt(given[name], rng)
    if rng.random() < 0.3 and verb != "build_trie":
        given["first_geometric" if verb == "fused_beam_search" else "first_residual"] = rng.choice(NUMBERS)
    if rng.random() < 0.2 and verb == "fused_beam_search":
        given[rng.choice(("omega", "within", "batch_size"))] = rng.choice((*NUMBERS, *ANYTHING))
    found, sentence, faults = attempt(lambda: getattr(siglum, verb)(**given), verb)
    if verb == "fused_beam_search" and not sentence and not faults:
        scores = [float(score) for ranking in found for score in ranking.score]
        if not all(map(math.isfinite, scores)):
            faults = [fault("silent", f"{verb} gives scores that are no numbers")]
    return words(verb, given), faults


def lasting(base: Base, rng: Random, scratch: Path) -> tuple[str, list[Fault]]:
    """Change a run through the log with wrong things: what is refused changes neither memory nor disk."""
    import siglum

    run = copy(base.root / "mine", scratch / "run")
    one, verb = siglum.Retriever.load(run), rng.choice(("add", "upsert", "remove", "replace"))
    item = siglum.Item(id="z1", text="red star")
    good: list[Any] = [[item], ["item3"], [item, item], ["item3", "item3"], item, "item3", [siglum.Item(id="z2")]]
    given = [rng.choice((*good, *ANYTHING)) for _ in range(2 if verb == "replace" else 1)]
    before = answers_of(one)

    def change() -> None:
        with one.writing(run) as live:
            getattr(live, verb)(*given)

    _, sentence, faults = attempt(change, verb)
    after, bad, more = attempt(lambda: answers_of(one), f"search after {verb}")
    left, most = see(run)
    if not more and not most and sentence and (bad or after != before or left != before):
        more = [fault("silent", f"writing: {verb} failed but changed the run")]
    if not more and not most and not sentence and left != after:
        more = [fault("loss", f"writing: after {verb} the run answers otherwise than the retriever")]
    if not sentence and any(isinstance(value, str) for value in given):
        more = [*more, fault("silent", f"writing: {verb} takes a lone string")]
    return words(verb, dict(zip("ab", given, strict=False))), faults + more + most


def published(base: Base, rng: Random, scratch: Path) -> tuple[str, list[Fault]]:
    """Write and open what the hub gets, with wrong folders, names and options; the network is never asked."""
    import siglum

    run = copy(base.root / "mine", scratch / "run")
    (scratch / "file").write_text("x")
    verb = rng.choice(("save_pretrained", "from_pretrained", "push_to_hub"))
    before = see(run)[0]
    places: tuple[Any, ...] = (
        run,
        scratch / "file",
        scratch / "new",
        "",
        " ",
        "\x00",
        "a/b/c",
        "x" * 300,
        "..",
        *ANYTHING,
    )
    if verb == "push_to_hub":
        places = ("", "a/b/c", "/", " ", "a b/c", "\x00", "-/-", *ANYTHING)
    options = {
        "save_pretrained": ("texts",),
        "from_pretrained": ("revision", "token", "device"),
        "push_to_hub": ("texts", "revision", "token", "private"),
    }
    given: dict[str, Any] = {rng.choice(options[verb]): rng.choice(ANYTHING)}
    given = given if rng.random() < 0.3 else {}
    place = rng.choice(places)
    call = siglum.Retriever.from_pretrained
    if verb != "from_pretrained":
        call = getattr(siglum.Retriever.load(run), verb)
    with _offline():
        _, _, faults = attempt(lambda: call(place, **given), verb)
    if not faults and see(run)[0] != before:
        faults = [fault("loss", f"{verb} changes a run that it was given")]
    return words(verb, {"place": place, **given}), faults


class _offline:
    """Make every connection fail at once, as without a network."""

    def __enter__(self) -> None:
        import socket

        def refuse(*args: Any, **options: Any) -> Any:
            raise OSError(101, "Network is unreachable")

        self._before = socket.socket.connect, socket.getaddrinfo
        socket.socket.connect, socket.getaddrinfo = refuse, refuse  # type: ignore[method-assign, assignment]

    def __exit__(self, *error: object) -> None:
        import socket

        socket.socket.connect, socket.getaddrinfo = self._before  # type: ignore[method-assign]


def functions(base: Base, rng: Random, scratch: Path) -> tuple[str, list[Fault]]:
    """Diagnose, explain and report runs with wrong arguments."""
    import siglum

    run, verb = base.root / "mine", rng.choice(("diagnose", "explain", "report"))
    if verb == "diagnose":
        given: dict[str, Any] = {"run": run, "queries": 4}
        wrong = {"split": ANYTHING, "beam": NUMBERS, "tau": NUMBERS, "queries": NUMBERS, "run": ANYTHING}
    elif verb == "explain":
        given = {"run": run, "query": "red star", "target": "item3"}
        wrong = {"query": ANYTHING, "target": ANYTHING, "within": ANYTHING, "best": NUMBERS, "beam": NUMBERS}
        wrong |= {"image": ANYTHING, "instruction": ANYTHING, "run": ANYTHING}
    else:
        given = {"runs": [run], "queries": 4}
        wrong = {"runs": ANYTHING, "split": ANYTHING, "queries": NUMBERS, "seed": NUMBERS, "out": ("", "\x00", 3, [])}
    for name in rng.sample(list(wrong), rng.choice((1, 1, 2))):
        given[name] = rng.choice(wrong[name])
    return words(verb, given), attempt(lambda: getattr(siglum, verb)(**given), verb)[2]


def checkpoint(base: Base, rng: Random, scratch: Path) -> tuple[str, list[Fault]]:
    """Import a checkpoint of GENIUS, or features, that are damaged or of another shape."""
    from faultlib.told import faults_of, tell

    inputs, files = base.root / "inputs", {"genius": "genius.pth", "items": "pool.npz"}
    bad = rng.choice(list(files))
    data = bytearray((inputs / files[bad]).read_bytes())
    way = rng.choice(("bytes", "cut", "weights", "junk"))
    path = scratch / files[bad]
    if way == "weights" and bad == "genius":
        held = torch.load(inputs / files[bad], weights_only=True)["model"]
        name = rng.choice(list(held))
        held[name] = _spoilt(held[name], rng)
        spoilt = {"model": held if rng.random() < 0.8 else rng.choice(([], {}, None, 3, held[name]))}
        attempt(lambda: torch.save(spoilt, path), "save")
        way = f"{name} {type(held[name]).__name__}"
    elif way == "cut":
        path.write_bytes(data[: rng.randrange(len(data))])
    elif way == "junk":
        path.write_bytes(bytes(rng.randrange(256) for _ in range(300)))
    else:
        for _ in range(rng.choice((1, 20))):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data)
    given = {name: path if name == bad else inputs / file for name, file in files.items()}
    told = tell(["import", *(arg for name, file in given.items() for arg in (f"--{name}", file)), "--out", "new"])
    faults = faults_of(told, "import")
    if not faults and not told.code:
        faults = see(scratch / "new")[1]
    return f"{bad}: {way}", faults


CASES: dict[str, Case] = {
    "parts": parts,
    "writing": lasting,
    "published": published,
    "functions": functions,
    "import": checkpoint,
}
