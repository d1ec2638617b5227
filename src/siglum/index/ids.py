"""Item ids: one UTF-8 blob with offsets, decoded on demand, and a compact look-up by hash."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from siglum.given import listed as listed
from siglum.index.pack import chunks
from siglum.index.strings import Guard, LayeredStrings, Strings, as_blob
from siglum.types import SiglumError, shown

POSITION = np.uint64((1 << 32) - 1)
"""Bits of a look-up's entry that hold the position; those above hold half of the id's hash."""
MIX = np.uint64(0x9E3779B97F4A7C15)
"""An odd number whose bits look random: a product with it spreads every bit of a word upwards."""


class Ids(Strings):
    """Distinct ids in pool order.

    >>> ids = Ids.of(["cat", "dog"])
    >>> ids[1], list(ids), ids.positions(["dog"]).tolist()
    ('dog', ['cat', 'dog'], [1])
    """

    def __init__(
        self, blob: np.ndarray, offsets: np.ndarray, lookup: np.ndarray | None = None, guard: Guard | None = None
    ) -> None:
        """Wrap the arrays of `files.ids_to_arrays`, which may be mapped and then have a guard."""
        super().__init__(blob, offsets, guard)
        self._lookup = lookup

    @property
    def lookup(self) -> np.ndarray:
        """Hash and position of every id in one number, sorted, uint64 (N,).

        That is 8 bytes an id, where a dict of strings takes over 100; ids with equal half hashes differ by name.
        """
        if self._lookup is None:
            lookup = hash_ids(self.blob, self.offsets) << np.uint64(32)
            lookup |= np.arange(len(self), dtype=np.uint64)
            lookup.sort()
            self._lookup = lookup  # only when it is whole: another thread may look at any time
        elif self._guard is not None:
            self._guard.whole()
        return self._lookup

    @classmethod
    def of(cls, ids: Iterable[str]) -> Ids:
        """Return ids that are checked to be distinct strings."""
        names = listed(ids)
        found = cls(*as_blob(names))
        found._refuse_repeated()
        return found

    def __contains__(self, item: object) -> bool:
        """Return whether this is one of the ids."""
        return isinstance(item, str) and bool(self.locate([item])[0] >= 0)

    def locate(self, ids: Sequence[str]) -> np.ndarray:
        """Return the position of every id, -1 where it is unknown, int64."""
        lookup = self.lookup
        blob, offsets = (ids.blob, ids.offsets) if type(ids) is Ids else as_blob(ids)
        keys = hash_ids(blob, offsets) << np.uint64(32)
        left = np.argsort(keys)  # neighbours are found through the same entries
        at, found = np.searchsorted(lookup, keys[left]), np.full(len(ids), -1)
        # One round settles nearly everything: few ids have the same half hash.
        while len(left):
            alike = at < len(lookup)
            alike[alike] = lookup[at[alike]] & ~POSITION == keys[left[alike]]
            left, at = left[alike], at[alike]
            candidates = (lookup[at] & POSITION).astype(np.int64)
            names = zip(left.tolist(), self.take(candidates), strict=True)
            same = np.fromiter((ids[i] == name for i, name in names), bool, len(left))
            found[left[same]] = candidates[same]
            left, at = left[~same], at[~same] + 1
        return found

    def known(self, ids: Sequence[str]) -> list[str]:
        """Return those of some ids that are here."""
        return [name for name, place in zip(ids, self.locate(ids).tolist(), strict=True) if place >= 0]

    def positions(self, ids: Iterable[str]) -> np.ndarray:
        """Return the position of every id, refusing an unknown one by name, int64."""
        names = listed(ids)
        found = self.locate(names)
        unknown = np.flatnonzero(found < 0)
        if len(unknown):
            raise SiglumError(
                f"{len(unknown)} of {len(names)} ids are not in the index, the first is {shown(names[unknown[0]])}."
            )
        return found

    def refuse_known(self, other: Ids) -> None:
        """Refuse ids of which one is here already."""
        known = np.flatnonzero(self.locate(other) >= 0)
        if len(known):
            raise SiglumError(
                f"item {shown(other[int(known[0])])} is in the index already, as are {len(known)} of the {len(other)}"
                " new ids; remove them first."
            )

    def joined(self, other: Ids) -> Ids:  # type: ignore[override]
        """Return these ids followed by the others, refusing one that is here already."""
        self.refuse_known(other)
        lookup = np.concatenate([self.lookup, other.lookup + np.uint64(len(self))])
        lookup.sort(kind="stable")  # merges two sorted runs
        both = super().joined(other)
        return Ids(both.blob, both.offsets, lookup)

    def kept(self, keep: np.ndarray) -> Ids:
        """Return the ids where the mask over positions is true."""
        left, lookup = super().kept(keep), self.lookup
        position = (lookup & POSITION).view(np.int64)
        stays = keep[position]
        lookup = lookup[stays] - np.cumsum(~keep, dtype=np.uint32)[position[stays]]
        return Ids(left.blob, left.offsets, lookup)

    def _refuse_repeated(self) -> None:
        lookup = self.lookup
        halves = lookup >> np.uint64(32)
        equal = np.flatnonzero(halves[1:] == halves[:-1])
        seen: set[str] = set()
        for position in np.unique(lookup[np.concatenate([equal, equal + 1])] & POSITION).tolist():
            if self[position] in seen:
                raise SiglumError(
                    f"item ids must differ, but {shown(self[position])} occurs again at position {position}."
                )
            seen.add(self[position])


class LayeredIds(LayeredStrings, Ids):
    """The ids below that are left, then those of the layer."""

    below: Ids
    fresh: Ids

    def locate(self, ids: Sequence[str]) -> np.ndarray:
        """Return the position of every id, -1 where it is unknown, int64."""
        below, own = self.below.locate(ids), self.fresh.locate(ids)
        before = np.searchsorted(self.gone, below)
        is_gone = (below < 0) | np.isin(below, self.gone)
        return np.where(own >= 0, own + self._live, np.where(is_gone, -1, below - before))


def hash_ids(blob: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return a hash of every id, its words of 8 bytes mixed in one after the other, uint64 (N,)."""
    hashes = np.empty(len(offsets) - 1, np.uint64)
    masks = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
    for part in chunks(len(hashes)):
        first, last = offsets[part], offsets[part.start + 1 : part.stop + 1]
        padded = np.append(blob[first[0] : last[-1]], np.zeros(8, np.uint8))
        words = np.ndarray(len(padded) - 7, "V8", padded, strides=(1,))  # one begins at every byte
        at, left = first - first[0], last - first
        value, live = left.astype(np.uint64), np.flatnonzero(left)
        while len(live):
            word = words[at[live]].view("<u8") & masks[np.minimum(left[live], 8)]
            mixed = (value[live] ^ word) * MIX
            value[live] = mixed ^ (mixed >> np.uint64(32))
            at, left = at + 8, left - 8
            live = live[left[live] > 0]
        hashes[part] = value
    return hashes
