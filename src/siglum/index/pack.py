"""Bit packing: a row of codes as the fewest bytes, so that byte order is code order.

The last bits of a row are left for the number of codes it shares with the row before, once rows are sorted.
Shapes: N rows, L levels (the modality token, where there is one, is level 0), B bytes a row, W bytes a position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from siglum.types import SiglumError, shown, whole_number

CHUNK = 1 << 14
"""Rows worked on at a time, so that temporary arrays stay in the cache and out of the memory figures."""
MAX_LEVELS = 255
"""Shared-prefix lengths lie within one byte."""
MAX_SIZE = 1 << 31
"""Codes are handed out as int32."""


def chunks(count: int, rest: Callable[[], None] | None = None) -> Iterator[slice]:
    """Yield slices of at most `CHUNK` rows that cover `count` rows, and rest after each, if asked to."""
    for start in range(0, count, CHUNK):
        yield slice(start, min(start + CHUNK, count))
        if rest is not None:
            rest()


@dataclass(frozen=True)
class Layout:
    """Where everything lies in a packed row: ceil(log2 V) bits a level, most significant first, then the tail.

    The tail is the last bits of the last byte, enough for a shared-prefix length 0 to L.

    >>> layout = Layout((3, 512, 2048))
    >>> layout.bits, layout.tail, layout.row_bytes
    ((2, 9, 11), 3, 3)
    >>> layout.unpack(layout.pack(np.array([[2, 511, 7]]))).tolist()
    [[2, 511, 7]]
    """

    sizes: tuple[int, ...]
    """Number V of codes of every level; a level with one code takes no bits."""

    def __post_init__(self) -> None:
        """Refuse sizes that cannot be stored."""
        if not 1 <= len(self.sizes) <= MAX_LEVELS:
            raise SiglumError(f"an index needs 1 to {MAX_LEVELS} levels, but {len(self.sizes)} sizes were given.")
        for level, size in enumerate(self.sizes):
            if not 1 <= size <= MAX_SIZE:
                raise SiglumError(f"level {level} has size {shown(size)}, but a level has 1 to {MAX_SIZE} codes.")

    @classmethod
    def of(cls, sizes: Iterable[int]) -> Layout:
        """Return the layout of levels with these numbers of codes, refusing what is no number."""
        try:
            given = list(sizes)
        except TypeError:
            raise SiglumError(f"the sizes of an index are whole numbers, one a level, not {shown(sizes)}.") from None
        return cls(tuple(whole_number(f"the size of level {level}", size) for level, size in enumerate(given)))

    @property
    def levels(self) -> int:
        """Number L of codes a row."""
        return len(self.sizes)

    @cached_property
    def bits(self) -> tuple[int, ...]:
        """Bits of every level."""
        return tuple((size - 1).bit_length() for size in self.sizes)

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """First bit of every level, and the end of the last."""
        return tuple(sum(self.bits[:level]) for level in range(self.levels + 1))

    @cached_property
    def tail(self) -> int:
        """Mask of the last byte's bits that hold the shared-prefix length."""
        return int((1 << self.levels.bit_length()) - 1)

    @cached_property
    def row_bytes(self) -> int:
        """Bytes B of one packed row, codes and tail."""
        return -(-(self.starts[-1] + self.levels.bit_length()) // 8)

    @cached_property
    def _level_of_bit(self) -> np.ndarray:
        return np.repeat(np.arange(self.levels, dtype=np.uint8), self.bits)

    def pack(self, codes_NL: np.ndarray) -> np.ndarray:
        """Return codes (N, L) as uint8 rows (N, B), their tails zero; the codes must be in range."""
        packed_NB = np.empty((len(codes_NL), self.row_bytes), np.uint8)
        for part in chunks(len(codes_NL)):
            packed_NB[part] = self._pack_chunk(codes_NL[part])
        return packed_NB

    def _pack_chunk(self, codes_NL: np.ndarray) -> np.ndarray:
        codes_LN = np.ascontiguousarray(codes_NL.T, np.uint64)
        words_WN = np.zeros((-(-self.row_bytes // 8), len(codes_NL)), np.uint64)
        for code, start, bits in zip(codes_LN, self.starts, self.bits, strict=False):
            if bits:
                word, end = start // 64, start % 64 + bits
                if end <= 64:
                    words_WN[word] |= code << np.uint64(64 - end)
                else:
                    words_WN[word] |= code >> np.uint64(end - 64)
                    words_WN[word + 1] |= code << np.uint64(128 - end)
        return words_WN.T.astype(">u8", order="C").view(np.uint8)[:, : self.row_bytes]

    def column(self, packed_NB: np.ndarray, level: int, rows: np.ndarray) -> np.ndarray:
        """Return the code of one level for the chosen rows, int32."""
        bits, start = self.bits[level], self.starts[level]
        if bits == 0:
            return np.zeros(len(rows), np.int32)
        first, last = start // 8, (start + bits - 1) // 8
        flat, codes = packed_NB.reshape(-1), np.empty(len(rows), np.int32)
        for part in chunks(len(rows)):
            at = np.asarray(rows[part], np.int64) * self.row_bytes + first
            value = flat[at].astype(np.int64)
            for _ in range(first, last):
                at += 1
                value <<= 8
                value |= flat[at]
            value >>= 8 * (last + 1) - start - bits
            value &= (1 << bits) - 1
            codes[part] = value
        return codes

    def unpack(self, packed_NB: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """Return the codes of the chosen rows (all of them by default), int32 (n, L)."""
        rows = np.arange(len(packed_NB)) if rows is None else rows
        codes_NL = np.empty((len(rows), self.levels), np.int32)
        for part in chunks(len(rows)):
            for level in range(self.levels):
                codes_NL[part, level] = self.column(packed_NB, level, rows[part])
        return codes_NL

    def shared(self, before_NB: np.ndarray, after_NB: np.ndarray) -> np.ndarray:
        """Return how many leading codes two packed rows have in common, row by row, uint8 (N,)."""
        differs_NB = before_NB ^ after_NB
        differs_NB[:, -1] &= 255 ^ self.tail
        byte = (differs_NB != 0).argmax(1)
        value = np.take_along_axis(differs_NB, byte[:, None], 1)[:, 0]
        # Position of the highest set bit in a byte, counted from the left: the first bit that differs.
        first_bit = np.array([8 - value.bit_length() for value in range(256)])
        result = np.full(len(before_NB), self.levels, np.uint8)
        other = np.flatnonzero(value)
        result[other] = self._level_of_bit[8 * byte[other] + first_bit[value[other]]]
        return result

    def link(self, packed_NB: np.ndarray, rows: np.ndarray | None = None) -> None:
        """Write the shared-prefix lengths of these sorted rows (all of them by default), never row 0, in place."""
        if rows is None:
            for part in chunks(len(packed_NB) - 1):
                after_NB = packed_NB[part.start + 1 : part.stop + 1]
                after_NB[:, -1] |= self.shared(packed_NB[part], after_NB)
        else:
            for part in chunks(len(rows)):
                some = rows[part]
                after_NB = np.take(packed_NB, some, 0)
                shared = self.shared(np.take(packed_NB, some - 1, 0), after_NB)
                packed_NB[some, -1] = after_NB[:, -1] & (255 ^ self.tail) | shared


def as_bytes(rows_NB: np.ndarray) -> np.ndarray:
    """Return rows as one opaque value each, which numpy copies whole and compares byte by byte, (N,)."""
    return np.ascontiguousarray(rows_NB).view(np.dtype((np.void, rows_NB.shape[1])))[:, 0]


def as_rows(values: np.ndarray) -> np.ndarray:
    """Undo `as_bytes`, uint8 (N, B)."""
    return values.view(np.uint8).reshape(len(values), values.dtype.itemsize)


def sort_rows(packed_NB: np.ndarray) -> np.ndarray:
    """Return the order that sorts packed rows, equal rows staying in the order they came, int64 (N,)."""
    count, words = len(packed_NB), -(-packed_NB.shape[1] // 8)
    # One machine word with the first bits and the row's number sorts faster than an order is found by argsort.
    mask = np.uint64((1 << max(count - 1, 1).bit_length()) - 1)
    key = _word(packed_NB, 0) & ~mask
    key |= np.arange(count, dtype=np.uint64)
    key.sort()
    order = (key & mask).astype(np.int64)
    key |= mask
    equal = key[1:] == key[:-1]
    tied = np.zeros(count, bool)
    tied[1:] |= equal
    tied[:-1] |= equal
    places = np.flatnonzero(tied)
    if len(places):
        rows = np.sort(order[places])
        rows_NB = np.take(packed_NB, rows, 0)
        order[places] = rows[np.lexsort([_word(rows_NB, word) for word in reversed(range(words))])]
    return order


def insertion_points(packed_NB: np.ndarray, new_MB: np.ndarray, tail: int) -> np.ndarray:
    """Return where each new row goes among sorted rows, after any with equal codes, int64 (M,)."""
    last_MB = new_MB.copy()
    last_MB[:, -1] |= tail
    return np.searchsorted(as_bytes(packed_NB), as_bytes(last_MB), side="right")


def narrow(order: np.ndarray) -> np.ndarray:
    """Return positions of sorted rows in as few bytes as hold them, uint8 (N, W); W is 0 where each is its own row.

    >>> narrow(np.array([2, 0, 1])).tolist(), narrow(np.array([0, 1, 2])).shape
    ([[2], [0], [1]], (3, 0))
    """
    moved = (order != np.arange(len(order), dtype=order.dtype)).any()
    width = -(-(len(order) - 1).bit_length() // 8) if moved else 0
    return np.ascontiguousarray(order.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :width])


def widen(order_NW: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
    """Return the positions of chosen rows (all of them by default) from what `narrow` made, uint32."""
    width = order_NW.shape[1]
    if width == 0:
        return np.arange(len(order_NW), dtype=np.uint32) if rows is None else rows.astype(np.uint32)
    some_NW = order_NW if rows is None else np.take(order_NW, rows, 0)
    wide = np.zeros((len(some_NW), 4), np.uint8)
    wide[:, :width] = some_NW
    return wide.view("<u4")[:, 0]


def _word(packed_NB: np.ndarray, word: int) -> np.ndarray:
    part = packed_NB[:, 8 * word : 8 * word + 8]
    padded = np.zeros((len(packed_NB), 8), np.uint8)
    padded[:, : part.shape[1]] = part
    return padded.view(">u8")[:, 0].astype(np.uint64)
