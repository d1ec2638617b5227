"""`siglum recommend next`: what comes next in one history."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from siglum.cli.search_flags import SearchFlags
from siglum.console.commands import DeviceVerb, OneRun, say
from siglum.device import check_device
from siglum.types import SiglumError, shown

if TYPE_CHECKING:
    from siglum.recommend.recommender import Recommender


@dataclass(kw_only=True)
class Command(SearchFlags, OneRun, DeviceVerb):
    """Say what comes next after a user's history, with titles where the run keeps them.

    Examples:
      siglum recommend next runs/beauty --user 17
      siglum recommend next runs/beauty --history B004756YJA,B004ZT0SSG --k 5 --unseen
    """

    user: str = ""
    """A user of the data; the history is all but the last item."""
    history: str = ""
    """Item ids by commas instead, oldest first."""
    k: int = 10
    """How many items to name."""
    unseen: bool = False
    """Leave out what the history has."""


def run(command: Command) -> dict[str, Any]:
    """Print the history and what comes next."""
    from siglum.recommend.recommender import Recommender

    if bool(command.user) == bool(command.history):
        raise SiglumError("give --user USER or --history ID,ID,..., one of them.")
    if command.within is not None:
        raise SiglumError("--within is for searches; a recommender ranks all items.")
    recommender = Recommender.load(command.folder, device=check_device(command.device))
    history = [one.strip() for one in command.history.split(",") if one.strip()]
    if command.user:
        history = _history_of(command, recommender)
    hits = recommender.next(history, command.k, unseen=command.unseen, user=command.user, **command.options())
    titles = _titles(recommender, history)
    if not command.json:
        for name in history:
            say(f"  had {name:<14} {titles[name] or ''}".rstrip())
        for hit in hits:
            sys.stdout.write(f"{hit.rank:>3}  {hit.score:>8.3f}  {hit.item_id:<14} {hit.text or ''}".rstrip() + "\n")
    return {
        "history": [{"item_id": name, "text": titles[name]} for name in history],
        "hits": [hit.as_dict() for hit in hits],
    }


def _titles(recommender: Recommender, history: list[str]) -> dict[str, str | None]:
    from siglum.data.fields import read_fields

    kept = recommender.index.fields_of(history) if history else []
    return {name: read_fields(fields)[0] for name, fields in zip(history, kept, strict=True)}


def _history_of(command: Command, recommender: Recommender) -> list[str]:
    """Return the longest history that the run has of a user, as ids."""
    import numpy as np

    from siglum.data.histories import user_number
    from siglum.data.vectors import load_vectors
    from siglum.recommend.people import histories_of
    from siglum.run.folder import RunFolder

    vectors, _ = load_vectors(RunFolder(command.folder).vectors)
    histories = histories_of(vectors)
    rows = np.flatnonzero(histories.user_M == user_number(command.user))
    if not len(rows):
        some = [name.rpartition(":")[0] for name in vectors.queries.ids[:1]]
        raise SiglumError(f"the run has no user {shown(command.user)}; it has such as {', '.join(some)}.")
    longest = histories.row_MH[rows[np.argmax(histories.seen_M[rows])]]
    names = [vectors.items.ids[int(row)] for row in longest[longest >= 0]]
    return [name for name in names if name in recommender.index.ids]
