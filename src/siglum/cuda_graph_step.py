"""A training step as one CUDA graph: captured once, then replayed, so that the host launches one thing, not thousands.

A step is a function of the rows of a batch. It may change parameters, buffers and optimiser state in place and return
tensors; whatever else differs from one step to the next must lie in tensors that are filled before the call, such as
the learning rates of `siglum.loop.adam`. Random numbers follow the generator's seed and offset at every replay, and a
replay moves the offset on as far as the step itself does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor

from siglum import dist

WARM_UPS = 3
"""Steps before the capture, real ones: libraries choose kernels and the optimiser makes its state in them."""
Result = TypeVar("Result")


class GraphedStep(Generic[Result]):
    """Runs a training step, on one GPU as a graph.

    The step runs as it is, without a graph, on a CPU, in several processes, with `graphs` off, in the first WARM_UPS
    steps, and for rows of another shape than the first call's. The numbers are the same either way.

    >>> double = GraphedStep("cpu")
    >>> double(lambda rows: 2 * rows, torch.arange(3))
    tensor([0, 2, 4])
    """

    def __init__(self, device: str | torch.device, *, graphs: bool = True) -> None:
        """Decide whether there will be a graph."""
        self.on = graphs and torch.device(device).type == "cuda" and dist.world() == 1
        self.rows: Tensor | None = None
        """What the graph reads: every batch is copied here."""
        self.result: Result
        self.warmed = 0
        self.stream: torch.cuda.Stream | None = None
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(
        self,
        step: Callable[[Tensor], Result],
        rows: Tensor,
        optimiser: torch.optim.Optimizer | None = None,
    ) -> Result:
        """Make one step; what it returns may be overwritten by the next.

        Always give the same step and optimiser. They are not kept: an owner that they lead back to would hold a
        graph's memory until some garbage collection, perhaps one in the middle of another capture.
        """
        if not self.on or (self.rows is not None and rows.shape != self.rows.shape):
            return step(rows)
        if self.rows is None:
            self.rows = torch.empty_like(rows)
        self.rows.copy_(rows)
        if self.warmed < WARM_UPS:
            self.warmed += 1
            return self._warm_up(step, self.rows)
        if self.graph is None:
            self.graph = self._capture(step, self.rows, optimiser)
        self.graph.replay()
        return self.result

    def _warm_up(self, step: Callable[[Tensor], Result], rows: Tensor) -> Result:
        """Make a step on the stream that the capture will be on."""
        current = torch.cuda.current_stream(rows.device)
        self.stream = self.stream or torch.cuda.Stream(rows.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            result = step(rows)
        current.wait_stream(self.stream)
        return result

    def _capture(
        self, step: Callable[[Tensor], Result], rows: Tensor, optimiser: torch.optim.Optimizer | None
    ) -> torch.cuda.CUDAGraph:
        """Record the step without running it; its results will lie in `result`."""
        groups = [] if optimiser is None else optimiser.param_groups
        graph = torch.cuda.CUDAGraph()
        for group in groups:  # torch refuses a capture without this and warns of steps outside one with it
            group["capturable"] = True
        try:
            with torch.cuda.device(rows.device), torch.cuda.graph(graph, stream=self.stream):
                self.result = step(rows)
        finally:
            for group in groups:
                group["capturable"] = False
        return graph
