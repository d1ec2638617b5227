"""The Python API with arguments nobody should give: wrong kinds, shapes, sizes and numbers."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from faultlib.campaign import Base
from faultlib.fuzz_arrays import featured, fitted, indexed
from faultlib.fuzz_values import ANYTHING, Case, describe, words
from faultlib.state import answers_of, questions
from faultlib.told import Fault, attempt, fault

WRONG_K = (
    0,
    -1,
    2.5,
    "3",
    None,
    math.nan,
    math.inf,
    [],
    [3],
    {},
    10**400,
    np.float64(2.5),
    np.array([3, 4]),
    b"3",
    -(10**12),
)
RIGHT_K = (1, 3, 10**12, np.int64(4), True, np.array(3))
OPTIONS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("beam", (-1, 0, 1, 2.5, "3", None, math.nan, True, 10**7, [])),
    ("omega", (math.nan, math.inf, -1.0, "1", None, 0, 5, True, [1])),
    ("scorer", ("fused", "decoder", "geometry", "oracle", "none", "", None, 3, ["fused"], {})),
    ("engine", ("auto", "fast", "reference", "none", None, 1)),
    ("precision", ("fp32", "bf16", "int8", "fp8", None)),
    ("mode", ("exact", "renormalised", "scan", "scan-rescore", "none", [])),
    ("leaf_order", ("pool", "dense", "none", [])),
    ("normalisation", ("level", "joint", "children", "x", set())),
    ("prior", (0.0, 1.0, -1, math.nan, "x")),
    ("zscore", (True, False, 1, "yes", None)),
    ("lookahead", (True, False, 0, "no")),
    ("batch_size", (1, 0, -1, 2.5, 10**9, "8")),
    ("nothing", (1, None)),
    ("device", ("cuda",)),
)


def retriever(base: Base) -> Any:
    """Open the run."""
    import siglum

    return siglum.Retriever.load(base.root / "mine")


def options(rng: Random) -> dict[str, Any]:
    """Return keyword arguments of a search, some of them wrong."""
    given: dict[str, Any] = {}
    if rng.random() < 0.5:
        given["k"] = rng.choice(WRONG_K + RIGHT_K)
    for name, chance in (("within", 0.4), ("without", 0.2), ("min_score", 0.1)):
        if rng.random() < chance:
            given[name] = rng.choice(ANYTHING)
    for name, values in rng.sample(OPTIONS, rng.choice((0, 1, 1, 2))):
        given[name] = rng.choice(values)
    return given


def judge(given: dict[str, Any], lists: Any) -> list[Fault]:
    """Look at hits that came: as many as asked for, in order, with real scores, each once; and k must have been one."""
    if "k" in given and any(given["k"] is wrong for wrong in WRONG_K):
        return [fault("silent", f"k={describe(given['k'])} is taken without a word")]
    if isinstance(given.get("omega"), float) and not math.isfinite(given["omega"]):
        return [fault("silent", f"omega={given['omega']} is taken without a word")]
    for name in ("within", "without", "min_score"):
        if isinstance(given.get(name), str):
            return [fault("silent", f"{name}={describe(given[name])} is taken without a word")]
    for hits in lists:
        scores, ids = [hit.score for hit in hits], [hit.item_id for hit in hits]
        good = all(math.isfinite(score) for score in scores) and scores == sorted(scores, reverse=True)
        near = [hit.similarity for hit in hits]
        good = good and all(close is not None and 0 <= close <= 1 for close in near)
        if not good or len(set(ids)) != len(ids) or len(hits) > int(given.get("k", 10)):
            return [fault("silent", f"hits that cannot be: {hits[:3]}")]
    return []


def bad_features(base: Base, one: Any, rng: Random) -> Any:
    """Return query or item features, mostly wrong."""
    import siglum

    asked = questions(one, 2)
    change = rng.randrange(9)
    if change == 0:
        return rng.choice(ANYTHING)
    if change == 1:
        return asked.text
    if change == 2:
        asked.text = asked.text[:, :-1] if rng.random() < 0.5 else asked.text[:-1]
    elif change == 3:
        asked.text[-1, 0] = rng.choice((np.nan, np.inf))
    elif change == 4:
        asked.text = asked.text.astype(rng.choice(("int64", "U4", "O", "complex64", "float16", "bool")))
    elif change == 5:
        return siglum.Features(rng.choice(ANYTHING), asked.image, asked.text, asked.has_image, asked.has_text)
    elif change == 6:
        setattr(asked, rng.choice(("image", "text", "has_image", "has_text", "ids")), rng.choice(ANYTHING))
    elif change == 7:
        asked.has_text = ~asked.has_text
    return asked


def search(base: Base, rng: Random, scratch: Path) -> tuple[str, list[Fault]]:
    """Search by texts, pictures and instructions, one or many."""
    import siglum

    one = rng.choice(("red star", b"x", Path("nowhere"), siglum.Query(id="q", text="red star"), *ANYTHING))
    given: dict[str, Any] = {rng.choice(("query", "text")): one if rng.random() < 0.5 else "red star"}
    if rng.random() < 0.2:
        given = {"query": [rng.choice(("red star", *ANYTHING)) for _ in range(rng.randrange(3))]}
    if rng.random() < 0.3:
        pixels = np.zeros(
            (rng.choice((0, 1, 24)), 24, rng.choice((1, 3, 4))), rng.choice(("uint8", "float32", "int64"))
        )
        given["image"] = rng.choice((pixels, *ANYTHING))
    if rng.random() < 0.3:
        given["instruction"] = rng.choice(ANYTHING)
    if rng.random() < 0.3:
        given["exclude_self"] = rng.choice((True, False))
    given |= options(rng)
    way = words("search", given)
    found, sentence, faults = attempt(lambda: retriever(base).search(**given), "search")
    lists = found if found and isinstance(found[0], list) else [found] if found is not None else []
    return way, faults or ([] if sentence else judge(given, lists))


def search_features(base: Base, rng: Random, scratch: Path) -> tuple[str, list[Fault]]:
    """Search by features."""
    one = retriever(base)
    asked = bad_features(base, one, rng) if rng.random() < 0.6 else questions(one, 2)
    given = options(rng)
    way = words("search_features", {"queries": asked, **given})
    found, sentence, faults = attempt(lambda: one.search_features(asked, **given), "search_features")
    return way, faults or ([] if sentence else judge(given, found))


def encoded(base: Base, rng: Random, scratch: Path) -> tuple[str, list[Fault]]:
    """Encode queries and items, and reconstruct items, wrong ones among them."""
    one, verb, what = (
        retriever(base),
        rng.choice(("encode_queries", "encode_items", "reconstruct")),
        rng.choice(ANYTHING),
    )
    way = words(verb, {"what": what})
    found, sentence, faults = attempt(lambda: getattr(one, verb)(what), verb)
    if not sentence and not faults and not (isinstance(found, np.ndarray) and np.isfinite(found).all()):
        faults = [fault("silent", f"{verb} gives {describe(found)}")]
    return way, faults


def rank(base: Base, rng: Random, scratch: Path) -> tuple[str, list[Fault]]:
    """Rank by vectors."""
    import torch

    one = retriever(base)
    dim = one.tokenizer.quantizer.dim
    good = torch.nn.functional.normalize(torch.randn(2, dim), dim=1)
    other = (
        good[:, :-1],
        good[0],
        good.double(),
        good.half(),
        good.long(),
        good * math.nan,
        good[:0],
        good.numpy(),
        good.tolist(),
    )
    asked = rng.choice((good, *other, *ANYTHING))
    given = {name: value for name, value in options(rng).items() if name not in ("without", "min_score")}
    way = words("rank", {"query_QD": asked, **given})
    found, sentence, faults = attempt(lambda: one.rank(asked, **given), "rank")
    wrong = [] if sentence or faults else judge(given, [])
    if (
        not sentence
        and not faults
        and any(np.isnan(np.asarray(ranking.scores)).any() for ranking in found if hasattr(ranking, "scores"))
    ):
        wrong = [fault("silent", "rank gives NaN for scores")]
    return way, faults + wrong


def changed(base: Base, rng: Random, scratch: Path) -> tuple[str, list[Fault]]:
    """Add or remove wrong things: what is refused changes nothing."""
    import siglum

    one, verb = retriever(base), rng.choice(("add", "upsert", "remove"))
    if verb == "remove":
        what = rng.choice(ANYTHING)
    elif rng.random() < 0.5:
        what = bad_features(base, one, rng)
    else:
        items = [_item(rng) for _ in range(3)]
        what = rng.choice(
            ([item for item in items if item], ANYTHING[rng.randrange(len(ANYTHING))], siglum.Item(id="a", text="b"))
        )
    before = answers_of(one)
    way = words(verb, {"what": what})
    _, sentence, faults = attempt(lambda: getattr(one, verb)(what), verb)
    after, bad, more = attempt(lambda: answers_of(one), f"search after {verb}")
    if not more and (sentence or faults) and (bad or after != before):
        more = [fault("silent", f"{verb} failed but changed the retriever")]
    if not sentence and not faults and isinstance(what, str):
        more = [*more, fault("silent", f"{verb} takes a lone string")]
    return way, faults + more


def _item(rng: Random) -> Any:
    import siglum

    pixels = np.zeros((4, 4, 3), rng.choice(("uint8", "float64")))
    given = {"id": rng.choice(("z1", "z2", "item3", *ANYTHING)), "text": rng.choice(("a cat", None, *ANYTHING))}
    given["image"] = rng.choice((None, None, pixels, *ANYTHING))
    return attempt(lambda: siglum.Item(**given), "Item")[0]


def kept(base: Base, rng: Random, scratch: Path) -> tuple[str, list[Fault]]:
    """Load and save with wrong folders."""
    import siglum

    verb = rng.choice(("save", "load"))
    (scratch / "file").write_text("x")
    (scratch / "full").mkdir()
    (scratch / "full" / "config.json").write_text("{}")
    places = (
        scratch / "file",
        scratch / "full",
        scratch / "file" / "x",
        "",
        None,
        3,
        b"x",
        [],
        "\x00",
        "x" * 5000,
        "/dev/null",
        "new",
    )
    place = rng.choice(places)
    given: dict[str, Any] = (
        {"device": rng.choice(("cpu", "gpu", None, 3, "cuda:9", ""))} if verb == "load" and rng.random() < 0.5 else {}
    )
    one = retriever(base)
    call = one.save if verb == "save" else siglum.Retriever.load
    way = words(verb, {"folder": place, **given})
    return way, attempt(lambda: call(place, **given), verb)[2]


CASES: dict[str, Case] = {
    "search": search,
    "search_features": search_features,
    "rank": rank,
    "encode and reconstruct": encoded,
    "add and remove": changed,
    "load and save": kept,
    "fit": fitted,
    "features": featured,
    "index": indexed,
}
