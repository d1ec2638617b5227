"""A retriever as it is published: models, index and texts, without anything that is of one machine, and a card."""

from __future__ import annotations

import logging
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from siglum.data.fields import without_images
from siglum.files import write_text
from siglum.given import as_folder, read_text
from siglum.hub.card import CARD_FILE, facts_of, public_name, write_card
from siglum.hub.remote import Push, publish
from siglum.index import Index
from siglum.index.strings import Strings
from siglum.run.claim import Owner, clear_run, holds_run, is_own
from siglum.run.folder import RunFolder
from siglum.run.lock import lock_run
from siglum.types import SiglumError, truth_value

if TYPE_CHECKING:
    from siglum.search.retriever import Retriever


def save_pretrained(retriever: Retriever, folder: str | Path, name: str, texts: bool) -> None:
    """Write a retriever into a folder, in the place of an earlier state of it; `name` is what the card calls it."""
    root, own, texts = as_folder(folder), retriever.tokenizer.fingerprint(), truth_value("texts", texts)
    with lock_run(root, "a retriever"):
        if holds_run(root) and (RunFolder(root).vectors.exists() or not is_own(root, Owner(tokenizer=own))):
            raise SiglumError(f"{root} holds a run, which would be lost; choose another folder.")
        home = retriever._home
        if home == root.resolve():
            raise SiglumError(
                f"{root} is where this retriever was opened or saved, and a kill would leave nothing there; choose"
                " another folder."
            )
        card = _own_card(home)
        encoder = retriever._encoder_facts()
        state = retriever._state
        index = _shown(state.index, texts)
        bare = type(retriever)(
            retriever.tokenizer,
            index,
            decoder=retriever.decoder,
            head=retriever.head,
            config=retriever.config,
            encoder=public_name(encoder["encoder"]),
            encoder_fingerprint=encoder.get("encoder_fingerprint"),
            item_ND=state.item_ND,
            device=retriever.device,
        )
        decoder = retriever.decoder
        counts = {"items": len(index), "texts": sum(map(bool, index.fields))}
        counts["parameters"] = 0 if decoder is None else decoder.parameter_count()
        facts = facts_of(home, retriever.tokenizer, retriever.config, encoder["encoder"], counts)
        clear_run(root)
        bare.save(root)
        if (root / CARD_FILE).exists():
            said = "%s is left as it is; remove it and save again for a new one."
            logging.getLogger("siglum").warning(said, root / CARD_FILE)
        elif card:
            write_text(root / CARD_FILE, card)
        else:
            write_card(root, name or root.name, facts)


def push_to_hub(retriever: Retriever, name: str, texts: bool, push: Push) -> str:
    """Write a retriever into a repository of the hub and return its address."""
    if not isinstance(name, str) or not name:
        raise SiglumError("a repository of the hub is named by a string, such as organisation/name.")
    with TemporaryDirectory(prefix="siglum-", ignore_cleanup_errors=True) as folder:
        save_pretrained(retriever, folder, name, texts)
        return publish(Path(folder), name, push)


def _own_card(home: Path | None) -> str:
    """Return the card of a retriever that came from a published one, as somebody may have written on it."""
    published = home is not None and (home / CARD_FILE).exists() and not RunFolder(home).vectors.exists()
    return read_text(home / CARD_FILE) if home is not None and published else ""


def _shown(index: Index, texts: bool) -> Index:
    """Return an index in one piece that keeps of its items the texts alone, or nothing."""
    flat = index.flat
    fields = Strings.of([without_images(kept) for kept in flat.fields]) if texts else None
    return Index(flat.ids, flat.packed_NB, flat.order_NW, flat.layout, flat.tokenizer, fields)
