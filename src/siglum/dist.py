"""Several processes or one: the few collective operations the tokenizer needs, no-ops on one process."""

from __future__ import annotations

import torch
import torch.distributed as td
from torch import Tensor

from siglum.types import SiglumError


def world() -> int:
    """Return the number of processes."""
    return td.get_world_size() if td.is_available() and td.is_initialized() else 1


def rank() -> int:
    """Return this process's number, from 0."""
    return td.get_rank() if world() > 1 else 0


def share(rows: Tensor) -> Tensor:
    """Return this process's part of a global batch; its size must divide by the number of processes."""
    if len(rows) % world():
        raise SiglumError(f"a batch of {len(rows)} pairs does not divide by {world()} processes; choose another size.")
    return rows.chunk(world())[rank()] if world() > 1 else rows


def wait() -> None:
    """Wait until all processes have come here."""
    if world() > 1:
        td.barrier()


class _Gather(torch.autograd.Function):
    """All-gather along the rows; the gradient of a row is the sum over all processes that used it."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, rows: Tensor) -> Tensor:
        parts = [torch.empty_like(rows) for _ in range(world())]
        td.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *grads: Tensor) -> Tensor:
        total = grads[0].contiguous()
        td.all_reduce(total)
        return total.chunk(world())[rank()]


def gather(rows: Tensor) -> Tensor:
    """Return the rows of all processes in rank order, with gradient if the rows carry one."""
    return rows if world() == 1 else _Gather.apply(rows)  # type: ignore[no-any-return, no-untyped-call]


def sum_over_processes(value: Tensor) -> Tensor:
    """Return the sum over processes (in place)."""
    if world() > 1:
        td.all_reduce(value)
    return value


def average_gradients(parameters: list[torch.nn.Parameter]) -> None:
    """Average gradients over processes; a parameter without gradient counts as zero."""
    if world() == 1:
        return
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        td.all_reduce(parameter.grad)
        parameter.grad /= world()
