"""What the engine does beside plain searches: parts of scores, and the way of a target through the beam."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch

from siglum.config import SearchConfig, as_dict, from_dict
from siglum.measure.explain import Explanation, explain, record_of
from siglum.measure.rescoring import score_parts
from siglum.search.retriever import Retriever
from siglum.serve.asks import How, SearchAsk, Searched, features_of_ask, search_by_codes
from siglum.serve.served import Served
from siglum.types import Hit

ScoreParts = list[list[dict[str, float]]]


def search_with_parts(served: Served, ask: SearchAsk) -> tuple[Searched, ScoreParts]:
    """Search, and tell of every hit what its score is the sum of."""
    retriever = copy(served.retriever)  # search and parts are of one moment
    features = features_of_ask(retriever, ask)
    hits = search_by_codes(retriever, features, ask.how)
    query_QD = retriever.vectors(features, "queries")
    found = [_parts(retriever, query_QD[place : place + 1], ask.how, own) for place, own in enumerate(hits)]
    return (hits, len(retriever)), found


@torch.no_grad()
def _parts(retriever: Retriever, query_1D: torch.Tensor, how: How, hits: Sequence[Hit]) -> list[dict[str, float]]:
    if not hits:
        return []
    config: SearchConfig = from_dict(SearchConfig, {**as_dict(retriever.config), **dict(how.options)})
    engine, index = retriever.engine, retriever.index
    rows = index.rows([hit.item_id for hit in hits])
    return score_parts(engine.scorer(config), index, query_1D, rows, engine.lookahead(config))


@dataclass(frozen=True, slots=True)
class FollowAsk:
    """A target to follow, and how much to tell."""

    ask: SearchAsk
    target: str
    best: int
    pruned: int


def follow_target(served: Served, asked: FollowAsk) -> dict[str, Any]:
    """Return the way of a target through the beam as JSON values, with the items it tells of."""
    retriever, how = copy(served.retriever), asked.ask.how
    features = features_of_ask(retriever, asked.ask)
    restricted = how.within is not None or how.without or how.kinds is not None
    explanation = explain(
        retriever,
        retriever.vectors(features, "queries"),
        asked.target,
        within=how.mask(retriever) if restricted else None,
        best=asked.best,
        pruned=asked.pruned,
        **how.settings,
    )
    return {**record_of(explanation), "items": _told_items(served, explanation)}


def _told_items(served: Served, explanation: Explanation) -> dict[str, Any]:
    """Return text and picture of the items that stand for prefixes."""
    told = [one for level in explanation.levels for one in (*level.best, level.last, level.target, *level.pruned)]
    names = {explanation.target: None} | {name: None for one in told for name in one.examples[:1]}
    known = served.retriever.index.ids.known(list(names))
    return {hit.item_id: {"text": hit.text, "image": served.address_of(hit)} for hit in served.hits(known)}
