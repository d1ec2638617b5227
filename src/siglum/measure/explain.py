"""Why one target was found or lost: its path through the real beam, level by level, with every part of its score.

The beam runs as it always does and leaves its trace; the same prefixes are then scored again, once by the whole scorer
and once by each of its parts, for the prefixes that stayed and those that went. A target that fell is followed to its
leaf all the same, to tell whether pruning lost it or the score.
Shapes: R live prefixes, C candidates, P parts of the score, D numbers a vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from siglum.config import SearchConfig, as_dict, from_dict
from siglum.given import listed
from siglum.index import Index
from siglum.index.trie import Allowed, Children
from siglum.measure.rescoring import Rescoring
from siglum.search.asked import QueryLike, SearchOptions, Within
from siglum.search.beam import Beams, beam_search
from siglum.search.hits import as_hits
from siglum.search.lookahead import LookAhead
from siglum.search.query import EncodedQuery, Questions
from siglum.search.retriever import Retriever
from siglum.search.scorers import Scorer
from siglum.types import Hit, Picture, SiglumError, whole_number

BEST, EXAMPLES = 5, 3
"""How many of a level's best prefixes are told, and how many items under a prefix."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """One prefix as the beam saw it."""

    codes: tuple[int, ...]
    rank: int
    """Among the candidates of its level, from 1; of a target that is out already, where it would stand."""
    parent: int
    """Rank of the prefix it continues, at the level before; 0 at the first."""
    kept: bool
    score: float
    parts: Mapping[str, float]
    """What the score is the sum of, weights included."""
    items: int
    """How many items lie under it."""
    examples: tuple[str, ...]
    """Ids of some of them, evenly spread; under the target's own prefix the target comes first."""


@dataclass(frozen=True, slots=True)
class Level:
    """One level of the beam, and where the target stood."""

    level: int
    """0 is the modality token; codewords begin at 1."""
    prefixes: int
    """Distinct prefixes of the pool."""
    candidates: int
    """Continuations of live prefixes, which is what the beam chose from."""
    kept: int
    target: Prefix
    best: tuple[Prefix, ...]
    """The best of those kept."""
    last: Prefix
    """The last one kept: whatever ranks behind it is pruned."""
    pruned: tuple[Prefix, ...] = ()
    """The best of those pruned, as many as were asked for."""

    @property
    def name(self) -> str:
        """The level in words."""
        return f"level {self.level}" if self.level else "the modality token"

    @property
    def gap(self) -> float:
        """The target's score less that of the last prefix kept."""
        return self.target.score - self.last.score

    @property
    def gap_parts(self) -> dict[str, float]:
        """The same for every part of the score."""
        return _less(self.target, self.last)


@dataclass(frozen=True, slots=True)
class Explanation:
    """The way of one target through the beam of one query."""

    target: str
    codes: tuple[int, ...]
    beam: int
    levels: tuple[Level, ...]
    rank: int | None
    """Final rank among the items found; None where the target fell."""
    found: int
    """Items found."""
    hits: tuple[Hit, ...]
    """The first of them."""

    @property
    def fall(self) -> Level | None:
        """The level at which the target was pruned."""
        return next((level for level in self.levels if not level.target.kept), None)


def explain(
    run: Retriever | str | Path,
    query: QueryLike | Questions,
    target: str,
    *,
    image: Picture | None = None,
    instruction: str | None = None,
    within: Within = None,
    best: int = BEST,
    pruned: int = 0,
    **options: Unpack[SearchOptions],
) -> Explanation:
    """Follow a target through the search for one query: its rank, its score and what beats it, level by level.

    The query is as in `Retriever.search`, with an image or an instruction beside it, a fused vector (1, D) or one
    encoded query. `within` restricts the search, `options` are fields of `SearchConfig`, `best` and `pruned` how many
    prefixes a level tells.
    Example: `siglum.explain("runs/mine", "two dogs in the snow", "dogs/7.jpg").rank`.
    """
    retriever = run if isinstance(run, Retriever) else Retriever.load(run)
    if not isinstance(query, Tensor | EncodedQuery):
        images = None if image is None else [image]
        query = torch.from_numpy(retriever.encode_queries([query], images, instruction=instruction))
    retriever = copy(retriever)  # of one moment: others may add and remove meanwhile
    query_1D = query.to(retriever.device)
    given = {name: value for name, value in options.items() if value is not None}
    best, pruned = whole_number("best", best), whole_number("pruned", pruned, 0)
    index, config = retriever.index, from_dict(SearchConfig, {**as_dict(retriever.config), **given})
    within = within if within is None or isinstance(within, np.ndarray) else listed(within)
    row, allowed = _find_target(index, target, within)
    ranking = retriever.rank(query_1D, k=len(index), within=within, **options)[0]
    place, hits = np.flatnonzero(ranking.row == row), as_hits(index, ranking)
    levels = follow(
        retriever.engine.scorer(config),
        index,
        query_1D,
        row,
        beam=config.beam,
        allowed=allowed,
        ahead=retriever.engine.lookahead(config),
        first_residual=retriever.tokenizer.quantizer.first_residual,
        best=best,
        pruned=pruned,
    )
    rank = int(place[0]) + 1 if len(place) else None
    return Explanation(target, levels[-1].target.codes, config.beam, tuple(levels), rank, len(hits), tuple(hits[:best]))


def _find_target(index: Index, target: str, within: Within) -> tuple[int, Allowed | None]:
    """Return the sorted row of a target and the filter of the search, refusing a target that cannot be found."""
    if target not in index.ids:
        raise SiglumError(
            f"the target {target!r} is not in the index, whose {len(index):,} items begin with {index.ids[0]!r}."
        )
    row, allowed = int(index.rows([target])[0]), None if within is None else index.allow(within)
    if allowed is not None and not allowed.rows[row]:
        raise SiglumError(
            f"the target {target!r} is not among the {int(allowed.rows.sum()):,} items the search is kept to."
        )
    return row, allowed


@torch.no_grad()
def follow(
    scorer: Scorer,
    index: Index,
    query: Questions,
    row: int,
    *,
    beam: int,
    allowed: Allowed | None = None,
    ahead: LookAhead | None = None,
    first_residual: int = 0,
    best: int = BEST,
    pruned: int = 0,
) -> list[Level]:
    """Search for one query and tell, level by level, where the item of this sorted row stands.

    `first_residual` is the number of tokens before the first codeword: 1 where codes begin with a modality token.
    """
    if best < 1:
        raise SiglumError(f"best must be at least 1 prefix a level, not {best}.")
    trace: list[Beams] = []
    beam_search(scorer, index, query, beam, allowed, trace, ahead)
    again = Rescoring(scorer, index, query, allowed, ahead)
    lo, hi = index.root
    rank_R, runs_R, levels = np.zeros(1, np.int64), np.ones(1, bool), list[Level]()
    for depth, live in enumerate(trace):
        kids = index.children(lo, hi, depth, allowed)
        score_C, parts = again.score(depth, kids)
        runs_C = runs_R[kids.parent]  # children of a target that is out are scored, but out of the running
        kept_C = np.isin(kids.lo, live.lo) & runs_C
        order, rank_C = _ranked(score_C, runs_C)
        seen = _Seen(index, allowed, row, depth, kids, score_C, parts, rank_C, rank_R[kids.parent], kept_C)
        mine = int(np.flatnonzero((kids.lo <= row) & (row < kids.hi))[0])
        stay = [int(place) for place in order if kept_C[place]]
        gone = [int(place) for place in order if runs_C[place] and not kept_C[place]][:pruned] if pruned else []
        levels.append(
            Level(
                level=depth + 1 - first_residual,
                prefixes=_count_prefixes(index, depth + 1, allowed),
                candidates=int(runs_C.sum()),
                kept=len(stay),
                target=seen.tell(mine),
                best=tuple(map(seen.tell, stay[:best])),
                last=seen.tell(stay[-1]),
                pruned=tuple(map(seen.tell, gone)),
            )
        )
        keep = np.flatnonzero(kept_C | (np.arange(len(kept_C)) == mine))
        again.advance(depth, kids, keep)
        lo, hi, rank_R, runs_R = kids.lo[keep], kids.hi[keep], rank_C[keep], kept_C[keep]
    return levels


def _ranked(score_C: np.ndarray, runs_C: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return candidates from best to worst, and the rank of each among those in the running."""
    order = np.lexsort((np.arange(len(score_C)), -score_C))
    rank_C = np.empty_like(order)
    rank_C[order] = 1 + np.cumsum(runs_C[order]) - runs_C[order]
    return order, rank_C


def tell(explanation: Explanation) -> list[str]:
    """Return in sentences what became of the target, and why."""
    fall, end = explanation.fall, explanation.levels[-1]
    if fall is None:
        said = [
            f"{explanation.target} survives every level and is found at rank {explanation.rank} of"
            f" {explanation.found}.",
            _closest(explanation),
        ]
        lead, name = end.best[0], explanation.hits[0].item_id
        if end.target.rank > 1:
            ahead = _compare(_less(lead, end.target))
            said.append(f"{name}, the first, is {lead.score - end.target.score:.2f} ahead: {ahead}.")
        return said
    said = [
        f"{explanation.target} falls at {fall.name}: its prefix ranks {fall.target.rank:,} of {fall.candidates:,}, and"
        f" the beam keeps {fall.kept}.",
        f"It is {-fall.gap:.2f} below the last one kept: {_compare(fall.gap_parts)}."
        if fall.gap
        else "It ties with the last one kept, and of equal scores the smaller code stays.",
    ]
    if fall is not end:
        rank, beam = end.target.rank, explanation.beam
        why = "pruning lost it, not the score" if rank <= beam else f"beyond the beam of {beam} all the same"
        said.append(f"Had it stayed, its leaf would rank {rank:,}: {why}.")
    return said


def record_of(explanation: Explanation) -> dict[str, Any]:
    """Return an explanation as plain JSON values, the sentences and the gaps included."""
    fall, record = explanation.fall, asdict(explanation)
    for level, own in zip(explanation.levels, record["levels"], strict=True):
        own |= {"beaten_by": level.target.rank - 1, "gap": level.gap, "gap_parts": level.gap_parts}
    return {**record, "fell_at": None if fall is None else fall.level, "verdict": tell(explanation)}


def name_part(part: str) -> str:
    """Return a part of the score as people read it.

    >>> name_part("log_probability")
    'log-probability'
    """
    return part.replace("_", "-")


def fold_tail(explanation: Explanation) -> list[tuple[Level, ...]]:
    """Return the levels in groups, each to be told in one line by its last level.

    A level stands alone until one item is left under the target's prefix. From there on only the target's fate is
    news: the levels that follow are one group, up to its fall, and those below that are another.
    """
    groups: list[tuple[Level, ...]] = []
    tail = False
    for level in explanation.levels:
        if tail and groups[-1][-1] is not explanation.fall:
            groups[-1] += (level,)
        else:
            tail = bool(groups) and groups[-1][-1].target.items == 1
            groups.append((level,))
    return groups


def name_group(levels: Sequence[Level]) -> str:
    """Return the number of a group of levels, M for the modality token."""
    first, last = levels[0].level, levels[-1].level
    return str(first or "M") if first == last else f"{first or 'M'}–{last}"


def spell(codes: Sequence[int], most: int = 6) -> str:
    """Return codes in a row; of more than `most` the first and the last.

    >>> spell([4, 0, 7]), spell(range(9))
    ('4-0-7', '0-1-2-…-7-8')
    """
    words = [*map(str, codes)]
    return "-".join(words if len(words) <= most else [*words[:3], "…", *words[-2:]])


def _closest(explanation: Explanation) -> str:
    pruned = [level for level in explanation.levels if level.candidates > level.kept]
    if not pruned:
        return "No level had more prefixes than the beam holds, so nothing was pruned."
    level = max(pruned, key=lambda level: level.target.rank)
    if level.target.rank == 1:
        return "Its prefix ranks first wherever the beam prunes."
    place = f"rank {level.target.rank} of {max(level.candidates, level.target.rank):,}"
    return f"Its closest call is {level.name}: {place}, {level.gap:.2f} above the last of the {level.kept} kept."


def _less(one: Prefix, other: Prefix) -> dict[str, float]:
    return {name: value - other.parts[name] for name, value in one.parts.items()}


def _compare(parts: Mapping[str, float]) -> str:
    """Say how a prefix differs from another in every part of the score.

    >>> _compare({"log_probability": -2.1, "geometry": 1.25})
    'log-probability 2.10 lower, geometry 1.25 higher'
    """
    return ", ".join(
        f"{name_part(name)} {abs(value):.2f} {'lower' if value < 0 else 'higher'}" for name, value in parts.items()
    )


def _count_prefixes(index: Index, depth: int, allowed: Allowed | None) -> int:
    """Count the distinct prefixes of this many codes that lead to an (allowed) item."""
    lo = np.flatnonzero(index.shared < depth)
    return len(lo) if allowed is None else int((allowed.count(lo, np.append(lo[1:], len(index))) > 0).sum())


@dataclass(frozen=True, slots=True)
class _Seen:
    """The candidates of one level, of which a few are told."""

    index: Index
    allowed: Allowed | None
    row: int
    depth: int
    kids: Children
    score_C: np.ndarray
    parts: dict[str, np.ndarray]
    rank_C: np.ndarray
    parent_C: np.ndarray
    kept_C: np.ndarray

    def tell(self, place: int) -> Prefix:
        """Return one candidate."""
        rows = np.arange(self.kids.lo[place], self.kids.hi[place])
        rows = rows if self.allowed is None else rows[self.allowed.rows[rows]]
        some = rows[np.linspace(0, len(rows) - 1, min(EXAMPLES, len(rows))).astype(np.int64)].tolist()
        if rows[0] <= self.row <= rows[-1]:
            some = [self.row, *(row for row in some if row != self.row)][:EXAMPLES]
        return Prefix(
            codes=tuple(self.index.codes(rows[:1])[0, : self.depth + 1].tolist()),
            rank=int(self.rank_C[place]),
            parent=int(self.parent_C[place]),
            kept=bool(self.kept_C[place]),
            score=float(self.score_C[place]),
            parts={name: float(own[place]) for name, own in self.parts.items()},
            items=len(rows),
            examples=tuple(self.index.ids.take(self.index.order[some].astype(np.int64))),
        )
