"""Are the codes of any tokenizer good enough for a beam search, and if not, where does it lose its targets?

Shapes: Q queries, N items, T tokens, V_t codewords of token t, D numbers a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from siglum.given import check_codebooks, check_tensor
from siglum.measure.diagnose import RungScores, document_of
from siglum.measure.health import codes_health
from siglum.measure.ladder import Tried
from siglum.measure.retention import QueryBatch, survey
from siglum.search.plain import LogProbs, as_scorer
from siglum.search.scorers import GeometryScorer, Scorer
from siglum.types import SiglumError, real_number, whole_number


@dataclass(frozen=True, slots=True)
class LevelDiagnosis:
    """What was found at one level; docs/diagnose.md says what the numbers are."""

    # An object for Python of what `LevelFacts` is in JSON.  pylint: disable=duplicate-code
    level: int
    """From 1; the levels before the first residual one are 0 and below."""
    size: int
    prefixes: float
    """Distinct prefixes of the items that end here."""
    survival: float
    """Share of queries whose target's code is among the top B of the level by inner product, given those before it."""
    chance: float
    prefix_chance: float
    leaves: float
    K: float
    """Divergence of the ranking by codes from the ranking by vectors, in nats."""
    m: float
    """The margin of the target in the ranking by vectors."""
    eps: float | None
    """How far a scorer's distribution is from that by codes; None without a scorer."""
    usage: float
    entropy: float
    dead: int
    error: float


@dataclass(frozen=True, slots=True)
class CodesDiagnosis:
    """Whether codes are good enough for a beam search, and if not, where it loses its targets."""

    verdict: str
    """The answer in words."""
    notes: list[str]
    """What is wrong with the codes themselves."""
    queries: int
    beam: int
    items: int
    distinct: int
    """Distinct code sequences."""
    collision_rate: float
    """Share of items whose codes are not theirs alone."""
    largest_collision: int
    reconstruction: float
    """Mean squared distance between items and their reconstructions."""
    levels: list[LevelDiagnosis]
    beam_survival: dict[str, list[float]]
    """By what ranks prefixes (the rungs of the ladder): the share of targets in the beam after each level."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


@torch.no_grad()
def diagnose_codes(
    codes_NT: Tensor,
    codebooks: Sequence[Tensor],
    query_QD: Tensor,
    item_ND: Tensor,
    target_Q: Tensor | None = None,
    *,
    beam: int = 50,
    tau: float = 0.05,
    first_residual: int = 0,
    scorer: Scorer | LogProbs | None = None,
    omega: float = 0.0,
) -> CodesDiagnosis:
    """Measure codes of any tokenizer whose reconstructions are sums of codewords (V_l, D), level by level.

    `target_Q` are the rows of the items that answer the queries, by default those that a search by inner product finds
    first. With a scorer, as `fused_beam_search` takes it, what a decoder loses is told too, and with `omega` what
    fusion wins back. Levels before `first_residual` are no residual ones, such as a modality token. Example:

        print(siglum.diagnose_codes(codes, books, queries, items, answers).verdict)
    """
    check_codebooks(codebooks)
    books = [book.detach().float() for book in codebooks]
    _check_codes(codes_NT, books, query_QD, item_ND, target_Q, whole_number("first_residual", first_residual, 0))
    beam = whole_number("the beam", beam)
    if not (real_number("tau", tau) > 0 and real_number("omega", omega) >= 0):
        raise SiglumError(f"tau must be above 0 and omega at least 0, but they are {tau} and {omega}.")
    if target_Q is None:
        target_Q = torch.cat([(part @ item_ND.T).argmax(1) for part in query_QD.split(1024)])
    decoder = None if scorer is None else as_scorer(scorer)
    bias = GeometryScorer(books, omega) if decoder is not None and omega > 0 else None
    batch = QueryBatch(books, first_residual, codes_NT, item_ND.float(), query_QD.float(), target_Q)
    found = survey(batch, beam=beam, tau=tau, decoder=decoder, bias=bias)
    health = codes_health(codes_NT, [len(book) for book in books], books, item_ND)
    tried = Tried(beam, decoder=decoder is not None, omega=omega if bias else 0.0)
    own = "geometry" if decoder is None else "decoder" if bias is None else "fused"
    document = document_of([found], health, first_residual, RungScores(own, decoder, bias, {}, tried))
    names = [entry.name for entry in fields(LevelDiagnosis)]
    return CodesDiagnosis(
        **{name: document[name] for name in ("verdict", "notes", "queries", "beam")},
        **document["health"],
        levels=[LevelDiagnosis(**{name: level[name] for name in names}) for level in document["levels"]],
        beam_survival={rung["rung"]: rung["survival"] for rung in document["ladder"]},
    )


def _check_codes(
    codes_NT: Tensor,
    books: Sequence[Tensor],
    query_QD: Tensor,
    item_ND: Tensor,
    target_Q: Tensor | None,
    first_residual: int,
) -> None:
    """Refuse codes, codebooks and vectors that do not fit together."""
    check_tensor("codes", codes_NT, "NL", whole=True)
    for what, value, axes in (("queries", query_QD, "QD"), ("items", item_ND, "ND")):
        check_tensor(what, value, axes)
        if not len(value) or not bool(value.isfinite().all()):
            raise SiglumError(f"there must be {what}, and all their numbers must be finite.")
    if not books or not all(bool(book.isfinite().all()) for book in books):
        raise SiglumError("there must be codebooks, and all their numbers must be finite.")
    dim, sizes = item_ND.shape[-1], torch.tensor([len(book) for book in books])
    shapes = {"the codes": codes_NT.shape, "queries": query_QD.shape, "items": item_ND.shape}
    if any(len(shape) != 2 for shape in shapes.values()) or any(book.shape[1:] != (dim,) for book in books):
        found = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
        raise SiglumError(
            f"codes are (N, L), codebooks (V, D), queries (Q, D) and items (N, D), but there are {found} and codebooks"
            f" {[tuple(book.shape) for book in books]}."
        )
    if codes_NT.shape != (len(item_ND), len(books)) or not 0 <= first_residual < len(books) or query_QD.shape[1] != dim:
        raise SiglumError(
            f"{len(item_ND)} items of {dim} numbers with {len(books)} codebooks need codes ({len(item_ND)},"
            f" {len(books)}) and queries of as many numbers, but there are codes {tuple(codes_NT.shape)} and queries"
            f" {tuple(query_QD.shape)}, the first residual level being {first_residual}."
        )
    if codes_NT.is_floating_point() or bool(((codes_NT < 0) | (codes_NT.cpu() >= sizes).to(codes_NT.device)).any()):
        raise SiglumError(f"codes are whole numbers from 0, below the sizes of their codebooks, {sizes.tolist()}.")
    if target_Q is not None:
        check_tensor("targets", target_Q, "Q", whole=True)
    if target_Q is not None and len(target_Q) != len(query_QD):
        raise SiglumError(f"there are {len(query_QD)} queries and {len(target_Q)} targets; there is one of each.")
    if target_Q is not None and bool(((target_Q < 0) | (target_Q >= len(item_ND))).any()):
        raise SiglumError(f"targets are rows of the {len(item_ND)} items.")
