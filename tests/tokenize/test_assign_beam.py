"""Coding by a beam: exact where the beam is as wide as all code sequences, nearer on average where it is not."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from siglum.config import FusionConfig, RunConfig, TokenizerConfig, from_dict
from siglum.data.vectors import load_vectors
from siglum.fuse.contrastive import embed
from siglum.measure.systems import open_systems
from siglum.run import stages
from siglum.run.folder import RunFolder
from siglum.search.retriever import Retriever
from siglum.tokenize.rq import ResidualQuantizer
from siglum.types import SiglumError, Vectors

DIM = 5
MODALITIES = st.sampled_from(["metadata", "learned", "none"])


def random_quantizer(seed: int, beam: int, vocab: tuple[int, ...], **options: Any) -> ResidualQuantizer:
    """Codebooks that shrink with depth but overlap, as those of a real quantiser do."""
    quantizer = ResidualQuantizer(TokenizerConfig(vocab=vocab, assign_beam=beam, **options), DIM)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for level, book in enumerate(quantizer.codebooks):
            book.copy_(0.7**level * torch.randn(book.shape, generator=generator))
    return quantizer


def rows(number: int, seed: int) -> tuple[Tensor, Tensor]:
    return torch.randn(number, DIM, generator=torch.Generator().manual_seed(seed + 1)), torch.arange(number) % 3


def error(quantizer: ResidualQuantizer, beam: int, vectors: Tensor, kinds: Tensor) -> Tensor:
    """Return the squared distance of every vector to its reconstruction (N,)."""
    quantizer.config = replace(quantizer.config, assign_beam=beam)
    return (quantizer.decode(quantizer.encode(vectors, kinds)) - vectors).square().sum(-1).detach()


@given(st.integers(0, 1000), MODALITIES)
def test_a_beam_of_one_is_the_greedy_rule(seed: int, modality: str) -> None:
    quantizer, (vectors, kinds) = random_quantizer(seed, 1, (4, 5, 6), modality=modality), rows(20, seed)
    greedy = quantizer.assign(vectors, kinds)[0]
    assert torch.equal(quantizer.encode(vectors, kinds), greedy)
    one, (vectors, kinds) = random_quantizer(seed, 3, (6,), modality=modality), rows(20, seed)
    assert torch.equal(one.encode(vectors, kinds), one.assign(vectors, kinds)[0]), "at one level any beam is greedy"


@given(st.integers(0, 1000), MODALITIES)
def test_a_beam_of_all_sequences_finds_the_nearest_reconstruction(seed: int, modality: str) -> None:
    quantizer, (vectors, kinds) = random_quantizer(seed, 60, (3, 4, 5), modality=modality), rows(8, seed)
    codes = quantizer.encode(vectors, kinds)
    assert codes.shape == (8, len(quantizer.sizes))
    sequences = torch.tensor(list(itertools.product(range(3), range(4), range(5))))
    for n in range(8):
        given_codes = sequences
        if quantizer.has_modality:
            given_codes = torch.cat([codes[n, :1].expand(60, 1), sequences], 1)
        nearest = (quantizer.decode(given_codes) - vectors[n]).square().sum(-1).min()
        found = (quantizer.decode(codes[n : n + 1])[0] - vectors[n]).square().sum()
        torch.testing.assert_close(found, nearest, atol=1e-5, rtol=1e-5)


@given(st.integers(0, 1000), MODALITIES)
def test_the_modality_token_is_not_searched_for(seed: int, modality: str) -> None:
    vectors, kinds = rows(12, seed)
    if modality == "none":
        assert random_quantizer(seed, 4, (4, 5), modality=modality).encode(vectors).shape == (12, 2)
        return
    quantizer = random_quantizer(seed, 4, (4, 5), modality=modality)
    wanted = kinds if modality == "metadata" else torch.cdist(vectors, quantizer.codebooks[0].detach()).argmin(1)
    assert torch.equal(quantizer.encode(vectors, kinds)[:, 0], wanted)


def test_metadata_must_be_given_to_a_beam_too() -> None:
    with pytest.raises(SiglumError, match="takes the modality code from metadata, but no modalities were given"):
        random_quantizer(0, 4, (4, 5)).encode(rows(3, 0)[0])


@given(st.integers(0, 1000), st.integers(1, 5), st.integers(1, 5))
def test_with_two_levels_no_item_is_worse_off_for_a_wider_beam(seed: int, beam: int, more: int) -> None:
    """The wider beam keeps every first code the narrower one keeps; with more levels that need not be so."""
    quantizer, (vectors, kinds) = random_quantizer(seed, 1, (6, 7)), rows(30, seed)
    narrow, wide = (error(quantizer, width, vectors, kinds) for width in (beam, beam + more))
    assert bool((wide <= narrow + 1e-5).all())


def test_with_many_levels_a_wider_beam_is_nearer_on_average() -> None:
    quantizer, (vectors, kinds) = random_quantizer(3, 1, (8,) * 6), rows(200, 3)
    means = [float(error(quantizer, beam, vectors, kinds).mean()) for beam in (1, 2, 8, 32)]
    assert all(wider < narrower for narrower, wider in itertools.pairwise(means))
    assert means[2] < 0.8 * means[0]


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_codes_do_not_depend_on_the_batch(batch_size: int) -> None:
    quantizer, (vectors, kinds) = random_quantizer(5, 6, (6, 7, 8)), rows(50, 5)
    whole = quantizer.encode(vectors, kinds)
    assert torch.equal(quantizer.encode(vectors, kinds, batch_size), whole)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    assert torch.equal(quantizer.encode(vectors[order], kinds[order], batch_size), whole[order])


def test_nothing_gives_no_codes_and_half_precision_is_coded_in_single() -> None:
    quantizer, (vectors, kinds) = random_quantizer(5, 6, (6, 7)), rows(30, 5)
    assert quantizer.encode(vectors[:0], kinds[:0]).shape == (0, 3)
    assert torch.equal(quantizer.encode(vectors.half(), kinds), quantizer.encode(vectors.half().float(), kinds))
    assert not quantizer.encode(vectors.requires_grad_(), kinds).requires_grad


def test_a_beam_of_nothing_is_refused() -> None:
    with pytest.raises(SiglumError, match=r"TokenizerConfig\.assign_beam is 0, but must be at least 1"):
        from_dict(TokenizerConfig, {"assign_beam": 0})


@pytest.fixture
def run(tmp_path: Path, make_vectors) -> RunFolder:
    """A run without decoder on random vectors, items coded by a beam."""
    found = RunFolder(tmp_path)
    found.write_config(
        RunConfig(
            fusion=FusionConfig(kind="sum", dim=12),
            tokenizer=TokenizerConfig(vocab=(8, 8, 8), epochs=0, train_fusion=False, assign_beam=6),
        )
    )
    stages.take_vectors(found, make_vectors(image_dim=12, text_dim=12))
    stages.make_tokenizer(found)
    stages.make_index(found)
    return found


def test_the_index_and_items_added_to_it_have_the_codes_of_the_beam(run: RunFolder) -> None:
    vectors: Vectors = load_vectors(run.vectors)[0]
    retriever = Retriever.load(run.root)
    quantizer = retriever.tokenizer.quantizer
    assert quantizer.config.assign_beam == 6
    kinds = torch.as_tensor(vectors.items.modality.astype(np.int64))
    item = embed(retriever.tokenizer.fusion, vectors.items, "cpu")
    codes, greedy = quantizer.encode(item, kinds), quantizer.assign(item, kinds)[0]
    assert not torch.equal(codes, greedy)
    assert np.array_equal(retriever.index.codes_of(vectors.items.ids), codes.numpy())
    retriever.remove(vectors.items.ids[:200])
    retriever.add(vectors.items.rows(np.arange(200)))
    assert np.array_equal(retriever.index.codes_of(vectors.items.ids), codes.numpy())
    systems = open_systems(run)
    assert torch.equal(systems.coded.codes_NT, codes)
