"""The one object users hold: everything a run learnt, ready to search, to grow and to shrink."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, Self, Unpack, overload

import numpy as np
import torch
from torch import Tensor

from siglum.config import SearchConfig, as_dict, from_dict
from siglum.data.source import answers_words
from siglum.data.stamps import forget_stamps
from siglum.device import check_device
from siglum.encode.base import Encoder, check_encoder
from siglum.files import STAGE_FILE
from siglum.generate.decoder import CodeDecoder
from siglum.generate.query import QueryHead
from siglum.generate.store import load_decoder, load_query_head
from siglum.given import as_folder, listed
from siglum.index import Index
from siglum.rootfiles import read_root_json, write_root_json
from siglum.run.claim import Owner, claim_run
from siglum.run.folder import RunFolder
from siglum.run.generations import holds_index, open_index, refuse_dropping, save_index
from siglum.run.live import LiveIndex
from siglum.run.lock import lock_run
from siglum.search.asked import AskedQueries, QueryLike, SearchKeywords, SearchOptions, SearchRequest, Within
from siglum.search.beam import Ranking
from siglum.search.engine import Engine, FastEngines
from siglum.search.hits import as_hits, reconstruct, similarities
from siglum.search.models import Models
from siglum.search.query import EncodedQuery
from siglum.search.state import NewItems, State
from siglum.search.writer import Writer, open_writer
from siglum.terminal import shown_if
from siglum.tokenize.store import load_tokenizer
from siglum.tokenize.train import Tokenizer
from siglum.types import Features, Hit, Item, Picture, SiglumError, truth_value


class Retriever(Models):
    """Search a collection by text, image or both.

    Any number of threads may search, add and remove at once. A search sees the items of one moment from start to end;
    of two that add or remove, none is lost. Changes stay in memory until `save`; `writing` makes each of them last.

    Example: `Retriever.load("runs/demo").search("a red star left of a blue ring", k=5)`.
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
        super().__init__(
            tokenizer, decoder, head, encoder=encoder, encoder_fingerprint=encoder_fingerprint, device=device
        )
        self.config = config or SearchConfig()
        self._state = State(index, item_ND)
        self._home: Path | None = None
        """The folder whose index the state began with."""
        self._fast_engines = FastEngines()
        self._changing = Lock()
        self._is_written = False
        """Whether a `Writer` is open, through which all changes go."""

    @property
    def index(self) -> Index:
        """The items as they are now; an index never changes, so one that is held on to stays as it was."""
        return self._state.index

    @index.setter
    def index(self, index: Index) -> None:
        with self._changing:
            self._state, self._home = State(index), None

    @property
    def item_ND(self) -> Tensor | None:
        """Kept vectors in pool order, which order items of one leaf."""
        return self._state.item_ND

    @classmethod
    def load(cls, folder: str | Path, *, device: str = "auto", encoder: Encoder | str | None = None) -> Self:
        """Open a run folder; the index is memory-mapped. Without a decoder it warns and searches by geometry.

        `device` auto is a GPU where there is one. An `encoder` of one's own, an object or a name, takes the place of
        the recorded one, whose weights and widths it must have.
        """
        root, device = as_folder(folder), check_device(device)
        if not root.is_dir():
            raise SiglumError(f"{root} is not a run folder.")
        run = RunFolder(root)
        tokenizer, record = load_tokenizer(run.tokenizer, device)
        own, known, fusion = record["tokenizer_fingerprint"], record.get("encoder_fingerprint"), tokenizer.fusion
        if encoder is not None and not isinstance(encoder, str):
            check_encoder(encoder, known, len(fusion.image_shift), len(fusion.text_shift))
        config: SearchConfig = from_dict(SearchConfig, read_root_json(root, "config.json", "search")["search"])
        decoder, head = None, None
        if run.decoder.exists():
            decoder = load_decoder(run.decoder, own, device)
            head = load_query_head(run.decoder, tokenizer.quantizer.dim, device)
        elif config.scorer in ("fused", "decoder"):
            message = "%s has no decoder: it is searched by geometry, not by its scorer %s."
            logging.getLogger("siglum").warning(message, root, config.scorer)
            config = replace(config, scorer="geometry")
        opened = open_index(run.index, own)
        retriever = cls(
            tokenizer,
            opened.index,
            decoder=decoder,
            head=head,
            config=config,
            encoder=encoder or record.get("encoder", "none"),
            encoder_fingerprint=known,
            item_ND=_as_tensor(opened.vectors_ND, device),
            device=device,
        )
        retriever.knows_words = record.get("words", True) and answers_words(root)
        retriever._home = root.resolve()
        return retriever

    @classmethod
    def from_pretrained(
        cls,
        name_or_folder: str | Path,
        *,
        revision: str | None = None,
        token: str | None = None,
        device: str = "auto",
        encoder: Encoder | str | None = None,
        progress: bool = False,
    ) -> Self:
        """Open a retriever of the Hugging Face hub, or of a folder; what the hub's cache holds is not fetched again.

        Only JSON and safetensors are fetched, and checked as in `load`.
        Example: `Retriever.from_pretrained("organisation/photographs", revision="v1").search("two dogs")`.
        """
        from siglum.hub.remote import find_folder

        folder = find_folder(name_or_folder, revision=revision, token=token, progress=progress)
        return cls.load(folder, device=device, encoder=encoder)

    def save_pretrained(self, folder: str | Path, *, texts: bool = True) -> None:
        """Write what `from_pretrained` opens, JSON and safetensors alone, and a model card (README.md) to be edited.

        Texts of items go with it unless told otherwise; places of pictures and data on this machine never do.
        """
        from siglum.search.published import save_pretrained

        save_pretrained(self, folder, "", texts)

    def push_to_hub(
        self,
        name: str,
        *,
        private: bool = False,
        revision: str | None = None,
        token: str | None = None,
        message: str = "Upload a Siglum retriever",
        texts: bool = True,
        progress: bool = False,
    ) -> str:
        """Write what `save_pretrained` writes into a repository of the Hugging Face hub, and return its address.

        The repository is made if it is not there; `revision` is a branch. Example:
        `retriever.push_to_hub("organisation/photographs", private=True)`.
        """
        from siglum.hub.remote import Push
        from siglum.search.published import push_to_hub

        return push_to_hub(self, name, texts, Push(private, revision, token, message, progress))

    @property
    def engine(self) -> Engine:
        """What answers searches of the items as they are now; one that is held on to stays with them."""
        return self._engine(self._state)

    def _engine(self, state: State) -> Engine:
        parts = (self.tokenizer, self.decoder, state.index, state.item_ND)
        return Engine.of(*parts, device=self.device, fast_engines=self._fast_engines)

    @overload
    def search(
        self,
        query: QueryLike | None = None,
        image: Picture | None = None,
        *,
        text: str | None = None,
        **how: Unpack[SearchKeywords],
    ) -> list[Hit]: ...
    @overload
    def search(
        self,
        query: Sequence[QueryLike] | None = None,
        image: Sequence[Picture | None] | None = None,
        *,
        text: Sequence[str] | None = None,
        **how: Unpack[SearchKeywords],
    ) -> list[list[Hit]]: ...
    def search(
        self,
        query: QueryLike | Sequence[QueryLike] | None = None,
        image: Picture | Sequence[Picture | None] | None = None,
        *,
        text: str | Sequence[str] | None = None,
        k: int = 10,
        instruction: str | None = None,
        within: Within = None,
        without: Iterable[str] = (),
        exclude_self: bool = False,
        min_score: float | None = None,
        progress: bool = False,
        **options: Unpack[SearchOptions],
    ) -> list[Hit] | list[list[Hit]]:
        """Return up to k hits for one query of text, picture or both; for a list of queries a list of hits each.

        A query is a text (every string is one), a picture (`Path`, bytes, PIL image, uint8 pixels) or a `siglum.Query`;
        `image` is the picture that goes with a text, or a list of them with a list of texts. `instruction` says what
        kind of thing is wanted. `within` restricts the search to ids or to a mask in pool order, `without` leaves ids
        out, `exclude_self` the item that has the id or the picture file of the query, and `min_score` hits of a lower
        score. `progress` is shown on stderr. `options` are fields of `SearchConfig` (beam, omega, scorer, ...). A beam
        holds at most `beam` code sequences: a larger k than the items under them gives fewer hits, never made-up ones.

        Example: `retriever.search(["two dogs", "a red car"], k=3, within=ids)`.
        """
        questions, state = AskedQueries.of(query, image, text, instruction), self._state
        how = SearchRequest.of(
            state.index, self.config, options, k=k, within=within, without=without, min_score=min_score
        )
        found: list[list[Hit]] = []
        kinds = self.tokenizer.quantizer.config.modality == "metadata"
        with shown_if(progress):
            for features in self._encoded(questions.rows, "search"):
                ask, own = partial(self._hits, state, features), truth_value("exclude_self", exclude_self)
                found += questions.others(ask, how, len(found), kinds) if own else ask(how)
        return found[0] if questions.is_one else found

    def search_features(
        self,
        queries: Features,
        *,
        k: int = 10,
        within: Within = None,
        without: Iterable[str] = (),
        min_score: float | None = None,
        **options: Unpack[SearchOptions],
    ) -> list[list[Hit]]:
        """Return hits for frozen query features (`siglum.features`), one list a query; the rest is as in `search`."""
        if not isinstance(queries, Features):
            raise SiglumError(f"search_features takes features (siglum.features), not {type(queries).__name__}.")
        state = self._state
        how = SearchRequest.of(
            state.index, self.config, options, k=k, within=within, without=without, min_score=min_score
        )
        return self._hits(state, queries, how)

    def rank(
        self,
        query: Tensor | EncodedQuery | np.ndarray,
        *,
        k: int = 10,
        within: Within = None,
        **options: Unpack[SearchOptions],
    ) -> list[Ranking]:
        """Return rankings for fused vectors (Q, D) or encoded queries: places in `index` as it was when this began."""
        state = self._state
        is_array = isinstance(query, np.ndarray) and query.dtype.kind in "fiu"  # others are refused as they are
        asked: Any = torch.tensor(np.ascontiguousarray(query)) if is_array else query
        return self._rank(state, asked, SearchRequest.of(state.index, self.config, options, k=k, within=within))

    def _rank(self, state: State, query: Tensor | EncodedQuery, how: SearchRequest) -> list[Ranking]:
        """Rank the items of one state; nothing here may look at another."""
        return self._engine(state).rank(query, how.config, k=how.k, allowed=how.allowed)

    def _hits(self, state: State, features: Features, how: SearchRequest) -> list[list[Hit]]:
        asked = EncodedQuery.of(self.vectors(features, "queries"))
        rankings = self._rank(state, asked, how)
        if how.min_score is not None:
            rankings = [ranking.above(how.min_score) for ranking in rankings]
        similarity = similarities(rankings, asked, state, self.tokenizer.quantizer)
        return [as_hits(state.index, *pair) for pair in zip(rankings, similarity, strict=True)]

    def reconstruct(self, ids: Iterable[str]) -> np.ndarray:
        """Return what the codes of items say of their vectors, the sums of their codewords (n, D), float32.

        Example: `retriever.reconstruct(["cat-17"])`; an unknown id is refused.
        """
        return reconstruct(self.tokenizer.quantizer, self._state.index.codes_of(listed(ids))).cpu().numpy()

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self._state.index)

    def add(self, items: Sequence[Item] | Features) -> None:
        """Add items to the index; the models stay as they are. A known id is refused and nothing changes."""
        self._change((), self._coded(items))

    def upsert(self, items: Sequence[Item] | Features) -> None:
        """Add items, in the place of those that have their ids: all of them or none.

        Example: `retriever.upsert([siglum.Item(id="cat-17", text="a grey cat, asleep")])`.
        """
        self._change((), self._coded(items), upsert=True)

    def remove(self, ids: Iterable[str]) -> None:
        """Take items out of the index; an unknown id is refused and nothing changes."""
        self._change(listed(ids), self._nothing())

    def _change(self, gone: Sequence[str], new: NewItems, *, upsert: bool = False) -> None:
        with self._changing:
            self._refuse_written()
            state = self._state
            gone = [*gone, *(state.index.ids.known(new.ids) if upsert else ())]
            self._state = state.changed(gone, new)

    def writing(
        self, folder: str | Path, *, wait: float | None = None, background: bool = False
    ) -> AbstractContextManager[Writer]:
        """Open the index of this run for changes that are on disk when a call returns, holding the run's lock.

        Example: `with retriever.writing("runs/mine") as live: live.remove(["cat-17"])`.
        """
        return open_writer(self, as_folder(folder), wait, background)

    def _refuse_written(self) -> None:
        if self._is_written:
            raise SiglumError("this retriever is open for writing; add and remove through what `writing` gives.")

    def _follow(self, live: LiveIndex, root: Path) -> None:
        """Search what is on disk from now on."""
        with self._changing:  # a later state must not be followed by an earlier one
            state = live.state
            self._state = State(state.index, _as_tensor(state.vectors_ND, self.device))
            self._home = root.resolve()

    def save(self, folder: str | Path, *, overwrite: bool = False, wait: float | None = None) -> None:
        """Write all that a later `load` needs (models, index, configuration) into a folder.

        In the folder it was loaded from only the changes since then are written, through the log of the index: what
        others have changed there meanwhile stays. A run of another collection is refused, unless it is to be
        overwritten.
        """
        root, own = as_folder(folder), self.tokenizer.fingerprint()
        with lock_run(root, "a retriever", wait):
            claim_run(root, Owner(tokenizer=own), overwrite=overwrite)
            run = RunFolder(root)
            same_run = (run.tokenizer / STAGE_FILE).exists()
            if same_run and self._home == root.resolve() and holds_index(run.index):
                self._save_changes(root)
            else:
                self._save_whole(run, same_run, overwrite)
            before = read_root_json(root, "config.json") if same_run and (root / "config.json").exists() else {}
            write_root_json(root, "config.json", {**before, "search": as_dict(self.config)})

    def _save_changes(self, root: Path) -> None:
        """Write what has changed since the index was on disk, on top of what it has become there."""
        with self._changing:
            state = self._state
            with LiveIndex(RunFolder(root).index, self.tokenizer.fingerprint()) as live:
                fresh = list(state.fresh)
                vectors = None
                if state.item_ND is not None and fresh:
                    vectors = state.item_ND[torch.from_numpy(state.index.positions(fresh))].cpu().numpy()
                now = live.change(state.gone, fresh, state.index.codes_of(fresh), vectors, state.index.fields_of(fresh))
            self._state = State(now.index, _as_tensor(now.vectors_ND, self.device))

    def _save_whole(self, run: RunFolder, same_run: bool, overwrite: bool) -> None:
        """Write models and index into a folder that has none, or none of this retriever's."""
        self.save_models(run, same_run=same_run)
        with self._changing:
            state = self._state
            if not overwrite:
                refuse_dropping(run.index, state.index, "pass overwrite=True")
            forget_stamps(run.root, ())
            save_index(run.index, state.index, state.item_ND)
            self._state, self._home = State(state.index, state.item_ND), run.root.resolve()


def _as_tensor(vectors_ND: np.ndarray | None, device: str) -> Tensor | None:
    return None if vectors_ND is None else torch.from_numpy(vectors_ND).float().to(device)
