"""Prefix ranking distillation as other code bases call it: on a plain batch of pairs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import siglum
from siglum.types import SiglumError


def batch() -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    return {
        "query_QD": torch.randn(6, 4, generator=draw),
        "target_ND": torch.randn(6, 4, generator=draw),
        "partial_NTD": torch.randn(6, 3, 4, generator=draw),
        "codes_NT": torch.randint(2, (6, 3), generator=draw),
    }


def test_every_query_asks_for_its_own_target() -> None:
    told = {"positive_Q": torch.arange(6), "repeat_N": torch.zeros(6, dtype=torch.bool)}
    config = siglum.TokenizerConfig()
    wanted = siglum.prefix_ranking_loss(**batch(), **told, config=config, first_residual=0)
    assert float(siglum.prefix_ranking_loss(**batch())) == float(wanted) > 0


@pytest.mark.parametrize("name", ["query_QD", "target_ND", "partial_NTD", "codes_NT"])
def test_a_batch_whose_parts_do_not_fit_is_refused(name: str) -> None:
    given = batch()
    given[name] = given[name][..., :-1]
    with pytest.raises(SiglumError, match=r"takes queries \(Q, D\), targets \(N, D\), their partial sums"):
        siglum.prefix_ranking_loss(**given)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"query_QD": [[0.0]]}, r"queries must be a tensor \(Q, D\) of numbers"),
        ({"target_ND": None}, r"targets must be a tensor \(N, D\) of numbers, not None"),
        ({"partial_NTD": torch.zeros(6, 4)}, r"partial sums must be a tensor \(N, T, D\)"),
        ({"codes_NT": torch.zeros(6, 3)}, r"codes must be a tensor \(N, T\) of whole numbers, not \(6, 3\)"),
        ({"positive_Q": [0] * 6}, r"positives must be a tensor \(Q\) of whole numbers"),
        ({"first_residual": "1"}, "first_residual must be a whole number"),
    ],
)
def test_what_is_no_batch_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(SiglumError, match=words):
        siglum.prefix_ranking_loss(**{**batch(), **change})


def test_tensors_of_several_precisions_are_taken() -> None:
    draw = torch.Generator().manual_seed(0)
    query, target = torch.randn(3, 5, generator=draw), torch.randn(6, 5, generator=draw)
    partial, codes = torch.randn(6, 2, 5, generator=draw), torch.randint(4, (6, 2), generator=draw)
    wanted = siglum.prefix_ranking_loss(query, target, partial, codes)
    for target_too, partial_too in ((torch.float64, torch.float32), (torch.float32, torch.float64)):
        found = siglum.prefix_ranking_loss(query, target.to(target_too), partial.to(partial_too), codes)
        assert torch.equal(found, wanted)
