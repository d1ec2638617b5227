"""faiss' quantisers both ways, made by faiss itself: the same codes and the same reconstructions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import siglum
from siglum.bridges import CodedItems, from_faiss, to_faiss
from siglum.config import TokenizerConfig
from siglum.tokenize.base import Quantiser
from siglum.tokenize.pq import ProductQuantizer
from siglum.tokenize.rq import ResidualQuantizer
from siglum.types import SiglumError

faiss = pytest.importorskip("faiss")

DIM, NUMBER = 12, 300
VECTORS = np.random.default_rng(0).normal(size=(NUMBER, DIM)).astype(np.float32)


def built(spec: str) -> Any:
    index = faiss.index_factory(DIM, spec)
    index.train(VECTORS)
    if spec.startswith("IDMap"):
        index.add_with_ids(VECTORS, np.arange(NUMBER) + 1_000)
    else:
        index.add(VECTORS)
    return index


def fitted(kind: str, vocab: tuple[int, ...], modality: str = "none", **more: Any) -> Quantiser:
    config = TokenizerConfig(kind=kind, vocab=vocab, modality=modality, **more)  # type: ignore[arg-type]
    made = (ProductQuantizer if kind == "product" else ResidualQuantizer)(config, DIM)
    made.fit(torch.from_numpy(VECTORS), torch.arange(NUMBER) % 3, torch.Generator().manual_seed(0))
    return made


def coded(quantiser: Quantiser) -> CodedItems:
    codes = quantiser.encode(torch.from_numpy(VECTORS), torch.arange(NUMBER) % 3)
    return CodedItems([str(row) for row in range(NUMBER)], codes.numpy(), quantiser.sizes, quantiser)


def rebuilt(items: CodedItems) -> np.ndarray:
    assert items.quantiser is not None
    return items.quantiser.decode(torch.from_numpy(items.codes_NL)).detach().numpy()


@pytest.mark.parametrize("spec", ["RQ3x4", "RQ2x5", "PQ3x4", "PQ4x5", "IDMap,PQ3x4", "IDMap,RQ3x4"])
def test_faiss_there_and_back_is_the_same_bit_for_bit(spec: str) -> None:
    index = built(spec)
    items, inner = from_faiss(index), index.index if spec.startswith("IDMap") else index
    assert items.ids[0] == ("1000" if spec.startswith("IDMap") else "0") and len(items) == NUMBER
    assert np.array_equal(rebuilt(items), inner.reconstruct_n(0, NUMBER))
    assert items.quantiser is not None
    assert np.array_equal(items.quantiser.encode(torch.from_numpy(VECTORS)).numpy(), items.codes_NL)
    back = to_faiss(items)
    assert type(back) is type(faiss.downcast_index(inner)) and back.ntotal == NUMBER
    assert np.array_equal(back.reconstruct_n(0, NUMBER), inner.reconstruct_n(0, NUMBER))
    again = from_faiss(back)
    assert np.array_equal(again.codes_NL, items.codes_NL) and again.sizes == items.sizes
    assert all(torch.equal(a, b) for a, b in zip(again.codebooks, items.codebooks, strict=True))


def test_an_index_is_searched_as_faiss_searches_it() -> None:
    index = built("RQ3x4")
    items = from_faiss(index)
    _, wanted = index.search(VECTORS[:20], 5)
    query = torch.from_numpy(VECTORS[:20])
    found = siglum.fused_beam_search(items.trie(), None, query, codebooks=items.codebooks, beam=NUMBER, k=5)
    assert [list(one.position) for one in found] == wanted.tolist()


def test_a_rotation_goes_along() -> None:
    items = from_faiss(built("OPQ3,PQ3x4"))
    wanted = built("OPQ3,PQ3x4").reconstruct_n(0, NUMBER)
    assert np.allclose(rebuilt(items), wanted, atol=1e-5)
    back = to_faiss(items)
    assert isinstance(back, faiss.IndexPreTransform)
    assert np.allclose(back.reconstruct_n(0, NUMBER), wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("quantiser", "kind"),
    [
        (fitted("residual", (4, 8, 16)), "IndexResidualQuantizer"),
        (fitted("residual", (5, 9), assign_beam=3), "IndexResidualQuantizer"),
        (fitted("residual", (5, 9), "metadata"), "IndexResidualQuantizer"),
        (fitted("product", (4, 9, 30)), "IndexResidualQuantizer"),
    ],
)
def test_ours_there_and_back(quantiser: Quantiser, kind: str) -> None:
    items = coded(quantiser)
    index = to_faiss(items)
    assert type(index).__name__ == kind and index.ntotal == NUMBER
    assert np.allclose(index.reconstruct_n(0, NUMBER), rebuilt(items), atol=1e-6)
    if not quantiser.has_modality:  # faiss would choose a modality by distance
        added = to_faiss(quantiser)
        added.add(VECTORS)
        assert np.array_equal(from_faiss(added).codes_NL, items.codes_NL)
    again = from_faiss(index)
    assert again.sizes == quantiser.sizes and np.array_equal(again.codes_NL, items.codes_NL)
    assert all(torch.equal(a, b) for a, b in zip(again.codebooks, items.codebooks, strict=True))


def test_product_codes_of_equal_widths_become_product_codes() -> None:
    quantiser = fitted("product", (8, 5, 8))
    assert isinstance(quantiser, ProductQuantizer)
    quantiser.width_L.fill_(4)
    for book, basis in zip(quantiser.codebooks, quantiser.bases(), strict=True):
        book.data = book @ basis @ basis.T
    items = coded(quantiser)
    index = to_faiss(items)
    assert isinstance(index, faiss.IndexPreTransform) and isinstance(faiss.downcast_index(index.index), faiss.IndexPQ)
    assert np.allclose(index.reconstruct_n(0, NUMBER), rebuilt(items), atol=1e-5)
    index.add(VECTORS)
    again = from_faiss(index)
    assert again.sizes == (8, 5, 8) and np.array_equal(again.codes_NL[NUMBER:], items.codes_NL)


def test_a_bare_quantiser_has_no_items() -> None:
    bare = built("PQ3x4").pq
    items = from_faiss(bare)
    assert len(items) == 0 and items.codes_NL.shape == (0, 3) and items.sizes == (16, 16, 16)
    assert to_faiss(items).ntotal == 0


@pytest.mark.parametrize("spec", ["Flat", "IVF4,PQ3x4", "SQ8"])
def test_other_indexes_are_refused(spec: str) -> None:
    index = built(spec)
    with pytest.raises(SiglumError, match="what is read are ResidualQuantizer, ProductQuantizer, Index"):
        from_faiss(index)


def test_what_cannot_go_over_is_refused() -> None:
    with pytest.raises(SiglumError, match="which is not trained"):
        from_faiss(faiss.index_factory(DIM, "RQ3x4"))
    with pytest.raises(SiglumError, match="that is no rotation is not read"):
        from_faiss(built("PCA6,PQ3x4"))
    with pytest.raises(SiglumError, match="of these items codes alone are known"):
        to_faiss(CodedItems(["a"], np.zeros((1, 2), int), (2, 2)))


@pytest.mark.parametrize(
    "make", [lambda m: faiss.IndexPQ(DIM, 3, 4, m), lambda m: faiss.IndexResidualQuantizer(DIM, 3, 4, m)]
)
def test_the_metric_goes_both_ways(make: Any) -> None:
    index = make(faiss.METRIC_INNER_PRODUCT)
    index.train(VECTORS)
    index.add(VECTORS)
    items = from_faiss(index)
    assert items.metric == "inner_product"
    back = to_faiss(items)
    assert back.metric_type == faiss.METRIC_INNER_PRODUCT
    scores, rows = index.search(VECTORS[:5], 7)
    found, same = back.search(VECTORS[:5], 7)
    assert np.array_equal(rows, same) and np.allclose(scores, found)
    assert from_faiss(built("PQ3x4")).metric == "l2"
