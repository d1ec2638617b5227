"""One training loop for every trainable stage: seeded epochs, atomic checkpoints, exact resume.

An epoch is a function of (state, seed, epoch number): all randomness is seeded at its start. A run that is
killed and resumed therefore ends in the same bits as one that was not, on CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor, nn

from siglum import dist
from siglum.config import DecoderConfig, FusionConfig, QueryConfig, TokenizerConfig
from siglum.files import checks_of, fingerprint, read_record, read_tensors, sealed, verify, write_json, write_tensors
from siglum.log import Log, NoLog, progress
from siglum.types import SiglumError, Vectors

Metrics = dict[str, Any]
TrainingConfig = FusionConfig | TokenizerConfig | QueryConfig | DecoderConfig


class Keeping(TypedDict, total=False):
    """How a training is kept, as `train` takes it."""

    folder: Path | None
    """Where its state goes after every epoch."""
    resume: bool
    """Whether it goes on from there."""
    log: Log | None


def seed_of(*parts: Any) -> int:
    """Return a 63-bit seed made from any values.

    >>> seed_of("tokenizer", 0) == seed_of("tokenizer", 0) != seed_of("tokenizer", 1)
    True
    """
    return int(fingerprint(*parts), 16) >> 1


def batches(
    num_rows: int, size: int, generator: torch.Generator, device: str | torch.device = "cpu"
) -> tuple[Tensor, ...]:
    """Return the rows in random order in batches of equal size; a short last batch is left out unless it is all.

    The order goes to the device as a whole: copying it batch by batch would make every step wait.
    """
    order = torch.randperm(num_rows, generator=generator)
    size = min(size, num_rows)
    whole: tuple[Tensor, ...] = order[: num_rows // size * size].to(device).split(size)
    return whole


def num_batches(num_rows: int, size: int) -> int:
    """Return how many batches `batches` returns."""
    return num_rows // min(size, num_rows)


class PairTraining:
    """What trainings on pairs of a query and an item have in common: the pairs, and their batches."""

    def __init__(self, vectors: Vectors, config: TrainingConfig, device: str) -> None:
        """Take the pairs to the device, refusing a collection without any."""
        if len(vectors.pair_query) == 0:
            raise SiglumError("there are no training pairs: give queries of split train with positives.")
        pairs = (vectors.pair_query, vectors.pair_item)
        self.pair_q, self.pair_x = (torch.as_tensor(rows).long().to(device) for rows in pairs)
        self.device, self._epochs, self._batch_size = device, config.epochs, config.batch_size
        self.steps = num_batches(len(self.pair_q), config.batch_size)

    def batches(self, name: str, epoch: int, generator: torch.Generator) -> Iterator[tuple[int, Tensor]]:
        """Return the batches of an epoch, rows of the pairs, each with the number of its step in all epochs."""
        work = batches(len(self.pair_q), self._batch_size, generator, self.device)
        told = progress(work, f"{name}: epoch {epoch + 1}/{self._epochs}", total=self.steps)
        return enumerate(told, epoch * self.steps)


def cosine_lr(peak: float, end: float, warmup: float, step: int, total: int) -> float:
    """Return the learning rate: linear rise over the `warmup` share, then cosine to `end` times the peak."""
    rise = int(warmup * total)
    if step < rise:
        return peak * (step + 1) / rise
    along = (step - rise) / max(1, total - rise)
    return peak * (end + (1 - end) * 0.5 * (1 + math.cos(math.pi * along)))


def adam(
    groups: list[tuple[nn.Module | list[nn.Parameter], float, float]], betas: tuple[float, float] = (0.9, 0.999)
) -> torch.optim.AdamW:
    """Return AdamW over (module or parameters, learning-rate scale, weight decay); vectors are never decayed.

    On a GPU learning rates are tensors there: `set_lr` fills them, and a captured step reads what they hold.
    """
    options: list[dict[str, Any]] = []
    for source, scale, decay in groups:
        found = source.parameters() if isinstance(source, nn.Module) else source
        parameters = [p for p in found if p.requires_grad]
        for chosen, weight_decay in (
            ([p for p in parameters if p.ndim > 1], decay),
            ([p for p in parameters if p.ndim < 2], 0.0),
        ):
            if chosen:
                options.append({"params": chosen, "weight_decay": weight_decay, "scale": scale})
    on_gpu = all(p.is_cuda for group in options for p in group["params"])
    if on_gpu:
        for group in options:
            group["lr"] = torch.zeros((), device=group["params"][0].device)
    return torch.optim.AdamW(options, lr=0.0, betas=betas, eps=1e-8, fused=on_gpu)


def set_lr(optimiser: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of every group, times the group's scale."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr * group["scale"])
        else:
            group["lr"] = lr * group["scale"]


def train(
    stage: str,
    epochs: int,
    run_epoch: Callable[[int], Metrics],
    *,
    modules: dict[str, nn.Module],
    optimiser: torch.optim.Optimizer | None,
    seed: int,
    folder: Path | None = None,
    resume: bool = False,
    identity: str = "",
    log: Log | None = None,
    patience: int = 0,
) -> list[Metrics]:
    """Run the epochs and return their metrics.

    After every epoch the state goes to `folder` (if given); with `resume` a state of the same `identity` is
    continued. If metrics contain `select`, the state with the highest value is the one left in the modules, and
    training stops after `patience` of them in a row that were no higher, unless that is 0. Of several processes the
    first alone writes; all read.
    """
    writes = dist.rank() == 0
    log = log if log and writes else NoLog()
    history: list[Metrics] = []
    best, best_file = -math.inf, ""
    if resume and folder is not None and (folder / "checkpoint.json").exists():
        history, best, best_file = _load(folder, identity, modules, optimiser)
    log.begin(stage, len(history))
    for epoch in progress(range(len(history), epochs), f"{stage}: epochs", total=epochs - len(history), unit="epoch"):
        if _is_over(history, patience):
            break
        torch.manual_seed(seed_of(seed, stage, epoch) % 2**63)
        metrics = run_epoch(epoch)
        if not all(math.isfinite(v) for v in metrics.values() if isinstance(v, float)):
            raise SiglumError(f"{stage} diverged in epoch {epoch + 1}: {metrics}; lower the learning rate.")
        history.append(metrics)
        if metrics.get("select", -math.inf) > best:
            best, keep = metrics["select"], _state_of(modules)
            best_file = f"best-{epoch + 1:05d}.safetensors"
            if folder is not None and writes:
                write_tensors(folder / best_file, keep)
        log.write(stage, epoch, metrics)
        if folder is not None and writes:
            _save(folder, identity, modules, optimiser, history, (best, best_file))
    dist.wait()
    if best > -math.inf:
        chosen = read_tensors(folder / best_file) if folder is not None else keep
        _restore(modules, {name: torch.as_tensor(value) for name, value in chosen.items()})
    return history


def _state_of(modules: dict[str, nn.Module]) -> dict[str, Tensor]:
    """Return a copy of all weights by module and name."""
    return {f"{name}.{key}": value.clone() for name, own in modules.items() for key, value in own.state_dict().items()}


def _is_over(history: list[Metrics], patience: int) -> bool:
    """Return whether the last `patience` values of `select` were no higher than the best before them."""
    values = [metrics["select"] for metrics in history if "select" in metrics]
    return bool(patience and values and len(values) - 1 - values.index(max(values)) >= patience)


def _restore(modules: dict[str, nn.Module], tensors: dict[str, Tensor]) -> None:
    for name, module in modules.items():
        prefix = f"{name}."
        module.load_state_dict({key[len(prefix) :]: value for key, value in tensors.items() if key.startswith(prefix)})


def _save(
    folder: Path,
    identity: str,
    modules: dict[str, nn.Module],
    optimiser: torch.optim.Optimizer | None,
    history: list[Metrics],
    best: tuple[float, str],
) -> None:
    """Write the state under a name of its own, then point to it: a kill at any moment leaves a whole checkpoint."""
    value, best_file = best
    tensors = {f"{name}.{key}": value for name, module in modules.items() for key, value in module.state_dict().items()}
    if optimiser is not None:
        for index, slots in optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser.{index}.{slot}": torch.as_tensor(value) for slot, value in slots.items()}
    name = f"state-{len(history):05d}.safetensors"
    write_tensors(folder / name, tensors)
    needed = [name, best_file] if best_file else [name]
    record = {
        "identity": identity,
        "state": name,
        "best_state": best_file,
        "history": history,
        "best": None if value == -math.inf else value,
        "checks": {file: checks_of(folder / file) for file in needed},
    }
    write_json(folder / "checkpoint.json", sealed(record))
    for old in (*folder.glob("state-*.safetensors"), *folder.glob("best*.safetensors")):
        if old.name not in needed:
            old.unlink()


def _load(
    folder: Path, identity: str, modules: dict[str, nn.Module], optimiser: torch.optim.Optimizer | None
) -> tuple[list[Metrics], float, str]:
    record = read_record(folder / "checkpoint.json", "identity", "state", "history", "best")
    if ("record" in record or "checks" in record) and sealed(record) != record:
        raise SiglumError(f"{folder / 'checkpoint.json'} is damaged; put it back, or start without --resume.")
    for file, checks in record.get("checks", {}).items():
        verify(folder / file, checks)
    if record["identity"] != identity:
        raise SiglumError(
            f"{folder} holds a checkpoint of another configuration or other data; start without --resume."
        )
    tensors = {
        name: torch.from_numpy(np.array(value)) for name, value in read_tensors(folder / record["state"]).items()
    }
    _restore(modules, tensors)
    if optimiser is not None:
        state = optimiser.state_dict()
        state["state"] = {}
        for name, value in tensors.items():
            if name.startswith("optimiser."):
                _, index, slot = name.split(".", 2)
                state["state"].setdefault(int(index), {})[slot] = value
        optimiser.load_state_dict(state)
    best = -math.inf if record["best"] is None else record["best"]
    return record["history"], best, record.get("best_state", "best.safetensors")
