"""One search for all: which engine answers, and everything that one needs, is decided here and nowhere else.

A retriever, an evaluation, an experiment and a benchmark that search by the same configuration give the same ranking.
Shapes: Q queries, N items, D numbers a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from threading import Lock

import torch
from torch import Tensor

from siglum.config import SearchConfig
from siglum.device import check_half_products
from siglum.generate.decoder import CodeDecoder
from siglum.generate.t5 import has_lone_key
from siglum.index import Allowed, Index
from siglum.search import ragged, static
from siglum.search.beam import Ranking, search_items
from siglum.search.lookahead import LookAhead, build_lookahead
from siglum.search.query import EncodedQuery
from siglum.search.ragged import FastSearch
from siglum.search.scorers import Scorer, build_scorer, check_codebooks
from siglum.search.static import GraphSearch
from siglum.tokenize.train import Tokenizer
from siglum.types import SiglumError, whole_number

KEPT = 4
"""Configurations whose fast engines are kept."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
Fast = FastSearch | GraphSearch


@dataclass(slots=True)
class FastEngines:
    """The fast engines of the last few configurations: folded weights, and graphs on a GPU; threads may share it."""

    kept: tuple[tuple[object, ...], dict[tuple[bool, SearchConfig], Fast]] = field(default=((), {}))
    """What they are made of, and the engines (of static shapes or not), the last one used at the end."""
    _alone: Lock = field(default_factory=Lock, repr=False)

    def get(self, engine: Engine, config: SearchConfig, *, use_static: bool) -> Fast:
        """Return the engine of static shapes or the ragged one, made of another's weights where they have stayed."""
        if use_static:
            config = replace(config, batch_size=SearchConfig().batch_size)  # batches have sizes of their own there
        tensors = (*engine.codebooks, *(() if engine.decoder is None else engine.decoder.parameters()))
        # Training in place changes a tensor's version, loading another model its address; writing through `.data`
        # changes neither and must not be done to a model that searches.
        versions = ((tensor.data_ptr(), tensor._version) for tensor in tensors)
        made_of = (engine.decoder, engine.first_geometric, engine.device, engine.graphs, *versions)
        with self._alone:  # two threads must not make two engines of one configuration
            before, engines = self.kept
            if made_of != before:
                engines = {}
            kept = {own: one for own, one in engines.items() if one.index is engine.index}
            found = kept.pop((use_static, config), None)
            if found is None:
                sort = (use_static, config.precision)
                alike = [one for (is_static, own), one in engines.items() if (is_static, own.precision) == sort]
                found = alike[-1].with_(engine.index, config) if alike else engine.make(config, use_static)
            self.kept = (made_of, dict([*kept.items(), ((use_static, config), found)][-KEPT:]))
            return found


@dataclass(frozen=True, slots=True)
class Engine:
    """Searches an index by the codes' geometry, a decoder or both; the only place that chooses what answers.

    Example: `Engine.of(tokenizer, decoder, index).rank(query_QD, SearchConfig(), k=10)`.
    """

    codebooks: Sequence[Tensor]
    decoder: CodeDecoder | None
    index: Index
    first_geometric: int = 0
    """The first level whose token carries a codeword."""
    item_ND: Tensor | None = None
    """Item vectors in pool order, where they are kept to order the items of one leaf."""
    device: str = "cpu"
    graphs: bool = True
    """Whether searches on a GPU are captured, which does not pay where few large batches are answered."""
    fast_engines: FastEngines = field(default_factory=FastEngines, repr=False)
    """Engines of earlier searches; those of other items may be given, as folded weights stay the same."""

    @classmethod
    def of(
        cls,
        tokenizer: Tokenizer,
        decoder: CodeDecoder | None,
        index: Index,
        item_ND: Tensor | None = None,
        *,
        device: str = "cpu",
        graphs: bool = True,
        fast_engines: FastEngines | None = None,
    ) -> Engine:
        """Return the engine over the codes of a tokenizer."""
        kept, first_geometric = fast_engines or FastEngines(), tokenizer.quantizer.first_geometric
        return cls(tokenizer.codebooks(), decoder, index, first_geometric, item_ND, device, graphs, kept)

    def rank(
        self, query: Tensor | EncodedQuery, config: SearchConfig, *, k: int, allowed: Allowed | None = None
    ) -> list[Ranking]:
        """Return the k best items of every query, at most as many as there are; a filter leaves the others out."""
        k = min(whole_number("k", k), len(self.index))
        check_codebooks(config, self.codebooks)
        asked = EncodedQuery.of(query).checked(self._dim, self.device)
        item_ND = self.item_ND if config.leaf_order == "dense" else None
        if config.leaf_order == "dense" and item_ND is None:
            raise SiglumError(
                "this index keeps no vectors to order items of a leaf by; index with kept vectors or use order pool."
            )
        fast = self.fast(config, asked)
        if isinstance(fast, GraphSearch):
            return fast.search(asked, k=k, allowed=allowed)
        if fast is not None:
            return fast.search(asked, k=k, allowed=allowed, item_ND=item_ND)
        return search_items(
            self.scorer(config),
            self.index,
            asked,
            beam=config.beam,
            k=k,
            batch_size=config.batch_size,
            allowed=allowed,
            item_ND=item_ND,
            ahead=self.lookahead(config),
        )

    @property
    def _dim(self) -> int:
        """Numbers of a query's vector; codes whose prefixes have none leave it to the decoder."""
        return self.codebooks[-1].shape[1] if self.codebooks or self.decoder is None else self.decoder.query_dim

    def scorer(self, config: SearchConfig) -> Scorer:
        """Return what ranks prefixes in the reference search."""
        return build_scorer(config, list(self.codebooks), self.decoder, self.first_geometric)

    def lookahead(self, config: SearchConfig) -> LookAhead | None:
        """Return the look-ahead of the reference search; None where the configuration asks for none."""
        return build_lookahead(config, list(self.codebooks), self.first_geometric)

    def fast(self, config: SearchConfig, query: EncodedQuery | None = None) -> Fast | None:
        """Return the fast engine that gives what the reference search would give, or None where there is none.

        A configuration that only a fast engine has an answer to is refused where that has none. Without a query it is
        asked for fused vectors.
        """
        if self.device.startswith("cuda"):
            if config.precision == "int8":
                raise SiglumError("int8 is arithmetic of the CPU; on a GPU use search.precision bf16.")
            if self.fits_static(config, query):
                return self.fast_engines.get(self, config, use_static=True)
        against = ragged.reason_against(config, self.decoder)
        if query is not None and query.states.ndim == 3 and config.mode != "scan" and self._reads_one_state:
            against = against or "states in the place of vectors, as its decoder reads one soft token"
        if config.engine == "reference":
            against = against or "search.engine reference"
        if against is None:
            return self.fast_engines.get(self, config, use_static=False)
        if config.engine == "fast" or config.precision != "fp32" or config.mode in ("scan", "scan-rescore"):
            raise SiglumError(
                f"mode {config.mode} in {config.precision} needs the fast engine, which does not go with {against}."
            )
        return None

    @property
    def _reads_one_state(self) -> bool:
        return self.decoder is not None and has_lone_key(self.decoder.config)

    def fits_static(self, config: SearchConfig, query: EncodedQuery | None = None) -> bool:
        """Return whether a search of static shapes has an answer to this configuration, asked with such a query."""
        if config.engine == "reference" or self.decoder is None or not len(self.index):
            return False
        fits = query is None or static.fits(query, self.decoder)
        return fits and static.reason_against(config) is None

    def make(self, config: SearchConfig, use_static: bool) -> Fast:
        """Return a new fast engine, its weights folded."""
        if not use_static:
            check_half_products(config.precision)
            return FastSearch(self.decoder, self.codebooks, self.index, config, self.first_geometric)
        assert self.decoder is not None
        parts = (self.decoder, list(self.codebooks), self.index, config, self.first_geometric, self.device)
        return GraphSearch(*parts, dtype=DTYPES[config.precision], graphs=self.graphs)
