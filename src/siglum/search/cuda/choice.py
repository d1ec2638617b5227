"""When search on a GPU is one of static shapes: wherever that gives the same result, unless told otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from threading import Lock

import torch
from torch import Tensor

from siglum.config import SearchConfig
from siglum.generate.decoder import CodeDecoder
from siglum.index import Index
from siglum.search.cuda.search import GraphSearch, reason_against
from siglum.types import SiglumError

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
KEPT = 4
"""Configurations whose graphs are kept."""


@dataclass(slots=True)
class Graphs:
    """Keeps the engines of the last few configurations, and their graphs, for as long as models and index stay."""

    kept: tuple[tuple[object, ...], dict[SearchConfig, GraphSearch]] = field(default=((), {}))
    """What they are made of, and the engines, the last one used at the end."""
    _alone: Lock = field(default_factory=Lock, repr=False)

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
        made_of = (decoder, index, first, device, graphs, *marks)
        with self._alone:  # two threads must not make two engines of one configuration
            before, engines = self.kept
            kept = dict(engines) if made_of == before else {}
            engine = kept.pop(config, None)
            if engine is None:
                alike = next((one for one in kept.values() if one.config.precision == config.precision), None)
                parts = (decoder, list(codebooks), index, config, first, device)
                own = PRECISIONS[config.precision]
                engine = GraphSearch(*parts, dtype=own, graphs=graphs) if alike is None else alike.with_(config)
            self.kept = (made_of, dict([*kept.items(), (config, engine)][-KEPT:]))
            return engine
