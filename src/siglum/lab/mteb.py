"""A run as a model of MTEB: it indexes a task's corpus and generates its results.

    mteb.evaluate(SiglumSearch("runs/mine"), mteb.get_tasks(["MSCOCOT2IRetrieval"]))

`SiglumSearch` follows MTEB's `SearchProtocol` (mteb 2). MTEB's `hit_rate_at_k` is Success@k. Shapes: N documents,
L codes an item, D numbers a vector.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from siglum.config import as_dict
from siglum.data.trec import decreasing_scores
from siglum.encode.run import encode_rows
from siglum.files import fingerprint
from siglum.fuse.contrastive import kinds_of
from siglum.index import Index
from siglum.log import progress
from siglum.search.hits import as_hits
from siglum.search.retriever import Retriever
from siglum.types import Features, Item, Query, SiglumError

if TYPE_CHECKING:
    from mteb.abstasks.task_metadata import TaskMetadata
    from mteb.models.model_meta import ModelMeta
    from mteb.types import CorpusDatasetType, EncodeKwargs, QueryDatasetType
    from PIL.Image import Image

WIDEST = 100
"""Widest beam that is chosen unasked: MTEB asks for 1,000 results, but reports most measures up to 100."""
ROWS = 32
"""Documents or queries encoded at once where MTEB names no batch size."""


class SiglumSearch:
    """A Siglum run that MTEB can evaluate on any retrieval task of texts and pictures.

    A beam of B gives the items of at most B code sequences, so fewer than `top_k` results may come out. Unless a
    `beam` is given it is the run's own or `top_k`, whichever is wider, where `top_k` counts for at most `WIDEST`.
    """

    def __init__(
        self,
        run: str | Path | Retriever,
        *,
        device: str = "cpu",
        beam: int | None = None,
        instructions: bool = True,
        name: str | None = None,
    ) -> None:
        """Open a run folder on `device`, or take a retriever as it is, on its own device.

        With `instructions` a query's own instruction, or else the task's prompt, is joined to it as in training;
        turn them off for runs that were trained without. `name` is the model's name in MTEB's results.
        """
        self.retriever = run if isinstance(run, Retriever) else Retriever.load(run, device=device)
        if self.retriever.encoder is None:
            raise SiglumError(
                "this run was made from plain vectors and has no encoder, so it cannot read MTEB's tasks."
            )
        if beam is not None and beam < 1:
            raise SiglumError(f"the beam must be at least 1, not {beam}.")
        self.encoder, self.beam, self.instructions = self.retriever.encoder, beam, instructions
        self.name = name or f"siglum/{'run' if isinstance(run, Retriever) else Path(run).resolve().name}"
        if "/" not in self.name:
            raise SiglumError(f"MTEB names models as organisation/model, not {self.name!r}.")
        self.indexed: Retriever | None = None

    @cached_property
    def mteb_model_meta(self) -> ModelMeta:
        """What MTEB files results under; the revision changes with weights, encoder and search settings."""
        from mteb.models.model_meta import ModelMeta

        own = self.retriever
        parts = [part.state_dict() for part in (own.decoder, own.head) if part is not None]
        weights = [value for part in parts for value in part.values()]
        settings = [as_dict(own.config), self.beam, self.instructions, self.encoder.fingerprint()]
        facts = {
            "name": self.name,
            "revision": fingerprint(own.tokenizer.fingerprint(), *settings, *weights),
            "framework": ["PyTorch"],
            "use_instructions": self.instructions,
            "modalities": ["text", "image"],
        }
        return ModelMeta.create_empty(facts)

    def index(
        self,
        corpus: CorpusDatasetType,
        *,
        task_metadata: TaskMetadata,
        encode_kwargs: EncodeKwargs | None = None,
        **_: Any,
    ) -> None:
        """Encode and tokenise a corpus, batch by batch, and index its codes.

        A title is put before its text. Documents without anything to encode are left out, with a warning.
        """
        own, keep_vectors = self.retriever, self.retriever.config.leaf_order == "dense"
        ids: list[str] = []
        codes: list[np.ndarray] = []
        kept: list[torch.Tensor] = []
        for batch in _batches(corpus, task_metadata, "document", encode_kwargs):
            features = self._encode([_item(row) for row in batch])
            if not len(features):
                continue
            item_ND = own.vectors(features)
            kinds = kinds_of(features, own.device)
            codes.append(own.tokenizer.quantizer.encode(item_ND, kinds).cpu().numpy())
            ids += features.ids
            kept += [item_ND.half()] if keep_vectors else []
        if not ids:
            raise SiglumError(f"the corpus of {task_metadata.name} has no document with a text or a picture.")
        if len(ids) < len(corpus):
            lost = f"{len(corpus) - len(ids)} of {len(corpus)} documents of {task_metadata.name}"
            warnings.warn(f"{lost} have nothing to encode and were left out.", stacklevel=2)
        self.indexed = Retriever(
            own.tokenizer,
            Index.build(ids, np.concatenate(codes), own.tokenizer.quantizer.sizes, own.tokenizer.fingerprint()),
            decoder=own.decoder,
            head=own.head,
            config=own.config,
            item_ND=torch.cat(kept).float() if keep_vectors else None,
            device=own.device,
        )

    def search(
        self,
        queries: QueryDatasetType,
        *,
        task_metadata: TaskMetadata,
        top_k: int,
        encode_kwargs: EncodeKwargs | None = None,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        **_: Any,
    ) -> dict[str, dict[str, float]]:
        """Return up to `top_k` documents of every query with strictly decreasing scores.

        With `top_ranked` a query is answered from its own candidates alone. A query without anything to encode, or
        without candidates, has no results but stays in the answer, so that MTEB counts it as a miss.
        """
        if self.indexed is None:
            raise SiglumError("there is no corpus to search yet; call index first.")
        index, prompt = self.indexed.index, _prompt(task_metadata) if self.instructions else None
        pools = None if top_ranked is None else _pools(top_ranked, index)
        beam = self.beam or max(self.retriever.config.beam, min(top_k, WIDEST))
        found: dict[str, dict[str, float]] = {}
        for batch in _batches(queries, task_metadata, "query", encode_kwargs):
            found |= {row["id"]: {} for row in batch}
            features = self._encode([self._query(row, prompt) for row in batch])
            if not len(features):
                continue
            query_QD = self.indexed.vectors(features, "queries")
            if pools is None:
                rankings = self.indexed.rank(query_QD, k=top_k, beam=beam)
            else:
                one_by_one = zip(query_QD.split(1), features.ids, strict=True)
                rankings = [self.indexed.rank(q, k=top_k, beam=beam, within=pools.get(i, []))[0] for q, i in one_by_one]
            for name, ranking in zip(features.ids, rankings, strict=True):
                hits = as_hits(index, ranking)
                scores = decreasing_scores([hit.score for hit in hits])
                found[name] = {hit.item_id: float(score) for hit, score in zip(hits, scores, strict=True)}
        return found

    def _encode(self, rows: Sequence[Item] | Sequence[Query]) -> Features:
        """Return the features of rows, without parts that are all zero and rows that have no part."""
        return encode_rows(rows, self.encoder, strict=False)

    def _query(self, row: Mapping[str, Any], prompt: str | None) -> Query:
        instruction = (_words(row, "instruction") or prompt) if self.instructions else None
        return Query(id=row["id"], text=_words(row, "text"), image=_pixels(row), instruction=instruction)


def _batches(
    rows: CorpusDatasetType | QueryDatasetType, task: TaskMetadata, kind: str, encode_kwargs: EncodeKwargs | None
) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of a corpus or of queries with the columns their modalities have, a batch at a time."""
    from mteb.types import PromptType

    needed = ["id", *task.get_modalities(PromptType(kind))]
    for column in needed:
        if column not in ("id", "text", "image"):
            raise SiglumError(f"{task.name} asks for {column}, but a run reads only text and image.")
        if column not in rows.column_names:
            there = ", ".join(rows.column_names)
            raise SiglumError(f"the {kind} rows of {task.name} have no column {column}; they have {there}.")
    further = {"document": "title" if "text" in needed else "", "query": "instruction"}[kind]
    # Columns that are not read would be decoded all the same, pictures among them.
    chosen = rows.select_columns(needed + [further] * (further in rows.column_names))
    size = (encode_kwargs or {}).get("batch_size", ROWS)
    for start in progress(range(0, len(chosen), size), f"encode {kind}", total=len(chosen), unit="row", size=size):
        columns = chosen[start : start + size]
        yield [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _item(row: Mapping[str, Any]) -> Item:
    words = [part for part in (_words(row, "title"), _words(row, "text")) if part]
    return Item(id=row["id"], text=" ".join(words) or None, image=_pixels(row))


def _words(row: Mapping[str, Any], column: str) -> str | None:
    """Return a text without the blanks around it; a blank one is none."""
    words = row.get(column)
    if not isinstance(words, str | None):
        raise SiglumError(
            f"the {column} of {row['id']!r} is a {type(words).__name__}, but a run reads only plain texts."
        )
    return (words or "").strip() or None


def _pixels(row: Mapping[str, Any]) -> np.ndarray | None:
    """Return a picture as uint8 (height, width, 3), brought to RGB as MTEB does."""
    image: Image | None = row.get("image")
    return None if image is None else np.asarray(image.convert("RGB"))


def _prompt(task: TaskMetadata) -> str | None:
    """Return the task's prompt for queries."""
    prompt = task.prompt if isinstance(task.prompt, str | None) else task.prompt.get("query")
    return None if prompt is None else str(prompt)


def _pools(top_ranked: Mapping[str, Sequence[str]], index: Index) -> dict[str, list[str]]:
    """Return every query's candidates, without documents that were left out of the index."""
    here = set(index.ids)
    return {query: [document for document in found if document in here] for query, found in top_ranked.items()}
