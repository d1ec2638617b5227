"""The models of a run: what turns texts and pictures into vectors, vectors into codes, and codes into scores.

Shapes: N items, M new ones, L levels, D numbers a vector.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from threading import Lock
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from siglum.data.fields import fields_by_id
from siglum.data.omitted import Omission
from siglum.data.vectors import check_features, with_widths
from siglum.encode.base import Encoder, check_weights
from siglum.encode.registry import build_encoder
from siglum.encode.run import SHARD, encode_rows, encode_some
from siglum.fuse.contrastive import embed, kinds_of
from siglum.generate.decoder import CodeDecoder
from siglum.generate.query import QueryHead
from siglum.generate.store import load_decoder, save_decoder
from siglum.given import check_id
from siglum.index import Index
from siglum.log import progress as told
from siglum.run.folder import RunFolder
from siglum.search.asked import AskedQueries, QueryLike, items_of
from siglum.search.state import NewItems, checked_items
from siglum.terminal import shown_if
from siglum.tokenize.disambiguate import fit_in
from siglum.tokenize.store import save_tokenizer
from siglum.tokenize.train import Tokenizer
from siglum.types import Features, Item, Picture, Query, SiglumError, shown

Row = TypeVar("Row", Item, Query)


class Models:
    """Tokenizer, decoder, query head and encoder; threads may share them."""

    @property
    def index(self) -> Index:
        """The items there are."""
        raise NotImplementedError

    def __init__(
        self,
        tokenizer: Tokenizer,
        decoder: CodeDecoder | None,
        head: QueryHead | None,
        *,
        encoder: Encoder | str | None,
        encoder_fingerprint: str | None,
        device: str,
    ) -> None:
        """Hold the parts.

        An encoder given by name is built when it is first needed, and must then have the fingerprint given, if any.
        """
        self.tokenizer, self.decoder, self.head, self.device = tokenizer, decoder, head, device
        self._encoder, self._encoder_fingerprint = encoder, encoder_fingerprint
        self.knows_words = True
        """Whether words can find anything: not where pictures alone were learnt from, by no joint encoder."""
        self._encoding = Lock()

    @property
    def encoder(self) -> Encoder | None:
        """The encoder of texts and pictures; None in a run made from plain vectors."""
        if isinstance(self._encoder, str):
            built = build_encoder(self._encoder, device=self.device)
            if built is not None:
                check_weights(built, self._encoder_fingerprint)
            self._encoder = built
        return self._encoder

    def vectors(self, features: Features, what: str = "items") -> Tensor:
        """Return the unit vectors (N, D) that items are coded from or queries search with, after checking them."""
        fusion = self.tokenizer.fusion
        features = with_widths(features, len(fusion.image_shift), len(fusion.text_shift), what)
        check_features(features, what)
        fused = embed(fusion, features, self.device)
        return self.head.adapt(fused, features, self.device) if what == "queries" and self.head else fused

    def encode_queries(
        self,
        queries: QueryLike | Sequence[QueryLike] | Features,
        image: Picture | Sequence[Picture | None] | None = None,
        *,
        instruction: str | None = None,
        progress: bool = False,
    ) -> np.ndarray:
        """Return the vectors (n, D) that queries search with, or (D,) of one that is in no list; float32 of length 1.

        Queries are as in `search`, or frozen features. Example: `retriever.encode_queries(["two dogs", "a car"])`.
        """
        if isinstance(queries, Features):
            return self.vectors(queries, "queries").cpu().numpy()
        questions = AskedQueries.of(queries, image, None, instruction)
        return self._vectors_of(questions.rows, questions.is_one, "queries", progress)

    def encode_items(
        self, items: Item | QueryLike | Iterable[Item | QueryLike] | Features, *, progress: bool = False
    ) -> np.ndarray:
        """Return the vectors (n, D) that items are coded from, or (D,) of one that is in no list; float32 of length 1.

        Items are texts, pictures, `siglum.Item` objects or frozen features; nothing is added to the index.
        Example: `retriever.encode_items([siglum.Item(id="a", text="two dogs"), Path("dogs.jpg")])`.
        """
        if isinstance(items, Features):
            return self.vectors(items).cpu().numpy()
        return self._vectors_of(*items_of(items), "items", progress)

    def _vectors_of(self, rows: Sequence[Row], is_one: bool, what: str, progress: bool) -> np.ndarray:
        parts: list[np.ndarray]
        with shown_if(progress):
            parts = [self.vectors(part, what).cpu().numpy() for part in self._encoded(rows, f"encode {what}")]
        found = np.concatenate([np.zeros((0, self.tokenizer.quantizer.dim), np.float32), *parts])
        return found[0] if is_one else found

    def _coded(self, items: Sequence[Item] | Features, about: Iterable[Item] = ()) -> NewItems:
        """Return new items with their codes; `about` are the items that features were made from."""
        rows = checked_items(about if isinstance(items, Features) else items)
        if not isinstance(items, Features):
            for row in rows:
                check_id(row.id, f"the id {shown(row.id)} of an item")
        features = items if isinstance(items, Features) else self._encode(rows)
        vectors_MD, kinds_M = self.vectors(features), kinds_of(features, self.device)
        if unknown := self.tokenizer.quantizer.unknown_kinds(kinds_M):
            logging.getLogger("siglum").warning(
                "this run learnt from no items of %s, so that a beam may prune those added; mode=scan finds them.",
                " nor ".join(kind.name.lower().replace("_", " and ") for kind in unknown),
            )
        codes_ML = self.tokenizer.quantizer.encode(vectors_MD, kinds_M).cpu().numpy()
        last = self.tokenizer.quantizer.config.disambiguation
        if last and len(codes_ML):
            codes_ML = fit_in(codes_ML, self.index.codes(np.arange(len(self.index))), last)
        return NewItems(features.ids, codes_ML, vectors_MD, fields_by_id(rows, features.ids))

    def _nothing(self) -> NewItems:
        quantizer = self.tokenizer.quantizer
        return NewItems(
            (), np.zeros((0, len(quantizer.sizes)), np.int64), torch.zeros(0, quantizer.dim).to(self.device)
        )

    def _encoded(self, rows: Sequence[Row], label: str) -> Iterator[Features]:
        """Yield the features of rows in parts, so that of many neither features nor hits wait for all."""
        parts = [rows[start : start + SHARD] for start in range(0, len(rows), SHARD)]
        return (self._encode(part) for part in told(parts, label, total=len(rows), unit="row", size=SHARD))

    def check_words(self, queries: Iterable[Query]) -> None:
        """Refuse queries with words where these could only be answered with noise."""
        if not self.knows_words and any(query.text for query in queries):
            raise SiglumError(
                "this run was built without captions by an encoder that does not put words and pictures into one space,"
                " so words cannot find anything; ask by a picture alone, or build with captions or a CLIP encoder."
            )

    def _encode(self, rows: Sequence[Item] | Sequence[Query]) -> Features:
        encoder = self._needed_encoder()
        self.check_words(row for row in rows if isinstance(row, Query))
        with self._encoding:  # tokenizers of texts bear one thread at a time
            return encode_rows(rows, encoder, strict=True)

    def encode_each(self, rows: Sequence[Item] | Sequence[Query]) -> tuple[Features, list[Omission]]:
        """Return the features of queries or items, and which of them give none, with the reason."""
        encoder = self._needed_encoder()
        with self._encoding:
            return encode_some(rows, encoder, strict=False)

    def _needed_encoder(self) -> Encoder:
        if self.encoder is None:
            raise SiglumError(
                "this run was made from plain vectors and has no encoder; use search_features and features."
            )
        return self.encoder

    def save_models(self, run: RunFolder, *, same_run: bool) -> None:
        """Write the models into a run; one that is this run's already keeps what it has."""
        if not same_run:
            save_tokenizer(run.tokenizer, self.tokenizer, {"vectors": "none"}, **self._encoder_facts())
        if self.decoder is not None and not (same_run and self._has_decoder(run)):
            own = self.tokenizer.fingerprint()
            save_decoder(run.decoder, self.decoder, own, self.head, parameters=self.decoder.parameter_count())

    def _has_decoder(self, run: RunFolder) -> bool:
        """Return whether a run has this decoder already: writing it again would be a moment without one."""
        try:
            found = load_decoder(run.decoder, self.tokenizer.fingerprint())
        except SiglumError:
            return False
        assert self.decoder is not None
        own = self.decoder.state_dict()
        return all(torch.equal(value, own[name].cpu()) for name, value in found.state_dict().items())

    def _encoder_facts(self) -> dict[str, Any]:
        """Return what the record keeps of the encoder, without building one that was not needed so far."""
        known, fingerprint = self._encoder, self._encoder_fingerprint
        if isinstance(known, str) or known is None:
            name, own = known or "none", fingerprint
        else:
            name, own = known.name, known.fingerprint()
        weights = {"encoder_fingerprint": own} if own else {}
        return {"encoder": name, **weights, **({} if self.knows_words else {"words": False})}
