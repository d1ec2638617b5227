"""Training on histories: nothing is read where there is nothing, batches keep all pairs, and patience ends it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from sequence_files import draw_world, quick_config
from siglum.api import features
from siglum.config import DecoderConfig, HistoryConfig
from siglum.data.histories import history_vectors
from siglum.data.sequences import assemble_sequences, split_events
from siglum.fuse.contrastive import fit_fusion
from siglum.generate.histories import last_items, user_tokens
from siglum.generate.history_train import HistoryTraining, fit_history_decoder
from siglum.generate.train import decoder_loss
from siglum.loop import train
from siglum.recommenders import fit_to_parts
from siglum.tokenize.train import Tokenizer, fit_tokenizer
from siglum.types import Item, SiglumError, Vectors

Made = tuple[Vectors, Tokenizer, DecoderConfig]


@pytest.fixture(scope="module")
def made() -> Made:
    drawn, vectors = draw_world(30, 8)
    own = features(vectors, [f"x{row}" for row in range(len(vectors))])
    items = {name: Item(id=name) for name in own.ids}
    events = {f"u{user}": [(None, f"x{item}") for item in one] for user, one in enumerate(drawn)}
    sequences, order = assemble_sequences(events, items)
    own = own.rows(order)
    config = fit_to_parts(quick_config("liger"), own)
    found = history_vectors(sequences, split_events(sequences), own, length=6, fade=0.7)
    fusion, _ = fit_fusion(found, config.fusion)
    return found, fit_tokenizer(found, fusion, config.tokenizer), config.decoder


def training(made: Made, device: str = "cpu", **history: object) -> HistoryTraining:
    vectors, tokenizer, config = made
    config = replace(config, history=replace(config.history, **history))  # type: ignore[arg-type]
    return HistoryTraining(vectors, tokenizer, config, 0, device, None)


def test_an_epoch_has_every_pair_once_and_short_histories_together(made: Made) -> None:
    run = training(made)
    steps, batches = zip(*run.batches("decoder", 0, torch.Generator().manual_seed(0)), strict=True)
    assert list(steps) == list(range(run.steps))
    rows = torch.cat(batches)
    assert len(torch.unique(rows)) == len(rows) == run.steps * len(batches[0])
    spans = [(run.row_MH[run.pair_q[one]] >= 0).sum(1) for one in batches]
    assert np.mean([float(span.max() - span.min()) for span in spans]) < 3


def test_what_is_filled_up_changes_no_loss(made: Made) -> None:
    run = training(made)
    run.decoder.eval()
    rows = run.pair_q[(run.row_MH[run.pair_q] >= 0).sum(1) < 3][:9]
    codes = run.codes[run.pair_x[:9]]
    short = decoder_loss(run.decoder, run.asked(rows), codes)
    run.device = "meta"  # read whole rows, as on a GPU
    assert run.asked(rows).states_QSM.shape[1] > 1 + 2 * codes.shape[1]
    torch.testing.assert_close(decoder_loss(run.decoder, run.asked(rows), codes), short, atol=1e-5, rtol=1e-5)


def test_the_last_items_are_kept() -> None:
    rows = torch.tensor([[1, 2, 3, 4], [5, 6, -1, -1], [-1, -1, -1, -1]])
    assert last_items(rows, 3).tolist() == [[2, 3, 4], [5, 6, -1], [-1, -1, -1]]
    assert last_items(rows, 5).tolist() == [[1, 2, 3, 4, -1], [5, 6, -1, -1, -1], [-1] * 5]
    assert user_tokens(torch.tensor([5, -1, 12]), 5).tolist() == [0, -1, 2]
    assert user_tokens(torch.tensor([5, -1]), 0).tolist() == [-1, -1]


def test_the_contrastive_loss_stands_against_items_of_training_alone(made: Made) -> None:
    run = training(made, contrast=1.0)
    assert set(run.known.tolist()) == set(run.pair_x.tolist())
    target = run.pair_x[:5]
    aimed = run.item[target]
    assert run._contrast(aimed, target) < run._contrast(aimed.flip(0), target)


def test_ridge_is_the_least_squares_of_training_pairs(made: Made) -> None:
    run = training(made)
    run.fit_ridge()
    with torch.no_grad():
        state = run.asked(run.pair_q).pooled(len(run.decoder.sizes)).double()
    both = torch.cat([state, torch.ones(len(state), 1)], 1)
    found = both @ run.decoder.ridge.double().T
    worse = both @ (run.decoder.ridge.double() + 0.01 * torch.randn_like(run.decoder.ridge).double()).T
    wanted = run.item[run.pair_x].double()
    assert (found - wanted).square().mean() < (worse - wanted).square().mean() < 10
    assert (found - wanted).square().mean() < wanted.sub(wanted.mean(0)).square().mean()


def test_training_ends_when_patience_does(made: Made) -> None:
    vectors, tokenizer, config = made
    config = replace(config, epochs=9, history=replace(config.history, patience=2, every=1))
    values = iter([0.1, 0.5, 0.4, 0.5, 0.9])
    _, history = fit_history_decoder(vectors, tokenizer, config, validate=lambda decoder: {"select": next(values)})
    assert [one["select"] for one in history] == [0.1, 0.5, 0.4, 0.5]
    config = replace(config, epochs=4, history=replace(config.history, patience=0, every=3))
    _, history = fit_history_decoder(vectors, tokenizer, config)
    assert ["select" in one for one in history] == [False, False, True, True]
    assert history[-1]["select"] == -history[-1]["val_loss"]


def test_patience_counts_what_was_measured_before_a_resume() -> None:
    history = train("x", 9, lambda epoch: {"select": -float(epoch)}, modules={}, optimiser=None, seed=0, patience=3)
    assert len(history) == 4


def test_what_does_not_go_together_is_refused(made: Made, make_vectors) -> None:
    vectors, tokenizer, config = made
    with pytest.raises(SiglumError, match="are no histories"):
        fit_history_decoder(make_vectors(), tokenizer, config)
    with pytest.raises(SiglumError, match="null_queries is about vectors"):
        fit_history_decoder(vectors, tokenizer, replace(config, null_queries=0.1))
    assert not DecoderConfig().history.items and HistoryConfig(items=3).items


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_captured_step_gives_the_numbers_of_a_plain_one(made: Made) -> None:
    vectors, tokenizer, config = made
    config = replace(config, precision="fp32", epochs=2, history=replace(config.history, contrast=1.0))
    losses = []
    for graphs in (True, False):
        run = HistoryTraining(vectors, tokenizer, config, 0, "cuda", None, graphs)
        losses.append([run.epoch(epoch)["loss"] for epoch in range(2)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
