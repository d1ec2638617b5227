"""Which engine answers a search: the fast one wherever it gives the same result, unless told otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from siglum.config import SearchConfig
from siglum.generate.decoder import CodeDecoder
from siglum.index import Index
from siglum.search.fast.engine import FastSearch, reason_against
from siglum.search.scorers import DecoderScorer, GeometryScorer, Scorer, SumScorer
from siglum.types import SiglumError


@dataclass(slots=True)
class Engines:
    """Keeps the engine of the last search, and its folded weights, for as long as models and index stay the same."""

    last: tuple[tuple[object, ...], FastSearch] | None = None
    """What the engine is made of, and the engine; replaced as a whole, as another thread may look at any time."""

    def choose(
        self, config: SearchConfig, decoder: CodeDecoder | None, codebooks: Sequence[Tensor], index: Index, first: int
    ) -> FastSearch | None:
        """Return the engine for this search, or None where the reference search is to answer."""
        against = reason_against(config, decoder)
        special = config.precision != "fp32" or config.mode in ("scan", "scan-rescore")
        if config.engine == "reference":
            against = against or "search.engine reference"
        if against is not None:
            if special or config.engine == "fast":
                raise SiglumError(
                    f"mode {config.mode} in {config.precision} needs the fast engine, which does not go with {against}."
                )
            return None
        tensors = [*codebooks, *(() if decoder is None else decoder.parameters())]
        # Training in place changes a tensor's version, loading another model its address; writing through `.data`
        # changes neither and must not be done to a model that searches.
        made_of = (id(decoder), config.precision, first, *((t.data_ptr(), t._version) for t in tensors))
        last = self.last
        if last is None or made_of != last[0]:
            engine = FastSearch(decoder, codebooks, index, config, first)
        elif last[1].index is index and last[1].config == config:
            return last[1]
        else:
            engine = last[1].with_(index, config)
        self.last = (made_of, engine)
        return engine


def described(scorer: Scorer, config: SearchConfig) -> tuple[SearchConfig, CodeDecoder, Sequence[Tensor], int] | None:
    """Return the configuration, decoder, codebooks and first level that a scorer was built of, if it is a plain one."""
    parts = scorer.parts if isinstance(scorer, SumScorer) else [scorer]
    spoken = parts[0]
    if not isinstance(spoken, DecoderScorer) or len(parts) > 2:
        return None
    own = replace(config, normalisation=spoken.normalisation, scorer="decoder", prior=0.0, lookahead=False)  # type: ignore[arg-type]
    if len(parts) == 1:
        return own, spoken.decoder, [], 0
    near = parts[1]
    if not isinstance(near, GeometryScorer):
        return None
    fused = replace(own, scorer="fused", omega=near.omega, zscore=near.zscore)
    return fused, spoken.decoder, near.codebooks, near.first
