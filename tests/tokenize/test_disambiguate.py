"""Every item has an id of its own: equal codes are numbered, and only what vectors say has geometry."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from siglum.config import TokenizerConfig
from siglum.tokenize.base import build_quantiser
from siglum.tokenize.disambiguate import count_equal, disambiguate, fit_in, number_equal


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=40))
def test_equal_codes_are_numbered_in_order(codes: list[tuple[int, int]]) -> None:
    found = number_equal(torch.tensor(codes, dtype=torch.long).view(-1, 2)).tolist()
    assert found == [codes[:place].count(own) for place, own in enumerate(codes)]


def test_more_equal_items_than_numbers_are_counted() -> None:
    codes = disambiguate(torch.tensor([[1]] * 5 + [[2]]), 3).numpy()
    assert codes[:, 1].tolist() == [0, 1, 2, 0, 1, 0]
    assert count_equal(codes, (4, 3)) == (5, 1, 5, 4)
    assert count_equal(codes[:0], (4, 3)) == (0, 0, 0, 0)


def test_new_items_take_free_numbers() -> None:
    known = np.array([[3, 0], [3, 1], [4, 0]])
    assert fit_in(np.array([[3, 0], [3, 0], [9, 0]]), known, 3)[:, 1].tolist() == [2, 1, 0]


@pytest.mark.parametrize("kind", ["residual", "product", "rqvae"])
@pytest.mark.parametrize("modality", ["none", "metadata"])
def test_numbers_have_no_geometry(kind: str, modality: str) -> None:
    config = TokenizerConfig(
        kind=kind, vocab=(4, 4), modality=modality, disambiguation=8, update="ema", latent=4, widths=(8,), epochs=3,
        batch_size=32,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    vectors = torch.nn.functional.normalize(torch.randn(60, 6, generator=generator), dim=1)
    kinds = torch.arange(60) % 3
    quantiser = build_quantiser(config, 6)
    quantiser.fit(vectors, kinds, generator)
    codes = quantiser.encode(vectors, kinds)
    own = len(quantiser.own_sizes)
    assert codes.shape == (60, own + 1) and quantiser.sizes[-1] == 8 and quantiser.sizes[:-1] == quantiser.own_sizes
    assert [len(book) for book in quantiser.books()] == list(quantiser.sizes) and not quantiser.books()[-1].any()
    sums = quantiser.partial_sums(codes)
    torch.testing.assert_close(sums[:, -1], sums[:, -2])
    torch.testing.assert_close(quantiser.decode(codes), quantiser.decode(codes[:, :own]))
    assert (codes[:, :own] == quantiser.encode(vectors[:7], kinds[:7])[:, :own][0]).any()
    again = build_quantiser(config, 6)
    again.load_state_dict(quantiser.state_dict())
    assert torch.equal(again.encode(vectors, kinds), codes)


def test_an_rq_vae_codes_what_it_was_fitted_to() -> None:
    generator = torch.Generator().manual_seed(1)
    centre = torch.randn(16, 12, generator=generator)
    rows = torch.arange(320) % 16
    vectors = torch.nn.functional.normalize(centre[rows] + 0.05 * torch.randn(320, 12, generator=generator), dim=1)
    common = {"vocab": (4, 8), "modality": "none", "latent": 8, "widths": (32,), "batch_size": 64, "lr": 3e-3}
    short, long = (build_quantiser(TokenizerConfig(kind="rqvae", epochs=epochs, **common), 12) for epochs in (0, 60))
    found = []
    for quantiser in (short, long):
        quantiser.fit(vectors, None, torch.Generator().manual_seed(0))
        codes = quantiser.encode(vectors)
        error = (vectors - quantiser.decode(codes)).square().sum(1).mean()
        same = torch.stack(
            [(codes[rows == group] == codes[rows == group][0]).all(1).float().mean() for group in range(16)]
        )
        found.append((float(error), float(same.mean())))
        level = [(vectors - quantiser.partial_sums(codes)[:, place]).square().sum(1).mean() for place in range(2)]
        assert level[1] < level[0]
        assert not any(parameter.requires_grad for parameter in quantiser.parameters())
    assert found[1][1] > 0.9 and found[1][0] < 0.4
