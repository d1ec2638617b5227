"""Item ids: one UTF-8 blob with offsets, decoded on demand, and a compact look-up by hash."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import numpy as np

from siglum import files
from siglum.index.pack import chunks
from siglum.index.ragged import spread
from siglum.types import SiglumError

POSITION = np.uint64((1 << 32) - 1)
"""Bits of a look-up's entry that hold the position; those above hold half of the id's hash."""
MIX = np.uint64(0x9E3779B97F4A7C15)
"""An odd number whose bits look random: a product with it spreads every bit of a word upwards."""


class Ids(Sequence[str]):
    """Distinct ids in pool order.

    >>> ids = Ids.of(["cat", "dog"])
    >>> ids[1], list(ids), ids.positions(["dog"]).tolist()
    ('dog', ['cat', 'dog'], [1])
    """

    def __init__(self, blob: np.ndarray, offsets: np.ndarray, lookup: np.ndarray | None = None) -> None:
        """Wrap the arrays of `files.ids_to_arrays`, which may be memory-mapped."""
        self.blob = np.asarray(blob)
        self.offsets = np.asarray(offsets)
        self._lookup = lookup

    @classmethod
    def of(cls, ids: Iterable[str]) -> Ids:
        """Return ids that are checked to be distinct strings."""
        names = _listed(ids)
        found = cls(*_encoded(names))
        found._refuse_repeated()
        return found

    def __len__(self) -> int:
        """Return the number of ids."""
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        """Return one id, or a list of them for a slice."""
        if isinstance(index, slice):
            return self.take(np.arange(*index.indices(len(self))))
        position = range(len(self))[index]
        return self.blob[self.offsets[position] : self.offsets[position + 1]].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        """Yield the ids, decoding a chunk at a time."""
        for part in chunks(len(self)):
            bounds = self.offsets[part.start : part.stop + 1]
            yield from files.ids_from_arrays(self.blob[bounds[0] : bounds[-1]], bounds - bounds[0])

    def __contains__(self, item: object) -> bool:
        """Return whether this is one of the ids."""
        return isinstance(item, str) and bool(self.locate([item])[0] >= 0)

    def take(self, positions: np.ndarray) -> list[str]:
        """Return the ids at these positions."""
        first = self.offsets[positions]
        lengths = self.offsets[positions + 1] - first
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        return files.ids_from_arrays(self.blob[spread(first, lengths)], offsets)

    def locate(self, ids: Sequence[str]) -> np.ndarray:
        """Return the position of every id, -1 where it is unknown, int64."""
        lookup = self._found_by_hash()
        keys = _hashes(*_encoded(ids)) << np.uint64(32)
        first, last = np.searchsorted(lookup, keys), np.searchsorted(lookup, keys | POSITION, "right")
        found = np.full(len(ids), -1)
        # One round settles nearly everything: few ids have the same half hash.
        for step in range(int((last - first).max(initial=0))):
            left = np.flatnonzero((found < 0) & (first + step < last))
            candidates = (lookup[first[left] + step] & POSITION).astype(np.int64)
            names = zip(left.tolist(), self.take(candidates), strict=True)
            same = np.fromiter((ids[i] == name for i, name in names), bool, len(left))
            found[left[same]] = candidates[same]
        return found

    def positions(self, ids: Iterable[str]) -> np.ndarray:
        """Return the position of every id, refusing an unknown one by name, int64."""
        names = _listed(ids)
        found = self.locate(names)
        unknown = np.flatnonzero(found < 0)
        if len(unknown):
            raise SiglumError(
                f"{len(unknown)} of {len(names)} ids are not in the index, the first is {names[unknown[0]]!r}."
            )
        return found

    def joined(self, other: Ids) -> Ids:
        """Return these ids followed by the others, refusing one that is here already."""
        names = list(other)
        known = np.flatnonzero(self.locate(names) >= 0)
        if len(known):
            raise SiglumError(
                f"item {names[known[0]]!r} is in the index already, as are {len(known)} of the {len(names)} new ids; "
                "remove them first."
            )
        lookup = np.concatenate([self._found_by_hash(), other._found_by_hash() + np.uint64(len(self))])
        lookup.sort(kind="stable")  # merges two sorted runs
        offsets = np.concatenate([self.offsets, other.offsets[1:] + self.offsets[-1]])
        return Ids(np.concatenate([self.blob, other.blob]), offsets, lookup)

    def kept(self, keep: np.ndarray) -> Ids:
        """Return the ids where the mask over positions is true."""
        lengths = np.diff(self.offsets)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[keep])])
        lookup = self._found_by_hash()
        position = (lookup & POSITION).view(np.int64)
        stays = keep[position]
        lookup = lookup[stays] - np.cumsum(~keep, dtype=np.uint32)[position[stays]]
        return Ids(self.blob[np.repeat(keep, lengths)], offsets, lookup)

    def _found_by_hash(self) -> np.ndarray:
        """Return hash and position of every id in one number, sorted, uint64 (N,).

        That is 8 bytes an id, where a dict of strings takes over 100; ids with equal half hashes differ by name.
        """
        if self._lookup is None:
            self._lookup = _hashes(self.blob, self.offsets) << np.uint64(32)
            self._lookup |= np.arange(len(self), dtype=np.uint64)
            self._lookup.sort()
        return self._lookup

    def _refuse_repeated(self) -> None:
        lookup = self._found_by_hash()
        halves = lookup >> np.uint64(32)
        equal = np.flatnonzero(halves[1:] == halves[:-1])
        seen: set[str] = set()
        for position in np.unique(lookup[np.concatenate([equal, equal + 1])] & POSITION).tolist():
            if self[position] in seen:
                raise SiglumError(f"item ids must differ, but {self[position]!r} occurs again at position {position}.")
            seen.add(self[position])


def _listed(ids: Iterable[str]) -> list[str]:
    if isinstance(ids, str):
        raise SiglumError(f"ids must be a collection of strings, but one string was given: {ids!r}.")
    return list(ids)


def _encoded(names: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return ids as blob and offsets, refusing what is not a string or cannot be written."""
    try:
        text = "".join(names)
        blob = text.encode()
    except TypeError:
        place, name = next((place, name) for place, name in enumerate(names) if not isinstance(name, str))
        raise SiglumError(f"ids must be strings, but the one at position {place} is {name!r}.") from None
    except UnicodeEncodeError as error:
        place = int(np.searchsorted(np.cumsum([len(name) for name in names]), error.start, "right"))
        raise SiglumError(f"item id {names[place]!r} cannot be written as UTF-8 ({error.reason}).") from error
    sizes = map(len, names) if len(blob) == len(text) else (len(name.encode()) for name in names)
    offsets = np.zeros(len(names) + 1, np.int64)
    np.cumsum(np.fromiter(sizes, np.int64, len(names)), out=offsets[1:])
    return np.frombuffer(blob, np.uint8), offsets


def _hashes(blob: np.ndarray, offsets: np.ndarray) -> np.ndarray:
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
