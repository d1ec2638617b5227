"""Hears the operations that torch runs, those of backward passes too.

The mode below is the one that torch's guide to extending it describes, though its module's name begins with an
underscore. Nothing public tells the same: `TorchFunctionMode` sees no backward pass, and the profiler also lists what
CPU kernels do inside.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Operations(TorchDispatchMode):
    """Calls `hear` with every operation that runs inside, what it was given, and what it returned."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.hear(func, args, kwargs or {}, out)
        return out

    def hear(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        raise NotImplementedError


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors among what an operation returned."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors(part)
