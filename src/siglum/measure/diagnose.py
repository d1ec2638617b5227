"""Is a tokenizer good enough, and if not, where does the beam lose its targets? One document answers.

It needs the vectors and the tokenizer; with a decoder it also tells what that and fusion add. Every task's queries
are asked against its own pool, with the first relevant item as target, and all queries count alike.
Shapes: Q queries, N items of a pool, T tokens, D numbers a vector.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypedDict, cast

import numpy as np
import torch
from torch import Tensor

from siglum.config import SearchConfig
from siglum.fuse.contrastive import embed, kinds_of
from siglum.generate.decoder import CodeDecoder
from siglum.generate.query import QueryHead
from siglum.measure.evaluate import union_rows
from siglum.measure.health import Health, tokenizer_health
from siglum.measure.ladder import CAUSES, Rung, Tried, attribute, judge
from siglum.measure.retention import LevelQuantities, QueryBatch, RealBeam, Survey, survey
from siglum.search.histories import AskedHistories, HistoryReader, ManyQuestions
from siglum.search.lookahead import build_lookahead
from siglum.search.scorers import GeometryScorer, Scorer, build_scorer
from siglum.tokenize.train import Tokenizer
from siglum.types import SiglumError, Task, Vectors, real_number, whole_number

EPS = ("eps", "eps_fused", "eps_plain", "eps_fused_plain", "uncovered")
"""Names of what needs a decoder; null without one."""


class HealthFacts(TypedDict):
    """How the codes are used."""

    items: int
    distinct: int
    """Distinct code sequences."""
    collision_rate: float
    """Share of items that share all their codes."""
    largest_collision: int
    reconstruction: float
    """Mean squared distance of vectors and their reconstructions."""


class LevelFacts(TypedDict):
    """One level; docs/diagnose.md tells what the numbers are."""

    level: int
    size: int
    prefixes: float
    survival: float
    chance: float
    prefix_chance: float
    leaves: float
    K: float
    m: float
    eps: float | None
    eps_fused: float | None
    eps_plain: float | None
    eps_fused_plain: float | None
    eps_scope: str | None
    uncovered: float | None
    usage: float
    entropy: float
    dead: int
    error: float


class RungFacts(TypedDict):
    """One rung of the ladder: shares of targets, level by level."""

    rung: str
    survival: list[float]
    chance: list[float]
    leaves: list[float]
    lost: list[float]
    share: list[float]


class CauseFacts(TypedDict):
    """What the verdict lays the loss to."""

    rung: str
    """Empty where little is lost."""
    level: int | None
    lost: float


class RunDiagnosis(TypedDict):
    """Where a run loses its targets, as JSON values."""

    verdict: str
    """The answer in words."""
    notes: list[str]
    """What is wrong with the codes themselves."""
    cause: CauseFacts
    split: str
    queries: int
    pools: int
    beam: int
    tau: float
    omega: float | None
    own: str
    """The rung that is the run's own search."""
    decoder: bool
    query_head: bool
    margin: float
    """Half the width of a 95 % interval, at most."""
    health: HealthFacts
    levels: list[LevelFacts]
    ladder: list[RungFacts]


@dataclass(frozen=True, slots=True)
class RungScores:
    """What the rungs above geometry rank by, and which rung the run itself searches with."""

    own: str
    decoder: Scorer | None
    bias: Scorer | None
    beams: dict[str, RealBeam]
    tried: Tried


def diagnose(
    vectors: Vectors,
    tokenizer: Tokenizer,
    search: SearchConfig,
    *,
    split: str = "test",
    decoder: CodeDecoder | None = None,
    head: QueryHead | None = None,
    beam: int | None = None,
    tau: float | None = None,
    queries: int = 1000,
    device: str = "cpu",
) -> RunDiagnosis:
    """Return health, levels, ladder and verdict as JSON values; `queries` 0 takes all of them.

    Beam and temperature are those of search and tokenizer unless given.
    """
    tasks = vectors.of_split(split)
    if not tasks:
        there = ", ".join(sorted({task.split for task in vectors.tasks})) or "none"
        raise SiglumError(f"there are no tasks in split {split}; there are some in {there}.")
    queries = whole_number("queries", queries, 0)
    quantizer = tokenizer.quantizer
    quantizer.check_geometry("a diagnosis")
    search = replace(search, beam=search.beam if beam is None else whole_number("beam", beam))
    tau = quantizer.config.temperature if tau is None else real_number("tau", tau)
    scores = _scores(tokenizer, search, decoder)
    rows = union_rows(tasks) if vectors.histories is None else np.arange(len(vectors.items))
    items = vectors.items.rows(rows)
    item_ND = embed(tokenizer.fusion, items, device)
    codes_NT = quantizer.encode(item_ND, kinds_of(items, device))
    found = []
    for task in _by_pool(sample(tasks, queries)):
        features = vectors.queries.rows(task.query_rows)
        query_QD = embed(tokenizer.fusion, features, device)
        asked: ManyQuestions | None = None if head is None else head.adapt(query_QD, features, device)
        if vectors.histories is not None and decoder is not None:
            reader, own = HistoryReader(decoder, codes_NT, item_ND), vectors.histories.rows(task.query_rows)
            asked = AskedHistories(reader, own, search.vector)
        pool = torch.as_tensor(np.searchsorted(rows, task.pool_rows)).to(device)
        codes = (tokenizer.codebooks(), quantizer.first_residual, codes_NT[pool], item_ND[pool])
        batch = QueryBatch(*codes, query_QD, target_places(task), asked)
        found.append(
            survey(batch, beam=search.beam, tau=tau, decoder=scores.decoder, bias=scores.bias, beams=scores.beams)
        )
    health = tokenizer_health(quantizer, item_ND, codes_NT)
    facts = {"split": split, "pools": len(found), "tau": tau, "omega": search.omega if scores.bias else None}
    facts |= {"own": scores.own, "decoder": decoder is not None, "query_head": head is not None}
    places = quantizer.first_residual, scores, len(quantizer.own_sizes)
    return cast(RunDiagnosis, facts | document_of(found, health, *places))


def sample(tasks: list[Task], queries: int) -> list[Task]:
    """Return the tasks with about `queries` of their queries in all, evenly spread over each; 0 means all."""
    total = sum(len(task.query_rows) for task in tasks)
    if not queries or queries >= total:
        return tasks
    return [task.spread(max(1, round(queries * len(task.query_rows) / total))) for task in tasks]


def _scores(tokenizer: Tokenizer, search: SearchConfig, decoder: CodeDecoder | None) -> RungScores:
    quantizer, books = tokenizer.quantizer, tokenizer.codebooks()
    first_geometric = quantizer.first_geometric
    own = search.scorer if decoder is not None or search.scorer not in ("fused", "decoder") else "geometry"
    search = replace(search, scorer=own)
    if search.mode in ("scan", "scan-rescore"):
        raise SiglumError(f"mode {search.mode} has no beam to diagnose; set search.mode exact or renormalised.")
    beams: dict[str, RealBeam] = {}
    if search.lookahead:
        beams["look-ahead"] = (
            build_scorer(search, books, decoder, first_geometric),
            build_lookahead(search, books, first_geometric),
        )
    elif own not in CAUSES:  # a registered scorer is a rung above the carried ones
        beams[own] = (build_scorer(search, books, decoder, first_geometric), None)
    generate, bias = None, None
    if decoder is not None:
        generate = build_scorer(replace(search, scorer="decoder", prior=0.0), books, decoder, first_geometric)
        bias = GeometryScorer(books, search.omega, search.zscore, first_geometric) if search.omega > 0 else None
        if own == "fused" and bias is None:
            own = "decoder"
    tried = Tried(
        search.beam,
        distilled=not quantizer.trains or (quantizer.config.rank_weight > 0 and quantizer.config.epochs > 0),
        decoder=decoder is not None,
        omega=search.omega if own == "fused" else 0.0,
        lookahead=search.lookahead if own in ("fused", "geometry") and not search.zscore else None,
    )
    return RungScores(next(iter(beams), own), generate, bias, beams, tried)


def _by_pool(tasks: list[Task]) -> list[Task]:
    """Join tasks that are asked against the same pool."""
    groups: dict[bytes, list[Task]] = {}
    for task in tasks:
        groups.setdefault(np.asarray(task.pool_rows, np.int64).tobytes(), []).append(task)
    return [
        Task(
            "+".join(task.name for task in group),
            group[0].split,
            np.concatenate([task.query_rows for task in group]),
            group[0].pool_rows,
            [rows for task in group for rows in task.positives],
        )
        for group in groups.values()
    ]


def target_places(task: Task) -> Tensor:
    """Return the place in the pool of every query's first relevant item."""
    place = {int(row): position for position, row in enumerate(task.pool_rows)}
    wanted = [int(rows[0]) for rows in task.positives]
    missing = [row for row in wanted if row not in place]
    if missing:
        raise SiglumError(
            f"{len(missing)} targets of task {task.name or 'all'} are not in its pool (the first is item row"
            f" {missing[0]}); add them to the pool, or leave those queries out."
        )
    return torch.tensor([place[row] for row in wanted])


def document_of(
    found: list[Survey], health: Health, first_residual: int, scores: RungScores, own: int | None = None
) -> dict[str, Any]:
    """Return what all pools' surveys come to, as JSON values; levels from `own` on only number equal codes."""
    beam = scores.tried.beam
    weights = [len(one.levels[0].K_Q) for one in found]
    chance_TQ = np.array([[min(1.0, beam / level.prefixes) for level in one.levels] for one in found]).T
    chance = [float(np.average(row, weights=weights)) for row in chance_TQ]
    rungs = [_joined([one.rungs[place] for one in found], weights) for place in range(len(found[0].rungs))]
    oracle = next(rung for rung in rungs if rung.name == "oracle")
    levels = []
    for place, used in enumerate(health.levels):
        level = _level([one.levels[place] for one in found], weights)
        around = {"chance": min(1.0, beam / used.size), "prefix_chance": chance[place], "leaves": oracle.leaves[place]}
        use = {"usage": used.usage, "entropy": used.entropy, "dead": used.dead, "error": used.error}
        levels.append(level | around | use)
    verdict = judge(rungs, scores.own, first_residual, chance, scores.tried)
    ladder = [
        {
            "rung": rung.name,
            "survival": rung.survival,
            "chance": chance,
            "leaves": rung.leaves,
            "lost": rung.lost.tolist(),
            "share": share.tolist(),
        }
        for rung, share in zip(rungs, attribute(rungs), strict=True)
    ]
    return {
        "queries": sum(weights),
        "margin": 0.98 / sum(weights) ** 0.5,
        "beam": beam,
        "health": {name: value for name, value in health.as_dict().items() if name != "levels"},
        "levels": levels,
        "ladder": ladder,
        "verdict": verdict.text,
        "cause": {"rung": verdict.rung, "level": verdict.level, "lost": verdict.lost},
        "notes": _notes(health, first_residual, own),
    }


def _joined(rungs: list[Rung], weights: list[int]) -> Rung:
    survival, leaves = (
        np.average([getattr(rung, name) for rung in rungs], axis=0, weights=weights).tolist()
        for name in ("survival", "leaves")
    )
    return Rung(rungs[0].name, survival, leaves)


def _level(parts: list[LevelQuantities], weights: list[int]) -> dict[str, Any]:
    """Return one level's means over the queries of all pools."""
    means: dict[str, Any] = {"survival": "token_survived", "K": "K", "m": "m", **{name: name for name in EPS}}
    for name, source in means.items():
        values = [getattr(part, f"{source}_Q") for part in parts]
        means[name] = None if values[0] is None else float(np.concatenate(values).mean())
    scopes = [part.eps_scope for part in parts if part.eps_scope not in (None, "full")]
    return {
        "level": parts[0].level,
        "size": parts[0].size,
        "prefixes": float(np.average([part.prefixes for part in parts], weights=weights)),
        **means,
        "eps_scope": scopes[0] if scopes else parts[0].eps_scope,
    }


def _notes(health: Health, first_residual: int, own: int | None) -> list[str]:
    """Say what is wrong with the codes themselves."""
    notes = []
    idle = [
        (token - first_residual + 1, level)
        for token, level in enumerate(health.levels[:own])
        if token >= first_residual and level.usage < 0.5
    ]
    if idle:
        places = ", ".join(f"{number} ({100 * level.usage:.0f} %)" for number, level in idle)
        notes.append(f"fewer than half of the codewords are used at level {places}: a smaller vocabulary would do.")
    if health.collision_rate > 0.02:
        notes.append(
            f"{100 * health.collision_rate:.1f} % of items share all their codes with another (up to"
            f" {health.largest_collision} of them): no score can tell those apart; add levels or codewords."
        )
    return notes
