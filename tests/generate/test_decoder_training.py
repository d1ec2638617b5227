"""Training of the decoder: targets, augmentation, falling loss, and the same bits again after a kill."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from siglum.config import DecoderConfig, FusionConfig, TokenizerConfig
from siglum.fuse.contrastive import embed, new_fusion
from siglum.generate.decoder import CodeDecoder
from siglum.generate.store import load_decoder, save_decoder
from siglum.generate.train import augment_queries, decoder_loss, fit_decoder, new_decoder, soft_code_targets
from siglum.tokenize.train import Tokenizer, fit_tokenizer
from siglum.types import SiglumError, Vectors

CONFIG = DecoderConfig(
    d_model=32, d_ff=64, d_kv=8, heads=4, encoder_layers=0, decoder_layers=1, epochs=4, batch_size=64, lr=3e-3
)
SEEDS = st.integers(0, 10_000)


@pytest.fixture(scope="module")
def data(make_vectors) -> Vectors:
    return make_vectors()


@pytest.fixture(scope="module")
def tokenizer(data: Vectors) -> Tokenizer:
    fusion = new_fusion(data, FusionConfig(kind="sum", dim=16), 0, "cpu")
    config = TokenizerConfig(vocab=(8, 8, 16), epochs=1, batch_size=128, train_fusion=False)
    return fit_tokenizer(data, fusion, config)


def weights(decoder: CodeDecoder) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in decoder.state_dict().items()}


def same(left: CodeDecoder, right: CodeDecoder) -> bool:
    one, two = weights(left), weights(right)
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("softmax", ["level", "joint"])
def test_the_loss_falls(data: Vectors, tokenizer: Tokenizer, softmax: str) -> None:
    decoder, history = fit_decoder(data, tokenizer, replace(CONFIG, softmax=softmax, epochs=12))
    assert len(history) == 12
    assert history[-1]["loss"] < 0.75 * history[0]["loss"]
    assert history[-1]["val_loss"] < history[0]["val_loss"]
    assert len(history[-1]["val_loss_levels"]) == len(history[-1]["val_accuracy"]) == 4
    assert history[-1]["val_loss"] == pytest.approx(sum(history[-1]["val_loss_levels"]) / 4, abs=1e-3)
    assert history[-1]["val_accuracy"][1] > 2 / 8
    assert not decoder.training


def test_without_validation_only_the_training_loss_is_told(data: Vectors, tokenizer: Tokenizer) -> None:
    bare = replace(data, tasks=[])
    _, history = fit_decoder(bare, tokenizer, replace(CONFIG, epochs=1))
    assert set(history[0]) == {"loss"}


@pytest.mark.parametrize("augmentation", ["scalar", "per_dim_sqrt", "off"])
def test_one_seed_gives_one_decoder(data: Vectors, tokenizer: Tokenizer, augmentation: str) -> None:
    config = replace(CONFIG, epochs=2, augmentation=augmentation)
    first, _ = fit_decoder(data, tokenizer, config, seed=3)
    torch.rand(7)
    again, _ = fit_decoder(data, tokenizer, config, seed=3)
    other, _ = fit_decoder(data, tokenizer, config, seed=4)
    assert same(first, again)
    assert not same(first, other)


class KillingLog:
    """Stands for the end of the process while an epoch is logged."""

    def __init__(self, at: int) -> None:
        self.at = at

    def begin(self, stage: str, step: int) -> None:
        pass

    def write(self, stage: str, step: int, values: dict[str, Any]) -> None:
        if step == self.at:
            raise KeyboardInterrupt


@pytest.mark.parametrize("at", [0, 2])
def test_a_killed_training_resumes_to_the_same_bits(
    data: Vectors, tokenizer: Tokenizer, tmp_path: Path, at: int
) -> None:
    whole, history = fit_decoder(data, tokenizer, CONFIG, folder=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        fit_decoder(data, tokenizer, CONFIG, folder=tmp_path / "cut", log=KillingLog(at))
    assert (tmp_path / "cut" / "checkpoint.json").exists() == (at > 0)
    resumed, told = fit_decoder(data, tokenizer, CONFIG, folder=tmp_path / "cut", resume=True)
    assert same(whole, resumed)
    assert told == history


def test_a_checkpoint_of_another_tokenizer_or_config_is_refused(
    data: Vectors, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    fit_decoder(data, tokenizer, replace(CONFIG, epochs=1), folder=tmp_path)
    for config, seed in ((replace(CONFIG, epochs=2), 0), (replace(CONFIG, epochs=1), 1)):
        with pytest.raises(SiglumError, match="another configuration"):
            fit_decoder(data, tokenizer, config, seed=seed, folder=tmp_path, resume=True)
    other = copy.deepcopy(tokenizer)
    with torch.no_grad():
        other.quantizer.codebooks[1][0] += 1.0
    with pytest.raises(SiglumError, match="another configuration"):
        fit_decoder(data, other, replace(CONFIG, epochs=1), folder=tmp_path, resume=True)


def test_targets_that_are_nearly_hard_train_as_hard_ones_do(data: Vectors, tokenizer: Tokenizer) -> None:
    """Softmax over distances with T -> 0 is one-hot at the very code the quantiser chose, level by level."""
    _, hard = fit_decoder(data, tokenizer, CONFIG)
    _, soft = fit_decoder(data, tokenizer, replace(CONFIG, soft_targets=1e-7))
    _, warm = fit_decoder(data, tokenizer, replace(CONFIG, soft_targets=0.3))
    assert soft[-1]["loss"] == pytest.approx(hard[-1]["loss"], abs=1e-3)
    assert abs(warm[-1]["loss"] - hard[-1]["loss"]) > 0.02


@given(seed=SEEDS, temperature=st.sampled_from([0.05, 0.5, 3.0]))
def test_soft_targets_are_a_softmax_over_distances(seed: int, temperature: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    residual, book = torch.randn(5, 4, generator=generator), torch.randn(7, 4, generator=generator)
    found = soft_code_targets(residual, book, temperature)
    torch.testing.assert_close(found.sum(1), torch.ones(5))
    distance = torch.cdist(residual.double(), book.double()).square()
    torch.testing.assert_close(found.double(), (-distance / temperature).softmax(-1), atol=1e-4, rtol=1e-3)


def test_soft_targets_approach_one_hot() -> None:
    generator = torch.Generator().manual_seed(0)
    residual, book = torch.randn(50, 4, generator=generator), torch.randn(7, 4, generator=generator)
    wanted = F.one_hot(torch.cdist(residual, book).argmin(1), 7).float()
    gaps = [float((soft_code_targets(residual, book, t) - wanted).abs().max()) for t in (1.0, 1e-2, 1e-6)]
    assert gaps[0] > 0.3
    assert gaps[1] < gaps[0]
    assert gaps[2] < 1e-6


def test_scalar_augmentation_draws_one_beta_share_a_pair() -> None:
    torch.manual_seed(0)
    query, target = torch.eye(4)[0].repeat(4000, 1), torch.eye(4)[1].repeat(4000, 1)
    mixed = augment_queries(query, target, "scalar")
    torch.testing.assert_close(mixed.norm(dim=1), torch.ones(4000))
    assert not mixed[:, 2:].any()
    share = mixed[:, 0] / mixed[:, :2].sum(1)
    assert float(share.mean()) == pytest.approx(0.5, abs=0.02)
    assert float(share.var()) == pytest.approx(0.05, abs=0.006)
    torch.testing.assert_close(augment_queries(query, query, "scalar"), query)


def test_per_dim_sqrt_augmentation_draws_a_share_a_number() -> None:
    torch.manual_seed(0)
    query = torch.full((3000, 4), 0.5)
    mixed = augment_queries(query, torch.zeros(3000, 4), "per_dim_sqrt")
    torch.testing.assert_close(mixed.norm(dim=1), torch.ones(3000))
    assert float(mixed.std(1).min()) > 0
    # Squares of square roots: the shares themselves, up to the row's length.
    share = mixed.square() / mixed.square().sum(1, keepdim=True)
    assert float(share.mean()) == pytest.approx(0.25, abs=0.01)
    both = augment_queries(query, query, "per_dim_sqrt")
    assert float(both.std(1).max()) > 0.01


def test_no_augmentation_is_the_query_itself_and_another_kind_is_refused() -> None:
    query = torch.randn(3, 4)
    assert augment_queries(query, -query, "off") is query
    with pytest.raises(SiglumError, match="scalar, per_dim_sqrt, off"):
        augment_queries(query, query, "mixup")


def test_the_loss_is_a_mean_over_pairs_and_tokens(make_system) -> None:
    system = make_system(0)
    codes = torch.as_tensor(system.codes[:3])
    rows = torch.arange(3)
    with torch.no_grad():
        levels = system.decoder(system.query, codes)
        wanted = [-x.log_softmax(-1)[rows, codes[:, level]].mean() for level, x in enumerate(levels)]
        torch.testing.assert_close(decoder_loss(system.decoder, system.query, codes), torch.stack(wanted).mean())
        onehot = [None, *[F.one_hot(codes[:, level], x.shape[1]).float() for level, x in enumerate(levels)][1:]]
        soft = decoder_loss(system.decoder, system.query, codes, onehot)
        torch.testing.assert_close(soft, torch.stack(wanted).mean())
        joint = system.decoder.joint_logits(system.query, codes).log_softmax(-1)
        wanted_joint = -joint.gather(2, system.decoder.token_ids(codes)[:, :, None]).mean()
        system.decoder.config = replace(system.decoder.config, softmax="joint")
        torch.testing.assert_close(decoder_loss(system.decoder, system.query, codes), wanted_joint)


def test_code_init_starts_from_the_codewords(tokenizer: Tokenizer) -> None:
    started, plain = (new_decoder(tokenizer, replace(CONFIG, code_init=on), 0) for on in (True, False))
    assert not torch.equal(started.table, plain.table)
    assert torch.equal(started.soft, plain.soft)
    book = F.normalize(tokenizer.codebooks()[1], dim=1)
    rows = F.normalize(started.table.detach()[4:12], dim=1)
    # A random projection keeps angles roughly.
    near = torch.corrcoef(torch.stack([(book @ book.T).flatten(), (rows @ rows.T).flatten()]))[0, 1]
    assert float(near) > 0.8


def test_a_saved_decoder_is_read_back_and_belongs_to_its_tokenizer(
    data: Vectors, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    decoder, _ = fit_decoder(data, tokenizer, replace(CONFIG, epochs=1))
    save_decoder(tmp_path / "d", decoder, tokenizer.fingerprint())
    again = load_decoder(tmp_path / "d", tokenizer.fingerprint())
    assert same(decoder, again)
    assert again.config == decoder.config
    with pytest.raises(SiglumError, match="made with another tokenizer"):
        load_decoder(tmp_path / "d", "f00d")


Seen = tuple[torch.Tensor, torch.Tensor, list[torch.Tensor | None] | None]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Seen]:
    """Queries, codes and soft targets of every training step."""
    kept: list[Seen] = []

    def noted(decoder: CodeDecoder, query: torch.Tensor, codes: torch.Tensor, soft: Any = None) -> torch.Tensor:
        kept.append((query, codes, soft))
        return decoder_loss(decoder, query, codes, soft)

    monkeypatch.setattr("siglum.generate.train.decoder_loss", noted)
    return kept


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_share_of_the_queries_is_blanked(data: Vectors, tokenizer: Tokenizer, seen: list[Seen], share: float) -> None:
    fit_decoder(data, tokenizer, replace(CONFIG, null_queries=share))
    length = torch.cat([query.norm(dim=1) for query, *_ in seen])
    blank = length == 0
    assert float(blank.float().mean()) == pytest.approx(share, abs=0.05 if 0 < share < 1 else 0.0)
    torch.testing.assert_close(length[~blank], torch.ones(int((~blank).sum())))


def test_a_decoder_of_empty_queries_alone_has_never_seen_one(data: Vectors, tokenizer: Tokenizer) -> None:
    config = replace(CONFIG, epochs=2, null_queries=1.0)
    others = replace(data, queries=data.queries.rows(torch.randperm(len(data.queries)).numpy()))
    assert same(fit_decoder(data, tokenizer, config)[0], fit_decoder(others, tokenizer, config)[0])
    seeing = replace(config, null_queries=0.5)
    assert not same(fit_decoder(data, tokenizer, seeing)[0], fit_decoder(others, tokenizer, seeing)[0])


def pair_vectors(data: Vectors, tokenizer: Tokenizer) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the item vectors (P, D) and codes (P, T) of all training pairs."""
    item = embed(tokenizer.fusion, data.items, "cpu")
    codes = tokenizer.quantizer.encode(item, torch.as_tensor(data.items.modality).long())
    return item[data.pair_item], codes[data.pair_item]


def test_with_empty_queries_the_decoder_learns_how_frequent_codes_are(data: Vectors, tokenizer: Tokenizer) -> None:
    """At the first token the best answer to an empty query is the share of every code, whose loss is their entropy."""
    plain, taught = (
        fit_decoder(data, tokenizer, replace(CONFIG, epochs=12, null_queries=share))[0] for share in (0.0, 0.3)
    )
    codes = pair_vectors(data, tokenizer)[1]
    nothing = torch.zeros(len(codes), 16)
    shares = torch.bincount(codes[:, 0], minlength=3) / len(codes)
    entropy = -float((shares * shares.log()).sum())
    with torch.no_grad():
        loss = float(F.cross_entropy(taught(nothing, codes)[0], codes[:, 0]))
        assert entropy - 1e-4 <= loss < entropy + 0.05
        assert float(decoder_loss(taught, nothing, codes)) < 0.95 * float(decoder_loss(plain, nothing, codes))


@pytest.mark.parametrize("relative", [False, True])
def test_soft_targets_may_be_read_relative_to_each_level(
    data: Vectors, tokenizer: Tokenizer, seen: list[Seen], relative: bool
) -> None:
    config = replace(CONFIG, epochs=1, batch_size=300, augmentation="off", soft_targets=0.3, soft_relative=relative)
    fit_decoder(data, tokenizer, config)
    _, codes, soft = seen[0]
    assert soft is not None and soft[0] is None, "the modality stays one-hot"
    residual, own = pair_vectors(data, tokenizer)
    assert sorted(codes.tolist()) == sorted(own.tolist()), "the batch holds all pairs, in some order"
    residual = residual - tokenizer.codebooks()[0][own[:, 0]]
    for level in range(1, 4):
        book = tokenizer.codebooks()[level]
        scale = float(residual.square().sum(1).mean()) if relative else 1.0
        wanted, found = (-torch.cdist(residual, book).square() / (0.3 * scale)).softmax(-1), soft[level]
        assert found is not None
        for moment in (1, 2):  # means over pairs do not feel the order
            torch.testing.assert_close(found.pow(moment).mean(0), wanted.pow(moment).mean(0), atol=1e-4, rtol=1e-3)
        residual = residual - book[own[:, level]]


def test_relative_soft_targets_bear_items_that_are_coded_without_error(data: Vectors, tokenizer: Tokenizer) -> None:
    exact = copy.deepcopy(tokenizer)
    with torch.no_grad():
        for book in exact.quantizer.codebooks:
            book.zero_()
        for part in (exact.fusion.image_scale, exact.fusion.text_scale):
            part.zero_()  # every vector is 0, and so is every residual
    _, history = fit_decoder(data, exact, replace(CONFIG, epochs=1, soft_targets=0.3, soft_relative=True))
    assert math.isfinite(history[0]["loss"])
