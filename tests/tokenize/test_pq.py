"""Product codes: faiss assigns the same, partial sums telescope, and a whole run on them is searched and explained."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from siglum.cli.main import main
from siglum.config import FusionConfig, TokenizerConfig
from siglum.data.vectors import load_vectors
from siglum.fuse.modules import build_fusion
from siglum.measure.explain import explain, tell
from siglum.run.coded import Coded
from siglum.run.folder import RunFolder
from siglum.search.beam import Ranking
from siglum.search.retriever import Retriever
from siglum.search.static import GraphSearch
from siglum.tokenize.pq import ProductQuantizer, share_axes
from siglum.tokenize.rq import ResidualQuantizer
from siglum.tokenize.store import load_tokenizer, save_tokenizer
from siglum.tokenize.train import Tokenizer, fit_tokenizer
from siglum.types import SiglumError, Vectors

DIM = 12
CONFIG = TokenizerConfig(kind="product", vocab=(16, 16, 16, 16), kmeans_iters=3)
SEEDS = st.integers(0, 10_000)


def data(seed: int = 0, number: int = 200) -> tuple[Tensor, Tensor]:
    """Return vectors whose axes matter unequally, and their modalities."""
    generator = torch.Generator().manual_seed(seed)
    mixed = torch.randn(number, DIM, generator=generator) * 0.8 ** torch.arange(DIM)
    return mixed @ torch.randn(DIM, DIM, generator=generator), torch.arange(number) % 3


def fitted(config: TokenizerConfig = CONFIG, seed: int = 0) -> ProductQuantizer:
    quantizer = ProductQuantizer(config, DIM)
    quantizer.fit(*data(seed), torch.Generator().manual_seed(seed))
    return quantizer


@given(seed=SEEDS)
def test_faiss_assigns_the_same_codes(seed: int) -> None:
    faiss = pytest.importorskip("faiss")
    quantizer = ProductQuantizer(replace(CONFIG, modality="none"), DIM)
    quantizer.fit(data(seed)[0], None, torch.Generator().manual_seed(seed))
    vectors = data(seed)[0]
    quantizer.width_L.fill_(3)  # faiss knows sub-spaces of one width only
    for book, basis in zip(quantizer.codebooks, quantizer.bases(), strict=True):
        book.data.copy_(vectors[:16] @ basis @ basis.T)
    theirs = faiss.ProductQuantizer(DIM, 4, 4)
    parts = zip(quantizer.codebooks, quantizer.bases(), strict=True)
    centroids = np.stack([(book @ basis).numpy() for book, basis in parts])
    faiss.copy_array_to_vector(centroids.astype(np.float32).ravel(), theirs.centroids)
    fresh = data(seed + 1)[0]
    packed = theirs.compute_codes((fresh @ quantizer.axes_DD).numpy())
    codes = np.stack([packed & 15, packed >> 4], 2).reshape(len(fresh), 4)
    assert np.array_equal(quantizer.encode(fresh).numpy(), codes)


@given(seed=SEEDS, modality=st.sampled_from(["metadata", "learned", "none"]), vector=st.booleans())
def test_sub_spaces_are_orthogonal_and_partial_sums_telescope(seed: int, modality: str, vector: bool) -> None:
    config = replace(CONFIG, modality=modality, modality_vector=vector or modality == "learned", vocab=(4, 16, 8))
    quantizer = fitted(config, seed)
    vectors, kinds = data(seed + 1)
    codes = quantizer.encode(vectors, kinds)
    books = list(quantizer.codebooks)[quantizer.first_residual :]
    for one, book in enumerate(books):
        for other in books[one + 1 :]:
            assert (book @ other.T).abs().max() < 1e-3
    partial = quantizer.partial_sums(codes)
    torch.testing.assert_close(partial[:, -1], quantizer.decode(codes))
    whole, words = vectors, quantizer.codewords(codes)
    if quantizer.first_residual:
        whole = vectors - words[:, 0]
    gain = (2 * whole[:, None] * words - words.square()).sum(-1)[:, quantizer.first_residual :].sum(1)
    drop = whole.square().sum(1) - (vectors - partial[:, -1]).square().sum(1)
    torch.testing.assert_close(gain, drop, atol=1e-3, rtol=1e-4)
    own = data(seed)
    error = (own[0][:, None] - quantizer.partial_sums(quantizer.encode(*own))).square().sum(-1).mean(0)
    assert (error[quantizer.first_residual :].diff() < 0).all(), "every level comes nearer"
    greedy = ResidualQuantizer(replace(config, kind="residual"), DIM)
    for own, book in zip(greedy.codebooks, quantizer.codebooks, strict=True):
        own.data.copy_(book)
    assert torch.equal(greedy.encode(vectors, kinds), codes), "orthogonal codewords: the greedy rule finds the nearest"


def test_axes_of_the_largest_variance_come_first_and_are_shared_by_bits() -> None:
    quantizer = fitted(replace(CONFIG, modality="none"))
    spread = (data()[0] @ quantizer.axes_DD).var(0)
    assert torch.equal(spread.sort(descending=True).values, spread)
    assert int(quantizer.width_L.sum()) == DIM and int(quantizer.width_L.min()) > 0
    assert share_axes([1.0] * 12, (4, 16, 64)) == [2, 4, 6]
    assert share_axes([9.0, 0.0, 0.0, 0.0], (16, 16, 16)) == [1, 1, 2]
    assert share_axes([1.0, 1.0, 9.0], (2, 2, 2)) == [1, 1, 1]
    eye = quantizer.axes_DD.T @ quantizer.axes_DD
    torch.testing.assert_close(eye, torch.eye(DIM), atol=1e-5, rtol=0)


def test_more_levels_than_numbers_are_refused() -> None:
    with pytest.raises(SiglumError, match="12 numbers into at most 12 sub-spaces, not 13"):
        ProductQuantizer(replace(CONFIG, vocab=(2,) * 13), DIM)


def test_it_is_fitted_on_the_fused_space_as_it_is_and_comes_back_from_disk(vectors: Vectors, tmp_path: Path) -> None:
    with pytest.raises(SiglumError, match=r"tokenizer.kind product .* untrained; set fusion.epochs above 0\."):
        fit_tokenizer(vectors, build_fusion(FusionConfig(dim=8, hidden=8, projection=8), 16, 12), CONFIG)
    fusion = build_fusion(FusionConfig(dim=8, hidden=8, projection=8, epochs=1), 16, 12)
    before = {name: value.clone() for name, value in fusion.state_dict().items()}
    one, two = (fit_tokenizer(vectors, fusion, CONFIG, seed=3) for _ in range(2))
    assert all(torch.equal(value, before[name]) for name, value in one.fusion.state_dict().items())
    assert one.fingerprint() == two.fingerprint() and one.history == []
    save_tokenizer(tmp_path / "tok", one, {"vectors": "none"})
    back, _ = load_tokenizer(tmp_path / "tok")
    assert isinstance(back.quantizer, ProductQuantizer)
    assert back.fingerprint() == one.fingerprint()
    for name, value in one.quantizer.state_dict().items():
        assert torch.equal(value, back.quantizer.state_dict()[name])
    fresh = torch.randn(20, 8)
    kinds = torch.arange(20) % 3
    assert torch.equal(one.quantizer.encode(fresh, kinds), back.quantizer.encode(fresh, kinds))


def test_the_kind_is_part_of_a_fingerprint() -> None:
    fusion = build_fusion(FusionConfig(kind="sum", dim=DIM), DIM, DIM)
    one, other = ProductQuantizer(CONFIG, DIM), ProductQuantizer(replace(CONFIG, kind="other"), DIM)
    assert Tokenizer(fusion, one).fingerprint() != Tokenizer(fusion, other).fingerprint()


@pytest.fixture(scope="module")
def product_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run with product codes, made by the command line."""
    run = tmp_path_factory.mktemp("product") / "run"
    settings = ("tokenizer.kind=product", "tokenizer.vocab=[8,8,16,16]", "fusion.epochs=2", "decoder.epochs=2")
    chosen = [part for setting in settings for part in ("--set", setting)]
    for verb in (["encode", "--out", run, "--world", 240, "--scale", "tiny", *chosen], ["tokenize", run]):
        assert main([str(part) for part in verb]) == 0
    assert main(["train", str(run)]) == main(["index", str(run)]) == 0
    return run


@pytest.fixture(scope="module")
def asked(product_run: Path) -> tuple[Retriever, Coded]:
    """The retriever of that run, and its collection with codes."""
    retriever = Retriever.load(product_run)
    return retriever, Coded.of(load_vectors(RunFolder(product_run).vectors)[0], retriever.tokenizer)


def assert_same(found: list[Ranking], wanted: list[Ranking]) -> None:
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one.score, other.score, atol=1e-3)
        assert set(one.position[:-3].tolist()) <= set(other.position.tolist())


def test_a_beam_as_wide_as_the_corpus_is_a_scan_of_reconstructions(asked: tuple[Retriever, Coded]) -> None:
    retriever, coded = asked
    number, query = len(retriever.index), coded.query_MD[-8:]
    codes = torch.as_tensor(retriever.index.codes_of(list(retriever.index.ids))).long()
    hat = retriever.tokenizer.quantizer.decode(codes)
    near = (2 * query @ hat.T - hat.square().sum(1)).numpy()
    for ranking, own in zip(retriever.rank(query, k=number, beam=number, scorer="geometry"), near, strict=True):
        assert sorted(ranking.position.tolist()) == list(range(number))
        np.testing.assert_allclose(ranking.score, own[ranking.position], atol=1e-4)
        np.testing.assert_allclose(ranking.score, np.sort(own)[::-1], atol=1e-4)


@pytest.mark.parametrize("beam", [5, 60])
def test_both_fast_engines_agree_with_the_reference(asked: tuple[Retriever, Coded], beam: int) -> None:
    retriever, coded = asked
    query, config = coded.query_MD[-8:], replace(retriever.config, beam=beam)
    wanted = retriever.rank(query, k=5, beam=beam, engine="reference")
    assert_same(retriever.rank(query, k=5, beam=beam, engine="fast"), wanted)
    first = retriever.tokenizer.quantizer.first_geometric
    parts = (retriever.decoder, retriever.tokenizer.codebooks(), retriever.index, config, first, "cpu")
    assert_same(GraphSearch(*parts).search(query, k=5), wanted)


@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton, which is for Linux only")
def test_the_kernels_agree_with_the_reference(asked: tuple[Retriever, Coded]) -> None:
    retriever, coded = asked
    query, config = coded.query_MD[-2:], replace(retriever.config, beam=5)
    first = retriever.tokenizer.quantizer.first_geometric
    parts = (retriever.decoder, retriever.tokenizer.codebooks(), retriever.index, config, first, "cpu")
    found = GraphSearch(*parts, fused=True).search(query, k=5)
    assert_same(found, retriever.rank(query, k=5, beam=5, engine="reference"))


def test_items_are_added_later(asked: tuple[Retriever, Coded], product_run: Path) -> None:
    retriever, coded = Retriever.load(product_run), asked[1]
    gone = list(retriever.index.ids)[:3]
    before = retriever.index.codes_of(gone)
    rows = np.array([list(coded.vectors.items.ids).index(name) for name in gone])
    retriever.remove(gone)
    retriever.add(coded.vectors.items.rows(rows))
    assert np.array_equal(retriever.index.codes_of(gone), before)


def test_every_verb_takes_the_run(product_run: Path, call) -> None:
    assert json.loads(call("search", product_run, "a red star", "--json"))["hits"]
    result = json.loads(call("eval", product_run, "--json"))
    assert set(next(iter(result["tasks"].values()))) >= {"dense", "scan", "geometry", "pro"}
    assert len(result["survival"]) == 4 and [level["size"] for level in result["health"]["levels"]] == [3, 8, 8, 16, 16]
    found = json.loads(call("diagnose", product_run, "--json"))
    errors = [level["error"] for level in found["levels"]]
    assert errors == sorted(errors, reverse=True)
    assert "distillation" not in found["verdict"], "product codes cannot learn to rank"
    assert [rung["rung"] for rung in found["ladder"]] == ["teacher", "oracle", "geometry", "decoder", "fused"]
    assert "tokenizer.kind = product" in call("info", product_run)
    call("report", product_run, "--json")


def test_a_target_is_explained(asked: tuple[Retriever, Coded]) -> None:
    retriever, coded = asked
    target = retriever.index.ids[0]
    found = explain(retriever, coded.query_MD[-1:], target, beam=4)
    assert found.codes == tuple(retriever.index.codes_of([target])[0].tolist())
    assert {"log_probability", "geometry"} <= set(found.levels[0].target.parts)
    assert tell(found)[0].startswith(target)
