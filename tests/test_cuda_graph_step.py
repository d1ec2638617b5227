"""A step that is recorded once and replayed trains as the step itself does: nothing it needs stays on the host.

Where there is no GPU, a tape stands for the CUDA graph: it keeps every operation with the very tensors and numbers it
had, and a replay repeats them into the same memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from killing import KilledAt
from operations import Operations, tensors
from siglum import dist, loop
from siglum.config import DecoderConfig, FusionConfig, TokenizerConfig
from siglum.cuda_graph_step import WARM_UPS, GraphedStep
from siglum.fuse.contrastive import new_fusion
from siglum.generate import train as generate
from siglum.generate.train import fit_decoder
from siglum.tokenize import train as tokenize
from siglum.tokenize.train import Tokenizer, fit_tokenizer
from siglum.types import Vectors

FUSION = FusionConfig(kind="combiner", dim=12, projection=16, hidden=16, temperature=0.1)
TOKENIZER = TokenizerConfig(
    vocab=(8, 8, 16), epochs=3, batch_size=60, lr=2e-3, top_k=32, temperature=0.1, rank_weight=1.0, warmup=0.6
)
DECODER = DecoderConfig(
    d_model=32, d_ff=64, d_kv=8, heads=4, encoder_layers=1, decoder_layers=1, epochs=3, batch_size=60, lr=3e-3
)
DECODERS: dict[str, dict[str, Any]] = {
    "paper": {},
    "joint": {"softmax": "joint", "warmup": 0.3},
    "several": {"soft_tokens": 3, "clip": 0.0, "weight_decay": 0.1},
    "soft": {"soft_targets": 0.5, "soft_relative": True, "null_queries": 0.2, "augmentation": "per_dim_sqrt"},
    "bf16": {"precision": "bf16", "augmentation": "off"},
}
TOKENIZERS: dict[str, dict[str, Any]] = {
    "hybrid": {},
    "reviving": {"vocab": (16, 32), "revive_below": 0.6},
    "grad": {"update": "grad", "statistics": "targets"},
    "ema": {"update": "ema", "train_fusion": False},
    "fixed": {"train_fusion": False, "modality": "learned"},
}


class Tape(Operations):
    """The operations of a step that runs inside; the first replay is the run that was recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.replays = 0

    def hear(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        self.calls.append((func, args, kwargs, out))

    @torch.no_grad()
    def replay(self) -> None:
        self.replays += 1
        if self.replays == 1:
            return
        for func, args, kwargs, out in self.calls:
            for old, new in zip(tensors(out), tensors(func(*args, **kwargs)), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def gpu_adam(*args: Any, **options: Any) -> torch.optim.AdamW:
    """Return the optimiser a GPU has: fused, learning rates in tensors."""
    optimiser = loop.adam(*args, **options)
    for group in optimiser.param_groups:
        group["fused"], group["lr"] = True, torch.zeros(())
    return optimiser


@pytest.fixture
def tapes(monkeypatch: pytest.MonkeyPatch) -> list[Tape]:
    """Let every step that asks for a graph be recorded on a tape; give the tapes."""
    made: list[Tape] = []

    def capture(self: Any, step: Callable[[Tensor], Any], rows: Tensor, optimiser: Any) -> Tape:
        made.append(Tape())
        with made[-1]:
            self.result = step(rows)
        return made[-1]

    def begin(self: Any, device: str, *, graphs: bool = True) -> None:
        real(self, "cuda" if graphs else device, graphs=graphs)

    real = GraphedStep.__init__
    monkeypatch.setattr(GraphedStep, "__init__", begin)
    monkeypatch.setattr(GraphedStep, "_warm_up", lambda self, step, rows: step(rows))
    monkeypatch.setattr(GraphedStep, "_capture", capture)
    for module in (generate, tokenize):
        monkeypatch.setattr(module, "adam", gpu_adam)
    return made


@pytest.fixture(scope="module")
def data(make_vectors: Callable[..., Vectors]) -> Vectors:
    return make_vectors()


@pytest.fixture(scope="module")
def tokenizer(data: Vectors) -> Tokenizer:
    config = replace(TOKENIZER, epochs=1, train_fusion=False)
    return fit_tokenizer(data, new_fusion(data, FUSION, 0, "cpu"), config)


def bits(*modules: nn.Module) -> dict[str, Tensor]:
    return {f"{number}.{name}": v for number, m in enumerate(modules) for name, v in m.state_dict().items()}


def assert_same(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert torch.equal(value, right[name]), name


@pytest.mark.parametrize("name", DECODERS)
def test_a_replayed_decoder_step_trains_to_the_same_bits(
    name: str, data: Vectors, tokenizer: Tokenizer, tapes: list[Tape]
) -> None:
    config = replace(DECODER, **DECODERS[name])
    plain, told = fit_decoder(data, tokenizer, config, graphs=False)
    assert tapes == []
    graphed, history = fit_decoder(data, tokenizer, config)
    assert [tape.replays for tape in tapes] == [15 - WARM_UPS]
    assert history == told
    assert_same(bits(plain), bits(graphed))


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_replayed_tokenizer_step_trains_to_the_same_bits(name: str, data: Vectors, tapes: list[Tape]) -> None:
    config = replace(TOKENIZER, **TOKENIZERS[name])
    plain, graphed = (
        fit_tokenizer(data, new_fusion(data, FUSION, 0, "cpu"), config, graphs=graphs) for graphs in (False, True)
    )
    assert [tape.replays for tape in tapes] == [15 - WARM_UPS]
    assert graphed.history == plain.history
    assert (sum(one["revived"] for one in plain.history[1:]) > 0) == (name == "reviving")
    assert_same(bits(plain.fusion, plain.quantizer), bits(graphed.fusion, graphed.quantizer))


@pytest.mark.parametrize(("before", "after"), [(True, True), (True, False), (False, True)])
def test_checkpoints_are_the_same_with_graphs_and_without(
    before: bool, after: bool, data: Vectors, tokenizer: Tokenizer, tapes: list[Tape], tmp_path: Path
) -> None:
    whole, told = fit_decoder(data, tokenizer, DECODER, graphs=False)
    with pytest.raises(KeyboardInterrupt):
        fit_decoder(data, tokenizer, DECODER, folder=tmp_path, log=KilledAt(2), graphs=before)
    resumed, history = fit_decoder(data, tokenizer, DECODER, folder=tmp_path, resume=True, graphs=after)
    assert len(tapes) == before + after
    assert history == told
    assert_same(bits(whole), bits(resumed))


def test_a_tape_repeats_what_the_host_said_as_a_graph_would(
    data: Vectors, tokenizer: Tokenizer, tapes: list[Tape], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A learning rate of the host is the recorded one for ever, so the tests above can fail."""

    def host_adam(*args: Any, **options: Any) -> torch.optim.AdamW:
        optimiser = gpu_adam(*args, **options)
        for group in optimiser.param_groups:
            group["lr"] = 0.0
        return optimiser

    monkeypatch.setattr(generate, "adam", host_adam)
    _, told = fit_decoder(data, tokenizer, DECODER, graphs=False)
    _, history = fit_decoder(data, tokenizer, DECODER)
    assert history[0]["loss"] == pytest.approx(told[0]["loss"], rel=0.05)
    assert history[-1]["loss"] != told[-1]["loss"]


def test_there_is_a_graph_on_one_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert GraphedStep("cuda").on and GraphedStep(torch.device("cuda:1")).on
    assert not GraphedStep("cuda", graphs=False).on
    assert not GraphedStep("cpu").on and not GraphedStep("mps").on
    monkeypatch.setattr(dist, "world", lambda: 2)
    assert not GraphedStep("cuda").on


def test_batches_are_copied_to_one_place_and_other_shapes_run_as_they_are(tapes: list[Tape]) -> None:
    total = torch.zeros((), dtype=torch.long)
    graphed: GraphedStep[Tensor] = GraphedStep("cpu")

    def step(rows: Tensor) -> Tensor:
        total.add_(rows.sum())
        return rows + 1

    wanted = 0
    for number in range(WARM_UPS + 4):
        for rows in (torch.arange(number, number + 5), torch.arange(number, number + 3)):
            wanted += int(rows.sum())
            assert torch.equal(graphed(step, rows), rows + 1)
            assert int(total) == wanted
    assert [tape.replays for tape in tapes] == [4]
    assert graphed.rows is not None and torch.equal(graphed.rows, torch.arange(WARM_UPS + 3, WARM_UPS + 8))
    assert graphed(step, torch.arange(5)) is graphed(step, torch.arange(1, 6)) is graphed.result


def test_a_step_is_not_kept() -> None:
    """Else a training and its graph would hold each other, and the memory of both."""

    class Owner:
        def __init__(self) -> None:
            self.graphed: GraphedStep[Tensor] = GraphedStep("cpu")

        def step(self, rows: Tensor) -> Tensor:
            return rows

    owner = Owner()
    owner.graphed(owner.step, torch.arange(3))
    gone = weakref.ref(owner)
    del owner
    assert gone() is None


def test_learning_rates_in_tensors_are_filled_in_place() -> None:
    optimiser = gpu_adam([(nn.Linear(2, 3), 1.0, 0.5), (nn.Linear(3, 2), 0.1, 0.2)])
    places = [group["lr"] for group in optimiser.param_groups]
    assert len({place.data_ptr() for place in places}) == 4
    loop.set_lr(optimiser, 0.3)
    assert [round(float(group["lr"]), 6) for group in optimiser.param_groups] == [0.3, 0.3, 0.03, 0.03]
    assert all(group["lr"] is place for group, place in zip(optimiser.param_groups, places, strict=True))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", DECODERS)
def test_a_captured_decoder_step_trains_alike_on_a_gpu(name: str, data: Vectors, tokenizer: Tokenizer) -> None:
    config = replace(DECODER, **DECODERS[name])
    there = Tokenizer(tokenizer.fusion.to("cuda"), tokenizer.quantizer.to("cuda"))
    runs = [fit_decoder(data, there, config, device="cuda", graphs=graphs) for graphs in (False, True)]
    there.fusion.to("cpu"), there.quantizer.to("cpu")
    assert [one["loss"] for one in runs[1][1]] == pytest.approx([one["loss"] for one in runs[0][1]], rel=1e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_captured_tokenizer_step_trains_alike_on_a_gpu(name: str, data: Vectors) -> None:
    config = replace(TOKENIZER, **TOKENIZERS[name])
    found = [
        fit_tokenizer(data, new_fusion(data, FUSION, 0, "cuda"), config, device="cuda", graphs=graphs).history
        for graphs in (False, True)
    ]
    for plain, graphed in zip(*found, strict=True):
        assert graphed["loss_rq"] == pytest.approx(plain["loss_rq"], rel=1e-2)
