"""Training of the tokenizer learns, repeats itself bit for bit, and resumes as if nothing had happened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from killing import KilledAt
from siglum.config import FusionConfig, TokenizerConfig
from siglum.fuse.contrastive import embed, fit_fusion, new_fusion
from siglum.fuse.modules import Fusion
from siglum.tokenize.heldout import held_out_rank_loss
from siglum.tokenize.train import Tokenizer, TokenizerTraining, fit_tokenizer
from siglum.types import SiglumError, Vectors

FUSION = FusionConfig(kind="combiner", dim=12, projection=16, hidden=16, temperature=0.1, standardise=True)
# The means over 12 numbers make L_rq and L_mse 64 times larger than over 768, hence the small weights.
CONFIG = TokenizerConfig(
    vocab=(8, 8, 16),
    epochs=6,
    batch_size=60,
    lr=2e-3,
    top_k=32,
    temperature=0.1,
    rank_weight=1.0,
    rq_weight=2.0,
    mse_weight=2.0,
)


def fit(
    vectors: Vectors, config: TokenizerConfig, seed: int = 0, fusion: Fusion | None = None, **options: Any
) -> Tokenizer:
    return fit_tokenizer(vectors, fusion or new_fusion(vectors, FUSION, 0, "cpu"), config, seed=seed, **options)


def state(tokenizer: Tokenizer) -> dict[str, Tensor]:
    return {**tokenizer.fusion.state_dict(), **tokenizer.quantizer.state_dict()}


def same(left: Tokenizer, right: Tokenizer) -> bool:
    a, b = state(left), state(right)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("update", ["hybrid", "grad", "ema"])
def test_every_mode_learns(vectors: Vectors, update: Any) -> None:
    # From a trained space and poor codebooks, so that every loss has room to fall.
    fusion, _ = fit_fusion(vectors, replace(FUSION, epochs=8, batch_size=60, lr=3e-3), seed=0)
    tokenizer = fit(vectors, replace(CONFIG, update=update, epochs=10, kmeans_iters=0, lr=5e-3), fusion=fusion)
    first, last = tokenizer.history[0], tokenizer.history[-1]
    for name in ("cl", "mse", "rank") if update == "grad" else ("cl", "mse", "rank", "rq"):
        assert last[f"loss_{name}"] < 0.9 * first[f"loss_{name}"], name
    assert min(last["usage"]) > 0.85
    assert len(last["usage"]) == 4
    assert ("loss_codebook" in last) == (update == "grad")
    assert not tokenizer.fusion.training
    assert not tokenizer.quantizer.training


def test_codes_of_a_query_come_near_those_of_its_item(vectors: Vectors) -> None:
    tokenizer = fit(vectors, replace(CONFIG, epochs=10))
    kinds = torch.as_tensor(vectors.items.modality.astype(np.int64))
    items = tokenizer.quantizer.encode(embed(tokenizer.fusion, vectors.items, "cpu"), kinds)
    pair = torch.as_tensor(vectors.pair_item)
    queries = tokenizer.quantizer.encode(embed(tokenizer.fusion, vectors.queries, "cpu")[: len(pair)], kinds[pair])
    agreement = float((queries[:, 1] == items[pair, 1]).float().mean())
    chance = float((queries[:, 1] == items[pair.roll(7), 1]).float().mean())
    assert agreement > 0.6
    assert agreement > 2 * chance


def test_codewords_alone_can_lower_the_ranking_loss(vectors: Vectors) -> None:
    fusion, _ = fit_fusion(vectors, replace(FUSION, epochs=8, batch_size=60, lr=3e-3), seed=0)
    config = replace(CONFIG, train_fusion=False, epochs=15, lr=1e-2, rq_weight=1.0, mse_weight=1.0)
    history = fit(vectors, replace(config, rank_weight=100.0), fusion=fusion).history
    assert history[-1]["loss_rank"] < 0.9 * history[0]["loss_rank"]


def test_without_weight_there_is_no_ranking_loss(vectors: Vectors) -> None:
    tokenizer = fit(vectors, replace(CONFIG, rank_weight=0.0, epochs=2))
    assert all("loss_rank" not in metrics for metrics in tokenizer.history)
    assert not same(tokenizer, fit(vectors, replace(CONFIG, epochs=2)))


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(vectors: Vectors) -> None:
    config = replace(CONFIG, epochs=2)
    first, again, other = fit(vectors, config), fit(vectors, config), fit(vectors, config, seed=1)
    assert same(first, again)
    assert first.history == again.history
    assert first.fingerprint() == again.fingerprint()
    assert not same(first, other)
    assert first.fingerprint() != other.fingerprint()


@pytest.mark.parametrize("update", ["hybrid", "grad", "ema"])
@pytest.mark.parametrize("train_fusion", [True, False])
def test_a_resumed_training_is_bit_equal(vectors: Vectors, tmp_path: Path, update: Any, train_fusion: bool) -> None:
    # revive_below is high enough to revive some codes, whose choice is random.
    config = replace(CONFIG, update=update, train_fusion=train_fusion, epochs=5, revive_below=0.4, vocab=(16, 32))
    straight = fit(vectors, config, seed=3)
    for number, kill_at in enumerate((2, 4)):
        with pytest.raises(KeyboardInterrupt):
            fit(vectors, config, seed=3, folder=tmp_path, resume=number > 0, log=KilledAt(kill_at))
    resumed = fit(vectors, config, seed=3, folder=tmp_path, resume=True)
    assert sum(metrics["revived"] for metrics in straight.history) > 0
    assert resumed.history == straight.history
    assert same(straight, resumed)


def test_a_checkpoint_of_another_run_is_refused(
    vectors: Vectors, make_vectors: Callable[..., Vectors], tmp_path: Path, subtests: pytest.Subtests
) -> None:
    config = replace(CONFIG, epochs=1)
    fit(vectors, config, folder=tmp_path)
    other_fusion = new_fusion(vectors, FUSION, 1, "cpu")
    for options in (
        {"config": replace(config, decay=0.8)},
        {"seed": 1},
        {"vectors": make_vectors(seed=5)},
        {"fusion": other_fusion},
    ):
        told = pytest.raises(SiglumError, match="another configuration or other data")
        with subtests.test(next(iter(options))), told:
            fit(**{"vectors": vectors, "config": config, "folder": tmp_path, "resume": True, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("update", ["hybrid", "grad", "ema"])
def test_a_fixed_fusion_stays_as_it_is_and_codebooks_learn(vectors: Vectors, update: Any) -> None:
    fusion = new_fusion(vectors, FUSION, 0, "cpu")
    before = {name: value.clone() for name, value in fusion.state_dict().items()}
    tokenizer = fit(vectors, replace(CONFIG, train_fusion=False, update=update, kmeans_iters=0, lr=1e-2), fusion=fusion)
    assert all(torch.equal(before[name], value) for name, value in tokenizer.fusion.state_dict().items())
    first, last = tokenizer.history[0], tokenizer.history[-1]
    assert "loss_cl" not in first
    assert last["loss_rq"] < 0.9 * first["loss_rq"]


def test_gradient_steps_on_codewords_outlast_the_average(vectors: Vectors) -> None:
    config = replace(CONFIG, train_fusion=False, rank_weight=100.0, epochs=3)
    hybrid, ema = (fit(vectors, replace(config, update=update)) for update in ("hybrid", "ema"))
    assert hybrid.history[-1]["loss_rank"] < ema.history[-1]["loss_rank"]
    assert float((hybrid.codebooks()[1] - ema.codebooks()[1]).abs().max()) > 1e-3


def test_a_fusion_without_parameters_is_fixed(make_vectors: Callable[..., Vectors]) -> None:
    vectors = make_vectors(image_dim=12, text_dim=12)
    fusion = new_fusion(vectors, replace(FUSION, kind="sum", standardise=False), 0, "cpu")
    tokenizer = fit(vectors, replace(CONFIG, epochs=2), fusion=fusion)
    assert "loss_cl" not in tokenizer.history[0]


def test_optimiser_moments_of_revived_codes_are_cleared(vectors: Vectors) -> None:
    run = TokenizerTraining(vectors, new_fusion(vectors, FUSION, 0, "cpu"), CONFIG, 0, "cpu")
    run.epoch(0)
    assert run.optimiser is not None
    book = run.quantizer.codebooks[1]
    slots = run.optimiser.state[book]
    kept = slots["exp_avg"].clone()
    assert float(kept[[2, 5]].abs().min()) > 0
    run.forget({1: torch.isin(torch.arange(8), torch.tensor([2, 5]))})
    for name in ("exp_avg", "exp_avg_sq"):
        assert float(slots[name][[2, 5]].abs().max()) == 0
        assert float(slots[name][[0, 1, 3, 4, 6, 7]].abs().sum(1).min()) > 0
    assert torch.equal(slots["exp_avg"][[0, 1]], kept[[0, 1]])
    assert float(slots["step"]) == run.steps


def test_statistics_of_targets_alone_differ_from_both(vectors: Vectors) -> None:
    config = replace(CONFIG, epochs=2)
    assert not same(fit(vectors, config), fit(vectors, replace(config, statistics="targets")))


@pytest.mark.parametrize("modality", ["learned", "none"])
def test_other_modality_codes_train_too(vectors: Vectors, modality: Any) -> None:
    tokenizer = fit(vectors, replace(CONFIG, modality=modality))
    assert tokenizer.history[-1]["loss_cl"] < tokenizer.history[0]["loss_cl"]
    assert [len(book) for book in tokenizer.codebooks()] == ([3] if modality == "learned" else []) + [8, 8, 16]


def test_the_settings_of_the_released_code_train_too(vectors: Vectors) -> None:
    config = replace(
        CONFIG, update="ema", rank_form="items", rank_cosine=True, rank_scale_tau2=True, rank_keep_positive=False
    )
    tokenizer = fit(vectors, replace(config, rank_student_gradient=True, modality_vector=False))
    assert tokenizer.history[-1]["loss_cl"] < tokenizer.history[0]["loss_cl"]
    assert float(tokenizer.codebooks()[0].abs().sum()) == 0


@pytest.mark.parametrize("update", ["ema", "hybrid"])
def test_distillation_lowers_the_ranking_loss_of_held_out_pairs(
    make_vectors: Callable[..., Vectors], update: Any
) -> None:
    vectors = make_vectors(seed=2, noise=0.3)
    config = replace(CONFIG, update=update, rq_weight=1.0, mse_weight=1.0, epochs=10, temperature=0.05)
    found = {}
    for weight in (0.0, 1.0):
        fusion, _ = fit_fusion(vectors, replace(FUSION, epochs=8, batch_size=60, lr=3e-3), seed=0)
        tokenizer = fit(vectors, replace(config, rank_weight=weight), fusion=fusion)
        found[weight] = held_out_rank_loss(tokenizer, vectors)
    assert found[1.0] < found[0.0]


def test_more_epochs_of_the_space_are_those_of_joint_training_without_codebooks(
    vectors: Vectors, tmp_path: Path
) -> None:
    def space() -> Fusion:
        return fit_fusion(vectors, replace(FUSION, epochs=2, batch_size=60, lr=3e-3), seed=0)[0]

    before = embed(space(), vectors.items, "cpu")
    control = replace(CONFIG, train_fusion=False, epochs=2, space_epochs=3)
    joint = replace(CONFIG, epochs=3, rq_weight=0.0, mse_weight=0.0, rank_weight=0.0, update="ema")
    found = fit(vectors, control, fusion=space())
    learnt = embed(found.fusion, vectors.items, "cpu")
    assert float((learnt - before).abs().max()) > 1e-3
    assert torch.equal(learnt, embed(fit(vectors, joint, fusion=space()).fusion, vectors.items, "cpu"))
    assert len(found.history) == 2 and "loss_cl" not in found.history[0], "the space then stays"
    with pytest.raises(KeyboardInterrupt):
        fit(vectors, control, fusion=space(), folder=tmp_path, log=KilledAt(1))
    assert same(found, fit(vectors, control, fusion=space(), folder=tmp_path, resume=True))


def test_refitted_codebooks_are_the_k_means_of_the_space_as_it_has_become(vectors: Vectors) -> None:
    config = replace(CONFIG, epochs=3)
    plain, refitted = fit(vectors, config), fit(vectors, replace(config, refit=True))
    assert torch.equal(*(embed(one.fusion, vectors.items, "cpu") for one in (plain, refitted)))
    alone = fit(vectors, replace(config, train_fusion=False, epochs=0), fusion=plain.fusion)
    for book, wanted, old in zip(refitted.codebooks(), alone.codebooks(), plain.codebooks(), strict=True):
        assert torch.equal(book, wanted)
        assert not torch.equal(book, old)


def test_no_training_pairs_is_one_sentence(vectors: Vectors) -> None:
    vectors.pair_query = vectors.pair_item = np.zeros(0, np.int64)
    with pytest.raises(SiglumError, match="no training pairs"):
        fit(vectors, CONFIG)


def test_the_fingerprint_changes_with_weights_and_with_codewords(vectors: Vectors) -> None:
    tokenizer = fit(vectors, replace(CONFIG, epochs=1))
    mark = tokenizer.fingerprint()
    with torch.no_grad():
        tokenizer.quantizer.codebooks[1][0, 0] += 1e-3
        changed = tokenizer.fingerprint()
        next(tokenizer.fusion.parameters()).view(-1)[0] += 1e-3
    assert len({mark, changed, tokenizer.fingerprint()}) == 3
