"""Rows for dead codes are one stream, taken in order, and as many as an epoch can need."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from siglum.config import TokenizerConfig
from siglum.tokenize import rq as module
from siglum.tokenize.rq import ResidualQuantizer, RevivalRows


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=40), min_size=1, max_size=8), st.integers(0, 99))
def test_every_dead_code_takes_the_next_row(deaths: list[list[bool]], seed: int) -> None:
    revival_rows, drawn = RevivalRows(50, 400, generator(seed)), generator(seed)
    for dead in deaths:
        rows = revival_rows.take(torch.tensor(dead))
        assert rows.shape == (len(dead),)
        # The stream is the one that drawing as many as are dead, step by step, would have made.
        assert rows[torch.tensor(dead)].tolist() == torch.randint(50, (sum(dead),), generator=drawn).tolist()
    assert int(revival_rows.taken) == sum(map(sum, deaths))


def test_a_stream_that_ends_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 5)
    revival_rows = RevivalRows(1000, 400, generator(0))
    taken = torch.cat([revival_rows.take(torch.ones(4, dtype=torch.bool)) for _ in range(3)])
    assert len(revival_rows.row_M) == 5
    assert taken.tolist() == (revival_rows.row_M.tolist() * 3)[:12]


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("steps", [1, 7, 40])
def test_a_stream_is_long_enough_for_the_worst_epoch(absolute: bool, steps: int) -> None:
    config = TokenizerConfig(
        vocab=(4, 32), modality="none", update="ema", revive_below=99.0 if absolute else 0.7, revive_absolute=absolute
    )
    quantizer, rows = ResidualQuantizer(config, 3), 16
    for name, value in quantizer.named_buffers():
        if name.startswith("idle"):
            value.fill_(1e3)  # all have been idle for long
    revival_rows = quantizer.draw_revival_rows(rows, steps, generator(0))
    for _ in range(steps):
        quantizer.fit_step([torch.ones(rows, 3)] * 2, torch.zeros(rows, 2, dtype=torch.long), revival_rows)
    assert 32 <= int(revival_rows.taken) <= len(revival_rows.row_M)
    assert len(revival_rows.row_M) <= (36 * steps if absolute else 36 + 2 * (0.7 * rows * steps + 1))
