"""What is made of arrays (`fit`, `features`, an index), with arrays nobody should give."""

from __future__ import annotations

import inspect
import math
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from faultlib.base import SMALL
from faultlib.campaign import Base
from faultlib.fuzz_values import ANYTHING, words
from faultlib.state import answers_of
from faultlib.told import Fault, attempt, fault


def fitted(base: Base, rng: Random, scratch: Path) -> tuple[str, list[Fault]]:
    """Fit on wrong arrays."""
    import siglum
    from siglum.console.commands import override

    draw = np.random.default_rng(rng.randrange(99))
    items = draw.normal(size=(rng.choice((0, 1, 7, 40)), 4))
    given: dict[str, Any] = {"items": items, "queries": items.copy(), "positives": list(range(len(items)))}
    small = override(siglum.recipe("pro", "tiny"), tuple(f"{name}={value}" for name, value in SMALL))
    given["config"] = small
    for name in rng.sample(
        ("items", "queries", "positives", "item_ids", "validation", "seed", "device", "folder", "config"),
        rng.choice((0, 1, 2)),
    ):
        given[name] = rng.choice(_values(name, items))
    way = words("fit", {key: value for key, value in given.items() if value is not small})
    found, sentence, faults = attempt(lambda: siglum.fit(**given), "fit")
    if not faults and not sentence:
        faults = attempt(lambda: answers_of(found), "search after fit")[2]
    return way, faults


def _values(name: str, items: np.ndarray) -> tuple[Any, ...]:
    """Return wrong values of one argument of fit."""
    if name in ("items", "queries"):
        bad = (
            items[:, :-1],
            items * np.nan,
            items * 0,
            items.astype("U5"),
            items.astype("O"),
            items.tolist(),
            items[0:1],
            items.astype(complex),
        )
        return (
            *bad,
            items.astype("float16"),
            {"image": items},
            {"image": items, "text": items[:-1]},
            {"nothing": items},
            {"text": 5},
            *ANYTHING,
        )
    if name == "positives":
        return (
            [],
            [[]] * len(items),
            [99] * len(items),
            [-1] * len(items),
            ["a"] * len(items),
            [None] * len(items),
            [1.5] * len(items),
            *ANYTHING,
        )
    if name == "item_ids":
        return (["a"] * len(items), list(range(len(items))), [f"n{n}" for n in range(len(items))], *ANYTHING)
    if name == "config":
        return tuple(value for value in ANYTHING if value is not None)  # the recipe's own size would take minutes
    if name == "folder":
        return ("", 3, b"x", [], "\x00", "/dev/null", "new")
    return (-1, 0, 0.5, 1, 1.5, math.nan, "x", "", [], {}, None, True, 10**30, "cuda:9", np.float32(0.1))


def featured(base: Base, rng: Random, scratch: Path) -> tuple[str, list[Fault]]:
    """Make features of wrong arrays."""
    import siglum

    arrays = rng.choice(_values("items", np.random.default_rng(1).normal(size=(4, 3))))
    given: dict[str, Any] = {"ids": rng.choice(ANYTHING)} if rng.random() < 0.5 else {}
    return words("features", {"arrays": arrays, **given}), attempt(
        lambda: siglum.features(arrays, **given), "features"
    )[2]


def indexed(base: Base, rng: Random, scratch: Path) -> tuple[str, list[Fault]]:
    """Build, grow, shrink and restrict an index with wrong things."""
    from siglum.index import Index

    codes = np.array([[0, 1], [0, 2], [1, 3]])
    index = Index.build(["a", "b", "c"], codes, (2, 4), tokenizer="f00d")
    bad = (
        codes[:2],
        codes.astype(float),
        codes * 9,
        -codes,
        codes[0],
        codes.tolist(),
        codes.astype("U1"),
        codes[..., None],
        codes[:, :1],
        *ANYTHING,
    )
    verb = rng.choice(("build", "add", "remove", "allow", "positions", "codes_of"))
    if verb == "build":
        given = {"ids": ["x", "y", "z"], "codes_NL": codes, "sizes": (2, 4), "tokenizer": "f00d"}
        name = rng.choice(list(given))
        given[name] = rng.choice(
            bad if name == "codes_NL" else ((2,), (2, 4, 8), (0, 4), (-2, 4), (2.5, 4), ("2", "4"), *ANYTHING)
        )
        call: Any = Index.build
    elif verb == "add":
        given = {"ids": ["x", "y", "z"], "codes_NL": codes}
        name = rng.choice(list(given))
        given[name] = rng.choice(bad if name == "codes_NL" else (["a", "y", "z"], ["x", "x", "y"], *ANYTHING))
        call = index.add
    else:
        call = getattr(index, verb)
        given = {next(iter(inspect.signature(call).parameters)): rng.choice((["a"], "abc", ["a", "a"], *ANYTHING))}
    way = words(f"Index.{verb}", given)
    found, sentence, faults = attempt(lambda: call(**given), f"Index.{verb}")
    if not sentence and not faults and verb in ("build", "add", "remove"):
        faults = attempt(
            lambda: (len(found), list(found.ids), found.codes(), found.collisions()), f"use after Index.{verb}"
        )[2]
    if not sentence and not faults and verb not in ("build", "add") and isinstance(next(iter(given.values())), str):
        faults = [fault("silent", f"Index.{verb} takes a lone string")]
    return way, faults
