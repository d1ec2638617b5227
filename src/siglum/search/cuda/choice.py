"""When search on a GPU is one of static shapes: wherever that gives the same result, unless told otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from siglum.config import SearchConfig
from siglum.generate.decoder import CodeDecoder
from siglum.index import Index
from siglum.search.cuda.search import GraphSearch, reason_against
from siglum.types import SiglumError

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(slots=True)
class Graphs:
    """Keeps the engine of the last search, and its graphs, for as long as models, index and configuration stay."""

    last: GraphSearch | None = None
    _made_of: tuple[object, ...] = ()

    def choose(
        self,
        config: SearchConfig,
        decoder: CodeDecoder | None,
        codebooks: Sequence[Tensor],
        index: Index,
        first: int,
        device: str,
        *,
        graphs: bool = True,
    ) -> GraphSearch | None:
        """Return the engine for this search, or None where another one is to answer.

        Without `graphs` nothing is captured, which pays where a configuration answers a few large batches only.
        """
        if config.precision == "int8":
            raise SiglumError("int8 is arithmetic of the CPU; on a GPU use search.precision bf16.")
        if config.engine == "reference" or decoder is None or reason_against(config) is not None or not len(index):
            return None
        tensors = [*codebooks, *decoder.parameters()]
        made_of = (
            config,
            id(decoder),
            id(index),
            first,
            device,
            graphs,
            *((t.data_ptr(), t._version) for t in tensors),
        )
        if self.last is None or self.last.index is not index or made_of != self._made_of:
            precise = PRECISIONS[config.precision]
            parts = (decoder, list(codebooks), index, config, first, device)
            self.last, self._made_of = GraphSearch(*parts, dtype=precise, graphs=graphs), made_of
        return self.last
