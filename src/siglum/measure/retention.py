"""The quantities of the survival bound, query by query and level by level, on all distinct prefixes of a pool.

At each level three distributions stand over the pool's prefixes, softmaxes at temperature tau: the teacher pi* (the
best <q, x> of a prefix's items), the quantised oracle pi-bar (<q, x̂_l>) and the decoder pi-tilde (log P of the
prefix). K = KL(pi* || pi-bar), m = pi*(target) - the (B+1)-th largest pi* (0 where there is none) and eps =
TV(pi-bar, pi-tilde). K and m need no decoder. Work goes in chunks of queries, which bound the memory and leave the
results as they are.
Shapes: Q queries, N items, T tokens, P_l distinct prefixes after token l, D numbers a vector.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from siglum.generate.decoder import CodeDecoder
from siglum.index import Index
from siglum.log import progress
from siglum.measure.ladder import PrefixBeam, Rung, kept
from siglum.measure.prefixes import LevelScores, Prefixes, half_norms, mismatch, prefix_scores
from siglum.search.beam import Beams, beam_search
from siglum.search.histories import ManyQuestions
from siglum.search.lookahead import LookAhead
from siglum.search.query import Questions
from siglum.search.scorers import DecoderScorer, GeometryScorer, Scorer, SumScorer
from siglum.types import SiglumError

CHUNK = 64
"""Queries worked on at once."""
LED = 8
"""Queries whose followed prefixes a decoder is led along at once."""
FULL, TOP = 512, 128
"""eps is over all prefixes of a level where at most FULL stand above it; else over each list's TOP, beam and target."""
SCOPE = f"beam+teacher{TOP}+oracle{TOP}+target"
"""Name of the latter."""
KNOWN = ("teacher", "oracle", "geometry")
"""Rungs that need no decoder."""
RealBeam = tuple[Scorer, LookAhead | None]
"""What a real beam search ranks by."""


@dataclass(frozen=True, slots=True)
class QueryBatch:
    """Queries for one pool: its codes and vectors, and each query with its target there."""

    codebooks: list[Tensor]
    first_residual: int
    """Position of the first residual level."""
    codes_NT: Tensor
    item_ND: Tensor
    query_QD: Tensor
    target_Q: Tensor
    """Positions in the pool."""
    asked: ManyQuestions | None = None
    """What a decoder is given where that is not the query vector itself (a query head, histories)."""

    def __post_init__(self) -> None:
        """Refuse items without codes and queries without targets."""
        items, codes, queries, targets = map(len, (self.item_ND, self.codes_NT, self.query_QD, self.target_Q))
        if items != codes or queries != targets or not queries:
            raise SiglumError(
                f"every item needs its codes and every query its target, and one query at least is needed, but there "
                f"are {items} items with {codes} codes and {queries} queries with {targets} targets."
            )


@dataclass(slots=True)
class LevelQuantities:
    """One level of one pool; arrays have one entry a query."""

    level: int
    """Residual levels count from 1; a modality token before them is level 0."""
    size: int
    """Codewords of the level."""
    prefixes: int
    """Distinct prefixes of the pool that end here."""
    survived_Q: np.ndarray
    """Whether the target's prefix is live in the quantised oracle's beam."""
    token_survived_Q: np.ndarray
    """Whether the target's code is among the top B of all the level's codewords by <q, c>."""
    K_Q: np.ndarray
    """KL(pi* || pi-bar), the ranking divergence, in nats."""
    m_Q: np.ndarray
    """The teacher's margin."""
    eps_Q: np.ndarray | None = None
    """TV(pi-bar, pi-tilde) with tau on the decoder's score, as the paper prints it; None without a decoder."""
    eps_fused_Q: np.ndarray | None = None
    """The same of the fused score; None without fusion."""
    eps_plain_Q: np.ndarray | None = None
    """TV(pi-bar, P): the decoder's score at temperature 1."""
    eps_fused_plain_Q: np.ndarray | None = None
    """The fused score at temperature 1, at which omega = 1 / (2 tau) makes its geometric part pi-bar's."""
    eps_scope: str | None = None
    """`full`: eps is over all prefixes; else the followed ones, on which both distributions are normalised."""
    uncovered_Q: np.ndarray | None = None
    """Mass of pi-bar on prefixes that eps leaves out."""


@dataclass(slots=True)
class Survey:
    """All that one pass over a pool's queries measures."""

    levels: list[LevelQuantities]
    rungs: list[Rung]


@dataclass(slots=True)
class _Job:
    """What stays the same from chunk to chunk."""

    prefixes: Prefixes
    codebooks: list[Tensor]
    item_ND: Tensor
    """In the order of the sorted rows."""
    beam: int
    tau: float
    decoder: Scorer | None
    bias: Scorer | None
    beams: Mapping[str, RealBeam]
    half: list[np.ndarray]
    queries: int
    found: dict[str, np.ndarray] = field(default_factory=dict)
    """What was measured, by name, each (T, Q)."""

    def put(self, name: str, part: slice, levels: list[np.ndarray]) -> None:
        """Keep what was measured on some queries; arrays are made once, as small ones among large fragment memory."""
        if name not in self.found:
            self.found[name] = np.empty((len(levels), self.queries), levels[0].dtype)
        self.found[name][:, part] = levels


def retention(
    batch: QueryBatch,
    *,
    beam: int,
    tau: float,
    decoder: CodeDecoder | None = None,
    omega: float = 0.0,
    chunk: int = CHUNK,
) -> list[LevelQuantities]:
    """Return the quantities of every token of a pool's codes.

    With a decoder eps is measured too, and with `omega` that of its fusion with geometry.
    """
    generate = None if decoder is None else DecoderScorer(decoder)
    bias = GeometryScorer(batch.codebooks, omega) if decoder is not None and omega > 0 else None
    return survey(batch, beam=beam, tau=tau, decoder=generate, bias=bias, chunk=chunk).levels


@torch.no_grad()
def divergences(batch: QueryBatch, *, tau: float, chunk: int = CHUNK) -> list[np.ndarray]:
    """Return K of every query at every token, each (Q,), as `retention` does, without following any beam."""
    _check(1, tau, chunk)
    prefixes, books, item_ND = _laid_out(batch)
    teacher, found = _Teacher(0, tau), list[list[np.ndarray]]()
    for query_QD in batch.query_QD.split(chunk):
        levels = []
        for scores in prefix_scores(prefixes, books, item_ND, query_QD):
            if scores.fresh:
                teacher.see(scores.teacher_PQ)
            levels.append(_array(teacher.divergence(scores.oracle_PQ)[0]))
        found.append(levels)
    return [np.concatenate(parts) for parts in zip(*found, strict=True)]


def _laid_out(batch: QueryBatch) -> tuple[Prefixes, list[Tensor], Tensor]:
    """Return the prefixes of a batch's pool, its codebooks, and its items in the order of the sorted rows."""
    books = [book.to(batch.query_QD) for book in batch.codebooks]
    names = [str(position) for position in range(len(batch.codes_NT))]
    prefixes = Prefixes(Index.build(names, batch.codes_NT.cpu().numpy(), [len(book) for book in books], "survey"))
    item_ND = batch.item_ND[torch.as_tensor(prefixes.index.order.astype(np.int64), device=batch.item_ND.device)]
    return prefixes, books, item_ND.to(batch.query_QD)


@torch.no_grad()
def survey(
    batch: QueryBatch,
    *,
    beam: int,
    tau: float,
    decoder: Scorer | None = None,
    bias: Scorer | None = None,
    beams: Mapping[str, RealBeam] | None = None,
    chunk: int = CHUNK,
) -> Survey:
    """Measure quantities and rungs in one pass; `decoder` + `bias` is the fused score.

    The rungs are teacher, oracle, geometry, decoder, fused, and any further `beams` by name.
    """
    _check(beam, tau, chunk)
    query_QD = batch.query_QD
    asked: ManyQuestions = query_QD if batch.asked is None else batch.asked
    prefixes, books, item_ND = _laid_out(batch)
    real: dict[str, RealBeam] = {} if decoder is None else {"decoder": (decoder, None)}
    if decoder is not None and bias is not None:
        real["fused"] = (SumScorer([decoder, bias]), None)
    real |= beams or {}
    halves = half_norms(prefixes, books)
    job = _Job(prefixes, books, item_ND, beam, tau, decoder, bias, real, halves, len(query_QD))
    rows = prefixes.row_of_position[batch.target_Q.cpu().numpy()]
    starts = range(0, len(query_QD), chunk)
    for start in progress(starts, "survival", total=len(query_QD), unit="query", size=chunk):
        part = slice(start, start + chunk)
        _survey_chunk(job, part, query_QD[part], asked[part], rows[part])
    return Survey(_levels(job, batch.first_residual), [_rung(job, name) for name in (*KNOWN, *real)])


def _survey_chunk(job: _Job, whole: slice, query_QD: Tensor, asked: Questions, row_Q: np.ndarray) -> None:
    """Measure one chunk of queries, whose targets are sorted rows."""
    prefixes, levels = job.prefixes, range(job.prefixes.levels)
    own = [prefixes.of_rows(level, row_Q) for level in levels]
    beams = {name: PrefixBeam(prefixes, len(query_QD), job.beam) for name in KNOWN}
    live: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {name: [] for name in beams}
    oracle: list[Tensor] = []
    tops: list[Tensor] = []
    values: dict[str, list[np.ndarray]] = {name: [] for name in ("token", "K", "m", "log_total")}
    teacher = _Teacher(job.beam, job.tau)
    for scores in prefix_scores(prefixes, job.codebooks, job.item_ND, query_QD):
        level = scores.level
        if scores.fresh:
            teacher.see(scores.teacher_PQ)
        divergence, log_total = teacher.divergence(scores.oracle_PQ)
        values["K"].append(_array(divergence))
        values["log_total"].append(_array(log_total))
        values["m"].append(_array(teacher.margin(own[level])))
        values["token"].append(_token_survived(scores, prefixes.token[level][own[level]], job.beam))
        beams["teacher"].step(level, scores.teacher_PQ)
        beams["oracle"].step(level, scores.oracle_PQ)
        beams["geometry"].step(level, scores.oracle_PQ, job.half[level])
        for name, one in beams.items():
            live[name].append((one.query_R, one.prefix_R))
        if job.decoder is not None:
            oracle.append(scores.oracle_PQ)
            tops.append(_top(scores))
    for name, (scorer, ahead) in job.beams.items():
        live[name] = _real_beam(job, scorer, ahead, asked)
    for name, pairs in live.items():
        both = [kept(prefixes, level, *pairs[level], own[level]) for level in levels]
        job.put(f"{name}.survived", whole, [one for one, _ in both])
        job.put(f"{name}.leaves", whole, [one for _, one in both])
    for name, found in values.items():
        job.put(name, whole, found)
    if job.decoder is not None:
        seen = [live[name] for name in job.beams]
        lists = [_followed(job, level, tops[level], own[level], [one[level] for one in seen]) for level in levels]
        _mismatch_chunk(job, whole, asked, lists, oracle, np.stack(values["log_total"]))


def _mismatch_chunk(
    job: _Job,
    whole: slice,
    asked: Questions,
    lists: list[np.ndarray | None],
    oracle: list[Tensor],
    log_total_TQ: np.ndarray,
) -> None:
    """Measure eps of one chunk, a few queries at a time: a decoder keeps much for every prefix it is led along."""
    scorers = [one for one in (job.decoder, job.bias) if one is not None]
    for start in range(0, len(asked), LED):
        part = slice(start, min(start + LED, len(asked)))
        chosen = [_of_queries(keys, part, count) for keys, count in zip(lists, job.prefixes.count, strict=True)]
        scores, total = [one[:, part] for one in oracle], log_total_TQ[:, part]
        for name, eps_TQ in mismatch(job.prefixes, scorers, asked[part], chosen, scores, total, job.tau).items():
            job.put(name, slice(whole.start + part.start, whole.start + part.stop), list(eps_TQ))


def _of_queries(keys: np.ndarray | None, part: slice, count: int) -> np.ndarray | None:
    """Return the keys of some queries, counted from the first of them."""
    if keys is None:
        return None
    start, stop = np.searchsorted(keys, (part.start * count, part.stop * count))
    own: np.ndarray = keys[start:stop] - part.start * count
    return own


def _top(scores: LevelScores) -> Tensor:
    """Return the best prefixes of teacher and oracle (at most 2 TOP, Q)."""
    number = min(TOP, len(scores.oracle_PQ))
    return torch.cat([score.topk(number, dim=0).indices for score in (scores.teacher_PQ, scores.oracle_PQ)])


def _is_full(prefixes: Prefixes, level: int) -> bool:
    """Whether a decoder can be led along everything above this level."""
    return level == 0 or prefixes.count[level - 1] <= FULL


def _followed(
    job: _Job, level: int, top_KQ: Tensor, own_Q: np.ndarray, live: list[tuple[np.ndarray, np.ndarray]]
) -> np.ndarray | None:
    """Return the sorted keys (query * P_l + prefix) that eps is over, or None for all prefixes."""
    if _is_full(job.prefixes, level):
        return None
    queries, best = np.arange(len(own_Q)), top_KQ.cpu().numpy()
    pairs = [(queries, own_Q), (np.broadcast_to(queries, best.shape), best), *live]
    return np.unique(np.concatenate([(query * job.prefixes.count[level] + prefix).ravel() for query, prefix in pairs]))


class _Teacher:
    """The teacher's distribution of one level, kept while the prefixes stay the same."""

    def __init__(self, beam: int, tau: float) -> None:
        self.beam, self.tau = beam, tau

    def see(self, teacher_PQ: Tensor) -> None:
        """Turn to other prefixes."""
        log_total, exponent = _log_total(teacher_PQ, self.tau)
        self.pi_PQ = exponent.div_(exponent.sum(0))
        self.free = (self.pi_PQ * teacher_PQ).sum(0) / self.tau - log_total
        """-H(pi*), the teacher's part of K."""
        self.rival = torch.zeros_like(log_total)
        if len(teacher_PQ) > self.beam:
            self.rival = self.pi_PQ.topk(self.beam + 1, dim=0).values[-1]

    def divergence(self, oracle_PQ: Tensor) -> tuple[Tensor, Tensor]:
        """Return K and the log of the oracle's normaliser, each (Q,)."""
        log_total, _ = _log_total(oracle_PQ, self.tau)
        cross = (self.pi_PQ * oracle_PQ).sum(0) / self.tau - log_total
        return (self.free - cross).clamp(min=0), log_total

    def margin(self, own_Q: np.ndarray) -> Tensor:
        """Return m (Q,)."""
        own = torch.as_tensor(own_Q, device=self.pi_PQ.device)
        return self.pi_PQ[own, torch.arange(len(own), device=own.device)] - self.rival


def _log_total(score_PQ: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """Return log sum exp(score / tau) over prefixes (Q,), and exp(score / tau - its maximum) (P, Q)."""
    scaled = score_PQ / tau
    top = scaled.amax(0)
    exponent = scaled.sub_(top).exp_()
    return exponent.sum(0).log() + top, exponent


def _token_survived(scores: LevelScores, token_Q: np.ndarray, beam: int) -> np.ndarray:
    word_VQ = scores.word_VQ
    token = torch.as_tensor(token_Q, device=word_VQ.device)
    above: np.ndarray = (word_VQ > word_VQ.gather(0, token[None])).sum(0).cpu().numpy()
    return above < beam


def _real_beam(
    job: _Job, scorer: Scorer, ahead: LookAhead | None, asked: Questions
) -> list[tuple[np.ndarray, np.ndarray]]:
    trace: list[Beams] = []
    beam_search(scorer, job.prefixes.index, asked, job.beam, None, trace, ahead)
    return [(live.query, job.prefixes.of_rows(level, live.lo)) for level, live in enumerate(trace)]


def _levels(job: _Job, first_residual: int) -> list[LevelQuantities]:
    found = []
    for level, count in enumerate(job.prefixes.count):
        one = LevelQuantities(
            level - first_residual + 1,
            len(job.codebooks[level]),
            count,
            job.found["oracle.survived"][level],
            job.found["token"][level],
            job.found["K"][level],
            job.found["m"][level],
        )
        if job.decoder is not None:
            for name in ("eps", "eps_plain", "uncovered", *(("eps_fused", "eps_fused_plain") if job.bias else ())):
                setattr(one, f"{name}_Q", job.found[name][level])
            one.eps_scope = "full" if _is_full(job.prefixes, level) else SCOPE
        found.append(one)
    return found


def _rung(job: _Job, name: str) -> Rung:
    survival, leaves = (job.found[f"{name}.{what}"].mean(1).tolist() for what in ("survived", "leaves"))
    return Rung(name, survival, leaves)


def _array(values: Tensor) -> np.ndarray:
    array: np.ndarray = values.double().cpu().numpy()
    return array


def _check(beam: int, tau: float, chunk: int) -> None:
    for name, value in (("the beam", beam), ("the chunk", chunk)):
        if value < 1:
            raise SiglumError(f"{name} must be at least 1, not {value}.")
    if not 0 < tau < math.inf:
        raise SiglumError(f"the temperature must be a number above 0, not {tau}.")
