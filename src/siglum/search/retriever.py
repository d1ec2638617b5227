"""The one object users hold: everything a run learnt, ready to search, to grow and to shrink."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from siglum.config import SearchConfig, as_dict, from_dict
from siglum.data.vectors import check_features, with_widths
from siglum.device import check_device
from siglum.encode.base import Encoder
from siglum.encode.registry import build_encoder
from siglum.encode.run import encode_rows
from siglum.files import STAGE_FILE, read_json, read_record, read_tensors, write_json, write_tensors
from siglum.fuse.contrastive import embed
from siglum.generate.decoder import CodeDecoder
from siglum.generate.query import QueryHead
from siglum.generate.store import load_decoder, load_query_head, save_decoder
from siglum.index import Index
from siglum.search.beam import Ranking, as_hits, search_items
from siglum.search.cuda import Graphs
from siglum.search.fast import Engines
from siglum.search.lookahead import LookAhead, build_lookahead
from siglum.search.scorers import Scorer, build_scorer
from siglum.tokenize.store import load_tokenizer, save_tokenizer
from siglum.tokenize.train import Tokenizer
from siglum.types import Features, Hit, Item, Picture, Query, SiglumError

VECTORS_FILE = "vectors.safetensors"


class Retriever:
    """Search a collection by text, image or both.

    Example: `Retriever.load("runs/demo").search(text="a red star left of a blue ring", k=5)`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        index: Index,
        *,
        decoder: CodeDecoder | None = None,
        head: QueryHead | None = None,
        config: SearchConfig | None = None,
        encoder: Encoder | str | None = None,
        encoder_fingerprint: str | None = None,
        item_ND: Tensor | None = None,
        device: str = "cpu",
    ) -> None:
        """Hold the parts; `item_ND` are fused item vectors in pool order, kept only to order items of one leaf.

        An encoder given by name is built when it is first needed, and must then have the fingerprint given, if any.
        """
        self.tokenizer, self.index, self.decoder, self.head = tokenizer, index, decoder, head
        self.config, self.item_ND, self.device = config or SearchConfig(), item_ND, device
        self._encoder, self._encoder_fingerprint = encoder, encoder_fingerprint
        self._engines, self._graphs = Engines(), Graphs()

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "cpu") -> Retriever:
        """Open a run folder; the index is memory-mapped. Without a decoder it searches by geometry alone."""
        root = Path(folder)
        check_device(device)
        if not root.is_dir():
            raise SiglumError(f"{root} is not a run folder.")
        tokenizer, record = load_tokenizer(root / "2-tokenizer", device)
        own = record["tokenizer_fingerprint"]
        config: SearchConfig = from_dict(SearchConfig, read_record(root / "config.json", "search")["search"])
        decoder, head = None, None
        if (root / "3-decoder").exists():
            decoder = load_decoder(root / "3-decoder", own, device)
            head = load_query_head(root / "3-decoder", tokenizer.quantizer.dim, device)
        elif config.scorer in ("fused", "decoder"):
            config = replace(config, scorer="geometry")
        index = Index.load(root / "4-index", own)
        kept = root / "4-index" / VECTORS_FILE
        item_ND = torch.from_numpy(read_tensors(kept)["vectors"]).float().to(device) if kept.exists() else None
        return cls(
            tokenizer,
            index,
            decoder=decoder,
            head=head,
            config=config,
            encoder=record.get("encoder", "none"),
            encoder_fingerprint=record.get("encoder_fingerprint"),
            item_ND=item_ND,
            device=device,
        )

    @property
    def encoder(self) -> Encoder | None:
        """The encoder of texts and pictures; None in a run made from plain vectors."""
        if isinstance(self._encoder, str):
            built, wanted = build_encoder(self._encoder, device=self.device), self._encoder_fingerprint
            if built is not None and wanted is not None and built.fingerprint() != wanted:
                raise SiglumError(
                    f"this run was encoded with other weights than {built.name} has now (fingerprint {wanted}, not"
                    f" {built.fingerprint()}); bring those back, or encode and train again."
                )
            self._encoder = built
        return self._encoder

    def scorer(self, config: SearchConfig | None = None) -> Scorer:
        """Return the scorer of this run's configuration, or of another one."""
        return build_scorer(config or self.config, self.tokenizer.codebooks(), self.decoder, self._first)

    def lookahead(self, config: SearchConfig | None = None) -> LookAhead | None:
        """Return the look-ahead of this run's configuration, or of another one; None where it asks for none."""
        return build_lookahead(config or self.config, self.tokenizer.codebooks(), self._first)

    @property
    def _first(self) -> int:
        """The first level whose token carries a codeword."""
        quantizer = self.tokenizer.quantizer
        return 0 if quantizer.config.modality_vector else quantizer.first

    def search(
        self,
        text: str | None = None,
        image: Picture | None = None,
        *,
        k: int = 10,
        instruction: str | None = None,
        within: Iterable[str] | np.ndarray | None = None,
        **options: Any,
    ) -> list[Hit]:
        """Return up to k hits for one query of text, image or both.

        `within` restricts the search to ids or to a mask in pool order; `options` are fields of `SearchConfig`
        (beam, omega, scorer, ...). A beam holds at most `beam` code sequences: a larger k than the items under
        them gives fewer hits, never made-up ones.
        """
        if not isinstance(text, str | None):
            raise SiglumError(f"the text of a search is a string, not {text!r}.")
        if not text and image is None:
            raise SiglumError("a search needs a text, an image or both.")
        query = Query(id="query", text=text or None, image=image, instruction=instruction)
        return self.search_features(self._encode([query]), k=k, within=within, **options)[0]

    def search_features(
        self, queries: Features, *, k: int = 10, within: Iterable[str] | np.ndarray | None = None, **options: Any
    ) -> list[list[Hit]]:
        """Return hits for frozen query features, one list a query."""
        rankings = self.rank(self.vectors(queries, "queries"), k=k, within=within, **options)
        return [as_hits(self.index, ranking) for ranking in rankings]

    def rank(
        self, query_QD: Tensor, *, k: int = 10, within: Iterable[str] | np.ndarray | None = None, **options: Any
    ) -> list[Ranking]:
        """Return rankings for fused query vectors (Q, D)."""
        dim = self.tokenizer.quantizer.dim
        if query_QD.ndim != 2 or query_QD.shape[1] != dim:
            raise SiglumError(f"query vectors must have shape (Q, {dim}), but have {tuple(query_QD.shape)}.")
        config: SearchConfig = from_dict(SearchConfig, {**as_dict(self.config), **options})
        if config.leaf_order == "dense" and self.item_ND is None:
            raise SiglumError(
                "this index keeps no vectors to order items of a leaf by; index with kept vectors or use order pool."
            )
        query_QD = query_QD.to(self.device)
        allowed = None if within is None else self.index.allow(within)
        item_ND = self.item_ND if config.leaf_order == "dense" else None
        parts = (config, self.decoder, self.tokenizer.codebooks(), self.index, self._first)
        if self.device.startswith("cuda"):
            graph = self._graphs.choose(*parts, self.device)
            if graph is not None:
                return graph.search(query_QD, k=k, allowed=allowed)
        fast = self._engines.choose(*parts)
        if fast is not None:
            return fast.search(query_QD, k=k, allowed=allowed, item_ND=item_ND)
        return search_items(
            self.scorer(config),
            self.index,
            query_QD,
            beam=config.beam,
            k=k,
            batch_size=config.batch_size,
            allowed=allowed,
            item_ND=item_ND,
            ahead=self.lookahead(config),
        )

    def vectors(self, features: Features, what: str = "items") -> Tensor:
        """Return the unit vectors (N, D) that items are coded from or queries search with, after checking them."""
        fusion = self.tokenizer.fusion
        features = with_widths(features, len(fusion.image_shift), len(fusion.text_shift), what)
        check_features(features, what)
        fused = embed(fusion, features, self.device)
        return self.head.adapt(fused, features, self.device) if what == "queries" and self.head else fused

    def add(self, items: Sequence[Item] | Features) -> None:
        """Add items to the index; the models stay as they are. A known id is refused and nothing changes."""
        if not isinstance(items, Features) and not all(isinstance(item, Item) for item in items):
            raise SiglumError("add takes items (siglum.Item) or features (siglum.features).")
        features = items if isinstance(items, Features) else self._encode(items)
        vectors = self.vectors(features)
        kinds = torch.as_tensor(features.modality.astype(np.int64)).to(self.device)
        self.index = self.index.add(features.ids, self.tokenizer.quantizer.encode(vectors, kinds).cpu().numpy())
        if self.item_ND is not None:
            self.item_ND = torch.cat([self.item_ND, vectors.half().float()])

    def remove(self, ids: Iterable[str]) -> None:
        """Take items out of the index; an unknown id is refused and nothing changes."""
        gone = list(ids)
        left = self.index.remove(gone)
        if self.item_ND is not None:
            keep = np.ones(len(self.index), bool)
            keep[self.index.positions(gone)] = False
            self.item_ND = self.item_ND[torch.from_numpy(keep)]
        self.index = left

    def save(self, folder: str | Path) -> None:
        """Write all that a later `load` needs (models, index, configuration) into a folder.

        In the folder of the run itself the tokenizer and the other settings stay as they are.
        """
        root, own = Path(folder), self.tokenizer.fingerprint()
        record, settings = root / "2-tokenizer" / STAGE_FILE, root / "config.json"
        same_run = record.exists() and read_json(record).get("tokenizer_fingerprint") == own
        if not same_run:
            save_tokenizer(root / "2-tokenizer", self.tokenizer, {"vectors": "none"}, **self._encoder_facts())
        if self.decoder is not None:
            save_decoder(root / "3-decoder", self.decoder, own, self.head, parameters=self.decoder.parameter_count())
        save_index(root / "4-index", self.index, self.item_ND)
        before = read_json(settings) if same_run and settings.exists() else {}
        write_json(settings, {**before, "search": as_dict(self.config)})

    def _encoder_facts(self) -> dict[str, str]:
        """Return what the record keeps of the encoder, without building one that was not needed so far."""
        known, mark = self._encoder, self._encoder_fingerprint
        if isinstance(known, str) or known is None:
            return {"encoder": known or "none", **({"encoder_fingerprint": mark} if mark else {})}
        return {"encoder": known.name, "encoder_fingerprint": known.fingerprint()}

    def _encode(self, rows: Sequence[Item] | Sequence[Query]) -> Features:
        if self.encoder is None:
            raise SiglumError(
                "this run was made from plain vectors and has no encoder; use search_features and features."
            )
        return encode_rows(rows, self.encoder, strict=True)


def save_index(folder: Path, index: Index, item_ND: Tensor | None = None) -> str:
    """Write the `4-index` stage, with item vectors (fp16, pool order) where they are to be kept.

    The stage is written beside the old one and then takes its place: added items cannot be made again from the run,
    so a full disk must leave the index as it was.
    """
    fresh, old = (folder.with_name(f".{folder.name}.{state}") for state in ("new", "old"))
    for left_over in (fresh, old):
        shutil.rmtree(left_over, ignore_errors=True)
    try:
        if item_ND is not None:
            write_tensors(fresh / VECTORS_FILE, {"vectors": item_ND.half()})
        own = index.save(fresh)
        if folder.exists():
            folder.rename(old)
        fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)
    return own
