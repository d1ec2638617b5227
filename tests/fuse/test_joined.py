"""Several fused spaces as one: members as if trained alone, the axes that hold most, and a training that resumes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from killing import KilledAt
from siglum.config import FusionConfig, config_fingerprint, from_dict
from siglum.fuse.contrastive import APART, embed, fit_fusion
from siglum.fuse.modules import Joined, member_config
from siglum.fuse.store import load_fusion, save_fusion
from siglum.types import SiglumError, Vectors

CONFIG = FusionConfig(kind="towers", dim=6, hidden=16, epochs=2, batch_size=60, lr=3e-3, temperature=0.1, members=3)


@pytest.fixture(scope="module")
def joined(make_vectors) -> Joined:
    fusion, history = fit_fusion(make_vectors(), CONFIG, seed=4)
    assert isinstance(fusion, Joined) and len(history) == 3 * CONFIG.epochs
    return fusion


def test_every_member_is_what_it_would_be_alone(joined: Joined, make_vectors) -> None:
    vectors = make_vectors()
    for number, member in enumerate(joined.members):
        alone, _ = fit_fusion(vectors, member_config(CONFIG), seed=4 + APART * number)
        assert all(map(torch.equal, member.state_dict().values(), alone.state_dict().values()))
    assert member_config(CONFIG).dim == 12


def test_the_axes_are_the_main_ones_of_the_training_vectors(joined: Joined, make_vectors) -> None:
    vectors = make_vectors()
    sides = ((vectors.items, vectors.pair_item), (vectors.queries, vectors.pair_query))
    wide = [
        np.concatenate([embed(member, side.rows(np.unique(rows)), "cpu").numpy() for member in joined.members], 1)
        for side, rows in sides
    ]
    stacked = np.concatenate([part / len(part) ** 0.5 for part in wide])
    _, _, found = np.linalg.svd(stacked.astype(np.float64))
    axes = joined.axes.double().numpy()
    assert axes.shape == (36, 6)
    np.testing.assert_allclose(axes.T @ axes, np.eye(6), atol=1e-6)
    np.testing.assert_allclose(np.abs(found[:6] @ axes), np.eye(6), atol=1e-4)
    unit = wide[0] @ axes
    np.testing.assert_allclose(
        embed(joined, vectors.items.rows(np.unique(vectors.pair_item)), "cpu").numpy(),
        unit / np.linalg.norm(unit, axis=1, keepdims=True),
        atol=1e-5,
    )


def test_a_resumed_training_and_a_stored_space_are_bit_equal(joined: Joined, make_vectors, tmp_path: Path) -> None:
    vectors = make_vectors()
    with pytest.raises(KeyboardInterrupt):
        fit_fusion(vectors, CONFIG, seed=4, folder=tmp_path / "kept", log=KilledAt(1))
    resumed, _ = fit_fusion(vectors, CONFIG, seed=4, folder=tmp_path / "kept", resume=True)
    save_fusion(tmp_path / "stage", joined, {})
    wanted = joined.state_dict()
    for found in (resumed, load_fusion(tmp_path / "stage")):
        assert found.state_dict().keys() == wanted.keys()
        assert all(torch.equal(value, wanted[name]) for name, value in found.state_dict().items())


def test_one_space_is_named_as_before_and_none_is_refused(make_vectors) -> None:
    assert config_fingerprint(replace(CONFIG, members=1)) != config_fingerprint(CONFIG)
    values: dict[str, object] = {"kind": "towers", "dim": 6}
    assert from_dict(FusionConfig, values).members == 1
    vectors: Vectors = make_vectors()
    with pytest.raises(SiglumError, match=r"fusion\.members is 0, but must be at least 1"):
        fit_fusion(vectors, replace(CONFIG, members=0))
