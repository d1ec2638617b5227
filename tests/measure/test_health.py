"""A tokenizer's health against explicit counting."""

from __future__ import annotations

import json
import math
from collections import Counter

import pytest
import torch

from siglum.config import TokenizerConfig
from siglum.measure.health import tokenizer_health
from siglum.tokenize.rq import ResidualQuantizer


def quantizer() -> ResidualQuantizer:
    made = ResidualQuantizer(TokenizerConfig(vocab=(4, 6)), 5)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for book in made.codebooks:
            book.copy_(torch.randn(book.shape, generator=generator))
    return made


def test_numbers_equal_counting() -> None:
    made = quantizer()
    vectors = torch.randn(40, 5, generator=torch.Generator().manual_seed(1))
    codes = made.encode(vectors, torch.arange(40) % 3)
    codes[1], codes[2] = codes[0], codes[0]
    health = tokenizer_health(made, vectors, codes)
    groups = Counter(map(tuple, codes.tolist()))
    assert (health.items, health.distinct, health.largest_collision) == (40, len(groups), max(groups.values()))
    assert health.collision_rate == sum(n for n in groups.values() if n > 1) / 40 >= 3 / 40
    left = vectors.clone()
    for level, (found, size) in enumerate(zip(health.levels, (3, 4, 6), strict=True)):
        uses = Counter(codes[:, level].tolist())
        left = left - torch.stack([made.codebooks[level][code].detach() for code in codes[:, level]])
        assert (found.size, found.usage, found.dead) == (size, len(uses) / size, size - len(uses))
        assert found.entropy == pytest.approx(-sum(n / 40 * math.log2(n / 40) for n in uses.values()))
        assert found.error == pytest.approx(float(left.square().sum(1).mean()), rel=1e-5)
    wanted = (vectors - made.decode(codes).detach()).square().sum(1).mean()
    assert health.reconstruction == health.levels[-1].error == pytest.approx(float(wanted), rel=1e-5)


def test_all_items_alike() -> None:
    health = tokenizer_health(quantizer(), torch.ones(7, 5), torch.zeros(7, 3, dtype=torch.long))
    assert (health.distinct, health.collision_rate, health.largest_collision) == (1, 1.0, 7)
    assert [level.entropy for level in health.levels] == [0.0, 0.0, 0.0]
    assert [level.dead for level in health.levels] == [2, 3, 5]
    assert json.loads(json.dumps(health.as_dict()))["levels"][1]["usage"] == 0.25


def test_no_collisions() -> None:
    codes = torch.stack([torch.arange(6) % 3, torch.arange(6) % 4, torch.arange(6)], 1)
    health = tokenizer_health(quantizer(), torch.ones(6, 5), codes)
    assert (health.distinct, health.collision_rate, health.largest_collision) == (6, 0.0, 1)
    assert health.levels[2].entropy == pytest.approx(math.log2(6))
