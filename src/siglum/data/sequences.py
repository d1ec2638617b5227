"""What users had to do with items, in the order of time: sequences, their splits, and the histories before a target.

Items are rows. Their order is drawn by the seed from their names, since files often number items by first appearance:
whatever breaks a tie by row would then know who came first.
Shapes: E events, U users, N items, P targets, H items of a history.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from siglum.types import Features, Item, SiglumError, one_of, whole_number

SPLITS = ("leave_one_out", "time")
ENDS = (0.8, 0.9)
"""Shares of all events in time before which training ends, and validation."""


@dataclass(frozen=True, slots=True)
class Sequences:
    """Users and the items they had to do with, oldest first."""

    users: Sequence[str]
    items: Sequence[Item]
    """What is known of the items, by row; texts are what is shown of them."""
    row_E: np.ndarray
    """Item of every event, user by user."""
    offset_U: np.ndarray
    """Where each user's events begin, and where the last one's end (U + 1)."""
    time_E: np.ndarray | None = None
    """When each event was, where that is known."""
    texts: Sequence[str | None] = ()
    """What encoders read of the items; nothing where the items' own texts are meant."""
    features: Features | None = None
    """Vectors of the items, where they come along."""
    notes: Mapping[str, int] = field(default_factory=dict)
    """What reading left out, in words, with how often."""

    def __len__(self) -> int:
        return len(self.users)

    @property
    def user_E(self) -> np.ndarray:
        """User of every event."""
        return np.repeat(np.arange(len(self.users)), np.diff(self.offset_U))

    def of_user(self, user: int) -> np.ndarray:
        """Return one user's items, oldest first."""
        return self.row_E[self.offset_U[user] : self.offset_U[user + 1]]

    def histories(self, at_P: np.ndarray, length: int) -> np.ndarray:
        """Return the items before events, at most so many and oldest first; -1 stands where there are no more."""
        first_P = self.offset_U[np.searchsorted(self.offset_U, at_P, side="right") - 1]
        many_P = np.minimum(at_P - first_P, length)
        place_PH = (at_P - many_P)[:, None] + np.arange(length)
        there = np.arange(length) < many_P[:, None]
        found: np.ndarray = np.where(there, self.row_E[np.where(there, place_PH, 0)], -1).astype(np.int32)
        return found

    def without_items(self, gone_N: np.ndarray) -> Sequences:
        """Return the sequences without the events of some items (bool); the items keep their rows."""
        keep_E = ~gone_N[self.row_E]
        counts = np.bincount(self.user_E[keep_E], minlength=len(self.users))
        time = None if self.time_E is None else self.time_E[keep_E]
        return replace(self, row_E=self.row_E[keep_E], offset_U=np.append(0, counts.cumsum()), time_E=time)


@dataclass(frozen=True, slots=True)
class SplitEvents:
    """Which events are targets of each split, and which may be learnt from."""

    train: np.ndarray
    """Events to be told from those before them, in training."""
    val: np.ndarray
    test: np.ndarray
    learnt_E: np.ndarray
    """Events that training sees at all, bool."""

    def cold_items(self, sequences: Sequences) -> np.ndarray:
        """Return which items training never sees, bool (N,)."""
        cold_N = np.ones(len(sequences.items), bool)
        cold_N[sequences.row_E[self.learnt_E]] = False
        return cold_N


def split_events(sequences: Sequences, how: str = "leave_one_out") -> SplitEvents:
    """Return the targets of training, validation and test.

    leave_one_out: a user's last item is for test, the one before for validation, and every item before that, but the
    first, is a training target; users with fewer than three items only teach. The history of a test target so contains
    the validation item. time: what comes before one moment is learnt from, a user's first item after it is for
    validation, and the first after a second moment for test.
    """
    one_of("split", how, SPLITS)
    first_U, last_U = sequences.offset_U[:-1], sequences.offset_U[1:] - 1
    event_E, user_E = np.arange(len(sequences.row_E)), sequences.user_E
    begins_E = np.zeros(len(event_E), bool)
    begins_E[first_U[last_U >= first_U]] = True
    if how == "leave_one_out":
        whole_U = last_U - first_U >= 2
        learnt_E = ~whole_U[user_E] | (event_E < last_U[user_E] - 1)
        val, test = last_U[whole_U] - 1, last_U[whole_U]
    else:
        if sequences.time_E is None:
            raise SiglumError("a split by time needs the times of events; these sequences have none.")
        one, two = np.quantile(sequences.time_E, ENDS, method="lower")
        learnt_E = sequences.time_E < one
        val = _first_of_users(user_E, (sequences.time_E >= one) & (sequences.time_E < two) & ~begins_E)
        test = _first_of_users(user_E, (sequences.time_E >= two) & ~begins_E)
    train = np.flatnonzero(learnt_E & ~begins_E)
    if not len(train):
        raise SiglumError("there is nothing to learn from: no user has two items for training; give longer sequences.")
    return SplitEvents(train, val, test, learnt_E)


def _first_of_users(user_E: np.ndarray, chosen_E: np.ndarray) -> np.ndarray:
    """Return each user's first event among the chosen ones."""
    events = np.flatnonzero(chosen_E)
    found: np.ndarray = events[np.unique(user_E[events], return_index=True)[1]]
    return found


def assemble_sequences(
    events: Mapping[str, Sequence[tuple[Any, str]]],
    items: Mapping[str, Item],
    *,
    seed: int = 0,
    timed: bool = False,
    **more: Any,
) -> tuple[Sequences, np.ndarray]:
    """Return sequences of each user's (time, item name), and the place among the names given of every row.

    Items that only events know come along without a text. Of `timed` events, equal times are put in an order that the
    seed draws; others keep theirs.
    """
    whole_number("seed", seed, 0)
    names = list(dict.fromkeys([*items, *(name for own in events.values() for _, name in own)]))
    if not names or not events:
        raise SiglumError("there are no sequences: no user has an item.")
    order = sorted(range(len(names)), key=lambda place: _drawn(seed, names[place]))
    row_of = {names[place]: row for row, place in enumerate(order)}
    rows, times, counts = [], [], []
    for user, own in events.items():
        listed = sorted(own, key=lambda one: (one[0], _drawn(seed, user, one[1]))) if timed else own
        rows += [row_of[name] for _, name in listed]
        times += [when for when, _ in listed]
        counts.append(len(own))
    found = [items.get(names[place], Item(id=names[place])) for place in order]
    return Sequences(
        list(events),
        found,
        np.array(rows, np.int64),
        np.append(0, np.cumsum(counts)).astype(np.int64),
        np.array(times, np.int64) if timed else None,
        **more,
    ), np.array(order, np.int64)


def _drawn(seed: int, *names: str) -> bytes:
    """Return what stands for a name where an order is drawn."""
    return hashlib.blake2b("\0".join((str(seed), *names)).encode(), digest_size=12).digest()


def keep_core(events: Mapping[str, list[tuple[Any, str]]], least: int) -> dict[str, list[tuple[Any, str]]]:
    """Return the events of users and items with at least so many, as often as it takes; an item counts once a user.

    >>> keep_core({"a": [(0, "x"), (1, "y")], "b": [(0, "x"), (1, "x"), (2, "y")], "c": [(0, "x")]}, 2)
    {'a': [(0, 'x'), (1, 'y')], 'b': [(0, 'x'), (2, 'y')]}
    """
    kept = {}
    for user, own in events.items():
        first = dict[str, tuple[Any, str]]()
        for one in own:
            if one[1] not in first or one[0] < first[one[1]][0]:
                first[one[1]] = one
        kept[user] = list(first.values())
    while True:
        count = dict[str, int]()
        for own in kept.values():
            for _, name in own:
                count[name] = count.get(name, 0) + 1
        fewer = {user: [one for one in own if count[one[1]] >= least] for user, own in kept.items()}
        fewer = {user: own for user, own in fewer.items() if len(own) >= least}
        if sum(map(len, fewer.values())) == sum(map(len, kept.values())):
            return fewer
        kept = fewer
