"""One CUDA graph of a search: captured once for a batch size, then replayed on whatever lies in its input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from siglum.search.static.engine import PackedFound

WARM_UPS = 3
"""Runs before the capture: libraries choose kernels and the engine makes its constants in them."""


class Captured:
    """A search for up to `batch` queries as one graph; shorter batches leave the rest of the input as it was."""

    def __init__(
        self, run: Callable[[Tensor], PackedFound], batch: int, width: int, device: torch.device, memory: Any
    ) -> None:
        """Warm up on a stream of its own, as capture wants it, and capture.

        Graphs that never run at the same time may share `memory`, a handle of `torch.cuda.graph_pool_handle`.
        """
        # Tensors made in inference mode could not be written to outside it.
        with torch.inference_mode(False), torch.no_grad(), torch.cuda.device(device):
            self.query_QD = torch.zeros(batch, width, device=device)
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UPS):
                    packed_QF = run(self.query_QD).packed_QF
            torch.cuda.current_stream().wait_stream(side)
            torch.cuda.synchronize()
            self._host_QF = torch.empty_like(packed_QF, device="cpu", pin_memory=True)
            self._rows_QF = self._host_QF.numpy()
            self.graph = torch.cuda.CUDAGraph()
            # On a stream of this device, and tolerating what other threads launch meanwhile.
            with torch.cuda.graph(self.graph, pool=memory, stream=side, capture_error_mode="thread_local"):
                self.found = run(self.query_QD)

    def __call__(self, query_QD: Tensor) -> PackedFound:
        """Search; the results lie in the graph's own memory until the next call."""
        self.query_QD[: len(query_QD)].copy_(query_QD, non_blocking=True)
        self.graph.replay()
        return PackedFound(self.found.packed_QF[: len(query_QD)])

    def fetch(self, query_QD: Tensor) -> np.ndarray:
        """Search and return what `PackedFound` holds, packed, as an array of the host's (Q, F)."""
        batch = len(query_QD)
        self._host_QF[:batch].copy_(self(query_QD).packed_QF, non_blocking=True)
        torch.cuda.current_stream().synchronize()
        return self._rows_QF[:batch].copy()
