"""No step of any training waits for its device: nothing is read back, sized by data or copied from the host."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from operations import Operations
from siglum.config import RunConfig
from siglum.fuse import contrastive
from siglum.fuse.contrastive import new_fusion
from siglum.generate import query as query_head
from siglum.generate import train as generate
from siglum.generate.query import QueryHead
from siglum.recipes import recipe
from siglum.tokenize import train as tokenize
from siglum.tokenize.losses import prefix_numbers
from siglum.tokenize.train import Tokenizer
from siglum.types import Vectors

READS = {"_local_scalar_dense", "nonzero", "masked_select", "unique", "_unique2", "unique_dim", "bincount", "equal"}
"""Operations that hand a number or a size to the host; `bincount` does so on a GPU alone."""
GIVES = {"lift_fresh", "lift_fresh_copy"}
"""Operations that make a tensor from numbers of the host."""
RECIPES = ("pro", "genius", "best", "pro_released", "genius_original")


class Reads(Operations):
    """Collects operations that a GPU would make the host wait for."""

    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def hear(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        name = func.overloadpacket.__name__
        if name in READS | GIVES:
            self.found.append(name)
        if name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            if any(i is not None and i.dtype == torch.bool for i in args[1]):
                self.found.append(f"{name} by a mask")
            if name == "index_put_":  # an assignment, whose value would come from the host
                self.found.append(name)


class Copies(TorchFunctionMode):
    """Collects calls that would move data to or from a GPU; on the CPU they do nothing, so no operation tells."""

    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        given = [*args[1:], *(kwargs or {}).values()]
        moves = name == "to" and any(isinstance(one, str | torch.device) for one in given)
        if sys._getframe(1).f_globals["__name__"] == "torch.nn.utils.clip_grad":
            moves = False  # torch asks for the device that its norms are on already
        if moves or name in ("cpu", "cuda", "numpy", "tolist", "item", "as_tensor", "from_numpy", "tensor"):
            self.found.append(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def listening() -> Iterator[list[str]]:
    """Give the list that what waits is written to."""
    found: list[str] = []
    with Reads(found), Copies(found):
        yield found


def build(stage: str, config: RunConfig, vectors: Vectors, device: str = "cpu") -> Any:
    """Return the state of a training, with the optimiser a GPU has."""
    fusion = new_fusion(vectors, config.fusion, 0, device)
    if stage == "fusion":
        run: Any = contrastive.FusionTraining(vectors, fusion, replace(config.fusion, epochs=1), 0, device)
    else:
        run = tokenize.TokenizerTraining(
            vectors, fusion, replace(config.tokenizer, epochs=max(1, config.tokenizer.epochs)), 0, device
        )
    if stage in ("decoder", "query"):
        tokenizer = Tokenizer(fusion, run.quantizer)
        if stage == "decoder":
            run = generate.DecoderTraining(vectors, tokenizer, config.decoder, 0, device, None)
        else:
            own = replace(config.query, members=1, batch_size=64)
            shapes = vectors.items.image.shape[1], vectors.items.text.shape[1]
            dim = tokenizer.quantizer.dim
            aim_ND = torch.randn(len(vectors.items), dim, generator=torch.Generator().manual_seed(0)).to(device)
            run = query_head.TowerTraining(vectors, tokenizer.fusion, aim_ND, own, device)
            run.begin(QueryHead(own, dim, *shapes).to(device).towers[0], 0)
    if run.optimiser is not None:
        for group in run.optimiser.param_groups:
            group["fused"] = True
    return run


def one_step(stage: str, run: Any) -> Callable[[], Any]:
    """Return a function that makes one step."""
    rows = torch.arange(min(48, len(run.pair_q)), device=run.device)
    if stage == "tokenizer":
        run.revival_rows = run.quantizer.draw_revival_rows(len(rows), 10, torch.Generator().manual_seed(0))
    return (lambda: run.step(rows)) if stage in ("fusion", "query") else lambda: run.step(rows, 0)


def variants() -> dict[str, tuple[str, RunConfig]]:
    """Return every stage of every recipe, and what no recipe turns on."""
    found = {
        f"{stage}-{name}": (stage, _quick(recipe(name, "tiny")))
        for stage in ("tokenizer", "decoder")
        for name in RECIPES
    }
    base = _quick(recipe("pro", "tiny"))
    learning = replace(base, tokenizer=replace(base.tokenizer, train_fusion=True, statistics="both", revive_below=0.9))
    apart = replace(learning, fusion=replace(base.fusion, kind="towers", negatives="modality", smoothing=0.1))
    soft = replace(base, decoder=replace(base.decoder, soft_targets=0.5, soft_relative=True, null_queries=0.2))
    dim = replace(base, decoder=replace(base.decoder, augmentation="per_dim_sqrt", precision="bf16"))
    return found | {
        "tokenizer-learning": ("tokenizer", learning),
        "tokenizer-apart": ("tokenizer", apart),
        "decoder-soft": ("decoder", soft),
        "decoder-dim": ("decoder", dim),
        "fusion": ("fusion", base),
        "fusion-apart": ("fusion", apart),
        "query": ("query", base),
    }


def _quick(config: RunConfig) -> RunConfig:
    tokenizer = replace(config.tokenizer, vocab=tuple(min(16, size) for size in config.tokenizer.vocab[:4]))
    return replace(
        config,
        fusion=replace(config.fusion, batch_size=64),
        tokenizer=replace(tokenizer, batch_size=64, kmeans_iters=2),
        decoder=replace(config.decoder, batch_size=64, epochs=1),
    )


VARIANTS = variants()


@pytest.mark.parametrize("name", VARIANTS)
def test_no_step_waits(name: str, vectors: Vectors) -> None:
    stage, config = VARIANTS[name]
    step = one_step(stage, build(stage, config, vectors))
    step()  # the first makes the optimiser's state
    with listening() as found:
        step()
    assert found == []


@pytest.mark.parametrize("name", ["tokenizer-pro", "tokenizer-learning", "decoder-pro", "fusion", "query"])
def test_a_longer_epoch_waits_no_more_often(name: str, vectors: Vectors) -> None:
    stage, config = VARIANTS[name]
    heard = []
    for repeats in (1, 3):
        longer = replace(
            vectors, pair_query=vectors.pair_query.repeat(repeats), pair_item=vectors.pair_item.repeat(repeats)
        )
        run = build(stage, config, longer)
        run.epoch(0)
        with listening() as found:
            run.epoch(0)
        assert run.steps == 300 * repeats // 64
        heard.append(sorted(found))
    assert heard[0] == heard[1]
    assert "item" in heard[0] or "_local_scalar_dense" in heard[0], "the losses are read once an epoch"


@pytest.mark.parametrize(
    "act",
    [
        lambda row: float(row.sum()),
        lambda row: row[row > 2],
        lambda row: torch.nonzero(row),
        lambda row: row.unique(),
        lambda row: row.to("cpu"),
        lambda row: row.clone().__setitem__(row, 0),
        lambda row: torch.tensor([1]),
        lambda row: torch.bincount(row),
    ],
    ids=["float", "mask", "nonzero", "unique", "to", "assign", "tensor", "bincount"],
)
def test_what_waits_is_heard(act: Callable[[Tensor], Any]) -> None:
    row = torch.arange(4)
    with listening() as found:
        act(row)
    assert found


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", VARIANTS)
def test_no_step_waits_for_a_gpu(name: str, vectors: Vectors) -> None:
    stage, config = VARIANTS[name]
    step = one_step(stage, build(stage, config, vectors, "cuda"))
    step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_repeated_targets_are_found_by_their_first_place() -> None:
    ids = torch.tensor([7, 3, 7, 100, 3, 7])
    assert tokenize.first_places(ids).tolist() == [0, 1, 0, 3, 1, 0]


def test_numbers_of_prefixes_stay_below_the_number_of_items() -> None:
    codes: Tensor = torch.randint(5, (40, 9), generator=torch.Generator().manual_seed(0))
    for length in range(10):
        numbers = prefix_numbers(codes, length)
        assert 0 <= int(numbers.min()) <= int(numbers.max()) < 40
        assert len(numbers.unique()) == len(codes[:, :length].unique(dim=0)) if length else True
