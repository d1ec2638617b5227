"""Strings of items in pool order: one UTF-8 blob with offsets, decoded on demand; in a mapped file, checked first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np

from siglum.checks import BlockChecks
from siglum.index.pack import chunks
from siglum.index.ragged import spread
from siglum.tensors import ids_from_arrays
from siglum.types import SiglumError, shown


class Guard:
    """Checks strings in a mapped file before they are looked at."""

    def __init__(self, blocks: BlockChecks, blob: int, offsets: int) -> None:
        """Take the checks of the file, and the bytes at which the strings and their offsets begin in it."""
        self.blocks, self._blob, self._offsets = blocks, blob, offsets

    def whole(self) -> None:
        """Check the whole file."""
        self.blocks.touch(0, self.blocks.size)

    def some(self, positions: np.ndarray, offsets: np.ndarray) -> None:
        """Check what the strings at these positions are read from."""
        if self.blocks.whole:
            return
        self.blocks.touch_at(self._offsets + 8 * positions)
        self.blocks.touch_at(self._offsets + 8 * (positions + 1))
        for first, stop in zip(offsets[positions].tolist(), offsets[positions + 1].tolist(), strict=True):
            self.blocks.touch(self._blob + first, self._blob + stop)


class Strings(Sequence[str]):
    """One string an item.

    >>> strings = Strings.of(["a cat", "", "a dog"])
    >>> strings[2], strings.kept(np.array([True, False, True]))[:]
    ('a dog', ['a cat', 'a dog'])
    """

    def __init__(self, blob: np.ndarray, offsets: np.ndarray, guard: Guard | None = None) -> None:
        """Wrap the arrays of `files.ids_to_arrays`, which may be mapped and then have a guard."""
        self._blob, self._bounds, self._guard = np.asarray(blob), np.asarray(offsets), guard

    @classmethod
    def of(cls, strings: Sequence[str]) -> Strings:
        """Return strings in this form."""
        return Strings(*as_blob(strings))

    @classmethod
    def empty(cls, count: int) -> Strings:
        """Return so many empty strings, which take no room."""
        return Strings(np.zeros(0, np.uint8), np.broadcast_to(np.int64(0), (count + 1,)))

    @property
    def blob(self) -> np.ndarray:
        """The strings as UTF-8, one after the other."""
        if self._guard is not None:
            self._guard.whole()
        return self._blob

    @property
    def offsets(self) -> np.ndarray:
        """First byte of every string, and the end of the last, int64 (N + 1,)."""
        if self._guard is not None:
            self._guard.whole()
        return self._bounds

    @property
    def are_empty(self) -> bool:
        """Whether all of them are empty."""
        return not len(self._blob)

    def __len__(self) -> int:
        """Return the number of strings."""
        return len(self._bounds) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        """Return one string, or a list of them for a slice."""
        if isinstance(index, slice):
            return self.take(np.arange(*index.indices(len(self))))
        return self.take(np.array([range(len(self))[index]]))[0]

    def __iter__(self) -> Iterator[str]:
        """Yield the strings, decoding a chunk at a time."""
        blob, offsets = self.blob, self.offsets
        for part in chunks(len(self)):
            bounds = offsets[part.start : part.stop + 1]
            yield from ids_from_arrays(blob[bounds[0] : bounds[-1]], bounds - bounds[0])

    def take(self, positions: np.ndarray) -> list[str]:
        """Return the strings at these positions."""
        if self._guard is not None:
            self._guard.some(positions, self._bounds)
        first = self._bounds[positions]
        lengths = self._bounds[positions + 1] - first
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        return ids_from_arrays(self._blob[spread(first, lengths)], offsets)

    def joined(self, other: Strings) -> Strings:
        """Return these strings followed by the others."""
        offsets = np.concatenate([self.offsets, other.offsets[1:] + self.offsets[-1]])
        return Strings(np.concatenate([self.blob, other.blob]), offsets)

    def kept(self, keep: np.ndarray) -> Strings:
        """Return the strings where the mask over positions is true."""
        lengths = np.diff(self.offsets)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[keep])])
        return Strings(self.blob[np.repeat(keep, lengths)], offsets)


class LayeredStrings(Strings):
    """The strings below that are left, then those of the layer."""

    def __init__(self, below: Strings, gone: np.ndarray, fresh: Strings) -> None:
        """Take strings, the positions below that are gone (ascending), and the strings of the layer."""
        # Not those of the base class: there is no array of all strings.
        self.below, self.gone, self.fresh = below, gone, fresh
        self._skip = gone - np.arange(len(gone))
        self._live = len(below) - len(gone)

    @property
    def are_empty(self) -> bool:
        """Whether all of them are empty; those that are gone count."""
        return self.below.are_empty and self.fresh.are_empty

    def __len__(self) -> int:
        return self._live + len(self.fresh)

    def below_positions(self, positions: np.ndarray) -> np.ndarray:
        """Return the positions below of positions that are not the layer's own."""
        return positions + np.searchsorted(self._skip, positions, "right")

    def __iter__(self) -> Iterator[str]:
        for part in chunks(len(self)):
            yield from self.take(np.arange(part.start, part.stop))

    def take(self, positions: np.ndarray) -> list[str]:
        """Return the strings at these positions."""
        is_own = positions >= self._live
        if not is_own.any():
            return self.below.take(self.below_positions(positions))
        mine = iter(self.fresh.take(positions[is_own] - self._live))
        theirs = iter(self.below.take(self.below_positions(positions[~is_own])))
        return [next(mine if own else theirs) for own in is_own.tolist()]


def as_blob(strings: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return strings as blob and offsets, refusing one that cannot be written."""
    try:
        text = "".join(strings)
        blob = text.encode()
    except UnicodeEncodeError as error:
        place = int(np.searchsorted(np.cumsum([len(one) for one in strings]), error.start, "right"))
        raise SiglumError(f"item id {shown(strings[place])} cannot be written as UTF-8 ({error.reason}).") from error
    sizes = map(len, strings) if len(blob) == len(text) else (len(one.encode()) for one in strings)
    offsets = np.zeros(len(strings) + 1, np.int64)
    np.cumsum(np.fromiter(sizes, np.int64, len(strings)), out=offsets[1:])
    return np.frombuffer(blob, np.uint8), offsets
