"""A diagnosis of plain codes: the figures are those of the measures it is made of, and misfits are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor

import siglum
from siglum.measure.retention import QueryBatch, retention
from siglum.measure.survival import token_survival
from siglum.types import SiglumError

ITEMS, DIM, SIZES, BEAM = 200, 8, (4, 8, 8), 5


def case() -> dict[str, Any]:
    draw = torch.Generator().manual_seed(0)
    items = torch.nn.functional.normalize(torch.randn(ITEMS, DIM, generator=draw), dim=-1)
    books, left, codes = [], items, []
    for level, size in enumerate(SIZES):
        books.append(torch.randn(size, DIM, generator=draw) / 2 ** (level + 1))
        codes.append(torch.cdist(left, books[-1]).argmin(1))
        left = left - books[-1][codes[-1]]
    queries = torch.nn.functional.normalize(items[:40] + 0.1 * torch.randn(40, DIM, generator=draw), dim=-1)
    return {"codes_NT": torch.stack(codes, 1), "codebooks": books, "query_QD": queries, "item_ND": items}


def test_the_figures_are_those_of_the_measures() -> None:
    given, target = case(), torch.arange(40)
    found = siglum.diagnose_codes(**given, target_Q=target, beam=BEAM, tau=0.1)
    codes, books, queries, items = given.values()
    assert [level.survival for level in found.levels] == token_survival(queries, codes[target], books, BEAM)
    batch = QueryBatch(books, 0, codes, items, queries, target)
    for level, wanted in zip(found.levels, retention(batch, beam=BEAM, tau=0.1), strict=True):
        assert (level.level, level.size, level.prefixes) == (wanted.level, wanted.size, wanted.prefixes)
        assert (level.K, level.m) == pytest.approx((wanted.K_Q.mean(), wanted.m_Q.mean()))
        assert level.usage == len(codes[:, level.level - 1].unique()) / level.size
        assert level.chance == BEAM / max(level.size, BEAM) and level.eps is None
    assert (found.items, found.queries, found.beam) == (ITEMS, 40, BEAM)
    assert found.distinct == len(codes.unique(dim=0))
    rebuilt = torch.stack([book[codes[:, at]] for at, book in enumerate(books)]).sum(0)
    assert found.reconstruction == pytest.approx(float((items - rebuilt).square().sum(1).mean()), rel=1e-5)
    assert list(found.beam_survival) == ["teacher", "oracle", "geometry"]
    assert found.verdict.startswith("the beam loses")
    assert json.loads(json.dumps(found.as_dict()))["levels"][0]["level"] == 1


def test_targets_are_what_dense_search_finds_unless_given() -> None:
    given = case()
    nearest = (given["query_QD"] @ given["item_ND"].T).argmax(1)
    assert siglum.diagnose_codes(**given, beam=BEAM) == siglum.diagnose_codes(**given, target_Q=nearest, beam=BEAM)


def test_a_scorer_adds_its_rungs() -> None:
    def blind(query_RD: Tensor, prefix_RL: Tensor) -> Tensor:
        size = SIZES[prefix_RL.shape[1]]
        return torch.linspace(0, 3, size).log_softmax(-1).expand(len(query_RD), size)

    alone = siglum.diagnose_codes(**case(), beam=BEAM, scorer=blind)
    fused = siglum.diagnose_codes(**case(), beam=BEAM, scorer=blind, omega=50.0)
    assert list(alone.beam_survival)[3:] == ["decoder"] and list(fused.beam_survival)[3:] == ["decoder", "fused"]
    assert fused.beam_survival["fused"][-1] > alone.beam_survival["decoder"][-1] + 0.2
    assert all(level.eps is not None and 0 <= level.eps <= 1 for level in alone.levels)
    assert "decoder" in alone.verdict


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"codes_NT": torch.zeros(ITEMS, 2, dtype=torch.long)}, r"need codes \(200, 3\)"),
        ({"codes_NT": torch.full((ITEMS, 3), 4)}, r"below the sizes of their codebooks, \[4, 8, 8\]"),
        ({"codes_NT": torch.zeros(ITEMS, 3)}, r"codes must be a tensor \(N, L\) of whole numbers, not \(200, 3\)"),
        ({"codes_NT": torch.zeros(ITEMS, dtype=torch.long)}, r"codes must be a tensor \(N, L\) of whole numbers"),
        ({"codes_NT": [[0, 0, 0]]}, r"codes must be a tensor \(N, L\) of whole numbers, not \[\[0"),
        ({"item_ND": True}, r"items must be a tensor \(N, D\) of numbers, not True"),
        ({"query_QD": torch.full((40, DIM), torch.nan)}, "there must be queries, and all their numbers must be finite"),
        ({"query_QD": torch.zeros(0, DIM)}, "there must be queries"),
        ({"codebooks": "abc"}, "codebooks are a list of tensors"),
        ({"codebooks": []}, "there must be codebooks"),
        ({"codebooks": [None] * 3}, "the codebook of level 0 must be a tensor"),
        ({"target_Q": torch.zeros(3, dtype=torch.long)}, "there are 40 queries and 3 targets"),
        ({"target_Q": [0]}, r"targets must be a tensor \(Q\) of whole numbers"),
        ({"beam": 2.5}, "the beam must be a whole number"),
        ({"tau": 0.0}, "tau must be above 0"),
        ({"omega": torch.nan}, "omega must be a finite number"),
        ({"query_QD": torch.zeros(4, DIM + 1)}, "queries of as many numbers"),
        ({"codebooks": [torch.zeros(4, 3)]}, r"codebooks \[\(4, 3\)\]"),
        ({"target_Q": torch.full((40,), ITEMS)}, "targets are rows of the 200 items"),
        ({"first_residual": 3}, "first residual level being 3"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(SiglumError, match=words):
        siglum.diagnose_codes(**{**case(), **change})
