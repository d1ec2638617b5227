"""Item ids: one UTF-8 blob with offsets, decoded on demand, and a compact look-up by hash."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, overload

import numpy as np

from siglum import files
from siglum.index.pack import chunks
from siglum.index.ragged import spread
from siglum.types import SiglumError


class _Lookup(NamedTuple):
    """Sorted 64-bit hashes with their positions: 12 bytes an id, where a dict of strings takes over 100."""

    hashes: np.ndarray
    positions: np.ndarray

    @classmethod
    def of(cls, hashes: np.ndarray, positions: np.ndarray | None = None) -> _Lookup:
        order = np.argsort(hashes)
        return cls(hashes[order], (order if positions is None else positions[order]).astype(np.uint32))


def _hashes(ids: Iterable[str], count: int) -> np.ndarray:
    return np.fromiter(map(hash, ids), np.int64, count)


class Ids(Sequence[str]):
    """Distinct ids in pool order.

    >>> ids = Ids.of(["cat", "dog"])
    >>> ids[1], list(ids), ids.positions(["dog"]).tolist()
    ('dog', ['cat', 'dog'], [1])
    """

    def __init__(self, blob: np.ndarray, offsets: np.ndarray, lookup: _Lookup | None = None) -> None:
        """Wrap the arrays of `files.ids_to_arrays`, which may be memory-mapped."""
        self.blob = np.asarray(blob)
        self.offsets = np.asarray(offsets)
        self._lookup = lookup

    @classmethod
    def of(cls, ids: Iterable[str]) -> Ids:
        """Return ids that are checked to be distinct strings."""
        names = _listed(ids)
        lookup = _Lookup.of(_hashes(names, len(names)))
        _refuse_repeated(names, lookup)
        blobs, lengths = [np.zeros(0, np.uint8)], [np.zeros(1, np.int64)]
        for part in chunks(len(names)):
            arrays = _encoded(names[part])
            blobs.append(arrays["id_bytes"])
            lengths.append(np.diff(arrays["id_offsets"]))
        return cls(np.concatenate(blobs), np.cumsum(np.concatenate(lengths)), lookup)

    def __reduce__(self) -> tuple[type[Ids], tuple[np.ndarray, np.ndarray]]:
        """Copy without the look-up: string hashes differ from process to process."""
        return Ids, (self.blob, self.offsets)

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
            yield from self.take(np.arange(part.start, part.stop))

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
        keys = _hashes(ids, len(ids))
        first, last = (np.searchsorted(lookup.hashes, keys, side) for side in ("left", "right"))
        found = np.full(len(ids), -1)
        # One round settles everything, unless two ids have the same hash.
        for step in range(int((last - first).max(initial=0))):
            left = np.flatnonzero((found < 0) & (first + step < last))
            candidates = lookup.positions[first[left] + step].astype(np.int64)
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
        mine, theirs = self._found_by_hash(), other._found_by_hash()
        hashes = np.concatenate([mine.hashes, theirs.hashes])
        lookup = _Lookup.of(hashes, np.concatenate([mine.positions, theirs.positions + np.uint32(len(self))]))
        offsets = np.concatenate([self.offsets, other.offsets[1:] + self.offsets[-1]])
        return Ids(np.concatenate([self.blob, other.blob]), offsets, lookup)

    def kept(self, keep: np.ndarray) -> Ids:
        """Return the ids where the mask over positions is true."""
        lengths = np.diff(self.offsets)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[keep])])
        lookup = self._found_by_hash()
        stays = keep[lookup.positions]
        renumbered = (np.cumsum(keep) - 1)[lookup.positions[stays]].astype(np.uint32)
        return Ids(self.blob[np.repeat(keep, lengths)], offsets, _Lookup(lookup.hashes[stays], renumbered))

    def _found_by_hash(self) -> _Lookup:
        if self._lookup is None:
            self._lookup = _Lookup.of(_hashes(self, len(self)))
        return self._lookup


def _listed(ids: Iterable[str]) -> list[str]:
    if isinstance(ids, str):
        raise SiglumError(f"ids must be a collection of strings, but one string was given: {ids!r}.")
    names = list(ids)
    for position, name in enumerate(names):
        if not isinstance(name, str):
            raise SiglumError(f"ids must be strings, but the one at position {position} is {name!r}.")
    return names


def _encoded(names: list[str]) -> dict[str, np.ndarray]:
    try:
        return files.ids_to_arrays(names)
    except UnicodeEncodeError as error:
        raise SiglumError(f"item id {error.object!r} cannot be written as UTF-8 ({error.reason}).") from error


def _refuse_repeated(names: list[str], lookup: _Lookup) -> None:
    equal = np.flatnonzero(lookup.hashes[1:] == lookup.hashes[:-1])
    seen: set[str] = set()
    for position in np.unique(lookup.positions[np.concatenate([equal, equal + 1])]).tolist():
        if names[position] in seen:
            raise SiglumError(f"item ids must differ, but {names[position]!r} occurs again at position {position}.")
        seen.add(names[position])
