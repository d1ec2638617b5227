"""When search on a GPU is one of static shapes: wherever that gives the same result, unless told otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
        config = replace(config, batch_size=SearchConfig().batch_size)  # batches have sizes of their own here
        marks = ((tensor.data_ptr(), tensor._version) for tensor in (*codebooks, *decoder.parameters()))
        made_of = (config, decoder, first, device, graphs, *marks)
        engine = self.last
        if engine is None or engine.index is not index or made_of != self._made_of:
            parts = (decoder, list(codebooks), index, config, first, device)
            engine = GraphSearch(*parts, dtype=PRECISIONS[config.precision], graphs=graphs)
            self.last, self._made_of = engine, made_of
        return engine  # not `self.last`, which another thread may have changed by now
