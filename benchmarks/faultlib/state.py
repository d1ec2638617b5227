"""What a run answers: all that a search can see of it, so that two states can be told apart from outside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from faultlib.told import Fault, Told, attempt, faults_of, tell

WIDE = 4096
"""A beam that holds every item of a tiny run."""
State = dict[str, Any]


def questions(retriever: Any, number: int = 3) -> Any:
    """Return features to search with, the same for every run of the same widths."""
    import siglum

    fusion = retriever.tokenizer.fusion
    rng = np.random.default_rng(5)
    image, text = (rng.normal(size=(number, len(shift))) for shift in (fusion.image_shift, fusion.text_shift))
    if not image.shape[1]:
        return siglum.features({"text": text})
    if not text.shape[1]:
        return siglum.features({"image": image})
    image[: number // 2] = np.nan
    return siglum.features({"image": image, "text": text})


def hits_of(found: list[list[Any]]) -> list[list[Any]]:
    """Return hits as plain values: id, score, codes, and what is kept to show of the item."""
    return [
        [
            [hit.item_id, float(hit.score), [int(code) for code in hit.codes], hit.text, hit.image and str(hit.image)]
            for hit in hits
        ]
        for hits in found
    ]


def answers_of(retriever: Any) -> State:
    """Return what a retriever answers, and every item it holds with its codes."""
    asked = questions(retriever)
    usual = hits_of(retriever.search_features(asked, k=8))
    everything = hits_of(retriever.search_features(asked.rows(np.array([0])), k=100_000, beam=WIDE))[0]
    return {"hits": usual, "all": everything}


def see(run: Path) -> tuple[State, list[Fault]]:
    """Open a run and return what it answers, or the sentence that says why not."""
    import siglum

    found, sentence, faults = attempt(lambda: answers_of(siglum.Retriever.load(run)), "Retriever.load and search")
    return (found if not sentence else {"error": sentence}), faults


def ids_of(state: State) -> set[str]:
    """Return the ids of all items."""
    return {hit[0] for hit in state.get("all", [])}


def stages_of(run: Path) -> tuple[dict[str, Any], list[Fault]]:
    """Return what `siglum info` says of the stages, without sizes."""
    told = tell(["info", run, "--json"])
    faults = faults_of(told, "info")
    if told.code or faults:
        return {"error": told.sentence}, faults
    stages = json.loads(told.out)["stages"]
    return {name: [stage["state"], stage["fingerprint"]] for name, stage in stages.items()}, faults


def plain(told: Told, run: Path) -> Any:
    """Return a command's JSON without the run's own path, or None if there was none."""
    try:
        return json.loads(told.out.replace(str(run), "RUN"))
    except json.JSONDecodeError:
        return None


def difference(found: State, *expected: State) -> str:
    """Say in what way a state is none of those expected.

    >>> difference({"all": [["a", 1.0, [0]]]}, {"all": []})
    '1 items too many (a)'
    """
    if "error" in found:
        return f"it does not open: {found['error']}"
    nearest = min(expected, key=lambda one: len(ids_of(one) ^ ids_of(found)))
    more, less = sorted(ids_of(found) - ids_of(nearest)), sorted(ids_of(nearest) - ids_of(found))
    if more:
        return f"{len(more)} items too many ({', '.join(more[:3])})"
    if less:
        return f"{len(less)} items gone ({', '.join(less[:3])})"
    return "the same items with other scores, codes or order"
